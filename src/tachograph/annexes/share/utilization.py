"""A kernel's sensitivity to co-runners, and pitfalls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tachograph.annexes.share import kernel_metrics
from tachograph.annexes.share.demand import Calibration
from tachograph.annexes.share.kernel_limits import achievable
from tachograph.annexes.share.kernels import Kernel, options

SensitivityLevel = Literal["high", "some", "low", "unknown"]
_LIMITS = "launch__occupancy_limit_blocks"


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Sensitivity of a kernel to co-runners on one resource.

    resource: blocks, l2, dram, l1, issue, a pipeline, or sms (how evenly its work is spread: it
    qualifies the others). value: fraction 0..1, None where unknown; threshold: from which on it is
    high. metrics: sources of the value. missing: options of ncu that collect what is unknown.
    """

    resource: str
    level: SensitivityLevel
    value: float | None
    threshold: float
    why: str
    metrics: tuple[str, ...]
    missing: str = ""


# Each pair: high from the first on, some from the second on.
# of the capacity of an SM per cycle: above one half two such kernels do not fit; a tenth is lost
# beside a full one
CYCLES = (0.5, 0.1)
# of achievable bandwidth: published slowdowns beside the same are 1.36, 1.23, 1.14, 1.06 at 47, 37,
# 27, 14 %
DRAM = (0.35, 0.15)
# a stream without reuse still hits with all its writes: a hit rate of one half is no evidence of
# reuse
HITS = (0.7, 0.3)
# of the throughput of a cache: below it hits are too few to matter
TRAFFIC = 0.05
# of the places for its blocks on all SMs: all taken, others wait
SLOTS = (1.0, 0.5)
IDLE = (0.3, 0.1)
# resource: what a high, a medium, a low and an unknown sensitivity means
_MEANINGS = {
    "blocks": (
        "its blocks take every slot on all SMs: other blocks wait",
        "its blocks take half of the slots on the SMs or more",
        "most slots for blocks stay free",
        "how many blocks fit is unknown",
    ),
    "dram": (
        "it takes a third of the bandwidth or more: two of the kind slow each other down",
        "latency of DRAM grows with the demand of others",
        "it needs little of DRAM",
        "its bandwidth is not measured",
    ),
    "issue": (
        "it takes half of the issue slots or more: two of the kind do not fit",
        "it slows down beside a kernel that takes most issue slots",
        "it seldom issues",
        "its IPC is not measured",
    ),
    "sms": (
        "some SMs are idle while others work: its other numbers cover only the busy SMs",
        "some SMs finish early",
        "all SMs work alike",
        "the distribution of its work over the SMs is not measured",
    ),
}
_CACHE = (
    "it depends on data in {}: others that use {} turn hits into misses",
    "some of its data comes from {}",
    "it reuses little data from {}",
    "its hits are not measured",
)
_PIPE = (
    "it takes half of the {} pipeline or more: two of the kind do not fit",
    "it slows down beside a kernel that takes most of the {} pipeline",
    "it seldom uses the {} pipeline",
    "no pipeline was measured",
)


def sensitivities(
    kernel: Kernel, *, calibration: Calibration | None = None
) -> tuple[Sensitivity, ...]:
    """Return a kernel's sensitivity to each resource, GPU-wide ones first."""
    readings = kernel.readings
    values = {name: reading.value for name, reading in readings.items()}
    dram = achievable(values["dram"], calibration) if "dram" in values else None
    metrics = {name: reading.metric for name, reading in readings.items()}
    slots = _LIMITS if kernel.gpu.sms else "device__attribute_multiprocessor_count"
    judged = [
        _judge("blocks", kernel.shape.placement().get("slots_taken"), SLOTS, slots),
        _cache(kernel, "l2", kernel_metrics.L2_HIT, kernel_metrics.L2_BUSY),
        _judge("dram", dram, DRAM, metrics.get("dram", kernel_metrics.DRAM)),
        _cache(kernel, "l1", kernel_metrics.L1_HIT, kernel_metrics.L1_BUSY),
        _judge("issue", values.get("issue"), CYCLES, metrics.get("issue", kernel_metrics.ISSUED)),
    ]
    for pipe, reading in kernel.pipes.items():
        judged.append(_judge(pipe, reading.value, CYCLES, reading.metric))
    if not kernel.pipes:
        judged.append(_judge("pipelines", None, CYCLES, kernel_metrics.pipe_metric("fma")))
    return (*judged, _judge("sms", idle_sms(kernel), IDLE, kernel_metrics.SM_ACTIVE_MAX))


def idle_sms(kernel: Kernel) -> float | None:
    """Return the fraction of the busiest SM's cycles in which the mean SM had no warp."""
    mean, busiest = (
        kernel.metrics.get(name)
        for name in (kernel_metrics.SM_ACTIVE, kernel_metrics.SM_ACTIVE_MAX)
    )
    if mean is None or busiest is None:
        return None
    return max(0.0, 1 - mean / busiest) if busiest > 0 else 0.0


def _judge(
    resource: str, value: float | None, thresholds: tuple[float, float], metric: str
) -> Sensitivity:
    """Return the sensitivity at a value; `metric`: its source, or what is missing."""
    high, some = thresholds
    levels: tuple[SensitivityLevel, ...] = ("high", "some", "low", "unknown")
    index = 3 if value is None else (value < high) + (value < some)
    meanings = _MEANINGS.get(resource, _CACHE if resource in ("l1", "l2") else _PIPE)
    name = kernel_metrics.PIPE_NAMES.get(resource, resource.upper())
    missing = options(metric) if value is None else ""
    why = meanings[index].format(name, name)
    return Sensitivity(resource, levels[index], value, high, why, (metric,), missing)


def _cache(kernel: Kernel, resource: Literal["l1", "l2"], hit: str, busy: str) -> Sensitivity:
    """Sensitivity to cache hits, if the cache has much traffic or its traffic is unknown."""
    hits = kernel.readings.get(f"{resource}_hit")
    traffic = kernel_metrics.share(kernel.metrics, busy)
    if hits is None:
        return _judge(resource, None, HITS, hit)
    if traffic is None or traffic.value >= TRAFFIC:
        return _judge(resource, hits.value, HITS, hits.metric)
    why = f"{resource.upper()} has little to do for it: its hits there do not count"
    return Sensitivity(resource, "low", hits.value, HITS[0], why, (hits.metric, busy))


# IPC of the published copy kernel, alone on an H100: the memory-bound partner that such schedulers
# would choose
COPY_IPC = 0.61
# the schedulers, and pipelines that compute, without those that move data
_COMPUTING = ("issue", "alu", "fma", "fp16", "fp64", "tensor", "xu")
HALF = 0.5  # above it two of the kind exceed a resource, below it they fit by occupancy


@dataclass(frozen=True, slots=True)
class Pitfall:
    """A tempting wrong conclusion. numbers: {name: value}, evidence; IPC per SM, fractions.

    name: roofline_class (a scheduler pairs it with a memory-bound kernel, for which it leaves no
    issue slots), occupancy (two of it seem to fit, their occupancy being under 100 %).
    """

    name: Literal["roofline_class", "occupancy"]
    why: str
    numbers: Mapping[str, float]


def pitfalls(kernel: Kernel) -> tuple[Pitfall, ...]:
    """Return the pitfalls of a kernel whose numbers were collected."""
    applicable = (_roofline_class(kernel), _occupancy(kernel))
    return tuple(pitfall for pitfall in applicable if pitfall is not None)


def _roofline_class(kernel: Kernel) -> Pitfall | None:
    """Return the class: compute-bound if a pipeline or the schedulers are busier than DRAM."""
    cycles, schedulers = kernel.demand.cycles, float(kernel.gpu.schedulers)
    loads = [cycles[name] for name in _COMPUTING if name in cycles]
    if "issue" not in cycles or kernel.demand.dram is None or max(loads) < kernel.demand.dram:
        return None
    ipc = cycles["issue"] * schedulers
    if schedulers - ipc >= COPY_IPC:
        return None
    why = (
        "compute-bound, so memory-bound kernels seem to fit beside it; yet it leaves fewer "
        "issue slots than even a copy needs"
    )
    numbers = {"ipc": ipc, "ipc_left": schedulers - ipc, "ipc_of_copy": COPY_IPC}
    return Pitfall("roofline_class", why, MappingProxyType(numbers))


def _occupancy(kernel: Kernel) -> Pitfall | None:
    occupied, pipes = kernel.readings.get("occupancy"), kernel.pipes
    loads = {
        name: load
        for name, load in kernel.demand.cycles.items()
        if name in pipes or name in ("issue", "l1_bandwidth")
    }
    fullest = max(loads, key=lambda name: loads[name], default="")
    if occupied is None or occupied.value >= HALF or loads.get(fullest, 0.0) <= HALF:
        return None
    why = "by occupancy two of it fit with room to spare; yet they need more than all there is"
    numbers = {"occupancy": occupied.value, "occupancy_of_two": 2 * occupied.value,
               fullest: loads[fullest], f"{fullest}_of_two": 2 * loads[fullest]}  # fmt: skip
    return Pitfall("occupancy", why, MappingProxyType(numbers))
