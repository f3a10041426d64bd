"""The published GPU scores from counts of cycles, for PM sampling and Nsight Compute alike.

Metric names as NVIDIA's library writes them. Counts of several samples or kernels are added up
first: a score is made of sums, and limited to 0..100 once.

Source: Matveev, Setyaev, Voevodin, "New approaches for automatic analysis of HPC application
performance using the TASC software suite", Num. Meth. Prog. 26(4), 2025, section 3, formulas (2)
and (4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

WARPS, WARPS_PER_CYCLE = "sm__warps_active.avg", "sm__warps_active.avg.per_cycle_active"
SM_ACTIVE, ELAPSED = "sm__cycles_active.avg", "gpc__cycles_elapsed.max"
# In the domain of the SMs. PM sampling divides by it: over `gpc__cycles_elapsed.max` an H100 read
# 3.3 to 4.5 % less than NVML's GPM did, while warps over active cycles agreed to 0.2 %.
SM_ELAPSED = "sm__cycles_elapsed.avg"
DRAM_ACTIVE, DRAM_ELAPSED = "dram__cycles_active.avg", "dram__cycles_elapsed.avg"
TENSOR = "sm__pipe_tensor_cycles_active.avg"
FP64 = "sm__pipe_fp64_cycles_active.avg"
FP32 = "sm__pipe_fma_cycles_active.avg"


@dataclass(frozen=True, slots=True)
class CycleScore:
    """A score 0..100; value None: a metric of `needs` is not given, or nothing ran."""

    value: float | None
    needs: tuple[str, ...] = ()


def practice_gpu(metrics: Mapping[str, float], *, max_warps: int = 64) -> CycleScore:
    """Return 100 (1 - min(W_max, W) / W_max x active / elapsed).

    W: resident warps per active cycle.

    `sm__warps_active.avg` is cumulative: W is it over `sm__cycles_active.avg`, or
    `.per_cycle_active` where given.

    >>> practice_gpu({WARPS_PER_CYCLE: 32.0, SM_ACTIVE: 800.0, ELAPSED: 1000.0}).value
    60.0
    """
    warps = WARPS_PER_CYCLE if WARPS_PER_CYCLE in metrics else WARPS
    if missing := missing_metrics(metrics, (warps, SM_ACTIVE, ELAPSED)):
        return CycleScore(None, missing)
    active, elapsed = metrics[SM_ACTIVE], metrics[ELAPSED]
    if elapsed <= 0:
        return CycleScore(None)
    if active <= 0:
        return CycleScore(100.0)
    resident = metrics[warps] if warps == WARPS_PER_CYCLE else metrics[warps] / active
    return limited_score(1 - min(max_warps, resident) / max_warps * active / elapsed)


def practice_gpumem(metrics: Mapping[str, float]) -> CycleScore:
    """Return 100 x DRAM cycles / (DRAM cycles + SM cycles), active ones, each in its own clock.

    >>> practice_gpumem({DRAM_ACTIVE: 3201.0, SM_ACTIVE: 1980.0}).value  # both fully active on an H200
    61.78343949044586
    """
    return _share(metrics, {DRAM_ACTIVE: None, SM_ACTIVE: None})


def practice_gpumem_normalized(metrics: Mapping[str, float]) -> CycleScore:
    """Return the same of shares of elapsed cycles: both fully active give 50 at any clocks.

    >>> practice_gpumem_normalized({DRAM_ACTIVE: 3201, DRAM_ELAPSED: 3201, SM_ACTIVE: 1980, ELAPSED: 1980}).value
    50.0
    """
    return _share(metrics, {DRAM_ACTIVE: DRAM_ELAPSED, SM_ACTIVE: ELAPSED})


def _share(metrics: Mapping[str, float], cycles: Mapping[str, str | None]) -> CycleScore:
    """Share of the first of two in both; each over its elapsed cycles where these are named."""
    names = [name for name in chain(*cycles.items()) if name is not None]
    if missing := missing_metrics(metrics, names):
        return CycleScore(None, missing)
    shares: list[float] = []
    for name, elapsed_name in cycles.items():
        elapsed = 1 if elapsed_name is None else metrics[elapsed_name]
        if elapsed <= 0:
            return CycleScore(None)
        shares.append(metrics[name] / elapsed)
    first, other = shares
    return CycleScore(None) if first + other <= 0 else limited_score(first / (first + other))


def missing_metrics(metrics: Mapping[str, float], names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that are not given, or not a number."""
    return tuple(name for name in names if name not in metrics or metrics[name] != metrics[name])


def limited_score(fraction: float) -> CycleScore:
    """Return a fraction as a score, limited to 0..100."""
    return CycleScore(min(100.0, max(0.0, 100 * fraction)))
