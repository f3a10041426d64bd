"""A PostgreSQL server in a folder, on a port of the loopback interface; root starts it as user
postgres.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from servers.process import free_port, program

USER = "postgres"
# fast, and all that a crash could lose is a test
_SETTINGS = (
    "fsync=off",
    "full_page_writes=off",
    "synchronous_commit=off",
    "unix_socket_directories=",
    "shared_buffers=16MB",
)


@contextmanager
def postgresql_server() -> Iterator[str]:
    """A running server for the time of the block; yields its address as user postgres, database
    postgres.

    Its folder is made in the system's temporary folder, where the other user may go.
    """
    places = [str(path) for path in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    initdb, pg_ctl = (
        program(name, package="postgresql", places=places) for name in ("initdb", "pg_ctl")
    )
    folder = Path(tempfile.mkdtemp(prefix="tachograph-postgresql-"))
    if os.geteuid() == 0:
        shutil.chown(folder, USER)
    port, data = free_port(), folder / "data"
    settings = " ".join(
        f"-c {setting}" for setting in (f"port={port}", "listen_addresses=127.0.0.1", *_SETTINGS)
    )
    try:
        _as_owner(
            [initdb, "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync"], folder
        )
        _as_owner(
            [pg_ctl, "-D", data, "-o", settings, "-l", folder / "log", "-w", "-t", "30", "start"],
            folder,
        )
        try:
            yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
        finally:
            _as_owner([pg_ctl, "-D", data, "-m", "immediate", "-w", "stop"], folder)
    finally:
        shutil.rmtree(folder)


def _as_owner(command: Sequence[str | Path], folder: Path) -> None:
    """Run a program that refuses to be root as the user of the server."""
    switched = ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []
    log = folder / "started"
    with log.open("ab") as stream:
        done = subprocess.run(
            [*switched, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=folder,
            timeout=120,
        )
    if done.returncode:
        raise RuntimeError(f"{command[0]} ended with {done.returncode}:\n{log.read_text()[-2000:]}")
