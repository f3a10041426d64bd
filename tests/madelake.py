"""A lake made from rows of plain Python: samples, jobs, allocations and devices in, computed
tables out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.config import (
    AnalysisOptions,
    Configuration,
    NodeOptions,
    SlurmOptions,
    StudyFilters,
)
from tachograph.catalog.tables import TABLES
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.query import read_summaries
from tachograph.pipeline.run import AnalysisReport, analyze

NOW = datetime(2026, 11, 1, tzinfo=UTC)
Rows = Sequence[Mapping[str, Any]]


def utc(day: int, hour: int = 0, minute: int = 0, second: float = 0, month: int = 4) -> datetime:
    """Return a time in April 2026, unless another month is given."""
    whole = int(second)
    return datetime(2026, month, day, hour, minute, whole, round((second - whole) * 1e6), UTC)


def table_frame(table: str, rows: Rows) -> pl.DataFrame:
    """Return rows in the schema of a table: what is not given is null."""
    schema = {name: dtype for name, dtype in TABLES[table].schema.items() if name != "seq"}
    return pl.DataFrame(
        {
            name: pl.Series(name, [row.get(name) for row in rows], dtype=dtype)
            for name, dtype in schema.items()
        }
    )


def fill(
    lake: Lake, tables: Mapping[str, Rows], *, chunk: str = "first", now: datetime = NOW
) -> None:
    """Ingest rows, table by table, as one chunk."""
    parts = tuple(ChunkPart(name, table_frame(name, rows)) for name, rows in tables.items())
    ingest(
        lake,
        [Chunk(chunk, "made", chunk, parts, sum(len(rows) for rows in tables.values()))],
        now=now,
    )


def make_lake(folder: Path, **tables: Rows) -> Lake:
    """Return a new lake that holds these rows."""
    lake = Lake.create(str(folder))
    fill(lake, tables)
    return lake


def configured(
    *,
    slurm: SlurmOptions | None = None,
    nodes: NodeOptions | None = None,
    filters: StudyFilters | None = None,
    analysis: AnalysisOptions | None = None,
) -> Configuration:
    """Return the defaults with some sections replaced."""
    return Configuration(
        slurm=slurm or SlurmOptions(),
        nodes=nodes or NodeOptions(),
        filters=filters or StudyFilters(),
        analysis=analysis or AnalysisOptions(),
    )


def summarized(
    lake: Lake, configuration: Configuration | None = None, *, now: datetime = NOW
) -> tuple[AnalysisReport, dict[str, dict[str, Any]]]:
    """Analyze; return the report and {job id: summary}, of a job with several runs the last one."""
    report = analyze(lake, configuration or Configuration(), judge=JobJudge, now=now)
    rows = read_summaries(lake).sort("start").iter_rows(named=True)
    return report, {row["job_id"]: row for row in rows}


def job(job_id: str, start: datetime, end: datetime | None, **given: Any) -> dict[str, Any]:
    """Return a row of `jobs`: submitted at its start, elapsed from start to end."""
    row: dict[str, Any] = {
        "job_id": job_id,
        "submit": start,
        "start": start,
        "end": end,
        "nodes": 1,
    }
    row["state"] = "COMPLETED" if end else "RUNNING"
    row["elapsed_s"] = (end - start).total_seconds() if end else None
    return row | given


def held(
    job_id: str,
    node: str,
    gpus: Iterable[int | None] = (None,),
    start: datetime | None = None,
    end: datetime | None = None,
    *,
    provenance: str = "explicit",
    mig: int | None = None,
    cluster: str | None = None,
) -> list[dict[str, Any]]:
    """Return rows of `allocations`; GPU None: which is not told."""
    return [
        {
            "cluster": cluster, "job_id": job_id, "node": node, "gpu": gpu, "mig": mig,
            "start": start, "end": end, "provenance": "node_list" if gpu is None else provenance,
        }
        for gpu in gpus
    ]  # fmt: skip
