"""`sacct --json` and slurmrestd's `/slurmdb` answers, Slurm 21.08 to 26.05.

The shapes differ: numbers are plain or {set, infinite, number}, states and exit statuses a word or
a list, `submit_line` came after 22.05, `association` lost its user, `exclusive` came with 26.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from tachograph.sources.slurm.fields import (
    BadRowError,
    folded_exit_code,
    job_state,
    json_example,
    json_limit_s,
    json_number,
    json_objects,
    json_text,
    json_time,
    json_value,
    reported_job_id,
)
from tachograph.sources.slurm.gres import GPU_NAMES
from tachograph.sources.slurm.records import (
    JobRecord,
    SlurmCluster,
    SlurmEntry,
    requested_exclusive,
)
from tachograph.sources.slurm.usage import json_request, json_usage


def read_database(document: object) -> Iterator[SlurmEntry]:
    """Yield the jobs of a document; `place` is the position in its list."""
    jobs = json_value(document, "jobs")
    cluster = json_text(document, "meta", "slurm", "cluster")
    for position, job in enumerate(jobs if isinstance(jobs, list) else [], start=1):
        if not isinstance(job, dict):
            yield SlurmEntry(position, json_example(job), reason="not_an_object")
            continue
        yield SlurmEntry(position, "", {**job, "cluster": job.get("cluster") or cluster})


def names_gpus(document: object) -> bool:
    """Return whether any TRES names GPUs; otherwise the site does not account for them."""
    for job in json_objects(document, "jobs"):
        for kind in ("allocated", "requested"):
            for row in json_objects(job, "tres", kind):
                name = str(row.get("name")).partition(":")[0]
                if row.get("type") == "gres" and name in GPU_NAMES:
                    return True
    return False


def database_example(fields: Mapping[str, object]) -> str:
    """Return a rejected job as text for messages, without its steps and TRES."""
    return json_example(
        {name: value for name, value in fields.items() if name not in {"steps", "tres"}}
    )


def steps(fields: Mapping[str, object]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the steps that a job carries: an example, and its fields."""
    listed = fields.get("steps")
    for step in listed if isinstance(listed, list) else []:
        yield json_example(json_value(step, "step") or step), step if isinstance(step, dict) else {}


def step_of(job: JobRecord, step: Mapping[str, object]) -> JobRecord:
    """Return one of the `steps` of a job; its id is written as `batch`, or as `123.batch`.

    Errors: BadRowError with the reason when it cannot be read.
    """
    text = partial(json_text, step)
    name = text("step", "id")
    state = job_state(step.get("state")).base
    code, signal = _exit_status(step.get("exit_code"), state)
    if not name:
        raise BadRowError("bad_step_id")
    return JobRecord(
        id=replace(job.id, step=name.rpartition(".")[2]),
        cluster=job.cluster,
        name=text("step", "name"),
        state=state,
        exit_code=code,
        exit_signal=signal,
        start=json_time(step, "time", "start"),
        end=json_time(step, "time", "end"),
        nodes=json_number(step, "nodes", "count"),
        node_list=text("nodes", "range"),
        allocated=_tres(json_value(step, "tres", "allocated")),
        tasks=json_number(step, "tasks", "count"),
        submit_line=text("submit_line"),
        usage=json_usage(step),
    )


def from_database(job: Mapping[str, object], cluster: SlurmCluster) -> JobRecord:
    """Return the job of one object of `jobs`.

    Errors: BadRowError with the reason when it cannot be read.
    """
    text, number = partial(json_text, job), partial(json_number, job)
    state = job_state(
        json_value(job, "state", "current") or job.get("job_state") or job.get("state")
    ).base
    code, signal = _exit_status(job.get("exit_code"), state)
    elapsed = number("time", "elapsed")
    requested = _tres(json_value(job, "tres", "requested"))
    nodes, cpus = (
        number("allocation_nodes"),
        number("required", "CPUs"),
    )
    return JobRecord(
        id=reported_job_id(
            number("job_id"),
            array=number("array", "job_id"),
            task=number("array", "task_id"),
            het=number("het", "job_id"),
            offset=number("het", "job_offset"),
            waiting=_waiting(job),
        ),
        cluster=text("cluster") or text("association", "cluster") or cluster.name,
        name=text("name"),
        user=text("user") or text("association", "user"),
        account=text("account") or text("association", "account"),
        partition=text("partition") or text("association", "partition"),
        qos=text("qos"),
        state=state,
        exit_code=code,
        exit_signal=signal,
        submit=json_time(job, "time", "submission"),
        eligible=json_time(job, "time", "eligible"),
        start=json_time(job, "time", "start"),
        end=json_time(job, "time", "end"),
        elapsed_s=None if elapsed is None or elapsed < 0 else float(elapsed),
        timelimit_s=json_limit_s(job, "time", "limit"),
        nodes=nodes,
        node_list=text("nodes") or "None assigned",
        allocated=_tres(json_value(job, "tres", "allocated")),
        requested=requested or {},
        names_gpus=any(gres in (text("used_gres") or "") for gres in GPU_NAMES),
        cpus=cpus,
        constraints=text("constraints"),
        submit_line=text("submit_line"),
        exclusive=requested_exclusive(text("exclusive")),
        mem_requested_mib=json_request(job, nodes=nodes, cpus=cpus),
        comment=text("comment", "administrator"),
        usage=json_usage(job),
    )


def _waiting(job: Mapping[str, object]) -> str | None:
    """Return the waiting indices of an array, such as `0-3%2`, also from bits (`0xF`).

    >>> _waiting({"array": {"task": "0x35", "limits": {"max": {"running": {"tasks": 2}}}}})
    '0,2,4-5%2'
    """
    written = json_text(job, "array", "task")
    if written is None or not re.fullmatch(r"0x[0-9A-Fa-f]{1,5000}", written):
        return written
    bits = int(written, 16)
    indices = [index for index in range(bits.bit_length()) if bits >> index & 1]
    first = [index for index in indices if not (bits << 1) >> index & 1]
    last = [index for index in indices if not bits >> index + 1 & 1]
    ranges: list[str] = []
    for low, high in zip(first, last, strict=True):
        ranges.append(f"{low}-{high}" if high > low else str(low))
    waiting = ",".join(ranges)
    at_once = json_number(job, "array", "limits", "max", "running", "tasks")
    return f"{waiting}%{at_once}" if at_once else waiting


def _exit_status(value: object, state: str | None) -> tuple[int | None, int | None]:
    """(Folded) exit code and signal; unknown for SUCCESS of failed jobs (Slurm up to 22.05)."""
    code, signal = (
        json_number(value, "return_code"),
        json_number(value, "signal", "id"),
    )
    if signal is None:
        signal = json_number(value, "signal", "signal_id")
    old_shape = isinstance(json_value(value, "status"), str)
    if (
        old_shape
        and json_value(value, "status") == "SUCCESS"
        and state not in {"COMPLETED", "PENDING", "RUNNING"}
    ):
        return None, None
    if code is None and signal:
        code = 0
    return None if code is None else folded_exit_code(code), signal or None


def _tres(value: object) -> dict[str, int] | None:
    """Counts of CPUs, nodes, GPUs and GPU shares; None without such a list."""
    if not isinstance(value, list):
        return None
    counts: dict[str, int] = {}
    for row in json_objects(value):
        kind, name, count = (
            json_text(row, "type"),
            json_text(row, "name"),
            json_number(row, "count"),
        )
        if count is None or count < 0:
            continue
        if kind in {"cpu", "node"}:
            counts[kind] = count
        elif kind == "gres" and name and name.partition(":")[0] in GPU_NAMES:
            counts[f"gres/{name}"] = count
    return counts
