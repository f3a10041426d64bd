"""Which resources others could take from a kernel to slow it down, with the number behind each verdict.

Source: Elvinger et al. 2025, section 4, one resource after the other. Thresholds are the constants below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tachograph.interference.demand import Calibration
from tachograph.interference.profile import readings
from tachograph.interference.profile.collect import options
from tachograph.interference.profile.kernels import Kernel
from tachograph.interference.profile.limits import achievable
from tachograph.interference.profile.utilisation import distribution, launched

Level = Literal["high", "some", "low", "unknown"]
_LIMITS = tuple(f"launch__occupancy_limit_{what}" for what in ("blocks", "registers", "shared_mem", "warps"))


@dataclass(frozen=True, slots=True)
class Susceptibility:
    """What a kernel has to fear on one resource.

    resource: blocks, l2, dram, l1, issue, a pipeline, or sms (how evenly its work lies on them: read the others with
    it). value: fraction 0..1, None where unknown; threshold: from which on it is high. metrics: that the value is made
    of. missing: options of ncu that collect what is not known.
    """

    resource: str
    level: Level
    value: float | None
    threshold: float
    why: str
    metrics: tuple[str, ...]
    missing: str = ""


@dataclass(frozen=True, slots=True)
class _Scale:
    """From which value on a resource is at risk, and somewhat so."""

    high: float
    some: float

    def level(self, value: float) -> Level:
        return "high" if value >= self.high else "some" if value >= self.some else "low"


# of what an SM gives per cycle: above one half two of the kind do not fit; a tenth is lost beside one that takes all
CYCLES = _Scale(0.5, 0.1)
# of achievable bandwidth: published slowdowns beside the same are 1.36, 1.23, 1.14, 1.06 at 69, 55, 40, 21 %
DRAM = _Scale(0.5, 0.2)
# a stream that never comes back to its data still hits with all it writes: one half says little
HITS = _Scale(0.7, 0.3)
# of the throughput of a cache: below it hits are too few to matter
TRAFFIC = 0.05
# of the places for its blocks on all SMs: all taken, others wait
SLOTS = _Scale(1.0, 0.5)
IDLE = _Scale(0.3, 0.1)
_WHAT = {"l2": "L2", "l1": "L1"}


def susceptibilities(kernel: Kernel, *, calibration: Calibration | None = None) -> tuple[Susceptibility, ...]:
    """Return what a kernel has to fear on each resource, from what all SMs share to what those on one SM share."""
    return (
        _blocks(kernel),
        _cache(kernel, "l2", readings.L2_HIT, readings.L2_BUSY),
        _dram(kernel, calibration or Calibration()),
        _cache(kernel, "l1", readings.L1_HIT, readings.L1_BUSY),
        _issue(kernel),
        *_pipes(kernel),
        _evenness(kernel),
    )


def _blocks(kernel: Kernel) -> Susceptibility:
    lies = launched(kernel.demand.footprint, kernel.gpu)
    if lies.slots_taken is None:
        lacks = options("device__attribute_multiprocessor_count" if kernel.gpu.sms is None else _LIMITS[0])
        return Susceptibility("blocks", "unknown", None, SLOTS.high, "how many blocks fit is not told", _LIMITS, lacks)
    level = SLOTS.level(lies.slots_taken)
    why = {
        "high": "its blocks take every place on all SMs: those of others wait",
        "some": "its blocks take half of the places on the SMs or more",
    }.get(level, "most places for blocks stay free")
    names = ("launch__grid_size", *_LIMITS)
    return Susceptibility("blocks", level, lies.slots_taken, SLOTS.high, why, names)


def _cache(kernel: Kernel, resource: str, hit: str, busy: str) -> Susceptibility:
    hits, traffic = readings.share(kernel.metrics, hit), readings.share(kernel.metrics, busy)
    if hits is None:
        return Susceptibility(resource, "unknown", None, HITS.high, "its hits are not told", (hit,), options(hit))
    name = _WHAT[resource]
    if traffic is not None and traffic.value < TRAFFIC:
        why = f"{name} has little to do for it: what it hits there does not count"
        return Susceptibility(resource, "low", hits.value, HITS.high, why, (hit, busy))
    level = HITS.level(hits.value)
    why = {
        "high": f"it lives on what {name} holds: others that use it turn hits into misses",
        "some": f"some of its data comes from {name}",
    }.get(level, f"{name} holds little that it comes back to")
    if traffic is None and level != "low":
        why += "; how busy the cache is was not collected"
    return Susceptibility(resource, level, hits.value, HITS.high, why, (hit,) if traffic is None else (hit, busy),
                          options(busy) if traffic is None else "")  # fmt: skip


def _dram(kernel: Kernel, calibration: Calibration) -> Susceptibility:
    reading = readings.dram(kernel.metrics, kernel.gpu, kernel.coverage)
    if reading is None:
        names = (readings.DRAM,)
        return Susceptibility("dram", "unknown", None, DRAM.high, "its bandwidth is not told", names, options(*names))
    value = achievable(reading.value, kernel.gpu, calibration)
    level = DRAM.level(value)
    measured = calibration.measured_on == kernel.gpu.name
    why = {
        "high": "it takes half of the bandwidth or more: two of the kind slow each other down",
        "some": "latency of DRAM grows with what others ask of it",
    }.get(level, "it asks little of DRAM")
    of = "of what can be achieved" if measured else "of the peak; what can be achieved was not measured on this GPU"
    return Susceptibility("dram", level, value, DRAM.high, f"{why} ({of})", (reading.metric,))


def _issue(kernel: Kernel) -> Susceptibility:
    reading = readings.issue(kernel.metrics, kernel.gpu)
    if reading is None:
        names = (readings.ISSUED,)
        return Susceptibility("issue", "unknown", None, CYCLES.high, "its IPC is not told", names, options(*names))
    level = CYCLES.level(reading.value)
    why = {
        "high": "it takes half of the issue slots or more: two of the kind do not fit",
        "some": "it slows down beside a kernel that takes most issue slots",
    }.get(level, "it seldom issues")
    return Susceptibility("issue", level, reading.value, CYCLES.high, why, (reading.metric,))


def _pipes(kernel: Kernel) -> tuple[Susceptibility, ...]:
    found = []
    for pipe, reading in readings.pipes(kernel.metrics, kernel.coverage).items():
        level, name = CYCLES.level(reading.value), readings.PIPE_NAMES[pipe]
        why = {
            "high": f"it takes half of the {name} pipeline or more: two of the kind do not fit",
            "some": f"it slows down beside a kernel that takes most of the {name} pipeline",
        }.get(level, f"it seldom uses the {name} pipeline")
        found.append(Susceptibility(pipe, level, reading.value, CYCLES.high, why, (reading.metric,)))
    if not found:
        metric = readings.pipe_metric("fma")
        why = "no pipeline was measured"
        found.append(Susceptibility("pipelines", "unknown", None, CYCLES.high, why, (metric,), options(metric)))
    return tuple(found)


def _evenness(kernel: Kernel) -> Susceptibility:
    names = (readings.SM_ACTIVE, readings.SM_ACTIVE_MIN, readings.SM_ACTIVE_MAX)
    lies = distribution(kernel)
    if lies is None:
        lacks = options(readings.SM_ACTIVE_MAX)
        return Susceptibility(
            "sms", "unknown", None, IDLE.high, "how its work lies on the SMs is not told", names, lacks
        )
    level = IDLE.level(lies.idle)
    why = {
        "high": "SMs stand idle while others work: its other numbers are those of the SMs that work",
        "some": "some SMs finish early",
    }.get(level, "all SMs work alike")
    return Susceptibility("sms", level, lies.idle, IDLE.high, why, names)
