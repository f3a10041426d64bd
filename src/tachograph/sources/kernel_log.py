"""Source `kernel-log`: XIDs that the NVIDIA driver wrote into the kernel log.

Read is `journalctl -k -o json`: one object per line. A line names its GPU by the PCI address; its
index is that of the lake, found when the rows are committed. The name of a process in a line is
chosen by its user, so a line counts by how it begins, and only where the kernel wrote it.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import polars as pl

from tachograph.catalog.chunks import Chunk, ChunkPart, Reject
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.catalog.units import EPOCH
from tachograph.sources.files import add_files, expand, fingerprint, read_json
from tachograph.sources.metrics import short_node
from tachograph.sources.schedulers.documents import file_suffixes
from tachograph.sources.slurm.fields import json_objects, json_text

NAME = "kernel-log"
add_options = add_files
SUFFIXES = file_suffixes(".json", ".jsonl", ".journal.json")
_TIME = "__REALTIME_TIMESTAMP"
# source: NVIDIA, "XID Errors"; the address has a function in some versions of the driver
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9A-Fa-f:.]{4,20})\): (\d{1,6})(?!\d)", re.ASCII)
_MICROSECONDS = re.compile(r"\d{1,16}", re.ASCII)
_BEFORE = timedelta(microseconds=1)


def is_kernel_log(document: object) -> bool:
    """Return whether a document holds entries of the journal."""
    return any(_TIME in entry for entry in _entries(document)[:1])


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield one chunk per file: the XIDs as samples. Errors: InputError for a damaged file."""
    del configuration, now
    for path in expand(options.files, SUFFIXES):
        document, rejects = read_json(path)
        part, lines = xid_samples(document)
        unreadable = sum(reject.count for reject in rejects)
        part = replace(part, rejects=(*rejects, *part.rejects))
        yield Chunk(f"{fingerprint(path, NAME)}:0", NAME, str(path), (part,), lines + unreadable)


def xid_samples(document: object) -> tuple[ChunkPart, int]:
    """Return the samples of XIDs, and the number of lines with one.

    Each line is two samples of its GPU, none and the code just behind: as a change is an event, so
    is a code that comes again.
    """
    samples: dict[tuple[object, ...], int] = {}
    removed: Counter[str] = Counter()
    lines = 0
    for entry in _entries(document):
        line = _XID.match(_message(entry))
        if line is None or entry.get("_TRANSPORT") != "kernel":
            continue
        lines += 1
        written, host = json_text(entry, _TIME) or "", json_text(entry, "_HOSTNAME")
        if host is None or not _MICROSECONDS.fullmatch(written):
            removed["no_node" if host is None else "unreadable_time"] += 1
            continue
        t = EPOCH + timedelta(microseconds=int(written))
        address = (short_node(host), line[1])
        samples.setdefault((*address, t - _BEFORE), 0)
        samples[*address, t] = int(line[2])
    rows = [(*key, code) for key, code in samples.items()]
    schema = GPU_SAMPLES.schema
    columns = {"node": schema["node"], "pci": pl.String(), "t": schema["t"], "xid": schema["xid"]}
    frame = pl.DataFrame(rows, schema=columns, orient="row")
    frame = frame.with_columns(gpu=pl.lit(None, schema["gpu"]))
    rejects = tuple(Reject(reason, None, count) for reason, count in removed.items())
    lines_used = lines - removed.total()
    return ChunkPart(GPU_SAMPLES.name, frame, rejects=rejects, rows_used=lines_used), lines


def _entries(document: object) -> list[dict[str, object]]:
    return json_objects([document] if isinstance(document, dict) else document)


def _message(entry: dict[str, object]) -> str:
    """Return the text of an entry; the journal writes bytes that are no UTF-8 as numbers."""
    message = entry.get("MESSAGE")
    if isinstance(message, list):
        numbers = [number for number in message if isinstance(number, int) and 0 <= number < 256]
        return bytes(numbers).decode("utf-8", "replace")
    return message if isinstance(message, str) else ""
