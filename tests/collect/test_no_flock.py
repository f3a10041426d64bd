"""The lock of a collection on file systems without `flock`: passed in, and under real processes
by LD_PRELOAD.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import msgspec
import pytest
from collecting import until

from servers.process import program
from tachograph.catalog.errors import LakeError
from tachograph.collect.lock import (
    HOLDER_FILE,
    LOCK_FILE,
    STALE_LOCK_S,
    CollectLock,
    LockHolder,
)

pytestmark = pytest.mark.skipif(
    "FAKETIME" in os.environ, reason="faketime leaves the clock of the file system alone"
)
NOW = datetime(2026, 3, 1, tzinfo=UTC)
HERE = Path(__file__).parent
NUMBERS = [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP]


def refused(number: int, descriptor: int, operation: int) -> None:
    raise OSError(number, os.strerror(number))


def unlocked(folder: Path, number: int = errno.ENOSYS) -> CollectLock:
    return CollectLock(folder, flock=partial(refused, number))


def no_pause(seconds: float) -> None:
    pass


def stranger(folder: Path, *, silent_s: float, world: str = "") -> Path:
    """The file of a process on another host, or of `world`."""
    file = folder / HOLDER_FILE
    file.write_bytes(
        msgspec.json.encode(
            LockHolder(1 << 30, "elsewhere" if not world else HOST, NOW, world, "theirs")
        )
    )
    touched = time.time() - silent_s
    os.utime(file, (touched, touched))
    (folder / LOCK_FILE).touch()
    return file


HOST = os.uname().nodename


@pytest.mark.parametrize("number", NUMBERS)
def test_a_file_is_the_lock_where_the_kernel_has_none(tmp_path: Path, number: int) -> None:
    lock = unlocked(tmp_path, number)
    assert lock.holder() is None
    with lock.held(now=NOW, pause=no_pause) as held:
        assert held
        lock.beat()
        holder = unlocked(tmp_path, number).holder()
        assert holder is not None
        assert (holder.pid, holder.host, holder.since) == (os.getpid(), HOST, NOW)
        # Also of a host whose mount has locks.
        for other in (unlocked(tmp_path, number), CollectLock(tmp_path)):
            with (
                pytest.raises(
                    LakeError, match=rf"process {os.getpid()} on .* already collects into this lake"
                ),
                other.held(now=NOW, pause=no_pause),
            ):
                pass
    assert lock.holder() is None
    assert sorted(file.name for file in tmp_path.iterdir()) == [LOCK_FILE]
    with unlocked(tmp_path, number).held(now=NOW, pause=no_pause) as held:
        assert held


@pytest.mark.parametrize(
    ("silent_s", "is_held"), [(STALE_LOCK_S - 60, True), (STALE_LOCK_S + 60, False)]
)
def test_a_silent_holder_loses_the_lock_after_the_documented_time(
    tmp_path: Path, silent_s: float, is_held: bool
) -> None:
    stranger(tmp_path, silent_s=silent_s)
    lock = unlocked(tmp_path)
    found = lock.holder()
    assert (found is not None) == is_held
    if is_held:
        with (
            pytest.raises(LakeError, match="on elsewhere already"),
            lock.held(now=NOW, pause=no_pause),
        ):
            pass
    else:
        with lock.held(now=NOW, pause=no_pause) as held:
            assert held
            assert sorted(file.name for file in tmp_path.iterdir()) == [LOCK_FILE, HOLDER_FILE]


def test_the_file_of_a_process_that_is_gone_from_this_host_counts_no_longer(tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    stranger(tmp_path, silent_s=0, world=f"{boot} {Path('/proc/self/ns/pid').readlink()}")
    assert unlocked(tmp_path).holder() is None
    with unlocked(tmp_path).held(now=NOW, pause=no_pause) as held:
        assert held


def test_a_holder_that_lost_the_lock_learns_it_and_leaves_the_other_file(tmp_path: Path) -> None:
    lock = unlocked(tmp_path)
    with lock.held(now=NOW, pause=no_pause):
        file = stranger(tmp_path, silent_s=0)
        with pytest.raises(LakeError, match="on elsewhere took the lock over"):
            lock.beat()
    assert msgspec.json.decode(file.read_bytes())["token"] == "theirs"


@pytest.fixture(scope="module")
def without_flock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = program("gcc", package="gcc libc6-dev")
    library = tmp_path_factory.mktemp("no_flock") / "no_flock.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", str(library), str(HERE / "no_flock.c")], check=True
    )
    return library


@pytest.mark.slow
def test_processes_without_flock_collect_one_at_a_time(tmp_path: Path, without_flock: Path) -> None:
    lake = tmp_path / "lake"
    environment = os.environ | {"LD_PRELOAD": str(without_flock), "NO_FLOCK": str(errno.ENOSYS)}
    command = [sys.executable, str(HERE / "collecting.py"), str(lake), json.dumps({"count": 5})]
    # Under nohup it is ignored, by children too.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as first:
        signal.signal(signal.SIGHUP, before)
        until((lake / "_collect" / HOLDER_FILE).exists)
        until((lake / "_collect" / "status.json").exists)
        second = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=300
        )
        assert second.returncode != 0
        assert f"process {first.pid} on {HOST} already collects into this lake" in second.stderr
        status = [sys.executable, "-m", "tachograph", "status", "--lake", str(lake), "--json"]
        shown = subprocess.run(status, env=environment, capture_output=True, text=True, timeout=300)
        assert (shown.stderr, json.loads(shown.stdout)["pid"]) == ("", first.pid)
        first.send_signal(signal.SIGHUP)
        _, said = first.communicate(timeout=300)
    assert (first.returncode, "Traceback" in said) == (0, False)
    assert said.splitlines()[-1] == "stopped"
    assert not (lake / "_collect" / HOLDER_FILE).exists()
