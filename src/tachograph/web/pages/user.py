"""What one user used: by week, what was lost and recovered, which jobs lost most, advice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

import msgspec

from tachograph.api.choices import JobChoice
from tachograph.web.parameters import Parameters, Since, Until, Word
from tachograph.web.snapshot import View


class UsageParameters(Parameters, frozen=True, kw_only=True):
    """Whose usage, in which period."""

    name: Annotated[Word, msgspec.Meta(description="Name of the user or account.")]
    since: Since = None
    until: Until = None

    def choice(self, option: str) -> JobChoice:
        """Return the jobs of that name in the period, as an open lake takes them; option: user or account."""
        given = {option: self.name, "since": self.since, "until": self.until}
        return cast("JobChoice", {name: value for name, value in given.items() if value is not None})


PARAMETERS = UsageParameters


def content(view: View, parameters: UsageParameters) -> Mapping[str, Any]:
    """Return the report of the user's visible jobs. Errors: NotFoundError where there are none."""
    usage = view.opened.usage(**parameters.choice("user"))
    return {"usage": usage, "name": parameters.name, "parameters": parameters, "zone_name": view.zone_name}
