"""Prometheus' Alertmanager for the time of a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servers.process import free_port, listens, program, running

_CONFIGURATION = "route:\n  receiver: none\nreceivers:\n  - name: none\n"


@contextmanager
def alertmanager(folder: Path) -> Iterator[str]:
    """Run an Alertmanager and give its address; what it prints goes into the folder."""
    command = program("prometheus-alertmanager", package="prometheus-alertmanager")
    port = free_port()
    file = folder / "alertmanager.yml"
    file.write_text(_CONFIGURATION)
    options = [
        f"--config.file={file}",
        f"--storage.path={folder / 'data'}",
        "--cluster.listen-address=",
    ]
    with running(
        [command, *options, f"--web.listen-address=127.0.0.1:{port}"],
        ready=lambda: listens(port),
        log=folder / "alertmanager.log",
    ):
        yield f"http://127.0.0.1:{port}"
