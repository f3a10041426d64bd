"""Streams of server-sent events: their number is limited, and a client that does not read is cut."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tachograph.web.answers import encode_json

MOST = 200  # streams of a server
MOST_OF_ONE = 8  # of one identity
BEAT_S = 15.0  # between two signs of life
SLOW_S = 20.0  # a client that takes nothing for so long is cut
LONGEST_S = 900.0  # then the browser connects again, and is identified again
RETRY_MS = 3000  # before a browser connects again
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # nginx passes events on at once


def event(name: str, number: int, data: object) -> bytes:
    r"""Return one event.

    >>> event("fleet", 7, {"cells": {}})
    b'event: fleet\nid: 7\ndata: {"cells":{}}\n\n'
    """
    return b"event: %s\nid: %d\ndata: %s\n\n" % (name.encode(), number, encode_json(data))


@dataclass(slots=True)
class Streams:
    """The open streams of one server."""

    most: int = MOST
    most_of_one: int = MOST_OF_ONE
    slow_s: float = SLOW_S
    longest_s: float = LONGEST_S
    _open: Counter[str] = field(default_factory=Counter)

    @property
    def count(self) -> int:
        """How many are open."""
        return self._open.total()

    def answer(self, identity: str, events: AsyncGenerator[bytes]) -> EventStream:
        """Return the answer that sends events. Errors: HTTPException 503 where too many streams are open."""
        if self.count >= self.most or self._open[identity] >= self.most_of_one:
            raise HTTPException(503, "too many live pages are open", {"Retry-After": "30"})
        return EventStream(self, identity, events)

    def enter(self, identity: str) -> None:
        """Count a stream that begins."""
        self._open[identity] += 1

    def leave(self, identity: str) -> None:
        """Count a stream that ends."""
        self._open[identity] -= 1
        if not self._open[identity]:
            del self._open[identity]


class EventStream(Response):
    """An answer without end: events until the client is gone, too slow, or it was open for long enough."""

    def __init__(self, streams: Streams, identity: str, events: AsyncGenerator[bytes]) -> None:
        super().__init__(media_type="text/event-stream", headers=_HEADERS)
        self.streams, self.identity, self.events = streams, identity, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        headers = [one for one in self.raw_headers if one[0] != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self.streams.enter(self.identity)
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, timeout=self.streams.longest_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.streams.leave(self.identity)
            for task in (sending, gone):
                task.cancel()
            await asyncio.gather(sending, gone, return_exceptions=True)
            await self.events.aclose()
        failed = None if sending.cancelled() else sending.exception()
        if failed is None:
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        elif not isinstance(failed, TimeoutError | OSError):
            raise failed

    async def _send(self, send: Send) -> None:
        await self._put(send, b"retry: %d\n\n" % RETRY_MS)
        async for chunk in self.events:
            await self._put(send, chunk)

    async def _put(self, send: Send, chunk: bytes) -> None:
        """Send a part. Errors: TimeoutError where the client takes nothing."""
        message: Message = {"type": "http.response.body", "body": chunk, "more_body": True}
        async with asyncio.timeout(self.streams.slow_s):
            await send(message)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
