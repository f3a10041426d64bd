"""Findings by check, the jobs of a check, and labels: confirmed or rejected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from tachograph.annexes.serve.check_pages import check_counts
from tachograph.annexes.serve.labels import LabelForm, record_label
from tachograph.annexes.serve.snapshot import View
from tachograph.api.parameters import JobChoiceParameters, Limit, Word
from tachograph.judge.judge import rules_in_use
from tachograph.lake.labels import read_labels

_SORT = "-gpu_hours"
_COLUMNS = (
    "display_id",
    "name",
    "user",
    "partition",
    "state",
    "start",
    "gpus",
    "gpu_hours",
    "gpu_util_mean",
)


class FindingsParameters(JobChoiceParameters, frozen=True, kw_only=True):
    """Which jobs; with one `finding` its jobs are listed, those with most GPU-hours first."""

    limit: Limit = 25
    after: Word = ""


PARAMETERS = FindingsParameters
FORM = LabelForm


def content(view: View, parameters: FindingsParameters) -> Mapping[str, Any]:
    """Return counts by check, or jobs of a check with sentences and labels."""
    which = parameters.job_filter(now=view.now, zone_name=view.zone_name)
    labels = read_labels(view.opened.lake)
    every = replace(which, findings=(), verdict="yes")
    shown: dict[str, Any] = {
        "checks": check_counts(
            view.jobs.verdict_counts(every), labels, rules_in_use(view.configuration).entries
        ),
        "page": None,
    }
    if len(which.findings) == 1:
        (code,) = which.findings
        page = view.jobs.page(
            which,
            columns=_COLUMNS,
            sort=_SORT,
            limit=parameters.limit,
            after=parameters.after,
            zone_name=view.zone_name,
        )
        rows = view.opened.findings(page.table.frame, verdict=None).filter(code=code)
        shown |= {
            "page": page,
            "table": page.table,
            "code": code,
            "found": rows.rows_by_key("job_key", named=True, unique=True),
            "labelled": labels.filter(code=code).rows_by_key("job_key", named=True, unique=True),
        }
    return {**shown, "parameters": parameters, "zone_name": view.zone_name}


def submit(view: View, form: LabelForm) -> str:
    """Record a label; return the query of the next page. Errors: those of `record_label`."""
    record_label(view, form)
    return "?" + urlencode({"finding": form.finding})
