"""Rows of one analysis on their way into a table by day: written where they are made, and counting in steps."""

from __future__ import annotations

from datetime import date

import polars as pl
from deltalake.transaction import AddAction

from tachograph.lake import Lake
from tachograph.schema import Table


class Landing:
    """The staged files of one table; each `land` makes what came since the last one count, in one step."""

    def __init__(self, lake: Lake, table: Table, number: int) -> None:
        self.lake, self.table, self.number = lake, table, number
        self.staged: list[AddAction] = []
        self.landed = 0

    def take(self, file: AddAction) -> None:
        """Take a file that was staged elsewhere."""
        self.staged.append(file)

    def stage(self, rows: pl.DataFrame) -> None:
        """Write rows in the schema and order of the table, one file per day."""
        for day, of_day in rows.group_by(pl.col("t").dt.date(), maintain_order=True):
            if isinstance(day[0], date):
                self.staged.append(self.lake.stage(self.table, of_day, day=day[0]))

    def land(self) -> None:
        """Make what is staged count."""
        if self.staged:
            self.landed += 1
            self.lake.land(self.table, self.staged, app_id=f"analysis:{self.number}", mark=self.landed)
            self.staged = []

    def discard(self) -> None:
        """Delete what was written and will not land."""
        self.lake.discard(self.table, self.staged)
