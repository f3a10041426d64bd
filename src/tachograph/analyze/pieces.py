"""Rows that are written as jobs end: they count once the summaries do, and need not wait for them in memory."""

from __future__ import annotations

import polars as pl

from tachograph.lake import Lake
from tachograph.schema import Table


class Pieces:
    """Takes rows of one table, and appends them when there are `limit`; rows of one analysis carry its number."""

    def __init__(self, lake: Lake, table: Table, number: int, *, limit: int) -> None:
        self.lake, self.table, self.number, self.limit = lake, table, number, limit
        self.waiting: list[pl.DataFrame] = []
        self.appends = 0

    def add(self, frame: pl.DataFrame) -> None:
        """Take rows, without `seq`."""
        self.waiting.append(frame)
        if sum(frame.height for frame in self.waiting) >= self.limit:
            self.write()

    def write(self) -> None:
        """Append what waits."""
        frame = pl.concat([self.table.empty().drop("seq"), *self.waiting])
        self.waiting = []
        if frame.height:
            self.appends += 1
            self.lake.append(self.table, frame, app_id=f"analysis:{self.number}", mark=self.appends, seq=self.number)
