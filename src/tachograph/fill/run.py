"""A plan into a lake: chunk after chunk, by as many processes as are wanted, then accounting and truth."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import polars as pl

from tachograph.errors import LakeError, UsageError
from tachograph.fill import site
from tachograph.fill.chunk import Task, removed_by, run
from tachograph.lake import Lake
from tachograph.schema import GPU_SAMPLES, REJECTS
from tachograph.simulate import defects as faults
from tachograph.simulate.defects import Defect, Log
from tachograph.simulate.placement import Run, place
from tachograph.simulate.plan import Node, Plan
from tachograph.simulate.telemetry import Source, note_missing, parts
from tachograph.simulate.timeline import allocations_of, by_gpu, timelines
from tachograph.simulate.workload import draw

Progress = Callable[[int, int], None]  # samples done, samples in all
QUEUED = 2  # tasks for each process: one that runs, one that waits for it
_THREADS = "POLARS_MAX_THREADS"  # a process has one core


@dataclass(frozen=True, slots=True)
class Filled:
    """What a lake was filled with: samples before defects, rows that landed now, chunks (and those there before)."""

    samples: int
    rows: int
    chunks: int
    chunks_known: int
    jobs: int


def fill(
    plan: Plan,
    location: str,
    folder: str | Path,
    *,
    days: int | None = None,
    processes: int = 2,
    progress: Progress | None = None,
) -> Filled:
    """Put the first `days` days of a plan (all by default) into the lake at `location`; write all else to `folder`.

    Samples land in files as `compact` would make them, packed a little less, each once; a fill that was killed, or
    one of fewer days, is gone on with. Memory is bounded by `plan.rows_per_file` and by the jobs, not by the length.
    `folder` keeps accounting, truth and what is needed to go on.
    Errors: UsageError when folder or lake hold something else; LakeError when they cannot be written.
    """
    days = plan.days if days is None else days
    if not 1 <= days <= plan.days:
        raise UsageError(f"{days} of {plan.days} days cannot be filled", do=f"choose 1 to {plan.days} days")
    root = Path(folder)
    lake = Lake.create(location)
    try:
        name = _claim(plan, lake, root)
        return _Fill(plan, lake, root, name, days).run(processes, progress)
    except OSError as problem:
        raise LakeError(
            problem.strerror or str(problem), where=str(root), do="make room, or name a folder that can be written"
        ) from None


def _claim(plan: Plan, lake: Lake, root: Path) -> str:
    """Return the name of the fill; the folder is this plan's from now on.

    Errors: UsageError when it is another plan's, or the lake was filled from elsewhere.
    """
    said = repr(plan)
    note = root / "state" / "plan.txt"
    if note.exists():
        if note.read_text(encoding="utf-8") != said:
            raise UsageError("holds the state of another plan", where=str(root), do="name a new folder and a new lake")
    else:
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise UsageError("is not an empty folder", where=str(root), do="name a new folder")
        if lake.version(GPU_SAMPLES) >= 0:
            raise UsageError("the lake holds samples of something else", where=lake.location, do="name a new lake")
        note.parent.mkdir(parents=True)
        note.write_text(said, encoding="utf-8")
    return hashlib.sha256(said.encode()).hexdigest()[:16]


class _Fill:
    """One fill while it runs."""

    def __init__(self, plan: Plan, lake: Lake, root: Path, name: str, days: int) -> None:
        self.plan, self.lake, self.root, self.name, self.days = plan, lake, root, name, days
        self.nodes = plan.nodes()
        self.divided = parts(plan, self.nodes)
        self.per_node_day = {number: group.gpus * plan.samples_per_day for number, group in enumerate(plan.groups)}

    def run(self, processes: int, progress: Progress | None) -> Filled:
        """Samples first, then what the site tells: a job that is known has samples."""
        runs = place(self.plan, draw(self.plan))
        rows, known = self._land(runs, processes, progress)
        if self.plan.hosts:
            site.tell_hosts(self.plan, self.lake, self.root, runs, days=self.days)
        log = self._land_rejects()
        site.tell(self.plan, self.lake, self.root, runs, days=self.days)
        jobs = site.write_truth(self.plan, self.root, runs, log, days=self.days)
        samples = self.plan.gpus * self.plan.samples_per_day * self.days
        return Filled(samples, rows, len(self.divided) * self.days, known, jobs)

    def _land(self, runs: Sequence[Run], processes: int, progress: Progress | None) -> tuple[int, int]:
        """Land all chunks; return the rows, and how many chunks were there already."""
        total = self.plan.gpus * self.plan.samples_per_day * self.days
        rows = known = done = 0
        for task, landed in _finished(self._tasks(runs), processes):
            rows, known = rows + landed, known + (landed == 0)
            done += len(self.divided[task.part]) * self.per_node_day[self.divided[task.part][0].group]
            if progress is not None:
                progress(done, total)
        return rows, known

    def _tasks(self, runs: Sequence[Run]) -> Iterator[Task]:
        """The chunks, day by day."""
        allocations = allocations_of(runs)
        held = by_gpu(allocations)
        drawn = faults.draw(self.plan, self.nodes)
        lines = partial(timelines, self.plan, runs=runs, allocations=allocations, held=held)
        sources = [[Source.first(self.plan, node, lines(node)) for node in part] for part in self.divided]
        mine = [_of_nodes(drawn, part) for part in self.divided]
        for day in range(self.days):
            for part in range(len(self.divided)):
                yield self._task(part, day, sources[part], mine[part])

    def _task(self, part: int, day: int, sources: Sequence[Source], drawn: dict[tuple[int, int], list[Defect]]) -> Task:
        return Task(self.plan, self.lake.location, self.root / "state", self.name, part, day, sources, drawn)

    def _land_rejects(self) -> Log:
        """Land what was removed, each part's in place of what was told of fewer days; return all that was planted."""
        log = Log()
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


def _of_nodes(drawn: dict[tuple[int, int], list[Defect]], part: Sequence[Node]) -> dict[tuple[int, int], list[Defect]]:
    there = {node.index for node in part}
    return {key: defects for key, defects in drawn.items() if key[0] in there}


def _finished(tasks: Iterator[Task], processes: int) -> Iterator[tuple[Task, int]]:
    """Yield each task and the rows it landed; the days of a part one after the other, parts side by side.

    Errors: LakeError when a process was killed.
    """
    if processes <= 1:
        for task in tasks:
            yield task, run(task)
        return
    fresh = multiprocessing.get_context("spawn")  # a fork would have the threads of Polars and Delta half alive
    with _single_threaded(), ProcessPoolExecutor(processes, fresh, initializer=_end_with_parent) as pool:
        running: dict[Future[int], Task] = {}
        try:
            for task in tasks:
                while len(running) >= QUEUED * processes or any(task.part == each.part for each in running.values()):
                    yield from _next(running)
                running[pool.submit(run, task)] = task
            while running:
                yield from _next(running)
        except BrokenProcessPool:
            raise LakeError(
                "a process that simulates was killed", do="run it again, it goes on from there; was memory short?"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Let this process end when the one that started it is killed: it would wait for work for ever."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _next(running: dict[Future[int], Task]) -> Iterator[tuple[Task, int]]:
    """Wait for a task, and yield what is done."""
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        yield running.pop(future), future.result()


@contextmanager
def _single_threaded() -> Iterator[None]:
    """Processes started inside use one thread each for what Polars does."""
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before
