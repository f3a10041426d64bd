"""The findings of many jobs by check: in how many it holds, and how people labelled it."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tachograph.catalog.codes import VERDICTS, known_codes
from tachograph.judge.checks import CHECKS


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


_TITLES = {check.code: (check.title, check.severity) for check in CHECKS}
_NO_TITLE = ("", "")  # of a rule of the language, whose title is in its file


def check_counts(counts: pl.DataFrame, labels: pl.DataFrame) -> list[CheckCount]:
    """Return a row per check, those reported most first.

    counts: (code, verdict, jobs, reported); labels: rows of the table of labels.
    """
    verdicts = {(code, verdict): jobs for code, verdict, jobs, _ in counts.iter_rows()}
    reported = dict(counts.group_by("code").agg(pl.col("reported").sum()).iter_rows())
    labelled = {
        code: (confirmed, rejected)
        for code, confirmed, rejected in labels.group_by("code")
        .agg(confirmed=pl.col("holds").sum(), rejected=(~pl.col("holds")).sum())
        .iter_rows()
    }
    order = {code: place for place, code in enumerate(known_codes())}
    rows = []
    for code in reported:
        title, severity = _TITLES.get(code, _NO_TITLE)
        yes, no, unknown = (verdicts.get((code, verdict), 0) for verdict in VERDICTS)
        confirmed, rejected = labelled.get(code, (0, 0))
        rows.append(
            CheckCount(code, title, severity, reported[code], yes, no, unknown, confirmed, rejected)
        )
    return sorted(
        rows, key=lambda row: (-row.reported, -row.yes, order.get(row.code, len(order)), row.code)
    )
