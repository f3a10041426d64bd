"""Clients of /metrics that are silent, slow, many, or send no request: others are answered, no
thread is made.
"""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from collecting import until
from prometheus_client import CollectorRegistry, Gauge

from servers.process import free_port
from tachograph.collect.metrics_server import LARGEST_HEAD, MOST_CONNECTIONS, MetricsServer


@contextmanager
def serving(
    *, request_s: float = 60.0, answer_s: float = 60.0, text: str = "x"
) -> Iterator[tuple[str, int]]:
    registry = CollectorRegistry()
    Gauge("g", text, registry=registry).set(7)
    port = free_port()
    server = MetricsServer(f"127.0.0.1:{port}", registry, request_s=request_s, answer_s=answer_s)
    server.serve()
    try:
        yield "127.0.0.1", port
    finally:
        server.close()


def page(address: tuple[str, int], path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{address[0]}:{address[1]}{path}", timeout=60) as answer:
        return str(answer.read().decode())


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_hundred_idle_connections_take_no_thread_and_keep_no_one_out() -> None:
    with serving() as address, ExitStack() as stack:
        threads = threading.active_count()
        idle = [
            stack.enter_context(socket.create_connection(address, timeout=60))
            for _ in range(3 * MOST_CONNECTIONS)
        ]
        before = open_files()
        assert "g 7.0" in page(address)
        assert threading.active_count() <= threads  # those of earlier tests may end
        assert open_files() <= before  # the server holds some of them
        until(lambda: sum(_is_closed(one) for one in idle) >= 2 * MOST_CONNECTIONS)
        assert "g 7.0" in page(address)


def _is_closed(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET /metrics HTTP/1.1\r\nHost: x\r\n", b"\x16\x03\x01"])
def test_a_request_that_does_not_end_is_cut_off(sent: bytes) -> None:
    with serving(request_s=0.2) as address, socket.create_connection(address, timeout=60) as client:
        client.sendall(sent)
        assert client.recv(1) == b""
        assert "g 7.0" in page(address)


def test_a_request_byte_by_byte_has_no_more_time() -> None:
    with serving(request_s=0.3) as address, socket.create_connection(address, timeout=60) as client:
        began = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - began < 60:
                client.sendall(b"G")
                time.sleep(0.05)
        assert time.monotonic() - began < 30


def test_a_client_that_does_not_read_is_left() -> None:
    with serving(answer_s=0.3, text="x" * 20_000_000) as address:
        files = open_files()
        with socket.create_connection(address, timeout=60) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert client.recv(4) == b"HTTP"
            until(lambda: open_files() == files + 1)  # ours
            with suppress(ConnectionError):
                assert (
                    sum(len(piece) for piece in iter(lambda: client.recv(1 << 20), b""))
                    < 20_000_000
                )


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * LARGEST_HEAD + b"\r\n\r\n", b"431"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /else HTTP/1.1\r\n\r\n", b"404"),
        (b"\xff\x00 what?\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200"),
        (b"GET /metrics?name[]=g HTTP/1.0\r\n\r\n", b"200"),
    ],
)
def test_what_is_answered(sent: bytes, status: bytes) -> None:
    with serving() as address, socket.create_connection(address, timeout=60) as client:
        client.sendall(sent)
        answer = b"".join(iter(lambda: client.recv(65536), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.split(b" ")[1] == status
        assert (b"g 7.0" in body) == (status == b"200" and sent.startswith(b"GET"))
