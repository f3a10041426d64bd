"""Jobs made for rules: one job with its GPUs, on one or several nodes, and its verdict by a
rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from jobframes import START, frame, summary
from tachograph.catalog.config import RuleOptions
from tachograph.catalog.tables import JOB_GPUS, JOB_NODE_MINUTES, JOB_SUMMARIES
from tachograph.judge.finding import Finding
from tachograph.judge.finding import read_findings as read
from tachograph.judge.rules.metrics import OFFERED, MeasuredRanks
from tachograph.judge.rules.model import RuleLevel
from tachograph.judge.rules.ruleset import RuleSet, read_rules
from tachograph.judge.rules.verdicts import judge_rules

Row = dict[str, Any]
SHIPPED = read_rules(RuleOptions())


@dataclass(frozen=True)
class Job:
    """A job: its summary, one row per GPU (node n1 unless the row names another), host values by
    node.
    """

    given: Row = field(default_factory=dict)
    gpus: Sequence[Row] = ()
    hosts: Mapping[str, Row] = field(default_factory=dict)
    key: str = "c:100:1"

    @property
    def summary(self) -> pl.DataFrame:
        """Its row of job_summaries; activity and the like are means over its GPUs unless given."""
        names = {name for row in self.gpus for name in row if name.endswith(("_mean", "_max"))}
        of_gpus = {name: _over(self.gpus, name) for name in names}
        given = {"gpus": len(self.gpus) or 1, **of_gpus, **self.given}
        row = summary(**{name: value for name, value in given.items() if value is not None}) | given
        return frame(JOB_SUMMARIES, [row | {"job_key": self.key, "job_id": self.key.split(":")[1]}])

    @property
    def devices(self) -> pl.DataFrame:
        """Its rows of job_gpus."""
        key = {"job_key": self.key, "job_id": self.key.split(":")[1], "seq": 1, "node": "n1"}
        return frame(JOB_GPUS, [key | {"gpu": place} | row for place, row in enumerate(self.gpus)])

    @property
    def nodes(self) -> pl.DataFrame:
        """Two minutes of each node in `hosts`, both alike."""
        key = {"job_key": self.key, "job_id": self.key.split(":")[1], "seq": 1, "t": START}
        return frame(
            JOB_NODE_MINUTES,
            [
                key | {"node": node, "minute": minute} | row
                for node, row in self.hosts.items()
                for minute in (0, 1)
            ],
        )


def _over(rows: Sequence[Row], name: str) -> float | None:
    known: list[float] = [row[name] for row in rows if row.get(name) is not None]
    if not known:
        return None
    return max(known) if name.endswith("_max") else sum(known) / len(known)


def found(job: Job, code: str, ruleset: RuleSet = SHIPPED) -> Finding:
    """The verdict of one rule on a job."""
    rows = judge_rules(job.summary, job.devices, job.nodes, ruleset.only([code]))
    (one,) = read(rows.with_columns(seq=pl.lit(1)))
    return one


@dataclass(frozen=True)
class MeasuredJob:
    """What was measured of one job: null is unknown."""

    measured: MeasuredRanks
    place: int = 0

    def labels(self, level: RuleLevel) -> list[str]:
        """The names of its GPUs or nodes."""
        return list(self.measured.labels(level))[self.ranks(level)]

    def ranks(self, level: RuleLevel) -> slice:
        """Where its GPUs or nodes are among those of all jobs."""
        counts = self.measured.rank_counts(level)
        first = int(counts[: self.place].sum())
        return slice(first, first + int(counts[self.place]))

    def of_ranks(self, name: str) -> list[Any]:
        """A metric by GPU or node."""
        return self.values(name)[self.ranks(OFFERED[name].level)]

    def of_job(self, name: str) -> Any:
        """A metric of the job."""
        return self.values(name)[self.place]

    def values(self, name: str) -> list[Any]:
        """A metric of all jobs, GPUs or nodes."""
        metric = OFFERED[name]
        known, values = self.measured.values(name, metric.level, is_text=metric.text)
        pairs = zip(known.tolist(), values.tolist(), strict=True)
        return [value if is_known else None for is_known, value in pairs]


def together(jobs: Sequence[Job]) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Tables of several jobs."""
    return (
        pl.concat([job.summary for job in jobs]),
        pl.concat([job.devices for job in jobs]),
        pl.concat([job.nodes for job in jobs]),
    )
