"""A running collector's last poll as a live source, to poll exporters only once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

from tachograph.annexes.watch.live.allocations import (
    AllocatedSource,
    SlurmAllocations,
    allocation_poller,
)
from tachograph.annexes.watch.live.newest_snapshot import newest_snapshot
from tachograph.annexes.watch.live.selection import SelectedSource
from tachograph.annexes.watch.live.snapshot import (
    GpuAllocation,
    Snapshot,
    SourceInfo,
    SourceProblem,
)
from tachograph.annexes.watch.live.unsupported import unsupported_counters
from tachograph.catalog.config import Configuration
from tachograph.catalog.units import plural
from tachograph.collect.newest import NewestFiles, NewestPoll
from tachograph.collect.status import state_folder
from tachograph.lake.newest_rows import ALLOCATIONS, JOBS, SAMPLES, SLURM_LIVE
from tachograph.lake.places import ClusterNames
from tachograph.sources.metrics import short_node

COLLECT: Final = "collect"  # its name


class CollectedSource:
    """The newest values of a running collector as a live source. clock: seconds since 1970.

    names: of clusters, as its lake knows them. It ends, by a fatal problem, where no collector runs
    or none of its polls has a GPU's values that are not late.
    """

    def __init__(
        self,
        folder: Path,
        *,
        names: ClusterNames | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._files, self._clock = NewestFiles(folder), clock
        self._names = names or ClusterNames()
        self._shown: tuple[NewestPoll, ...] = ()
        self._snapshot = Snapshot(0.0, (), np.empty(0), {})
        self._about = SourceInfo(COLLECT, "collector")

    @property
    def about(self) -> SourceInfo:
        """Description of the source."""
        return self._about

    def is_current(self) -> bool:
        """Whether a collector runs that has new values of GPUs."""
        now = self._clock()
        return any(
            poll.is_current(now) and poll.tables.table(SAMPLES).height
            for poll in self._files.polls()
        )

    def read(self) -> Snapshot:
        """Return the newest values."""
        now = self._clock()
        polls = [poll for poll in self._files.polls() if SAMPLES in poll.tables.rows]
        current = tuple(
            poll for poll in polls if poll.is_current(now) and poll.tables.table(SAMPLES).height
        )
        if not current:
            ended = SourceProblem(
                "the collector has no new values: its sources are polled by this server", fatal=True
            )
            return replace(self._snapshot, t=now, problems=(ended,))
        if current != self._shown:
            self._shown = current
            self._snapshot = newest_snapshot(
                [poll.tables for poll in current], now, self._cluster_names()
            )
            self._about = _about(current, self._snapshot)
        missing = (poll.file for poll in polls if poll not in current)
        problems = tuple(
            SourceProblem(
                f"the collector has no values since {file.polled:%H:%M:%S} UTC",
                file.name,
                "see its status",
            )
            for file in missing
        )
        return replace(self._snapshot, t=now, problems=problems)

    def slurm(
        self, otherwise: Callable[[], SlurmAllocations], *, minor_numbers: bool
    ) -> SlurmAllocations:
        """Return who holds which GPU, as polled by the collector, else `otherwise`.

        Errors: those of `otherwise`.
        """
        now = self._clock()
        answers = [poll for poll in self._files.polls() if poll.file.source == SLURM_LIVE]
        if not answers or not all(poll.is_current(now) and _names_users(poll) for poll in answers):
            return otherwise()
        return replace(slurm_of(answers), minor_numbers=minor_numbers)

    def close(self) -> None:
        """Nothing is open."""

    def _cluster_names(self) -> ClusterNames:
        """Names of clusters in the lake, and of the jobs that run."""
        jobs = [poll.tables.table(JOBS)["cluster"] for poll in self._files.polls()]
        running = frozenset().union(*(names.drop_nulls() for names in jobs))
        return replace(self._names, accounted=self._names.accounted | running)


def open_collected(
    configuration: Configuration, lake: str, names: ClusterNames
) -> SelectedSource | None:
    """Return a lake's collector as a live source; None if it is not running or stale.

    names: of clusters, as the lake knows them.
    """
    source = CollectedSource(state_folder(lake, configuration.collect.state), names=names)
    if not source.is_current():
        return None
    poller = allocation_poller(configuration)
    if poller is None:
        return SelectedSource(source, None)
    minor_numbers = configuration.slurm.gpu_numbers == "minor_number"

    def poll() -> SlurmAllocations:
        return source.slurm(poller, minor_numbers=minor_numbers)

    return SelectedSource(AllocatedSource(source, poll, names=names), None)


def _about(polls: Sequence[NewestPoll], snapshot: Snapshot) -> SourceInfo:
    names = ", ".join(poll.file.name for poll in polls)
    nodes = plural(len({gpu.host for gpu in snapshot.gpus}), "node")
    every_s = max(poll.file.every_s for poll in polls)
    sentence = (
        f"collector ({names}; every {every_s:g} s), {plural(len(snapshot.gpus), 'GPU')} of {nodes}"
    )
    unsupported = unsupported_counters(snapshot.values, polls[0].file.source)
    return SourceInfo(COLLECT, sentence, unsupported)


def _names_users(poll: NewestPoll) -> bool:
    """Whether every job on a GPU has a user: Slurm's text answers name none."""
    allocations, jobs = (
        poll.tables.table(ALLOCATIONS),
        poll.tables.table(JOBS).filter(pl.col("user").is_not_null()),
    )
    return allocations.join(jobs, on=["cluster", "job_id"], how="anti", nulls_equal=True).is_empty()


def slurm_of(answers: Sequence[NewestPoll]) -> SlurmAllocations:
    """Return allocations from polled answers. complete: every job's GPUs are known."""
    gpus: dict[str | None, dict[tuple[str, int], GpuAllocation]] = {}
    jobs: dict[str | None, dict[str, GpuAllocation]] = {}
    users: set[str | None] = set()
    complete = True
    for answer in answers:
        rows = answer.tables.table(JOBS)
        of_answer: dict[tuple[str | None, str], GpuAllocation] = {}
        for cluster, job, shown, user, start in rows.select(
            "cluster", "job_id", "display_id", "user", "start"
        ).iter_rows():
            since = None if start is None else start.timestamp()
            allocation = GpuAllocation(shown or job, user, since)
            jobs.setdefault(cluster, {})[job] = of_answer[cluster, job] = allocation
            users.add(user)
        placed: Counter[tuple[str | None, str]] = Counter()
        held_gpus = answer.tables.table(ALLOCATIONS).select("cluster", "job_id", "node", "gpu")
        for cluster, job, node, gpu in held_gpus.iter_rows():
            if gpu is not None and (cluster, job) in of_answer:
                held_gpu = short_node(node), gpu
                gpus.setdefault(cluster, {})[held_gpu] = of_answer[cluster, job]
                placed[cluster, job] += 1
        for cluster, job, count in rows.select("cluster", "job_id", "gpus").iter_rows():
            complete &= placed[cluster, job] == count
    return SlurmAllocations(gpus, jobs, complete=complete and len(users) > 1)
