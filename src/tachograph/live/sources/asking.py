"""Servers asked side by side by threads; answers are taken when they come, and nobody waits for those that do not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from tachograph.sources.http import Answer as Page
from tachograph.sources.http_problems import AskError


class Asked(Protocol):
    """What can be asked: `sources.http.Server`."""

    def get(self, path: str) -> Page:
        """Return the answer."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one asking, and when, on the clock that only goes forward."""

    number: int
    content: bytes | AskError
    at: float


class Asker:
    """Asks servers, each known by a number, with `threads` threads at most.

    They are daemons: a server that never ends its answer must not keep the program from ending.
    """

    def __init__(self, threads: int, *, steady: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._steady = max(1, threads), steady
        self._questions: SimpleQueue[tuple[int, Asked] | None] = SimpleQueue()
        self._answers: SimpleQueue[Answer | Exception] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open: set[int] = set()
        self._closed = False

    @property
    def waiting(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._open)

    def ask(self, number: int, server: Asked) -> None:
        """Ask a server as soon as a thread is free."""
        self._open.add(number)
        self._questions.put((number, server))
        if len(self._threads) < min(self._limit, len(self._open)):
            thread = threading.Thread(target=self._work, name="ask", daemon=True)
            self._threads.append(thread)
            thread.start()

    def answers(self, fresh: Container[int], wait_s: float) -> list[Answer]:
        """Return the answers that have come; wait for those of `fresh`, `wait_s` at most."""
        return list(self._come(fresh, self._steady() + wait_s))

    def close(self) -> None:
        """Ask nobody any more; may be called twice."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._questions.put(None)

    def _come(self, fresh: Container[int], until: float) -> Iterator[Answer]:
        while self._open:
            wait_s = until - self._steady() if any(number in fresh for number in self._open) else 0.0
            try:
                answer = self._answers.get(timeout=wait_s) if wait_s > 0 else self._answers.get_nowait()
            except Empty:
                return
            if isinstance(answer, Exception):
                raise answer
            self._open.discard(answer.number)
            yield answer

    def _work(self) -> None:
        while not self._closed and (question := self._questions.get()) is not None:
            number, server = question
            content: bytes | AskError
            try:
                content = server.get("").content
            except AskError as problem:
                content = problem
            except Exception as defect:  # noqa: BLE001  a thread has nobody to tell but the one who takes answers
                self._answers.put(defect)
                return
            self._answers.put(Answer(number, content, self._steady()))
