"""Jobs that run now, as rows of `jobs`: what the controller tells that the accounting will tell, too.

Only fields in which both agree to the letter are taken (compared in recordings of Slurm 22.05, 24.11 and 26.05), so
that neither contradicts the other and nothing changes while a job runs. Squeue's JSON and slurmrestd's answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

from tachograph.sources.slurm.documents import at, number, objects, text
from tachograph.sources.slurm.fields import BadRowError, JobId, base_state, told_id, tres
from tachograph.sources.slurm.records import Cluster, JobRecord, Row, job_row
from tachograph.sources.slurm.times import from_epoch

_RUNS = frozenset({"RUNNING", "SUSPENDED"})
_UNLIMITED = 0xFFFFFFFE  # NO_VAL of slurm.h, and INFINITE above it


def running_rows(document: object, cluster: Cluster) -> Iterator[Row]:
    """Yield the rows of `jobs` of those that run; records that cannot be read are left to the accounting."""
    jobs = objects(at(document, "jobs"))
    names_gpus = any("gres/gpu" in (text(job.get("tres_alloc_str")) or "") for job in jobs)
    known = replace(cluster, tracks_gpus=names_gpus)
    for job in jobs:
        try:
            if _runs(job):
                yield job_row(_record(job, known), known)
        except BadRowError:
            continue


def asked_at(document: object) -> int | None:
    """Return the clock of the controller when it answered, seconds since 1970; None up to Slurm 23.02.

    >>> asked_at({"last_update": {"set": True, "infinite": False, "number": 1795245396}})
    1795245396
    """
    return number(at(document, "last_update")) or None


def _runs(job: Mapping[str, object]) -> bool:
    """One that is about to end has its flag beside the state."""
    state = job.get("job_state")
    flags = state[1:] if isinstance(state, list) else []
    return base_state(text(state) or "") in _RUNS and "COMPLETING" not in flags


def _record(job: Mapping[str, object], cluster: Cluster) -> JobRecord:
    limit = number(job.get("time_limit"))
    return JobRecord(
        id=_job_id(job),
        cluster=text(job.get("cluster")) or cluster.name,
        name=text(job.get("name")),
        user=text(job.get("user_name")),
        account=text(job.get("account")),
        partition=text(job.get("partition")),
        qos=text(job.get("qos")),
        state=base_state(text(job.get("job_state")) or ""),
        submit=_time(job, "submit_time"),
        start=_time(job, "start_time"),
        timelimit_s=limit * 60.0 if limit is not None and 0 <= limit < _UNLIMITED else None,
        nodes=number(job.get("node_count")),
        node_list=text(job.get("nodes")) or "None assigned",
        allocated=tres(text(job.get("tres_alloc_str")) or ""),
        submit_line=text(job.get("submit_line")),
    )


def _job_id(job: Mapping[str, object]) -> JobId:
    """The id taken apart. Slurm 22.05 writes null for an index that is none, later ones {set: false}."""
    return told_id(
        number(job.get("job_id")),
        array=number(job.get("array_job_id")),
        task=number(job.get("array_task_id")),
        het=number(job.get("het_job_id")),
        offset=number(job.get("het_job_offset")),
    )


def _time(job: Mapping[str, object], name: str) -> datetime | None:
    seconds = number(job.get(name))
    return None if seconds is None else from_epoch(seconds)
