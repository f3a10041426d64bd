"""`GET` and `POST /prometheus/api/v1/query_range`: a query at instants from start to end."""

from __future__ import annotations

from typing import Any

import msgspec

from tachograph.export.minute_series import SeriesVector, TimeGrid, number_text
from tachograph.export.promql import parse_promql
from tachograph.web.answers import ObjectAnswer
from tachograph.web.rest.prometheus.query import POINT
from tachograph.web.rest.prometheus.requests import (
    LABELS_SCHEMA,
    Moment,
    PrometheusParameters,
    Query,
    Step,
    envelope,
    moment_ms,
    step_ms,
    success,
    visible_series,
)
from tachograph.web.shapes import list_of, object_of
from tachograph.web.snapshot import View


class QueryRangeParameters(PrometheusParameters, frozen=True, kw_only=True):
    """What is queried, and of which instants."""

    expression: Query = msgspec.field(name="query")
    start: Moment
    end: Moment
    step: Step


PARAMETERS = QueryRangeParameters
RETURNS = envelope(
    object_of(
        {
            "resultType": {"const": "matrix"},
            "result": list_of(object_of({"metric": LABELS_SCHEMA, "values": list_of(POINT)})),
        }
    )
)


def answer(view: View, parameters: QueryRangeParameters) -> ObjectAnswer:
    """Return the values of each series at the instants at which it has one."""
    grid = TimeGrid.between(
        moment_ms("start", parameters.start, view.now),
        moment_ms("end", parameters.end, view.now),
        step_ms(parameters.step),
    )
    found = visible_series(view).evaluate(parse_promql(parameters.expression), grid)

    def points(steps: list[int], values: list[float]) -> list[list[Any]]:
        seconds = ((grid.start_ms + step * grid.step_ms) / 1000 for step in steps)
        return [[at, number_text(value)] for at, value in zip(seconds, values, strict=True)]

    if isinstance(found, SeriesVector):
        result = [{"metric": labels, "values": points(steps, values)} for labels, steps, values in found.series()]
    else:
        result = [{"metric": {}, "values": points(list(range(grid.steps)), [found] * grid.steps)}]
    return success({"resultType": "matrix", "result": result})
