"""The server of `/metrics`: one thread, few and short connections."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from tachograph.catalog.errors import ConfigError

MOST_CONNECTIONS = 32  # at once; a further one takes the place of the oldest
LARGEST_HEAD = 8192  # bytes of a request with its headers
REQUEST_S = 5.0  # until a request is complete
ANSWER_S = 10.0  # until its answer is taken
_LAST_PORT = 65535
_WHERE = "collect.listen"
_DO = 'use host:port, such as "127.0.0.1:9798", or "" for none'


class MetricsServer:
    """A server of a registry's metrics that listens on `listen` (host:port) at once; see `serve`.

    Every connection is for one request. None waits for another, and idle ones block no one: opening
    more than MOST_CONNECTIONS closes the oldest. Errors: ConfigError if the address is invalid or
    in use.
    """

    def __init__(
        self,
        listen: str,
        registry: CollectorRegistry,
        *,
        request_s: float = REQUEST_S,
        answer_s: float = ANSWER_S,
    ) -> None:
        self._registry = registry
        self._request_s, self._answer_s = request_s, answer_s
        self._socket = _bound(listen)
        self._stop: Callable[[], object] | None = None  # thread-safe
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # oldest first
        self._thread: threading.Thread | None = None

    def serve(self) -> None:
        """Serve in a thread until `close`. Errors: RuntimeError if no thread can start."""
        ready = threading.Event()
        thread = threading.Thread(
            target=lambda: asyncio.run(self._serve(ready)), name="metrics", daemon=True
        )
        thread.start()
        self._thread = thread
        ready.wait(self._answer_s)

    def close(self) -> None:
        """End the thread, and close the address and all connections."""
        if self._stop is not None and self._thread is not None:
            self._stop()
            self._thread.join(self._answer_s)
        self._socket.close()

    async def _serve(self, ready: threading.Event) -> None:
        loop, stopped = asyncio.get_running_loop(), asyncio.Event()
        # The client is gone; no one needs the error.
        loop.set_exception_handler(lambda loop, context: None)
        self._stop = partial(loop.call_soon_threadsafe, stopped.set)
        async with await asyncio.start_server(
            self._accept, sock=self._socket, limit=LARGEST_HEAD, backlog=MOST_CONNECTIONS
        ):
            ready.set()
            await stopped.wait()
            for task, writer in self._open.items():  # the block waits for open connections
                writer.transport.abort()
                task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        while len(self._open) >= MOST_CONNECTIONS:
            oldest = next(iter(self._open))
            self._open.pop(oldest).transport.abort()
            oldest.cancel()
        self._open[task] = writer
        try:
            with suppress(
                OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, asyncio.CancelledError
            ):
                await self._exchange(reader, writer)
        finally:
            self._open.pop(task, None)
            writer.transport.abort()  # close() waits until all is taken

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(self._request_s):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            head = b""
            answer = _answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            answer = self._answer(head)
        async with asyncio.timeout(self._answer_s):
            writer.write(answer)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    def _answer(self, head: bytes) -> bytes:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, _, rest = first.partition(" ")
        path, _, version = rest.rpartition(" ")
        if not version.startswith("HTTP/1."):
            return _answer(HTTPStatus.BAD_REQUEST)
        if method not in ("GET", "HEAD"):
            return _answer(HTTPStatus.METHOD_NOT_ALLOWED, ("Allow", "GET, HEAD"))
        if path.partition("?")[0] not in ("/", "/metrics"):
            return _answer(HTTPStatus.NOT_FOUND)
        pairs = [line.partition(":") for line in lines]
        accept = ",".join(value.strip() for name, _, value in pairs if name.lower() == "accept")
        encode, kind = choose_encoder(accept)
        answer = _answer(HTTPStatus.OK, ("Content-Type", kind), body=encode(self._registry))
        return answer if method == "GET" else answer[: answer.index(b"\r\n\r\n") + 4]


def _answer(status: HTTPStatus, *headers: tuple[str, str], body: bytes = b"") -> bytes:
    named = [*headers, ("Content-Length", str(len(body))), ("Connection", "close")]
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        *(f"{name}: {value}" for name, value in named),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _bound(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > _LAST_PORT:
        raise ConfigError(f"invalid address {listen!r}", where=_WHERE, do=_DO)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server(
            (host.strip("[]"), int(port)), family=family, backlog=MOST_CONNECTIONS
        )
    except OSError as problem:
        raise ConfigError(f"cannot listen on {listen}: {problem}", where=_WHERE, do=_DO) from None
