"""GPU scores of a job by each method, from a lake and Nsight Compute reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

import polars as pl

from tachograph.catalog.doors import annex_function
from tachograph.catalog.tables import GPU_SCORES, JOB_SUMMARIES, PROFILES
from tachograph.judge.score_ways import ScoreWay, profiled_way, recorded_way, sampled_way
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_consistently, read_gpus, read_job_row, read_of_gpus
from tachograph.sources.score_sums import warps_of

if TYPE_CHECKING:
    from tachograph.catalog.rows import GpuScoreRow, JobGpuRow, JobSummaryRow


@dataclass(frozen=True, slots=True)
class JobScores:
    """The scores of a job. ways: in a fixed order, those without a score, too."""

    job: str
    ways: tuple[ScoreWay, ...]


def read_job_scores(
    lake: Lake,
    job: str,
    *,
    cluster: str | None = None,
    run: int | None = None,
    reports: Sequence[Path] = (),
) -> JobScores:
    """Return the scores of job `job`, of its last run unless `run` names another.

    reports: Nsight Compute reports of its kernels, by default the attached ones. Errors: those of
    `read_job_row` and `read_reports`.
    """
    return read_consistently(
        lake,
        lambda: scores_of(lake, read_job_row(lake, job, cluster=cluster, run=run).row, reports),
    )


def scores_of(lake: Lake, row: JobSummaryRow, reports: Sequence[Path] = ()) -> JobScores:
    """Return the scores of the job of a row of job_summaries, see `read_job_scores`.

    Errors: those of `read_reports`.
    """
    gpus = read_gpus(lake, pl.DataFrame([row], schema=JOB_SUMMARIES.schema))
    samples = read_of_gpus(lake, GPU_SCORES, gpus, begin=row["start"], end=_end(row))
    sampled = cast("list[GpuScoreRow]", samples.to_dicts())
    held = cast("list[JobGpuRow]", gpus.to_dicts())
    ways = [
        recorded_way(row),
        sampled_way(sampled, gpus=held, begin=row["start"], end=_end(row)),
    ]
    launches = None
    if reports or any(file.may_name(row["job_key"]) for file in lake.files(PROFILES)):
        launches = annex_function("profiled_launches")(lake, row["job_key"], reports)
    if launches is not None:
        warps = {warps_of(gpu["gpu_model"]) for gpu in held}
        max_warps = warps.pop() if len(warps) == 1 else None  # of GPUs of one model
        ways.append(profiled_way(launches, max_warps=max_warps))
    return JobScores(row["display_id"] or row["job_id"], tuple(ways))


def _end(row: JobSummaryRow) -> datetime:
    ended: datetime = row["end"] or row["as_of"]
    return ended
