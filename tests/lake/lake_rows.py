"""Rows for lakes under test: samples of made-up GPUs, chunks of them, and what is in a lake, to
compare.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.tables import GPU_SAMPLES, REJECTS, LakeTable
from tachograph.lake.conform import resolve
from tachograph.lake.delta import Lake
from tachograph.lake.partitions import partitions, read_partition

START = datetime(2026, 3, 1, 23, 50, tzinfo=UTC)  # ten minutes before midnight: two days
NOW = datetime(2026, 3, 5, tzinfo=UTC)


def samples(
    node: str = "n1",
    gpu: int = 0,
    *,
    seconds: Iterable[float] = range(0, 600, 10),
    mig: int | None = None,
    **given: Any,
) -> pl.DataFrame:
    """Return samples `seconds` after START in the schema of gpu_samples without `seq`; other
    columns null.

    `given`: column=value of all rows, or a sequence of values.
    """
    times = [START + timedelta(seconds=second) for second in seconds]
    columns: dict[str, Any] = {
        "t": times,
        "node": [node] * len(times),
        "gpu": gpu,
        "mig": mig,
    } | given
    schema = {name: dtype for name, dtype in GPU_SAMPLES.schema.items() if name != "seq"}
    return pl.DataFrame(
        [
            pl.Series(name, _spread(columns.get(name), len(times)), dtype=dtype, strict=False)
            for name, dtype in schema.items()
        ]
    )


def _spread(value: Any, length: int) -> Sequence[Any]:
    return value if isinstance(value, list) else [value] * length


def chunk(name: str, *frames: pl.DataFrame) -> Chunk:
    """Return a chunk of one part of samples per frame."""
    parts = tuple(ChunkPart("gpu_samples", frame) for frame in frames)
    return Chunk(name, "test", f"{name}.csv", parts, sum(frame.height for frame in frames))


def rows(lake: Lake, table: LakeTable = GPU_SAMPLES) -> list[tuple[Any, ...]]:
    """Return what a reader of the table sees, in the order of the table over all days, without
    `seq`.
    """
    if not table.by_day:
        return lake.latest(table).drop("seq").rows()
    read = [read_partition(lake, table, part)[0] for part in partitions(lake, table)]
    return pl.concat([table.empty(), *read]).drop("seq").sort(*table.sort, nulls_last=False).rows()


def lying(lake: Lake, table: LakeTable = GPU_SAMPLES) -> int:
    """Return how many rows the files of a table hold."""
    return int(lake.scan(table).select(pl.len()).collect().item())


def merged_rows(lake: Lake, table: LakeTable = GPU_SAMPLES) -> int:
    """Return how many duplicates are counted in the rejects."""
    rejects = lake.latest(REJECTS).filter(
        (pl.col("reason") == "duplicate") & (pl.col("target") == table.name)
    )
    return int(rejects.get_column("removed").sum())


def plain(*frames: pl.DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows of frames put together and sorted, each key once: what a lake of them
    should show.
    """
    stamped = pl.concat(
        [frame.with_columns(seq=pl.lit(place, pl.Int64)) for place, frame in enumerate(frames)]
    )
    return resolve(stamped, GPU_SAMPLES)[0].drop("seq").rows()


def started(script: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start Python on `script`, which says `ready` and waits for a line on stdin; return it when
    it is ready.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    )
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said == "ready\n", process.communicate()
    return process


def at_once(processes: Sequence[subprocess.Popen[str]]) -> list[str]:
    """Let processes that wait go on together; return what each wrote to stdout, once all ended
    well.
    """
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), results
    return [out for out, _ in results]


WAIT = "print('ready', flush=True); sys.stdin.readline()"
