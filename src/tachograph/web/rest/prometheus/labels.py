"""`GET` and `POST /prometheus/api/v1/labels`: names of labels."""

from __future__ import annotations

from tachograph.export.minute_series import LABELS
from tachograph.web.answers import ObjectAnswer
from tachograph.web.rest.prometheus.requests import MatchParameters, cut, envelope, visible_series
from tachograph.web.shapes import TEXT, list_of
from tachograph.web.snapshot import View

PARAMETERS = MatchParameters
RETURNS = envelope(list_of(TEXT))


def answer(view: View, parameters: MatchParameters) -> ObjectAnswer:
    """Return the labels that any series has, or one that matches."""
    if not parameters.match:
        return cut(sorted(LABELS), parameters.limit)
    found = visible_series(view).label_sets(parameters.selectors(), *parameters.between(view.now))
    return cut(sorted(name for name in found.columns if found.get_column(name).count()), parameters.limit)
