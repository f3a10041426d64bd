"""`POST /labels`: confirm or reject a finding of a job, or withdraw what was said of it."""

from __future__ import annotations

from typing import Any

from tachograph.web.answers import ObjectAnswer
from tachograph.web.pages.findings import LabelForm, submit
from tachograph.web.shapes import TEXT, ObjectShape, described, or_null
from tachograph.web.snapshot import View

PARAMETERS = LabelForm


def _properties() -> dict[str, Any]:
    return {
        "job_key": described("The job, as given.", TEXT),
        "finding": described("Code of the finding.", TEXT),
        "label": described("What was recorded.", TEXT),
        "comment": described("Why. Null: nothing given.", or_null(TEXT)),
        "by": described("Who labelled it.", TEXT),
    }


RETURNS = ObjectShape(_properties, choices=False)


def answer(view: View, parameters: LabelForm) -> ObjectAnswer:
    """Record the label and return it. Errors: NotFoundError for a job or a finding that is not there."""
    submit(view, parameters)
    given = {name: getattr(parameters, name) for name in ("job_key", "finding", "label", "comment")}
    return ObjectAnswer(given | {"by": view.viewer.name})
