"""What rows would add to a table: of answers that overlap what was read before, only the new part lands."""

from __future__ import annotations

import polars as pl

from tachograph.lake.problems import lake_errors
from tachograph.lake.resolve import resolve
from tachograph.lake.tables import Lake
from tachograph.schema import Table

_THERE = "there"


def news(lake: Lake, table: Table, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `frame` that tell more than the lake: a key it does not have, or a value it has otherwise.

    Grain: `frame` is in the table's schema without `seq`. A null tells nothing.
    Errors: LakeError when the table cannot be read.
    """
    if frame.is_empty() or lake.delta(table) is None:
        return frame
    key = list(table.key)
    values = [name for name in frame.columns if name not in key]
    known = _known(lake, table, frame).select(*key, *values, pl.lit(value=True).alias(_THERE))
    joined = frame.join(known, on=key, how="left", nulls_equal=True, maintain_order="left", suffix="_known")
    told = [pl.col(name).is_not_null() & pl.col(name).ne_missing(pl.col(f"{name}_known")) for name in values]
    return joined.filter(pl.col(_THERE).is_null() | pl.any_horizontal(pl.lit(value=False), *told)).select(frame.columns)


def _known(lake: Lake, table: Table, frame: pl.DataFrame) -> pl.DataFrame:
    """One row per key of those that `frame` may have; of samples only its days and times."""
    if not table.by_day:
        return lake.latest(table)
    times = frame.select(first=pl.col("t").min(), last=pl.col("t").max()).row(0)
    first, last = times
    files = [
        file
        for file in lake.files(table, frame["t"].dt.date().unique())
        if file.first is None or file.last is None or (file.first <= last and file.last >= first)
    ]
    with lake_errors(lake.uri(table)):
        rows = lake.read_files(table, files).filter(pl.col("t").is_between(first, last)).collect()
    return resolve(rows, table)[0]
