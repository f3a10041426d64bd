"""Kernel launches as in Nsight Compute: metrics by name, rejects."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import nan

from tachograph.catalog.chunks import Reject

DEVICE_ATTRIBUTE = "device__attribute_"  # before the names of metrics that describe the GPU
DEFAULT_DOMAIN = "<default domain>"  # of NVTX ranges without a domain
_ATTRIBUTE_LENGTH = len(DEVICE_ATTRIBUTE)
_LONGEST_SIDE = 1 << 31  # of a grid; no GPU takes that many blocks
_LONGEST_EXAMPLE = 80  # characters


@dataclass(frozen=True, slots=True)
class Launch:
    """One profiled launch of a kernel.

    `metrics`: {metric as Nsight Compute names it: value} in base units: ns, byte, hz, byte per
    second, instructions or cycles; percentages stay 0..100. What was not collected is not in it.
    `kernel`: the name as the report has it. `ranges`: NVTX ranges around the launch, outermost
    first.
    """

    kernel: str
    metrics: Mapping[str, float]
    chip: Chip
    report: str  # file it was read from
    number: int  # ID within the report
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    ranges: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chip:
    """The GPU of a launch as the report itself describes it; None: not recorded.

    `attributes`: {name after `device__attribute_`: value}, as reported (clocks in kHz, memory in
    byte).
    """

    name: str | None = None
    compute_capability: str | None = None  # such as "9.0"
    attributes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NcuReport:
    """Content of a file. `problems`: messages about all of it, and profiler errors.

    `digest`: SHA-256 of the file in hexadecimal digits; "" where it was not computed.
    """

    file: str
    launches: tuple[Launch, ...]
    rejects: tuple[Reject, ...] = ()
    problems: tuple[str, ...] = ()
    digest: str = ""

    def named(self, name: str) -> NcuReport:
        """Return the report as if its file were called `name`."""
        launches = tuple(replace(launch, report=name) for launch in self.launches)
        return replace(self, file=name, launches=launches)


@dataclass(slots=True)
class RejectCounter:
    """Rejects so far, each reason and column once, with the first example."""

    _rejects: dict[tuple[str, str | None], Reject] = field(default_factory=dict)

    def add(self, reason: str, column: str | None, example: str) -> None:
        """Count a rejected row (`column` None) or value."""
        key = (reason, column)
        first = Reject(reason, column, 0, encodable(example.strip())[:_LONGEST_EXAMPLE])
        before = self._rejects.get(key, first)
        self._rejects[key] = replace(before, count=before.count + 1)

    def rejects(self) -> tuple[Reject, ...]:
        """Return the rejects in order of first occurrence."""
        return tuple(self._rejects.values())


@dataclass(slots=True)
class LaunchReader:
    """Launches of a file so far; those on one GPU have the same chip."""

    file: str
    launches: list[Launch] = field(default_factory=list)
    rejects: RejectCounter = field(default_factory=RejectCounter)
    _chips: dict[tuple[object, ...], Chip] = field(default_factory=dict)

    def add(
        self,
        kernel: str,
        number: int,
        metrics: dict[str, float],
        *,
        device: str | None,
        capability: str | None = None,
        grid: tuple[int, int, int] | None = None,
        block: tuple[int, int, int] | None = None,
        ranges: Iterable[str] = (),
    ) -> None:
        """Add a launch; attributes of the device are taken out of its metrics."""
        # Half the time of `startswith`, over all metrics of all launches.
        names = [name for name in metrics if name[:_ATTRIBUTE_LENGTH] == DEVICE_ATTRIBUTE]
        attributes = {name.removeprefix(DEVICE_ATTRIBUTE): metrics.pop(name) for name in names}
        chip = Chip(device, capability or capability_of(attributes), attributes)
        chip = self._chips.setdefault((device, capability, *attributes.items()), chip)
        grid = grid or size_from_metrics(metrics, "launch__grid_dim_")
        block = block or size_from_metrics(metrics, "launch__block_dim_")
        self.launches.append(
            Launch(sys.intern(kernel), metrics, chip, self.file, number, grid, block, tuple(ranges))
        )


def capability_of(attributes: Mapping[str, float]) -> str | None:
    """Return the compute capability from device attributes; None if it is not numeric.

    >>> capability_of({"compute_capability_major": 9.0, "compute_capability_minor": 0.0})
    '9.0'
    """
    parts = [attributes.get(f"compute_capability_{part}", nan) for part in ("major", "minor")]
    whole = all(part >= 0 and part.is_integer() for part in parts)
    return ".".join(str(int(part)) for part in parts) if whole else None


def size_from_metrics(metrics: Mapping[str, float], prefix: str) -> tuple[int, int, int] | None:
    """Return the size in x, y, z from metrics; None if incomplete or invalid.

    >>> size_from_metrics({"grid_x": 132.0, "grid_y": 2.0, "grid_z": 1.0}, "grid_")
    (132, 2, 1)
    >>> size_from_metrics({"grid_size": 264.0}, "grid_") is None
    True
    """
    x, y, z = (metrics.get(prefix + axis, -1.0) for axis in "xyz")
    valid = all(0 <= side < _LONGEST_SIDE for side in (x, y, z))
    return (int(x), int(y), int(z)) if valid else None


def encodable(text: str) -> str:
    r"""Return `text` with invalid bytes replaced by `?`, so that it can be encoded.

    >>> encodable("kernel\udca0")
    'kernel?'
    """
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
