"""The ledger of actions: nothing is done twice, also where the process is killed at any moment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tachograph.annexes.act.ledger import (
    KEPT_OF_POLICY,
    LEDGER_FILE,
    MOST_ATTEMPTS,
    RETRY,
    ActionLedger,
    ActionRecord,
    LedgerIndex,
    read_ledger,
)
from tachograph.catalog.errors import LakeError

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
            record = ledger.once(
                "digest:2026-W47:ann", "mail", counted(done), target="ann", why="weekly"
            )
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


def test_a_dry_run_notes_once_what_it_would_do_and_is_no_obstacle_later(
    tmp_path: Path, clock: Clock
) -> None:
    done: list[str] = []
    with ActionLedger(tmp_path, clock=clock) as ledger:
        for _ in range(3):
            assert (
                ledger.once("cancel:1", "scancel", counted(done), why="hung", dry_run=True).state
                == "would"
            )
        assert not done
        assert ledger.once("cancel:1", "scancel", counted(done), why="hung").state == "done"
    assert [record.state for record in read_ledger(tmp_path)] == ["would", "begun", "done"]


@pytest.mark.parametrize(
    ("repeatable", "state", "times"), [(False, "unknown", 0), (True, "done", 1)]
)
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
    with (
        ActionLedger(tmp_path, clock=clock),
        pytest.raises(LakeError, match="another `tachograph act` is running"),
    ):
        ActionLedger(tmp_path, clock=clock)


def test_a_line_that_is_no_action_is_an_error_that_names_it(tmp_path: Path, clock: Clock) -> None:
    with ActionLedger(tmp_path, clock=clock) as ledger:
        ledger.note("a", "mail", "done")
    with (tmp_path / LEDGER_FILE).open("ab") as lines:
        lines.write(b"{}\n")
    with pytest.raises(LakeError, match="line 2 is not an action"):
        ActionLedger(tmp_path, clock=clock)


_MANY = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from tachograph.annexes.act.ledger import ActionLedger

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


@pytest.mark.slow
def test_killed_at_any_moment_nothing_is_done_twice(tmp_path: Path) -> None:
    kills = 0
    for _ in range(60):  # under load fewer kills come in time
        process = subprocess.Popen(
            [sys.executable, "-c", _MANY, str(tmp_path)], stdout=subprocess.DEVNULL
        )
        seen = (tmp_path / "sent").stat().st_size if (tmp_path / "sent").exists() else 0
        while process.poll() is None:
            with_more = (tmp_path / "sent").exists() and (
                tmp_path / "sent"
            ).stat().st_size > seen + 40
            if with_more and kills < 8:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
        if process.wait() == 0:
            break
    assert kills
    sent = (tmp_path / "sent").read_text(encoding="utf-8").split()
    assert len(sent) == len(set(sent))
    states = {record.key: record.state for record in read_ledger(tmp_path)}
    assert len(states) == 200
    assert set(states.values()) <= {"done", "unknown"}
    assert sum(state == "unknown" for state in states.values()) <= kills


# --------------------------------------------------------------------------------------- read once, archived by age


def test_an_index_saves_reading_and_sees_what_others_wrote(tmp_path: Path, clock: Clock) -> None:
    index = LedgerIndex()
    for number in range(3):
        with ActionLedger(tmp_path, clock=clock, index=index) as ledger:
            ledger.note(f"own-{number}", "mail", "done")
        with ActionLedger(tmp_path, clock=clock) as other:
            other.note(f"other-{number}", "mail", "done")
    path = tmp_path / LEDGER_FILE
    content = path.read_bytes()
    first = content.splitlines(keepends=True)[0]
    # Not seen: what was read is not read again.
    path.write_bytes(content.replace(b"own-0", b"OWN-0", 1))
    with ActionLedger(tmp_path, clock=clock, index=index) as ledger:
        assert ledger.last("other-2") is not None
        assert ledger.last("own-0") is not None
    assert index.lines == 6
    path.write_bytes(first)  # shorter
    with ActionLedger(tmp_path, clock=clock, index=index) as ledger:
        assert ledger.last("own-1") is None
        ledger.note("own-1", "mail", "done")
    path.write_bytes(content.replace(b"own-1", b"OWN-1").replace(b"other-0", b"OTHER-0"))  # edited
    with ActionLedger(tmp_path, clock=clock, index=index) as ledger:
        assert (ledger.last("own-1"), index.lines) == (None, 6)
    path.unlink()
    with ActionLedger(tmp_path, clock=clock, index=index) as ledger:
        assert ledger.last("own-0") is None


def two_years_of_lines() -> Iterator[ActionRecord]:
    """Cases of each day, one that goes on, and one that was interrupted."""
    for days in range(730, -1, -1):
        noted = START - timedelta(days=days)
        for kind in ("comment", "policy"):
            yield ActionRecord(noted, f"{kind}:{days}", kind, "begun")
            yield ActionRecord(noted, f"{kind}:{days}", kind, "done")
        yield ActionRecord(noted, "policy:long", "policy", "failed", attempt=5)
        if days == 500:
            yield ActionRecord(noted, "digest:interrupted", "mail", "begun")


@pytest.fixture(scope="module")
def two_years(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two-years")
    lines = [msgspec.json.encode(record) + b"\n" for record in two_years_of_lines()]
    (folder / LEDGER_FILE).write_bytes(b"".join(lines))
    return folder


def copy_of(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


def test_old_lines_are_archived_and_what_can_be_due_again_stays(
    tmp_path: Path, two_years: Path, clock: Clock
) -> None:
    folder = copy_of(two_years, tmp_path / "state")
    before = read_ledger(folder)
    index = LedgerIndex()
    with ActionLedger(folder, clock=clock, index=index) as ledger:
        assert ledger.archive() > 2000
        assert ledger.archive() == 0
        with pytest.raises(LakeError, match="another `tachograph act` is running"):
            ActionLedger(folder, clock=clock)  # the new file is locked as well
        ledger.note("new", "mail", "done")
    assert sorted(path.name for path in folder.iterdir()) == [
        "actions-before-2026-08-01.jsonl",
        LEDGER_FILE,
    ]
    assert sorted(
        read_ledger(folder)[:-1], key=lambda record: (record.t, record.key, record.state)
    ) == sorted(before, key=lambda record: (record.t, record.key, record.state))
    kept = {record.key for record in read_ledger(folder)[-index.lines :]}
    assert kept == {
        *("new", "policy:long", "digest:interrupted"),
        *(f"comment:{days}" for days in range(115)),
        *(f"policy:{days}" for days in range(KEPT_OF_POLICY.days + 1)),
    }
    with ActionLedger(folder, clock=clock) as ledger:
        assert ledger.last("new") is not None
        assert not ledger.is_due("policy:400")
        assert not ledger.is_due("policy:long")
        assert ledger.once("digest:interrupted", "mail", lambda: "sent").state == "unknown"


_ARCHIVES = """
import os, signal, sys
from datetime import datetime
from pathlib import Path
from tachograph.annexes.act.ledger import ActionLedger

folder, left, now = Path(sys.argv[1]), int(sys.argv[2]), datetime.fromisoformat(sys.argv[3])

def count(event, arguments):
    global left
    if event in ("open", "os.rename", "os.remove", "os.scandir", "os.listdir", "fcntl.flock", "os.truncate"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

with ActionLedger(folder, clock=lambda: now) as ledger:
    sys.addaudithook(count)
    ledger.archive()
"""


@pytest.mark.slow
def test_killed_at_any_moment_of_archiving_no_line_is_lost_or_doubled(
    tmp_path: Path, two_years: Path, clock: Clock
) -> None:
    """Each call that opens, renames, removes or locks a file is one moment."""
    expected = sorted(map(str, read_ledger(two_years)))
    for moment in range(1, 100):
        folder = copy_of(two_years, tmp_path / str(moment))
        words = [sys.executable, "-c", _ARCHIVES, str(folder), str(moment), START.isoformat()]
        code = subprocess.run(words, timeout=300).returncode
        with ActionLedger(folder, clock=clock) as ledger:
            if code:
                assert sorted(map(str, read_ledger(folder))) == expected, moment
            ledger.archive()
        assert sorted(map(str, read_ledger(folder))) == expected, moment
        names = {path.name for path in folder.iterdir()}
        assert names == {"actions-before-2026-08-01.jsonl", LEDGER_FILE}
        if code == 0:
            break
    assert 6 < moment < 40
