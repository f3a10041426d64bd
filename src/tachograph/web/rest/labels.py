"""`GET /labels`: findings that a person confirmed or rejected."""

from __future__ import annotations

from tachograph.catalog.tables import LABELS
from tachograph.lake.labels import read_labels
from tachograph.web.answers import TableAnswer
from tachograph.web.paging import Paging, page_of
from tachograph.web.parameters import Parameters
from tachograph.web.shapes import table_shape
from tachograph.web.snapshot import View

PARAMETERS = Parameters
RETURNS = table_shape(LABELS)


def answer(view: View, parameters: Parameters, paging: Paging) -> TableAnswer:
    """Return a part of the labels of visible jobs that count."""
    return page_of(read_labels(view.opened.lake).sort(*LABELS.key), LABELS.key, paging)
