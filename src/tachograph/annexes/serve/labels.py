"""Labels of findings: a person confirms or rejects one, on a page or by the REST API."""

from __future__ import annotations

from typing import Annotated, Literal

from tachograph.annexes.serve.snapshot import View
from tachograph.api.parameters import Parameters, Word, says
from tachograph.catalog.errors import NotFoundError
from tachograph.lake.labels import write_label

_HOLDS = {"confirmed": True, "rejected": False, "withdrawn": None}


class LabelForm(Parameters, frozen=True, kw_only=True):
    """A person's verdict on a finding of a job."""

    job_key: Annotated[Word, says("The job.")]
    finding: Annotated[Word, says("Code of the finding.")]
    label: Annotated[Literal["confirmed", "rejected", "withdrawn"], says("Whether it is right.")]
    comment: Annotated[Word, says("Why.")] | None = None


def record_label(view: View, form: LabelForm) -> None:
    """Record a label of a visible job. Errors: NotFoundError for an unknown job or finding."""
    job = view.opened.run_of(form.job_key)
    if view.opened.findings(job, verdict=None).filter(code=form.finding).is_empty():
        what = f"no finding {form.finding!r} of job {form.job_key!r}"
        raise NotFoundError(what, do="label what the page lists")
    key, job_id = job.select("job_key", "job_id").row(0)
    write_label(
        view.opened.lake,
        key,
        job_id,
        form.finding,
        holds=_HOLDS[form.label],
        by=view.viewer.name,
        at=view.clock,
        comment=form.comment,
    )
