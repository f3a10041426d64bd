"""The summary of a job for AdminComment: compact JSON in the format of `jobstats`.

`JS1:` and the base64 of gzip-compressed JSON with `gpus`, `total_time` (run time in s) and per node
what is known of `cpus`, `total_time` (CPU time in s), `total_memory`, `used_memory`, and by GPU
`gpu_utilization` (percent), `gpu_total_memory`, `gpu_used_memory` (bytes). So whatever reads
comments of jobstats reads these. What the report adds is under `tachograph`. Format: jobstats,
"Generating Job Summaries".

Before Slurm 23.02 `sacctmgr` writes comments in small letters, which destroys base64: there it is
`js32:` and base32. Source: Slurm's changes in 23.02.0rc1.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

from tachograph.catalog.units import MI
from tachograph.judge.activity import number
from tachograph.report.job import JobReport
from tachograph.report.job_efficiency import job_link

PREFIX = "JS1:"
SMALL_LETTERS = "js32:"
MOST_CHARACTERS = 16384  # of a comment; the field of the database holds 65535
OWN = "tachograph"
_LARGEST = 8 << 20  # bytes of JSON that are unpacked of a comment
_SHOWN = 8  # findings
_OF_GPU = (
    ("gpu_utilization", "gpu_util_mean", 100.0, 1),
    ("gpu_total_memory", "hbm_mib", MI, None),
    ("gpu_used_memory", "hbm_used_mib_max", MI, None),
)
_OF_JOB = (
    *("gpu_hours", "gpus_never_used", "hbm_peak_fraction", "energy_j", "power_w_mean", "coverage"),
    *("attribution", "limiter"),
)


def comment_json(report: JobReport, *, url: str = "") -> dict[str, Any]:
    """Return a job's summary as JSON values, without unmeasured ones."""
    row = report.summary
    own: dict[str, Any] = {"v": 1, "headline": report.headline}
    own |= {name: _short(row[name]) for name in _OF_JOB if row.get(name) is not None}
    own["findings"] = [finding.code for finding in report.findings[:_SHOWN]]
    if report.next_time:
        own["next_time"] = report.next_time.line.removeprefix("#SBATCH ") or report.next_time.why
    if link := job_link(url, report):
        own["link"] = link
    summary = {
        "nodes": _nodes(report),
        "gpus": row.get("gpus"),
        "total_time": row.get("elapsed_s"),
    }
    known = {name: _short(value) for name, value in summary.items() if value is not None}
    return known | {OWN: own}


def comment_text(summary: Mapping[str, Any], *, small_letters: bool = False) -> str:
    """Return a summary as comment text; if too long, without its nodes, and marked so.

    small_letters: for a Slurm that has no capital ones.

    >>> read_comment(comment_text({"nodes": {}, "gpus": 1})) == {"nodes": {}, "gpus": 1}
    True
    """
    packed = _packed(summary, small_letters=small_letters)
    if len(packed) > MOST_CHARACTERS:
        own = {**summary.get(OWN, {}), "without_nodes": True}
        packed = _packed({**summary, "nodes": {}, OWN: own}, small_letters=small_letters)
    return packed


def read_comment(comment: str) -> dict[str, Any] | None:
    """Return the summary in a comment of Tachograph or jobstats; None for other text.

    >>> read_comment("requested by phone") is None
    True
    """
    try:
        if comment.startswith(SMALL_LETTERS):
            letters = comment.removeprefix(SMALL_LETTERS)
            compressed = base64.b32decode(letters + "=" * (-len(letters) % 8), casefold=True)
        elif comment.startswith(PREFIX):
            compressed = base64.b64decode(comment.removeprefix(PREFIX), validate=True)
        else:
            return None
        content = zlib.decompressobj(wbits=31).decompress(compressed, _LARGEST)
        return msgspec.json.decode(content, type=dict[str, Any])
    except (binascii.Error, zlib.error, msgspec.DecodeError, ValueError):
        return None


def _packed(summary: Mapping[str, Any], *, small_letters: bool) -> str:
    # Equal summaries, equal comments.
    compressed = gzip.compress(msgspec.json.encode(dict(summary)), mtime=0)
    if small_letters:
        return SMALL_LETTERS + base64.b32encode(compressed).decode("ascii").rstrip("=").lower()
    return PREFIX + base64.b64encode(compressed).decode("ascii")


def _nodes(report: JobReport) -> dict[str, dict[str, Any]]:
    """Known values per node; host values only for single-node jobs, as they are per job."""
    nodes: dict[str, dict[str, Any]] = {}
    for gpu in report.gpus:
        name = str(gpu.row["gpu"])
        if gpu.row["mig"] is not None:
            name += f":{gpu.row['mig']}"
        for key, column, factor, digits in _OF_GPU:
            value = number(gpu.row, column)
            if value is not None:
                nodes.setdefault(gpu.row["node"], {}).setdefault(key, {})[name] = round(
                    value * factor, digits
                )
    if len(nodes) == 1 and number(report.summary, "nodes") == 1:
        (node,) = nodes.values()
        row, held = report.summary, report.steps.node_memory_mib
        requested = number(row, "mem_requested_mib")
        known = {
            "cpus": row.get("cpus"),
            "total_time": row.get("cpu_time_s"),
            "total_memory": None if requested is None else round(requested * MI),
            "used_memory": None if held is None else round(held * MI),
        }
        node |= {key: value for key, value in known.items() if value is not None}
    return nodes


def _short(value: Any) -> Any:
    """A number to four digits, a whole one without a point."""
    if not isinstance(value, float):
        return value
    return round(value) if value == round(value) or abs(value) >= 1e4 else float(f"{value:.4g}")
