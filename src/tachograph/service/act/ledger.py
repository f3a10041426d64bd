"""The ledger of actions: what was done, to whom, why and when; a file of JSON lines that only grows.

Every action has a key that says what it is for, such as `digest:2026-W47:ann`. It is noted before it is begun and when
its result is known, so whoever starts again, also after being killed, knows what was done and does nothing twice.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import msgspec

from tachograph.catalog.durable import sync_folder
from tachograph.catalog.errors import LakeError, RefusedError, TachographError, UnreachableError

LEDGER_FILE = "actions.jsonl"
MOST_ATTEMPTS = 5
RETRY = timedelta(minutes=10)  # after the first failure; twice as long after each further one

# would: a dry run. unknown: the process ended while it was being done, and it cannot be seen whether it was.
# refused: it would have run a word of a record that is none of Slurm's, or changed something else
ActionState = Literal["would", "begun", "done", "failed", "unknown", "refused"]


class ActionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the ledger.

    key: what for. kind: mail, webhook, comment, scancel, ...; target: whom or what it concerns. why: the evidence, in
    words. result: what became of it. attempt: counted from 1.
    """

    t: datetime
    key: str
    kind: str
    state: ActionState
    target: str = ""
    why: str = ""
    result: str = ""
    attempt: int = 1


class ActionLedger:
    """The ledger of one folder, open for one process at a time.

    Errors: LakeError where another process has it, or it cannot be written. A last line that was cut off by a kill is
    removed; what it would have noted was not begun yet, or counts as unknown.
    """

    def __init__(self, folder: Path, *, clock: Callable[[], datetime]) -> None:
        self.path = folder / LEDGER_FILE
        self._clock = clock
        self._last: dict[str, ActionRecord] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with ExitStack() as undo:
                undo.callback(os.close, self._descriptor)
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._read()
                sync_folder(folder)
                undo.pop_all()
        except BlockingIOError:
            raise LakeError("another process acts already", where=str(self.path), do="stop it first") from None
        except OSError as problem:
            raise LakeError(f"the ledger cannot be opened: {problem.strerror}", where=str(self.path)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def last(self, key: str) -> ActionRecord | None:
        """Return the last line about a key."""
        return self._last.get(key)

    def is_due(self, key: str, *, dry_run: bool = False) -> bool:
        """Return whether there is anything to do: it was not done, and a failure is long enough ago to try again."""
        last = self._last.get(key)
        if last is None or (last.state == "would" and not dry_run):
            return True
        if last.state != "failed":
            return False
        return last.attempt < MOST_ATTEMPTS and self._clock() >= last.t + RETRY * 2 ** (last.attempt - 1)

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
        """Do what is due, and return the last line about it; what is not due is not done.

        act: does it and returns its result in words; TachographError and OSError are failures, of which an
        UnreachableError uses up no attempt and a RefusedError is final. dry_run: note what would
        be done. repeatable: doing it twice is doing it once, so it is done again where its result is not known.
        """
        last, attempt = self._last.get(key), 1
        interrupted = last is not None and last.state == "begun"
        if last is not None and interrupted and not repeatable:
            return self.note(key, kind, "unknown", target, why, "interrupted", last.attempt)
        if last is not None and not interrupted and not self.is_due(key, dry_run=dry_run):
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
        while line:
            line = line[os.write(self._descriptor, line) :]
        os.fsync(self._descriptor)
        self._last[key] = record
        return record

    def _read(self) -> None:
        """Read all lines, and remove one that was cut off."""
        whole = 0
        for record, end in _records(self.path):
            self._last[record.key] = record
            whole = end
        if whole < self.path.stat().st_size:
            os.ftruncate(self._descriptor, whole)


def read_ledger(folder: Path) -> list[ActionRecord]:
    """Return all lines of the ledger in a folder, oldest first; none where there is no ledger. Errors: LakeError."""
    try:
        return [record for record, _ in _records(folder / LEDGER_FILE)]
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise LakeError(f"the ledger cannot be read: {problem.strerror}", where=str(folder / LEDGER_FILE)) from None


def _records(path: Path) -> Iterator[tuple[ActionRecord, int]]:
    """Lines with the place where each ends; a last one that was cut off is left out.

    Errors: LakeError for a line that is none; OSError.
    """
    end = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                return
            end += len(line)
            with suppress(msgspec.DecodeError):
                yield msgspec.json.decode(line, type=ActionRecord), end
                continue
            raise LakeError(f"line {number} is no action", where=str(path), do="move the file away, or repair the line")
