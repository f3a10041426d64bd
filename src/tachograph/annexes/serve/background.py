"""Slow reports: computed once by a worker, and cached while among the newest."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tachograph.api.pages import Pending, Progress
from tachograph.catalog.errors import LakeError

T = TypeVar("T")
KEPT_BYTES = 128 << 20  # of reports; the one that was used longest ago goes first
WAITING = 24  # reports that are not made yet; a further one is refused
WAITING_OF_ONE = 8  # of those, as many for one viewer: others can still have theirs made
FIRST_WAIT_S = 1.0  # what takes less is shown at once


@dataclass(frozen=True, slots=True)
class BackgroundJob:
    """A report that is ready or in progress."""

    future: Future[bytes]
    progress: Pending
    owner: str


@dataclass(slots=True)
class SharedObjects:
    """Objects shared by pages while the server runs; each has `close`."""

    # `make` of one may ask for another
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _objects: dict[str, Any] = field(default_factory=dict)
    _closed: bool = False

    def get(self, name: str, make: Callable[[], T]) -> T:
        """Get object `name`, created at its first use.

        Errors: LakeError after `close`, when nobody would close it.
        """
        with self._lock:
            if name not in self._objects:
                if self._closed:
                    raise LakeError("the server is stopping", do="try again in a minute")
                self._objects[name] = make()
            shared: T = self._objects[name]
            return shared

    def close(self) -> None:
        """Close all of them, also where one fails to."""
        with self._lock, contextlib.ExitStack() as stack:
            self._closed = True
            for shared in self._objects.values():
                stack.callback(shared.close)


@dataclass(frozen=True, slots=True)
class CachedResult(Generic[T]):
    """A result, in a list that is empty until it is there; `lock` is held while it is computed."""

    # Reentrant: a result that needs itself is a recursion that Python reports, not a deadlock.
    lock: threading.RLock = field(default_factory=threading.RLock)
    values: list[T] = field(default_factory=list)


@dataclass(slots=True)
class CachedResults(Generic[T]):
    """The newest results of a lake version, each computed once however many threads want it."""

    most: int
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _entries: OrderedDict[Hashable, CachedResult[T]] = field(default_factory=OrderedDict)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return the result of `key`, cached or from `make`; a thread that comes later waits.

        Errors: those of `make`, which is called again by the next thread.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                if len(self._entries) >= self.most:
                    self._entries.popitem(last=False)
                entry = self._entries[key] = CachedResult()
        with entry.lock:
            if not entry.values:
                entry.values.append(make())
            return entry.values[0]


@dataclass(slots=True)
class Background:
    """Reports of a server, computed one at a time."""

    kept_bytes: int = KEPT_BYTES
    waiting: int = WAITING
    waiting_of_one: int = WAITING_OF_ONE
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _jobs: OrderedDict[Hashable, BackgroundJob] = field(default_factory=OrderedDict)
    _worker: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="background")
    )

    def get(
        self,
        key: Hashable,
        make: Callable[[Progress], bytes],
        *,
        owner: str = "",
        wait_s: float = FIRST_WAIT_S,
    ) -> bytes | Pending:
        """Return the report of `key`, cached or from `make`; Pending after `wait_s` seconds.

        `key` holds all inputs: kind, version of the lake, scope of the viewer, settings. `owner`:
        the identity whose limit it counts against. Errors: those of `make`, which is called again
        at the next request; LakeError if too many wait.
        """
        job = self._job(key, make, owner)
        wait_for([job.future], timeout=wait_s)
        if not job.future.done():
            return job.progress
        if job.future.exception() is not None:
            with self._lock:
                if self._jobs.get(key) is job:
                    del self._jobs[key]
        return job.future.result()

    def close(self) -> None:
        """Forget the reports that are not begun yet."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _job(self, key: Hashable, make: Callable[[Progress], bytes], owner: str) -> BackgroundJob:
        with self._lock:
            scheduled = self._jobs.get(key)
            if scheduled is not None:
                self._jobs.move_to_end(key)
                return scheduled
            owners = [job.owner for job in self._jobs.values() if not job.future.done()]
            if len(owners) >= self.waiting or owners.count(owner) >= self.waiting_of_one:
                raise LakeError("too many reports are being made", do="try again in a minute")
            self._drop()
            progress = Pending()
            job = self._jobs[key] = BackgroundJob(
                self._worker.submit(make, progress.note), progress, owner
            )
            return job

    def _drop(self) -> None:
        """Drop failed reports, and old ones above the byte limit."""
        complete = {key: job.future for key, job in self._jobs.items() if job.future.done()}
        sizes = {
            key: 0 if done.exception() else len(done.result()) for key, done in complete.items()
        }
        total_bytes = sum(sizes.values())
        for key, size in sizes.items():
            if not size or total_bytes > self.kept_bytes:
                del self._jobs[key]
                total_bytes -= size
