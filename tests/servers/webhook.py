"""A receiver of webhooks that keeps what it gets, and answers as it is set."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Received:
    """A request: method, path, headers in lower case, JSON."""

    method: str
    path: str
    headers: dict[str, str]
    content: Any


@dataclass
class WebhookReceiver:
    """What came, oldest first. status, headers, answer: what it answers; drip_s: between two
    bytes of an answer.
    """

    url: str = ""
    received: list[Received] = field(default_factory=list)
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    answer: bytes = b"ok"
    drip_s: float = 0.0
    before: Callable[[], None] = lambda: None


@contextmanager
def webhook_receiver() -> Iterator[WebhookReceiver]:
    """A receiver on a free port of the loopback interface."""
    receiver = WebhookReceiver()

    class Handler(BaseHTTPRequestHandler):
        def _take(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(self.command, self.path, headers, json.loads(body)))
            receiver.before()
            if receiver.drip_s:
                self._drip()
                return
            self.send_response(receiver.status)
            for name, value in receiver.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(receiver.answer)))
            self.end_headers()
            self.wfile.write(receiver.answer)

        def _drip(self) -> None:
            self.close_connection = True
            try:
                for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1000:
                    self.wfile.write(bytes([byte]))
                    self.wfile.flush()
                    time.sleep(receiver.drip_s)
            except OSError:
                return

        do_POST = _take  # noqa: N815
        do_PUT = _take  # noqa: N815

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.drip_s = 0.0
            server.shutdown()
            thread.join()
