"""Target `xdmod`: lines of sacct, as `xdmod-shredder -f slurm` of Open XDMoD reads them.

Source of fields and order: Open XDMoD, docs/resource-manager-slurm.md and
OpenXdmod/Shredder/Slurm.php; of what its table requires: job-slurm.sql.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

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
_COLUMNS = (  # of job_summaries that are read
    *("job_key", "job_id", "display_id", "cluster", "partition", "qos", "account", "user", "name"),
    *("state", "exit_code", "exit_signal", "timelimit_s", "gpus", "mem_requested_mib", *_REQUIRED),
)
_ROWS_AT_ONCE = 10_000
_LONGEST_LIST = 1 << 20  # characters of a list of nodes
LONGEST_NAME = 63  # characters: of at most four bytes each, in a column of 255 bytes


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
    summaries = content.summaries.select(_COLUMNS)
    written = 0
    with whole_file(target) as beside, beside.open("w", encoding="utf-8") as file:
        for part in summaries.iter_slices(_ROWS_AT_ONCE):
            for row in filter(is_complete, part.iter_rows(named=True)):
                file.write(f"{job_line(row, list(nodes.get(row['job_key'], ())))}\n")
                written += 1
    return [ExportResult("jobs", str(target), written, left_out=summaries.height - written)]


def is_complete(row: Mapping[str, Any]) -> bool:
    """Return whether a job has ended and has what the table of Open XDMoD requires."""
    is_known = all(row[name] for name in _REQUIRED)
    return is_known and row["state"] in STATES and row["job_id"].isdecimal()


def job_line(row: Mapping[str, Any], nodes: Sequence[str]) -> str:
    """Return the line of a job. What is not recorded is empty, the group is the account."""
    display_id = row["display_id"] or ""
    # the shredder takes array tasks apart, but not components of heterogeneous jobs
    is_task = all(part.isdecimal() for part in display_id.split("_", 1))
    memory = row["mem_requested_mib"]
    reqmem = "" if memory is None else f"{memory:.0f}M"
    resources = {
        "cpu": row["cpus"],
        "gres/gpu": row["gpus"] or None,
        "mem": reqmem or None,
        "node": row["nodes"],
    }
    tres = ",".join(f"{name}={value}" for name, value in resources.items() if value is not None)
    code = "" if row["exit_code"] is None else f"{row['exit_code']}:{row['exit_signal'] or 0}"
    limit = row["timelimit_s"]
    values = {
        **{name: row[name] for name in ("cluster", "partition", "qos", "account", "user", "state")},
        "jobid": display_id if is_task else row["job_id"],
        "jobidraw": row["job_id"],
        "group": row["account"],
        "gid": NO_VAL,
        "uid": NO_VAL,
        **{name: _moment(row[name]) for name in ("submit", "start", "end")},
        "eligible": "Unknown",
        "elapsed": _length((row["end"] - row["start"]).total_seconds()),
        "exitcode": code,
        "nnodes": row["nodes"],
        "ncpus": row["cpus"],
        "reqcpus": row["cpus"],
        "reqmem": reqmem,
        "reqtres": tres,
        "alloctres": tres,
        "timelimit": "" if limit is None else _length(limit),
        "nodelist": ",".join(nodes),
        "jobname": printable(row["name"] or "", most=LONGEST_NAME),
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
