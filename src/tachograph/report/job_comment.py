"""The summary of a job for AdminComment: compact JSON in the format of `jobstats`.

`JS1:` and the base64 of gzip-compressed JSON with `gpus`, `total_time` (run time in s) and per node
`cpus`, `total_time` (CPU time in s), `total_memory`, `used_memory`, and by GPU `gpu_utilization`
(percent), `gpu_total_memory`, `gpu_used_memory` (bytes). So whatever reads comments of jobstats
reads these. What the report adds is under `tachograph`. `JS1:Short` and `JS1:None` have no data.
Format: jobstats, "Generating Job Summaries", and what its output_formatters.py reads.

jobstats cannot show a job of which a node lacks `cpus`, `total_memory` or `used_memory`, and
reportseff none that has `cpus` but no `total_time`, unless the run time is missing, too.

Before Slurm 23.02 `sacctmgr` writes comments in small letters, which destroys base64: there it is
`js32:` and base32. Source: Slurm's changes in 23.02.0rc1.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import msgspec

from tachograph.catalog.units import MI
from tachograph.judge.activity import number
from tachograph.report.job import JobReport
from tachograph.report.job_efficiency import job_link
from tachograph.sources.slurm.recorded_use import EMPTY as EMPTY
from tachograph.sources.slurm.recorded_use import NONE, OWN, PREFIX, SHORT, SMALL_LETTERS
from tachograph.sources.slurm.recorded_use import read_comment as read_comment

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobGpuRow, JobSummaryRow


MOST_CHARACTERS = 16384  # of a comment; the field of the database holds 65535
_SHOWN = 8  # findings
# jobstats takes the activity of the graphics engine where there is no utilisation, as on MIG slices.
_UTILISATION = ("gpu_util_mean", "gr_engine_active_mean")
_GPU_MEMORY = {"gpu_total_memory": "hbm_mib", "gpu_used_memory": "hbm_used_mib_max"}
_NEEDED = frozenset({"cpus", "total_memory", "used_memory"})  # of each node, by jobstats
_SAMPLING_S = 30.0  # usual interval of jobstats, for jobs without samples
_OF_JOB = (
    *("gpu_hours", "gpus_never_used", "hbm_peak_fraction", "energy_j", "power_w_mean", "coverage"),
    *("attribution", "limiter"),
)


def comment_json(report: JobReport, *, url: str = "") -> dict[str, Any]:
    """Return a job's summary as JSON values, without unmeasured ones.

    `tachograph.jobstats`: Short or None where jobstats writes this word instead of data.
    """
    row = report.summary
    own: dict[str, Any] = {"v": 1, "headline": report.headline}
    values = {name: row.get(name) for name in _OF_JOB}
    own |= {name: _short(value) for name, value in values.items() if value is not None}
    own["findings"] = [finding.code for finding in report.findings[:_SHOWN]]
    if report.next_time:
        own["next_time"] = report.next_time.line.removeprefix("#SBATCH ") or report.next_time.why
    if link := job_link(url, report):
        own["link"] = link
    nodes = _nodes(report)
    if _is_short(row):
        own["jobstats"] = SHORT
    elif not nodes or not all(node.keys() >= _NEEDED for node in nodes.values()):
        own["jobstats"] = NONE
    elif len(nodes) > 1:
        own["host_values"] = "split evenly"
    gpus = sum(len(node.get("gpu_utilization", ())) for node in nodes.values())
    summary = {"nodes": nodes, "gpus": gpus if row.get("gpus") is None else row["gpus"]}
    if row.get("elapsed_s") is not None and all("total_time" in node for node in nodes.values()):
        summary["total_time"] = _short(row["elapsed_s"])
    return summary | {OWN: own}


def _is_short(row: JobSummaryRow) -> bool:
    """Whether a run had no time for two samples: jobstats has no data of it."""
    elapsed_s = number(row, "elapsed_s")
    interval_s = number(row, "interval_s") or _SAMPLING_S
    return elapsed_s is not None and elapsed_s < 2 * round(interval_s)  # set in whole seconds


def comment_text(summary: Mapping[str, Any], *, small_letters: bool = False) -> str:
    """Return a summary as comment text; the word for none if there is nothing, or too much.

    small_letters: for a Slurm that has no capital ones.

    >>> read_comment(comment_text({"nodes": {"n1": {"cpus": 1}}, "gpus": 1}))
    {'nodes': {'n1': {'cpus': 1}}, 'gpus': 1}
    >>> comment_text({"nodes": {}, "gpus": 1})
    'JS1:None'
    """
    word = summary.get(OWN, {}).get("jobstats") or (None if summary["nodes"] else NONE)
    packed = "" if word else _packed(summary, small_letters=small_letters)
    if word or len(packed) > MOST_CHARACTERS:
        packed = f"{PREFIX}{word or NONE}"
    return packed.lower() if small_letters else packed


def _packed(summary: Mapping[str, Any], *, small_letters: bool) -> str:
    # Equal summaries, equal comments.
    compressed = gzip.compress(msgspec.json.encode(dict(summary)), mtime=0)
    if small_letters:
        return SMALL_LETTERS + base64.b32encode(compressed).decode("ascii").rstrip("=").lower()
    return PREFIX + base64.b64encode(compressed).decode("ascii")


def _nodes(report: JobReport) -> dict[str, dict[str, Any]]:
    """Known values per node.

    Host values are accounted per job, so those of several nodes are equal shares of the whole, and
    the memory used is that of the node with the most.
    """
    row, held_mib = report.summary, report.steps.node_memory_mib
    count = number(row, "nodes") or 0.0
    cpus, cpu_time_s = int(number(row, "cpus") or 0), number(row, "cpu_time_s")
    requested_mib = number(row, "mem_requested_mib")
    nodes: dict[str, dict[str, Any]] = {}
    for place, (name, gpus) in enumerate(groupby(report.gpus, key=lambda gpu: gpu.row["node"])):
        node = nodes[name] = _gpu_values([gpu.row for gpu in gpus])
        if 0 < count <= cpus:
            node["cpus"] = int(cpus // count + (place < cpus % count))
            if cpu_time_s is not None:
                node["total_time"] = round(cpu_time_s * node["cpus"] / cpus, 1)
        if count and requested_mib:
            node["total_memory"] = round(requested_mib * MI / count)
        if held_mib is not None:
            node["used_memory"] = round(held_mib * MI)
    return {name: node for name, node in nodes.items() if node}


def _gpu_values(gpus: Sequence[JobGpuRow]) -> dict[str, Any]:
    """Values by GPU of a node, each of all its GPUs.

    jobstats and Job Defense Shield end with an error for a key that one GPU lacks, and reportseff
    takes 0 for the utilisation of a GPU that only has memory.
    """
    names = [
        f"{gpu['gpu']}" if gpu["mig"] is None else f"{gpu['gpu']}:{gpu['mig']}" for gpu in gpus
    ]
    busy = [_first_number(gpu, _UTILISATION) for gpu in gpus]
    percent = [round(100 * share, 1) for share in busy if share is not None]
    if len(percent) < len(gpus):
        return {}
    values = {"gpu_utilization": dict(zip(names, percent, strict=True))}
    for key, column in _GPU_MEMORY.items():
        sizes = [number(gpu, column) for gpu in gpus]
        size_bytes = [round(size * MI) for size in sizes if size is not None]
        if len(size_bytes) < len(gpus):
            return {"gpu_utilization": values["gpu_utilization"]}
        values[key] = dict(zip(names, size_bytes, strict=True))
    return values


def _first_number(row: JobGpuRow, names: Sequence[str]) -> float | None:
    values = (number(row, name) for name in names)
    return next((value for value in values if value is not None), None)


def _short(value: Any) -> Any:
    """A number to four digits, a whole one without a point."""
    if not isinstance(value, float):
        return value
    return round(value) if value == round(value) or abs(value) >= 1e4 else float(f"{value:.4g}")
