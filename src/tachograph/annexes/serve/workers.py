"""Processes that compute expensive answers for the server, and can be ended."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias, TypeVar

from starlette.requests import Request

from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import LakeError, TachographError
from tachograph.catalog.processes import python_command

T = TypeVar("T")
Progress: TypeAlias = Callable[[str, int, int], None]
WAIT_S = 5.0  # for a worker, where all are at work
# Of a report that no request waits for: its page shows how far it is, and completes itself.
REPORT_S = 300.0
_TRY_AGAIN = "try again when the machine is less busy, or choose fewer jobs"
# Requests for a worker, each in a thread of the server: a further one is refused at once.
_WAITING = 8


def silent(_: str, __: int, ___: int) -> None:
    """Note no progress."""


class WorkerError(LakeError):
    """No worker can compute an answer now, or within the server's limits."""


class Ending:
    """Ends the worker of one request from another thread, or keeps it from beginning."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ended = False
        self._worker: Worker | None = None

    def attach(self, worker: Worker | None) -> None:
        """Name the worker that `end` ends; None: it has answered.

        Errors: WorkerError where it was ended before.
        """
        with self._lock:
            if self._ended and worker is not None:
                raise WorkerError("the client is gone")
            self._worker = worker

    def end(self) -> None:
        """End the worker at once."""
        with self._lock:
            self._ended = True
            if self._worker is not None:
                self._worker.process.kill()


@dataclass(slots=True)
class Worker:
    """A process that computes one answer at a time, and the connection to it."""

    process: subprocess.Popen[bytes]
    connection: Connection
    spare: bool = True  # whether it has memory for a further answer

    @classmethod
    def start(cls, location: str, configuration: Configuration, cache: Path | None) -> Worker:
        """Start a process that serves the same lake."""
        ours, theirs = socket.socketpair()
        with theirs:
            command = python_command(
                "tachograph.annexes.serve.worker", str(os.getpid()), str(theirs.fileno())
            )
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        connection = Connection(ours.detach())
        connection.send((location, configuration, cache))
        return cls(process, connection)

    def answer(self, task: tuple[Any, ...], progress: Progress, limit_s: float) -> bytes:
        """Return the pickle of a task's result. Errors: those of the task; WorkerError at a
        limit.
        """
        until = monotonic() + limit_s
        try:
            self.connection.send(task)
            while True:
                if not self.connection.poll(max(0.0, until - monotonic())):
                    raise WorkerError(f"the answer took longer than {limit_s:g} s", do=_TRY_AGAIN)
                kind, value = self.connection.recv()
                if kind == "progress":
                    progress(*value)
                elif kind == "answer":
                    content, self.spare = value
                    return bytes(content)
                else:
                    raise value
        except (EOFError, OSError):
            raise WorkerError(
                "the answer needs more memory than it may have", do="choose fewer jobs"
            ) from None

    def end(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.wait()
        self.connection.close()


@dataclass(slots=True)
class Workers:
    """Workers of the server, started on demand; idle ones are reused."""

    location: str
    configuration: Configuration
    cache: Path | None = None
    wait_s: float = WAIT_S
    _idle: list[Worker] = field(default_factory=list)
    _places: threading.BoundedSemaphore = field(init=False)
    _queue: threading.BoundedSemaphore = field(init=False)

    def __post_init__(self) -> None:
        """Create the semaphores for workers and for waiting requests."""
        workers = self.configuration.serve.workers
        self._places = threading.BoundedSemaphore(workers)
        self._queue = threading.BoundedSemaphore(workers + _WAITING)

    def run(self, task: tuple[Any, ...], progress: Progress, ending: Ending | None) -> bytes:
        """Return the pickle of a task's result. ending: the end of the waiting request.

        Errors: those of the task; WorkerError where no worker is free, or a limit is reached.
        """
        request_s = self.configuration.serve.request_s
        limit_s = max(REPORT_S, request_s) if ending is None else request_s
        if not self._queue.acquire(blocking=ending is None):
            raise _busy()
        if not self._places.acquire(timeout=None if ending is None else self.wait_s):
            self._queue.release()
            raise _busy()
        try:
            worker, answered, ending = self._take(), False, ending or Ending()
            try:
                ending.attach(worker)
                content = worker.answer(task, progress, limit_s)
                answered = True
            except TachographError as problem:
                answered = not isinstance(problem, WorkerError)
                raise
            finally:
                ending.attach(None)
                if answered and worker.spare:
                    self._idle.append(worker)
                else:
                    worker.end()
            return content
        finally:
            self._places.release()
            self._queue.release()

    def warm(self) -> None:
        """Start the first worker, so that the first answer does not wait for it."""
        self._idle.append(self._start())

    def close(self) -> None:
        """End the workers that wait; those that work end with this process."""
        while self._idle:
            self._idle.pop().end()

    def _start(self) -> Worker:
        return Worker.start(self.location, self.configuration, self.cache)

    def _take(self) -> Worker:
        while True:
            try:
                worker = self._idle.pop()
            except IndexError:
                return self._start()
            if worker.process.poll() is None:
                return worker
            worker.end()


def _busy() -> WorkerError:
    return WorkerError("too many large answers are being made", do="try again in a few seconds")


async def until_gone(request: Request, ending: Ending, answer: Awaitable[T]) -> T:
    """Return an answer; end its worker if nobody waits for it any more."""
    answering, leaving = asyncio.ensure_future(answer), asyncio.ensure_future(_leave(request))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            ending.end()
        return await answering
    finally:
        ending.end()
        leaving.cancel()
        answering.cancel()


async def _leave(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
