"""Reports that take seconds: made once by a thread of their own, and kept while they are among the newest."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tachograph.catalog.errors import LakeError

KEPT = 24  # reports; the one that was used longest ago goes first
WAITING = 8  # reports that are not made yet; a further one is refused
FIRST_WAIT_S = 1.0  # what takes less is shown at once

T = TypeVar("T")
Progress = Callable[[str, int, int], None]


@dataclass(slots=True)
class Pending:
    """A report that is not complete: which of its steps is being done; `done` of `total` are over, 0 not known."""

    doing: str = ""
    done: int = 0
    total: int = 0

    def note(self, doing: str, done: int, total: int) -> None:
        """Note the progress."""
        self.doing, self.done, self.total = doing, done, total


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """A report that is made or being made."""

    future: Future[Any]
    progress: Pending


@dataclass(slots=True)
class Background:
    """The reports of one server, one made at a time: those behind each other wait."""

    kept: int = KEPT
    waiting: int = WAITING
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _jobs: OrderedDict[Hashable, BackgroundJob] = field(default_factory=OrderedDict)
    _worker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="background"))

    def get(self, key: Hashable, make: Callable[[Progress], T], *, wait_s: float = FIRST_WAIT_S) -> T | Pending:
        """Return the report of `key`, made by `make` unless kept; Pending after `wait_s` seconds of it.

        `key` holds all that it depends on: what it is, version of the lake, scope of the viewer, settings.
        Errors: those of `make`, which is called again at the next request; LakeError where too many wait.
        """
        job = self._job(key, make)
        wait_for([job.future], timeout=wait_s)
        if not job.future.done():
            return job.progress
        if job.future.exception() is not None:
            with self._lock:
                if self._jobs.get(key) is job:
                    del self._jobs[key]
        made: T = job.future.result()
        return made

    def close(self) -> None:
        """Forget the reports that are not begun yet."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _job(self, key: Hashable, make: Callable[[Progress], T]) -> BackgroundJob:
        with self._lock:
            found = self._jobs.get(key)
            if found is not None:
                self._jobs.move_to_end(key)
                return found
            if sum(not job.future.done() for job in self._jobs.values()) >= self.waiting:
                raise LakeError("too many reports are being made", do="try again in a minute")
            self._drop()
            progress = Pending()
            job = self._jobs[key] = BackgroundJob(self._worker.submit(make, progress.note), progress)
            return job

    def _drop(self) -> None:
        """Make room for one more; reports that are being made stay."""
        complete = [key for key, job in self._jobs.items() if job.future.done()]
        for key in complete[: max(0, len(self._jobs) - self.kept + 1)]:
            del self._jobs[key]
