"""A connection: who is at its other end, and that it is cut where it sends or reads too slowly."""

from __future__ import annotations

import asyncio
from asyncio.trsock import TransportSocket
from typing import Any, ClassVar

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tachograph.web.identity.socket_peer import PEER, peer_of

_LEAST_BYTES_PER_S = 1024  # of an answer that is being read
_MOST_WAITING = 200  # connections of one address without a request


class GuardedProtocol(H11Protocol):
    """HTTP/1.1 with a limit of time for every request that is sent, and for every answer that is read.

    slow_s: so long the sending of a request may take, from its first byte on, and the connection may wait before it.
    waiting: connections of each address that have not sent a request; of too many the one that waits longest is closed.
    """

    slow_s = 20.0
    waiting: ClassVar[dict[str, dict[GuardedProtocol, None]]] = {}

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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Find out who is at the other end, and begin to count the time."""
        assert isinstance(transport, asyncio.Transport)
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` whenever the other end has not read everything
        connection = transport.get_extra_info("socket")
        if isinstance(connection, TransportSocket):
            self.app_state = {**self.app_state, PEER: peer_of(connection, self.client)}
        self._sending = self.loop.call_later(self.slow_s, self.transport.abort)
        mine = self.waiting.setdefault(self._address, {})
        mine[self] = None
        if len(mine) > _MOST_WAITING:
            oldest = next(iter(mine))
            oldest.transport.abort()
            oldest._waits_no_more()

    def data_received(self, data: bytes) -> None:
        """Read on; the time ends once the request is whole."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            _cancel(self._sending)
            self._sending = None
            self._waits_no_more()
        elif self._sending is None:
            self._sending = self.loop.call_later(self.slow_s, self.transport.abort)

    def pause_writing(self) -> None:
        """Count the time until the other end has read more."""
        super().pause_writing()
        self._unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(self.slow_s, self._must_have_read)

    def resume_writing(self) -> None:
        """Go on: everything was read."""
        super().resume_writing()
        _cancel(self._reading)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count no longer."""
        _cancel(self._sending)
        _cancel(self._reading)
        self._waits_no_more()
        super().connection_lost(exc)

    @property
    def _address(self) -> str:
        """Whose connections are counted together: those of a host, or of a Unix socket."""
        return self.client[0] if self.client else ""

    def _waits_no_more(self) -> None:
        mine = self.waiting.get(self._address, {})
        mine.pop(self, None)
        if not mine:
            self.waiting.pop(self._address, None)

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
