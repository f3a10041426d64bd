"""One row per key: what several recordings of the same thing come to.

Of rows with one key, each column takes its last value that is not null, in the order of ingest
(`seq`); a job's record that has an end counts as later than one that has none. In tables whose rows do not
complete each other the last row is taken whole.
"""

from __future__ import annotations

import polars as pl

from tachograph.catalog.tables import JOBS, LakeTable


def resolve(frame: pl.DataFrame, table: LakeTable) -> tuple[pl.DataFrame, int]:
    """Return `frame` sorted by the table's `sort` with each key once, and how many rows were merged away."""
    key = list(table.key)
    if set(table.sort) == set(key):
        if is_resolved(frame, table):
            return frame, 0
        ordered = frame.sort(*table.sort, *_order(table), nulls_last=False, maintain_order=True)
        repeated = _repeats(ordered, key)
    else:
        ordered = frame.sort(*(table.sort or key), *_order(table), nulls_last=False, maintain_order=True)
        repeated = ordered.select(pl.struct(key).is_duplicated()).to_series()
    if not repeated.any():
        return ordered, 0
    several = ordered.filter(repeated).sort(*key, *_order(table), nulls_last=False, maintain_order=True)
    rest = [pl.col(name) for name in frame.columns if name not in (*key, "seq")]
    last = [(column.drop_nulls() if table.completes else column).last() for column in rest]
    last.append(pl.col("seq").max().alias("seq"))  # what came last tells what is new, even where another row counts
    merged = several.group_by(key, maintain_order=True).agg(last)
    result = pl.concat([ordered.filter(~repeated), merged.select(*frame.columns)])
    return result.sort(*(table.sort or key), nulls_last=False, maintain_order=True), frame.height - result.height


def is_resolved(frame: pl.DataFrame, table: LakeTable) -> bool:
    """True when each row's key is greater than the one above (null is least): nothing to sort, nothing repeated."""
    if frame.height < 2:
        return True
    greater, equal_so_far = pl.lit(value=False), pl.lit(value=True)
    for name in table.sort:
        above, here = pl.col(name).shift(1), pl.col(name)
        greater |= equal_so_far & (above < here).fill_null(above.is_null() & here.is_not_null())
        equal_so_far &= above.eq_missing(here)
    return bool(frame.select(greater.slice(1).all()).item())


def _order(table: LakeTable) -> list[pl.Expr]:
    """What makes a row later than another of the same key."""
    return [pl.col("end").is_not_null(), pl.col("seq")] if table is JOBS else [pl.col("seq")]


def _repeats(ordered: pl.DataFrame, key: list[str]) -> pl.Series:
    """True for rows whose neighbour above or below has the same key."""
    as_above = pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift(1)) for name in key)
    first = pl.int_range(pl.len()) == 0
    marked = ordered.select((as_above & ~first).alias("above"))
    return marked.select(pl.col("above") | pl.col("above").shift(-1, fill_value=False)).to_series()
