"""GPU scores: 0 no problem, 100 worst. From recorded counters (`telemetry`) and from Nsight Compute (`nsight`).

Source: Matveev, Setyaev, Voevodin, "New approaches for automatic analysis of HPC application performance using the TASC
software suite", Num. Meth. Prog. 26(4), 2025, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tachograph.config import Scores
from tachograph.finding import findings_frame
from tachograph.scores.telemetry import inputs_of_jobs, with_scores
from tachograph.scores.told import told
from tachograph.summarize.schema import SCORES

__all__ = ["Scored", "judge"]


@dataclass(frozen=True, slots=True)
class Scored:
    """Summaries and GPUs with their scores, and two findings for each job, without `seq`."""

    jobs: pl.DataFrame
    gpus: pl.DataFrame
    findings: pl.DataFrame


def judge(jobs: pl.DataFrame, gpus: pl.DataFrame, settings: Scores) -> Scored:
    """Return rows of job_summaries and of job_gpus with the columns SCORES, and what they say.

    A score of a job is that of its GPUs' mean inputs; null where a counter it needs was not measured.
    """
    inputs = inputs_of_jobs(gpus, settings.max_warps)
    facts = jobs.select("job_key", "job_id", "attribution").join(
        inputs, on="job_key", how="left", maintain_order="left"
    )
    scored = with_scores(facts)
    columns = [scored.get_column(name) for name in SCORES]
    findings = findings_frame((row, told(row, high=settings.high)) for row in scored.iter_rows(named=True))
    return Scored(jobs.with_columns(columns), with_scores(gpus, settings.max_warps), findings)
