"""Browser sessions: random cookies and their users, in memory; a restart ends all."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from starlette.requests import Request
from starlette.responses import Response

from tachograph.annexes.serve.identity.proof import Proven, hashed

COOKIE = "tachograph_session"
LENGTH_S = 12 * 3600.0
_MOST = 20_000  # sessions that are open; the oldest ends first


@dataclass(frozen=True, slots=True)
class Session:
    """Whose it is, and until when (seconds since 1970)."""

    proven: Proven
    ends: float


@dataclass(slots=True)
class Sessions:
    """Sessions of a server. Cookies are kept as hashes, so memory has no usable one.

    still: whether what a session began with still holds; a revoked token ends its sessions.
    """

    clock: Callable[[], float] = time.time
    cookie: str = COOKIE
    still: Callable[[Proven], bool] = lambda _: True
    _open: dict[str, Session] = field(default_factory=dict)

    def begin(self, proven: Proven, request: Request, response: Response, *, secure: bool) -> None:
        """Begin a session, and set its cookie; the session that the browser had before ends."""
        now = self.clock()
        self._open.pop(self._key(request), None)
        for key in [key for key, session in self._open.items() if session.ends <= now]:
            del self._open[key]
        while len(self._open) >= _MOST:
            del self._open[next(iter(self._open))]
        ends = min(now + LENGTH_S, now + LENGTH_S if proven.ends is None else proven.ends)
        cookie = secrets.token_urlsafe(32)
        self._open[hashed(cookie)] = Session(replace(proven, ambient=True), ends)
        response.set_cookie(
            self.cookie,
            cookie,
            max_age=max(0, int(ends - now)),
            httponly=True,
            samesite="lax",
            secure=secure,
            path=_path(request),
        )

    def session(self, request: Request) -> Session | None:
        """Return the session of a request; None without one, or if it ended."""
        session = self._open.get(self._key(request))
        alive = session is not None and session.ends > self.clock() and self.still(session.proven)
        return session if alive else None

    def of(self, request: Request) -> Proven | None:
        """Return the identity of a session; an unknown cookie counts as none."""
        session = self.session(request)
        return None if session is None else session.proven

    def end(self, request: Request, response: Response) -> None:
        """End the session of a request."""
        self._open.pop(self._key(request), None)
        response.delete_cookie(self.cookie, path=_path(request))

    def _key(self, request: Request) -> str:
        return hashed(request.cookies.get(self.cookie, ""))


def _path(request: Request) -> str:
    return f"{request.scope.get('root_path', '')}/"
