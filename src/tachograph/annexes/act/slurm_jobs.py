"""Slurm's current jobs and nodes, and commands that change exactly one of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

from tachograph.catalog.errors import ExportError, InputError, RefusedError
from tachograph.sources.slurm.commands import IN_SECONDS, SiteProgram

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


LIMIT_S = 30.0  # of a command
JobAction = Literal["suspend", "requeue", "cancel"]
# of fixed width: names of jobs, which users choose, are not among them. {field of squeue -O: width}
QUEUE_FIELDS: Mapping[str, int] = {
    "JobID": 24,
    "ArrayJobID": 24,
    "ArrayTaskID": 24,
    "HetJobID": 24,
    "HetJobOffset": 24,
    "State": 24,
    "StartTime": 24,
    "RestartCnt": 12,
    "BatchFlag": 8,
    "UserName": 128,
    "Reservation": 256,
}
_FORMAT: Final = ",".join(f"{name}:{width}" for name, width in QUEUE_FIELDS.items())
_NONE = frozenset({"", "(null)", "N/A", "None"})
_COMMANDS: Mapping[JobAction, tuple[str, ...]] = {
    "suspend": ("scontrol", "suspend"),
    "requeue": ("scontrol", "requeue"),
    "cancel": ("scancel",),
}
# A job that was cancelled, until the controller forgets it.
_ENDED = frozenset({"CANCELLED", "COMPLETING"})
_DRAINED = frozenset({"drained", "draining", "drain"})
_NOT_IN_REASON = re.compile(r"[^A-Za-z0-9_@%+=:,./-]+")
_MOST_REASON = 200  # characters


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A queued job by raw id. name: the id for this job alone in Slurm commands, 4711_3 or 4711+1.

    group: id of its array or heterogeneous job, else its own. state: RUNNING, SUSPENDED, ...;
    restarts: number of requeues; batch: it has a script, so it is not interactive.
    """

    job_id: str
    name: str
    group: str
    state: str
    start: datetime | None
    restarts: int
    batch: bool
    is_component: bool
    user: str
    reservation: str | None

    def is_run(self, row: JobSummaryRow) -> bool:
        """Return whether it is the run of this row of job_summaries, and still runs."""
        if self.state != "RUNNING" or self.start is None or self.user != row["user"]:
            return False
        if row["display_id"] and row["display_id"] != self.name:
            return False
        precision = timedelta(seconds=max(2.0, row["time_precision_s"] or 0.0))
        return abs(self.start - row["start"]) <= precision

    def was(self, action: JobAction, before: SlurmJob) -> bool:
        """Return whether the job was changed by this action since `before`."""
        if action == "requeue":
            return self.restarts > before.restarts
        states = {"SUSPENDED"} if action == "suspend" else _ENDED
        return self.state in states and before.state not in states


@dataclass(frozen=True, slots=True)
class SlurmJobs:
    """The controller. before: words before its commands, such as `ssh login`.

    Every method raises RefusedError for a value that is invalid in Slurm, and InputError if Slurm
    does not answer.
    """

    before: tuple[str, ...] = ()

    def job(self, job_id: str, cluster: str | None) -> SlurmJob | None:
        """Return the job of a raw id; None if it left the queue."""
        return next((job for job in self._jobs(job_id, cluster) if job.job_id == job_id), None)

    def change(self, action: JobAction, job: SlurmJob, cluster: str | None) -> str:
        """Suspend, requeue or cancel a run; return the queue's view of it and its array afterwards.

        Raises ExportError where the run is as before, or another job of its array was changed as
        well.
        """
        before = {other.job_id: other for other in self._jobs(job.group, cluster)}
        if before.get(job.job_id) != job:
            raise ExportError(f"job {job.name} changed a moment ago; nothing was done")
        command, *words = _COMMANDS[action]
        self._run(command, cluster, *words, "{job}", job=job.name)
        after = {other.job_id: other for other in self._jobs(job.group, cluster)}
        changed = after.pop(job.job_id, None)
        if changed is None and action != "cancel":
            raise ExportError(f"job {job.name} is no longer in the queue")
        if changed is not None and not changed.was(action, job):
            raise ExportError(f"Slurm took the command, but job {job.name} is {changed.state}")
        others = [other for other in after.values() if other.job_id in before]
        also = [other for other in others if other.was(action, before[other.job_id])]
        if also:
            names = ", ".join(f"{other.name} is {other.state}" for other in also[:10])
            raise ExportError(f"job {job.name} was changed, but not alone: {names}")
        change = f"{job.name} was {job.state}, is {'gone' if changed is None else changed.state}"
        return f"{change}; {len(others):,} others of its array did not change" if others else change

    def is_on(self, job: SlurmJob, node: str, cluster: str | None) -> bool:
        """Return whether a job runs on a node."""
        words = ("--noheader", "--jobs={job}", "--nodelist={node}", "--format=%A")
        return bool(self._run("squeue", cluster, *words, job=job.name, node=node).strip())

    def drain(self, node: str, cluster: str | None, reason: str) -> str:
        """Drain a node; return Slurm's view of it afterwards.

        Errors: RefusedError for an unknown node, ExportError if its state is unchanged, or not the
        drain alone.
        """
        before = self._node_states(cluster)
        if node not in before:
            raise RefusedError(f"Slurm has no node {node!r}; nothing was run")
        if before[node] in _DRAINED:
            return f"{node} is {before[node]} already"
        text = _NOT_IN_REASON.sub(" ", reason)[:_MOST_REASON].strip(" -")
        words = ("update", "NodeName={node}", "State=DRAIN", "Reason={reason}")
        self._run("scontrol", cluster, *words, node=node, reason=text)
        after = self._node_states(cluster)
        drained = [
            name
            for name, state in after.items()
            if state in _DRAINED and before.get(name) not in _DRAINED
        ]
        if drained != [node]:
            raise ExportError(
                f"drained nodes: {', '.join(drained[:10]) or 'none'}, instead of {node} alone"
            )
        return f"{node} was {before[node]}, is {after[node]}"

    def _jobs(self, job_id: str, cluster: str | None) -> list[SlurmJob]:
        """Jobs of an id: one, or all of an array or heterogeneous job."""
        words = ("--noheader", "--states=all", "--jobs={job}", f"--Format={_FORMAT}")
        try:
            printed = self._run("squeue", cluster, *words, job=job_id)
        except InputError as problem:
            if "Invalid job id" in problem.what:
                return []
            raise
        # with --clusters there is a line that names the cluster
        return [_job(line) for line in printed.splitlines() if line[:1].isdigit()]

    def _node_states(self, cluster: str | None) -> dict[str, str]:
        printed = self._run("sinfo", cluster, "--noheader", "--Node", "--format=%N=%T")
        pairs = [line.strip().partition("=")[::2] for line in printed.splitlines()]
        return {name: state.rstrip("*~#!%$@^-+").lower() for name, state in pairs if name}

    def _run(self, name: str, cluster: str | None, *words: str, **values: str) -> str:
        if cluster:
            words, values = ("--clusters={cluster}", *words), {"cluster": cluster, **values}
        program = SiteProgram((*self.before, name), timeout_s=LIMIT_S, environment=IN_SECONDS)
        return program.output(*words, **values).decode("utf-8", "replace")


def _job(line: str) -> SlurmJob:
    values, begin = {}, 0
    for field, width in QUEUE_FIELDS.items():
        values[field] = line[begin : begin + width].strip()
        begin += width
    job_id, array, het = values["JobID"], values["ArrayJobID"], values["HetJobID"]
    start, reservation, restarts = values["StartTime"], values["Reservation"], values["RestartCnt"]
    name = group = job_id
    if values["ArrayTaskID"] not in _NONE:
        name, group = f"{array}_{values['ArrayTaskID']}", array
    elif het.isdigit() and het != "0":
        name, group = f"{het}+{values['HetJobOffset']}", het
    return SlurmJob(
        job_id=job_id,
        name=name,
        group=group,
        state=values["State"],
        start=datetime.fromtimestamp(int(start), UTC) if start.isdigit() else None,
        restarts=int(restarts) if restarts.isdigit() else 0,
        batch=values["BatchFlag"] == "1",
        is_component=name != job_id and "+" in name,
        user=values["UserName"],
        reservation=None if reservation in _NONE else reservation,
    )
