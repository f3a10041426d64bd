"""A calibration file: micro-benchmark results of a GPU model, with sources."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from tachograph.annexes.share.demand import Calibration, GpuCapacity
from tachograph.catalog.config import Configuration
from tachograph.catalog.devices import match_device
from tachograph.catalog.errors import ConfigError, InputError

CALIBRATION_FORMAT = 2  # of 1 all is a part
_FORMATS = (1, CALIBRATION_FORMAT)
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


class CalibrationValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value of a calibration.

    `provenance`: measured on this GPU, or published for the H100, as it was not measured here;
    None: neither is known.

    `residual`: worst relative error of the fit, where there was one. `note`: in words.
    """

    value: float | None = None
    provenance: Literal["measured", "published"] = "published"
    experiment: str = ""
    residual: float | None = None
    note: str = ""


class CalibrationFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a calibration file that the estimator needs."""

    gpu: str
    driver: str
    date: str
    calibration: dict[str, CalibrationValue]
    format: int = CALIBRATION_FORMAT

    @property
    def values(self) -> Calibration:
        """The values for the estimator; missing ones are as published."""
        measured = sorted(
            name for name, entry in self.calibration.items() if entry.provenance == "measured"
        )
        text = f"measured: {', '.join(measured)}" if measured else "published"
        values = {
            name: entry.value for name, entry in self.calibration.items() if entry.value is not None
        }
        measured_on = self.gpu if measured else Calibration().measured_on
        return replace(Calibration(), **values, measured_on=measured_on, source=text)


def of_model(configured: Calibration, gpu_name: str) -> Calibration:
    """Return what is configured, else the shipped calibration of this model, else the published.

    >>> of_model(Calibration(), "NVIDIA H100 80GB HBM3").measured_on
    'NVIDIA H100 80GB HBM3'
    >>> of_model(Calibration(), "NVIDIA A100-SXM4-40GB") == Calibration()
    True
    """
    if configured != Calibration():
        return configured
    for shipped in _shipped():
        if measured_on(shipped, GpuCapacity(name=gpu_name)):
            return shipped
    return configured


@lru_cache(maxsize=1)
def _shipped() -> tuple[Calibration, ...]:
    return tuple(map(read_calibration, shipped_calibrations().values()))


def measured_on(calibration: Calibration, gpu: GpuCapacity) -> bool:
    """Return whether the calibration is of this model of GPU, however it is spelled."""
    if calibration.measured_on is None or calibration.measured_on == gpu.name:
        return calibration.measured_on == gpu.name
    model = match_device(calibration.measured_on)
    return model is not None and model == match_device(gpu.name)


FileT = TypeVar("FileT", bound=CalibrationFile)


def shipped_calibrations() -> dict[str, Path]:
    """Return {name: file} of the shipped calibrations, one per measured GPU model."""
    folder = Path(__file__).with_name("calibrations")
    return {file.stem: file for file in sorted(folder.glob("*.toml"))}


def calibration_of(configuration: Configuration) -> Calibration:
    """Return the configured calibration, a file or a shipped one; else the published values.

    Errors: ConfigError for a file that is not there, InputError for one that is broken.
    """
    configured = configuration.interference.calibration
    if not configured:
        return Calibration()
    shipped = shipped_calibrations()
    file = shipped.get(configured, Path(configured))
    if not file.is_file():
        raise ConfigError(
            f"{file} is a folder" if file.is_dir() else f"there is no file {file}",
            where="interference.calibration",
            do=(
                f"name a file that `make calibrate` wrote, one of {', '.join(shipped)}, or "
                "leave the key empty"
            ),
        )
    return read_calibration(file)


def read_calibration(path: Path) -> Calibration:
    """Return the calibration of a file.

    Errors: InputError naming file and key.
    """
    return read_calibration_file(path, CalibrationFile).values


def read_calibration_file(path: Path, contents: type[FileT]) -> FileT:
    """Return a calibration file as `contents`, which is the part to read.

    Errors: InputError naming file and key.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InputError(f"cannot be read: {problem.strerror}", where=str(path)) from None
    except RecursionError:
        raise InputError("nested too deeply", where=str(path), do=_AGAIN) from None
    except ValueError as problem:  # neither TOML nor text, or a number with too many digits
        raise InputError(f"invalid TOML: {problem}", where=str(path), do=_AGAIN) from None
    try:
        content = msgspec.convert(raw, contents)
    except msgspec.ValidationError as problem:
        raise InputError(_with_key(str(problem), raw), where=str(path), do=_AGAIN) from None
    for mistake in _mistakes(content):
        raise InputError(mistake, where=str(path), do=_AGAIN)
    return content


_AGAIN = "fix it, or write it again with `make calibrate`"


def _with_key(message: str, raw: Mapping[str, object]) -> str:
    """Return the error with the invalid key added: msgspec names no dictionary keys."""
    entries = raw.get("calibration")
    for name, entry in entries.items() if isinstance(entries, dict) else ():
        try:
            msgspec.convert(entry, CalibrationValue)
        except msgspec.ValidationError:
            message = message.replace("$.calibration[...]", f"calibration.{name}")
            break
    return message.replace("`", "'").replace("$.", "")


def _mistakes(file: CalibrationFile) -> Iterator[str]:
    if file.format not in _FORMATS:
        yield f"format {file.format} is not known; use one of: {', '.join(map(str, _FORMATS))}"
    for name, entry in file.calibration.items():
        if name not in CALIBRATION_LIMITS:
            yield (f"unknown value calibration.{name}; use one of: {', '.join(CALIBRATION_LIMITS)}")
            return
        least, greatest = CALIBRATION_LIMITS[name]
        if entry.value is None and entry.provenance == "measured":
            yield f"calibration.{name} is marked as measured but has no value"
        if entry.value is not None and not least <= entry.value <= greatest:
            yield (
                f"calibration.{name}.value is {entry.value:g}: it must lie between {least:g} and "
                f"{greatest:g}"
            )
