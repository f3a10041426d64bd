"""Target `xdmod`: lines of sacct, as `xdmod-shredder -f slurm` of Open XDMoD reads them.

Source of fields and order: Open XDMoD, docs/resource-manager-slurm.md and
OpenXdmod/Shredder/Slurm.php; of what its table requires: job-slurm.sql.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import polars as pl

from tachograph.catalog.units import printable
from tachograph.export.content import ExportContent, ExportResult, whole_file
from tachograph.export.registry import Progress

FIELDS = (
    *("jobid", "jobidraw", "cluster", "partition", "qos", "account", "group", "gid", "user"),
    *("uid", "submit", "eligible", "start", "end", "elapsed", "exitcode", "state", "nnodes"),
    *("ncpus", "reqcpus", "reqmem", "reqtres", "alloctres", "timelimit", "nodelist", "jobname"),
)
# states of jobs that have ended, as the shredder knows them
STATES = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "PREEMPTED"),
        *("TIMEOUT", "OUT_OF_MEMORY", "DEADLINE", "REVOKED"),
    }
)
NO_VAL = "4294967294"  # Slurm's number for "no value": user and group ids are not recorded
_REQUIRED = ("submit", "start", "end", "nodes", "cpus")
_ROWS_AT_ONCE = 10_000
_LONGEST_LIST = 1 << 20  # characters of a list of nodes
LONGEST_NAME = 63  # characters: of at most four bytes each, in a column of 255 bytes


class EndedJob(NamedTuple):
    """A job that has ended and has what the table of Open XDMoD requires: of a row of job_summaries
    the columns that its exports write, null where not recorded.
    """

    job_key: str
    job_id: str
    display_id: str | None
    cluster: str | None
    partition: str | None
    qos: str | None
    account: str | None
    user: str | None
    name: str | None
    state: str
    exit_code: int | None
    exit_signal: int | None
    submit: datetime
    start: datetime
    end: datetime
    timelimit_s: float | None
    nodes: int
    cpus: int
    gpus: int | None
    mem_requested_mib: float | None


def ended_jobs(summaries: pl.DataFrame) -> Iterator[EndedJob]:
    """Yield the jobs of a table that are complete, in its order."""
    for job in map(EndedJob._make, summaries.select(EndedJob._fields).iter_rows()):
        is_known = all(getattr(job, name) for name in _REQUIRED)
        if is_known and job.state in STATES and job.job_id.isdecimal():
            yield job


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare `--to`."""
    parser.add_argument("--to", required=True, metavar="FILE", help="the file of lines")


def export(
    content: ExportContent, options: argparse.Namespace, progress: Progress
) -> Sequence[ExportResult]:
    """Write a line per job that has ended; return how many jobs.

    Left out: jobs that run, and those without a numeric id, a final state, a time, nodes or CPUs.
    """
    target = Path(options.to)
    nodes: dict[str, dict[str, None]] = {}
    for key, node in content.gpus().select("job_key", "node").iter_rows():
        nodes.setdefault(key, {})[node] = None
    summaries = content.summaries
    written = 0
    with whole_file(target) as beside, beside.open("w", encoding="utf-8") as file:
        for part in summaries.iter_slices(_ROWS_AT_ONCE):
            for job in ended_jobs(part):
                file.write(f"{job_line(job, list(nodes.get(job.job_key, ())))}\n")
                written += 1
    return [ExportResult("jobs", str(target), written, left_out=summaries.height - written)]


def job_line(job: EndedJob, nodes: Sequence[str]) -> str:
    """Return the line of a job. What is not recorded is empty, the group is the account."""
    display_id = job.display_id or ""
    # the shredder takes array tasks apart, but not components of heterogeneous jobs
    is_task = all(part.isdecimal() for part in display_id.split("_", 1))
    memory = job.mem_requested_mib
    reqmem = "" if memory is None else f"{memory:.0f}M"
    resources = {
        "cpu": job.cpus,
        "gres/gpu": job.gpus or None,
        "mem": reqmem or None,
        "node": job.nodes,
    }
    tres = ",".join(f"{name}={value}" for name, value in resources.items() if value is not None)
    values = {
        "jobid": display_id if is_task else job.job_id,
        "jobidraw": job.job_id,
        "cluster": job.cluster,
        "partition": job.partition,
        "qos": job.qos,
        "account": job.account,
        "group": job.account,
        "gid": NO_VAL,
        "user": job.user,
        "uid": NO_VAL,
        "submit": _moment(job.submit),
        "eligible": "Unknown",
        "start": _moment(job.start),
        "end": _moment(job.end),
        "elapsed": _length((job.end - job.start).total_seconds()),
        "exitcode": "" if job.exit_code is None else f"{job.exit_code}:{job.exit_signal or 0}",
        "state": job.state,
        "nnodes": job.nodes,
        "ncpus": job.cpus,
        "reqcpus": job.cpus,
        "reqmem": reqmem,
        "reqtres": tres,
        "alloctres": tres,
        "timelimit": "" if job.timelimit_s is None else _length(job.timelimit_s),
        "nodelist": ",".join(nodes),
        "jobname": printable(job.name or "", most=LONGEST_NAME),
    }
    texts = (printable(str(values[name] or ""), most=_LONGEST_LIST) for name in FIELDS)
    return "|".join(text.replace("|", "_") for text in texts)  # a name must not end its field


def _moment(moment: datetime) -> str:
    """Return a time in UTC, as the shredder expects it."""
    return f"{moment:%Y-%m-%dT%H:%M:%S}"


def _length(seconds: float) -> str:
    """Return a length of time as Slurm writes it.

    >>> _length(273600), _length(24)
    ('3-04:00:00', '0-00:00:24')
    """
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours // 24}-{hours % 24:02d}:{minute:02d}:{second:02d}"
