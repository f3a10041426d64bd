"""A pool of Dask workers: tasks of an analysis on processes of any number of machines.

A task whose worker died is run again by Dask, elsewhere or by the worker that takes its place. Nothing a task needs is
lost with a worker either: what is shared is itself a task, so it is made again, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Generic, TypeVar, cast

from distributed import Client, Future, KilledWorker, wait
from distributed.comm.core import CommClosedError

from tachograph.errors import WorkersError
from tachograph.lake import Lake
from tachograph.reduce.dask_check import INSTALL, PACKAGES, check_worker, disagreements, expected, run_there

T = TypeVar("T")

LOOK_S = 5.0  # waiting for a result: how often it is looked whether there are workers
FETCH_S = 600.0  # for a result that is there to arrive
ASKED_AGAIN, ASK_AGAIN_S = 10, 2.0  # it takes the scheduler some seconds to see that a worker is gone


@dataclass(frozen=True, slots=True)
class Crew:
    """The workers of one analysis.

    width: tasks that run at a time when all are there. size: workers there should be; where there are fewer,
    `hire` asks for those that are missing. logs: in words, where to read what became of them.
    """

    client: Client
    width: int
    size: int
    hire: Callable[[], None]
    logs: str


class DaskPool:
    """Runs tasks on the workers of a crew, each of which is looked at first.

    Errors: WorkersError when a worker has other versions, LakeError when it does not see the lake.
    """

    def __init__(self, crew: Crew, lake: Lake, *, wait_s: float) -> None:
        self.width = crew.width
        self._crew, self._client, self._wait_s = crew, crew.client, wait_s
        self._none_since: float | None = None
        self._expected = expected(lake)
        self._check()

    def share(self, value: T) -> Any:
        """Hand a large value to the workers, who give it to each other."""
        return self._client.submit(_itself, value, pure=False)

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Task[T]:
        """Start a task as soon as a worker is free."""
        return Task(self, self._client.submit(run_there, self._expected, function, *arguments, pure=False))

    def everywhere(self, function: Callable[..., T], /, *arguments: Any) -> Mapping[str, T]:
        """Return what the function returns on each worker that is there, by its address; raises what one raises.

        Those that leave while they are asked do not count. Errors: WorkersError where that does not end.
        """
        for _ in range(ASKED_AGAIN):
            try:
                return cast("Mapping[str, T]", self._client.run(function, *arguments))
            except CommClosedError:
                time.sleep(ASK_AGAIN_S)
        raise WorkersError("workers leave while they are asked", do=f"look {self._crew.logs}")

    def look_after(self) -> None:
        """Ask for the workers that are missing.

        Errors: WorkersError when there has been none for too long.
        """
        present = len(self._client.nthreads())
        if present < self._crew.size:
            self._crew.hire()
        if present:
            self._none_since = None
            return
        since = self._none_since = self._none_since or time.monotonic()
        if time.monotonic() - since > self._wait_s:
            raise WorkersError(
                f"all workers are gone, and none came within {self._wait_s:.0f} s", do=f"look {self._crew.logs}"
            )

    def died(self, problem: KilledWorker) -> WorkersError:
        """Return what to say when a task took several workers with it."""
        return WorkersError(
            f"{problem.allowed_failures + 1} workers died over one partition, the last of them "
            f"{problem.last_worker.address}",
            do=f"give each worker more memory, or start fewer on a machine; look {self._crew.logs}",
        )

    def _check(self) -> None:
        """Look at the workers that are there; those that come later look at themselves before their first task."""
        found: dict[str, dict[str, str | None]] = {}
        for name in PACKAGES:
            told = self._client.run(metadata.version, name, on_error="return")
            for worker, version in told.items():
                found.setdefault(worker, {})[name] = version if isinstance(version, str) else None
        wrong = disagreements(self._expected.versions, found)
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise WorkersError(f"{wrong[0]}{more}", do=INSTALL)
        self.everywhere(check_worker, self._expected)


class Task(Generic[T]):
    """What a worker will return."""

    def __init__(self, pool: DaskPool, future: Future[T]) -> None:
        self._pool, self._future = pool, future

    def result(self) -> T:
        """Return it, once it is there.

        Errors: what the task raised; WorkersError when there are no workers, or they died over it, or the scheduler
        is gone.
        """
        try:
            return self._wait()
        except KilledWorker as problem:
            raise self._pool.died(problem) from None
        except (CancelledError, OSError) as problem:
            if isinstance(problem, OSError) and self._future.status == "error":
                raise  # by the task itself
            raise WorkersError(
                "the Dask scheduler is gone, or has forgotten this analysis",
                do="start it again and run the analysis anew: nothing is half done",
            ) from None

    def _wait(self) -> T:
        while True:
            try:
                wait([self._future], timeout=LOOK_S)
                return self._future.result(timeout=FETCH_S)
            except TimeoutError:
                if self._future.status == "error":
                    raise
                self._pool.look_after()


def _itself(value: T) -> T:
    return value
