"""`GET /prometheus/api/v1/label/{name}/values`: values of a label."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tachograph.export.minute_series import LABELS
from tachograph.web.answers import ObjectAnswer
from tachograph.web.parameters import Word
from tachograph.web.rest.prometheus.requests import MatchParameters, cut, envelope, visible_series
from tachograph.web.shapes import TEXT, list_of
from tachograph.web.snapshot import View


class LabelParameters(MatchParameters, frozen=True, kw_only=True):
    """Which label, and of which series."""

    name: Annotated[Word, msgspec.Meta(description="Name of the label.")]


PARAMETERS = LabelParameters
RETURNS = envelope(list_of(TEXT))


def answer(view: View, parameters: LabelParameters) -> ObjectAnswer:
    """Return its values, sorted; none for a label that no series has."""
    series = visible_series(view)
    if not parameters.match or parameters.name not in LABELS:
        return cut(series.label_values(parameters.name), parameters.limit)
    found = series.label_sets(parameters.selectors(), *parameters.between(view.now))
    return cut(found.get_column(parameters.name).drop_nulls().unique().sort().to_list(), parameters.limit)
