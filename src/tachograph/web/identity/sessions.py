"""Sessions of browsers: a random cookie, and whose it is, in memory; a restart ends them all."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from starlette.requests import Request
from starlette.responses import Response

from tachograph.web.viewer import Viewer

COOKIE = "tachograph_session"
LENGTH_S = 12 * 3600.0


@dataclass(frozen=True, slots=True)
class Session:
    """A viewer, until when, and the token that forms of this session carry."""

    viewer: Viewer
    ends: float
    form_token: str


@dataclass(slots=True)
class Sessions:
    """The sessions of one server."""

    clock: Callable[[], float] = monotonic
    _open: dict[str, Session] = field(default_factory=dict)

    def begin(self, viewer: Viewer, response: Response, *, secure: bool) -> None:
        """Begin a session, and set its cookie."""
        now = self.clock()
        for key in [key for key, session in self._open.items() if session.ends <= now]:
            del self._open[key]
        key = secrets.token_urlsafe(32)
        self._open[key] = Session(viewer, now + LENGTH_S, secrets.token_urlsafe(32))
        response.set_cookie(COOKIE, key, max_age=int(LENGTH_S), httponly=True, samesite="lax", secure=secure, path="/")

    def of(self, request: Request) -> Session | None:
        """Return the session of a request; None without one, or where it has ended."""
        session = self._open.get(request.cookies.get(COOKIE, ""))
        return session if session is not None and session.ends > self.clock() else None

    def end(self, request: Request, response: Response) -> None:
        """End the session of a request."""
        self._open.pop(request.cookies.get(COOKIE, ""), None)
        response.delete_cookie(COOKIE, path="/")
