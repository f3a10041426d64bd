"""Limit of a kernel: the most used resource, latency, or a small grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tachograph.annexes.share.demand import Calibration
from tachograph.annexes.share.kernels import Kernel

NEAR = 0.6  # of a resource: below it on all of them, Nsight Compute itself reports latency

LimitKind = Literal["throughput", "latency", "small_grid"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A kernel's use of a resource when alone, 0..1; head_room: the unused part.

    resource: one of demand.CYCLES, dram (see `achievable`), l2_bandwidth.
    """

    resource: str
    demand: float
    head_room: float


@dataclass(frozen=True, slots=True)
class Stall:
    """A reason to wait, and its fraction 0..1 of the waiting."""

    reason: str
    share: float


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """All resources that were measured, the fullest first.

    bound: throughput, the first of `resources` is nearly full; small_grid, nothing is, and SMs have
    no block; latency, nothing is, its warps wait; None: schedulers or DRAM were not measured, and
    nothing that was is nearly full. limiting: the resource, for throughput. stall: the main reason
    why its warps wait, where that was collected. small_grid: (blocks, SMs) of a launch with fewer
    blocks than the GPU has SMs, else None.
    """

    bound: LimitKind | None
    resources: tuple[Limit, ...]
    limiting: Limit | None
    stall: Stall | None
    small_grid: tuple[int, int] | None = None

    @property
    def limited_by(self) -> str | None:
        """The resource that is nearly full, or `small_grid` or `latency`; None: undetermined."""
        return self.bound if self.limiting is None else self.limiting.resource


def limits(kernel: Kernel, *, calibration: Calibration | None = None) -> KernelLimits:
    """Return a kernel's use of each resource and its limit; ties by order of resources."""
    unordered = []
    for name in ("issue", *kernel.pipes, "dram", "l2_bandwidth", "l1_bandwidth"):
        reading = kernel.readings.get(name)
        if reading is not None:
            load = achievable(reading.value, calibration) if name == "dram" else reading.value
            unordered.append(Limit(name, load, 1 - load))
    resources = tuple(sorted(unordered, key=lambda limit: -limit.demand))
    fullest = resources[0] if resources and resources[0].demand >= NEAR else None
    small_grid = None
    footprint, sms = kernel.shape.footprint, kernel.gpu.sms
    if footprint is not None and sms is not None and footprint.blocks < sms:
        small_grid = (footprint.blocks, sms)
    bound: LimitKind | None = None
    if fullest is not None:
        bound = "throughput"
    elif small_grid is not None:
        bound = "small_grid"
    elif {"issue", "dram"} <= kernel.readings.keys():
        bound = "latency"
    stall = None
    if kernel.stalls:
        reason, part = min(kernel.stalls.items(), key=lambda item: (-item[1], item[0]))
        stall = Stall(reason, part)
    return KernelLimits(bound, resources, fullest, stall, small_grid)


def achievable(share: float, calibration: Calibration | None = None) -> float:
    """Return a share of DRAM's peak as a share of the achievable bandwidth.

    >>> achievable(0.45)
    0.5
    """
    return min(1.0, share / (calibration or Calibration()).achievable_share)
