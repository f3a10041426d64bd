"""Newest rows of a polled source: published by collectors, shown live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import polars as pl

from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.errors import SchemaError
from tachograph.catalog.tables import GPU_KEY, TABLES
from tachograph.lake.conform import conform

SAMPLES, DEVICES, ALLOCATIONS, JOBS = "gpu_samples", "devices", "allocations", "jobs"
SLURM_LIVE = "slurm-live"
GPU_OF_CLUSTER = (*GPU_KEY, "cluster")
HOLDING = (*GPU_OF_CLUSTER, "job_id")


@dataclass(frozen=True, slots=True, eq=False)
class NewestTables:
    """Newest rows by table. kept_s: validity of a sample."""

    rows: Mapping[str, pl.DataFrame]
    kept_s: float

    def table(self, name: str) -> pl.DataFrame:
        """Rows of a table."""
        return self.rows.get(name, TABLES[name].empty())


@dataclass(slots=True)
class NewestRows:
    """Merges the chunks of one source.

    Samples are kept for `kept_s`. Of a GPU the last value of each counter counts, in the order in
    which values came, so that a clock that was ahead for a moment hides nothing. An answer of Slurm
    is all that runs; labels that name jobs come as changes.

    source: the kind of source, "" before the first chunk with samples or running jobs. unplaced:
    nodes with a job that holds an unknown GPU.
    """

    kept_s: float
    source: str = ""
    unplaced: frozenset[str] = frozenset()
    _tables: dict[str, pl.DataFrame] = field(default_factory=dict)

    def add(self, chunk: Chunk, now: datetime) -> None:
        """Add the rows of a chunk."""
        if chunk.source == SLURM_LIVE:
            self.source, self._tables = chunk.source, dict(_conformed(chunk, now))
            return
        oldest = now - timedelta(seconds=self.kept_s)
        if chunk.watermark is not None and chunk.watermark <= oldest:  # a history that is read up
            chunk = replace(
                chunk, parts=tuple(part for part in chunk.parts if part.table != SAMPLES)
            )
        for table, rows in _conformed(chunk, now):
            earlier = self._tables.get(table)
            merged = rows if earlier is None else pl.concat([earlier, rows])
            if table == SAMPLES:
                self.source = chunk.source
                merged = merged.filter(pl.col("t") > oldest)
            elif table == DEVICES:
                merged = merged.unique(GPU_OF_CLUSTER, keep="last", maintain_order=True)
            elif table == ALLOCATIONS:
                merged = merged.unique(HOLDING, keep="last", maintain_order=True).filter(
                    pl.col("end").is_null()
                )
                self.unplaced = frozenset(merged.filter(pl.col("gpu").is_null())["node"])
            self._tables[table] = merged

    def tables(self) -> NewestTables:
        """Return one sample per GPU, and related rows."""
        samples = self._tables.get(SAMPLES)
        if samples is None:
            return NewestTables(self._tables, self.kept_s)
        newest = samples.group_by(GPU_OF_CLUSTER, maintain_order=True).agg(
            pl.all().drop_nulls().last()
        )
        of_gpus = {
            table: self._tables[table].join(newest, on=GPU_KEY, how="semi", nulls_equal=True)
            for table in (DEVICES, ALLOCATIONS)
            if table in self._tables
        }
        # what is left out here stays known: labels do not name again who holds a GPU that comes
        # back
        return NewestTables(self._tables | of_gpus | {SAMPLES: newest}, self.kept_s)


def _conformed(chunk: Chunk, now: datetime) -> Iterator[tuple[str, pl.DataFrame]]:
    """Return a chunk's rows by table in contract units; the writer reports misfits."""
    for part in chunk.parts:
        if part.table in (SAMPLES, DEVICES, ALLOCATIONS, JOBS):
            with suppress(SchemaError):
                yield part.table, _rows(part, chunk.origin, now)


def _rows(part: ChunkPart, origin: str, now: datetime) -> pl.DataFrame:
    return conform(part.frame, TABLES[part.table], now=now, units=part.units, origin=origin).frame
