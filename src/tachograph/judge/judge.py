"""The judge: all checks, rules, scores, workload, health and waste over jobs. Tables in and out.

Tables in, tables out: no table is read or written here, and no file but those of rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

import polars as pl

from tachograph.catalog.codes import known_codes
from tachograph.catalog.config import Configuration, Thresholds
from tachograph.judge import scores, waste
from tachograph.judge.activity import UNIT
from tachograph.judge.check import Check, CheckedJob, JobRows
from tachograph.judge.checks import CHECKS
from tachograph.judge.completions import (
    Completed,
    Questions,
    carried,
    refuted,
    unmeasured,
    until_last_sample,
)
from tachograph.judge.families import settled, verdicts
from tachograph.judge.finding import FINDING_SCHEMA, Finding, JudgedRows, findings_frame
from tachograph.judge.job_classes import class_verdicts, judge_classes
from tachograph.judge.limiter import limiters, with_limiter, without_idle, without_uncertain
from tachograph.judge.partitions import with_nodes
from tachograph.judge.rules.ruleset import RuleSet, read_rules
from tachograph.judge.rules.verdicts import judge_rules, rule_verdicts
from tachograph.judge.workload.jobs import judge_workload
from tachograph.pipeline.summaries import JobTables
from tachograph.sources.slurm.partitions import SlurmPartition

# codes that no rule of a site may have: a job has one finding of each code
RESERVED = frozenset(known_codes()).union(check.code for check in CHECKS) - {
    check.code for check in CHECKS if check.deciders
}
_LISTS = ("intensity_histogram", "pipes")  # of a summary; no check reads them, and they are long
_OF_SUMMARIES = tuple(check for check in CHECKS if check.decide is not None)
_OF_IMBALANCE = [check.code for check in CHECKS if "imbalance" in check.causes]


def rules_in_use(configuration: Configuration) -> RuleSet:
    """Return the rules that jobs are judged by, those of the site's folder as they are now.

    Errors: ConfigError.
    """
    return read_rules(configuration.rules, reserved=RESERVED)


def judge_jobs(
    tables: JobTables,
    configuration: Configuration,
    ruleset: RuleSet,
    partitions: Mapping[str, SlurmPartition] = MappingProxyType({}),
) -> JobTables:
    """Return tables with judged columns, and with one finding per (job_key, code).

    `ruleset`: `rules_in_use`. `partitions`: as Slurm records them.
    """
    judge = _Judge(configuration, ruleset, partitions)
    idle_util = configuration.thresholds.idle_util
    timelines = carried(tables.jobs, tables.timelines)
    whole = replace(tables, timelines=timelines)
    judged = judge.judged(whole)
    ended = until_last_sample(whole)
    gaps = unmeasured(ended.jobs, timelines)
    own = pl.concat([verdicts(judged.findings, judge.checks), limiters(judged.jobs)])
    uncertain = refuted(ended, gaps, own, judge.judged_again, idle_util=idle_util)
    findings = settled(judged.findings, uncertain, judge.checks, gaps)
    jobs = waste.judge_waste(
        without_idle(without_uncertain(judged.jobs, uncertain), findings),
        judged.gpus,
        timelines,
        findings,
        uneven=_OF_IMBALANCE,
        idle_util=idle_util,
        idle_minutes=configuration.waste.idle_minutes,
    )
    return replace(
        tables, jobs=jobs, gpus=judged.gpus, findings=waste.with_hours(findings, jobs, CHECKS)
    )


class _Judge:
    """All that decides, with its settings: for jobs as they were measured, and completed ones."""

    def __init__(
        self,
        configuration: Configuration,
        ruleset: RuleSet,
        partitions: Mapping[str, SlurmPartition],
    ) -> None:
        self.configuration, self.ruleset = configuration, ruleset
        self.partitions = partitions
        self.checks = (*CHECKS, *(entry.check for entry in ruleset.entries))

    def judged(self, tables: JobTables) -> JudgedRows:
        """Return judged rows, with one finding per job and decider."""
        options = self.configuration
        scored = scores.judge_scores(tables.jobs, tables.gpus)
        classified = judge_workload(scored.jobs, scored.gpus)
        jobs, gpus = with_limiter(classified.jobs), classified.gpus
        decided = [
            judge_summaries(self._with_nodes(jobs), gpus, tables.timelines, options.thresholds),
            judge_rules(jobs, gpus, tables.node_minutes, self.ruleset),
            judge_classes(jobs, gpus, tables.timelines, tables.node_minutes, options.classes),
            scored.findings,
            classified.findings,
        ]
        return JudgedRows(jobs, gpus, pl.concat(decided))

    def judged_again(self, whole: Completed, questions: Questions) -> pl.DataFrame:
        """Return the verdicts on completed jobs, at least those in question, and limiters."""
        tables, options = whole.tables, self.configuration
        scored = scores.judge_scores(tables.jobs, tables.gpus)
        jobs, gpus = with_limiter(scored.jobs), scored.gpus
        decided = [
            judge_summaries(
                self._with_nodes(jobs),
                gpus,
                tables.timelines,
                options.thresholds,
                checks=[check for check in self.checks if check.decide and check.code in questions],
                questions=questions,
                same_minutes=whole.same_minutes,
            ),
            scored.findings,
            rule_verdicts(jobs, gpus, tables.node_minutes, self.ruleset, questions),
            class_verdicts(whole, options.classes, questions),
        ]
        if "health" in questions:
            decided.append(judge_workload(jobs, gpus).findings)
        slim = [frame.select("job_key", "code", "verdict") for frame in decided]
        return pl.concat([verdicts(pl.concat(slim), self.checks), limiters(jobs)])

    def _with_nodes(self, jobs: pl.DataFrame) -> pl.DataFrame:
        return with_nodes(jobs, self.partitions, cluster=self.configuration.site.cluster)


def judge_summaries(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    timelines: pl.DataFrame,
    thresholds: Thresholds,
    *,
    checks: Sequence[Check] = _OF_SUMMARIES,
    questions: Questions | None = None,
    same_minutes: Mapping[str, str] = MappingProxyType({}),
) -> pl.DataFrame:
    """Return the findings of per-job checks: FINDINGS without `seq`.

    One row per (job_key, code). `timelines`: minutes with the GPUs put together, one row per
    (job_key, minute), as `timelines_of` returns. What does not hold is denied where the counters it
    needs were measured, else unknown. `questions`: the verdicts that are needed; None: all.
    `same_minutes`: of `Completed`.
    """
    rows = JobRows(timelines, same_minutes)
    holding = findings_frame(_holding(jobs, gpus, rows, thresholds, checks, questions))
    return pl.concat([holding, _denied(checks, jobs, holding)])


def _holding(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    of_minutes: JobRows,
    thresholds: Thresholds,
    checks: Sequence[Check],
    questions: Questions | None,
) -> Iterator[tuple[Mapping[str, Any], list[Finding]]]:
    of_gpus = JobRows(gpus.sort("job_key", *UNIT, maintain_order=True))
    for row in jobs.drop(_LISTS, strict=False).iter_rows(named=True):
        job_key = row["job_key"]
        job = CheckedJob(row, of_gpus.of(job_key), of_minutes.of(job_key), thresholds)
        needed = checks
        if questions is not None:
            needed = [check for check in checks if job_key in questions.get(check.code, ())]
        yield row, [finding for check in needed if (finding := _finding(check, job)) is not None]


def _finding(check: Check, job: CheckedJob) -> Finding | None:
    if check.decide is None or (check.of_samples and job.summary["attribution"] == "ambiguous"):
        return None  # what was measured on the nodes of an ambiguous job may be of others
    found = check.decide(job)
    if found is None:
        return None
    return Finding(
        check.code,
        check.severity,
        check.title,
        found.sentence,
        found.advice or check.advice,
        found.evidence,
        begin=found.begin,
        end=found.end,
        confidence=found.confidence or ("low" if check.job_class is not None else None),
    )


def _denied(checks: Sequence[Check], jobs: pl.DataFrame, holding: pl.DataFrame) -> pl.DataFrame:
    """Return rows of untriggered checks: `no`, or `unknown` with missing counters."""
    needed = {name for check in checks for name in check.needs}
    facts = jobs.select(
        "job_key",
        "job_id",
        ambiguous=(pl.col("attribution") == "ambiguous").fill_null(value=False),
        unsampled=pl.col("samples").fill_null(0) == 0,
        **{name: _not_measured(name, jobs.columns) for name in needed},
    )
    if not checks:
        return pl.DataFrame(schema=FINDING_SCHEMA)
    # One query for all checks: a query of each takes more time than all others of the judgement.
    every = pl.concat([facts.lazy().select(_not_holding(check)) for check in checks])
    denied = every.join(holding.lazy(), on=["job_key", "code"], how="anti", maintain_order="left")
    return denied.collect()


@cache
def _not_holding(check: Check) -> Sequence[pl.Expr]:
    """Return the columns of an untriggered check's findings."""
    names = [pl.when(name).then(pl.lit(name.split("|")[0])) for name in check.needs]
    is_lacking = pl.any_horizontal(pl.lit(value=False), *check.needs)
    lacking = pl.concat_list(pl.lit([], dtype=pl.List(pl.String)), *names).list.drop_nulls()
    ambiguous, unsampled = (pl.col(name) & check.of_samples for name in ("ambiguous", "unsampled"))
    columns: dict[str, pl.Expr] = {
        "needs": pl.when(ambiguous | unsampled)
        .then(pl.lit([], dtype=pl.List(pl.String)))
        .otherwise(lacking),
        "verdict": pl.when(ambiguous | unsampled | is_lacking)
        .then(pl.lit("unknown"))
        .otherwise(pl.lit("no")),
        "sentence": pl.when(ambiguous)
        .then(pl.lit("Unknown: which GPUs were its own is not recorded."))
        .when(unsampled)
        .then(pl.lit("Unknown: there is no sample of its GPUs."))
        .when(is_lacking)
        .then(
            pl.format(
                "Not measured: {}.",
                pl.concat_str(pl.lit(None, pl.String()), *names, separator=", ", ignore_nulls=True),
            )
        )
        .otherwise(pl.lit("Not triggered.")),
    }
    texts = {"code": check.code, "severity": check.severity, "title": check.title}
    texts |= {"kind": "check", "evidence": "{}", "checks": "[]"}
    columns |= {name: pl.lit(text) for name, text in texts.items()}
    columns |= {name: pl.col(name) for name in ("job_key", "job_id")}
    return [
        columns.get(name, pl.lit(None)).cast(dtype).alias(name)
        for name, dtype in FINDING_SCHEMA.items()
    ]


def _not_measured(needed: str, columns: Sequence[str]) -> pl.Expr:
    """Whether a job lacks all alternatives `a|b` among means, events and maxima."""
    ends = ("_mean", "_max", "_events", "")
    names = [name + end for name in needed.split("|") for end in ends if name + end in columns]
    return pl.all_horizontal(pl.col(names).is_null()) if names else pl.lit(value=True)
