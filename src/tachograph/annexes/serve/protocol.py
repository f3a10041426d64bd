"""Connections: identifies the peer, limits their number, and cuts slow ones."""

from __future__ import annotations

import asyncio
from asyncio.trsock import TransportSocket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from tachograph.annexes.serve.identity.socket_peer import PEER, Peer, peer_of

_LEAST_BYTES_PER_S = 1024  # of an answer that is being read
HELD_S = 1.0  # before an excess request is refused: its sender retries at once

_MOST_HELD = 800  # connections with refused ones: below the usual limit of open files


@dataclass(slots=True)
class Connections:
    """The connections of one server.

    most: per address, except for proxies, which serve many people. most_unread: bytes of answers
    being read; above it the connection with most of them is closed.
    """

    most: int
    most_unread: int
    is_proxy: Callable[[Peer], bool] = lambda _: False
    _open: Counter[Peer] = field(default_factory=Counter)
    _reading: dict[GuardedProtocol, None] = field(default_factory=dict)

    def enter(self, peer: Peer) -> bool:
        """Count a new connection; return whether its address is within the limit."""
        self._open[peer] += 1
        return self._open[peer] <= self.most or self.is_proxy(peer)

    @property
    def held_s(self) -> float:
        """Delay before a refused connection is closed; 0 if there are many."""
        return HELD_S if self._open.total() <= _MOST_HELD else 0.0

    def leave(self, connection: GuardedProtocol) -> None:
        """Count a closed connection."""
        self.read(connection)
        self._open[connection.peer] -= 1
        if not self._open[connection.peer]:
            del self._open[connection.peer]

    def write(self, connection: GuardedProtocol) -> None:
        """Count unread output; close a connection above the limit."""
        self._reading[connection] = None
        sizes = {reader: reader.transport.get_write_buffer_size() for reader in self._reading}
        if sum(sizes.values()) > self.most_unread:
            max(sizes, key=sizes.__getitem__).transport.abort()

    def read(self, connection: GuardedProtocol) -> None:
        """Note that the answer was read."""
        self._reading.pop(connection, None)


class GuardedProtocol(H11Protocol):
    """HTTP/1.1 with a time limit for sending each request and for reading each response.

    slow_s: so long the sending of a request may take, from its first byte on, and the connection
    may wait before it. limits: of all connections of the server.
    """

    slow_s: ClassVar[float]
    limits: ClassVar[Connections]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._sending: asyncio.TimerHandle | None = None
        self._reading: asyncio.TimerHandle | None = None
        self._unread = 0
        self.peer = Peer("")
        self._refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Identify the peer and start the timer; refuse connections beyond the limit."""
        assert isinstance(transport, asyncio.Transport)
        connection = transport.get_extra_info("socket")
        assert isinstance(connection, TransportSocket)
        self.peer = peer_of(connection, get_remote_addr(transport))
        self._refused = not self.limits.enter(self.peer)
        if self._refused:  # not at once, as it would come again at once
            transport.pause_reading()
            self._sending = self.loop.call_later(self.limits.held_s, transport.abort)
            return
        super().connection_made(transport)
        # `pause_writing` whenever the other end has not read everything.
        transport.set_write_buffer_limits(high=0)
        self.app_state = {**self.app_state, PEER: self.peer}
        self._sending = self.loop.call_later(self.slow_s, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        """Read on; the time ends once the request is whole."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            _cancel(self._sending)
            self._sending = None
        elif self._sending is None:
            self._sending = self.loop.call_later(self.slow_s, self.transport.abort)

    def pause_writing(self) -> None:
        """Start the time limit for the peer to read more."""
        super().pause_writing()
        self.limits.write(self)
        self._unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(self.slow_s, self._must_have_read)

    def resume_writing(self) -> None:
        """Go on: everything was read."""
        super().resume_writing()
        self.limits.read(self)
        _cancel(self._reading)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the closed connection and stop its limits."""
        _cancel(self._sending)
        _cancel(self._reading)
        self.limits.leave(self)
        if not self._refused:
            super().connection_lost(exc)

    def _must_have_read(self) -> None:
        unread = self.transport.get_write_buffer_size()
        if unread > self._unread - self.slow_s * _LEAST_BYTES_PER_S:
            self.transport.abort()
        else:
            self._unread = unread
            self._reading = self.loop.call_later(self.slow_s, self._must_have_read)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
