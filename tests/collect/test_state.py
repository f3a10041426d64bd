"""What the numbers of a source mean, and what `status` reports of a process that is there,
hangs, or is gone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tachograph.cli import main
from tachograph.collect.journal import CollectJournal
from tachograph.collect.lock import CollectLock
from tachograph.collect.status import (
    STATUS_FILE,
    CollectOverview,
    CollectStatus,
    PollMinute,
    SourceStatus,
    StepStatus,
    overview,
    read_status,
    state_folder,
    write_status,
)
from tachograph.collect.status_text import (
    SOURCE_HEADINGS,
    source_row,
    status_headline,
    status_remarks,
)
from tachograph.sources.registry import FeedSettings

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def minute(seconds: float, **given: float) -> PollMinute:
    """Polls that began so long ago."""
    entry = PollMinute(int(ago(seconds).timestamp() // 60), polls=1)
    for name, value in given.items():
        setattr(entry, name, value)
    return entry


def source(**given: object) -> SourceStatus:
    found = SourceStatus(
        "fake:one", 60.0, last_poll=ago(30), last_success=ago(30), watermarks={"fake:one": ago(40)}
    )
    for name, value in given.items():
        setattr(found, name, value)
    return found


@pytest.mark.parametrize(
    ("given", "condition"),
    [
        ({}, "ok"),
        ({"failures": 1}, "failing"),
        ({"last_success": ago(240)}, "ok"),
        ({"last_success": ago(241)}, "late"),
        ({"last_success": None}, "late"),
        ({"last_success": None, "last_poll": None}, "never polled"),
        ({"watermarks": {"fake:one": ago(900)}}, "ok"),
        ({"watermarks": {"fake:one": ago(901)}}, "behind"),
        ({"watermarks": {"fake:one": ago(40), "fake:one:late": ago(5000)}}, "ok"),
        ({"watermarks": {"a": ago(40), "b": ago(5000)}}, "behind"),
        ({"watermarks": {"fake:on": ago(40), "fake:one": ago(5000)}}, "behind"),
        ({"watermarks": {}}, "ok"),
        ({"watermarks": {"fake:one": ago(-5)}}, "ok"),
        ({"watermarks": {"fake:one": ago(-3551)}}, "ahead"),
        ({"watermarks": {"a": ago(40), "b": ago(-60)}}, "ahead"),
        ({"watermarks": {"fake:one": ago(-60)}, "failures": 1}, "failing"),
        ({"watermarks": {"fake:one": ago(5000)}, "every_s": 600.0, "last_success": ago(700)}, "ok"),
        (
            {"watermarks": {"fake:one": ago(6001)}, "every_s": 600.0, "last_success": ago(700)},
            "behind",
        ),
        ({"minutes": [minute(90, skipped=3, longest_gap_s=240.0)]}, "ok"),
        ({"minutes": [minute(90, skipped=4, longest_gap_s=240.0)]}, "skipping"),
        ({"minutes": [minute(90, polls=80, skipped=4, longest_gap_s=120.0)]}, "ok"),
        ({"minutes": [minute(3540, skipped=2, longest_gap_s=241.0), minute(90)]}, "skipping"),
        ({"minutes": [minute(3600, skipped=9, longest_gap_s=600.0), minute(90)]}, "ok"),
        ({"minutes": [minute(-90, skipped=9, longest_gap_s=600.0)]}, "ok"),
        ({"minutes": [minute(90, skipped=9)], "failures": 1}, "failing"),
    ],
)
def test_a_condition_follows_from_what_happened(given: dict[str, object], condition: str) -> None:
    assert source(**given).condition(NOW) == condition


@dataclass
class Clocks:
    """Clocks of a journal that are set by hand."""

    at: float = 0.0

    def steady(self) -> float:
        return self.at

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.at)


def journal_of(clocks: Clocks) -> CollectJournal:
    """The journal of a source that is due every 5 s."""
    sources = {"fake:one": 5.0}
    return CollectJournal(
        lake="lake", sources=sources, now=NOW, remark=lambda line: None, steady=clocks.steady
    )


def skipped_polls(journal: CollectJournal, clocks: Clocks) -> int:
    return journal.snapshot(clocks.now()).sources["fake:one"].skipped


def overloaded_hour() -> tuple[CollectJournal, Clocks]:
    """A source due every 5 s, of which an overloaded host made 173 of 640 polls, once none for
    194 s.
    """
    clocks = Clocks()
    journal = journal_of(clocks)
    gaps = [194.0, *[20.0] * 143, *[5.0] * 28]
    for gap_s in (0.0, *gaps):
        clocks.at += gap_s
        journal.begin_poll("fake:one", clocks.now())
        journal.success("fake:one", clocks.now())
    return journal, clocks


def test_an_overloaded_host_is_seen_in_the_status() -> None:
    journal, clocks = overloaded_hour()
    found = journal.snapshot(clocks.now()).sources["fake:one"]
    assert (found.polls, found.skipped) == (173, 467)
    assert found.condition(clocks.now()) == "skipping"
    assert found.last_hour(clocks.now()) == PollMinute(
        int(clocks.now().timestamp() // 60), found.polls, found.skipped, 194.0
    )
    assert found.condition(clocks.now() + timedelta(hours=1)) == "late"


def test_polls_that_are_overdue_are_skipped_before_the_next_one_begins() -> None:
    clocks = Clocks()
    journal = journal_of(clocks)
    journal.begin_poll("fake:one", clocks.now())
    skipped = []
    for clocks.at in (4.9, 9.9, 10.1, 31.0, 31.1):
        skipped.append(skipped_polls(journal, clocks))
    assert skipped == [0, 0, 1, 5, 5]
    journal.begin_poll("fake:one", clocks.now())
    assert skipped_polls(journal, clocks) == 5


def test_a_pause_after_a_failure_skips_nothing() -> None:
    clocks = Clocks()
    journal = journal_of(clocks)
    journal.begin_poll("fake:one", clocks.now())
    clocks.at = 1.0
    journal.pause("fake:one", 50.0)
    clocks.at = 40.0
    assert skipped_polls(journal, clocks) == 0
    clocks.at = 51.0
    journal.begin_poll("fake:one", clocks.now())
    clocks.at += 20.0  # the poll itself
    journal.pause("fake:one", 5.0)
    clocks.at += 5.0
    journal.begin_poll("fake:one", clocks.now())
    assert skipped_polls(journal, clocks) == 3


def test_what_was_skipped_is_on_every_surface() -> None:
    journal, clocks = overloaded_hour()
    found = journal.snapshot(clocks.now())
    whole = CollectOverview("lake", clocks.now(), None, found, tuple(found.sources.values()), {})
    assert not whole.is_healthy
    (entry,) = whole.as_json()["sources"]
    polls, skipped = entry["polls"], entry["skipped"]
    assert entry["condition"] == "skipping"
    assert entry["last_hour"] == {"polls": polls, "skipped": skipped, "longest_gap_s": 194.0}
    assert "minutes" not in entry
    (row,) = (source_row(source, clocks.now(), "UTC") for source in whole.sources)
    assert row[SOURCE_HEADINGS.index(">skipped")] == str(skipped)
    (sentence,) = status_remarks(whole, "UTC")
    assert sentence == (
        f"fake:one: {skipped} of 640 polls of the last hour were skipped, longest gap 3 min 14 "
        "s: this host is "
        "overloaded or stood still, or a poll took longer than every_s = 5; give the collector "
        "more CPU time, or raise "
        "every_s"
    )


def status(lake: Path, *, updated: datetime, stopped: datetime | None = None) -> CollectStatus:
    """What a process wrote that collected one source which is well at NOW."""
    one = source(
        last_error="http://n1: refused", last_error_at=ago(900), skew_s={"n1": 3.25, "n2": -2.0}
    )
    one.unreachable = {f"n{number}": "refused" for number in range(7)}
    steps = {
        "analyze": StepStatus(last_success=ago(90), last_duration_s=4.0, result="3 jobs summarized")
    }
    return CollectStatus(
        "1", str(lake), "head1", 7, ago(9000), updated, stopped, {one.name: one}, steps
    )


def written(folder: Path, *, updated: datetime, stopped: datetime | None = None) -> Path:
    """A lake's folder with that status."""
    lake = folder / "lake"
    state_folder(str(lake)).mkdir(parents=True)
    write_status(state_folder(str(lake)), status(lake, updated=updated, stopped=stopped))
    return lake


def test_a_status_reads_back_and_one_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    lake = written(tmp_path, updated=NOW)
    folder = state_folder(str(lake))
    assert read_status(folder) == status(lake, updated=NOW)
    assert [file.name for file in folder.iterdir()] == ["status.json"]
    for broken in (b"", b"{", b'{"version": 2}', b"\xff"):
        (folder / "status.json").write_bytes(broken)
        assert read_status(folder) is None
    assert read_status(tmp_path / "absent") is None


def test_a_process_with_a_stale_status_hangs(tmp_path: Path) -> None:
    lake = written(tmp_path, updated=ago(61))
    folder = state_folder(str(lake))
    assert overview(str(lake), folder, [], now=NOW).is_healthy  # no one holds the lock: it ended
    with CollectLock(folder).held(now=ago(9000), pause=time.sleep):
        found = overview(str(lake), folder, [], now=NOW)
        assert (found.hangs, found.is_healthy) == (True, False)
        write_status(folder, status(lake, updated=ago(59)))
        found = overview(str(lake), folder, [], now=NOW)
        assert (found.hangs, found.is_healthy) == (False, True)


def test_a_configured_source_that_was_never_polled_is_not_healthy(tmp_path: Path) -> None:
    lake = written(tmp_path, updated=NOW)
    feeds = [FeedSettings(source="fake", name="two", every_s=5.0)]
    found = overview(str(lake), state_folder(str(lake)), feeds, now=NOW)
    assert [one.condition(NOW) for one in found.sources] == ["never polled", "ok"]
    assert not found.is_healthy


def test_what_status_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = written(tmp_path, updated=NOW, stopped=NOW)
    assert main(["status", "--lake", str(lake)]) == 1  # all of that is long ago
    head, empty, title, headings, row, *rest = (
        capsys.readouterr().out.replace(str(lake), "LAKE").splitlines()
    )
    assert (head, empty) == (
        "No collector running: the last one stopped at 2026-03-01 12:00:00 UTC. Lake: LAKE",
        "",
    )
    assert title == "Sources (times: UTC)"
    assert headings.split("  ")[0] == "source"
    cells = [cell.strip() for cell in row.split("  ") if cell]
    assert cells[:4] == ["fake:one", "late", "2026-03-01 11:59:30 UTC", "2026-03-01 11:59:20 UTC"]
    assert rest == [
        "",
        "fake:one: last error at 2026-03-01 11:45:00 UTC: http://n1: refused",
        (
            "fake:one: 7 unreachable: n0: refused; n1: refused; n2: refused; n3: refused; n4: "
            "refused, ..."
        ),
        "fake:one: clock differs from this host by more than 1 s: n1 3.2 s ahead, n2 2.0 s behind",
        "Last analysis at 2026-03-01 11:58:30 UTC, took 4 s: 3 jobs summarized",
    ]


def test_a_watermark_ahead_of_the_clock_is_an_error_with_its_negative_lag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake, now = written(tmp_path, updated=NOW, stopped=NOW), datetime.now(UTC)
    ahead = source(
        last_poll=now, last_success=now, watermarks={"fake:one": now + timedelta(seconds=3600)}
    )
    found = status(lake, updated=now, stopped=now)
    found.sources = {ahead.name: ahead}
    write_status(state_folder(str(lake)), found)
    assert main(["status", "--lake", str(lake)]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"^fake:one  ahead .* -(1 h|60 min|59.\d min) ", printed, re.MULTILINE), (
        printed
    )
    assert " ahead of this host's clock; fix the clock that is wrong" in printed
    assert main(["status", "--json", "--lake", str(lake)]) == 1
    (one,) = json.loads(capsys.readouterr().out)["sources"]
    assert one["condition"] == "ahead"
    assert one["lag_s"] == pytest.approx(-3600, abs=60)


SIGNALLED = """
import os, signal, sys, threading, time
from tachograph.collect.collector import stopping_on_signals
stopping = threading.Event()
with stopping_on_signals(stopping, kill=lambda: os.write(1, b"killed")):
    os.kill(os.getpid(), signal.SIGTERM)
    stopping.wait(10)
    os.write(1, b"stopping ")
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
"""


def test_the_second_signal_ends_at_once() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "stopping killed", "")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def filled(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as stream, suppress(OSError):
        while stream.write(bytes(4096)):
            pass


@pytest.mark.slow
def test_on_a_full_disk_the_status_is_still_written_and_names_the_disk(small_disk: Path) -> None:
    lake = small_disk / "lake"
    folder = lake / "_collect"
    with CollectLock(folder).held(now=ago(600), pause=time.sleep):
        write_status(folder, status(lake, updated=ago(100)))
        assert overview(str(lake), folder, (), now=ago(99)).full_disk is None
        filled(small_disk)
        found = overview(str(lake), folder, (), now=NOW)
        assert (found.full_disk, found.hangs, found.is_healthy) == (str(small_disk), False, False)
        headline = status_headline(found, "UTC")
        assert headline.startswith(
            f"Disk full: {small_disk}: nothing more is committed; free some space"
        )
        assert "restart" not in headline
        assert found.as_json()["full_disk"] == str(small_disk)
        assert found.without_places().full_disk == "(for admins)"
        now = status(lake, updated=NOW)
        now.sources["fake:one"].last_error = "the disk is full" * 50
        write_status(folder, now)
        assert read_status(folder) == now
        assert sorted(path.name for path in folder.iterdir()) == ["lock", STATUS_FILE]
    (small_disk / "filler").unlink()
    write_status(folder, status(lake, updated=NOW))
    assert overview(str(lake), folder, (), now=NOW).full_disk is None


def test_a_status_that_is_written_while_it_is_asked_for_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_early(file: Path) -> bytes:
        file.touch()
        raise FileNotFoundError(file)

    monkeypatch.setattr(Path, "read_bytes", too_early)
    assert read_status(tmp_path) is None
    assert (tmp_path / "status.json").exists()
