"""NERSC's job records: answers of the Superfacility API, and exports of Iris.

The API hands over sacct rows, or squeue rows of waiting and running jobs, as objects with
lower-case names and local times. Iris gives local times in whole minutes: start is that minute, end
the minute after, outer bounds both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial

from tachograph.catalog.errors import InputError
from tachograph.sources.slurm.fields import (
    BadRowError,
    base_state,
    instants,
    job_id,
    json_example,
    json_objects,
    json_text,
    json_value,
    settle,
)
from tachograph.sources.slurm.records import JobRecord, SlurmCluster, SlurmEntry, from_fields

_MINUTE = timedelta(minutes=1)

# name in squeue -> name in sacct; what is not named is called the same in both, or not needed
_SQUEUE = {
    "name": "jobname",
    "submit_time": "submit",
    "start_time": "start",
    "end_time": "end",
    "time": "elapsed",
    "time_limit": "timelimit",
    "nodes": "nnodes",
    "cpus": "alloccpus",
    "features": "constraints",
}
_FINISHED_LATER = frozenset({"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING"})


def read_superfacility(document: object, *, where: str) -> Iterator[SlurmEntry]:
    """Yield the records of an answer, of a list of answers or of records; `place` counts them.

    Errors: InputError when every answer is an error.
    """
    answers = json_objects(document) if isinstance(document, list) else json_objects([document])
    problems = [str(answer["error"]) for answer in answers if answer.get("error")]
    records: list[dict[str, object]] = []
    for answer in answers:
        output = answer.get("output")
        if isinstance(output, list):
            records += json_objects(output)
        elif "jobid" in answer or "jobidraw" in answer:
            records.append(answer)
    if problems and not records:
        raise InputError(
            f"the service answered: {problems[0][:200]}", where=where, do="request it again"
        )
    for position, record in enumerate(records, start=1):
        yield SlurmEntry(position, "", record)


def from_superfacility(record: Mapping[str, object], cluster: SlurmCluster) -> JobRecord:
    """Return the job, or the step, of a sacct or squeue row.

    Errors: BadRowError with the reason when it cannot be read.
    """
    fields = {name.lower(): json_text(value) or "" for name, value in record.items()}
    if "st" not in fields and "submit_time" not in fields:
        return from_fields(fields, cluster)
    return from_fields(_as_sacct(fields), cluster)


def _as_sacct(fields: Mapping[str, str]) -> dict[str, str]:
    """A squeue row under sacct's names, without expected times and requests."""
    row = {_SQUEUE.get(name, name): value for name, value in fields.items()}
    state = base_state(fields.get("state") or fields.get("st", ""))
    array, task = fields.get("array_job_id", ""), fields.get("array_task_id", "")
    raw = fields.get("jobid", "")
    row["jobidraw"] = raw if raw.isdigit() else ""
    if task.isdigit():
        row["jobid"] = f"{array}_{task}"
    if state in _FINISHED_LATER:
        row["end"] = ""
    if state == "PENDING":
        row["start"], row["nodelist"] = "", "None assigned"
    row["state"] = state or ""
    row["alloctres"] = _per_node(fields) if state != "PENDING" else ""
    return row


def _per_node(fields: Mapping[str, str]) -> str:
    """TRES of all nodes from `tres_per_node` (`gres/gpu:a100:4`, older `gres:gpu:4`) x nodes."""
    nodes = fields.get("nodes", "")
    written = fields.get("tres_per_node", "")
    if not nodes.isdigit() or not written:
        return ""
    total = []
    for part in written.split(","):
        kind, _, count = part.replace("gres:", "gres/", 1).rpartition(":")
        if kind.startswith("gres/gpu") and count.isdigit():
            total.append(f"{kind}={int(count) * int(nodes)}")
        elif part.replace("gres:", "gres/", 1) == "gres/gpu":
            total.append(f"gres/gpu={nodes}")
    return ",".join(total)


def from_iris(record: Mapping[str, object], cluster: SlurmCluster) -> JobRecord:
    """Return the job of an Iris row. GPUs, node list and partition are mostly not reported.

    Errors: BadRowError with the reason when it cannot be read.
    """
    text = partial(json_text, record)
    elapsed = _float(record.get("Elapsed secs"))
    candidates = [
        instants(text(name) or "", cluster.time_zone)
        for name in ("Submit Time", "Eligible Time", "Start Time", "End Time")
    ]
    submit, eligible, start, end = settle(candidates, elapsed)
    state = base_state(text("State") or "")
    return JobRecord(
        id=job_id(text("Job ID") or ""),
        cluster=(text("Hostname") or "").partition(" ")[0] or cluster.name,
        name=text("Job Name"),
        user=text("User"),
        account=text("Project"),
        partition=text("Partition"),
        qos=text("QOS"),
        state=state,
        submit=submit,
        eligible=eligible,
        start=start,
        end=_minute_after(start, end),
        elapsed_s=elapsed,
        nodes=_count(record.get("No. of nodes Allocated")),
        cpus=_count(record.get("CPUs used")),
        time_precision_s=60.0,
    )


def _minute_after(start: datetime | None, end: datetime | None) -> datetime | None:
    if start and end and end < start:
        raise BadRowError("end_before_start")
    return end + _MINUTE if end else None


def _float(value: object) -> float | None:
    if value is None or value == "":
        return None
    try:
        number = float(str(value))
    except ValueError:
        raise BadRowError("bad_duration") from None
    if not 0 <= number < 1e10:
        raise BadRowError("bad_duration")
    return number


def _count(value: object) -> int | None:
    number = _float(value)
    if number is not None and not number.is_integer():
        raise BadRowError("bad_count")
    return None if number is None else int(number)


def nersc_example(record: Mapping[str, object]) -> str:
    """Return a record as text, without empty fields."""
    return json_example({name: value for name, value in record.items() if value not in ("", None)})


def is_iris(document: object) -> bool:
    """Return whether a document is an export of Iris."""
    rows = json_objects(document)
    return bool(rows) and "Job ID" in rows[0] and "Start Time" in rows[0]


def is_superfacility(document: object) -> bool:
    """Return whether a document is an answer of the Superfacility API, or the rows of one."""
    rows = json_objects(document) or json_objects([document])
    return bool(rows) and (
        "output" in rows[0]
        or ("jobid" in rows[0] and not isinstance(json_value(rows[0], "time"), dict))
    )
