"""The judge: all checks, rules, scores, workload, health and waste over jobs. Tables in and out.

Tables in, tables out: no table is read or written here, and no file but those of rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

import numpy as np
import polars as pl

from tachograph.catalog.arrays import Flags, Longs
from tachograph.catalog.codes import known_codes
from tachograph.catalog.config import Configuration, Thresholds
from tachograph.judge import scores, waste
from tachograph.judge.activity import UNIT
from tachograph.judge.check import Check, CheckedJob, Found, JobRows, flags_of
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
from tachograph.judge.finding import Finding, JudgedRows, findings_frame, verdicts_frame
from tachograph.judge.job_classes import class_verdicts, judge_classes
from tachograph.judge.limiter import limiters, with_limiter, without_idle, without_uncertain
from tachograph.judge.partitions import with_nodes
from tachograph.judge.rules.ruleset import RuleSet, read_rules
from tachograph.judge.rules.verdicts import judge_rules, rule_verdicts
from tachograph.judge.workload.jobs import judge_workload
from tachograph.pipeline.summaries import JobTables
from tachograph.sources.slurm.partitions import SlurmPartition

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


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
    gaps = unmeasured(ended.jobs, timelines, ended.gpus)
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
            summary_verdicts(
                replace(whole, tables=replace(tables, jobs=self._with_nodes(jobs), gpus=gpus)),
                options.thresholds,
                questions,
                checks=self.checks,
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
) -> pl.DataFrame:
    """Return the findings of per-job checks: FINDINGS without `seq`.

    One row per (job_key, code). `timelines`: minutes with the GPUs put together, one row per
    (job_key, minute), as `timelines_of` returns. What does not hold is denied where the counters it
    needs were measured, else unknown.
    """
    called = _called(jobs, gpus, thresholds, checks)
    identified = cast("list[JobSummaryRow]", jobs.select("job_key", "job_id").to_dicts())
    holds = {check: np.zeros(jobs.height, bool) for check in checks}
    found = []
    for place, check, result in _found(jobs, gpus, JobRows(timelines), thresholds, called):
        holds[check][place] = True
        found.append((identified[place], [_finding(check, result)]))
    return pl.concat([findings_frame(found), _denied(jobs, holds)])


def summary_verdicts(
    whole: Completed,
    thresholds: Thresholds,
    questions: Questions,
    *,
    checks: Sequence[Check] = _OF_SUMMARIES,
) -> pl.DataFrame:
    """Return (job_key, code, verdict) of per-job checks on completed jobs: those in question."""
    jobs, gpus = whole.tables.jobs, whole.tables.gpus
    checks = [check for check in checks if check.decide and check.code in questions]
    rows = JobRows(whole.tables.timelines, whole.same_minutes)
    keys = jobs.get_column("job_key").to_list()
    called = _called(jobs, gpus, thresholds, checks)
    for check, flags in called.items():
        flags &= np.array([key in questions[check.code] for key in keys], bool)
    holding = {
        (check.code, keys[place])
        for place, check, _ in _found(jobs, gpus, rows, thresholds, called)
    }
    verdicts = []
    for check, reasons in _reasons(jobs, checks).items():
        asked = questions[check.code]
        for key, reason in zip(keys, reasons.tolist(), strict=True):
            if key in asked:
                otherwise = "no" if reason == _NOT_TRIGGERED else "unknown"
                verdict = "yes" if (check.code, key) in holding else otherwise
                verdicts.append((key, check.code, verdict))
    return verdicts_frame(verdicts)


def _called(
    jobs: pl.DataFrame, gpus: pl.DataFrame, thresholds: Thresholds, checks: Sequence[Check]
) -> dict[Check, Flags]:
    """Return the jobs for which each check's `decide` is called, by its conditions."""
    keys = jobs.get_column("job_key")
    of_samples = ~_ambiguous(jobs)
    # what was measured on the nodes of an ambiguous job may be of others
    called = {
        check: of_samples.copy() if check.of_samples else np.ones(len(keys), bool)
        for check in checks
    }
    conditions = {check: check.condition for check in checks if check.condition is not None}
    holding = flags_of(jobs, tuple(conditions.values()), thresholds)
    for check, flags in zip(conditions, holding, strict=True):
        called[check] &= flags.to_numpy()
    conditions = {check: check.gpu_condition for check in checks if check.gpu_condition is not None}
    of_gpus = gpus.get_column("job_key")
    holding = flags_of(gpus, tuple(conditions.values()), thresholds)
    for check, flags in zip(conditions, holding, strict=True):
        called[check] &= keys.is_in(of_gpus.filter(flags).unique().implode()).to_numpy()
    return called


def _found(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    of_minutes: JobRows,
    thresholds: Thresholds,
    called: Mapping[Check, Flags],
) -> Iterator[tuple[int, Check, Found]]:
    """Yield (place of the job, check, what it found), job by job."""
    of_gpus = JobRows(gpus.sort("job_key", *UNIT, maintain_order=True))
    checks_of: dict[int, list[Check]] = {}
    for check, flags in called.items():
        for place in np.flatnonzero(flags).tolist():
            checks_of.setdefault(place, []).append(check)
    places = sorted(checks_of)
    frame = jobs.drop(_LISTS, strict=False)[places]
    rows = cast("Iterator[JobSummaryRow]", frame.iter_rows(named=True))
    for place, row in zip(places, rows, strict=True):
        job_key = row["job_key"]
        job = CheckedJob(row, of_gpus.of(job_key), of_minutes.of(job_key), thresholds)
        for check in checks_of[place]:
            found = check.decide(job) if check.decide else None
            if found is not None:
                yield place, check, found


def _finding(check: Check, found: Found) -> Finding:
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


# why a check does not hold, in numbers; above: a bit for each of `needs` that was not measured
_AMBIGUOUS, _UNSAMPLED, _NOT_TRIGGERED = -2, -1, 0
_SENTENCES = {
    _AMBIGUOUS: "Unknown: which GPUs were its own is not recorded.",
    _UNSAMPLED: "Unknown: there is no sample of its GPUs.",
    _NOT_TRIGGERED: "Not triggered.",
}


def _reasons(jobs: pl.DataFrame, checks: Iterable[Check]) -> dict[Check, Longs]:
    """Return why each check does not hold, of each job."""
    names = {name for check in checks for name in check.needs}
    lacking = jobs.select("job_key", **{name: _not_measured(name, jobs.columns) for name in names})
    unsampled = jobs.get_column("samples").fill_null(0) == 0
    found = {}
    for check in checks:
        reasons = np.zeros(jobs.height, np.int64)
        for bit, name in enumerate(check.needs):
            reasons |= lacking.get_column(name).to_numpy().astype(np.int64) << bit
        if check.of_samples:
            reasons[unsampled.to_numpy()] = _UNSAMPLED
            reasons[_ambiguous(jobs)] = _AMBIGUOUS
        found[check] = reasons
    return found


def _denied(jobs: pl.DataFrame, holds: Mapping[Check, Flags]) -> pl.DataFrame:
    """Return rows of untriggered checks: `no`, or `unknown` with missing counters."""
    reasons_of = _reasons(jobs, holds)
    # many jobs have the same row but for their keys
    distinct: list[tuple[Check, int]] = []
    places, rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for check, of_jobs in holds.items():
        of_check = np.flatnonzero(~of_jobs)
        reasons, inverse = np.unique(reasons_of[check][of_check], return_inverse=True)
        places.append(of_check)
        rows.append(len(distinct) + inverse)
        distinct += [(check, reason) for reason in reasons.tolist()]
    findings = [_not_holding(check, reason) for check, reason in distinct]
    frame = findings_frame([({"job_key": "", "job_id": ""}, findings)])
    keys = jobs.select("job_key", "job_id")[np.concatenate(places)]
    return frame[np.concatenate(rows)].with_columns(keys)


def _not_holding(check: Check, reason: int) -> Finding:
    lacking = [
        name.split("|")[0]
        for bit, name in enumerate(check.needs)
        if reason > 0 and reason >> bit & 1
    ]
    return Finding(
        check.code,
        check.severity,
        check.title,
        _SENTENCES.get(reason) or _not_known(lacking),
        verdict="no" if reason == _NOT_TRIGGERED else "unknown",
        needs=tuple(lacking),
    )


def _not_known(names: Sequence[str]) -> str:
    """Return what was not measured; options of the configuration are not set."""
    options = [name for name in names if "." in name]
    counters = [name for name in names if name not in options]
    parts = [f"Not measured: {', '.join(counters)}."] if counters else []
    return " ".join([*parts, *([f"Not configured: {', '.join(options)}."] if options else [])])


def _ambiguous(jobs: pl.DataFrame) -> Flags:
    return (jobs.get_column("attribution") == "ambiguous").fill_null(value=False).to_numpy()


def _not_measured(needed: str, columns: Sequence[str]) -> pl.Expr:
    """Whether a job lacks all alternatives `a|b` among means, events and maxima."""
    ends = ("_mean", "_max", "_events", "")
    names = [name + end for name in needed.split("|") for end in ends if name + end in columns]
    return pl.all_horizontal(pl.col(names).is_null()) if names else pl.lit(value=True)
