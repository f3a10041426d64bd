"""A server of the S3 protocol: moto's, which keeps everything in memory. And one that only
refuses.
"""

from __future__ import annotations

import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from servers.process import free_port, listens, running


@dataclass(frozen=True, slots=True)
class S3:
    """A server with one bucket; `environment` is what a client needs."""

    endpoint: str
    bucket: str

    @property
    def environment(self) -> Mapping[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "reader",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def lake(self, name: str = "lake") -> str:
        """The address of a lake in the bucket."""
        return f"s3://{self.bucket}/{name}"


@contextmanager
def s3_server(folder: Path, *, bucket: str = "telemetry") -> Iterator[S3]:
    """A running server for the time of the block, with an empty bucket."""
    port = free_port()
    command: list[str | Path] = [sys.executable, Path(__file__).with_name("s3_app.py"), str(port)]
    with running(command, ready=lambda: listens(port), log=folder / "s3.log"):
        server = S3(f"http://127.0.0.1:{port}", bucket)
        request = urllib.request.Request(f"{server.endpoint}/{bucket}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()
        yield server


@contextmanager
def refusing_server(folder: Path, code: str) -> Iterator[S3]:
    """A server that refuses everybody with `code`, as S3 does."""
    port = free_port()
    command: list[str | Path] = [
        sys.executable,
        Path(__file__).with_name("s3_refuses.py"),
        str(port),
        code,
    ]
    with running(command, ready=lambda: listens(port), log=folder / "refuses.log"):
        yield S3(f"http://127.0.0.1:{port}", "telemetry")
