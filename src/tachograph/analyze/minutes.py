"""Minutes of jobs on their way into the lake: whole across midnight, each day's in one append."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta

import polars as pl

from tachograph.lake import Lake
from tachograph.lake.problems import lake_errors
from tachograph.schema import TIME
from tachograph.summarize.schema import JOB_MINUTES, MINUTE_MAXIMA, MINUTE_MEANS

JOBS_AT_A_TIME = 1000
_KEY = ("run", "node", "gpu", "mig", "minute")


class MinuteWriter:
    """Takes the minutes of each day in order; the last minute before midnight waits for the next day."""

    def __init__(self, lake: Lake, runs: pl.DataFrame, number: int) -> None:
        self.lake, self.number = lake, number
        self.keys = runs.select("run", "job_key", "job_id", "start")
        self.carried: list[pl.DataFrame] = []
        self.day: date | None = None

    def write(self, day: date, parts: Sequence[pl.DataFrame]) -> None:
        """Append the complete minutes of `day` and those that began the day before."""
        self.day = day
        frames = [*self.carried, *(part.with_columns(pl.col("node").cast(pl.String)) for part in parts if part.height)]
        if not frames:
            return
        carried = {key for frame in self.carried for key in frame.select(*_KEY).iter_rows()}
        rows = pl.concat(frames)
        if carried:
            rows = _joined(rows)
        rows = rows.join(self.keys, on="run", how="left").with_columns(
            t=pl.col("start") + pl.duration(minutes=pl.col("minute").cast(pl.Int64))
        )
        midnight = pl.lit(datetime.combine(day + timedelta(days=1), time(), UTC), dtype=TIME)
        cut = (pl.col("t") < midnight) & (pl.col("t") + pl.duration(minutes=1) > midnight)
        self.carried = [rows.filter(cut).select(*frames[0].columns)]
        self._append(rows.filter(~cut), f"{day}")

    def close(self) -> None:
        """Append what still waits."""
        rows = pl.concat(self.carried) if self.carried else None
        if rows is not None and rows.height:
            rows = rows.join(self.keys, on="run", how="left").with_columns(
                t=pl.col("start") + pl.duration(minutes=pl.col("minute").cast(pl.Int64))
            )
            self._append(rows, "rest")
        self.carried = []

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

    def _append(self, rows: pl.DataFrame, part: str) -> None:
        if rows.height:
            frame = rows.select(pl.col(name).cast(dtype) for name, dtype in JOB_MINUTES.schema.items() if name != "seq")
            self.lake.append(JOB_MINUTES, frame, app_id=f"analysis:{self.number}:{part}", seq=self.number)


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
