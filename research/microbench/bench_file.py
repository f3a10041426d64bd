"""The file of a bench: the calibration that follows from it, and all single times, as TOML that
people can read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Literal

import msgspec

from tachograph.annexes.share.calibration import CalibrationFile, read_calibration_file
from tachograph.annexes.share.demand import CorunMode
from tachograph.catalog.durable import replace_file

# gain: time one after the other over time together; first, second: slowdown of that one; both: mean
# of the two
Compared = Literal["gain", "first", "second", "both"]
_HEAD = """\
# Results of micro-benchmarks on this GPU. Written by `make calibrate`;
# the key interference.calibration of tachograph.toml names it.
"""


class LaunchTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One launch alone: `seconds` and `cycles` of an SM of the median one, `each_s` of all.
    `floats`: of its array.
    """

    launch: str
    floats: int
    rounds: int
    cycles: int
    seconds: float
    each_s: list[float] = []


class PairTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Two launches: seconds of every run, in order; `in_turn_s` is empty where they did not run
    one after the other.
    """

    first_alone_s: list[float]
    second_alone_s: list[float]
    first_together_s: list[float]
    second_together_s: list[float]
    in_turn_s: list[float] = []


class PlanRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What was to be measured. `runs_asked`: as asked for, `runs`: as time allows."""

    runs_asked: int
    runs: int
    duration_ms: float
    experiments: list[str]
    mps: bool = False


class BenchRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One experiment in one way of sharing. `predicted`, `calibrated`: expected before the two
    ran together, with the published calibration, with this one. `low`, `high`: of single runs.
    """

    name: str
    mode: CorunMode
    compared: Compared
    predicted: float | None = None
    calibrated: float | None = None
    measured: float | None = None
    low: float | None = None
    high: float | None = None
    published: float | None = None
    problem: str | None = None
    launches: list[LaunchTimes] = []
    times: PairTimes | None = None


class BenchFile(
    CalibrationFile, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """All of it. `knees`: {where: bytes} above which an array no longer stays in a cache. `arch`:
    the architecture that the kernels were compiled for. `versions`: {package: its version}. `plan`:
    None in files of format 1.
    """

    arch: str = ""
    sms: int | None = None
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    plan: PlanRecord | None = None
    knees: dict[str, float] = msgspec.field(default_factory=dict)
    experiments: list[BenchRow] = msgspec.field(default_factory=list)


def read_bench_file(path: Path) -> BenchFile:
    """Return all that the file of a bench holds.

    Errors: InputError naming file and key.
    """
    return read_calibration_file(path, BenchFile)


def write_bench_file(path: Path, content: BenchFile) -> None:
    """Write the file, whole or not at all.

    Errors: OSError, for the caller to add the context.
    """
    replace_file(path, _toml(content).encode())


def _toml(content: BenchFile) -> str:
    """The file as TOML: what is not known is left out, because TOML has no null."""
    head = ("format", "gpu", "driver", "date", "arch", "sms")
    lines = [
        _HEAD,
        *(_assigned(name, value) for name in head if (value := getattr(content, name)) is not None),
    ]
    for title, values in (("versions", content.versions), ("plan", content.plan)):
        if values:
            lines += ["", f"[{title}]", *_assignments(values)]
    for name, entry in content.calibration.items():
        lines += ["", f"[calibration.{name}]", *_assignments(entry)]
    if content.knees:
        lines += ["", "[knees]", *_assignments(content.knees)]
    for row in content.experiments:
        lines += ["", "[[experiments]]", *_assignments(row)]
        for launch in row.launches:
            lines += ["[[experiments.launches]]", *_assignments(launch)]
        if row.times is not None:
            lines += ["[experiments.times]", *_assignments(row.times)]
    return "\n".join(lines) + "\n"


def _assignments(table: msgspec.Struct | Mapping[str, object]) -> Iterator[str]:
    """A line for each value of a table; tables within it have their own place."""
    plain = table if isinstance(table, Mapping) else msgspec.structs.asdict(table)
    for name, value in plain.items():
        tables = isinstance(value, msgspec.Struct) or (
            isinstance(value, list) and value and not _flat(value)
        )
        empty = (
            value is None or value in ("", []) or (isinstance(value, float) and not isfinite(value))
        )
        if not tables and not empty:
            yield _assigned(name, value)


def _flat(values: list[object]) -> bool:
    return all(isinstance(value, str | int | float) for value in values)


def _assigned(name: str, value: object) -> str:
    """One line; JSON writes strings, lists and finite numbers as TOML reads them, but for one
    control character.
    """
    written = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    key = (
        name
        if name.replace("-", "").replace("_", "").isalnum() and name.isascii()
        else json.dumps(name)
    )
    return f"{key} = {written}"
