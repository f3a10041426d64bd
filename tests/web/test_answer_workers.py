"""Real workers: what one may take, and that each can be ended."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import greedy
import pytest

from served_entries import until
from tachograph.annexes.serve.workers import Ending, WorkerError, Workers, silent
from tachograph.catalog.config import Configuration, ServeOptions
from tachograph.catalog.errors import SeveralJobsError
from tachograph.lake.delta import Lake

pytestmark = pytest.mark.slow
_SOON_S = 60.0


@pytest.fixture(scope="module")
def start(marked: Lake) -> Iterator[Callable[..., Workers]]:
    """Start workers with some limits; all of them are ended at the end."""
    started: list[Workers] = []

    def workers(**limits: Any) -> Workers:
        started.append(
            Workers(marked.location, Configuration(serve=ServeOptions(**limits)), wait_s=0.05)
        )
        return started[-1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(Path(__file__).parent))
        yield workers
        for each in started:
            each.close()


def children() -> set[int]:
    """The processes that this one has started, also ended ones that nobody has waited for."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            _state, parent, *_ = (
                (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            )
            if int(parent) == os.getpid():
                found.add(int(process.name))
    return found


def test_a_worker_has_limits_of_memory_and_size_and_the_next_answer_is_made(
    start: Callable[..., Workers],
) -> None:
    workers = start(workers=1, worker_mib=256, answer_mib=1)
    assert workers.run((greedy.take, 100), silent, None)
    with pytest.raises(WorkerError, match="more memory"):
        workers.run((greedy.take, 1000), silent, None)
    with pytest.raises(WorkerError, match="at most 1 MiB"):
        workers.run((greedy.answer, 2), silent, None)
    with pytest.raises(SeveralJobsError) as refused:
        workers.run((greedy.refuse,), silent, None)
    assert refused.value.candidates == (("a", "a:1:1"),)
    assert refused.value.do == "name the cluster"
    assert workers.run((greedy.take, 100), silent, None)


def test_a_worker_is_ended_with_its_time(start: Callable[..., Workers]) -> None:
    workers = start(request_s=0.2)
    before = children()
    with pytest.raises(WorkerError, match=r"longer than 0\.2 s"):
        workers.run((greedy.wait,), silent, Ending())
    assert children() <= before


def test_a_report_that_no_request_waits_for_has_more_time(
    start: Callable[..., Workers], monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = start(request_s=0.05)
    assert workers.run((greedy.rest, 0.3), silent, None)
    monkeypatch.setattr("tachograph.annexes.serve.workers.REPORT_S", 0.1)
    with pytest.raises(WorkerError, match=r"longer than 0\.1 s") as slow:
        workers.run((greedy.rest, 60.0), silent, None)
    assert slow.value.do == "try again when the machine is less busy, or choose fewer jobs"


def test_a_worker_is_ended_with_its_client_and_others_are_refused_meanwhile(
    start: Callable[..., Workers],
) -> None:
    workers, ending, before = start(workers=1), Ending(), children()
    problems: list[WorkerError] = []

    def ask() -> None:
        try:
            workers.run((greedy.wait,), silent, ending)
        except WorkerError as problem:
            problems.append(problem)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: children() - before)
    with pytest.raises(WorkerError, match="too many large answers"):
        workers.run((greedy.take, 1), silent, Ending())
    ending.end()
    asking.join(_SOON_S)
    assert problems
    assert children() <= before
    ending.end()  # again: nothing happens
    with pytest.raises(WorkerError, match="gone"):
        workers.run((greedy.take, 1), silent, ending)
