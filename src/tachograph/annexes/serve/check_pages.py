"""The findings of many jobs by check: in how many it holds, and how people labelled it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from tachograph.catalog.codes import VERDICTS, known_codes
from tachograph.judge.checks import CHECKS
from tachograph.judge.job_classes import JOB_CLASSES
from tachograph.judge.rules.ruleset import RuleEntry
from tachograph.judge.scores import SCORE_TITLES
from tachograph.judge.workload.jobs import WORKLOAD_TITLES


@dataclass(frozen=True, slots=True)
class CheckCount:
    """A check over some jobs: counts of yes, reported, no, unknown, and people's labels."""

    code: str
    title: str
    severity: str
    reported: int
    yes: int
    no: int
    unknown: int
    confirmed: int
    rejected: int


_TITLES = {
    **{check.code: (check.title, check.severity) for check in CHECKS},
    **{
        f"{job_class.code}_host": (f"{job_class.title}, by host counters", job_class.severity)
        for job_class in JOB_CLASSES
    },
    **{code: (title, "fact") for code, title in (*SCORE_TITLES.items(), *WORKLOAD_TITLES.items())},
}
CHECK_TITLES = {code: _TITLES[code][0] for code in known_codes()}
_NO_TITLE = ("", "")  # of a rule that is not in use any more


def check_counts(
    counts: pl.DataFrame, labels: pl.DataFrame, rules: Iterable[RuleEntry]
) -> list[CheckCount]:
    """Return a row per check, those reported most first.

    counts: (code, verdict, jobs, reported); labels: rows of the table of labels; rules: those in
    use.
    """
    # A rule may decide a check: then the title is that of the check.
    titles = {entry.code: (entry.rule.name, entry.severity) for entry in rules} | _TITLES
    verdicts = {(code, verdict): jobs for code, verdict, jobs, _ in counts.iter_rows()}
    reported = dict(counts.group_by("code").agg(pl.col("reported").sum()).iter_rows())
    labelled = {
        code: (confirmed, rejected)
        for code, confirmed, rejected in labels.group_by("code")
        .agg(confirmed=pl.col("holds").sum(), rejected=(~pl.col("holds")).sum())
        .iter_rows()
    }
    order = {code: index for index, code in enumerate(known_codes())}
    rows = []
    for code in reported:
        title, severity = titles.get(code, _NO_TITLE)
        yes, no, unknown = (verdicts.get((code, verdict), 0) for verdict in VERDICTS)
        confirmed, rejected = labelled.get(code, (0, 0))
        rows.append(
            CheckCount(code, title, severity, reported[code], yes, no, unknown, confirmed, rejected)
        )
    return sorted(
        rows, key=lambda row: (-row.reported, -row.yes, order.get(row.code, len(order)), row.code)
    )
