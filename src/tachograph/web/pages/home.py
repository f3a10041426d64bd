"""The first page: what runs now, this week, the jobs that lost most, GPU-hours recovered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from tachograph.catalog.errors import NotFoundError
from tachograph.web.parameters import Parameters
from tachograph.web.snapshot import View


class HomeParameters(Parameters, frozen=True, kw_only=True):
    """Of which jobs: one's own, or all that are visible; by default one's own where there are any."""

    of: Literal["mine", "all"] | None = None


PARAMETERS = HomeParameters


def content(view: View, parameters: HomeParameters) -> Mapping[str, Any]:
    """Return the report of one's own jobs, or of all visible ones; None where there are none."""
    usage, of = None, parameters.of or "mine"
    try:
        usage = view.opened.usage() if of == "all" else view.opened.usage(user=view.viewer.name)
    except NotFoundError:
        if parameters.of is None and len(view.jobs):
            of, usage = "all", view.opened.usage()
    return {"usage": usage, "of": of, "zone_name": view.zone_name, "visible": len(view.jobs)}
