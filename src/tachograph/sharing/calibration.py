"""The file of a calibration: results of micro-benchmarks for one model of GPU, and the source of each value."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Literal

import msgspec

from tachograph.catalog.config import Configuration
from tachograph.catalog.durable import replace_file
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.sharing.demand import Calibration, CorunMode

CALIBRATION_FORMAT = 1
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
    """One value. `provenance`: measured on this GPU, or published for the H100, as it was not measured here.

    `residual`: worst relative error of the fit, where there was one. `note`: in words.
    """

    value: float
    provenance: Literal["measured", "published"]
    experiment: str = ""
    residual: float | None = None
    note: str = ""


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


class CalibrationFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """All of it. `knees`: {where: bytes} above which an array no longer stays in a cache."""

    gpu: str
    driver: str
    date: str
    calibration: dict[str, CalibrationValue]
    format: int = CALIBRATION_FORMAT
    knees: dict[str, float] = {}
    experiments: list[BenchRow] = []

    @property
    def values(self) -> Calibration:
        """The values for the estimator; what is not in the file is as published."""
        measured = sorted(name for name, entry in self.calibration.items() if entry.provenance == "measured")
        text = f"measured: {', '.join(measured)}" if measured else "published"
        return Calibration(
            **{name: entry.value for name, entry in self.calibration.items()},
            measured_on=self.gpu if measured else Calibration().measured_on,
            source=text,
        )


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
    if found.format != CALIBRATION_FORMAT:
        yield f"format {found.format} is not known: it is {CALIBRATION_FORMAT}"
    for name, entry in found.calibration.items():
        if name not in CALIBRATION_LIMITS:
            yield f"no value is called calibration.{name}: there are {', '.join(CALIBRATION_LIMITS)}"
            return
        least, most = CALIBRATION_LIMITS[name]
        if not least <= entry.value <= most:
            yield f"calibration.{name}.value is {entry.value:g}: it lies between {least:g} and {most:g}"


def write_calibration(path: Path, content: CalibrationFile) -> None:
    """Write the file, whole or not at all.

    Errors: OSError, for the caller to add the context.
    """
    replace_file(path, _toml(content).encode())


def _toml(content: CalibrationFile) -> str:
    """The file as TOML: what is not known is left out, because TOML has no null."""
    lines = [_HEAD, *(_assigned(name, getattr(content, name)) for name in ("format", "gpu", "driver", "date"))]
    for name, entry in content.calibration.items():
        lines += ["", f"[calibration.{name}]", *_assignments(entry)]
    if content.knees:
        lines += ["", "[knees]", *(_assigned(name, value) for name, value in content.knees.items())]
    for row in content.experiments:
        lines += ["", "[[experiments]]", *_assignments(row)]
    return "\n".join(lines) + "\n"


def _assignments(struct: CalibrationValue | BenchRow) -> Iterator[str]:
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if value is not None and value != "" and not (isinstance(value, float) and not isfinite(value)):
            yield _assigned(name, value)


def _assigned(name: str, value: float | str) -> str:
    """One line; JSON writes strings and finite numbers as TOML reads them, but for one control character."""
    written = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f"{name} = {written}"


def published_entry(name: str, why: str) -> CalibrationValue:
    """Return the published value of `name`, marked so, and why it was not measured.

    >>> published_entry("l1_miss_cost", "no GPU").value
    5.75
    """
    return CalibrationValue(value=getattr(Calibration(), name), provenance="published", note=why)
