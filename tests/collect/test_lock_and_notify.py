"""The lock of a lake's collection, and what the service manager is notified of."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tachograph.catalog.errors import LakeError
from tachograph.collect.lock import CollectLock
from tachograph.collect.status import state_folder
from tachograph.collect.systemd import NO_NOTIFIER, SystemdNotifier

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def test_the_error_names_the_holder_of_the_lock(tmp_path: Path) -> None:
    lock = CollectLock(tmp_path / "state")
    assert lock.holder() is None
    with lock.held(now=NOW, pause=time.sleep) as held:
        assert held
        holder = lock.holder()
        assert holder is not None
        assert (holder.pid, holder.host, holder.since) == (os.getpid(), socket.gethostname(), NOW)
        with (
            pytest.raises(
                LakeError, match=rf"process {os.getpid()} on .* already collects into this lake"
            ),
            CollectLock(tmp_path / "state").held(now=NOW, pause=lambda seconds: None),
        ):
            pass
    assert lock.holder() is None
    with lock.held(now=NOW, pause=time.sleep) as held:
        assert held


def test_reading_the_lock_does_not_block_it(tmp_path: Path) -> None:
    lock = CollectLock(tmp_path)
    with lock.held(now=NOW, pause=time.sleep):
        pass
    descriptor = os.open(lock.path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)

    def release(seconds: float) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    with lock.held(now=NOW, pause=release) as held:
        assert held
    os.close(descriptor)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(LakeError, match="file"),
        CollectLock(tmp_path / "file").held(now=NOW, pause=time.sleep),
    ):
        pass


def test_the_state_of_a_lake_is_in_it_and_of_a_bucket_in_a_folder_of_the_user() -> None:
    assert state_folder("some/lake") == Path("some/lake/_collect")
    home = {"XDG_STATE_HOME": "/var/state"}
    one, other = (state_folder(f"s3://bucket/{name}", "", home) for name in ("a", "b"))
    assert one.parent == Path("/var/state/tachograph")
    assert one != other
    assert one == state_folder("s3://bucket/a/", "", home)
    assert state_folder("s3://bucket/a", "/srv/state") == Path("/srv/state")


def test_the_service_manager_receives_the_notifications(tmp_path: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        manager.settimeout(5)
        notifier = SystemdNotifier.of({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "120000000"})
        assert notifier.watchdog_s == 60.0
        notifier.notify("READY=1", "STATUS=2 sources")
        assert manager.recv(100) == b"READY=1\nSTATUS=2 sources"


def test_without_a_socket_nothing_is_sent(tmp_path: Path) -> None:
    NO_NOTIFIER.notify("READY=1")
    SystemdNotifier(str(tmp_path / "absent")).notify("READY=1")
    assert SystemdNotifier.of({}) == NO_NOTIFIER
    assert SystemdNotifier.of({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_s is None
    assert SystemdNotifier.of({"WATCHDOG_USEC": "soon"}).watchdog_s is None
