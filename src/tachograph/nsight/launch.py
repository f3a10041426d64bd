"""What a report tells: launches, the chip they ran on, and what of the report could not be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import nan

from tachograph.rejects import Reject

_LONGEST_SIDE = 1 << 31  # of a grid; no GPU takes that many blocks


@dataclass(frozen=True, slots=True)
class Launch:
    """One profiled launch of a kernel.

    `metrics`: {metric as Nsight Compute names it: value} in base units: ns, byte, hz, byte per second, instructions or
    cycles; percentages stay 0..100. What was not collected is not in it. `kernel`: the name as the report has it.
    `ranges`: NVTX ranges around the launch, outermost first.
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
    """The GPU of a launch as the report itself describes it; None: the report does not tell.

    `attributes`: {name after `device__attribute_`: value}, as reported (clocks in kHz, memory in byte).
    """

    name: str | None = None
    compute_capability: str | None = None  # such as "9.0"
    attributes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """What one file gave. `problems`: lines for people about the file as a whole, errors of the profiler among them."""

    file: str
    launches: tuple[Launch, ...]
    rejects: tuple[Reject, ...] = ()
    problems: tuple[str, ...] = ()


def capability_of(attributes: Mapping[str, float]) -> str | None:
    """Return the compute capability that attributes of a device tell; None where one part is no whole number.

    >>> capability_of({"compute_capability_major": 9.0, "compute_capability_minor": 0.0})
    '9.0'
    """
    parts = [attributes.get(f"compute_capability_{part}", nan) for part in ("major", "minor")]
    return ".".join(str(int(part)) for part in parts) if all(map(_counts, parts)) else None


def _counts(value: float) -> bool:
    return value >= 0 and value.is_integer()


def size_told(metrics: Mapping[str, float], prefix: str) -> tuple[int, int, int] | None:
    """Return the size in x, y, z that metrics tell; None where not all do, or one is none that CUDA takes.

    >>> size_told({"grid_x": 132.0, "grid_y": 2.0, "grid_z": 1.0}, "grid_")
    (132, 2, 1)
    >>> size_told({"grid_size": 264.0}, "grid_") is None
    True
    """
    x, y, z = (metrics.get(prefix + axis, -1.0) for axis in "xyz")
    return (int(x), int(y), int(z)) if all(0 <= told < _LONGEST_SIDE for told in (x, y, z)) else None
