"""What limits a kernel, and how much of each resource it leaves to others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tachograph.interference.demand import Calibration, Gpu
from tachograph.interference.profile import readings
from tachograph.interference.profile.kernels import Kernel
from tachograph.interference.profile.readings import Reading

NEAR = 0.6  # of a resource: below it on all of them, Nsight Compute itself speaks of latency

Bound = Literal["throughput", "latency"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A resource as a kernel uses it, alone. Fractions 0..1; head_room: what it leaves.

    resource: one of demand.CYCLES, dram (see `achievable`), l2, l1 (of the throughput of the cache). measured_on: for
    DRAM the GPU on which was measured what can be achieved, of which `demand` is a share; None: of the peak.
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
class Limits:
    """All resources that were measured, the fullest first.

    bound: throughput, the first of `resources` is nearly full; latency, nothing is, its warps wait; None: schedulers
    or DRAM were not measured, and nothing that was is nearly full. limiting: the resource, for throughput. stall: what
    its warps wait for most, where that was collected.
    """

    resources: tuple[Limit, ...]
    bound: Bound | None
    limiting: Limit | None
    stall: Stall | None


def limits(kernel: Kernel, *, calibration: Calibration | None = None) -> Limits:
    """Return what a kernel uses of each resource, and what limits it. Ties: in the order of resources."""
    calibration = calibration or Calibration()
    told = _loads(kernel, calibration)
    same = kernel.gpu.name if calibration.measured_on == kernel.gpu.name else None
    found = [
        Limit(name, load.value, 1 - load.value, load.metric, same if name == "dram" else None)
        for name, load in told.items()
    ]
    resources = tuple(sorted(found, key=lambda limit: -limit.demand))
    limiting = resources[0] if resources and resources[0].demand >= NEAR else None
    bound: Bound | None = "throughput" if limiting else "latency" if {"issue", "dram"} <= told.keys() else None
    return Limits(resources, bound, limiting, _worst_stall(kernel.metrics))


def achievable(share: float, gpu: Gpu, calibration: Calibration) -> float:
    """Return a share of DRAM's peak as one of what can be achieved; of another GPU than was measured it stays as it is.

    >>> from tachograph.interference.demand import H100_NVL
    >>> round(achievable(0.42, H100_NVL, Calibration()), 2), achievable(0.42, Gpu(name="A100"), Calibration())
    (0.69, 0.42)
    """
    return min(1.0, share / calibration.achievable_share) if calibration.measured_on == gpu.name else share


def _loads(kernel: Kernel, calibration: Calibration) -> dict[str, Reading]:
    metrics = kernel.metrics
    issue, dram = readings.issue(metrics, kernel.gpu), readings.dram(metrics, kernel.gpu, kernel.coverage)
    loads: dict[str, Reading | None] = {
        "issue": issue,
        **readings.pipes(metrics, kernel.coverage),
        "dram": None if dram is None else Reading(achievable(dram.value, kernel.gpu, calibration), dram.metric),
        "l2": readings.share(metrics, readings.L2_BUSY),
        "l1": readings.share(metrics, readings.L1_BUSY),
    }
    return {name: load for name, load in loads.items() if load is not None}


def _worst_stall(metrics: Mapping[str, float]) -> Stall | None:
    shares = readings.stalls(metrics)
    if not shares:
        return None
    reason = min(shares, key=lambda name: (-shares[name], name))
    return Stall(reason, shares[reason])
