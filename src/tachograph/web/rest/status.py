"""`GET /status`: the state of the collector and its sources."""

from __future__ import annotations

from typing import Any

from tachograph.service.collect.status import configured_overview
from tachograph.web.answers import ObjectAnswer
from tachograph.web.parameters import Parameters
from tachograph.web.shapes import TEXT, ObjectShape, described, list_of, or_null
from tachograph.web.snapshot import View

PARAMETERS = Parameters
_FLAG = {"type": "boolean"}
_MOMENT = or_null({"type": "string", "format": "date-time"})


def _properties() -> dict[str, Any]:
    return {
        "healthy": described("No source is late or fails, and the collector runs.", _FLAG),
        "running": described("A collector holds the lake.", _FLAG),
        "hangs": described("It runs and writes no status.", _FLAG),
        "full_disk": described(
            "Mount point of the disk of lake or status, where it is full. Null: none is.", or_null(TEXT)
        ),
        "pid": described("Its process. Null: none, or for admins alone.", or_null({"type": "integer"})),
        "host": described("Its host. Null: none, or for admins alone.", or_null(TEXT)),
        "lake": described("Where the lake is. Null: for admins alone.", or_null(TEXT)),
        "started": described("When it started. Null: none has run.", _MOMENT),
        "updated": described("When it last wrote its status. Null: none has run.", _MOMENT),
        "stopped": described("When it stopped. Null: it has not.", _MOMENT),
        "sources": described(
            "A source each: condition, lag, rows, rejects, errors, skipped polls.", list_of({"type": "object"})
        ),
        "steps": described("Analysis and compaction: last success, errors.", {"type": "object"}),
    }


RETURNS = ObjectShape(_properties)


def answer(view: View, parameters: Parameters) -> ObjectAnswer:
    """Return the state, as `tachograph status --json` prints it."""
    found = configured_overview(view.opened.lake.location, view.configuration, now=view.now)
    return ObjectAnswer((found if view.viewer.sees_server else found.without_places()).as_json())
