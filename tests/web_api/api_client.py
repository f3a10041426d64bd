"""The application in this process, with viewers by a header in place of a proof."""

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
    """A service that believes the header X-Viewer: a name and a role."""

    def identify(self, request: Request) -> Viewer:
        written = request.headers.get("x-viewer", "")
        if not written:
            return NOBODY
        name, _, role = written.partition(" ")
        return Viewer(name, Role[role.upper()], via="test")
