"""The report on co-location as a page shows it: sentences, and the table of pairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tachograph.annexes.share.colocation import ColocateReport
from tachograph.annexes.share.proposals import SharingProposal
from tachograph.annexes.share.sharing_text import (
    ProposalColumn,
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
    """Return the values of `sharing.html.j2`: sentences are (text, is a heading)."""
    shown = report.proposals[:top]
    columns = proposal_columns(shown)
    jobs, result = headlines(report, by_form=True)
    more = len(report.proposals) - len(shown)
    profiled: list[tuple[str, bool]] = []
    for group in report.profiled:
        profiled += sentences(profile_lines(group, _WHOLE))
    explained = [explained_lines(report, proposal, _WHOLE) for proposal in report.chosen]
    return {
        "report": report,
        "headline": result,
        "about": jobs,
        "missing": missing_sentence(report) if report.missing else "",
        "columns": columns,
        "rows": [_cells(columns, proposal) for proposal in shown],
        "pairs": [(proposal.one.label, proposal.other.label) for proposal in shown],
        "reasons": sentences(reason_lines(shown, _WHOLE)),
        "more": f"{len(shown):,} of {plural(len(report.proposals), 'pair')}" if more else "",
        "notes": sentences(note_lines(report, _WHOLE)) if shown else [],
        "profiled": profiled,
        "left_out": sentences(left_out_lines(report, _WHOLE)),
        "explained": [sentences(lines) for lines in explained],
    }


def _cells(columns: Sequence[ProposalColumn], proposal: SharingProposal) -> list[str]:
    return [column.cell(proposal) for column in columns]


def sentences(lines: Iterable[Line]) -> list[tuple[str, bool]]:
    """Return lines as (text, whether it is a heading), without empty ones.

    >>> sentences([(("Evidence", "bold"),), (("  one", ""),), (("", ""),)])
    [('Evidence', True), ('one', False)]
    """
    texts = []
    for line in lines:
        sentence = "".join(part for part, _ in line).strip()
        if sentence:
            texts.append((sentence, line[0][1] == "bold"))
    return texts
