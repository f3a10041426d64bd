"""`GET /nodes/{name}`: who was on a node, and the use and health of its GPUs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from tachograph.judge.node_history import NodeReport
from tachograph.web.answers import ObjectAnswer
from tachograph.web.parameters import Parameters, Word
from tachograph.web.shapes import TEXT, ObjectShape, described, field_schemas
from tachograph.web.snapshot import View


class NodeNameParameters(Parameters, frozen=True, kw_only=True):
    """Which node."""

    name: Annotated[Word, msgspec.Meta(description="Name of the node.")]


PARAMETERS = NodeNameParameters
_MEANING = {
    "node": "Its name.",
    "zone_name": "The time zone of weeks and days.",
    "jobs": "A row per visible job that ran there, newest first.",
    "gpus": "A row per GPU: device, sums over all jobs.",
    "weeks": "A row per GPU and week of the jobs' starts.",
    "days": "A row per GPU and day: hours with samples of jobs, and mean utilisation in them.",
}


def _properties() -> dict[str, Any]:
    fields = field_schemas(NodeReport)
    named = {name: described(_MEANING[name], schema) for name, schema in fields.items()}
    return named | {"headline": described("Jobs, GPUs, and what is wrong, in a sentence.", TEXT)}


RETURNS = ObjectShape(_properties, table=True)


def answer(view: View, parameters: NodeNameParameters) -> ObjectAnswer:
    """Return the report; as a table its GPUs. Errors: NotFoundError for a node that is not recorded."""
    page = view.opened.node(parameters.name)
    return ObjectAnswer(page.json(), rows=page.report.gpus)
