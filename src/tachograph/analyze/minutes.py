"""Minutes of jobs on their way into the lake: whole across midnight, each day's landing in one step."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta

import polars as pl

from tachograph.analyze.landing import Landing
from tachograph.lake import Lake
from tachograph.reduce.minutes import CUT, Written
from tachograph.reduce.timelines import of_minutes
from tachograph.schema import TIME
from tachograph.summarize.schema import JOB_MINUTES, MINUTE_MAXIMA, MINUTE_MEANS

_KEY = ("run", "node", "gpu", "mig", "minute")


class MinuteWriter:
    """Takes what partitions have written, day by day; a minute that midnight cuts waits for its other part."""

    def __init__(self, lake: Lake, keys: pl.DataFrame, number: int, *, idle_util: float) -> None:
        self.keys, self.number, self.idle_util = keys, number, idle_util
        self.landing = Landing(lake, JOB_MINUTES, number)
        self.cut = pl.DataFrame(schema=CUT)

    def add(self, written: Written) -> None:
        """Take what one partition has written, and what it left."""
        if written.file is not None:
            self.landing.take(written.file)
        self.cut = pl.concat([self.cut, written.cut])

    def end_day(self, day: date) -> pl.DataFrame:
        """All partitions of a day are in: land its minutes; return the timeline of those that were cut."""
        midnight = pl.lit(datetime.combine(day + timedelta(days=1), time(), UTC), dtype=TIME)
        waits = pl.col("t") + pl.duration(minutes=1) > midnight
        done, self.cut = self.cut.filter(~waits), self.cut.filter(waits)
        return self._land(done)

    def close(self) -> pl.DataFrame:
        """No day follows: land what waits; return its timeline."""
        done, self.cut = self.cut, self.cut.clear()
        return self._land(done)

    def unfinished(self) -> pl.DataFrame:
        """Runs of which a minute waits for the next day."""
        return self.cut.select("run").unique()

    def discard(self) -> None:
        """Delete what was written and will not land."""
        self.landing.discard()

    def _land(self, cut: pl.DataFrame) -> pl.DataFrame:
        joined = joined_minutes(cut)
        self.landing.stage(self._rows(joined))
        self.landing.land()
        return of_minutes(joined, idle_util=self.idle_util)

    def _rows(self, minutes: pl.DataFrame) -> pl.DataFrame:
        keyed = minutes.join(self.keys, on="run", how="left").with_columns(seq=pl.lit(self.number, dtype=pl.Int64))
        return keyed.select(pl.col(name).cast(dtype) for name, dtype in JOB_MINUTES.schema.items()).sort(
            *JOB_MINUTES.sort
        )


def joined_minutes(rows: pl.DataFrame) -> pl.DataFrame:
    """Return parts of a minute made one row: means weighted by samples. Grain: (run, node, gpu, mig, minute)."""
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
    merged = rows.filter(repeated).group_by(*_KEY, maintain_order=True)
    one = merged.agg(*means, *maxima, pl.col("samples").sum(), pl.col("t").first())
    return pl.concat([rows.filter(~repeated), one.select(*rows.columns)])
