"""Prometheus' pushgateway for the time of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.process import free_port, listens, program, running


@contextmanager
def pushgateway(folder: Path) -> Iterator[str]:
    """Run a pushgateway and give its address; what it prints goes into the folder."""
    command = program("prometheus-pushgateway", package="prometheus-pushgateway")
    port = free_port()
    with running(
        [command, f"--web.listen-address=127.0.0.1:{port}"],
        ready=lambda: listens(port),
        log=folder / "gateway.log",
    ):
        yield f"http://127.0.0.1:{port}"
