"""`GET /openapi.json`: the document that describes the REST API."""

from __future__ import annotations

from typing import Any

from tachograph.web.answers import ObjectAnswer
from tachograph.web.guard import root_path
from tachograph.web.parameters import Parameters
from tachograph.web.shapes import TEXT, ObjectShape, described
from tachograph.web.snapshot import ServedLake

PARAMETERS = Parameters


def _properties() -> dict[str, Any]:
    listed, keyed = {"type": "array", "items": {"type": "object"}}, {"type": "object"}
    return {
        "openapi": described("Version of the format.", TEXT),
        "info": described("Name and version of the program.", keyed),
        "servers": described("The address that paths follow.", listed),
        "security": described("Ways to prove who a request is from.", listed),
        "paths": described("The endpoints.", keyed),
        "components": described("Parts that several endpoints share.", keyed),
    }


RETURNS = ObjectShape(_properties)


def answer(served: ServedLake, parameters: Parameters) -> ObjectAnswer:
    """Return the document."""
    from tachograph.web.openapi import openapi_document  # made of all endpoints, this one included

    return ObjectAnswer(openapi_document(root_path(served.configuration.serve)))
