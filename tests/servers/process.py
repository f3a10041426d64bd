"""Start a program, wait until it answers, stop it."""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import fast_tests

# where Debian keeps what only an administrator would call
_PLACES = os.pathsep.join((fast_tests.FULL_PATH, "/usr/sbin", "/usr/local/sbin", "/sbin"))


def program(name: str, *, package: str, places: Sequence[str] = ()) -> str:
    """Return the path of a program; without it the test is skipped, or fails where servers are
    required.

    Only tests marked slow may ask, in their own process.
    """
    fast_tests.may_use(name)
    found = shutil.which(name, path=os.pathsep.join((_PLACES, *places)))
    if found:
        return found
    missing = f"{name} is not installed (Debian: apt-get install {package})"
    if os.environ.get("TACHOGRAPH_REQUIRE_SERVERS") == "1":
        pytest.fail(f"servers are required and {missing}")
    pytest.skip(missing)


def free_port() -> int:
    """A port of the loopback interface that is free, outside the range from which the system
    gives ports to others.
    """
    while True:
        # Of no seed that other workers have, too.
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def listens(port: int) -> bool:
    """Whether somebody accepts connections on a port of the loopback interface."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running(
    command: Sequence[str | Path],
    *,
    ready: Callable[[], bool],
    log: Path,
    environment: Mapping[str, str] | None = None,
    within_s: float = 120.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program for the time of the block; it begins once `ready` holds. What it prints goes to
    `log`.

    It ends with this process, too, however this one ends (Linux).
    """
    bound = ["setpriv", "--pdeathsig", "TERM", "--"] if shutil.which("setpriv") else []
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [*bound, *(str(part) for part in command)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=None if environment is None else {**os.environ, **environment},
            cwd=log.parent,
        )
        try:
            _wait_for(process, ready, log, within_s)
            yield process
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a program, by force where it does not go."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for(
    process: subprocess.Popen[bytes], ready: Callable[[], bool], log: Path, within_s: float
) -> None:
    until = time.monotonic() + within_s
    while not ready():
        ended = process.poll()
        if ended is not None or time.monotonic() > until:
            printed = log.read_text(errors="replace")[-2000:]
            what = (
                f"ended with {ended}"
                if ended is not None
                else f"was not ready within {within_s:.0f} s"
            )
            raise RuntimeError(f"{process.args!r} {what}:\n{printed}")
        time.sleep(0.05)
