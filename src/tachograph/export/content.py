"""What is exported: the jobs that a filter chooses, and what belongs to them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import polars as pl

from tachograph.analyze.answers import as_judged, read_answers, summaries_and_answers
from tachograph.analyze.results import read_gpus, read_verdicts, scan_minutes
from tachograph.lake import Lake
from tachograph.lake.problems import lake_errors
from tachograph.report.filters import JobFilter, filter_jobs
from tachograph.schema import DEVICES, Table
from tachograph.summarize.schema import JOB_MINUTES, JOB_NODE_MINUTES, JOB_SUMMARIES


@dataclass(frozen=True, slots=True)
class Content:
    """The chosen rows of job_summaries, in order of start, and what belongs to these jobs.

    `now`: up to when things are looked at. What is large is read when it is asked for.
    """

    lake: Lake
    now: datetime
    summaries: pl.DataFrame

    def findings(self, summaries: pl.DataFrame | None = None) -> pl.DataFrame:
        """Everything that was looked for in the chosen jobs, or in some of them: rows of findings, every verdict."""
        rows = read_verdicts(self.lake, self.summaries if summaries is None else summaries)
        return as_judged(rows.lazy()).collect()

    def answers(self) -> pl.DataFrame:
        """The same in short, to be counted: columns ANSWER."""
        return read_answers(self.lake, self.summaries, every=True)

    def gpus(self, summaries: pl.DataFrame | None = None) -> pl.DataFrame:
        """Rows of job_gpus of the chosen jobs, or of some of them."""
        return read_gpus(self.lake, self.summaries if summaries is None else summaries)

    def minutes(self, summaries: pl.DataFrame | None = None) -> pl.DataFrame:
        """Rows of job_minutes of the chosen jobs, or of some of them."""
        return self._by_minute(JOB_MINUTES, self.summaries if summaries is None else summaries)

    def node_minutes(self) -> pl.DataFrame:
        """Rows of job_node_minutes of the chosen jobs; none where hosts tell nothing."""
        return self._by_minute(JOB_NODE_MINUTES, self.summaries)

    def _by_minute(self, table: Table, jobs: pl.DataFrame) -> pl.DataFrame:
        with lake_errors(self.lake.uri(table)):
            return scan_minutes(self.lake, table, jobs).collect().sort(*table.sort)

    def devices(self) -> pl.DataFrame:
        """What GPUs there are."""
        return self.lake.latest(DEVICES)

    @property
    def lake_id(self) -> str:
        """What stays the same when the lake is moved: the id of its job_summaries."""
        delta = self.lake.delta(JOB_SUMMARIES)
        return "" if delta is None else str(delta.metadata().id)


def read_content(lake: Lake, wanted: JobFilter, *, now: datetime) -> Content:
    """Return the jobs of the lake that are wanted.

    Errors: LakeError where nothing was analyzed yet; NotFoundError for a filter that names what does not exist.
    """
    summaries, answers = summaries_and_answers(lake, wanted.findings)
    return Content(lake, now, filter_jobs(summaries, answers, wanted).sort("start", "job_key"))
