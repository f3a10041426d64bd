"""Who holds which GPU, from Slurm while it is watched: job, user, since when. A thread asks; nobody waits for it.

Slurm tells indices of GPUs only while a job runs, and none of MIG slices: there nothing is said.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from tachograph.errors import TachographError
from tachograph.live.snapshot import Gpu, Holder, Problem, Snapshot
from tachograph.live.source import About, LiveSource
from tachograph.live.visible import short_host

if TYPE_CHECKING:
    from tachograph.config import Configuration
    from tachograph.sources.slurm.records import Cluster, Row

EVERY_S: Final = 30.0  # between two questions: Slurm has more to do than to answer those who watch
LONGEST_S: Final = 600.0  # between two questions to a Slurm that does not answer
PATIENCE_S: Final = 5.0  # that a job is waited for which was asked for by its id
_SOURCE = "slurm-live"
_USER = re.compile(r"^\s*UserId=([^\s(]+)", re.MULTILINE)
_ARRAY = re.compile(r"\bArrayJobId=(\d+) ArrayTaskId=(\d+)\b")
_HET = re.compile(r"\bHetJobId=(\d+) HetJobOffset=(\d+)\b")


@dataclass(frozen=True, slots=True)
class Held:
    """What Slurm told. gpus: {(short host, index): holder}; jobs: {raw id: holder, whose id is as people name it}."""

    gpus: Mapping[tuple[str, int], Holder] = field(default_factory=dict)
    jobs: Mapping[str, Holder] = field(default_factory=dict)

    def names(self, job: str) -> frozenset[str]:
        """Every id that means the same job: 14 and 3_0.

        >>> sorted(Held(jobs={"14": Holder("3_0", "ana")}).names("3_0"))
        ['14', '3_0']
        """
        same = {raw for raw, holder in self.jobs.items() if job in (raw, holder.job_id)}
        return frozenset({job, *same, *(self.jobs[raw].job_id or raw for raw in same)})


def held_in(content: bytes, *, where: str, cluster: Cluster) -> Held:
    """Return who holds which GPU by an answer of `squeue --json`, `scontrol show job -d` or slurmrestd.

    A job whose GPUs are not told is among the jobs alone. Errors: InputError for what is no such answer.
    """
    from tachograph.sources.slurm.detect import detect
    from tachograph.sources.slurm.documents import at, objects
    from tachograph.sources.slurm.live import controller_allocations, read_scontrol, scontrol_allocations

    gpus: dict[tuple[str, int], Holder] = {}
    jobs: dict[str, Holder] = {}
    found = detect(content, where=where)
    if found.kind == "scontrol":
        for entry in read_scontrol(content.decode("utf-8", "replace")):
            record = str((entry.fields or {}).get("record"))
            _add(gpus, jobs, _names_in(record), partial(scontrol_allocations, record, cluster))
    else:
        for job in objects(at(found.document, "jobs")):
            _add(gpus, jobs, _names_of(job), partial(controller_allocations, job, cluster))
    return Held(gpus, jobs)


def _add(
    gpus: dict[tuple[str, int], Holder],
    jobs: dict[str, Holder],
    named: tuple[str, Holder] | None,
    rows_of: Callable[[], list[Row]],
) -> None:
    from tachograph.sources.slurm.fields import BadRowError

    if named is None:
        return
    raw, holder = named
    try:
        rows = rows_of()
    except BadRowError:  # slices, indices that are not told: the job is known all the same
        rows = []
    for row in rows:
        start, node, gpu = row["start"], row["node"], row["gpu"]
        since = start.timestamp() if isinstance(start, datetime) else holder.since
        holder = replace(holder, since=since)
        if isinstance(node, str) and isinstance(gpu, int):
            gpus[short_host(node), gpu] = holder
    jobs[raw] = holder


def _names_of(job: Mapping[str, object]) -> tuple[str, Holder] | None:
    """The raw id of a job in JSON, and the job as a holder."""
    from tachograph.sources.slurm.documents import number, text
    from tachograph.sources.slurm.fields import BadRowError, told_id

    try:
        told = told_id(
            number(job.get("job_id")),
            array=number(job.get("array_job_id")),
            task=number(job.get("array_task_id")),
            het=number(job.get("het_job_id")),
            offset=number(job.get("het_job_offset")),
        )
    except BadRowError:
        return None
    start = number(job.get("start_time"))
    return told.raw, Holder(told.display or told.raw, text(job.get("user_name")), float(start) if start else None)


def _names_in(record: str) -> tuple[str, Holder] | None:
    """The same of a record of scontrol."""
    job = re.match(r"JobId=(\d+)\b", record)
    if job is None:
        return None
    array, het, user = _ARRAY.search(record), _HET.search(record), _USER.search(record)
    shown = f"{array[1]}_{array[2]}" if array else f"{het[1]}+{het[2]}" if het else job[1]
    return job[1], Holder(shown, user[1] if user else None)


def asked_of(configuration: Configuration) -> Callable[[], Held] | None:
    """Return what asks Slurm, as `[[sources]]` with source = "slurm-live" says, else by `squeue`; None without either.

    Nothing is asked or imported yet: wrong settings are told when it is asked.
    """
    if not any(raw.get("source") == _SOURCE for raw in configuration.sources) and shutil.which("squeue") is None:
        return None
    return _Controllers(configuration)


class _Controllers:
    """The controllers of a configuration, connected when they are asked first."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._asked: list[Callable[[], bytes]] = []
        self._where: list[str] = []

    def __call__(self) -> Held:
        from tachograph.sources.slurm.controller import NO_JOBS
        from tachograph.sources.slurm.records import Cluster

        if not self._asked:
            self._connect()
        gpus: dict[tuple[str, int], Holder] = {}
        jobs: dict[str, Holder] = {}
        for ask, where in zip(self._asked, self._where, strict=True):
            content = ask()
            if not content.startswith(NO_JOBS):
                told = held_in(content, where=where, cluster=Cluster.of(self._configuration))
                gpus.update(told.gpus)
                jobs.update(told.jobs)
        return Held(gpus, jobs)

    def _connect(self) -> None:
        from tachograph.sources.feeds import named, settings_in
        from tachograph.sources.slurm.entries import check_how
        from tachograph.sources.slurm_live import Settings, controller_of

        for settings in settings_in(self._configuration, _SOURCE):
            if isinstance(settings, Settings):
                with named(settings.title):
                    check_how(settings.how, url=settings.url, command=settings.command)
                    controller = controller_of(settings)
                self._asked.append(controller.ask_controller)
                self._where.append(controller.where)


class WithHolders:
    """A source to whose GPUs it is added who holds them. What the source tells itself stays; Slurm completes it."""

    def __init__(
        self,
        source: LiveSource,
        ask: Callable[[], Held],
        *,
        every_s: float = EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._ask = ask
        self._every_s = every_s
        self._clock = clock
        self._held = Held()
        self._problem: Problem | None = None
        self._answered = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: tuple[Held, Snapshot] | None = None
        self._merged: Mapping[Gpu, Holder] = {}

    @property
    def about(self) -> About:
        """What the source is."""
        return self._source.about

    def start(self) -> None:
        """Begin to ask; `read` does it, too."""
        if self._thread is None and not self._closed.is_set():
            self._thread = threading.Thread(target=self._go_on_asking, name="holders", daemon=True)
            self._thread.start()

    def wait(self, seconds: float = PATIENCE_S) -> bool:
        """Wait until somebody answered, or did not; return whether it came to that."""
        self.start()
        return self._answered.wait(seconds)

    def names(self, job: str) -> frozenset[str]:
        """Every id that means the same job, as far as is known."""
        return self._held.names(job)

    def read(self) -> Snapshot:
        """Return the newest snapshot, with the holders of the last answer. Errors: as the source."""
        snapshot = self._source.read()
        self.start()  # behind the first snapshot, whose way to the screen is not to be delayed by imports
        held, problem = self._held, self._problem
        problems = (*snapshot.problems, problem) if problem else snapshot.problems
        return replace(snapshot, holders=self._holders(snapshot, held), problems=problems)

    def close(self) -> None:
        """Ask no more, and let go of the source."""
        self._closed.set()
        self._source.close()

    def _holders(self, snapshot: Snapshot, held: Held) -> Mapping[Gpu, Holder]:
        before = self._before
        same = before is not None and before[0] is held and before[1].gpus == snapshot.gpus
        if not same or before is None or before[1].holders != snapshot.holders:
            self._merged = merged(snapshot, held)
            self._before = held, snapshot
        return self._merged

    def _go_on_asking(self) -> None:
        wait_s = self._every_s
        while not self._closed.is_set():
            try:
                self._held = self._ask()
                self._problem, wait_s = None, self._every_s
            except TachographError as problem:
                self._problem = Problem(f"who holds which GPU is not told: {problem.what}", problem.where, problem.do)
                wait_s = min(wait_s * 2, LONGEST_S)
            self._answered.set()
            self._closed.wait(wait_s)


def merged(snapshot: Snapshot, held: Held) -> Mapping[Gpu, Holder]:
    """Return who holds each GPU: what the source tells, completed by what Slurm knows of that job; else Slurm's answer.

    >>> from numpy import zeros
    >>> gpus = Gpu("n1.example.org", 0), Gpu("n1", 1)
    >>> told = Snapshot(0.0, gpus, zeros(2), {}, holders={gpus[1]: Holder("14")})
    >>> held = Held({("n1", 0): Holder("7", "bo")}, {"14": Holder("3_0", "ana")})
    >>> [holder.user for holder in merged(told, held).values()]
    ['bo', 'ana']
    """
    found: dict[Gpu, Holder] = {}
    for gpu in snapshot.gpus:
        told = snapshot.holders.get(gpu)
        if told is not None and told.job_id is not None:
            found[gpu] = _completed(told, [held.jobs.get(job) for job in told.jobs])
            continue
        of_slurm = held.gpus.get((short_host(gpu.node), gpu.gpu)) if gpu.mig is None else None
        holder = of_slurm or told
        if holder is not None:
            found[gpu] = holder
    return found


def _completed(told: Holder, known: Sequence[Holder | None]) -> Holder:
    """The ids as people name them; user and time from whoever tells them. known: of each job of `told`."""
    if not any(known):
        return told
    jobs = [(of and of.job_id) or job for of, job in zip(known, told.jobs, strict=True)]
    users = dict.fromkeys(of.user for of in known if of is not None and of.user)
    began = [of.since for of in known if of is not None and of.since is not None]
    return Holder(",".join(jobs), told.user or ",".join(users) or None, min(began) if began else told.since)
