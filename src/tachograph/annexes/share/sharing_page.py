"""The report on co-location as a page shows it: sentences, and the table of pairs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tachograph.annexes.share.colocation import ColocateReport
from tachograph.annexes.share.sharing_text import (
    explained_lines,
    headlines,
    left_out_lines,
    missing_sentence,
    note_lines,
    profile_lines,
    proposal_columns,
    reason_lines,
)
from tachograph.catalog.units import plural
from tachograph.report.lines import Line

_WHOLE = 1_000_000  # characters: a sentence is one line


def sharing_values(report: ColocateReport, *, top: int) -> dict[str, Any]:
    """Return what `sharing.html.j2` shows: sentences are (text, whether it is a heading)."""
    shown = report.proposals[:top]
    columns = proposal_columns(shown)
    jobs, result = headlines(report, by_form=True)
    more = len(report.proposals) - len(shown)
    return {
        "report": report,
        "headline": result,
        "about": jobs,
        "missing": missing_sentence(report) if report.missing else "",
        "columns": columns,
        "rows": [[column.cell(proposal) for column in columns] for proposal in shown],
        "pairs": [(proposal.one.label, proposal.other.label) for proposal in shown],
        "reasons": sentences(reason_lines(shown, _WHOLE)),
        "more": f"{len(shown):,} of {plural(len(report.proposals), 'pair')}" if more else "",
        "notes": sentences(note_lines(report, _WHOLE)) if shown else [],
        "profiled": [
            one for kind in report.profiled for one in sentences(profile_lines(kind, _WHOLE))
        ],
        "left_out": sentences(left_out_lines(report, _WHOLE)),
        "explained": [
            sentences(explained_lines(report, proposal, _WHOLE)) for proposal in report.chosen
        ],
    }


def sentences(lines: Iterable[Line]) -> list[tuple[str, bool]]:
    """Return lines as (text, whether it is a heading), without empty ones.

    >>> sentences([(("Evidence", "bold"),), (("  one", ""),), (("", ""),)])
    [('Evidence', True), ('one', False)]
    """
    found = [
        ("".join(part for part, _ in line).strip(), line[0][1] == "bold") for line in lines if line
    ]
    return [(sentence, heading) for sentence, heading in found if sentence]
