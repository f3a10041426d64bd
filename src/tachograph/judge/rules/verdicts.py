"""Verdicts of rules over jobs, and back-tests of changed rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import cast

import msgspec
import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.finding import (
    FINDING_SCHEMA,
    CheckedValue,
    Relation,
    apart,
    relation_holds,
)
from tachograph.judge.rules.expression import Node, walk
from tachograph.judge.rules.metrics import OFFERED, JobRanks, MeasuredRanks, measure
from tachograph.judge.rules.model import RuleOutcome, Value
from tachograph.judge.rules.program import evaluate
from tachograph.judge.rules.ruleset import RuleEntry, RuleSet, counters_of

SHOWN_RANKS = 8
_NO_SAMPLE = "Unknown: there is no sample of the job."
_encoder = msgspec.json.Encoder()
_FLIPPED: Mapping[str, Relation] = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_OTHERWISE = {"<": "not below", "<=": "above", ">": "not above", ">=": "below"}


def judge_rules(
    jobs: pl.DataFrame, gpus: pl.DataFrame, node_minutes: pl.DataFrame, ruleset: RuleSet
) -> pl.DataFrame:
    """Return each rule's verdict on each job: FINDINGS without `seq`, by (job_key, rule).

    `jobs`: rows of job_summaries; `gpus`, `node_minutes`: their rows of job_gpus and
    job_node_minutes.
    """
    measured = measure(jobs, gpus, node_minutes, ruleset.metrics)
    unseen = _unseen(jobs, node_minutes)
    parts = (_of_rule(entry, jobs, measured, unseen) for entry in ruleset.entries)
    return pl.concat([pl.DataFrame(schema=FINDING_SCHEMA), *parts])


def rule_verdicts(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    node_minutes: pl.DataFrame,
    ruleset: RuleSet,
    questions: Mapping[str, Set[str]],
) -> pl.DataFrame:
    """Return (job_key, code, verdict) of rules on jobs with samples: `questions` by code of check.

    A rule is evaluated once for jobs that are alike in all that it reads.
    """
    entries = [entry for entry in ruleset.entries if entry.check.code in questions]
    names = {name for entry in entries for name in entry.program.needs}
    measured = measure(jobs, gpus, node_minutes, names)
    rows: list[tuple[str, str, str]] = []
    for entry in entries:
        asked = questions[entry.check.code]
        outcomes: dict[tuple[object, ...], str] = {}
        for place, job_key in enumerate(jobs["job_key"]):
            if job_key not in asked:
                continue
            job = measured.job(place)
            values = job.all_of(entry.program.needs)
            verdict = outcomes.get(values)
            if verdict is None:
                verdict = evaluate(entry.program, job, entry.values).verdict
                outcomes[values] = verdict
            rows.append((job_key, entry.code, verdict))
    return pl.DataFrame(
        rows, schema=dict.fromkeys(("job_key", "code", "verdict"), pl.String()), orient="row"
    )


def _unseen(jobs: pl.DataFrame, node_minutes: pl.DataFrame) -> frozenset[str]:
    """Keys of the jobs without a single sample, of GPUs or hosts."""
    seen = node_minutes.select("job_key").unique()
    return frozenset(
        jobs.filter(pl.col("samples") == 0).join(seen, on="job_key", how="anti")["job_key"]
    )


def _of_rule(
    entry: RuleEntry, jobs: pl.DataFrame, measured: MeasuredRanks, unseen: Set[str]
) -> pl.DataFrame:
    """Result of one rule per job; without samples, rules about them are never denied."""
    comparisons = comparisons_of(entry)
    check = entry.check
    of_gpus = not any(OFFERED[name].level == "node" for name in entry.program.needs)
    judged = ("verdict", "severity", "sentence", "advice", "evidence", "checks", "needs")
    columns: dict[str, list[object]] = {name: [] for name in judged}
    hours = jobs["gpu_hours"].to_list()
    needs: dict[tuple[str, ...], str | None] = {(): None}
    for place, job_key in enumerate(jobs["job_key"]):
        job = measured.job(place)
        outcome = evaluate(entry.program, job, entry.values)
        checks = tuple([comparison.check(outcome, job, entry.values) for comparison in comparisons])
        columns["severity"].append(check.severity)
        if check.of_samples and outcome.verdict == "no" and job_key in unseen:
            columns["verdict"].append("unknown")
            columns["sentence"].append(_NO_SAMPLE)
        else:
            columns["verdict"].append(outcome.verdict)
            columns["sentence"].append(rule_sentence(entry, outcome, checks))
        if outcome.verdict == "yes":
            columns["advice"].append(check.advice)
            columns["evidence"].append(_evidence(outcome, hours[place], of_gpus=of_gpus))
        else:
            columns["advice"].append(None)
            columns["evidence"].append("{}")
        columns["checks"].append(_encoder.encode(checks).decode())
        if outcome.unknown not in needs:
            needs[outcome.unknown] = ",".join(counters_of(outcome.unknown))
        columns["needs"].append(needs[outcome.unknown])
    fixed: dict[str, str | None] = {"code": entry.code, "kind": "check", "title": entry.rule.name}
    fixed |= dict.fromkeys(("confidence", "begin", "end", "covered_by"))
    same = [pl.lit(value, dtype=FINDING_SCHEMA[name]).alias(name) for name, value in fixed.items()]
    listed = pl.col("needs").str.split(",").fill_null([])  # faster than a list of lists
    found = pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.String())).with_columns(listed)
    whole = found.with_columns(jobs["job_key"], jobs["job_id"], *same)
    return whole.select(*FINDING_SCHEMA)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison in a rule: term or metric, and threshold (number or parameter).

    Of a value of each rank the one that goes furthest is compared. part: of a tuple; "" for a
    single value.
    """

    name: str
    part: str
    relation: Relation
    threshold: str | float
    unit: str
    metric: str | None  # where `name` is a metric of the job, and not a term
    label: str  # what people call it

    def check(
        self, outcome: RuleOutcome, job: JobRanks, parameters: Mapping[str, float]
    ) -> CheckedValue:
        """Return the value of one job against the threshold."""
        value = job.of_job(self.metric) if self.metric else outcome.values.get(self.name)
        if type(value) is not float:
            value = self.value(value)
        threshold = (
            self.threshold if isinstance(self.threshold, float) else parameters[self.threshold]
        )
        holds = None if value is None else relation_holds(value, self.relation, threshold)
        return CheckedValue(self.label, value, self.relation, threshold, self.unit, holds)

    def value(self, value: Value) -> float | None:
        """Return the compared number; None: missing, or unknown for some rank."""
        if not isinstance(value, list):
            return _number(value)
        known: list[float] = []
        for of_rank in value:
            number = _number(getattr(of_rank, self.part, None) if self.part else of_rank)
            if number is None:
                return None
            known.append(number)
        if not known:
            return None
        return max(known) if self.relation in (">", ">=") else min(known)


def comparisons_of(entry: RuleEntry) -> tuple[Comparison, ...]:
    """Return the comparisons of a rule that have a value and a threshold, each once."""
    comparisons: dict[Comparison, None] = {}
    for term in entry.program.terms.values():
        for node, _ in walk(term):
            relation = node.marks[0] if node.marks else ""
            if relation not in _FLIPPED:
                continue
            left, right = node.parts
            for value, way, threshold in (
                (left, cast("Relation", relation), right),
                (right, _FLIPPED[relation], left),
            ):
                comparison = _comparison(value, way, threshold, entry)
                if comparison is not None:
                    comparisons[comparison] = None
    return tuple(comparisons)


def _comparison(
    value: Node, relation: Relation, threshold: Node, entry: RuleEntry
) -> Comparison | None:
    """Return a comparison with a number or parameter; None where the nodes are anything else."""
    part = value.word if value.kind == "part" else ""
    named = value.parts[0] if part else value
    if threshold.kind not in ("constant", "parameter"):
        return None
    if named.kind == "term":
        name, metric, unit = named.word, None, ""
    elif named.kind == "metric" and named.level == "job":
        aliases = {metric: name for name, metric in entry.rule.metrics.items()}
        metric = named.word
        name, unit = aliases.get(metric, metric), OFFERED[metric].unit
    else:
        return None
    written = f"{name}.{part}" if part else name
    label = entry.rule.labels.get(written, written)
    limit: str | float = threshold.word
    if threshold.kind == "constant":
        limit = cast("float", threshold.value)
    else:
        unit = entry.declared[threshold.word].unit or unit
    return Comparison(name, part, relation, limit, unit, metric, label)


def _number(value: Value) -> float | None:
    """The value, where it is one number; None where it is not, or unknown."""
    if type(value) is float:
        return value
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def rule_sentence(entry: RuleEntry, outcome: RuleOutcome, checks: Iterable[CheckedValue]) -> str:
    """Return the sentence on a job: the rule's text if it holds, else the reason."""
    if outcome.alert:
        message = outcome.text or f"{entry.rule.name}."
        return (
            message
            if entry.rule.level == "job" or not outcome.ranks
            else f"{_ranks(outcome.ranks)}: {message}"
        )
    if outcome.alert is None:
        missing = [f"{', '.join(outcome.unknown)} not known"] if outcome.unknown else []
        return f"Unknown: {'; '.join([*missing, *outcome.reasons])}."
    missed = [check for check in checks if check.holds is False]
    return f"Not triggered: {', '.join(map(_missed, missed))}." if missed else "Not triggered."


def _ranks(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_RANKS
    return ", ".join(names[:SHOWN_RANKS]) + (f" and {more} more" if more > 0 else "")


def _missed(check: CheckedValue) -> str:
    assert check.value is not None  # else it is not known whether it holds
    value = apart(check.value, check.threshold, check.unit)
    threshold = text(check.threshold, check.unit)
    return f"{check.name} {value} is {_OTHERWISE[check.relation]} {threshold}"


def _evidence(outcome: RuleOutcome, gpu_hours: float | None, *, of_gpus: bool) -> str:
    known = {
        "gpu_hours": gpu_hours,
        "gpus_affected": len(outcome.ranks) or None if of_gpus else None,
    }
    return _encoder.encode(
        {name: value for name, value in known.items() if value is not None}
    ).decode()


_OF_VERDICT = ("verdict", "sentence")


def compare(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    node_minutes: pl.DataFrame,
    before: RuleSet,
    after: RuleSet,
) -> pl.DataFrame:
    """Return the rules' results before and after a change, by (job_key, code) in both.

    Columns: job_key, code, gpu_hours (null: unknown), before, after (verdicts), sentence_before,
    sentence_after.
    """
    old, new = (judge_rules(jobs, gpus, node_minutes, ruleset) for ruleset in (before, after))
    keys = ["job_key", "code"]
    both = old.select(*keys, *(pl.col(name).alias(f"{name}_before") for name in _OF_VERDICT)).join(
        new.select(*keys, *(pl.col(name).alias(f"{name}_after") for name in _OF_VERDICT)),
        on=keys,
        maintain_order="left",
    )
    hours = jobs.select("job_key", "gpu_hours")
    return both.join(hours, on="job_key", how="left", maintain_order="left").select(
        *keys, "gpu_hours", before="verdict_before", after="verdict_after",
        sentence_before="sentence_before", sentence_after="sentence_after",
    )  # fmt: skip


def changes(compared: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of jobs whose verdict changes, those with most GPU-hours first."""
    return compared.filter(pl.col("before") != pl.col("after")).sort(
        "code", "gpu_hours", "job_key", descending=[False, True, False], nulls_last=True
    )


def counts(compared: pl.DataFrame) -> pl.DataFrame:
    """Return (code, before, after, jobs, gpu_hours) by pair of verdicts."""
    grouped = compared.group_by("code", "before", "after", maintain_order=True)
    return grouped.agg(jobs=pl.len(), gpu_hours=pl.col("gpu_hours").sum()).sort(
        "code", "before", "after"
    )
