"""Findings by check, the jobs of one, and what people say of them: confirmed or rejected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal
from urllib.parse import urlencode

import msgspec

from tachograph.catalog.errors import NotFoundError
from tachograph.lake.labels import read_labels, write_label
from tachograph.report.checks import check_counts
from tachograph.web.parameters import JobChoiceParameters, Limit, Parameters, Word
from tachograph.web.snapshot import View

_SORT = "-gpu_hours"
_COLUMNS = ("display_id", "name", "user", "partition", "state", "start", "gpus", "gpu_hours", "gpu_util_mean")


class FindingsParameters(JobChoiceParameters, frozen=True, kw_only=True):
    """Which jobs; with one `finding` its jobs are listed, those with most GPU-hours first."""

    limit: Limit = 25
    after: Word = ""


class LabelForm(Parameters, frozen=True, kw_only=True):
    """What a person says of a finding of one job."""

    job_key: Annotated[Word, msgspec.Meta(description="The job.")]
    finding: Annotated[Word, msgspec.Meta(description="Code of the finding.")]
    label: Annotated[Literal["confirmed", "rejected", "withdrawn"], msgspec.Meta(description="Whether it is right.")]
    comment: Annotated[Word, msgspec.Meta(description="Why.")] | None = None


PARAMETERS = FindingsParameters
FORM = LabelForm
_HOLDS = {"confirmed": True, "rejected": False, "withdrawn": None}


def content(view: View, parameters: FindingsParameters) -> Mapping[str, Any]:
    """Return counts by check; of one check its jobs with the sentences, and their labels."""
    wanted = parameters.job_filter(now=view.now, zone_name=view.zone_name)
    labels = read_labels(view.opened.lake)
    every = replace(wanted, findings=(), verdict="yes")
    shown: dict[str, Any] = {"checks": check_counts(view.jobs.verdict_counts(every), labels), "page": None}
    if len(wanted.findings) == 1:
        (code,) = wanted.findings
        page = view.jobs.page(
            wanted,
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
    """Record the label of a visible job. Errors: NotFoundError for a job or a finding that is not there."""
    job = view.opened.run_of(form.job_key)
    if view.opened.findings(job, verdict=None).filter(code=form.finding).is_empty():
        raise NotFoundError(f"no finding {form.finding!r} of job {form.job_key!r}", do="label what the page lists")
    key, job_id = job.select("job_key", "job_id").row(0)
    write_label(
        view.opened.lake,
        key,
        job_id,
        form.finding,
        holds=_HOLDS[form.label],
        by=view.viewer.name,
        at=view.now,
        comment=form.comment,
    )
    return "?" + urlencode({"finding": form.finding})
