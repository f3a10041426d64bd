"""The ledger of actions: nothing is done twice, also where the process is killed at any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tachograph.catalog.errors import LakeError
from tachograph.service.act.ledger import LEDGER_FILE, MOST_ATTEMPTS, RETRY, ActionLedger, read_ledger

START = datetime(2026, 11, 23, 8, tzinfo=UTC)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def counted(done: list[str], result: str = "sent") -> Callable[[], str]:
    def act() -> str:
        done.append(result)
        return result

    return act


def test_what_was_done_is_not_done_again(tmp_path: Path, clock: Clock) -> None:
    done: list[str] = []
    for _ in range(3):
        with ActionLedger(tmp_path, clock=clock) as ledger:
            record = ledger.once("digest:2026-W47:ann", "mail", counted(done), target="ann", why="weekly")
            assert (record.state, record.result) == ("done", "sent")
    assert done == ["sent"]
    assert [record.state for record in read_ledger(tmp_path)] == ["begun", "done"]


def test_a_failure_is_tried_again_later_and_not_for_ever(tmp_path: Path, clock: Clock) -> None:
    tried: list[datetime] = []

    def fails() -> str:
        tried.append(clock.now)
        raise OSError(111, "Connection refused")

    with ActionLedger(tmp_path, clock=clock) as ledger:
        for _ in range(24 * 60):
            assert ledger.once("a", "mail", fails).state == "failed"
            clock.now += timedelta(minutes=1)
    assert len(tried) == MOST_ATTEMPTS
    pauses = [(later - earlier) / RETRY for earlier, later in pairwise(tried)]
    assert pauses == [1, 2, 4, 8]
    assert read_ledger(tmp_path)[-1].result == "[Errno 111] Connection refused"


def test_a_dry_run_notes_once_what_it_would_do_and_is_no_obstacle_later(tmp_path: Path, clock: Clock) -> None:
    done: list[str] = []
    with ActionLedger(tmp_path, clock=clock) as ledger:
        for _ in range(3):
            assert ledger.once("cancel:1", "scancel", counted(done), why="hung", dry_run=True).state == "would"
        assert not done
        assert ledger.once("cancel:1", "scancel", counted(done), why="hung").state == "done"
    assert [record.state for record in read_ledger(tmp_path)] == ["would", "begun", "done"]


@pytest.mark.parametrize(("repeatable", "state", "times"), [(False, "unknown", 0), (True, "done", 1)])
def test_what_was_interrupted_is_done_again_only_where_it_may_be(
    tmp_path: Path, clock: Clock, repeatable: bool, state: str, times: int
) -> None:
    done: list[str] = []
    with ActionLedger(tmp_path, clock=clock) as ledger:
        ledger.note("a", "mail", "begun")
    for _ in range(2):
        with ActionLedger(tmp_path, clock=clock) as ledger:
            assert ledger.once("a", "mail", counted(done), repeatable=repeatable).state == state
    assert len(done) == times


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_was_cut_off_is_removed(tmp_path: Path, clock: Clock, cut: int) -> None:
    with ActionLedger(tmp_path, clock=clock) as ledger:
        ledger.note("a", "mail", "done")
        ledger.note("b", "mail", "begun")
    path = tmp_path / LEDGER_FILE
    path.write_bytes(path.read_bytes()[:-cut])
    with ActionLedger(tmp_path, clock=clock) as ledger:
        assert ledger.last("a") is not None
        assert ledger.last("b") is None
        assert ledger.once("b", "mail", lambda: "sent").state == "done"
    assert [record.key for record in read_ledger(tmp_path)] == ["a", "b", "b"]


def test_one_process_has_it_at_a_time(tmp_path: Path, clock: Clock) -> None:
    with ActionLedger(tmp_path, clock=clock), pytest.raises(LakeError, match="another process acts already"):
        ActionLedger(tmp_path, clock=clock)


def test_a_line_that_is_no_action_is_an_error_that_names_it(tmp_path: Path, clock: Clock) -> None:
    with ActionLedger(tmp_path, clock=clock) as ledger:
        ledger.note("a", "mail", "done")
    with (tmp_path / LEDGER_FILE).open("ab") as lines:
        lines.write(b"{}\n")
    with pytest.raises(LakeError, match="line 2 is no action"):
        ActionLedger(tmp_path, clock=clock)


_MANY = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from tachograph.service.act.ledger import ActionLedger

folder = Path(sys.argv[1])
with ActionLedger(folder, clock=lambda: datetime.now(UTC)) as ledger:
    for number in range(200):
        def act() -> str:
            with (folder / "sent").open("a") as sent:
                sent.write(f"{number}\\n")
            return "sent"
        ledger.once(str(number), "mail", act)
print("whole")
"""


def test_killed_at_any_moment_nothing_is_done_twice(tmp_path: Path) -> None:
    kills = 0
    for _ in range(60):
        process = subprocess.Popen([sys.executable, "-c", _MANY, str(tmp_path)], stdout=subprocess.DEVNULL)
        seen = (tmp_path / "sent").stat().st_size if (tmp_path / "sent").exists() else 0
        while process.poll() is None:
            with_more = (tmp_path / "sent").exists() and (tmp_path / "sent").stat().st_size > seen + 40
            if with_more and kills < 8:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
        if process.wait() == 0:
            break
    assert kills == 8
    sent = (tmp_path / "sent").read_text(encoding="utf-8").split()
    assert len(sent) == len(set(sent))
    states = {record.key: record.state for record in read_ledger(tmp_path)}
    assert len(states) == 200
    assert set(states.values()) <= {"done", "unknown"}
    assert sum(state == "unknown" for state in states.values()) <= kills
