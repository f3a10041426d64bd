"""Minutes of jobs on their way into the lake: whole across midnight, each day's in one append."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta

import polars as pl

from tachograph.lake import Lake
from tachograph.lake.problems import lake_errors
from tachograph.schema import TIME
from tachograph.summarize.schema import JOB_MINUTES, MINUTE_MAXIMA, MINUTE_MEANS

JOBS_AT_A_TIME = 1000
_KEY = ("run", "node", "gpu", "mig", "minute")


class MinuteWriter:
    """Takes the minutes of partitions, day by day; a minute that crosses midnight waits for the next day.

    Each partition's minutes are written at once, so only those of one partition, and the waiting ones, are in memory.
    """

    def __init__(self, lake: Lake, runs: pl.DataFrame, number: int) -> None:
        self.lake, self.number = lake, number
        self.keys = runs.select("run", "job_key", "job_id", "start")
        self.carried: pl.DataFrame | None = None  # from the day before
        self.waiting: list[pl.DataFrame] = []  # for the day after
        self.written = 0

    def write(self, day: date, minutes: pl.DataFrame) -> None:
        """Append the complete minutes of a partition, those that began the day before made whole."""
        if not minutes.height:
            return
        rows = minutes.with_columns(pl.col("node").cast(pl.String))
        if self.carried is not None:
            here = pl.col("node").is_in(rows.get_column("node").unique().implode())
            begun, self.carried = self.carried.filter(here), self.carried.filter(~here)
            rows = pl.concat([begun, rows]) if begun.height else rows
        rows = _joined(rows)
        timed = self._timed(rows)
        midnight = pl.lit(datetime.combine(day + timedelta(days=1), time(), UTC), dtype=TIME)
        cut = (pl.col("t") < midnight) & (pl.col("t") + pl.duration(minutes=1) > midnight)
        self.waiting.append(timed.filter(cut).select(*rows.columns))
        self._append(timed.filter(~cut))

    def end_day(self) -> None:
        """All partitions of a day were written: what was to be completed by them and was not, is complete as it is."""
        if self.carried is not None:
            self._append(self._timed(self.carried))
        self.carried = pl.concat(self.waiting) if self.waiting else None
        self.waiting = []

    def close(self) -> None:
        """No day follows: append what still waits."""
        self.end_day()
        self.end_day()

    def _timed(self, rows: pl.DataFrame) -> pl.DataFrame:
        """With keys of the run, and the begin of each minute."""
        begin = pl.col("start") + pl.duration(minutes=pl.col("minute").cast(pl.Int64))
        return rows.join(self.keys, on="run", how="left").with_columns(t=begin)

    def batches(self, summaries: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
        """Yield (summaries, their minutes), some jobs at a time in order of start."""
        ordered = summaries.sort("start", "job_key")
        for batch in ordered.iter_slices(JOBS_AT_A_TIME):
            first = batch.get_column("start").dt.date().min()
            last = batch.get_column("as_of").dt.date().max()
            days = [day for day in self.lake.days(JOB_MINUTES) if _between(first, day, last)]
            with lake_errors(self.lake.uri(JOB_MINUTES)):
                rows = self.lake.scan(JOB_MINUTES, days).filter(pl.col("seq") == self.number)
                minutes = rows.join(batch.lazy().select("job_key"), on="job_key", how="semi").collect()
            yield batch, minutes.sort(*JOB_MINUTES.sort)

    def _append(self, rows: pl.DataFrame) -> None:
        if rows.height:
            self.written += 1
            frame = rows.select(pl.col(name).cast(dtype) for name, dtype in JOB_MINUTES.schema.items() if name != "seq")
            self.lake.append(JOB_MINUTES, frame, app_id=f"analysis:{self.number}:{self.written}", seq=self.number)


def _between(first: object, day: date, last: object) -> bool:
    return isinstance(first, date) and isinstance(last, date) and first <= day <= last


def _joined(rows: pl.DataFrame) -> pl.DataFrame:
    """Halves of a minute on either side of midnight made one: means weighted by samples."""
    weight = pl.col("samples")
    means = [
        ((pl.col(name) * weight).sum() / weight.filter(pl.col(name).is_not_null()).sum())
        .fill_nan(None)
        .cast(pl.Float32)
        .alias(name)
        for name in MINUTE_MEANS
    ]
    maxima = [pl.col(name).max() for name in MINUTE_MAXIMA]
    repeated = rows.select(pl.struct(_KEY).is_duplicated()).to_series()
    merged = rows.filter(repeated).group_by(*_KEY, maintain_order=True).agg(*means, *maxima, pl.col("samples").sum())
    return pl.concat([rows.filter(~repeated), merged.select(*rows.columns)])
