"""A simulated lake to be analyzed in several ways, what must come out the same, and tasks that take
their worker along.

Workers import this module, so it must not import what only tests have.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from tachograph.annexes.lab.simulate.cluster import SimulatedCluster, simulate
from tachograph.annexes.lab.simulate.plan import NodeGroup, SimulationPlan
from tachograph.catalog import config
from tachograph.catalog.chunks import Chunk
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import GPU_SAMPLES, JOB_MINUTES
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.query import read_findings, read_gpus, read_summaries
from tachograph.pipeline.reduction import PendingResult, TaskPool
from tachograph.sources import ldms, sacct

INGESTED = datetime(2025, 4, 1, tzinfo=UTC)
PLAN = SimulationPlan(days=5, groups=(NodeGroup(3, 4, "A100 SXM 40GB"),), interval_s=60)
NOW = PLAN.end


@dataclass(frozen=True, slots=True)
class Simulated:
    """A cluster whose files can be ingested into any number of lakes."""

    cluster: SimulatedCluster
    configuration: Configuration

    @classmethod
    def of(cls, folder: Path, plan: SimulationPlan = PLAN) -> Simulated:
        """Unless told otherwise five days of three nodes: a partition a day, at least."""
        cluster = simulate(plan, folder)
        return cls(cluster, config.load(str(cluster.configuration), {}))

    def lake(self, location: str) -> Lake:
        """A new lake of it, not yet analyzed."""
        lake = Lake.create(location)
        ingest(lake, self._chunks(), now=INGESTED)
        assert len(lake.days(GPU_SAMPLES)) >= self.cluster.plan.days
        return lake

    def _chunks(self) -> Iterator[Chunk]:
        for source, path in (
            (ldms, self.cluster.folder / "telemetry"),
            (sacct, self.cluster.accounting),
        ):
            parser = argparse.ArgumentParser()
            source.add_options(parser)
            yield from source.read(
                parser.parse_args([str(path)]), configuration=self.configuration, now=INGESTED
            )


def copied(lake: Lake, folder: Path) -> Lake:
    """A copy of a lake, at `folder`/lake."""
    shutil.copytree(lake.location, folder / "lake")
    return Lake.open(str(folder / "lake"))


def computed(lake: Lake) -> dict[str, pl.DataFrame]:
    """What an analysis computed, without its number; minutes in the order of their key."""
    summaries = read_summaries(lake)
    minutes = lake.scan(JOB_MINUTES).join(
        summaries.lazy().select("job_key", "seq"), on=["job_key", "seq"], how="semi"
    )
    tables = {
        "summaries": summaries,
        "gpus": read_gpus(lake, summaries),
        "minutes": minutes.collect().sort("job_key", "node", "gpu", "mig", "minute"),
        "findings": read_findings(lake, summaries),
    }
    return {name: frame.drop("seq") for name, frame in tables.items()}


def same(left: Lake, right: Lake) -> bool:
    """Whether two analyses came to the same, bit for bit, of more than nothing."""
    ours, theirs = computed(left), computed(right)
    return all(frame.height > 0 and frame.equals(theirs[name]) for name, frame in ours.items())


class Deadly:
    """A pool whose tasks of some numbers kill the worker that begins them, so often."""

    def __init__(self, pool: TaskPool, folder: Path, *, tasks: range, times: int = 1) -> None:
        self.width, self.has_processes = pool.width, pool.has_processes
        self._pool, self._folder, self._tasks, self._times = pool, folder, tasks, times
        self._count = 0

    @property
    def deaths(self) -> int:
        """How often a worker died of them."""
        return len(list(self._folder.glob("death-*")))

    def share(self, value: Any) -> Any:
        """As the pool does."""
        return self._pool.share(value)

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> PendingResult[Any]:
        """As the pool does, or deadly."""
        self._count += 1
        if self._count - 1 not in self._tasks:
            return self._pool.submit(function, *arguments)
        marks = [str(self._folder / f"death-{self._count}-{time}") for time in range(self._times)]
        return self._pool.submit(die_first, marks, function, *arguments)


def fail(kind: type[Exception]) -> None:
    """Fail as a task may."""
    raise (
        LakeError("there is no lake", where="nowhere", do="do this")
        if kind is LakeError
        else kind("of the task")
    )


def die_first(marks: list[str], function: Callable[..., Any], *arguments: Any) -> Any:
    """Kill this process once for each mark that is not yet there; afterwards do what is to be
    done.
    """
    for mark in marks:
        if not Path(mark).exists():
            Path(mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments)
