"""Limits per identity: concurrent requests, rate, time and size of answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from time import monotonic
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tachograph.annexes.serve.identity.proxy_header import ProxyHeaders
from tachograph.annexes.serve.identity.socket_peer import peer
from tachograph.api.viewer import Viewer

T = TypeVar("T")
_BURST_S = 10.0
_MOST_IDENTITIES = 10_000
_THREADS = 64


@dataclass(slots=True)
class _Lane:
    """State of one identity: its bucket of requests, and places for running ones.

    working: threads that are; asked: requests that are not answered yet.
    """

    left: float
    counted: float
    places: asyncio.Semaphore
    working: int = 0
    asked: int = 0


@dataclass(slots=True)
class Lanes:
    """Queues per identity, so that one client does not delay others."""

    requests_per_s: float
    concurrent: int
    request_s: float
    answer_bytes: int = 64 << 20
    most_asked: int = 100
    clock: Callable[[], float] = monotonic
    _lanes: dict[str, _Lane] = field(default_factory=dict)
    _pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_THREADS, "request")
    )

    def count(self, identity: str) -> None:
        """Count a request. Errors: HTTPException 429 above the limit."""
        if not self.requests_per_s:
            return
        lane, now, burst = self._lane(identity), self.clock(), self.requests_per_s * _BURST_S
        lane.left = min(burst, lane.left + (now - lane.counted) * self.requests_per_s)
        lane.counted = now
        if lane.left < 1:
            wait = str(max(1, round((1 - lane.left) / self.requests_per_s)))
            headers = {"Retry-After": wait, "Connection": "close"}
            raise HTTPException(
                429, f"more than {self.requests_per_s:g} requests per second", headers
            )
        lane.left -= 1

    async def run(self, identity: str, work: Callable[[], T]) -> T:
        """Return the result of `work`, run in a thread.

        Errors: HTTPException 503 if it is too slow or too large, 429 if too many requests wait.

        A thread cannot be ended: its place stays taken until it is done.
        """
        lane = self._lane(identity)
        if lane.asked >= self.most_asked:
            what = f"{lane.asked} requests are not answered yet"
            raise HTTPException(429, what, {"Retry-After": "10", "Connection": "close"})
        lane.asked += 1
        try:
            async with asyncio.timeout(self.request_s):
                await lane.places.acquire()
                lane.working += 1
                future = asyncio.get_running_loop().run_in_executor(self._pool, work)
                future.add_done_callback(lambda done: _leave(lane, done))
                answer = await asyncio.shield(future)
        except TimeoutError:
            what = f"the answer took longer than {self.request_s:g} s"
            what += ": try again when the machine is less busy, or choose fewer jobs"
            raise HTTPException(503, what, {"Retry-After": "10"}) from None
        finally:
            lane.asked -= 1
        if isinstance(answer, Response) and len(answer.body) > self.answer_bytes:
            what = (
                f"the answer has {len(answer.body):,} bytes, at most {self.answer_bytes:,} are sent"
            )
            raise HTTPException(503, f"{what}: choose fewer jobs, rows or fields")
        return answer

    def _lane(self, identity: str) -> _Lane:
        if identity not in self._lanes:
            if len(self._lanes) >= _MOST_IDENTITIES:
                self._lanes = {
                    name: lane for name, lane in self._lanes.items() if lane.working or lane.asked
                }
            places = asyncio.Semaphore(self.concurrent)
            self._lanes[identity] = _Lane(self.requests_per_s * _BURST_S, self.clock(), places)
        return self._lanes[identity]


def _leave(lane: _Lane, done: asyncio.Future[T]) -> None:
    lane.working -= 1
    lane.places.release()
    if not done.cancelled():
        done.exception()  # seen, also where no one waits for it any more


def sender_of(request: Request, viewer: Viewer, proxies: ProxyHeaders) -> str:
    """Return the key of a request's limits: token, user, or address."""
    if viewer.token:
        return f"token {viewer.token}"
    if viewer.name:
        return f"user {viewer.name}"
    return f"from {address_of(request, proxies)}"


def address_of(request: Request, proxies: ProxyHeaders) -> str:
    """Return the client's address, as named by a trusted proxy."""
    forwarded = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    return forwarded if forwarded and proxies.is_from_proxy(request) else peer(request).address
