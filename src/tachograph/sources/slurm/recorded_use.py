"""GPU use that a comment in the accounting summarizes: jobstats' `JS1:`, and ours.

There are no samples behind it: means and peaks per GPU, by node and index. Who may write
AdminComment may write anything, so sizes, types, nodes, indices and ranges are checked, and what is
wrong is left out and counted. Format: jobstats, "Generating Job Summaries".
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from tachograph.catalog.units import MI
from tachograph.sources.metrics import short_node
from tachograph.sources.slurm.fields import expand_nodes
from tachograph.sources.slurm.usage import UnreadValue

PREFIX = "JS1:"
SMALL_LETTERS = "js32:"  # of a Slurm that has no capital ones: base32
SHORT, NONE = "Short", "None"  # instead of data: the run was too short, nothing is known
EMPTY = frozenset({f"{PREFIX}{SHORT}", f"{PREFIX}{NONE}"})
OWN = "tachograph"  # key of what Tachograph adds
_LONGEST = 65535  # characters, as in Slurm's database
_LARGEST = 8 << 20  # bytes of JSON that are unpacked of a comment
_INDEX = re.compile(r"\d{1,3}(?::\d{1,5})?", re.ASCII)  # of a GPU, and of a MIG slice of it
_LARGEST_MIB = 2.0**24
COLUMN = "recorded_gpus"  # in which rejects of comments are counted


class _Node(msgspec.Struct):
    gpu_utilization: dict[str, float] = {}
    gpu_used_memory: dict[str, float] = {}
    gpu_total_memory: dict[str, float] = {}


class _Comment(msgspec.Struct):
    nodes: dict[str, _Node] = {}
    tachograph: dict[str, Any] | None = None


class RecordedGpu(msgspec.Struct, frozen=True):
    """Use of one GPU over a run. gpu: `0`, or `0:7` of a MIG slice. None: not recorded."""

    node: str
    gpu: str
    gpu_util_mean: float | None
    hbm_used_mib_max: float | None
    hbm_mib: float | None


@dataclass(frozen=True, slots=True)
class AccountedRun:
    """What the accounting has of a run: its nodes as written, and how many GPUs it held."""

    node_list: str | None
    gpus: int | None


def unpacked(comment: str) -> bytes | None:
    """Return the JSON in a comment, at most _LARGEST bytes; None for other text, b"" if broken."""
    try:
        if comment.startswith(SMALL_LETTERS):
            letters = comment.removeprefix(SMALL_LETTERS)
            compressed = base64.b32decode(letters + "=" * (-len(letters) % 8), casefold=True)
        elif comment.startswith(PREFIX) and comment not in EMPTY:
            compressed = base64.b64decode(comment.removeprefix(PREFIX), validate=True)
        else:
            return None
        return zlib.decompressobj(wbits=31).decompress(compressed, _LARGEST)
    except (binascii.Error, zlib.error, ValueError):
        return b""


def read_comment(comment: str) -> dict[str, Any] | None:
    """Return the summary in a comment of Tachograph or jobstats; None for other text.

    >>> read_comment("requested by phone") is None
    True
    """
    try:
        return msgspec.json.decode(unpacked(comment) or b"", type=dict[str, Any])
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def recorded_use(
    comment: str | None, job: AccountedRun
) -> tuple[Mapping[str, object], tuple[UnreadValue, ...]]:
    """Return the recorded columns of `jobs` from a comment ({} without one), and what was wrong."""
    text = (comment or "").strip()
    content = unpacked(text) if len(text) <= _LONGEST else b""
    if content is None:
        return {}, ()
    try:
        summary = msgspec.json.decode(content, type=_Comment)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}, (_unread("bad_comment", text),)
    unread: list[UnreadValue] = []
    gpus: list[RecordedGpu] = []
    nodes = None if job.node_list is None else set(expand_nodes(job.node_list))
    for name, node in summary.nodes.items():
        short = short_node(name)
        if nodes is None or short not in nodes:
            unread.append(_unread("comment_of_other_node", name))
            continue
        gpus += _gpus_of(short, node, unread)
    if job.gpus and len(gpus) > job.gpus:
        return {}, (*unread, _unread("comment_of_other_gpus", f"{len(gpus)} of {job.gpus}"))
    if not gpus:
        return {}, tuple(unread)
    by = "jobstats" if summary.tachograph is None else OWN
    return {"recorded_by": by, **_columns(gpus)}, tuple(unread)


def _gpus_of(node: str, use: _Node, unread: list[UnreadValue]) -> list[RecordedGpu]:
    gpus: list[RecordedGpu] = []
    for gpu in dict.fromkeys((*use.gpu_utilization, *use.gpu_used_memory)):
        if not _INDEX.fullmatch(gpu):
            unread.append(_unread("bad_gpu_index", f"{node}: {gpu}"))
            continue
        percent = use.gpu_utilization.get(gpu)
        used_bytes, size = use.gpu_used_memory.get(gpu), use.gpu_total_memory.get(gpu)
        values = (
            _in_range(percent, 100.0, 1.0, unread),
            _in_range(used_bytes, MI, _LARGEST_MIB, unread),
            _in_range(size, MI, _LARGEST_MIB, unread) or None,
        )
        if any(value is not None for value in values[:2]):
            gpus.append(RecordedGpu(node, gpu, *values))
    return gpus


def _in_range(
    value: float | None, divisor: float, limit: float, unread: list[UnreadValue]
) -> float | None:
    """Return a value over the divisor; None if that is negative or above `limit`."""
    if value is None:
        return None
    if 0 <= value / divisor <= limit:
        return value / divisor
    unread.append(_unread("out_of_range", f"{value:g}"))
    return None


def _columns(gpus: list[RecordedGpu]) -> dict[str, object]:
    busy = [gpu.gpu_util_mean for gpu in gpus if gpu.gpu_util_mean is not None]
    used_mib = [gpu.hbm_used_mib_max for gpu in gpus if gpu.hbm_used_mib_max is not None]
    peaks = [
        gpu.hbm_used_mib_max / gpu.hbm_mib
        for gpu in gpus
        if gpu.hbm_used_mib_max is not None and gpu.hbm_mib
    ]
    return {
        "recorded_gpu_util_mean": sum(busy) / len(busy) if busy else None,
        "recorded_hbm_used_mib_max": max(used_mib, default=None),
        "recorded_hbm_peak_fraction": max(peaks, default=None),
        COLUMN: msgspec.json.encode(gpus).decode(),
    }


def recorded_gpus(written: str | None) -> list[RecordedGpu]:
    """Return the GPUs in column `recorded_gpus`; none of another text."""
    try:
        return msgspec.json.decode((written or "[]").encode(), type=list[RecordedGpu])
    except msgspec.DecodeError:
        return []


def _unread(reason: str, text: str) -> UnreadValue:
    return UnreadValue(reason, COLUMN, text[:100])
