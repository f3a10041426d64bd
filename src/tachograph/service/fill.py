"""Simulates a plan into a lake: samples chunk by chunk in several processes, then host metrics, accounting and
truth.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import polars as pl

from tachograph.catalog import config
from tachograph.catalog.errors import LakeError, UsageError
from tachograph.catalog.processes import spawned_workers
from tachograph.catalog.tables import GPU_SAMPLES, REJECTS
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.service.fill_day import FillTask, removed_by, run_task
from tachograph.simulate import accounting
from tachograph.simulate import defects as faults
from tachograph.simulate.defects import DefectLog, TelemetryDefect
from tachograph.simulate.hosts import DEFECTS, host_days, write_day
from tachograph.simulate.plan import SimulatedNode, SimulationPlan
from tachograph.simulate.samples import allocations_of, by_gpu, timelines
from tachograph.simulate.telemetry import NodeTelemetry, note_missing, parts_of_nodes
from tachograph.simulate.truth import (
    CLASSES_FILE,
    CULPRITS_FILE,
    TruthSums,
    classes_frame,
    culprits_frame,
    gpus_frame,
    jobs_frame,
)
from tachograph.simulate.workload import SimulatedRun, place_runs, sample_requests
from tachograph.sources.registry import SOURCES, load_source

Progress = Callable[[int, int], None]  # samples done, samples in all
QUEUED = 2  # tasks for each process: one that runs, one that waits for it


@dataclass(frozen=True, slots=True)
class FilledLake:
    """Result of a fill: samples before defects, rows committed now, chunks (and those committed before)."""

    samples: int
    rows: int
    chunks: int
    chunks_known: int
    jobs: int


def fill(
    plan: SimulationPlan,
    location: str,
    folder: str | Path,
    *,
    days: int | None = None,
    processes: int = 2,
    progress: Progress | None = None,
) -> FilledLake:
    """Commit the first `days` days of a plan (all by default) to the lake at `location`; write the rest to `folder`.

    Samples are committed in files as `compact` would make them, packed a little less, each once; a fill that was
    killed, or one of fewer days, is continued. Memory is bounded by `plan.rows_per_file` and by the jobs, not by the
    length. `folder` keeps accounting, truth and the state to continue from.
    Errors: UsageError when folder or lake hold something else; LakeError when they cannot be written.
    """
    days = plan.days if days is None else days
    if not 1 <= days <= plan.days:
        raise UsageError(f"invalid number of days {days}", do=f"choose 1 to {plan.days} days")
    root = Path(folder)
    lake = Lake.create(location)
    try:
        name = _claim(plan, lake, root)
        return _Fill(plan, lake, root, name, days).run(processes, progress)
    except OSError as problem:
        raise LakeError(
            problem.strerror or str(problem), where=str(root), do="free some space, or name a writable folder"
        ) from None


def _claim(plan: SimulationPlan, lake: Lake, root: Path) -> str:
    """Return the name of the fill; the folder is this plan's from now on.

    Errors: UsageError when it is another plan's, or the lake was filled from elsewhere.
    """
    described = repr(plan)
    note = root / "state" / "plan.txt"
    if note.exists():
        if note.read_text(encoding="utf-8") != described:
            raise UsageError("the folder is of another plan", where=str(root), do="name a new folder and a new lake")
    else:
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise UsageError("not an empty folder", where=str(root), do="name a new folder")
        if lake.version(GPU_SAMPLES) >= 0:
            raise UsageError("the lake holds other samples", where=lake.location, do="name a new lake")
        note.parent.mkdir(parents=True)
        note.write_text(described, encoding="utf-8")
    return hashlib.sha256(described.encode()).hexdigest()[:16]


class _Fill:
    """One fill while it runs."""

    def __init__(self, plan: SimulationPlan, lake: Lake, root: Path, name: str, days: int) -> None:
        self.plan, self.lake, self.root, self.name, self.days = plan, lake, root, name, days
        self.nodes = plan.nodes()
        self.divided = parts_of_nodes(plan, self.nodes)
        self.per_node_day = {number: group.gpus * plan.samples_per_day for number, group in enumerate(plan.groups)}

    def run(self, processes: int, progress: Progress | None) -> FilledLake:
        """Samples first, then accounting: a known job has samples."""
        runs = place_runs(self.plan, sample_requests(self.plan))
        rows, known = self._commit(runs, processes, progress)
        if self.plan.hosts:
            ingest_hosts(self.plan, self.lake, self.root, runs, days=self.days)
        log = self._commit_rejects()
        ingest_accounting(self.plan, self.lake, self.root, runs, days=self.days)
        jobs = write_truth(self.plan, self.root, runs, log, days=self.days)
        samples = self.plan.gpus * self.plan.samples_per_day * self.days
        return FilledLake(samples, rows, len(self.divided) * self.days, known, jobs)

    def _commit(self, runs: Sequence[SimulatedRun], processes: int, progress: Progress | None) -> tuple[int, int]:
        """Commit all chunks; return the rows, and the number of chunks committed before."""
        total = self.plan.gpus * self.plan.samples_per_day * self.days
        rows = known = done = 0
        for task, committed in _finished(self._tasks(runs), processes):
            rows, known = rows + committed, known + (committed == 0)
            done += len(self.divided[task.part]) * self.per_node_day[self.divided[task.part][0].group]
            if progress is not None:
                progress(done, total)
        return rows, known

    def _tasks(self, runs: Sequence[SimulatedRun]) -> Iterator[FillTask]:
        """The chunks, day by day."""
        allocations = allocations_of(runs)
        held = by_gpu(allocations)
        drawn = faults.with_gaps(self.plan, faults.sample_defects(self.plan, self.nodes), runs)
        lines = partial(timelines, self.plan, runs=runs, allocations=allocations, held=held)
        sources = [[NodeTelemetry.first(self.plan, node, lines(node)) for node in part] for part in self.divided]
        mine = [_of_nodes(drawn, part) for part in self.divided]
        for day in range(self.days):
            for part in range(len(self.divided)):
                yield self._task(part, day, sources[part], mine[part])

    def _task(
        self, part: int, day: int, sources: Sequence[NodeTelemetry], drawn: dict[tuple[int, int], list[TelemetryDefect]]
    ) -> FillTask:
        return FillTask(self.plan, self.lake.location, self.root / "state", self.name, part, day, sources, drawn)

    def _commit_rejects(self) -> DefectLog:
        """Commit the rejects of each part, replacing those of fewer days; return all planted defects."""
        log = DefectLog()
        for part in range(len(self.divided)):
            removed = removed_by(self._task(part, self.days, (), {}))
            log.rows += removed.log.rows
            chunk = f"fill:{self.name}:{part}"
            rows = [
                {
                    "chunk": chunk,
                    "source": "simulate",
                    "origin": str(self.root),
                    "target": GPU_SAMPLES.name,
                    "reason": reject.reason,
                    "column": reject.column,
                    "removed": reject.count,
                    "example": reject.example,
                }
                for reject in removed.rejects
            ]
            frame = pl.DataFrame(rows, schema={n: d for n, d in REJECTS.schema.items() if n != "seq"})
            self.lake.append(REJECTS, frame, app_id=chunk, mark=self.days)
        note_missing(replace(self.plan, days=self.days), self.nodes, log)
        return log


def _of_nodes(
    drawn: dict[tuple[int, int], list[TelemetryDefect]], part: Sequence[SimulatedNode]
) -> dict[tuple[int, int], list[TelemetryDefect]]:
    there = {node.index for node in part}
    return {key: defects for key, defects in drawn.items() if key[0] in there}


def _finished(tasks: Iterator[FillTask], processes: int) -> Iterator[tuple[FillTask, int]]:
    """Yield each task and the rows it committed; the days of a part one after the other, parts side by side.

    Errors: LakeError when a process was killed.
    """
    if processes <= 1:
        for task in tasks:
            yield task, run_task(task)
        return
    with (
        spawned_workers(POLARS_MAX_THREADS="1") as workers,  # a process has one core
        ProcessPoolExecutor(processes, workers, initializer=_end_with_parent) as pool,
    ):
        running: dict[Future[int], FillTask] = {}
        try:
            for task in tasks:
                while len(running) >= QUEUED * processes or any(task.part == each.part for each in running.values()):
                    yield from _next(running)
                running[pool.submit(run_task, task)] = task
            while running:
                yield from _next(running)
        except BrokenProcessPool:
            raise LakeError(
                "a simulating process was killed", do="run it again, it continues from there; check the memory"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End this process when its parent is killed: else it would wait for work forever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _next(running: dict[Future[int], FillTask]) -> Iterator[tuple[FillTask, int]]:
    """Wait for a task, and yield completed ones."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        yield running.pop(future), future.result()


def ingest_accounting(
    plan: SimulationPlan, lake: Lake, folder: Path, runs: Sequence[SimulatedRun], *, days: int
) -> None:
    """Write accounting and allocations as of the end of day number `days`, and ingest them, with devices.

    Records that were written for fewer days are not repeated, only those that changed.
    """
    for part in ("accounting", "allocations", "truth"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    accounting.write_configuration(plan, folder / "tachograph.toml")
    accounting.write_devices(plan, folder / "devices.csv")
    accounting.write_devices_mapping(folder / "devices.toml")
    before = max((done for done in _days_written(folder / "accounting") if done < days), default=0)
    until = replace(plan, days=days)
    seen = as_of(runs, until.seconds)
    fresh = [run for run in seen if run.end_s is None or run.end_s > before * 86400]
    names = f"{before:04d}-{days:04d}"
    accounting.write_accounting(until, folder / "accounting" / f"sacct-{names}.txt", fresh)
    accounting.write_gpu_map(until, folder / "allocations" / f"gpu_map-{names}.csv", fresh)
    _ingest(lake, folder, "table", folder / "devices.csv", "--mapping", str(folder / "devices.toml"))
    _ingest(lake, folder, "sacct", folder / "accounting" / f"sacct-{names}.txt")
    _ingest(lake, folder, "allocation-map", folder / "allocations" / f"gpu_map-{names}.csv")


def ingest_hosts(plan: SimulationPlan, lake: Lake, folder: Path, runs: Sequence[SimulatedRun], *, days: int) -> None:
    """Ingest host metrics up to a day, file by file; a file ingested before is recognized by its content."""
    accounting.write_configuration(plan, folder / "tachograph.toml")
    allocations = allocations_of(runs)
    defects = [pl.DataFrame(schema=dict(DEFECTS))]
    for day in host_days(plan, runs, allocations, by_gpu(allocations)):
        if day.day < days:
            file = folder / "state" / day.name(plan)
            write_day(day, file)
            _ingest(lake, folder, "ldms", file)
            file.unlink()
            defects.append(day.defects)
    (folder / "truth").mkdir(exist_ok=True)
    pl.concat(defects).write_parquet(folder / "truth" / "hosts.parquet")


def write_truth(plan: SimulationPlan, folder: Path, runs: Sequence[SimulatedRun], log: DefectLog, *, days: int) -> int:
    """Write the ground truth up to a day, without sums over samples; return the number of runs."""
    until = replace(plan, days=days)
    defects = log.frame()
    seen = [run for run in as_of(runs, until.seconds) if run.submit_s < until.seconds]
    none = gpus_frame(until, seen, [], TruthSums.none(0), defects)
    jobs = jobs_frame(until, seen, none)
    jobs.write_parquet(folder / "truth" / "jobs.parquet")
    defects.write_parquet(folder / "truth" / "defects.parquet")
    if plan.judged_jobs:
        classes_frame(until, seen).write_parquet(folder / "truth" / CLASSES_FILE)
    if plan.stopped_jobs:
        culprits_frame(until, seen).write_parquet(folder / "truth" / CULPRITS_FILE)
    return jobs.height


def as_of(runs: Sequence[SimulatedRun], seconds: int) -> list[SimulatedRun]:
    """Return the runs as known so many seconds after the start: those that start later are pending."""
    return [
        replace(run, start_s=None, end_s=None, places=(), state="PENDING", exit_code="0:0", behaviour=None)
        if run.start_s is not None and run.start_s >= seconds
        else run
        for run in runs
    ]


def _days_written(folder: Path) -> list[int]:
    """Days up to which accounting was written."""
    found = (re.fullmatch(r"sacct-\d{4}-(\d{4})\.txt", file.name) for file in folder.iterdir())
    return [int(match[1]) for match in found if match]


def _ingest(lake: Lake, folder: Path, source: str, file: Path, *more: str) -> None:
    """Ingest like `tachograph ingest SOURCE FILE`."""
    module = load_source(next(each for each in SOURCES if each.name == source))
    parser = argparse.ArgumentParser()
    module.add_options(parser)
    now = datetime.now(UTC)
    configuration = config.load(str(folder / "tachograph.toml"), {})
    options = parser.parse_args([str(file), *more])
    ingest(lake, module.read(options, configuration=configuration, now=now), now=now)
