"""A small recording with accounting, in chunks as sources hand them over, and the whole way of
it into a lake.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import polars as pl
from lake_rows import NOW, START, chunk, samples

from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import ALL_TABLES, ALLOCATIONS, JOBS, LakeTable
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.compact import Compaction, compact
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_findings, read_gpus, read_minutes, read_summaries
from tachograph.lake.retention import rows_that_count
from tachograph.pipeline.run import analyze

LENGTH_S = 1200


def accounting(*job_ids: int, state: str = "COMPLETED") -> Chunk:
    """Return jobs of two GPUs each, one per node n<id>, from START for twenty minutes, whose
    GPUs are told.
    """
    end = START + timedelta(seconds=LENGTH_S)
    jobs = [
        {
            "cluster": "c",
            "job_id": f"{number}",
            "user": "u",
            "state": state,
            "submit": START - timedelta(minutes=5),
            "start": START,
            "end": end if state != "RUNNING" else None,
            "elapsed_s": float(LENGTH_S),
            "nodes": 1,
            "node_list": f"n{number}",
            "gpus": 2,
        }
        for number in job_ids
    ]
    held = [
        {
            "cluster": "c",
            "job_id": f"{number}",
            "node": f"n{number}",
            "gpu": gpu,
            "provenance": "explicit",
        }
        for number in job_ids
        for gpu in (0, 1)
    ]
    parts = (
        ChunkPart("jobs", frame(JOBS, jobs)),
        ChunkPart("allocations", frame(ALLOCATIONS, held)),
    )
    return Chunk(f"jobs-{job_ids}-{state}", "test", "jobs.txt", parts, len(jobs))


def frame(table: LakeTable, rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    """Return rows in the schema of a table without `seq`; what is not given is null."""
    schema = {name: dtype for name, dtype in table.schema.items() if name != "seq"}
    return pl.DataFrame([{name: row.get(name) for name in schema} for row in rows], schema=schema)


def recording(
    job_id: int, *, power_w: float = 200.0, start_s: int = 0, end_s: int = LENGTH_S
) -> Chunk:
    """Return samples of the job's two GPUs."""
    seconds = range(start_s, end_s, 10)
    frames = []
    for gpu in (0, 1):
        levels = [(second // 10 + gpu) % 10 / 10 for second in seconds]
        frames.append(samples(f"n{job_id}", gpu, seconds=seconds, power_w=power_w, gpu_util=levels))
    return chunk(f"samples-{job_id}-{power_w}-{start_s}", *frames)


def analyzed(lake: Lake, *, full: bool = False) -> int:
    """Analyze as of NOW; return how many jobs were summarized."""
    return analyze(lake, Configuration(), judge=JobJudge, now=NOW, threads=1, full=full).jobs


def compacted(lake: Lake, now: datetime = NOW) -> list[Compaction]:
    """Compact all tables as the command does."""
    return compact(lake, ALL_TABLES, counting=rows_that_count(lake, now))


def computed(lake: Lake) -> dict[str, list[tuple[object, ...]]]:
    """Return the computed tables as reports read them, without `seq`."""
    summaries = read_summaries(lake)
    minutes = read_minutes(lake, summaries)
    frames = {
        "job_summaries": summaries,
        "job_gpus": read_gpus(lake, summaries),
        "job_minutes": minutes,
        "findings": read_findings(lake, summaries),
    }
    return {name: frame.drop("seq").rows() for name, frame in frames.items()}
