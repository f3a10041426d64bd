"""Checks on every request: path prefix, body limit, headers, access log."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tachograph.api.viewer import Viewer
from tachograph.catalog.config import ServeOptions
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.secrets import redacted

VIEWER = "viewer"  # key in the state of a request
_SECRET = re.compile(
    r"token|secret|passw|code|state|session|jwt|auth|credential|signature|api_?key", re.IGNORECASE
)
_LONGEST = 2000  # logged characters of an address
_NAME_OF_SITE = re.compile(r"https?://[A-Za-z0-9.*:\[\]-]+|'self'")
Log = Callable[[Mapping[str, object]], None]


def root_path(options: ServeOptions) -> str:
    """Return the path below which the pages lie, as browsers see it: "" or `/path`.

    >>> root_path(ServeOptions(url="https://hpc.example.org/gpus/"))
    '/gpus'
    """
    return urlsplit(options.url).path.rstrip("/")


def security_headers(options: ServeOptions) -> dict[str, str]:
    """Return the headers that every answer has.

    Scripts and styles come from files of this service; a style attribute may set what no class can,
    a width. Errors: ConfigError for a frame ancestor that is no site.
    """
    for site in options.frame_ancestors:
        if not _NAME_OF_SITE.fullmatch(site):
            what = f"serve.frame_ancestors: {site!r} is not a site"
            raise ConfigError(what, do="write https://ondemand.example.org, or 'self' in quotes")
    ancestors = " ".join(options.frame_ancestors) or "'none'"
    policy = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "style-src-attr": "'unsafe-inline'",
        "img-src": "'self' data:",
        "font-src": "'self'",
        "connect-src": "'self'",
        "manifest-src": "'self'",
        "form-action": "'self'",
        "base-uri": "'none'",
        "frame-ancestors": ancestors,
    }
    headers = {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    }
    return headers if options.frame_ancestors else {**headers, "X-Frame-Options": "DENY"}


@dataclass(frozen=True, slots=True)
class Guard:
    """Middleware around the application. address_of: client address for the log.

    held_s: before 429 is answered.
    """

    app: ASGIApp
    options: ServeOptions
    log: Log | None = None
    address_of: Callable[[Scope], str] = lambda _: ""
    held_s: float = 0.0
    headers: Mapping[str, str] = field(init=False)
    root: str = field(init=False)

    def __post_init__(self) -> None:
        """Make the headers once."""
        object.__setattr__(self, "headers", security_headers(self.options))
        object.__setattr__(self, "root", root_path(self.options))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.root:
            _place_below(scope, self.root)
        scope.setdefault("state", {})
        begun, status, size = time.monotonic(), 0, 0
        announced = Headers(scope=scope).get("content-length", "")

        async def limited() -> Message:
            nonlocal size
            if status or not announced.isdecimal() or int(announced) <= self.options.body_bytes:
                message = await receive()
                size += len(message.get("body", b""))
                # Once it is answered, no body is kept.
                if status or size <= self.options.body_bytes:
                    return message
            raise HTTPException(413, f"the body is longer than {self.options.body_bytes:,} bytes")

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if status == HTTPStatus.TOO_MANY_REQUESTS:
                    await asyncio.sleep(self.held_s)
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
                if scope["path"].startswith(f"{self.root}/static/"):
                    # By what the file holds.
                    named = b"v=" in scope.get("query_string", b"") and status == 200
                    headers.setdefault(
                        "Cache-Control",
                        "public, max-age=31536000, immutable" if named else "no-cache",
                    )
                else:
                    headers.setdefault("Cache-Control", "private, no-cache")
                    headers.add_vary_header("Cookie")
            await send(message)

        try:
            await self.app(scope, limited, guarded)
        finally:
            if self.log is not None:
                self.log(log_line(scope, status, time.monotonic() - begun, self.address_of(scope)))


def _place_below(scope: Scope, root: str) -> None:
    """The path as browsers see it: proxies pass it on with the part before, or without."""
    path = scope["path"]
    if path != root and not path.startswith(f"{root}/"):
        scope["path"] = root + path
        scope["raw_path"] = root.encode() + scope.get("raw_path", path.encode())
    if scope["path"] == root:
        scope["path"] += "/"
    scope["root_path"] = root


def log_line(scope: Scope, status: int, seconds: float, address: str) -> dict[str, object]:
    """Return a request's log entry without headers, body and secret parameters."""
    viewer = scope["state"].get(VIEWER)
    identified = viewer if isinstance(viewer, Viewer) else None
    return {
        "t": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "method": scope["method"],
        "path": redacted(scope["path"])[:_LONGEST],
        "query": without_secrets(scope["path"], scope.get("query_string", b"")),
        "status": status,
        "ms": round(seconds * 1000, 1),
        "user": identified.name if identified else "",
        "role": identified.role.label if identified else "",
        "via": identified.via if identified else "",
        "token": identified.token if identified else "",
        "from": address,
    }


def without_secrets(path: str, query: bytes) -> str:
    """Return a query without secrets: some names, and all values of logins.

    >>> without_secrets("/jobs", b"user=ann&token=abc")
    'user=ann&token=…'
    """
    pairs = parse_qsl(query.decode("utf-8", "replace"), keep_blank_values=True)
    hidden = "/login" in path
    shown = "&".join(
        f"{name}={'…' if hidden or _SECRET.search(name) else value}" for name, value in pairs
    )
    return redacted(shown)[:_LONGEST]


def open_log(target: str) -> Log | None:
    """Return a writer of JSON lines to a file (reopened after rotation) or stderr; or None.

    Errors: ConfigError where it cannot be written.
    """
    if not target:
        return None
    if target == "stderr":
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
        log = logging.Logger("tachograph.annexes.serve.access")
        log.addHandler(handler)
        return lambda line: log.info("%s", json.dumps(line))
    file = Path(target)

    def write(line: Mapping[str, object]) -> None:
        with file.open("a", encoding="ascii") as stream:
            stream.write(f"{json.dumps(line)}\n")

    try:
        file.touch(mode=0o640)
    except OSError as problem:
        what = f"serve.access_log cannot be written: {problem.strerror}"
        raise ConfigError(what, where=target, do="name another file, or stderr") from None
    return lambda line: _logged(write, line, target)


def _logged(write: Log, line: Mapping[str, object], target: str) -> None:
    try:
        write(line)
    except OSError as problem:  # on a full disk, requests are still answered
        logging.getLogger("tachograph.annexes.serve").error(
            "%s: cannot be written: %s", target, problem.strerror
        )
