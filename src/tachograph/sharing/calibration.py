"""The file of a calibration: results of micro-benchmarks for one model of GPU, and the source of each value."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Literal

import msgspec

from tachograph.catalog.config import Configuration
from tachograph.catalog.durable import replace_file
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.sharing.demand import Calibration, CorunMode

CALIBRATION_FORMAT = 2  # of 1 all is a part
_FORMATS = (1, CALIBRATION_FORMAT)
# gain: time one after the other over time together; first, second: slowdown of that one; both: mean of the two
Compared = Literal["gain", "first", "second", "both"]
# {value of a calibration: (least, most)}
CALIBRATION_LIMITS: Mapping[str, tuple[float, float]] = {
    "dram_curvature": (0.0, 100.0),
    "achievable_share": (0.01, 1.0),
    "issue_capacity": (0.01, 1.0),
    "l2_miss_cost": (1.0, 1000.0),
    "l1_miss_cost": (1.0, 1000.0),
    "l2_bytes_per_s": (1e9, 1e15),
    "l2_knee": (0.1, 10.0),
    "l2_cliff": (0.1, 100.0),
    "l1_knee": (0.1, 10.0),
    "l1_cliff": (0.1, 100.0),
}
_HEAD = """\
# Results of micro-benchmarks on this GPU. Written by `tachograph interference bench`;
# the key interference.calibration of tachograph.toml names it.
"""


class CalibrationValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One value. `provenance`: measured on this GPU, or published for the H100, as it was not measured here; None:
    neither is known.

    `residual`: worst relative error of the fit, where there was one. `note`: in words.
    """

    value: float | None = None
    provenance: Literal["measured", "published"] = "published"
    experiment: str = ""
    residual: float | None = None
    note: str = ""


class LaunchTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One launch alone: `seconds` and `cycles` of an SM of the median one, `each_s` of all. `floats`: of its array."""

    launch: str
    floats: int
    rounds: int
    cycles: int
    seconds: float
    each_s: list[float] = []


class PairTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Two launches: seconds of every run, in order; `in_turn_s` is empty where they did not run one after the other."""

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
    """One experiment in one way of sharing. `predicted`, `calibrated`: expected before the two ran together, with the
    published calibration, with this one. `low`, `high`: of single runs."""

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


class CalibrationFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All of it. `knees`: {where: bytes} above which an array no longer stays in a cache. `arch`: the architecture that
    the kernels were compiled for. `versions`: {package: its version}. `plan`: None in files of format 1.
    """

    gpu: str
    driver: str
    date: str
    calibration: dict[str, CalibrationValue]
    format: int = CALIBRATION_FORMAT
    arch: str = ""
    sms: int | None = None
    versions: dict[str, str] = {}
    plan: PlanRecord | None = None
    knees: dict[str, float] = {}
    experiments: list[BenchRow] = []

    @property
    def values(self) -> Calibration:
        """The values for the estimator; what is not in the file is as published."""
        measured = sorted(name for name, entry in self.calibration.items() if entry.provenance == "measured")
        text = f"measured: {', '.join(measured)}" if measured else "published"
        values = {name: entry.value for name, entry in self.calibration.items() if entry.value is not None}
        measured_on = self.gpu if measured else Calibration().measured_on
        return replace(Calibration(), **values, measured_on=measured_on, source=text)


def calibration_of(configuration: Configuration) -> Calibration:
    """Return the calibration that the configuration names; none: as published.

    Errors: ConfigError for a file that is not there, InputError for one that is broken.
    """
    file = configuration.interference.calibration
    if not file:
        return Calibration()
    if not Path(file).is_file():
        raise ConfigError(
            f"{file} is a folder" if Path(file).is_dir() else f"there is no file {file}",
            where="interference.calibration",
            do="write it with `tachograph interference bench -o FILE`, or leave the key empty",
        )
    return read_calibration(Path(file))


def read_calibration(path: Path) -> Calibration:
    """Return the calibration of a file.

    Errors: InputError naming file and key.
    """
    return read_calibration_file(path).values


def read_calibration_file(path: Path) -> CalibrationFile:
    """Return all that a file of a calibration holds.

    Errors: InputError naming file and key.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InputError(f"cannot be read: {problem.strerror}", where=str(path)) from None
    except RecursionError:
        raise InputError("it nests too deeply", where=str(path), do=_AGAIN) from None
    except ValueError as problem:  # neither TOML nor text, or a number with too many digits
        raise InputError(f"invalid TOML: {problem}", where=str(path), do=_AGAIN) from None
    try:
        found = msgspec.convert(raw, CalibrationFile)
    except msgspec.ValidationError as problem:
        raise InputError(_with_key(str(problem), raw), where=str(path), do=_AGAIN) from None
    for words in _mistakes(found):
        raise InputError(words, where=str(path), do=_AGAIN)
    return found


_AGAIN = "fix it, or write it again with `tachograph interference bench -o FILE`"


def _with_key(message: str, raw: Mapping[str, object]) -> str:
    """Return the error with the name of the invalid value; msgspec reports no keys of a dictionary."""
    entries = raw.get("calibration")
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        try:
            msgspec.convert(entry, CalibrationValue)
        except msgspec.ValidationError:
            message = message.replace("$.calibration[...]", f"calibration.{name}")
            break
    return message.replace("`", "'").replace("$.", "")


def _mistakes(found: CalibrationFile) -> Iterator[str]:
    if found.format not in _FORMATS:
        yield f"format {found.format} is not known: it is one of {', '.join(map(str, _FORMATS))}"
    for name, entry in found.calibration.items():
        if name not in CALIBRATION_LIMITS:
            yield f"no value is called calibration.{name}: there are {', '.join(CALIBRATION_LIMITS)}"
            return
        least, most = CALIBRATION_LIMITS[name]
        if entry.value is None and entry.provenance == "measured":
            yield f"calibration.{name} is measured and has no value"
        if entry.value is not None and not least <= entry.value <= most:
            yield f"calibration.{name}.value is {entry.value:g}: it lies between {least:g} and {most:g}"


def write_calibration(path: Path, content: CalibrationFile) -> None:
    """Write the file, whole or not at all.

    Errors: OSError, for the caller to add the context.
    """
    replace_file(path, _toml(content).encode())


def _toml(content: CalibrationFile) -> str:
    """The file as TOML: what is not known is left out, because TOML has no null."""
    head = ("format", "gpu", "driver", "date", "arch", "sms")
    lines = [_HEAD, *(_assigned(name, value) for name in head if (value := getattr(content, name)) is not None)]
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
        tables = isinstance(value, msgspec.Struct) or (isinstance(value, list) and value and not _flat(value))
        empty = value is None or value in ("", []) or (isinstance(value, float) and not isfinite(value))
        if not tables and not empty:
            yield _assigned(name, value)


def _flat(values: list[object]) -> bool:
    return all(isinstance(value, str | int | float) for value in values)


def _assigned(name: str, value: object) -> str:
    """One line; JSON writes strings, lists and finite numbers as TOML reads them, but for one control character."""
    written = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    key = name if name.replace("-", "").replace("_", "").isalnum() and name.isascii() else json.dumps(name)
    return f"{key} = {written}"


def published_entry(name: str, why: str) -> CalibrationValue:
    """Return the published value of `name`, marked so, and why it was not measured; None where none is published.

    >>> published_entry("l1_miss_cost", "no GPU").value
    5.75
    """
    return CalibrationValue(value=getattr(Calibration(), name), provenance="published", note=why)
