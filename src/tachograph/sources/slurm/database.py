"""`sacct --json` and slurmrestd's `/slurmdb` answers, Slurm 21.08 to 26.05.

The shapes differ: numbers are plain or {set, infinite, number}, states and exit statuses a word or a list,
`submit_line` came after 22.05, `association` lost its user, `exclusive` came with 26.05.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime

from tachograph.sources.slurm.documents import at, number, objects, text
from tachograph.sources.slurm.fields import JobId, base_state, folded_exit_code, told_id
from tachograph.sources.slurm.records import Cluster, Entry, JobRecord, asked_exclusive
from tachograph.sources.slurm.times import from_epoch


def read_database(document: object) -> Iterator[Entry]:
    """Yield the jobs of a document; `place` is the position in its list."""
    found = at(document, "jobs")
    cluster = text(at(document, "meta", "slurm", "cluster"))
    for place, job in enumerate(found if isinstance(found, list) else [], start=1):
        if not isinstance(job, dict):
            yield Entry(place, _shown(job), reason="not_an_object")
            continue
        yield Entry(place, "", {**job, "cluster": job.get("cluster") or cluster})


def names_gpus(document: object) -> bool:
    """Return whether any job's TRES names GPUs: where none does, the site does not account for them."""
    return any(
        row.get("type") == "gres" and str(row.get("name")).partition(":")[0] == "gpu"
        for job in objects(at(document, "jobs"))
        for kind in ("allocated", "requested")
        for row in objects(at(job, "tres", kind))
    )


def shown(fields: Mapping[str, object]) -> str:
    """Return a job as text, without its steps and its TRES: what is shown of one that was rejected."""
    return _shown({name: value for name, value in fields.items() if name not in {"steps", "tres"}})


def _shown(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)[:2000]


def steps(fields: Mapping[str, object]) -> int:
    """Return how many steps a job carries."""
    found = fields.get("steps")
    return len(found) if isinstance(found, list) else 0


def from_database(job: Mapping[str, object], cluster: Cluster) -> JobRecord:
    """Return the job of one object of `jobs`.

    Errors: BadRowError with the reason when it cannot be read.
    """
    identity = _job_id(job)
    state = _state(at(job, "state", "current") or job.get("job_state"))
    code, signal = _exit_status(job.get("exit_code"), state)
    limit = number(at(job, "time", "limit"))
    elapsed = number(at(job, "time", "elapsed"))
    requested = _tres(at(job, "tres", "requested"))
    return JobRecord(
        id=identity,
        cluster=text(job.get("cluster")) or text(at(job, "association", "cluster")) or cluster.name,
        name=text(job.get("name")),
        user=text(job.get("user")) or text(at(job, "association", "user")),
        account=text(job.get("account")) or text(at(job, "association", "account")),
        partition=text(job.get("partition")) or text(at(job, "association", "partition")),
        qos=text(job.get("qos")),
        state=state,
        exit_code=code,
        exit_signal=signal,
        submit=_time(job, "submission"),
        eligible=_time(job, "eligible"),
        start=_time(job, "start"),
        end=_time(job, "end"),
        elapsed_s=None if elapsed is None or elapsed < 0 else float(elapsed),
        timelimit_s=limit * 60.0 if limit is not None and 0 <= limit < 0xFFFFFFFE else None,
        nodes=number(job.get("allocation_nodes")),
        node_list=text(job.get("nodes")) or "None assigned",
        allocated=_tres(at(job, "tres", "allocated")),
        requested=requested or {},
        names_gpus="gpu" in (text(job.get("used_gres")) or ""),
        cpus=number(at(job, "required", "CPUs")),
        constraints=text(job.get("constraints")),
        submit_line=text(job.get("submit_line")),
        exclusive=asked_exclusive(text(job.get("exclusive"))),
    )


def _job_id(job: Mapping[str, object]) -> JobId:
    return told_id(
        number(job.get("job_id")),
        array=number(at(job, "array", "job_id")),
        task=number(at(job, "array", "task_id")),
        het=number(at(job, "het", "job_id")),
        offset=number(at(job, "het", "job_offset")),
        waiting=_waiting(job),
    )


def _waiting(job: Mapping[str, object]) -> str | None:
    """Indices of an array that do not run yet, as people write them: `0-3%2`. Slurm writes them so, or as bits: `0xF`.

    >>> _waiting({"array": {"task": "0x35", "limits": {"max": {"running": {"tasks": 2}}}}})
    '0,2,4-5%2'
    """
    written = text(at(job, "array", "task"))
    if written is None or not re.fullmatch(r"0x[0-9A-Fa-f]{1,5000}", written):
        return written
    bits = int(written, 16)
    indices = [index for index in range(bits.bit_length()) if bits >> index & 1]
    first = [index for index in indices if not (bits << 1) >> index & 1]
    last = [index for index in indices if not bits >> index + 1 & 1]
    ranges = (str(low) if low == high else f"{low}-{high}" for low, high in zip(first, last, strict=True))
    at_once = number(at(job, "array", "limits", "max", "running", "tasks"))
    return ",".join(ranges) + (f"%{at_once}" if at_once else "")


def _state(value: object) -> str | None:
    """The base state; a list puts it first, flags such as COMPLETING follow."""
    return base_state(text(value) or "")


def _exit_status(value: object, state: str | None) -> tuple[int | None, int | None]:
    """Code (folded) and signal. Slurm to 22.05 writes SUCCESS for failed jobs, too: not told, then."""
    code, signal = number(at(value, "return_code")), number(at(value, "signal", "id"))
    if signal is None:
        signal = number(at(value, "signal", "signal_id"))
    old_shape = isinstance(at(value, "status"), str)
    if old_shape and at(value, "status") == "SUCCESS" and state not in {"COMPLETED", "PENDING", "RUNNING"}:
        return None, None
    if code is None and signal:
        code = 0
    return None if code is None else folded_exit_code(code), signal or None


def _time(job: Mapping[str, object], name: str) -> datetime | None:
    seconds = number(at(job, "time", name))
    return None if seconds is None else from_epoch(seconds)


def _tres(value: object) -> dict[str, int] | None:
    """Counts of CPUs, nodes and GPUs; None where the document has no such list."""
    if not isinstance(value, list):
        return None
    counts: dict[str, int] = {}
    for row in objects(value):
        kind, name, count = text(row.get("type")), text(row.get("name")), number(row.get("count"))
        if count is None or count < 0:
            continue
        if kind in {"cpu", "node"}:
            counts[kind] = count
        elif kind == "gres" and name and name.partition(":")[0] == "gpu":
            counts[f"gres/{name}"] = count
    return counts
