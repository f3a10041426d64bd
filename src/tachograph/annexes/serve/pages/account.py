"""The page of an account: use by week, loss, users, worst jobs, advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.annexes.serve.pages.user import usage_values
from tachograph.annexes.serve.snapshot import View
from tachograph.api.parameters import UsageParameters

PARAMETERS = UsageParameters


def content(view: View, parameters: UsageParameters) -> Mapping[str, Any]:
    """Return the report of the account's visible jobs. Errors: NotFoundError without any."""
    shown = usage_values(view, parameters.choice("account"))
    sees_all = view.viewer.sees_all or parameters.name in view.viewer.coordinated
    return {
        **shown,
        "name": parameters.name,
        "own_only": not sees_all,
        "parameters": parameters,
        "zone_name": view.zone_name,
    }
