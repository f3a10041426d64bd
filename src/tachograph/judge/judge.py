"""The judge: every check of `judge.checks.CHECKS`, the rules in use, scores, workload, health and waste, over jobs.

Tables in, tables out: no table is read or written here, and no file but those of rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tachograph.catalog.arrays import Flags
from tachograph.catalog.codes import known_codes
from tachograph.catalog.config import Configuration, Thresholds
from tachograph.judge import scores, waste
from tachograph.judge.activity import UNIT
from tachograph.judge.check import Check, CheckedJob, JobRows, SummaryColumns
from tachograph.judge.checks import CHECKS
from tachograph.judge.families import settled, unmeasured
from tachograph.judge.finding import FINDING_SCHEMA, Finding, findings_frame
from tachograph.judge.job_classes import judge_classes
from tachograph.judge.limiter import with_limiter, without_idle
from tachograph.judge.rules.ruleset import RuleSet, read_rules
from tachograph.judge.rules.verdicts import judge_rules
from tachograph.judge.workload.jobs import judge_workload

# codes that no rule of a site may have: a job has one finding of each code
RESERVED = frozenset(known_codes()).union(check.code for check in CHECKS) - {
    check.code for check in CHECKS if check.deciders
}
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
    jobs, gpus = with_limiter(classified.jobs, configuration.bound), classified.gpus
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
        without_idle(jobs, findings),
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
    return pl.concat([holding, _denied(checks, jobs, holding)])


def _holding(
    jobs: pl.DataFrame, gpus: pl.DataFrame, timelines: pl.DataFrame, thresholds: Thresholds, checks: Sequence[Check]
) -> Iterator[tuple[Mapping[str, Any], list[Finding]]]:
    of_gpus, of_minutes = JobRows(gpus.sort("job_key", *UNIT, maintain_order=True)), JobRows(timelines)
    for row in SummaryColumns(jobs.drop(_LISTS, strict=False)).rows():
        job_key = row["job_key"]
        job = CheckedJob(row, of_gpus.of(job_key), of_minutes.of(job_key), thresholds)
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
        found.advice or check.advice,
        found.evidence,
        begin=found.begin,
        end=found.end,
        confidence="low" if check.job_class is not None else None,
    )


def _denied(checks: Sequence[Check], jobs: pl.DataFrame, holding: pl.DataFrame) -> pl.DataFrame:
    """Rows of each check for the jobs for which it does not hold."""
    ambiguous, without, missing = _unknown(checks, jobs)
    places = dict(zip(jobs.get_column("job_key"), range(jobs.height), strict=True))
    held: dict[str, list[int]] = {}
    for job_key, code in holding.select("job_key", "code").iter_rows():
        held.setdefault(code, []).append(places[job_key])
    rows, of_check, of_text, of_needs = [], [], [], []
    texts = ["Not triggered.", "Unknown: which GPUs were its own is not recorded.", _NO_SAMPLE]
    needs: list[list[str]] = [[]]
    for at, check in enumerate(checks):
        text, lacking = np.zeros(jobs.height, np.int32), np.zeros(jobs.height, np.int32)
        for place, needed in enumerate(check.needs):
            lacking |= missing[needed].astype(np.int32) << place
        # what is lacking has a place for each combination of the counters that a check needs
        names = [needed.split("|")[0] for needed in check.needs]
        listed = [[name for place, name in enumerate(names) if bits >> place & 1] for bits in range(1 << len(names))]
        text[lacking > 0] = len(texts) + lacking[lacking > 0]
        texts += [f"Not measured: {', '.join(some)}." for some in listed]
        if check.of_samples:
            text[without] = 2
            text[ambiguous] = 1
            lacking[without | ambiguous] = 0  # whether it was recorded is another question
        rest = np.ones(jobs.height, np.bool_)
        rest[held.get(check.code, [])] = False
        row = np.flatnonzero(rest)
        rows.append(row)
        of_check.append(np.full(len(row), at))
        of_text.append(text[row])
        of_needs.append(len(needs) + lacking[row])
        needs += listed
    if not rows:
        return pl.DataFrame(schema=FINDING_SCHEMA)
    row, one, sentence = np.concatenate(rows), pl.Series(np.concatenate(of_check)), np.concatenate(of_text)
    fixed: dict[str, str | None] = {"kind": "check", "evidence": "{}", "checks": "[]"}
    fixed |= dict.fromkeys(("confidence", "advice", "begin", "end", "covered_by"))
    return pl.DataFrame(
        {
            **{name: jobs.get_column(name).gather(row) for name in ("job_key", "job_id")},
            **{
                name: pl.Series([getattr(check, name) for check in checks], dtype=pl.String()).gather(one)
                for name in ("code", "severity", "title")
            },
            "sentence": pl.Series(texts).gather(sentence),
            "verdict": pl.Series(["no", "unknown"]).gather((sentence > 0).astype(np.int32)),
            "needs": pl.Series(needs, dtype=pl.List(pl.String())).gather(np.concatenate(of_needs)),
        }
    ).with_columns(
        pl.lit(value, dtype=FINDING_SCHEMA[name]).alias(name) for name, value in fixed.items()
    ).select(pl.col(name).cast(dtype) for name, dtype in FINDING_SCHEMA.items())  # fmt: skip


_NO_SAMPLE = "Unknown: there is no sample of its GPUs."


def _unknown(checks: Sequence[Check], jobs: pl.DataFrame) -> tuple[Flags, Flags, Mapping[str, Flags]]:
    """Jobs whose GPUs are not known, those without samples, and for each of the `needs` those that lack it."""
    needed = {name: _not_measured(name, jobs.columns) for check in checks for name in check.needs}
    found = jobs.select(
        (pl.col("attribution") == "ambiguous").fill_null(value=False).alias("ambiguous"),
        (pl.col("samples").fill_null(0) == 0).alias("without"),
        *(missing.alias(f"lacks {name}") for name, missing in needed.items()),
    )
    ambiguous, without, *lacks = (column.to_numpy() for column in found.iter_columns())
    return ambiguous, without, dict(zip(needed, lacks, strict=True))


def _not_measured(needed: str, columns: Sequence[str]) -> pl.Expr:
    """Whether a job has none of the alternatives `a|b`, in the columns that keep means, events or largest values."""
    ends = ("_mean", "_max", "_events", "")
    names = [name + end for name in needed.split("|") for end in ends if name + end in columns]
    return pl.all_horizontal(pl.col(names).is_null()) if names else pl.lit(value=True)
