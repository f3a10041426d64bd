"""Scores from raw metrics of Nsight Compute, of one kernel or of averages over kernels.

Metric names as the tool writes them; values as it gives them. Corrected against the paper: the warp stalls are
`smsp__warp_issue_stalled_*` (`smsp__warps_issue_stalled_*` exists on no chip), and `imc_miss` is gone on Blackwell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# stalls that wait for memory
MEMORY_STALLS = (
    *("drain", "imc_miss", "lg_throttle", "long_scoreboard"),
    *("membar", "mio_throttle", "short_scoreboard", "tex_throttle"),
)
OPTIONAL_STALLS = frozenset({"imc_miss"})  # not on Blackwell: there it adds nothing
MAX_IPC = 4.0  # warp instructions per cycle and SM: four schedulers, one each, on all chips since Volta
WARP_THREADS = 32.0
WARPS, WARPS_PER_CYCLE = "sm__warps_active.avg", "sm__warps_active.avg.per_cycle_active"
SM_ACTIVE, ELAPSED = "sm__cycles_active.avg", "gpc__cycles_elapsed.max"
DRAM_ACTIVE, DRAM_ELAPSED = "dram__cycles_active.avg", "dram__cycles_elapsed.avg"
IPC = "sm__inst_executed.avg.per_cycle_elapsed"
THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"
LATENCY = "smsp__average_warp_latency_per_inst_issued.ratio"


@dataclass(frozen=True, slots=True)
class NsightScore:
    """A score 0..100; value None: a metric of `needs` is not given, or nothing ran."""

    value: float | None
    needs: tuple[str, ...] = ()


def practice_gpu(metrics: Mapping[str, float], *, max_warps: int = 64) -> NsightScore:
    """Return 100 (1 - min(W_max, W) / W_max x active / elapsed), W the warps resident per active cycle.

    `sm__warps_active.avg` is cumulative: W is it over `sm__cycles_active.avg`, or `.per_cycle_active` where given.

    >>> practice_gpu({WARPS_PER_CYCLE: 32.0, SM_ACTIVE: 800.0, ELAPSED: 1000.0}).value
    60.0
    """
    warps = WARPS_PER_CYCLE if WARPS_PER_CYCLE in metrics else WARPS
    if missing := _missing(metrics, (warps, SM_ACTIVE, ELAPSED)):
        return NsightScore(None, missing)
    active, elapsed = metrics[SM_ACTIVE], metrics[ELAPSED]
    if elapsed <= 0:
        return NsightScore(None)
    if active <= 0:
        return NsightScore(100.0)
    resident = metrics[warps] if warps == WARPS_PER_CYCLE else metrics[warps] / active
    return _limited(1 - min(max_warps, resident) / max_warps * active / elapsed)


def practice_gpumem(metrics: Mapping[str, float]) -> NsightScore:
    """Return 100 x DRAM cycles / (DRAM cycles + SM cycles), active ones, each in its own clock.

    >>> practice_gpumem({DRAM_ACTIVE: 3201.0, SM_ACTIVE: 1980.0}).value  # both fully active on an H200
    61.78343949044586
    """
    return _share(metrics, {DRAM_ACTIVE: None, SM_ACTIVE: None})


def practice_gpumem_normalized(metrics: Mapping[str, float]) -> NsightScore:
    """Return the same of shares of elapsed cycles: both fully active give 50 at any clocks.

    >>> practice_gpumem_normalized({DRAM_ACTIVE: 3201, DRAM_ELAPSED: 3201, SM_ACTIVE: 1980, ELAPSED: 1980}).value
    50.0
    """
    return _share(metrics, {DRAM_ACTIVE: DRAM_ELAPSED, SM_ACTIVE: ELAPSED})


def theory_gpu(metrics: Mapping[str, float], *, max_ipc: float = MAX_IPC) -> NsightScore:
    """Return 100 (1 - IPC x warp efficiency / IPC_max): instructions per elapsed cycle, threads that take part in one.

    >>> theory_gpu({IPC: 2.0, THREADS: 16.0}).value
    75.0
    """
    if missing := _missing(metrics, (IPC, THREADS)):
        return NsightScore(None, missing)
    return _limited(1 - metrics[IPC] * (metrics[THREADS] / WARP_THREADS) / max_ipc)


def theory_gpumem(metrics: Mapping[str, float]) -> NsightScore:
    """Return which percent of warp latency the stalls on memory are, added up.

    Of the stalls' own metrics, else as `--set full` gives it: warps stalled per issue over latency per instruction.

    >>> given = {stall_metric(stall): 5.0 for stall in MEMORY_STALLS if stall != "imc_miss"}
    >>> theory_gpumem(given).value
    35.0
    >>> given = {full_set_metric(stall): 1.0 for stall in MEMORY_STALLS}
    >>> theory_gpumem(given | {LATENCY: 16.0}).value
    50.0
    """
    needed = [stall for stall in MEMORY_STALLS if stall not in OPTIONAL_STALLS]
    direct = _missing(metrics, [stall_metric(stall) for stall in needed])
    if not direct:
        return _limited(_sum(metrics, [stall_metric(stall) for stall in MEMORY_STALLS]) / 100)
    derived = _missing(metrics, [LATENCY, *(full_set_metric(stall) for stall in needed)])
    if derived:
        return NsightScore(None, direct if len(direct) <= len(derived) else derived)
    if metrics[LATENCY] <= 0:
        return NsightScore(None)
    return _limited(_sum(metrics, [full_set_metric(stall) for stall in MEMORY_STALLS]) / metrics[LATENCY])


def stall_metric(stall: str) -> str:
    """Return the metric of a stall, in percent of warp latency.

    >>> stall_metric("long_scoreboard")
    'smsp__warp_issue_stalled_long_scoreboard_per_warp_active.pct'
    """
    return f"smsp__warp_issue_stalled_{stall}_per_warp_active.pct"


def full_set_metric(stall: str) -> str:
    """Return the metric of a stall that a plain `--set full` report has.

    >>> full_set_metric("membar")
    'smsp__average_warps_issue_stalled_membar_per_issue_active.ratio'
    """
    return f"smsp__average_warps_issue_stalled_{stall}_per_issue_active.ratio"


def _share(metrics: Mapping[str, float], cycles: Mapping[str, str | None]) -> NsightScore:
    """Share of the first of two in both; each over its elapsed cycles where these are named."""
    names = [name for pair in cycles.items() for name in pair if name is not None]
    if missing := _missing(metrics, names):
        return NsightScore(None, missing)
    if any(elapsed is not None and metrics[elapsed] <= 0 for elapsed in cycles.values()):
        return NsightScore(None)
    first, other = (metrics[name] / (1 if whole is None else metrics[whole]) for name, whole in cycles.items())
    return NsightScore(None) if first + other <= 0 else _limited(first / (first + other))


def _missing(metrics: Mapping[str, float], names: Sequence[str]) -> tuple[str, ...]:
    """Names that are not given, or not a number."""
    return tuple(name for name in names if name not in metrics or metrics[name] != metrics[name])


def _sum(metrics: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(metrics[name] for name in names if name in metrics and metrics[name] == metrics[name])


def _limited(fraction: float) -> NsightScore:
    return NsightScore(min(100.0, max(0.0, 100 * fraction)))
