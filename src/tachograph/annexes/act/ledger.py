"""Ledger of actions: what, to whom, why, when; JSON lines; old ones are archived.

Every action has a key for its purpose, such as `digest:2026-W47:ann`. It is recorded before it
begins and when its result is known, so that a restart, also after a kill, repeats nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Literal, Self

import msgspec

from tachograph.catalog.durable import sync_folder
from tachograph.catalog.errors import LakeError, RefusedError, TachographError, UnreachableError

LEDGER_FILE = "actions.jsonl"
# then lines go to an archive: keys have a day, a week or a job in them, and are not due again
KEPT = timedelta(days=90)
# a case of a policy is due for as long as its job runs and does no work, so the last line about it
# stays longer
KEPT_OF_POLICY = timedelta(days=400)
MOST_ATTEMPTS = 5
RETRY = timedelta(minutes=10)  # after the first failure; twice as long after each further one

# would: a dry run. unknown: the process ended while it was being done, and it cannot be seen
# whether it was. refused: it would have run a word of a record that is none of Slurm's, or changed
# something else
ActionState = Literal["would", "begun", "done", "failed", "unknown", "refused"]


class ActionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the ledger.

    key: what for. kind: mail, webhook, comment, scancel, ...; target: whom or what it concerns.
    why: the evidence, in words. result: what became of it. attempt: counted from 1.
    """

    t: datetime
    key: str
    kind: str
    state: ActionState
    target: str = ""
    why: str = ""
    result: str = ""
    attempt: int = 1


@dataclass(slots=True)
class LedgerIndex:
    """Index of a ledger: last line of each key, up to byte `end` of the file.

    Passed from one opening to the next, it saves rereading these lines. line: the last one, which
    shows that the file is still the same. begin: time of the first line.
    """

    inode: int = 0
    end: int = 0
    lines: int = 0
    line: bytes = b""
    begin: datetime | None = None
    last: dict[str, ActionRecord] = field(default_factory=dict)
    archived: datetime | None = None

    def start_over(self, inode: int) -> None:
        """Forget the lines: the file of this inode is another one."""
        self.inode = inode
        self.end = self.lines = 0
        self.line = b""
        self.begin = None
        self.last.clear()

    def add(self, record: ActionRecord, line: bytes) -> None:
        """Add the next line."""
        self.begin = self.begin or record.t
        self.last[record.key] = record
        self.end += len(line)
        self.lines += 1
        self.line = line


class ActionLedger:
    """The ledger of a folder, open in one process at a time.

    index: of an earlier opening, whose lines are not read again. Errors: LakeError where another
    process has it, or it cannot be written. A last line that was cut off by a kill is removed; what
    it would have noted was not begun yet, or counts as unknown.
    """

    def __init__(
        self, folder: Path, *, clock: Callable[[], datetime], index: LedgerIndex | None = None
    ) -> None:
        self.path = folder / LEDGER_FILE
        self._clock = clock
        self._index = LedgerIndex() if index is None else index
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with ExitStack() as undo:
                self._descriptor = _open_locked(self.path)
                undo.callback(lambda: os.close(self._descriptor))
                self._finish_archive()
                self._read()
                sync_folder(folder)
                undo.pop_all()
        except BlockingIOError:
            raise LakeError(
                "another `tachograph act` is running", where=str(self.path), do="stop it first"
            ) from None
        except OSError as problem:
            raise LakeError(
                f"the ledger cannot be opened: {problem.strerror}", where=str(self.path)
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)

    @property
    def folder(self) -> Path:
        """The folder of the ledger and of other state."""
        return self.path.parent

    def last(self, key: str) -> ActionRecord | None:
        """Return the last line about a key."""
        return self._index.last.get(key)

    def is_due(self, key: str, *, dry_run: bool = False) -> bool:
        """Return whether an action is due: not done, and not failed recently.

        One that was interrupted is due, too: its result has to be noted, or it is repeated.
        """
        last = self._index.last.get(key)
        if last is None or last.state == "begun" or (last.state == "would" and not dry_run):
            return True
        if last.state != "failed":
            return False
        return last.attempt < MOST_ATTEMPTS and self._clock() >= last.t + RETRY * 2 ** (
            last.attempt - 1
        )

    def once(
        self,
        key: str,
        kind: str,
        act: Callable[[], str],
        *,
        target: str = "",
        why: str = "",
        dry_run: bool = False,
        repeatable: bool = False,
    ) -> ActionRecord:
        """Do an action if it is due; return the last ledger line about it.

        act: runs the action and returns its result in words. TachographError and OSError are
        failures; an UnreachableError does not count as an attempt, a RefusedError is final.
        dry_run: record what would be done. repeatable: idempotent, so it is repeated if its result
        is unknown.
        """
        last, attempt = self._index.last.get(key), 1
        if last is not None and last.state == "begun" and not repeatable:
            return self.note(key, kind, "unknown", target, why, "interrupted", last.attempt)
        if last is not None and not self.is_due(key, dry_run=dry_run):
            return last
        if last is not None and last.state in ("begun", "failed"):
            attempt = last.attempt + 1
        if dry_run:
            return self.note(key, kind, "would", target, why)
        self.note(key, kind, "begun", target, why, attempt=attempt)
        try:
            result = act()
        except UnreachableError as problem:
            return self.note(key, kind, "failed", target, why, str(problem), attempt - 1)
        except RefusedError as problem:
            return self.note(key, kind, "refused", target, why, str(problem), attempt)
        except (TachographError, OSError) as problem:
            return self.note(key, kind, "failed", target, why, str(problem), attempt)
        return self.note(key, kind, "done", target, why, result, attempt)

    def note(
        self,
        key: str,
        kind: str,
        state: ActionState,
        target: str = "",
        why: str = "",
        result: str = "",
        attempt: int = 1,
    ) -> ActionRecord:
        """Write a line; it is on the disk when this returns. Errors: OSError."""
        record = ActionRecord(self._clock(), key, kind, state, target, why, result, attempt)
        line = msgspec.json.encode(record) + b"\n"
        _write_all(self._descriptor, line)
        os.fsync(self._descriptor)
        self._index.add(record, line)
        return record

    def archive(self) -> int:
        """Move lines older than KEPT into a file of their own, once a month; return how many.

        The last line about a key stays where the key can be due again. Killed at any moment, each
        line is in one of the two files: the ledger is replaced by one without the lines, and the
        file with them, which names the inode of the ledger that it is cut from, counts once that is
        gone. Errors: OSError; then all is as before.
        """
        now = self._clock()
        cutoff = (now - KEPT).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        target = self.path.with_name(f"{_ARCHIVE}{cutoff:%Y-%m-%d}.jsonl")
        index = self._index
        if (
            index.begin is None
            or index.begin >= cutoff
            or index.archived == cutoff
            or target.exists()
        ):
            return 0
        moving = self.path.with_name(f".{target.name}.{index.inode}")
        fresh = self.path.with_name(f".{LEDGER_FILE}.new")
        count = 0
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(fresh, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # whoever opens it by its name finds it locked
            with _file_of_owner(moving) as old, os.fdopen(os.dup(descriptor), "ab") as remaining:
                for record, line in _lines(self.path):
                    is_old = record.t < cutoff and self._may_go(record, cutoff, now)
                    (old if is_old else remaining).write(line)
                    count += is_old
                for stream in (old, remaining):
                    stream.flush()
                    os.fsync(stream.fileno())
            if count:
                sync_folder(self.folder)
                fresh.replace(self.path)
        except OSError:
            os.close(descriptor)
            raise
        if not count:
            os.close(descriptor)
            fresh.unlink()
            moving.unlink()
            index.archived = cutoff  # all that is old has to stay: not looked at again
            return 0
        os.close(self._descriptor)
        self._descriptor = descriptor
        sync_folder(self.folder)
        self._finish_archive()
        self._read()
        return count

    def _may_go(self, record: ActionRecord, cutoff: datetime, now: datetime) -> bool:
        """Return whether an old line may be archived: superseded, or its key is never due again."""
        last = self._index.last[record.key]
        if record != last:
            return True
        kept_from = now - KEPT_OF_POLICY if record.key.startswith("policy:") else cutoff
        return last.state != "begun" and last.t < kept_from

    def _finish_archive(self) -> None:
        """Finish an interrupted rotation: lines are archived once the ledger is a new file."""
        inode = os.fstat(self._descriptor).st_ino
        for moving in self.folder.glob(f".{_ARCHIVE}*.jsonl.*"):
            if moving.suffix == f".{inode}":
                moving.unlink()
            else:
                moving.replace(moving.with_name(moving.stem.removeprefix(".")))
                sync_folder(self.folder)

    def _read(self) -> None:
        """Read the lines that are not in the index, and remove one that was cut off."""
        status, index = os.fstat(self._descriptor), self._index
        before = os.pread(self._descriptor, len(index.line), max(0, index.end - len(index.line)))
        if index.inode != status.st_ino or status.st_size < index.end or before != index.line:
            index.start_over(status.st_ino)
        for record, line in _lines(self.path, begin=index.end, number=index.lines):
            index.add(record, line)
        if index.end < status.st_size:
            os.ftruncate(self._descriptor, index.end)


_ARCHIVE = "actions-before-"  # prefix of archive names


def held_file(path: Path, clock: Callable[[], datetime]) -> AbstractContextManager[object]:
    """Return a lock on a state file; for a ledger, its own lock. Errors: as ActionLedger."""
    return ActionLedger(path.parent, clock=clock) if path.name == LEDGER_FILE else nullcontext()


def read_ledger(folder: Path) -> list[ActionRecord]:
    """Return all lines of a folder's ledger and archives, oldest first; empty without one.

    Errors: LakeError.
    """
    files = [*sorted(folder.glob(f"{_ARCHIVE}*.jsonl")), folder / LEDGER_FILE]
    try:
        return [record for file in files for record, _ in _lines(file)]
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise LakeError(
            f"the ledger cannot be read: {problem.strerror}", where=str(folder / LEDGER_FILE)
        ) from None


def _open_locked(path: Path) -> int:
    """Open and lock the ledger. Errors: BlockingIOError if another process holds it; OSError."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with ExitStack() as undo:
            undo.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # another process may have replaced the file before it was locked
            if path.exists() and os.path.samestat(os.fstat(descriptor), path.stat()):
                undo.pop_all()
                return descriptor


def _file_of_owner(path: Path) -> BinaryIO:
    return os.fdopen(
        os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb"
    )


def _write_all(descriptor: int, line: bytes) -> None:
    while line:
        line = line[os.write(descriptor, line) :]


def _lines(path: Path, *, begin: int = 0, number: int = 0) -> Iterator[tuple[ActionRecord, bytes]]:
    """Lines from byte `begin`, which `number` lines precede; skips a truncated last line.

    Errors: LakeError for an invalid line; OSError.
    """
    with path.open("rb") as lines:
        lines.seek(begin)
        for line_number, line in enumerate(lines, number + 1):
            if not line.endswith(b"\n"):
                return
            with suppress(msgspec.DecodeError):
                yield _DECODER.decode(line), line
                continue
            raise LakeError(
                f"line {line_number} is not an action",
                where=str(path),
                do="move the file away, or repair the line",
            )


_DECODER = msgspec.json.Decoder(ActionRecord)
