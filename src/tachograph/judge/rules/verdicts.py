"""Verdicts of rules over jobs, and back-tests of changed rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import polars as pl

from tachograph.judge.finding import (
    RELATIONS,
    CheckedValue,
    Relation,
    apart,
    findings_of_columns,
    threshold_text,
    verdicts_frame,
)
from tachograph.judge.rules.expression import Node, walk
from tachograph.judge.rules.metrics import OFFERED, MeasuredRanks, measure
from tachograph.judge.rules.model import VERDICTS, RuleOutcome
from tachograph.judge.rules.program import RuleEvaluation
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
    columns: dict[str, list[Any]] = defaultdict(list)
    for entry in ruleset.entries:
        for name, values in _of_rule(entry, jobs, measured, unseen).items():
            columns[name] += values
    return findings_of_columns(columns)


def rule_verdicts(
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    node_minutes: pl.DataFrame,
    ruleset: RuleSet,
    questions: Mapping[str, Set[str]],
) -> pl.DataFrame:
    """Return (job_key, code, verdict) of rules on jobs with samples; `questions`: by check."""
    entries = [entry for entry in ruleset.entries if entry.check.code in questions]
    names = {name for entry in entries for name in entry.program.needs}
    measured = measure(jobs, gpus, node_minutes, names)
    keys = jobs.get_column("job_key").to_list()
    rows: list[tuple[str, str, str]] = []
    for entry in entries:
        alerts = RuleEvaluation(entry.program, measured, entry.values).alerts
        asked = questions[entry.check.code]
        rows += [
            (key, entry.code, VERDICTS[alert])
            for key, alert in zip(keys, alerts, strict=True)
            if key in asked
        ]
    return verdicts_frame(rows)


def _unseen(jobs: pl.DataFrame, node_minutes: pl.DataFrame) -> frozenset[str]:
    """Keys of the jobs without a single sample, of GPUs or hosts."""
    seen = node_minutes.select("job_key").unique()
    return frozenset(
        jobs.filter(pl.col("samples") == 0).join(seen, on="job_key", how="anti")["job_key"]
    )


def _of_rule(
    entry: RuleEntry, jobs: pl.DataFrame, measured: MeasuredRanks, unseen: Set[str]
) -> Mapping[str, list[Any]]:
    """Columns with the result of one rule per job; without samples, those of them are not denied."""
    check, evaluation = entry.check, RuleEvaluation(entry.program, measured, entry.values)
    of_gpus = not any(OFFERED[name].level == "node" for name in entry.program.needs)
    keys, hours = (jobs[name].to_list() for name in ("job_key", "gpu_hours"))
    verdicts = [VERDICTS[alert] for alert in evaluation.alerts]
    compared = [comparison.checks(evaluation, entry.values) for comparison in comparisons_of(entry)]
    checks_of_jobs = list(zip(*compared, strict=True)) if compared else [()] * len(keys)
    sentences: list[str] = []
    advice: list[str | None] = [None] * len(keys)
    needs: list[str | None] = [None] * len(keys)
    evidence = ["{}"] * len(keys)
    for index, (alert, checks) in enumerate(zip(evaluation.alerts, checks_of_jobs, strict=True)):
        if alert:
            outcome = evaluation.outcome(index)
            sentences.append(_triggered(entry, outcome))
            advice[index] = check.advice
            evidence[index] = _evidence(outcome, hours[index], of_gpus=of_gpus)
        elif alert is None:
            outcome = evaluation.undetermined(index)
            sentences.append(_undetermined(outcome))
            needs[index] = ",".join(counters_of(outcome.unknown)) or None
        elif check.of_samples and keys[index] in unseen:
            verdicts[index] = "unknown"
            sentences.append(_NO_SAMPLE)
        else:
            sentences.append(_not_triggered(checks))
    encoded = [_encoder.encode(checks).decode() for checks in checks_of_jobs]
    same = {"code": entry.code, "kind": "check", "title": entry.rule.name}
    same["severity"] = check.severity
    return {
        **{name: [value] * len(keys) for name, value in same.items()},
        "job_key": keys,
        "job_id": jobs["job_id"].to_list(),
        "verdict": verdicts,
        "sentence": sentences,
        "advice": advice,
        "evidence": evidence,
        "checks": encoded,
        "needs": needs,
    }


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

    def checks(
        self, evaluation: RuleEvaluation, parameters: Mapping[str, float]
    ) -> list[CheckedValue]:
        """Return the value of each job against the threshold."""
        threshold = (
            self.threshold if isinstance(self.threshold, float) else parameters[self.threshold]
        )
        label, relation, unit = self.label, self.relation, self.unit
        holds = RELATIONS[relation]
        return [
            CheckedValue(
                label,
                value,
                relation,
                threshold,
                unit,
                None if value is None else holds(value, threshold),
            )
            for value in self.values(evaluation)
        ]

    def values(self, evaluation: RuleEvaluation) -> list[float | None]:
        """Return the compared number of each job; None: missing, or unknown for some rank."""
        if self.metric:
            known, numbers = evaluation.columns.jobs.values(self.metric, "job", is_text=False)
            return [
                value if is_known else None
                for is_known, value in zip(known.tolist(), numbers.tolist(), strict=True)
            ]
        column = evaluation.columns.terms[self.name]
        if self.part:
            column = column.part(self.part)
        return column.extremes(highest=self.relation in (">", ">="))


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


def _triggered(entry: RuleEntry, outcome: RuleOutcome) -> str:
    message = outcome.text or f"{entry.rule.name}."
    if entry.rule.level == "job" or not outcome.ranks:
        return message
    return f"{_ranks(outcome.ranks)}: {message}"


def _undetermined(outcome: RuleOutcome) -> str:
    missing = [f"{', '.join(outcome.unknown)} not known"] if outcome.unknown else []
    return f"Unknown: {'; '.join([*missing, *outcome.reasons])}."


def _not_triggered(checks: Iterable[CheckedValue]) -> str:
    missed = [check for check in checks if check.holds is False]
    return f"Not triggered: {', '.join(map(_missed, missed))}." if missed else "Not triggered."


def _ranks(names: Sequence[str]) -> str:
    more = len(names) - SHOWN_RANKS
    return ", ".join(names[:SHOWN_RANKS]) + (f" and {more} more" if more > 0 else "")


def _missed(check: CheckedValue) -> str:
    assert check.value is not None  # else it is not known whether it holds
    value = apart(check.value, check.threshold, check.unit)
    threshold = threshold_text(check.threshold, check.unit)
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
