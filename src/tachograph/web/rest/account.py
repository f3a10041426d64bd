"""`GET /accounts/{name}`: what one account used."""

from __future__ import annotations

from tachograph.web.answers import ObjectAnswer
from tachograph.web.pages.account import PARAMETERS
from tachograph.web.pages.user import UsageParameters
from tachograph.web.rest.user import usage_answer, usage_schemas
from tachograph.web.shapes import ObjectShape
from tachograph.web.snapshot import View

__all__ = ["PARAMETERS", "RETURNS", "answer"]
RETURNS = ObjectShape(usage_schemas, table=True)


def answer(view: View, parameters: UsageParameters) -> ObjectAnswer:
    """Return the usage of the account's visible jobs; as a table its weeks. Errors: NotFoundError without any."""
    return usage_answer(parameters.name, view.opened.usage(**parameters.choice("account")))
