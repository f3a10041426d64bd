"""Which rows are a value that was read again: an exporter looks at its GPUs less often than it may be asked."""

from __future__ import annotations

from datetime import timedelta

import polars as pl

_UNIT = ("node", "gpu", "mig")
_NEARLY = 0.9  # a scrape may come a little earlier than the exporter's own round


class Reread:
    """Remembers the last row kept of each GPU; a new process knows none and keeps the first row it sees."""

    def __init__(self, refresh_s: float) -> None:
        self._span = timedelta(seconds=_NEARLY * refresh_s)
        self._kept: pl.DataFrame | None = None

    def fresh(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Return the rows of gpu_samples that are new samples.

        A row is none when all its values equal those of the row last kept of its GPU, and that is younger than nine
        tenths of the time between two looks of the exporter.
        """
        fresh = frame if self._kept is None else frame.filter(~self._again(frame, self._kept))
        self._remember(fresh)
        return fresh

    def _again(self, frame: pl.DataFrame, kept: pl.DataFrame) -> pl.Series:
        values = [name for name in dict.fromkeys((*frame.columns, *kept.columns)) if name not in (*_UNIT, "t")]
        now, before = (_with(values, rows).select(*_UNIT, "t", *values) for rows in (frame, kept))
        joined = now.join(before, on=_UNIT, how="left", nulls_equal=True, maintain_order="left", suffix="_kept")
        same = [pl.col(name).eq_missing(pl.col(f"{name}_kept")) for name in values]
        age = pl.col("t") - pl.col("t_kept")
        young = (age < self._span) & (age > timedelta(0))
        return joined.select((young & pl.all_horizontal(pl.lit(value=True), *same)).fill_null(value=False)).to_series()

    def _remember(self, fresh: pl.DataFrame) -> None:
        last = fresh.sort("t").unique(subset=list(_UNIT), keep="last")
        if self._kept is not None:
            others = self._kept.join(last, on=_UNIT, how="anti", nulls_equal=True)
            last = pl.concat([others, last], how="diagonal")
        self._kept = last


def _with(values: list[str], rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with all these columns, null where they had none."""
    return rows.with_columns(pl.lit(None, dtype=pl.Float64).alias(name) for name in values if name not in rows.columns)
