"""A kernel's utilisation of a GPU: metrics, sensitivity to co-runners, pitfalls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import ceil
from types import MappingProxyType
from typing import Literal

from tachograph.annexes.share import kernel_metrics
from tachograph.annexes.share.capacity import resident_per_sm
from tachograph.annexes.share.demand import PIPES, Calibration, Footprint, GpuCapacity
from tachograph.annexes.share.kernel_limits import achievable
from tachograph.annexes.share.kernels import Kernel, options


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchPlacement:
    """Distribution of a launch over the SMs; None: unknown.

    needed: SMs it needs when each gets as many blocks as fit. reached: SMs that get a block, as
    blocks are spread out. slots_taken: fraction 0..1 of the places for its blocks on all SMs that
    it takes. waves: how many times it fills the GPU. tail: fraction 0..1 of the places that stay
    empty over all waves, the last one being short.
    """

    needed: int | None = None
    reached: int | None = None
    slots_taken: float | None = None
    waves: float | None = None
    tail: float | None = None


@dataclass(frozen=True, slots=True)
class SmDistribution:
    """Cycles with a resident warp: mean, least and most busy SM, over all launches.

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


_SM_ACTIVE = (kernel_metrics.SM_ACTIVE, kernel_metrics.SM_ACTIVE_MIN, kernel_metrics.SM_ACTIVE_MAX)


def launched(
    footprint: Footprint | None, gpu: GpuCapacity, *, waves: float | None = None
) -> LaunchPlacement:
    """Return a launch's distribution over the SMs of `gpu`; `waves` as profiled, else computed.

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
    mean, low, high = (kernel.metrics.get(name) for name in _SM_ACTIVE)
    if mean is None or high is None:
        return None
    return SmDistribution(mean, low, high)


def _tail(waves: float | None) -> float | None:
    if waves is None:
        return None
    return 1 - waves / max(1, ceil(waves))


SensitivityLevel = Literal["high", "some", "low", "unknown"]
_LIMITS = tuple(
    f"launch__occupancy_limit_{what}" for what in ("blocks", "registers", "shared_mem", "warps")
)


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


@dataclass(frozen=True, slots=True)
class _Scale:
    """Thresholds of high and medium sensitivity, with their meanings."""

    high: float
    some: float
    meanings: Mapping[SensitivityLevel, str]

    def judge(
        self, resource: str, value: float | None, metrics: tuple[str, ...], *, lacks: str
    ) -> Sensitivity:
        """Return the sensitivity at a value; `lacks`: the metric that is missing where it is
        unknown.
        """
        missing = ""
        level: SensitivityLevel
        if value is None:
            level, missing = "unknown", options(lacks)
        elif value >= self.high:
            level = "high"
        else:
            level = "some" if value >= self.some else "low"
        return Sensitivity(
            resource, level, value, self.high, self.meanings[level], metrics, missing
        )


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
_BLOCKS = _Scale(
    *SLOTS,
    {
        "high": "its blocks take every slot on all SMs: other blocks wait",
        "some": "its blocks take half of the slots on the SMs or more",
        "low": "most slots for blocks stay free",
        "unknown": "how many blocks fit is unknown",
    },
)
_DRAM = _Scale(
    *DRAM,
    {
        "high": "it takes a third of the bandwidth or more: two of the kind slow each other down",
        "some": "latency of DRAM grows with the demand of others",
        "low": "it needs little of DRAM",
        "unknown": "its bandwidth is not measured",
    },
)
_ISSUE = _Scale(
    *CYCLES,
    {
        "high": "it takes half of the issue slots or more: two of the kind do not fit",
        "some": "it slows down beside a kernel that takes most issue slots",
        "low": "it seldom issues",
        "unknown": "its IPC is not measured",
    },
)
_EVENNESS = _Scale(
    *IDLE,
    {
        "high": ("some SMs are idle while others work: its other numbers cover only the busy SMs"),
        "some": "some SMs finish early",
        "low": "all SMs work alike",
        "unknown": "the distribution of its work over the SMs is not measured",
    },
)


def sensitivities(
    kernel: Kernel, *, calibration: Calibration | None = None
) -> tuple[Sensitivity, ...]:
    """Return a kernel's sensitivity to each resource, GPU-wide ones first."""
    readings, gpu = kernel.readings, kernel.gpu
    slots = launched(kernel.demand.footprint, gpu).slots_taken
    issue = readings.get("issue")
    spread = distribution(kernel)
    return (
        _BLOCKS.judge(
            "blocks",
            slots,
            ("launch__grid_size", *_LIMITS),
            lacks=_LIMITS[0] if gpu.sms else "device__attribute_multiprocessor_count",
        ),
        _cache(kernel, "l2", readings.get("l2_hit"), kernel_metrics.L2_BUSY),
        _dram(kernel, calibration or Calibration()),
        _cache(
            kernel,
            "l1",
            readings.get("l1_hit"),
            kernel_metrics.L1_BUSY,
        ),
        _ISSUE.judge(
            "issue",
            None if issue is None else issue.value,
            _metrics_of(issue, kernel_metrics.ISSUED),
            lacks=kernel_metrics.ISSUED,
        ),
        *_pipes(kernel),
        _EVENNESS.judge(
            "sms", None if spread is None else spread.idle, _SM_ACTIVE, lacks=_SM_ACTIVE[0]
        ),
    )


def _dram(kernel: Kernel, calibration: Calibration) -> Sensitivity:
    reading = kernel.readings.get("dram")
    metrics = _metrics_of(reading, kernel_metrics.DRAM)
    if reading is None:
        return _DRAM.judge("dram", None, metrics, lacks=kernel_metrics.DRAM)
    judged = _DRAM.judge(
        "dram", achievable(reading.value, calibration), metrics, lacks=kernel_metrics.DRAM
    )
    basis = "of what other GPUs can achieve; not measured on this one"
    if calibration.measured_on == kernel.gpu.name:
        basis = "of what can be achieved"
    return replace(judged, why=f"{judged.why} ({basis})")


def _metrics_of(reading: kernel_metrics.MetricValue | None, metric: str) -> tuple[str, ...]:
    return (metric,) if reading is None else (reading.metric,)


def _cache(
    kernel: Kernel,
    resource: Literal["l1", "l2"],
    hits: kernel_metrics.MetricValue | None,
    busy: str,
) -> Sensitivity:
    """Sensitivity to cache hits, if the cache has much traffic or its traffic is unknown."""
    name = resource.upper()
    scale = _Scale(
        *HITS,
        {
            "high": f"it depends on data in {name}: others that use {name} turn hits into misses",
            "some": f"some of its data comes from {name}",
            "low": f"it reuses little data from {name}",
            "unknown": "its hits are not measured",
        },
    )
    hit = kernel_metrics.L2_HIT if resource == "l2" else kernel_metrics.L1_HIT
    if hits is None:
        return scale.judge(resource, None, (hit,), lacks=hit)
    traffic = kernel_metrics.share(kernel.metrics, busy)
    metrics = (hits.metric,) if traffic is None else (hits.metric, busy)
    judged = scale.judge(resource, hits.value, metrics, lacks=hit)
    if traffic is None:
        note = "" if judged.level == "low" else "; how busy the cache is was not collected"
        return replace(judged, why=judged.why + note, missing=options(busy))
    if traffic.value < TRAFFIC:
        return replace(
            judged, level="low", why=f"{name} has little to do for it: its hits there do not count"
        )
    return judged


def _pipes(kernel: Kernel) -> Iterator[Sensitivity]:
    readings = {pipe: kernel.readings[pipe] for pipe in PIPES if pipe in kernel.readings}
    for pipe, reading in readings.items():
        name = kernel_metrics.PIPE_NAMES[pipe]
        meanings: dict[SensitivityLevel, str] = {
            "high": f"it takes half of the {name} pipeline or more: two of the kind do not fit",
            "some": f"it slows down beside a kernel that takes most of the {name} pipeline",
            "low": f"it seldom uses the {name} pipeline",
        }
        yield _Scale(*CYCLES, meanings).judge(
            pipe, reading.value, (reading.metric,), lacks=reading.metric
        )
    if not readings:
        metric = kernel_metrics.pipe_metric("fma")
        yield _Scale(*CYCLES, {"unknown": "no pipeline was measured"}).judge(
            "pipelines", None, (metric,), lacks=metric
        )


# IPC of the published copy kernel, alone on an H100: the memory-bound partner that such schedulers
# would choose
COPY_IPC = 0.61
# the schedulers, and pipelines that compute, without those that move data
_COMPUTING = ("issue", "alu", "fma", "fp16", "fp64", "tensor", "xu")
HALF = 0.5  # above it two of the kind exceed a resource, below it they fit by occupancy
FEW_SMS = 0.5


@dataclass(frozen=True, slots=True)
class Pitfall:
    """A tempting wrong conclusion. numbers: {name: value}, evidence; IPC per SM, fractions.

    name: roofline_class (a scheduler pairs it with a memory-bound kernel, for which it leaves no
    issue slots), occupancy (two of it seem to fit, their occupancy being under 100 %), nvidia_smi
    (100 % busy, on few SMs).
    """

    name: Literal["roofline_class", "occupancy", "nvidia_smi"]
    why: str
    numbers: Mapping[str, float]


def pitfalls(kernel: Kernel) -> tuple[Pitfall, ...]:
    """Return the pitfalls of a kernel whose numbers were collected."""
    applicable = (_roofline_class(kernel), _occupancy(kernel), _nvidia_smi(kernel))
    return tuple(pitfall for pitfall in applicable if pitfall is not None)


def _roofline_class(kernel: Kernel) -> Pitfall | None:
    """Return the class: compute-bound if a pipeline or the schedulers are busier than DRAM."""
    cycles = kernel.demand.cycles
    issue = cycles.get("issue")
    loads = [cycles[name] for name in _COMPUTING if name in cycles]
    if issue is None or kernel.demand.dram is None or max(loads) < kernel.demand.dram:
        return None
    ipc, most = issue * kernel.gpu.schedulers, float(kernel.gpu.schedulers)
    if most - ipc >= COPY_IPC:
        return None
    why = (
        "compute-bound, so memory-bound kernels seem to fit beside it; yet it leaves fewer "
        "issue slots than "
        "even a copy needs"
    )
    numbers = {"ipc": ipc, "ipc_left": most - ipc, "ipc_of_copy": COPY_IPC}
    return Pitfall("roofline_class", why, MappingProxyType(numbers))


def _occupancy(kernel: Kernel) -> Pitfall | None:
    occupied = kernel.readings.get("occupancy")
    loads = kernel.demand.cycles
    if occupied is None or occupied.value >= HALF or not loads:
        return None
    fullest = max(loads, key=lambda name: loads[name])
    if loads[fullest] <= HALF:
        return None
    named = {"issue": "issue slots", "l1_bandwidth": "bandwidth of L1"}
    what = named.get(fullest) or f"{kernel_metrics.PIPE_NAMES[fullest]} pipeline"
    why = (
        f"by occupancy two of it fit with room to spare; yet they need more than all of the {what}"
    )
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
