"""Which GPUs jobs hold right now: `scontrol show job -d` as text, `squeue --json`, slurmrestd's job answers.

Slurm knows the indices (`GRES=gpu:a100:2(IDX:0-1)`, JSON `gres_detail`) only while a job runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime

from tachograph.sources.slurm.documents import at, number, text
from tachograph.sources.slurm.fields import BadRowError
from tachograph.sources.slurm.nodes import expand_nodes
from tachograph.sources.slurm.records import Cluster, Entry, Row
from tachograph.sources.slurm.times import from_epoch, instants

MAX_INDEX = 4095  # a node has fewer GPUs

_GRES = re.compile(r"\bgpu(?::(?P<type>[^:(),]+))?(?::(?P<count>\d+))?\(IDX:(?P<indices>[^)]*)\)")
_MIG = re.compile(r"(?:^|[_-])\d+g\.\d+")
_RECORD = re.compile(r"^JobId=", re.MULTILINE)
_NODE_LINE = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES(?:_IDX)?=([^\n]*)")


def indices(written: str) -> tuple[int, ...]:
    """Return the GPU indices of a list: `0-1,3`, `0;1`, `[0-3]`.

    >>> indices("0-1,3"), indices("0;1"), indices("[2-3]")
    ((0, 1, 3), (0, 1), (2, 3))

    Errors: BadRowError when it is no list of indices.
    """
    found: list[int] = []
    for part in re.split(r"[,;\s]+", written.strip().strip("[]").strip()):
        ends = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", part, re.ASCII)
        if not ends:
            raise BadRowError("bad_gpu_index", "gpu")
        low, high = int(ends[1]), int(ends[2] or ends[1])
        if high < low or high > MAX_INDEX:
            raise BadRowError("bad_gpu_index", "gpu")
        found += range(low, high + 1)
    return tuple(dict.fromkeys(found))


def gpu_indices(gres: str) -> tuple[int, ...]:
    """Return the GPU indices of one node's GRES; other GRES are left out, () where there is no GPU.

    >>> gpu_indices("gpu:h100:2(IDX:0-1),gpu:h200:4(IDX:2-5)"), gpu_indices("shard:4(IDX:0)")
    ((0, 1, 2, 3, 4, 5), ())

    Errors: BadRowError `index_not_told` for `(IDX:N/A)`, `mig_index` for slices: their index is not the GPU's.
    """
    found: list[int] = []
    for match in _GRES.finditer(gres):
        if match["count"] == "0":
            continue
        if match["type"] and _MIG.search(match["type"]):
            raise BadRowError("mig_index", "gpu")
        if match["indices"].strip() in {"", "N/A"}:
            raise BadRowError("index_not_told", "gpu")
        found += indices(match["indices"])
    return tuple(dict.fromkeys(found))


def read_scontrol(content: str) -> Iterator[Entry]:
    """Yield the records of `scontrol show job -d`, one per job; `place` is the number of its first line."""
    starts = [match.start() for match in _RECORD.finditer(content)]
    for begin, end in zip(starts, [*starts[1:], len(content)], strict=True):
        record = content[begin:end]
        yield Entry(content.count("\n", 0, begin) + 1, record.strip()[:4000], {"record": record})


def scontrol_allocations(record: str, cluster: Cluster) -> list[Row]:
    """Return the rows of `allocations` of one record: one per node and GPU. None while it waits, or once it ended.

    Errors: BadRowError with the reason when it cannot be read.
    """
    job = re.match(r"JobId=(\d+)\b", record)
    if not job:
        raise BadRowError("bad_job_id")
    found = [(nodes, gpu_indices(gres)) for nodes, gres in _NODE_LINE.findall(record) if "gpu" in gres]
    if not found:
        return []
    written = re.search(r"\bStartTime=(\S+)", record)
    times = instants(written[1], cluster.time_zone) if written else ()
    start = times[0] if times else None
    return [
        allocation_row(cluster.name, job[1], node, gpu, start=start)
        for nodes, held in found
        for node in expand_nodes(nodes)
        for gpu in held
    ]


def read_controller(document: object) -> Iterator[Entry]:
    """Yield the jobs of a `squeue --json`, `scontrol show job --json` or slurmrestd answer; `place` counts them."""
    jobs = at(document, "jobs")
    for place, job in enumerate(jobs if isinstance(jobs, list) else [], start=1):
        if isinstance(job, dict):
            brief = ", ".join(f"{name}={job.get(name)}" for name in ("job_id", "job_state", "nodes", "gres_detail"))
            yield Entry(place, brief, job)
        else:
            yield Entry(place, str(job)[:200], reason="not_an_object")


def controller_allocations(job: Mapping[str, object], cluster: Cluster) -> list[Row]:
    """Return the rows of `allocations` of one job: one per node and GPU. None while it waits, or once it ended.

    `gres_detail` holds one text per node, in the order of the node list.
    Errors: BadRowError with the reason when it cannot be read.
    """
    detail = job.get("gres_detail")
    per_node = [str(part) for part in detail] if isinstance(detail, list) else [text(detail)] if text(detail) else []
    held = [gpu_indices(part or "") for part in per_node]
    if not any(held):
        return []
    raw = number(job.get("job_id"))
    if not raw or raw < 0:
        raise BadRowError("bad_job_id")
    nodes = expand_nodes(text(job.get("nodes")) or "")
    if len(nodes) != len(held):
        raise BadRowError("index_count_mismatch", "gpu")
    seconds = number(job.get("start_time"))
    start = None if seconds is None else from_epoch(seconds)
    name = text(job.get("cluster")) or cluster.name
    return [
        allocation_row(name, str(raw), node, gpu, start=start)
        for node, gpus in zip(nodes, held, strict=True)
        for gpu in gpus
    ]


def allocation_row(
    cluster: str | None,
    job: str,
    node: str,
    gpu: int,
    *,
    mig: int | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    provenance: str = "live_index",
) -> Row:
    """Return one row of `allocations`."""
    return {
        "cluster": cluster,
        "job_id": job,
        "node": node,
        "gpu": gpu,
        "mig": mig,
        "start": start,
        "end": end,
        "provenance": provenance,
    }
