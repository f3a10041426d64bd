"""Which jobs could share a GPU: proposals, and the question about one pair."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from tachograph.annexes.share.colocation import ColocateReport
from tachograph.annexes.share.proposals import SharingProposal
from tachograph.annexes.share.sharing_setup import cautions, probation, setup_steps
from tachograph.annexes.share.sharing_text import (
    about_lines,
    headlines,
    left_out_lines,
    missing_sentence,
    mode_columns,
    note_lines,
    profile_lines,
    proposal_columns,
    tables,
    why,
)
from tachograph.api.pages import PageView, Pending, Progress
from tachograph.api.parameters import JobChoiceParameters, Word
from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.units import plural
from tachograph.report.lines import Line


class SharingParameters(JobChoiceParameters, frozen=True, kw_only=True):
    """Job filter; `runs`: least runs per group; `one`, `other`: pair to explain; `top`: pairs."""

    runs: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 2
    one: Word = ""
    other: Word = ""
    top: Annotated[int, msgspec.Meta(ge=1, le=500)] = 20


PARAMETERS = SharingParameters


def content(view: PageView, parameters: SharingParameters) -> Mapping[str, Any]:
    """Return the report, or how far it is; a pair that cannot be compared is a sentence."""
    parameters = view.of_recent(parameters)
    problem, report = "", _report(view, msgspec.structs.replace(parameters, top=1))
    if bool(parameters.one) != bool(parameters.other):
        problem = "Name both job groups of the pair."
    explained: list[Any] = []
    if parameters.one and parameters.other and isinstance(report, ColocateReport):
        try:
            pair = _report(view, parameters, pair=(parameters.one, parameters.other))
        except (NotFoundError, UsageError) as refused:
            problem = f"{refused.what}; {refused.do}" if refused.do else refused.what
        else:
            explained = (
                [] if isinstance(pair, Pending) else sharing_values(pair, top=1)["explained"]
            )
            report = pair if isinstance(pair, Pending) else report
    values: dict[str, Any] = {
        "parameters": parameters,
        "problem": problem,
        "pending": None,
        "explained": explained,
    }
    if isinstance(report, Pending):
        return {**values, "pending": report}
    return {
        **values,
        **sharing_values(report, top=parameters.top),
        "explained": explained,
        # These name files, and groups of others.
        "refused": report.refused_profiles if view.viewer.sees_server else (),
    }


def _report(
    view: PageView, parameters: SharingParameters, pair: tuple[str, str] | None = None
) -> ColocateReport | Pending:
    return view.made(_estimated, msgspec.structs.replace(parameters, one="", other="", top=1), pair)


def _estimated(
    view: PageView, _: Progress, parameters: SharingParameters, pair: tuple[str, str] | None
) -> ColocateReport:
    report: ColocateReport = view.opened.sharing(
        least_runs=parameters.runs, pair=pair, **parameters.chosen()
    )
    return report


_WHOLE = 1_000_000  # characters: a sentence is one line


def sharing_values(report: ColocateReport, *, top: int) -> dict[str, Any]:
    """Return the values of `sharing.html.j2`: sentences are (text, is a heading)."""
    jobs, result = headlines(report, by_form=True)
    tables_of_pairs = []
    for title, pairs in tables(report):
        shown = pairs[:top]
        more = len(pairs) > len(shown)
        tables_of_pairs.append(
            {
                "title": title,
                "columns": proposal_columns(shown),
                "pairs": [(pair.one.label, pair.other.label) for pair in shown],
                "more": f"{len(shown):,} of {plural(len(pairs), 'pair')}" if more else "",
            }
        )
    profiled: list[tuple[str, bool]] = []
    for group in report.profiled:
        profiled += sentences(profile_lines(group, _WHOLE))
    return {
        "report": report,
        "headline": result,
        "about": jobs,
        "missing": missing_sentence(report) if report.missing else "",
        "tables": tables_of_pairs,
        "notes": sentences(note_lines(report, _WHOLE)) if tables_of_pairs else [],
        "profiled": profiled,
        "left_out": sentences(left_out_lines(report, _WHOLE)),
        "explained": [_explained(report, proposal) for proposal in report.chosen],
    }


def _explained(report: ColocateReport, proposal: SharingProposal) -> dict[str, Any]:
    """Return a pair in parts: sentences, modes as a table, steps to type, and sentences again."""
    return {
        "about": sentences(about_lines(report, proposal, _WHOLE)),
        "modes": mode_columns(proposal),
        "why": list(why(report, proposal)),
        "steps": setup_steps(proposal, report.settings),
        "lists": [
            ("Probation", probation(proposal, report.settings)),
            ("Cautions", cautions(proposal)),
        ],
    }


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
