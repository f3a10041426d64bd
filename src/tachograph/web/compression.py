"""Answers of text compressed with gzip, where the client takes it; streams and files of numbers stay as they are."""

from __future__ import annotations

import base64
import gzip
import secrets
from dataclasses import dataclass

import anyio.to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_TYPES = (
    *("text/html", "text/css", "text/javascript", "text/csv", "text/plain", "image/svg+xml", "application/json"),
    *("application/javascript", "application/problem+json", "application/x-ndjson", "application/openapi+json"),
)
_LEAST = 1000  # bytes: less fits one packet
_LARGE = 200_000  # bytes from which on a thread compresses
_LEVEL = 5


@dataclass(frozen=True, slots=True)
class Compression:
    """The application behind it; an answer that is one text is compressed.

    Events are sent in parts, and never compressed.
    """

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or not takes_gzip(Headers(scope=scope).get("accept-encoding", "")):
            await self.app(scope, receive, send)
            return
        begun: Message | None = None

        async def compressed(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = message
                return
            if begun is not None:
                body = message.get("body", b"")
                if not message.get("more_body", False) and _may_compress(begun, body):
                    message = {**message, "body": await _gzip(body)}
                    _describe(begun, len(message["body"]))
                await send(begun)
                begun = None
            await send(message)

        await self.app(scope, receive, compressed)


def takes_gzip(accepted: str) -> bool:
    """Return whether a header Accept-Encoding names gzip.

    >>> takes_gzip("br, gzip;q=0.5"), takes_gzip("gzip;q=0"), takes_gzip("identity")
    (True, False, False)
    """
    for part in accepted.lower().split(","):
        name, *parameters = (one.strip() for one in part.split(";"))
        if name in ("gzip", "*"):
            return not any(one.replace(" ", "").rstrip("0") in ("q=", "q=0.") for one in parameters)
    return False


def _may_compress(start: Message, body: bytes) -> bool:
    headers = Headers(raw=start["headers"])
    kind = headers.get("content-type", "").partition(";")[0]
    return start["status"] != 206 and kind in _TYPES and len(body) >= _LEAST and "content-encoding" not in headers


async def _gzip(body: bytes) -> bytes:
    if len(body) < _LARGE:
        return gzip.compress(body, _LEVEL, mtime=0)
    return await anyio.to_thread.run_sync(lambda: gzip.compress(body, _LEVEL, mtime=0))


def _describe(start: Message, length: int) -> None:
    """What a compressed answer says of itself: its bytes are others, so a strong tag is a weak one."""
    headers = MutableHeaders(raw=start["headers"])
    headers["content-encoding"] = "gzip"
    headers["content-length"] = str(length)
    headers.add_vary_header("Accept-Encoding")
    tag = headers.get("etag")
    if tag is not None and not tag.startswith("W/"):
        headers["etag"] = f"W/{tag}"


def masked(token: str) -> str:
    """Return a secret of a page as other text each time, so that the length of compressed pages says nothing of it.

    >>> unmasked(masked("secret")), masked("secret") == masked("secret"), masked("")
    ('secret', False, '')
    """
    if not token:
        return ""
    plain = token.encode()
    pad = secrets.token_bytes(len(plain))
    return base64.urlsafe_b64encode(pad + _xor(pad, plain)).decode()


def unmasked(given: str) -> str:
    """Return the secret that `masked` made other text of; what it did not make, as it is.

    >>> unmasked("secret")
    'secret'
    """
    try:
        both = base64.b64decode(given.encode("ascii"), b"-_", validate=True)
        half = len(both) // 2
        return _xor(both[:half], both[half:]).decode("ascii") if both and len(both) == 2 * half else given
    except ValueError:
        return given


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
