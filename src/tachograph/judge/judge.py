"""The judge: every check of `judge.checks.CHECKS`, the rules in use, scores, workload, health and waste, over jobs.

Tables in, tables out: no table is read or written here, and no file but those of rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from tachograph.catalog.codes import known_codes
from tachograph.catalog.config import Configuration, Thresholds
from tachograph.judge import scores, waste
from tachograph.judge.activity import UNIT
from tachograph.judge.check import Check, CheckedJob
from tachograph.judge.checks import CHECKS
from tachograph.judge.families import settled, unmeasured
from tachograph.judge.finding import FINDING_SCHEMA, Finding, findings_frame
from tachograph.judge.job_classes import judge_classes
from tachograph.judge.rules.ruleset import RuleSet, read_rules
from tachograph.judge.rules.verdicts import judge_rules
from tachograph.judge.workload.jobs import judge_workload

# codes that no rule of a site may have: a job has one finding of each code
RESERVED = frozenset(known_codes()) - {check.code for check in CHECKS if check.deciders}
_LISTS = ("intensity_histogram", "pipes")  # of a summary; no check reads them, and they are long
_OF_SUMMARIES = tuple(check for check in CHECKS if check.decide is not None)


@dataclass(frozen=True, slots=True)
class JudgedTables:
    """Summaries and GPUs with their judged columns, and findings; each without `seq`."""

    jobs: pl.DataFrame
    gpus: pl.DataFrame
    findings: pl.DataFrame


def rules_in_use(configuration: Configuration) -> RuleSet:
    """Return the rules that jobs are judged by, those of the site's folder as they are now.

    Errors: ConfigError.
    """
    return read_rules(configuration.rules, reserved=RESERVED)


def judge_jobs(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    timelines: pl.DataFrame,
    node_minutes: pl.DataFrame,
    *,
    configuration: Configuration,
    ruleset: RuleSet,
) -> JudgedTables:
    """Return what is to be written of some jobs: one finding per (job_key, code).

    `jobs`: rows of job_summaries. `gpus`: their rows of job_gpus. `timelines`: one row per (job_key, minute), in order,
    as `pipeline.timelines.together` returns. `node_minutes`: HOST_CHARACTERISTICS, one row per (job_key, node, minute),
    in order; none where host counters are not recorded. `ruleset`: `rules_in_use`.
    """
    thresholds = configuration.thresholds
    scored = scores.judge_scores(jobs, gpus, configuration.scores)
    classified = judge_workload(scored.jobs, scored.gpus)
    jobs, gpus = classified.jobs, classified.gpus
    decided = [
        judge_summaries(jobs, gpus, timelines, thresholds),
        judge_rules(jobs, gpus, node_minutes, ruleset),
        judge_classes(jobs, gpus, timelines, node_minutes, configuration.classes),
        scored.findings,
        classified.findings,
    ]
    findings = settled(
        pl.concat(decided),
        (*CHECKS, *(entry.check for entry in ruleset.entries)),
        unmeasured(jobs, timelines),
        idle_minutes=thresholds.idle_minutes,
    )
    jobs = waste.judge_waste(
        jobs,
        gpus,
        timelines,
        findings,
        idle_util=thresholds.idle_util,
        idle_minutes=configuration.waste.idle_minutes,
    )
    return JudgedTables(jobs, gpus, findings)


def judge_summaries(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    timelines: pl.DataFrame,
    thresholds: Thresholds,
    *,
    checks: Sequence[Check] = _OF_SUMMARIES,
) -> pl.DataFrame:
    """Return the findings of the checks that see one job at a time, in the schema of FINDINGS without `seq`.

    One row per (job_key, code). `timelines`: minutes with the GPUs put together, one row per (job_key, minute), as
    `timelines_of` returns. What does not hold is denied where the counters it needs were measured, else unknown.
    """
    holding = findings_frame(_holding(jobs, gpus, timelines, thresholds, checks))
    keys = holding.select("job_key", "code")
    return pl.concat([holding, *(_denied(check, jobs, keys) for check in checks)])


def _holding(
    jobs: pl.DataFrame, gpus: pl.DataFrame, timelines: pl.DataFrame, thresholds: Thresholds, checks: Sequence[Check]
) -> Iterator[tuple[Mapping[str, Any], list[Finding]]]:
    gpus_of, timeline_of = _Slices(gpus.sort("job_key", *UNIT, maintain_order=True)), _Slices(timelines)
    for row in jobs.drop(_LISTS, strict=False).iter_rows(named=True):
        job = CheckedJob(row, gpus_of[row["job_key"]], timeline_of[row["job_key"]], thresholds)
        yield row, [finding for check in checks if (finding := _finding(check, job)) is not None]


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
        check.advice,
        found.evidence,
        begin=found.begin,
        end=found.end,
    )


def _denied(check: Check, jobs: pl.DataFrame, holding: pl.DataFrame) -> pl.DataFrame:
    """Rows of a check for the jobs for which it does not hold."""
    rest = jobs.join(holding.filter(pl.col("code") == check.code), on="job_key", how="anti", maintain_order="left")
    lacking = [(name.split("|")[0], _not_measured(name, rest.columns)) for name in check.needs]
    needs = [pl.when(missing).then(pl.lit(name)) for name, missing in lacking]
    listed = pl.concat_list(needs).list.drop_nulls() if needs else pl.lit([], dtype=pl.List(pl.String()))
    ambiguous = (pl.col("attribution") == "ambiguous").fill_null(value=False) & check.of_samples
    without = (pl.col("samples").fill_null(0) == 0) & check.of_samples
    unknown = (
        ambiguous | without | (pl.any_horizontal(missing for _, missing in lacking) if lacking else pl.lit(value=False))
    )
    text = (
        pl.when(ambiguous).then(pl.lit("Unknown: which GPUs were its own is not recorded."))
        .when(without).then(pl.lit("Unknown: there is no sample of its GPUs."))
        .when(unknown).then(pl.concat_str(pl.lit("Not measured: "), listed.list.join(", "), pl.lit(".")))
        .otherwise(pl.lit("Not triggered."))
    )  # fmt: skip
    empty = {"advice": None, "begin": None, "end": None, "covered_by": None}
    return rest.select(
        "job_key", "job_id", code=pl.lit(check.code), kind=pl.lit("check"),
        verdict=pl.when(unknown).then(pl.lit("unknown")).otherwise(pl.lit("no")),
        severity=pl.lit(check.severity), title=pl.lit(check.title), sentence=text, evidence=pl.lit("{}"),
        checks=pl.lit("[]"), needs=listed, **{name: pl.lit(value) for name, value in empty.items()},
    ).select(pl.col(name).cast(dtype) for name, dtype in FINDING_SCHEMA.items())  # fmt: skip


def _not_measured(needed: str, columns: Sequence[str]) -> pl.Expr:
    """Whether a job has none of the alternatives `a|b`, in the columns that keep means, events or largest values."""
    ends = ("_mean", "_max", "_events", "")
    names = [name + end for name in needed.split("|") for end in ends if name + end in columns]
    return pl.all_horizontal(pl.col(names).is_null()) if names else pl.lit(value=True)


class _Slices:
    """Rows of each job; those of one job lie together. Cutting them out copies nothing."""

    def __init__(self, frame: pl.DataFrame) -> None:
        keys = frame.get_column("job_key").rle().struct.unnest()
        lengths = keys.get_column("len").cast(pl.Int64)
        begins = lengths.cum_sum() - lengths
        self.frame = frame
        self.places = dict(zip(keys.get_column("value"), zip(begins, lengths, strict=True), strict=True))

    def __getitem__(self, job_key: str) -> pl.DataFrame:
        begin, length = self.places.get(job_key, (0, 0))
        return self.frame.slice(begin, length)
