"""`GET /prometheus/api/v1/status/buildinfo`: which program answers."""

from __future__ import annotations

from tachograph.catalog.version import __version__
from tachograph.web.answers import ObjectAnswer
from tachograph.web.rest.prometheus.requests import PrometheusParameters, envelope, success
from tachograph.web.shapes import TEXT, object_of
from tachograph.web.snapshot import View

PARAMETERS = PrometheusParameters
_PARTS = ("application", "version", "revision", "branch", "buildUser", "buildDate", "goVersion")
RETURNS = envelope(object_of(dict.fromkeys(_PARTS, TEXT)))


def answer(view: View, parameters: PrometheusParameters) -> ObjectAnswer:
    """Return its name and version; what Prometheus has beside them is empty."""
    return success(dict.fromkeys(_PARTS, "") | {"application": "Tachograph", "version": __version__})
