"""A server on the loopback interface that misbehaves on demand, in front of a real one or of
answers made up here.

with faulty(answers) as server:
    server.faults += [Status(503, {"Retry-After": "2"}), CutOff()]
    ...query server.url: the first two requests go wrong, the third is answered well
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate

import httpx2


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request as it came."""

    method: str
    path: str  # with the query
    headers: Mapping[str, str]  # names in small letters
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    """A good answer."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})

    def raw(self, length: int | None = None, **more: str) -> bytes:
        """As it goes over the line."""
        named = {
            "Content-Length": str(len(self.body) if length is None else length),
            "Connection": "close",
        }
        named = {"Date": formatdate(usegmt=True), **named, **self.headers, **more}
        lines = [
            f"HTTP/1.1 {self.status} Said so",
            *(f"{name}: {value}" for name, value in named.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


@dataclass(frozen=True, slots=True)
class Status:
    """Another status in place of the answer."""

    code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def spoil(self, good: Callable[[], Reply]) -> bytes:
        return Reply(self.body, self.code, self.headers).raw()


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing for a while, then the good answer."""

    for_s: float

    def spoil(self, good: Callable[[], Reply]) -> bytes:
        time.sleep(self.for_s)
        return good().raw()


@dataclass(frozen=True, slots=True)
class CutOff:
    """Half of the answer, then the connection is closed."""

    chunked: bool = False

    def spoil(self, good: Callable[[], Reply]) -> bytes:
        reply = good()
        half = reply.body[: len(reply.body) // 2]
        if not self.chunked:
            return Reply(half, reply.status, reply.headers).raw(length=len(reply.body))
        start = (
            Reply(b"", headers=reply.headers)
            .raw()
            .replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        )
        return start + f"{len(half):x}\r\n".encode() + half + b"\r\n"


@dataclass(frozen=True, slots=True)
class Garbage:
    """Bytes of no meaning: as the body, or in place of HTTP."""

    body: bytes = b"<html>please log in</html>"
    kind: str = "text/html"
    http: bool = True

    def spoil(self, good: Callable[[], Reply]) -> bytes:
        return (
            Reply(self.body, headers={"Content-Type": self.kind}).raw() if self.http else self.body
        )


@dataclass(frozen=True, slots=True)
class HangUp:
    """The connection is closed without a word."""

    def spoil(self, good: Callable[[], Reply]) -> bytes:
        return b""


Fault = Status | Silence | CutOff | Garbage | HangUp


@dataclass(slots=True)
class Faulty:
    """The server. `faults` are taken one by one; when there are none it answers well.
    `requests`: as they came.
    """

    url: str
    port: int
    answer: Callable[[SeenRequest], Reply]
    faults: list[Fault] = field(default_factory=list)
    requests: list[SeenRequest] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _going: threading.Event = field(default_factory=threading.Event)
    _good: int | None = None

    def hold_after(self, good: int) -> None:
        """Answer `good` requests, and no more until `go_on`."""
        self._good = good

    def go_on(self) -> None:
        """Answer again, those that wait as well."""
        self._good = None
        self._going.set()

    def reply_to(self, request: SeenRequest) -> bytes:
        with self._lock:
            self.requests.append(request)
            fault = self.faults.pop(0) if self.faults else None
            held = self._good is not None and len(self.requests) > self._good
        if held:
            self._going.wait(30)
        return (
            self.answer(request).raw()
            if fault is None
            else fault.spoil(lambda: self.answer(request))
        )


def forward(url: str) -> Callable[[SeenRequest], Reply]:
    """Answers of another server."""

    def query(request: SeenRequest) -> Reply:
        kept = {
            name: value
            for name, value in request.headers.items()
            if name in ("content-type", "authorization")
        }
        got = httpx2.request(
            request.method, url + request.path, headers=kept, content=request.body, timeout=30
        )
        return Reply(
            got.content, got.status_code, {"Content-Type": got.headers.get("content-type", "")}
        )

    return query


@contextmanager
def faulty(
    answer: Callable[[SeenRequest], Reply], *, tls: ssl.SSLContext | None = None, port: int = 0
) -> Iterator[Faulty]:
    """Run the server for the time of the block; after it no one listens on its port any more."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(0.05)
        port = listener.getsockname()[1]
        server = Faulty(f"{'https' if tls else 'http'}://127.0.0.1:{port}", port, answer)
        ended = threading.Event()
        threads: list[threading.Thread] = []

        def accept() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    connection, _ = listener.accept()
                    threads.append(threading.Thread(target=_serve, args=(connection, server, tls)))
                    threads[-1].start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield server
        finally:
            ended.set()
            server.go_on()
            acceptor.join()
            for thread in threads:
                thread.join()


def _serve(connection: socket.socket, server: Faulty, tls: ssl.SSLContext | None) -> None:
    """One connection, one request; the client may be gone before the answer is."""
    connection.settimeout(10)
    with (
        connection,
        suppress(OSError),
        tls.wrap_socket(connection, server_side=True) if tls else connection as stream,
    ):
        request = _read(stream)
        if request is not None:
            stream.sendall(server.reply_to(request))


def _read(stream: socket.socket) -> SeenRequest | None:
    raw = b""
    while b"\r\n\r\n" not in raw:
        piece = stream.recv(65536)
        if not piece:
            return None
        if piece.startswith(b"\x16"):  # somebody who speaks TLS
            stream.sendall(b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent TLS to an HTTP server")
            return None
        raw += piece
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    while len(body) < int(headers.get("content-length", "0")):
        body += stream.recv(65536)
    return SeenRequest(method, path, headers, body)
