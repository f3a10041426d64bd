"""Limit of a kernel: the most used resource, latency, or a small grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tachograph.annexes.share import kernel_metrics
from tachograph.annexes.share.demand import CYCLES, Calibration
from tachograph.annexes.share.kernels import Kernel

NEAR = 0.6  # of a resource: below it on all of them, Nsight Compute itself reports latency

LimitKind = Literal["throughput", "latency", "small_grid"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A kernel's use of a resource when alone, 0..1; head_room: the unused part.

    resource: one of demand.CYCLES, dram (see `achievable`), l2_bandwidth. measured_on: for DRAM the
    GPU whose measured achievable bandwidth is the base of `demand`; None: other GPUs.
    """

    resource: str
    demand: float
    head_room: float
    measured_by: str
    measured_on: str | None = None


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
    calibration = calibration or Calibration()
    unordered = []
    for name, reading in kernel.readings.items():
        if name == "dram":
            here = kernel.gpu.name if calibration.measured_on == kernel.gpu.name else None
            share = achievable(reading.value, calibration)
            unordered.append(Limit(name, share, 1 - share, reading.metric, here))
        elif name in CYCLES or name == "l2_bandwidth":
            unordered.append(Limit(name, reading.value, 1 - reading.value, reading.metric))
    resources = tuple(sorted(unordered, key=lambda limit: -limit.demand))
    stall, small_grid = _worst_stall(kernel.metrics), _small_grid(kernel)
    if resources and resources[0].demand >= NEAR:
        return KernelLimits("throughput", resources, resources[0], stall, small_grid)
    bound: LimitKind | None = None
    if small_grid:
        bound = "small_grid"
    elif {"issue", "dram"} <= kernel.readings.keys():
        bound = "latency"
    return KernelLimits(bound, resources, None, stall, small_grid)


def _small_grid(kernel: Kernel) -> tuple[int, int] | None:
    footprint, sms = kernel.demand.footprint, kernel.gpu.sms
    if footprint is None or sms is None or footprint.blocks >= sms:
        return None
    return (footprint.blocks, sms)


def achievable(share: float, calibration: Calibration) -> float:
    """Return a share of DRAM's peak as a share of the achievable bandwidth.

    >>> achievable(0.45, Calibration())
    0.5
    """
    return min(1.0, share / calibration.achievable_share)


def _worst_stall(metrics: Mapping[str, float]) -> Stall | None:
    shares = kernel_metrics.stalls(metrics)
    if not shares:
        return None
    reason = min(shares, key=lambda name: (-shares[name], name))
    return Stall(reason, shares[reason])
