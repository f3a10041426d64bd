"""The application in this process, with tokens that name whom they are of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.testclient import TestClient

from tachograph.web.application import WebService
from tachograph.web.viewer import NOBODY, Role, Viewer

ApiClient = Callable[..., TestClient]


@dataclass(frozen=True)
class NamedService(WebService):
    """A service whose bearer tokens are a name and a role, with a dot between them."""

    def identify(self, request: Request) -> Viewer:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        name, _, role = token.partition(".")
        known = {each.label: each for each in Role}
        return Viewer(name, known[role], via="test") if scheme == "Bearer" and role in known else NOBODY


def proof(name: str, role: str) -> dict[str, str]:
    """Headers that prove a name and a role to it."""
    return {"Authorization": f"Bearer {name}.{role}"} if name else {}
