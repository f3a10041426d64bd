"""`GET /users/{name}`: what one user used."""

from __future__ import annotations

from typing import Any

from tachograph.judge.usage import UsageReport
from tachograph.report.json_values import json_values
from tachograph.report.waste import waste_json
from tachograph.web.answers import ObjectAnswer
from tachograph.web.pages.user import UsageParameters
from tachograph.web.rest.waste import waste_schemas
from tachograph.web.shapes import NUMBER, TEXT, ObjectShape, described, field_schemas, object_of
from tachograph.web.snapshot import View

PARAMETERS = UsageParameters
_MEANING = {
    "jobs": "How many.",
    "gpu_hours": "Of all with known GPUs, those that still run included. Unit: h.",
    "weeks": "A row per week in which jobs ended, oldest first: what was lost, and recovered against the weeks before.",
    "findings": "A row per reported finding, those with most lost GPU-hours first.",
    "worst": "The jobs that lost most GPU-hours.",
    "running": "The jobs that still run, latest first.",
}


def usage_schemas() -> dict[str, Any]:
    """Return the schema of each key of the usage of a user or an account."""
    fields = field_schemas(UsageReport, without=("waste", "zone_name"))
    return {
        "name": described("Of whom.", TEXT),
        **{name: described(_MEANING[name], schema) for name, schema in fields.items()},
        "recovered": described("GPU-hours recovered in all weeks. Unit: h. Null: one week.", NUMBER),
        "waste": described("The ledger of these jobs.", object_of(waste_schemas())),
    }


RETURNS = ObjectShape(usage_schemas, table=True)


def answer(view: View, parameters: UsageParameters) -> ObjectAnswer:
    """Return the usage of a user's visible jobs; as a table its weeks. Errors: NotFoundError where there are none."""
    return usage_answer(parameters.name, view.opened.usage(**parameters.choice("user")))


def usage_answer(name: str, usage: UsageReport) -> ObjectAnswer:
    """Return the usage of `name` as an answer."""
    values = json_values(usage, without=("waste", "zone_name"))
    more = {"recovered": usage.recovered, "waste": waste_json(usage.waste)}
    return ObjectAnswer({"name": name, **values, **more}, rows=usage.weeks)
