"""`GET /prometheus/api/v1/metadata`: what metrics mean."""

from __future__ import annotations

from typing import Annotated

import msgspec

from tachograph.export.minute_series import MINUTE_METRICS
from tachograph.web.answers import ObjectAnswer
from tachograph.web.parameters import Word
from tachograph.web.rest.prometheus.requests import Most, PrometheusParameters, envelope, success
from tachograph.web.shapes import TEXT, list_of, object_of
from tachograph.web.snapshot import View


class MetadataParameters(PrometheusParameters, frozen=True, kw_only=True):
    """Of which metric; of all where none is named."""

    metric: Annotated[Word, msgspec.Meta(description="Name of a metric.")] | None = None
    limit: Most = 0


PARAMETERS = MetadataParameters
RETURNS = envelope(
    {"type": "object", "additionalProperties": list_of(object_of({"type": TEXT, "help": TEXT, "unit": TEXT}))}
)


def answer(view: View, parameters: MetadataParameters) -> ObjectAnswer:
    """Return type, meaning and unit of metrics."""
    names = [name for name in MINUTE_METRICS if parameters.metric in (None, name)]
    found = {name: MINUTE_METRICS[name] for name in names[: parameters.limit or len(names)]}
    return success(
        {name: [{"type": "gauge", "help": each.sentence, "unit": each.unit}] for name, each in found.items()}
    )
