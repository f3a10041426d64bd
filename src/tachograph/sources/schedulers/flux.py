"""Source `flux`: jobs of the Flux framework, `flux jobs -A -a --json`.

Fields: flux-jobs(1). It lists no GPUs: a job has them where its R (RFC 20, `flux job info ID R`)
was added to it as `R`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from functools import partial

from tachograph.sources.files import add_files
from tachograph.sources.schedulers.documents import (
    DocumentSource,
    file_suffixes,
    json_document,
    not_of,
    settled_times,
    shell_status,
    take_job,
)
from tachograph.sources.slurm.exports import AccountingReading
from tachograph.sources.slurm.fields import (
    MAX_NODES,
    BadRowError,
    JobId,
    any_job_id,
    expand_nodes,
    json_example,
    json_number,
    json_objects,
    json_text,
    json_value,
    parse_document,
)
from tachograph.sources.slurm.gres import indices
from tachograph.sources.slurm.records import JobRecord, SlurmCluster, SlurmRow, allocation_row

NAME = "flux"
SUFFIXES = file_suffixes(".json")
_SAVE = "flux jobs -A -a --json"
_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_STATES: Mapping[str, str] = {
    **dict.fromkeys(("NEW", "DEPEND", "PRIORITY", "SCHED"), "PENDING"),
    **dict.fromkeys(("RUN", "CLEANUP"), "RUNNING"),
}
_RESULTS: Mapping[str, str] = {
    "COMPLETED": "COMPLETED",
    "FAILED": "FAILED",
    "CANCELED": "CANCELLED",
    "TIMEOUT": "TIMEOUT",
}


def is_flux(document: object) -> bool:
    """Return whether a document is a list of Flux's jobs, or one of them."""
    first = next(iter(json_objects(document, "jobs")), document)
    return all(json_value(first, name) is not None for name in ("id", "t_submit", "state"))


def read_flux(content: bytes, where: str, cluster: SlurmCluster) -> AccountingReading:
    """Return the jobs of a file. Errors: InputError for a file that Flux did not write."""
    document = json_document(content, where)
    reading = AccountingReading()
    if json_value(document, "jobs") == []:
        return reading
    if not is_flux(document):
        raise not_of("output of Flux", where, _SAVE)
    jobs: list[object] = [*json_objects(document, "jobs")] or [document]
    for position, job in enumerate(jobs, start=1):
        take_job(reading, position, json_example(job), partial(_record, job, cluster), cluster)
    return reading


def flux_id(written: str) -> str:
    """Return a decimal id as people write it (RFC 19, F58 in ASCII); others stay.

    >>> flux_id("6731191091817518"), flux_id("ƒ2Ab9")
    ('fuZZybuNNy', 'f2Ab9')
    """
    if not re.fullmatch(r"\d{1,20}", written, re.ASCII):
        return any_job_id(written)
    number, letters = int(written), ""
    while number:
        number, rest = divmod(number, len(_BASE58))
        letters = _BASE58[rest] + letters
    return f"f{letters or '1'}"


def _record(job: object, cluster: SlurmCluster) -> tuple[JobRecord, list[SlurmRow]]:
    text = partial(json_text, job)
    name = flux_id(text("id") or "")
    state = text("state") or ""
    over = state == "INACTIVE"
    result = _RESULTS.get(text("result") or "") if over else _STATES.get(state)
    if result is None and not over:
        raise BadRowError("bad_state")
    ended = text("t_cleanup") or text("t_inactive") or ""
    times = [text(time) or "" for time in ("t_submit", "t_depend", "t_run")]
    submit, eligible, start, end = settled_times(
        (times[0], times[1], times[2], ended if over else ""), cluster.time_zone
    )
    code, signal = _ending(json_number(job, "waitstatus")) if over else (None, None)
    duration = json_value(job, "duration")
    limit_s = float(duration) if isinstance(duration, int | float) and duration > 0 else None
    node_list = text("nodelist")
    held = _of_resources(json_value(job, "R"), name, cluster, start, end) if start else []
    gpus = {"gres/gpu": len(held)} if json_value(job, "R") is not None else {}
    cores = json_number(job, "ncores")
    record = JobRecord(
        id=JobId(name),
        cluster=cluster.name,
        name=text("name"),
        user=text("username"),
        account=text("bank") or text("project"),
        partition=text("queue"),
        state=result,
        exit_code=code,
        exit_signal=signal,
        submit=submit,
        eligible=eligible,
        start=start,
        end=end if start else None,
        elapsed_s=(end - start).total_seconds() if start and end else None,
        timelimit_s=limit_s,
        nodes=json_number(job, "nnodes"),
        node_list=node_list,
        allocated={**gpus, **({} if cores is None else {"cpu": cores})} or None,
        # ncores alone does not say that there were no GPUs
        names_gpus=not gpus,
    )
    return record, held


def _ending(waitstatus: int | None) -> tuple[int | None, int | None]:
    """(Exit code, signal) of a status of waitpid(2).

    >>> _ending(256), _ending(9), _ending(139 << 8), _ending(None)
    ((1, None), (0, 9), (0, 11), (None, None))
    """
    if waitstatus is None:
        return None, None
    signal = waitstatus & 0x7F
    return (0, signal) if signal else shell_status(waitstatus >> 8 & 0xFF)


def _of_resources(
    written: object,
    name: str,
    cluster: SlurmCluster,
    start: datetime | None,
    end: datetime | None,
) -> list[SlurmRow]:
    """Rows of `allocations` of the GPUs in R, an object or its text; the nodes stand by rank."""
    if written is None:
        return []
    resources = written
    if isinstance(written, str):
        resources = parse_document(written.encode(), where=name)[0]
    listed = json_value(resources, "execution", "nodelist")
    lists = listed if isinstance(listed, list) else []
    nodes = [node for part in lists for node in expand_nodes(str(part))]
    gpus_of_ranks: list[tuple[int, tuple[int, ...]]] = []
    for entry in json_objects(resources, "execution", "R_lite"):
        gpus = json_text(entry, "children", "gpu")
        held = indices(gpus) if gpus else ()
        ranks = indices(json_text(entry, "rank") or "", most=MAX_NODES - 1)
        gpus_of_ranks += [(rank, held) for rank in ranks]
    if len(gpus_of_ranks) != len(nodes):
        raise BadRowError("index_count_mismatch")
    return [
        allocation_row(
            cluster.name,
            name,
            node,
            gpu,
            start=start,
            end=end,
            provenance="explicit",
            numbering="nvml_index",
        )
        for node, (_, gpus) in zip(nodes, sorted(gpus_of_ranks), strict=True)
        for gpu in gpus
    ]


_FILES = DocumentSource(NAME, SUFFIXES, read_flux)
add_options, read, rejected = add_files, _FILES.read, _FILES.rejected
