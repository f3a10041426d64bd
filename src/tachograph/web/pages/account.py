"""What one account used: by week, what was lost and recovered, by user, which jobs lost most, advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.web.pages.user import UsageParameters
from tachograph.web.snapshot import View

PARAMETERS = UsageParameters


def content(view: View, parameters: UsageParameters) -> Mapping[str, Any]:
    """Return the report of the account's visible jobs. Errors: NotFoundError where there are none."""
    usage = view.opened.usage(**parameters.choice("account"))
    return {"usage": usage, "name": parameters.name, "parameters": parameters, "zone_name": view.zone_name}
