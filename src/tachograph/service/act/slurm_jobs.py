"""Jobs and nodes of Slurm as the controller knows them now, and the few commands that change them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tachograph.catalog.errors import InputError
from tachograph.sources.slurm.commands import IN_SECONDS, SiteProgram

LIMIT_S = 30.0  # of a command
# of fixed width: names of jobs, which users choose, are not among them. {field of squeue -O: width}
_FIELDS: Mapping[str, int] = {
    "JobID": 24, "State": 24, "StartTime": 24, "BatchFlag": 8, "UserName": 128, "Reservation": 256,
}  # fmt: skip
_NONE = frozenset({"", "(null)", "N/A", "None"})


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """A job in the queue. state: RUNNING, SUSPENDED, ...; batch: it has a script, so it is not interactive."""

    job_id: str
    state: str
    start: datetime | None
    batch: bool
    user: str
    reservation: str | None

    def is_run(self, row: Mapping[str, Any]) -> bool:
        """Return whether it is the run of this row of job_summaries, and still runs."""
        if self.state != "RUNNING" or self.start is None or self.user != row["user"]:
            return False
        started: datetime = row["start"]
        return abs(self.start - started) <= timedelta(seconds=max(2.0, row["time_precision_s"] or 0.0))


@dataclass(frozen=True, slots=True)
class SlurmJobs:
    """The controller. before: words before its commands, such as `ssh login`."""

    before: tuple[str, ...] = ()

    def job(self, job_id: str, cluster: str | None) -> SlurmJob | None:
        """Return a job; None where it is not in the queue any more. Errors: InputError where Slurm does not answer."""
        form = ",".join(f"{name}:{width}" for name, width in _FIELDS.items())
        try:
            printed = self._run("squeue", cluster, "--noheader", "--states=all", f"--jobs={job_id}", f"--Format={form}")
        except InputError as problem:
            if "Invalid job id" in problem.what:
                return None
            raise
        for line in printed.splitlines():
            values, at = {}, 0
            for name, width in _FIELDS.items():
                values[name] = line[at : at + width].strip()
                at += width
            if values["JobID"] == job_id:
                return _job(values)
        return None

    def is_drained(self, node: str, cluster: str | None) -> bool:
        """Return whether a node takes no new jobs. Errors: InputError."""
        printed = self._run("sinfo", cluster, "--noheader", f"--nodes={node}", "--format=%T")
        states = {line.strip().rstrip("*~#!%$@^-").lower() for line in printed.splitlines() if line.strip()}
        return bool(states) and states <= {"drained", "draining", "drain"}

    def suspend(self, job_id: str, cluster: str | None) -> None:
        """Stop the processes of a job; it keeps its GPUs' memory. Errors: InputError."""
        self._run("scontrol", cluster, "suspend", job_id)

    def requeue(self, job_id: str, cluster: str | None) -> None:
        """End a job and put it into the queue again. Errors: InputError."""
        self._run("scontrol", cluster, "requeue", job_id)

    def cancel(self, job_id: str, cluster: str | None) -> None:
        """End a job. Errors: InputError."""
        self._run("scancel", cluster, job_id)

    def drain(self, node: str, cluster: str | None, reason: str) -> None:
        """Let a node take no new jobs. Errors: InputError."""
        self._run("scontrol", cluster, "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def _run(self, name: str, cluster: str | None, *words: str) -> str:
        of_cluster = (f"--clusters={cluster}",) if cluster else ()
        program = SiteProgram((*self.before, name), timeout_s=LIMIT_S, environment=IN_SECONDS)
        return program.output(*of_cluster, *words).decode("utf-8", "replace")


def _job(values: Mapping[str, str]) -> SlurmJob:
    start, reservation = values["StartTime"], values["Reservation"]
    return SlurmJob(
        values["JobID"],
        values["State"],
        datetime.fromtimestamp(int(start), UTC) if start.isdigit() else None,
        values["BatchFlag"] == "1",
        values["UserName"],
        None if reservation in _NONE else reservation,
    )
