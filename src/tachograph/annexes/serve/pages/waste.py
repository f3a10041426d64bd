"""The ledger of GPU time: causes, groups, jobs of a cause."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from tachograph.annexes.serve.snapshot import View
from tachograph.api.pages import Pending, Progress
from tachograph.api.parameters import JobChoiceParameters, Word
from tachograph.catalog.tables import WASTE
from tachograph.judge.ledger import ALL_CAUSES, WASTE_GROUPINGS, WasteReport
from tachograph.report.waste import cause_label
from tachograph.report.waste_page import waste_values

MOST = 200  # groups and jobs of a page


class WasteParameters(JobChoiceParameters, frozen=True, kw_only=True):
    """Job filter; `by`: grouping; `jobs`: the cause whose jobs are listed; `top`: rows of each."""

    by: Word = "cause"
    jobs: Word | None = None
    top: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = 20


PARAMETERS = WasteParameters


def content(view: View, parameters: WasteParameters) -> Mapping[str, Any]:
    """Return the ledger. Errors: UsageError for an unknown grouping or cause."""
    ledger = view.summed(parameters.chosen(), _ledger, parameters)
    if isinstance(ledger, Pending):
        values: Mapping[str, Any] = {"pending": ledger}
    else:
        values = {"pending": None, **waste_values(ledger)}
    return {
        "label": cause_label,
        **values,
        "parameters": parameters,
        "groupings": WASTE_GROUPINGS,
        "listed": (ALL_CAUSES, *WASTE),
    }


def _ledger(view: View, _: Progress, parameters: WasteParameters) -> WasteReport:
    which = parameters.chosen()
    return view.opened.waste(
        parameters.by,
        jobs_of=parameters.jobs,
        top=parameters.top,
        capacity=view.viewer.sees_all,  # it is of the jobs of all
        **which,
    ).report
