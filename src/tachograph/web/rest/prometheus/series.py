"""`GET` and `POST /prometheus/api/v1/series`: the series that match."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tachograph.web.answers import ObjectAnswer
from tachograph.web.rest.prometheus.requests import (
    LABELS_SCHEMA,
    MatchParameters,
    Selector,
    cut,
    envelope,
    visible_series,
)
from tachograph.web.shapes import list_of
from tachograph.web.snapshot import View


class SeriesParameters(MatchParameters, frozen=True, kw_only=True):
    """Which series: at least one selector."""

    match: Annotated[
        tuple[Selector, ...], msgspec.Meta(min_length=1, description="A selector of series; any of them.")
    ] = msgspec.field(name="match[]")


PARAMETERS = SeriesParameters
RETURNS = envelope(list_of(LABELS_SCHEMA))


def answer(view: View, parameters: SeriesParameters) -> ObjectAnswer:
    """Return the labels of each series."""
    found = visible_series(view).label_sets(parameters.selectors(), *parameters.between(view.now))
    rows = found.sort(*found.columns).iter_rows(named=True)
    return cut([{name: value for name, value in row.items() if value is not None} for row in rows], parameters.limit)
