"""Utilization of a GPU by a kernel: metrics side by side, sensitivity to co-runners, and wrong conclusions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from types import MappingProxyType
from typing import Literal

from tachograph.sharing import kernel_metrics
from tachograph.sharing.capacity import resident_per_sm
from tachograph.sharing.demand import Calibration, Footprint, GpuCapacity
from tachograph.sharing.kernels import Kernel, options
from tachograph.sharing.roofline import RooflinePlacement, achievable, placement


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlacement:
    """How a launch is distributed over the SMs; None: unknown.

    needed: SMs it needs when each gets as many blocks as fit. reached: SMs that get a block, as blocks are spread
    out. slots_taken: fraction 0..1 of the places for its blocks on all SMs that it takes. waves: how many times it
    fills the GPU. tail: fraction 0..1 of the places that stay empty over all waves, the last one being short.
    """

    needed: int | None = None
    reached: int | None = None
    slots_taken: float | None = None
    waves: float | None = None
    tail: float | None = None


@dataclass(frozen=True, slots=True)
class SmDistribution:
    """Cycles in which an SM had a warp: of the mean SM, the least and the most busy one, over all launches.

    idle: fraction 0..1 of the busiest SM's cycles in which the mean SM had no warp.
    """

    mean: float
    low: float | None
    high: float

    @property
    def idle(self) -> float:
        """1 - mean / high.

        >>> SmDistribution(50.0, 0.0, 100.0).idle
        0.5
        """
        return max(0.0, 1 - self.mean / self.high) if self.high > 0 else 0.0


def launched(footprint: Footprint | None, gpu: GpuCapacity, *, waves: float | None = None) -> LaunchPlacement:
    """Return how a launch is distributed over the SMs of `gpu`; `waves` as reported by the profiler, else computed.

    >>> launched(Footprint(198, 1024, blocks_per_sm=1), GpuCapacity(name="H100", sms=132))
    LaunchPlacement(needed=132, reached=132, slots_taken=1.0, waves=1.5, tail=0.25)
    """
    if footprint is None or gpu.sms is None:
        return LaunchPlacement(waves=waves, tail=_tail(waves))
    reached = min(footprint.blocks, gpu.sms)
    fit, resident = footprint.blocks_per_sm, resident_per_sm(footprint, gpu)
    if fit is None or resident is None:
        return LaunchPlacement(reached=reached, waves=waves, tail=_tail(waves))
    computed = footprint.blocks / (fit * gpu.sms) if waves is None else waves
    return LaunchPlacement(
        needed=min(gpu.sms, ceil(footprint.blocks / fit)),
        reached=reached,
        slots_taken=resident / fit,
        waves=computed,
        tail=_tail(computed),
    )


def distribution(kernel: Kernel) -> SmDistribution | None:
    """Return how evenly work is spread over the SMs; None: mean or highest not collected."""
    names = (kernel_metrics.SM_ACTIVE, kernel_metrics.SM_ACTIVE_MIN, kernel_metrics.SM_ACTIVE_MAX)
    mean, low, high = (kernel.metrics.get(name) for name in names)
    if mean is None or high is None:
        return None
    return SmDistribution(mean, low, high)


def _tail(waves: float | None) -> float | None:
    if waves is None:
        return None
    return 1 - waves / max(1, ceil(waves))


SensitivityLevel = Literal["high", "some", "low", "unknown"]
_LIMITS = tuple(f"launch__occupancy_limit_{what}" for what in ("blocks", "registers", "shared_mem", "warps"))


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """Sensitivity of a kernel to co-runners on one resource.

    resource: blocks, l2, dram, l1, issue, a pipeline, or sms (how evenly its work is spread: it qualifies the
    others). value: fraction 0..1, None where unknown; threshold: from which on it is high. metrics: sources of the
    value. missing: options of ncu that collect what is unknown.
    """

    resource: str
    level: SensitivityLevel
    value: float | None
    threshold: float
    why: str
    metrics: tuple[str, ...]
    missing: str = ""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Values from which on sensitivity is high, and medium."""

    high: float
    some: float

    def level(self, value: float) -> SensitivityLevel:
        return "high" if value >= self.high else "some" if value >= self.some else "low"


# of the capacity of an SM per cycle: above one half two such kernels do not fit; a tenth is lost beside a full one
CYCLES = _Scale(0.5, 0.1)
# of achievable bandwidth: published slowdowns beside the same are 1.36, 1.23, 1.14, 1.06 at 47, 37, 27, 14 %
DRAM = _Scale(0.35, 0.15)
# a stream without reuse still hits with all its writes: a hit rate of one half is no evidence of reuse
HITS = _Scale(0.7, 0.3)
# of the throughput of a cache: below it hits are too few to matter
TRAFFIC = 0.05
# of the places for its blocks on all SMs: all taken, others wait
SLOTS = _Scale(1.0, 0.5)
IDLE = _Scale(0.3, 0.1)
_WHAT = {"l2": "L2", "l1": "L1"}


def sensitivities(kernel: Kernel, *, calibration: Calibration | None = None) -> tuple[Sensitivity, ...]:
    """Return the sensitivity of a kernel on each resource, from those shared by all SMs to those within one SM."""
    return (
        _blocks(kernel),
        _cache(kernel, "l2", kernel_metrics.L2_HIT, kernel_metrics.l2_reuse(kernel.metrics), kernel_metrics.L2_BUSY),
        _dram(kernel, calibration or Calibration()),
        _cache(
            kernel,
            "l1",
            kernel_metrics.L1_HIT,
            kernel_metrics.share(kernel.metrics, kernel_metrics.L1_HIT),
            kernel_metrics.L1_BUSY,
        ),
        _issue(kernel),
        *_pipes(kernel),
        _evenness(kernel),
    )


def _blocks(kernel: Kernel) -> Sensitivity:
    lies = launched(kernel.demand.footprint, kernel.gpu)
    if lies.slots_taken is None:
        lacks = options("device__attribute_multiprocessor_count" if kernel.gpu.sms is None else _LIMITS[0])
        return Sensitivity("blocks", "unknown", None, SLOTS.high, "how many blocks fit is unknown", _LIMITS, lacks)
    level = SLOTS.level(lies.slots_taken)
    why = {
        "high": "its blocks take every place on all SMs: those of others wait",
        "some": "its blocks take half of the places on the SMs or more",
    }.get(level, "most places for blocks stay free")
    names = ("launch__grid_size", *_LIMITS)
    return Sensitivity("blocks", level, lies.slots_taken, SLOTS.high, why, names)


def _cache(kernel: Kernel, resource: str, hit: str, hits: kernel_metrics.MetricValue | None, busy: str) -> Sensitivity:
    traffic = kernel_metrics.share(kernel.metrics, busy)
    if hits is None:
        return Sensitivity(resource, "unknown", None, HITS.high, "its hits are not measured", (hit,), options(hit))
    name = _WHAT[resource]
    if traffic is not None and traffic.value < TRAFFIC:
        why = f"{name} has little to do for it: its hits there do not count"
        return Sensitivity(resource, "low", hits.value, HITS.high, why, (hits.metric, busy))
    level = HITS.level(hits.value)
    why = {
        "high": f"it lives on what {name} holds: others that use it turn hits into misses",
        "some": f"some of its data comes from {name}",
    }.get(level, f"{name} holds little that it comes back to")
    if traffic is None and level != "low":
        why += "; how busy the cache is was not collected"
    names = (hits.metric,) if traffic is None else (hits.metric, busy)
    return Sensitivity(resource, level, hits.value, HITS.high, why, names, options(busy) if traffic is None else "")


def _dram(kernel: Kernel, calibration: Calibration) -> Sensitivity:
    reading = kernel_metrics.dram(kernel.metrics, kernel.gpu)
    if reading is None:
        names = (kernel_metrics.DRAM,)
        return Sensitivity("dram", "unknown", None, DRAM.high, "its bandwidth is not measured", names, options(*names))
    value = achievable(reading.value, calibration)
    level = DRAM.level(value)
    measured = calibration.measured_on == kernel.gpu.name
    why = {
        "high": "it takes a third of the bandwidth or more: two of the kind slow each other down",
        "some": "latency of DRAM grows with the demand of others",
    }.get(level, "it needs little of DRAM")
    of = "of what can be achieved" if measured else "of what other GPUs can achieve; not measured on this one"
    return Sensitivity("dram", level, value, DRAM.high, f"{why} ({of})", (reading.metric,))


def _issue(kernel: Kernel) -> Sensitivity:
    reading = kernel_metrics.issue(kernel.metrics, kernel.gpu)
    if reading is None:
        names = (kernel_metrics.ISSUED,)
        return Sensitivity("issue", "unknown", None, CYCLES.high, "its IPC is not measured", names, options(*names))
    level = CYCLES.level(reading.value)
    why = {
        "high": "it takes half of the issue slots or more: two of the kind do not fit",
        "some": "it slows down beside a kernel that takes most issue slots",
    }.get(level, "it seldom issues")
    return Sensitivity("issue", level, reading.value, CYCLES.high, why, (reading.metric,))


def _pipes(kernel: Kernel) -> tuple[Sensitivity, ...]:
    found = []
    for pipe, reading in kernel_metrics.pipes(kernel.metrics).items():
        level, name = CYCLES.level(reading.value), kernel_metrics.PIPE_NAMES[pipe]
        why = {
            "high": f"it takes half of the {name} pipeline or more: two of the kind do not fit",
            "some": f"it slows down beside a kernel that takes most of the {name} pipeline",
        }.get(level, f"it seldom uses the {name} pipeline")
        found.append(Sensitivity(pipe, level, reading.value, CYCLES.high, why, (reading.metric,)))
    if not found:
        metric = kernel_metrics.pipe_metric("fma")
        why = "no pipeline was measured"
        found.append(Sensitivity("pipelines", "unknown", None, CYCLES.high, why, (metric,), options(metric)))
    return tuple(found)


def _evenness(kernel: Kernel) -> Sensitivity:
    names = (kernel_metrics.SM_ACTIVE, kernel_metrics.SM_ACTIVE_MIN, kernel_metrics.SM_ACTIVE_MAX)
    lies = distribution(kernel)
    if lies is None:
        lacks = options(kernel_metrics.SM_ACTIVE_MAX)
        return Sensitivity(
            "sms", "unknown", None, IDLE.high, "the distribution of its work over the SMs is not measured", names, lacks
        )
    level = IDLE.level(lies.idle)
    why = {
        "high": "SMs stand idle while others work: its other numbers are those of the SMs that work",
        "some": "some SMs finish early",
    }.get(level, "all SMs work alike")
    return Sensitivity("sms", level, lies.idle, IDLE.high, why, names)


# IPC of the published copy kernel, alone on an H100: the memory-bound partner that such schedulers would choose
COPY_IPC = 0.61
HALF = 0.5  # above it two of the kind exceed a resource, below it they fit by occupancy
FEW_SMS = 0.5


@dataclass(frozen=True, slots=True)
class Pitfall:
    """A conclusion that would be wrong. numbers: {name: value}, the evidence; IPC per SM, fractions 0..1.

    name: roofline_class (a scheduler pairs it with a memory-bound kernel, for which it leaves no issue slots),
    occupancy (two of it seem to fit, their occupancy being under 100 %), nvidia_smi (100 % busy, on few SMs).
    """

    name: Literal["roofline_class", "occupancy", "nvidia_smi"]
    why: str
    numbers: Mapping[str, float]


def pitfalls(kernel: Kernel, *, placed: RooflinePlacement | None = None) -> tuple[Pitfall, ...]:
    """Return the pitfalls that apply to a kernel, without those whose numbers were not collected.

    `placed`: its place under the roofline where that was computed before.
    """
    found = (_roofline_class(kernel, placed), _occupancy(kernel), _nvidia_smi(kernel))
    return tuple(pitfall for pitfall in found if pitfall is not None)


def _roofline_class(kernel: Kernel, placed: RooflinePlacement | None) -> Pitfall | None:
    issue = kernel.demand.cycles.get("issue")
    if issue is None or (placed or placement(kernel)).side != "compute":
        return None
    ipc, most = issue * kernel.gpu.schedulers, float(kernel.gpu.schedulers)
    if most - ipc >= COPY_IPC:
        return None
    why = (
        "compute-bound, so memory-bound kernels seem to fit beside it; yet it leaves fewer issue slots than "
        "even a copy needs"
    )
    numbers = {"ipc": ipc, "ipc_left": most - ipc, "ipc_of_copy": COPY_IPC}
    return Pitfall("roofline_class", why, MappingProxyType(numbers))


def _occupancy(kernel: Kernel) -> Pitfall | None:
    occupied = kernel_metrics.occupancy(kernel.metrics, kernel.gpu)
    loads = kernel.demand.cycles
    if occupied is None or occupied.value >= HALF or not loads:
        return None
    fullest = max(loads, key=lambda name: loads[name])
    if loads[fullest] <= HALF:
        return None
    named = {"issue": "issue slots", "l1_bandwidth": "bandwidth of L1"}
    what = named.get(fullest) or f"{kernel_metrics.PIPE_NAMES[fullest]} pipeline"
    why = f"by occupancy two of it fit with room to spare; yet they need more than all of the {what}"
    numbers = {"occupancy": occupied.value, "occupancy_of_two": 2 * occupied.value,
               fullest: loads[fullest], f"{fullest}_of_two": 2 * loads[fullest]}  # fmt: skip
    return Pitfall("occupancy", why, MappingProxyType(numbers))


def _nvidia_smi(kernel: Kernel) -> Pitfall | None:
    lies = launched(kernel.demand.footprint, kernel.gpu)
    reached = lies.reached / kernel.gpu.sms if lies.reached is not None and kernel.gpu.sms else None
    known = {"sm_share": kernel.demand.sm_share, "sms_reached_share": reached}
    least_first = sorted((value, name) for name, value in known.items() if value is not None)
    numbers = {name: value for value, name in least_first}
    if not numbers or min(numbers.values()) >= FEW_SMS:
        return None
    why = "nvidia-smi shows 100 % while it runs; yet most of the SMs' time nothing is on them"
    return Pitfall("nvidia_smi", why, MappingProxyType({"nvidia_smi": 1.0, **numbers}))
