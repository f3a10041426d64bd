"""The GPU scores of one job, each way in which they can be measured, and why the ways differ.

dcgm     means of recorded counters, the whole time of the job (`judge.scores`)
pm       cycles counted by PM sampling, whole minutes of the job
nsight   cycles counted by Nsight Compute in the kernels of reports
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from tachograph.catalog.score_formulas import (
    DRAM_ACTIVE,
    DRAM_ELAPSED,
    ELAPSED,
    SM_ACTIVE,
    WARPS,
    WARPS_PER_CYCLE,
    practice_gpu,
    practice_gpumem,
    practice_gpumem_normalized,
)
from tachograph.catalog.tables import SCORES
from tachograph.catalog.units import plural, text
from tachograph.judge.activity import number
from tachograph.sources.score_sums import sums_of_row, total, warps_of

if TYPE_CHECKING:
    from tachograph.catalog.rows import GpuScoreRow, JobGpuRow, JobSummaryRow


TITLES: Mapping[str, str] = {
    "dcgm": "means of recorded counters (DCGM, NVML)",
    "pm": "PM sampling (CUPTI)",
    "nsight": "reports of Nsight Compute",
}
# why a way differs from the others where nothing is wrong
DIFFERENCES: Mapping[str, str] = {
    "dcgm": "Occupancy is per elapsed cycle, so W_max cannot limit single samples; clocks are "
    "instantaneous, or taken as equal where not recorded.",
    "pm": (
        "Cycles are counted, those of memory in its own clock; W is per active cycle, limited to "
        "W_max, and computed from the sums."
    ),
    "nsight": "Kernels run one at a time, without the time between them, at locked clocks and with "
    "empty caches, unless `ncu` was run with other options.",
}


@dataclass(frozen=True, slots=True)
class ScoreWay:
    """Scores of a job by one method: {column of SCORES: 0..100, None: not measured}.

    basis: the GPUs and times that they are of.

    notes: what limits them here.
    """

    name: str
    scores: Mapping[str, float | None]
    basis: str
    notes: tuple[str, ...] = ()

    @property
    def is_measured(self) -> bool:
        """Whether it has any score."""
        return any(value is not None for value in self.scores.values())


def recorded_way(row: JobSummaryRow) -> ScoreWay:
    """Return the scores of a row of job_summaries."""
    basis = f"{row['samples'] or 0:,} samples of {plural(row['gpus_seen'] or 0, 'GPU')}"
    notes = (
        () if row["mem_clock_mhz_mean"] else ("clocks were not recorded and are taken as equal",)
    )
    return ScoreWay("dcgm", {name: number(row, name) for name in SCORES}, basis, notes)


def sampled_way(
    rows: Sequence[GpuScoreRow],
    *,
    gpus: Sequence[JobGpuRow],
    begin: datetime,
    end: datetime,
) -> ScoreWay:
    """Return the scores from gpu_scores of these GPUs (job_gpus), `begin` to `end`.

    A row that is only partly inside is of others, too, and left out.
    """
    held = {_place(gpu): gpu for gpu in gpus}
    own = [row for row in rows if _place(row) in held]
    whole = [row for row in own if row["t"] >= begin and _end_s(row) <= end.timestamp()]
    sums = total(sums_of_row(row) for row in whole)
    if sums is None:
        return ScoreWay("pm", dict.fromkeys(SCORES), "not sampled", _left_out(own, whole))
    places = {_place(row) for row in whole}
    warps = {warps_of(held[place]["gpu_model"]) for place in places}
    notes = [*_left_out(own, whole)]
    if len(warps) > 1:
        notes.append("W_max differs between its GPUs, so they have no common score_gpu")
    if len(places) < len(held):
        notes.append(f"{len(places)} of {len(held)} GPUs were sampled")
    if sums.overflows or sums.lost_s:
        notes.append(
            f"{plural(sums.overflows, 'overflow')}, {text(sums.lost_s, 's')} without samples"
        )
    cut: set[str] = set()
    for row in whole:
        cut.update(filter(None, (row["cut"] or "").split(",")))
    if cut:
        notes.append(f"not counted in one pass: {', '.join(sorted(cut))}")
    basis = (
        f"{sums.samples:,} PM samples, {text(sums.measured_s, 's')} of {plural(len(places), 'GPU')}"
    )
    return ScoreWay(
        "pm", sums.scores(warps.pop() if len(warps) == 1 else None), basis, tuple(notes)
    )


def profiled_way(launches: Sequence[Mapping[str, float]], *, max_warps: int | None) -> ScoreWay:
    """Return the scores of launches of kernels: {metric: value}, each launch once.

    Cycles of launches are added up. A launch that lacks a metric of a score is left out of that
    score.
    """
    made = [_with_resident_warps(launch) for launch in launches]
    gpu = _added(made, (SM_ACTIVE, ELAPSED, WARPS))
    memory = _added(made, (DRAM_ACTIVE, SM_ACTIVE))
    normalized = _added(made, (DRAM_ACTIVE, DRAM_ELAPSED, SM_ACTIVE, ELAPSED))
    scores = (
        None if max_warps is None else practice_gpu(gpu, max_warps=max_warps).value,
        practice_gpumem(memory).value,
        practice_gpumem_normalized(normalized).value,
    )
    missing = [
        name
        for name in (WARPS, DRAM_ACTIVE, DRAM_ELAPSED)
        if not any(name in launch for launch in made)
    ]
    notes = (f"not in the reports: {', '.join(missing)}",) if missing else ()
    return ScoreWay(
        "nsight",
        dict(zip(SCORES, scores, strict=True)),
        plural(len(launches), "profiled kernel"),
        notes,
    )


def _with_resident_warps(launch: Mapping[str, float]) -> Mapping[str, float]:
    """Return a launch with the cumulative warp count, derived from the per-cycle value."""
    if WARPS in launch or not {WARPS_PER_CYCLE, SM_ACTIVE} <= launch.keys():
        return launch
    return {**launch, WARPS: launch[WARPS_PER_CYCLE] * launch[SM_ACTIVE]}


def _added(launches: Sequence[Mapping[str, float]], names: Sequence[str]) -> dict[str, float]:
    """Sums of metrics over launches that have all of them; empty where none has."""
    whole = [launch for launch in launches if launch.keys() >= set(names)]
    if not whole:
        return {}
    return {name: sum(launch[name] for launch in whole) for name in names}


def _left_out(own: Sequence[GpuScoreRow], whole: Sequence[GpuScoreRow]) -> tuple[str, ...]:
    count = len(own) - len(whole)
    return (
        (f"{plural(count, 'minute')} at begin or end left out, in part of others",) if count else ()
    )


def _end_s(row: GpuScoreRow) -> float:
    return row["t"].timestamp() + (row["duration_s"] or 0.0)


def _place(row: GpuScoreRow | JobGpuRow) -> tuple[str, int, int | None]:
    return row["node"], row["gpu"], row["mig"]
