"""Slurm's running jobs from `squeue --json` or `scontrol show job`, as rows of `jobs`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePosixPath
from typing import Final, Literal, Protocol

from tachograph.catalog.errors import InputError
from tachograph.sources.slurm.allocations import identity_record
from tachograph.sources.slurm.commands import IN_SECONDS, RunProgram, SiteProgram
from tachograph.sources.slurm.fields import (
    BadRowError,
    job_state,
    json_limit_s,
    json_number,
    json_objects,
    json_text,
    json_time,
    reported_job_id,
)
from tachograph.sources.slurm.gres import GPU_NAMES, tres
from tachograph.sources.slurm.records import JobRecord, SlurmCluster, SlurmRow, job_row

HOLDING: Final = "RUNNING,SUSPENDED,COMPLETING,CONFIGURING"  # states in which a job has its GPUs
NO_JOBS: Final = b"No jobs in the system"
_AS_OF = re.compile(rb"Configuration data as of (\d{6,12})\b")
# Raw id, start, id as people write it.
_LISTED = re.compile(r"\d+,\w+,\d+(?:_\d+|\+\d+)?", re.ASCII)
_NAME = re.compile(rb"^ClusterName\s*=\s*(\S+)", re.MULTILINE)

AnswerFormat = Literal["auto", "json", "text"]


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """Cluster name and controller's clock (s since 1970), from `scontrol show config`."""

    cluster: str | None
    clock: int | None


class ControllerAccess(Protocol):
    """Interface of a polled controller."""

    where: str

    def fetch_jobs(self) -> bytes:
        """Return the raw answer. Errors: InputError without one."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class ControllerCommands:
    """Runs `squeue --json`, or `scontrol` for Slurm without JSON (up to 20.11).

    Text of `scontrol` holds job names and comments as users wrote them, and these may hold whole
    records. So it runs once per job that began since the last poll: what an answer has of other
    jobs is dropped.
    """

    def __init__(
        self,
        squeue: RunProgram,
        scontrol: RunProgram,
        *,
        where: str = "squeue",
        form: AnswerFormat = "auto",
    ) -> None:
        self.where = where
        self._squeue = squeue
        self._scontrol = scontrol
        self._form: AnswerFormat = form
        # Of what runs: {(raw id, start): what no user can write of it}.
        self._known: dict[tuple[str, str], str] = {}

    @classmethod
    def of(
        cls, words: Sequence[str], *, timeout_s: float, form: AnswerFormat = "auto"
    ) -> ControllerCommands:
        """Return the commands; `scontrol` is in the folder of `squeue`."""
        *before, squeue = words
        scontrol = str(PurePosixPath(squeue).with_name("scontrol"))
        programs = [
            SiteProgram((*before, name), timeout_s=timeout_s, environment=IN_SECONDS)
            for name in (squeue, scontrol)
        ]
        return cls(programs[0].output, programs[1].output, where=programs[0].name, form=form)

    def fetch_jobs(self) -> bytes:
        """Return the jobs that hold resources, as JSON or text. Errors: InputError if both fail."""
        if self._form == "text":
            return self._as_text()
        try:
            answer = self._squeue("--all", f"--states={HOLDING}", "--json")
        except InputError as problem:
            if self._form == "json":
                raise
            return self._other_way(problem)
        self._form = "json"
        return answer

    def config(self) -> ControllerConfig:
        """Return cluster name and the controller's clock. Errors: InputError if scontrol fails."""
        answer = self._scontrol("show", "config")
        name, clock = _NAME.search(answer), _AS_OF.search(answer)
        return ControllerConfig(
            name[1].decode("utf-8", "replace") if name else None, int(clock[1]) if clock else None
        )

    def close(self) -> None:
        """Nothing is kept open."""

    def _as_text(self) -> bytes:
        """Return records of running jobs without users' texts; each GPU list is requested once."""
        answer = self._squeue("--all", "--noheader", f"--states={HOLDING}", "--format=%A,%S,%i")
        listed = [
            line.split(",")
            for line in answer.decode("ascii", "replace").splitlines()
            if _LISTED.fullmatch(line)
        ]
        records = {
            (raw, start): self._known.get((raw, start)) or self._record_of(raw, shown)
            for raw, start, shown in listed
        }
        self._known = {
            run: record for run, record in records.items() if "JobState=RUNNING" in record
        }
        return "\n".join(filter(None, records.values())).encode() or NO_JOBS

    def _record_of(self, raw: str, shown: str) -> str:
        """Return one job's record; "" if ended, only its id if its text is ambiguous."""
        try:
            answer = self._scontrol("--all", "--details", "show", "job", shown).decode(
                "utf-8", "replace"
            )
        except InputError as problem:
            if "Invalid job id" in problem.what:
                return ""
            raise
        record = identity_record(answer.strip())
        if record and record.split(maxsplit=1)[0] == f"JobId={raw}":
            return record
        return f"JobId={raw} JobId={raw}\n"  # counted by who reads it: its id stands there twice

    def _other_way(self, problem: InputError) -> bytes:
        """The answer as text; if that fails too, JSON was not the cause."""
        try:
            answer = self._as_text()
        except InputError:
            raise problem from None
        self._form = "text"
        return answer


_RUNS = frozenset({"RUNNING", "SUSPENDED"})


def running_rows(document: object, cluster: SlurmCluster) -> Iterator[SlurmRow]:
    """Yield rows of `jobs` for running jobs; skips unreadable records, which sacct reports
    later.
    """
    jobs = json_objects(document, "jobs")
    names_gpus = any(
        f"gres/{name}" in (json_text(job, "tres_alloc_str") or "")
        for job in jobs
        for name in GPU_NAMES
    )
    cluster = replace(cluster, tracks_gpus=names_gpus)
    for job in jobs:
        try:
            if _runs(job):
                yield job_row(_record(job, cluster), cluster)
        except BadRowError:
            continue


def polled_at(document: object) -> int | None:
    """Return the controller's clock of the answer, s since 1970; None up to Slurm 23.02.

    >>> polled_at({"last_update": {"set": True, "infinite": False, "number": 1795245396}})
    1795245396
    """
    return json_number(document, "last_update") or None


def _runs(job: Mapping[str, object]) -> bool:
    """Whether it runs; a job about to end has a flag beside its state."""
    state = job_state(job.get("job_state"))
    return state.base in _RUNS and "COMPLETING" not in state.flags


def _record(job: Mapping[str, object], cluster: SlurmCluster) -> JobRecord:
    text, number = partial(json_text, job), partial(json_number, job)
    return JobRecord(
        id=reported_job_id(
            number("job_id"),
            array=number("array_job_id"),
            # Unset is null in Slurm 22.05, later {set: false}.
            task=number("array_task_id"),
            het=number("het_job_id"),
            offset=number("het_job_offset"),
        ),
        cluster=text("cluster") or cluster.name,
        name=text("name"),
        user=text("user_name"),
        account=text("account"),
        partition=text("partition"),
        qos=text("qos"),
        state=job_state(job.get("job_state")).base,
        submit=json_time(job, "submit_time"),
        start=json_time(job, "start_time"),
        timelimit_s=json_limit_s(job, "time_limit"),
        nodes=number("node_count"),
        node_list=text("nodes") or "None assigned",
        allocated=tres(text("tres_alloc_str") or ""),
        submit_line=text("submit_line"),
    )
