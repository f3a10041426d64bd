"""What a rule that looks for one thing in a job is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import polars as pl

from tachograph.catalog.config import Thresholds
from tachograph.judge.finding import Finding


class SummaryJudge(Protocol):
    """Looks for one thing in one job.

    `summary` is its row of job_summaries, `gpus` its rows of job_gpus, `minutes` one row for each of its
    minutes, the GPUs put together (`reduce.timelines.timelines_of`).
    Returns None where it is not so, and where a counter it needs was not measured.
    """

    def __call__(
        self, summary: Mapping[str, Any], gpus: pl.DataFrame, minutes: pl.DataFrame, thresholds: Thresholds
    ) -> Finding | None:
        """Return the finding, or None."""


@dataclass(frozen=True, slots=True)
class SummaryCheck:
    """One entry of the registry. What it finds makes the findings in `supersedes` not worth saying."""

    code: str
    judge: SummaryJudge
    supersedes: tuple[str, ...] = ()
