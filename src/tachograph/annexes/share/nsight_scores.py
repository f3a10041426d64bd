"""Scores from raw metrics of Nsight Compute, of one kernel or of averages over kernels.

Metric names as the tool writes them; values as it gives them. Corrected against the paper: the warp
stalls are `smsp__warp_issue_stalled_*` (`smsp__warps_issue_stalled_*` exists on no chip), and
`imc_miss` is gone on Blackwell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tachograph.catalog.score_formulas import CycleScore as CycleScore
from tachograph.catalog.score_formulas import limited_score, missing_metrics
from tachograph.catalog.score_formulas import practice_gpu as practice_gpu
from tachograph.catalog.score_formulas import practice_gpumem as practice_gpumem
from tachograph.catalog.score_formulas import (
    practice_gpumem_normalized as practice_gpumem_normalized,
)

# stalls that wait for memory
MEMORY_STALLS = (
    *("drain", "imc_miss", "lg_throttle", "long_scoreboard"),
    *("membar", "mio_throttle", "short_scoreboard", "tex_throttle"),
)
OPTIONAL_STALLS = frozenset({"imc_miss"})  # not on Blackwell: there it adds nothing
# Warp instructions per cycle and SM: four schedulers, one each, on all chips since Volta.
MAX_IPC = 4.0
WARP_THREADS = 32.0
IPC = "sm__inst_executed.avg.per_cycle_elapsed"
THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"
LATENCY = "smsp__average_warp_latency_per_inst_issued.ratio"


def theory_gpu(metrics: Mapping[str, float], *, max_ipc: float = MAX_IPC) -> CycleScore:
    """Return 100 (1 - IPC x warp efficiency / IPC_max), per elapsed cycle.

    >>> theory_gpu({IPC: 2.0, THREADS: 16.0}).value
    75.0
    """
    if missing := missing_metrics(metrics, (IPC, THREADS)):
        return CycleScore(None, missing)
    return limited_score(1 - metrics[IPC] * (metrics[THREADS] / WARP_THREADS) / max_ipc)


def theory_gpumem(metrics: Mapping[str, float]) -> CycleScore:
    """Return which percent of warp latency the stalls on memory are, added up.

    Of the stalls' own metrics, else as `--set full` gives it: warps stalled per issue over latency
    per instruction.

    >>> given = {stall_metric(stall): 5.0 for stall in MEMORY_STALLS if stall != "imc_miss"}
    >>> theory_gpumem(given).value
    35.0
    >>> given = {full_set_metric(stall): 1.0 for stall in MEMORY_STALLS}
    >>> theory_gpumem(given | {LATENCY: 16.0}).value
    50.0
    """
    needed = [stall for stall in MEMORY_STALLS if stall not in OPTIONAL_STALLS]
    direct = missing_metrics(metrics, [stall_metric(stall) for stall in needed])
    if not direct:
        return limited_score(_sum(metrics, [stall_metric(stall) for stall in MEMORY_STALLS]) / 100)
    derived = missing_metrics(metrics, [LATENCY, *(full_set_metric(stall) for stall in needed)])
    if derived:
        return CycleScore(None, direct if len(direct) <= len(derived) else derived)
    if metrics[LATENCY] <= 0:
        return CycleScore(None)
    return limited_score(
        _sum(metrics, [full_set_metric(stall) for stall in MEMORY_STALLS]) / metrics[LATENCY]
    )


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


def _sum(metrics: Mapping[str, float], names: Sequence[str]) -> float:
    return sum(
        metrics[name] for name in names if name in metrics and metrics[name] == metrics[name]
    )
