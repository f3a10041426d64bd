"""What chunks of a stream come to, without a lake: rows resolved, watermarks kept. Nothing that
does not move lands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

import polars as pl

from tachograph.catalog.chunks import Chunk
from tachograph.catalog.tables import ALLOCATIONS, JOBS, TABLES, LakeTable
from tachograph.lake.conform import conform, resolve
from tachograph.sources.registry import SourceFeed

LATER = datetime(2030, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Landing:
    """Where chunks land. `rejected`: how many rows or values were removed, by reason."""

    marks: dict[str, datetime] = field(default_factory=dict)
    frames: dict[str, list[pl.DataFrame]] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    chunks: int = 0

    def watermark(self, stream: str) -> datetime | None:
        return self.marks.get(stream)

    def poll(self, feed: SourceFeed, now: datetime) -> list[Chunk]:
        """Land what a feed gives now."""
        return self.take(feed.poll(self.watermark, now=now))

    def take(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """Land chunks; return those that did."""
        landed = []
        for chunk in chunks:
            if chunk.watermark is not None:
                known = self.marks.get(chunk.id)
                assert known is None or chunk.watermark > known
                self.marks[chunk.id] = chunk.watermark
            self.chunks += 1
            landed.append(chunk)
            for part in chunk.parts:
                assert part.overlaps
                conformed = conform(part.frame, TABLES[part.table], now=LATER)
                frame = conformed.frame.with_columns(seq=pl.lit(self.chunks, dtype=pl.Int64))
                self.frames.setdefault(part.table, []).append(
                    frame.select(*TABLES[part.table].schema)
                )
                self.rejected.update(
                    {r.reason: r.count for r in (*part.rejects, *conformed.rejects)}
                )
        return landed

    def table(self, table: LakeTable) -> pl.DataFrame:
        """One row per key, without the order in which they landed."""
        frames = self.frames.get(table.name) or [table.empty()]
        return resolve(pl.concat(frames), table)[0].drop("seq")

    @property
    def jobs(self) -> pl.DataFrame:
        return self.table(JOBS)

    @property
    def allocations(self) -> pl.DataFrame:
        return self.table(ALLOCATIONS)
