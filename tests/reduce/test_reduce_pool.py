"""Partitions and complete jobs go to a pool as tasks that can be sent elsewhere, run twice, and come
back in order.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest

from madelake import NOW, held, job, make_lake, utc
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import FINDINGS, JOB_GPUS, JOB_MINUTES
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.pipeline.reduction import ThreadPool
from tachograph.pipeline.run import analyze

T = TypeVar("T")


class Done:
    """A task that has run."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def result(self) -> Any:
        """Return what the task returned."""
        return self.value


class Elsewhere:
    """A pool whose tasks are pickled, run twice as after a killed worker, and whose results are
    pickled, too.
    """

    width = 3
    has_processes = True

    def __init__(self) -> None:
        self.shared: list[bytes] = []
        self.tasks = 0

    def share(self, value: object) -> Any:
        """Return a name of the value."""
        self.shared.append(pickle.dumps(value))
        return ("shared", len(self.shared) - 1)

    def submit(self, function: Callable[..., T], /, *arguments: Any) -> Done:
        """Run the task twice; what counts is the second result."""
        self.tasks += 1
        called, given = pickle.loads(pickle.dumps((function, arguments)))
        results = []
        for _ in range(2):
            ours = [
                pickle.loads(self.shared[x[1]])
                if isinstance(x, tuple) and x[:1] == ("shared",)
                else x
                for x in given
            ]
            results.append(called(*ours))
        return Done(pickle.loads(pickle.dumps(results[-1])))


def made(folder: Path) -> Lake:
    """Return a lake of two nodes and two days: a job across midnight that hangs, and one that
    does nothing.
    """
    at = utc(1, 22)
    rows = [
        {
            "node": node,
            "gpu": gpu,
            "t": at + timedelta(seconds=10 * i),
            "power_w": 100.0 + i % 5,
            "gpu_util": (i % 7) / 7 if node == "a" and i < 780 else 0.0,
        }
        for node in ("a", "b")
        for gpu in (0, 1)
        for i in range(1, 900)
    ]
    jobs = [job("1", utc(1, 22, 0, 30), utc(2, 0, 20, 5)), job("2", utc(1, 23), utc(1, 23, 30))]
    allocations = [*held("1", "a", [0, 1]), *held("2", "b", [0])]
    return make_lake(folder, gpu_samples=rows, jobs=jobs, allocations=allocations)


def test_tasks_run_elsewhere_and_twice_give_the_same(tmp_path: Path) -> None:
    here, there = made(tmp_path / "here"), made(tmp_path / "there")
    pool = Elsewhere()
    analyze(here, Configuration(), judge=JobJudge, now=NOW, threads=1)
    analyze(there, Configuration(), judge=JobJudge, now=NOW, pool=pool)
    assert pool.tasks == 2 + 1  # two partitions, and the jobs that are judged together
    assert read_summaries(here).drop("seq").equals(read_summaries(there).drop("seq"))
    for table in (JOB_GPUS, JOB_MINUTES, FINDINGS):
        one, other = here.latest(table).drop("seq"), there.latest(table).drop("seq")
        assert one.height > 0
        assert one.equals(other)


def test_threads_return_what_tasks_return_and_raise_what_they_raise() -> None:
    with ThreadPool(2) as pool:
        shared = pool.share([1, 2, 3])
        assert [pool.submit(sum, shared).result(), pool.submit(max, shared).result()] == [6, 3]
        failing = pool.submit(int, "no number")
        with pytest.raises(ValueError, match="no number"):
            failing.result()
