"""The GPU scores of one job, each way, from a lake and from reports of Nsight Compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl

from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import GPU_SCORES, JOB_SUMMARIES
from tachograph.judge.score_ways import ScoreWay, profiled_way, recorded_way, sampled_way
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_consistently, read_gpus, read_job_row, read_of_gpus
from tachograph.nsight.reports import read_reports
from tachograph.sources.pm_sampling.sums import warps_of


@dataclass(frozen=True, slots=True)
class JobScores:
    """The scores of a job. ways: in a fixed order, those without a score, too."""

    job: str
    ways: tuple[ScoreWay, ...]


def read_job_scores(
    lake: Lake,
    job: str,
    *,
    configuration: Configuration,
    cluster: str | None = None,
    run: int | None = None,
    reports: Sequence[Path] = (),
) -> JobScores:
    """Return the scores of the job called `job`, of its last run unless `run` names another.

    reports: of its kernels, by Nsight Compute.
    Errors: those of `read_job_row` and `read_reports`.
    """

    def read() -> tuple[Mapping[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
        row = read_job_row(lake, job, cluster=cluster, run=run).row
        gpus = read_gpus(lake, pl.DataFrame([row], schema=JOB_SUMMARIES.schema))
        sampled = read_of_gpus(lake, GPU_SCORES, gpus, begin=row["start"], end=_end(row))
        return row, gpus.to_dicts(), sampled.to_dicts()

    row, gpus, sampled = read_consistently(lake, read)
    limits = configuration.scores.max_warps
    ways = [recorded_way(row), sampled_way(sampled, gpus=gpus, begin=row["start"], end=_end(row), limits=limits)]
    if reports:
        launches = [launch.metrics for report in read_reports(reports) for launch in report.launches]
        warps = {warps_of(gpu["gpu_model"], limits) for gpu in gpus}
        ways.append(profiled_way(launches, max_warps=warps.pop() if len(warps) == 1 else None))
    return JobScores(row["display_id"] or row["job_id"], tuple(ways))


def _end(row: Mapping[str, Any]) -> datetime:
    ended: datetime = row["end"] or row["as_of"]
    return ended
