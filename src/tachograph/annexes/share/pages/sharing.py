"""Which jobs could share a GPU: proposals, and the question about one pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from tachograph.annexes.share.colocation import ColocateReport
from tachograph.annexes.share.sharing_page import sharing_values
from tachograph.api.pages import PageView, Pending, Progress
from tachograph.api.parameters import JobChoiceParameters, Word
from tachograph.catalog.errors import NotFoundError, UsageError


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
