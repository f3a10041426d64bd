"""`GET /health`: whether the service can answer; it needs no identity and names nothing."""

from __future__ import annotations

from typing import Any

from tachograph.catalog.version import __version__
from tachograph.web.answers import ObjectAnswer
from tachograph.web.parameters import Parameters
from tachograph.web.shapes import TEXT, ObjectShape, described
from tachograph.web.snapshot import ServedLake

PARAMETERS = Parameters


def _properties() -> dict[str, Any]:
    return {
        "status": described(
            "ok, or starting: no version of the lake was read yet.", {**TEXT, "enum": ["ok", "starting"]}
        ),
        "version": described("Version of the program.", TEXT),
    }


RETURNS = ObjectShape(_properties, also=(503,))


def answer(served: ServedLake, parameters: Parameters) -> ObjectAnswer:
    """Return the state, with status 503 while it starts."""
    ready = served.is_ready
    return ObjectAnswer({"status": "ok" if ready else "starting", "version": __version__}, 200 if ready else 503)
