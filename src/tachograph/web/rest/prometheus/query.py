"""`GET` and `POST /prometheus/api/v1/query`: a query at one instant."""

from __future__ import annotations

from typing import Any

import msgspec

from tachograph.export.minute_series import SeriesVector, TimeGrid, number_text
from tachograph.export.promql import parse_promql
from tachograph.web.answers import ObjectAnswer
from tachograph.web.rest.prometheus.requests import (
    LABELS_SCHEMA,
    Moment,
    PrometheusParameters,
    Query,
    envelope,
    moment_ms,
    success,
    visible_series,
)
from tachograph.web.shapes import list_of, object_of
from tachograph.web.snapshot import View

# [seconds since 1970, the value as text]
POINT: dict[str, Any] = {
    "type": "array",
    "items": {"type": ["number", "string"]},
    "minItems": 2,
    "maxItems": 2,
}


class QueryParameters(PrometheusParameters, frozen=True, kw_only=True):
    """What is queried, and of when: now where no time is given."""

    expression: Query = msgspec.field(name="query")
    time: Moment | None = None


PARAMETERS = QueryParameters
RETURNS = envelope(
    {
        "anyOf": [
            object_of({"resultType": {"const": "scalar"}, "result": POINT}),
            object_of(
                {
                    "resultType": {"const": "vector"},
                    "result": list_of(object_of({"metric": LABELS_SCHEMA, "value": POINT})),
                }
            ),
        ]
    }
)


def answer(view: View, parameters: QueryParameters) -> ObjectAnswer:
    """Return the value of each series that has one at that instant."""
    at_ms = moment_ms("time", parameters.time, view.now)
    found = visible_series(view).evaluate(parse_promql(parameters.expression), TimeGrid(at_ms))
    if isinstance(found, SeriesVector):
        result = [
            {"metric": labels, "value": [at_ms / 1000, number_text(values[0])]} for labels, _, values in found.series()
        ]
        return success({"resultType": "vector", "result": result})
    return success({"resultType": "scalar", "result": [at_ms / 1000, number_text(found)]})
