"""What a fast test (one not marked `slow`) may use: the programs of a bare machine, no server, no
sleep to speak of.

So `make test` says the same on a bare container image as on a machine on which everything is
installed.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import SupportsIndex

import pytest

SLEEP_S = 0.1  # longest single sleep of a fast test
COREUTILS = (
    *(
        "basename",
        "cat",
        "chmod",
        "chown",
        "cp",
        "cut",
        "date",
        "dd",
        "dirname",
        "echo",
        "env",
        "expr",
        "false",
    ),
    *(
        "head",
        "hostname",
        "id",
        "ln",
        "ls",
        "mkdir",
        "mkfifo",
        "mktemp",
        "mv",
        "nproc",
        "printf",
        "pwd",
        "readlink",
    ),
    *(
        "realpath",
        "rm",
        "rmdir",
        "seq",
        "sleep",
        "sort",
        "stat",
        "tail",
        "tee",
        "test",
        "timeout",
        "touch",
        "tr",
    ),
    *("true", "uname", "uniq", "wc", "yes"),
)
BARE = ("sh", "make", "git", "sed", *COREUTILS)  # ClusterShell reads groups of nodes with sed
# Commands of Tachograph that serve or collect until they are stopped. Other servers are not on the
# bare PATH.
LASTING_COMMANDS = ("collect", "serve")

FULL_PATH = os.environ.get("PATH", os.defpath)
_OWN_PROCESS = os.getpid()
_sleep = time.sleep


@dataclass
class _Watch:
    """The fast test that runs, if one does, and what all of them share."""

    running: bool = False
    defects: list[str] = field(default_factory=list)  # what it did that it may not
    bare_path: str = ""


_watch = _Watch()


def is_fast(item: pytest.Item) -> bool:
    """Whether `make test` runs a test."""
    return item.get_closest_marker("slow") is None


def bare_path() -> str:
    """Return a PATH, made on the first call, of python3, make, git, sh and coreutils alone."""
    if not _watch.bare_path:
        folder = Path(tempfile.mkdtemp(prefix="bare-path-"))
        for name in BARE:
            program = shutil.which(name, path=FULL_PATH)
            if program:
                (folder / name).symlink_to(program)
        (folder / "python3").symlink_to(os.path.realpath(sys.executable))
        _watch.bare_path = str(folder)
    return _watch.bare_path


def remove_bare_path() -> None:
    """Remove the folder of `bare_path`, at the end of the session."""
    if _watch.bare_path:
        shutil.rmtree(_watch.bare_path, ignore_errors=True)
        _watch.bare_path = ""


@contextmanager
def limits(item: pytest.Item) -> Iterator[None]:
    """Run a fast test, with its fixtures, on a bare machine; fail it afterwards if it slept or
    started a server.
    """
    if not is_fast(item):
        yield
        return
    os.environ["PATH"] = bare_path()
    _watch.running = True
    try:
        yield
    finally:
        _watch.running = False
        os.environ["PATH"] = FULL_PATH


def may_use(name: str) -> None:
    """Fail where a fast test asks for a program that a bare machine lacks, or a forked child asks
    for one.

    Nobody sees the skip of a child.
    """
    if os.getpid() != _OWN_PROCESS:
        raise RuntimeError(f"a forked child asks for {name}: the test asks before it forks")
    if _watch.running and name not in BARE:
        pytest.fail(f"a fast test uses {name}, which a bare machine lacks: mark it slow")


def check(item: pytest.Item) -> None:
    """Fail a fast test that slept or started a server: to be called at the end of its own run."""
    defects = list(dict.fromkeys(_watch.defects))
    _watch.defects.clear()
    if defects:
        pytest.fail(
            f"{item.nodeid} {' and '.join(defects)}: mark it slow, or pass a clock or a fake in",
            pytrace=False,
        )


def _noted_sleep(seconds: float | SupportsIndex) -> None:
    seconds = float(seconds)
    if (
        _watch.running
        and seconds > SLEEP_S
        and threading.current_thread() is threading.main_thread()
    ):
        _watch.defects.append(f"sleeps {seconds:g} s")
    _sleep(seconds)


def _note_process(event: str, arguments: Sequence[object]) -> None:
    # There is none at the end of the process.
    if event == "subprocess.Popen" and _watch and _watch.running:
        words = arguments[1]
        if isinstance(words, list | tuple) and any(str(word) == "tachograph" for word in words):
            lasting = [str(word) for word in words if str(word) in LASTING_COMMANDS]
            if lasting and not {"--help", "--once"} & {str(word) for word in words}:
                _watch.defects.append(f"starts `tachograph {lasting[0]}`")


# At import, that is before the package: its default arguments may hold `time.sleep`.
time.sleep = _noted_sleep
sys.addaudithook(_note_process)
