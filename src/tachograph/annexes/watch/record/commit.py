"""Commits a spool to the lake in the folder of the recording, once the work is over."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.durable import replace_file
from tachograph.catalog.spool import SpoolRows, read_spool
from tachograph.catalog.tables import JOBS
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.query import read_latest
from tachograph.sources.recording import SpooledRecording, read_chunks

SOURCE_NOTE_SUFFIX = ".json"  # of the file on source and problems that replaces the spool


def commit_spool(
    spool: Path, folder: Path, *, cluster: str = "", now: datetime | None = None
) -> Lake:
    """Commit a spool to the lake `folder`, and replace it by a note on its source; return the lake.

    A job that was recorded before in the same lake, by another command or on another node, becomes
    one job from the first start to the last end. The spool is deleted after the commit. Errors:
    InputError for a damaged spool, LakeError where the lake cannot be written: the spool stays.
    """
    lake = Lake.create(str(folder))
    ingest(lake, _widened(read_chunks(spool, cluster=cluster), lake), now=now or datetime.now(UTC))
    _write_source_note(spool)
    spool.unlink()
    return lake


def source_problems(spool: Path) -> list[str]:
    """Return the source's problems during recording, from the note in place of a spool."""
    note: dict[str, Any] = json.loads(
        spool.with_suffix(SOURCE_NOTE_SUFFIX).read_text(encoding="utf-8")
    )
    problems: list[str] = note["problems"]
    return problems


def _widened(chunks: Iterable[Chunk], lake: Lake) -> Iterable[Chunk]:
    jobs = read_latest(lake, JOBS)
    for chunk in chunks:
        yield Chunk(
            chunk.id,
            chunk.source,
            chunk.origin,
            tuple(_wider(part, jobs) for part in chunk.parts),
            chunk.rows_read,
            chunk.watermark,
            chunk.since,
        )


def _wider(part: ChunkPart, jobs: pl.DataFrame) -> ChunkPart:
    """The job with the span of all its records."""
    if part.table != JOBS.name or jobs.is_empty():
        return part
    before = jobs.select("cluster", "job_id", "submit", was="start", until="end")
    rows = part.frame.with_columns(submit=pl.lit(None, dtype=JOBS.schema["submit"])).join(
        before, on=["cluster", "job_id", "submit"], how="left", nulls_equal=True
    )
    rows = rows.with_columns(
        start=pl.min_horizontal("start", "was"), end=pl.max_horizontal("end", "until")
    )
    rows = rows.with_columns(
        elapsed_s=(pl.col("end") - pl.col("start")).dt.total_microseconds() / 1e6
    )
    return ChunkPart(
        part.table, rows.drop("was", "until"), part.units, part.rejects, part.overlaps, part.counted
    )


def _write_source_note(spool: Path) -> None:
    """Write data that have no table: source, its problems, slowdown temperatures of GPUs."""
    records = iter(read_spool(spool))
    head = next(records)
    if isinstance(head, SpoolRows):
        return
    spooled = SpooledRecording(head)
    for record in records:
        if not isinstance(record, SpoolRows):
            spooled.take(record)
    slowdown = [
        {"node": gpu["node"], "gpu": gpu["gpu"], "mig": gpu["mig"], "slowdown_c": gpu["slowdown_c"]}
        for gpu in spooled.gpus.values()
        if gpu.get("slowdown_c") is not None
    ]
    note = {
        "id": head["id"],
        "version": head["version"],
        "job_id": head["job"]["job_id"],
        "start": head["start"],
        "interval_s": head["interval_s"],
        "source": {name: spooled.about[name] for name in ("name", "sentence", "blind")}
        if spooled.about
        else None,
        "slowdown_c": slowdown,
        "problems": spooled.problems,
    }
    replace_file(spool.with_suffix(SOURCE_NOTE_SUFFIX), f"{json.dumps(note, indent=1)}\n".encode())
