"""Where tasks run: threads of this process here; other pools take the same calls."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Pending(Protocol[T_co]):
    """What a task will return."""

    def result(self) -> T_co:
        """Return it, once it is there; raises what the task raised."""


class Pool(Protocol):
    """Runs tasks: functions of a module with arguments that can be pickled.

    A task may be run again where its worker is killed, so running it twice must do no harm.
    """

    width: int  # how many tasks run at a time

    def share(self, value: T) -> Any:
        """Hand a large value to every worker once; what comes back is given to `submit` in its place."""

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Pending[T]:
        """Start a task as soon as a worker is free."""


class Threads:
    """A pool of threads; at the end of its block tasks that wait are dropped, and those that run are waited for."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._executor = ThreadPoolExecutor(max_workers=width)

    def __enter__(self) -> Threads:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown(cancel_futures=True)

    def share(self, value: T) -> T:
        """Return the value: threads see it as it is."""
        return value

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Pending[T]:
        """Start a task as soon as a thread is free."""
        return self._executor.submit(function, *arguments)
