"""Accumulators add up: segments of one job and GPU, wherever and in whatever order they were reduced."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tachograph.counters import COUNTERS, Kind
from tachograph.reduce.partition import INTEGRATED

KEY = ("run", "node", "gpu", "mig")
DAY_US = 86_400_000_000


def merge_segments(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return one row per (run, node, gpu, mig) from any number of frames of segments.

    Sums and counts add, maxima are compared; between neighbouring segments a cumulative counter's step, an integral's
    trapezoid and a code's change are added, so that cutting a job at midnight changes nothing.
    """
    frames = [part for part in parts if part.height]
    if not frames:
        return pl.DataFrame(schema=dict.fromkeys(KEY, pl.Null)) if not parts else parts[0]
    together = pl.concat(frames, how="diagonal")
    if together.select(pl.struct(KEY).is_duplicated().any()).item():
        ordered = together.sort(*KEY, "t_first")
        ordered = ordered.with_columns(_joints(ordered.columns))
        return ordered.group_by(*KEY, maintain_order=True).agg(_additions(ordered.columns)).select(*together.columns)
    return together.sort(*KEY)


def _before(name: str) -> pl.Expr:
    """Value of the segment before this one of the same job and GPU."""
    return pl.col(name).shift(1).over(*KEY)


def _joints(columns: Sequence[str]) -> list[pl.Expr]:
    """What happened between a segment and the one before it, added to the segment."""
    expressions: list[pl.Expr] = []
    silence = pl.col("t_first") - _before("t_last")
    for name in INTEGRATED:
        if f"area_{name}" not in columns:
            continue
        both = _before(f"last_{name}") + pl.col(f"first_{name}")
        bridged = (silence <= pl.max_horizontal(pl.col("gap_us"), _before("gap_us"))) & both.is_not_null()
        area = pl.when(bridged).then(both * silence * 0.5e-6).otherwise(0.0).fill_null(0.0)
        seconds = pl.when(bridged).then(silence * 1e-6).otherwise(0.0).fill_null(0.0)
        expressions += [pl.col(f"area_{name}") + area, pl.col(f"seconds_{name}") + seconds]
    for counter in COUNTERS:
        if f"grown_{counter.name}" in columns:
            step = pl.col(f"first_{counter.name}") - _last_known(f"last_{counter.name}")
            expressions.append(pl.col(f"grown_{counter.name}") + step.clip(lower_bound=0).fill_null(0.0))
        if f"events_{counter.name}" in columns:
            first = pl.col(f"first_{counter.name}")
            known = _last_known(f"last_{counter.name}")
            next_day = pl.col("t_first") // DAY_US != _before("t_last") // DAY_US  # within a day the kernel has seen it
            new = ((first != known) & (first != 0) & next_day).fill_null(value=False)
            expressions.append(pl.col(f"events_{counter.name}") + new.cast(pl.Int64))
    return expressions


def _last_known(name: str) -> pl.Expr:
    """Last value that is not null in any segment before this one."""
    return pl.col(name).forward_fill().shift(1).over(*KEY)


def _additions(columns: Sequence[str]) -> list[pl.Expr]:
    """How each accumulator column of neighbouring segments, ordered in time, becomes one."""
    expressions: list[pl.Expr] = []
    cumulative = {c.name for c in COUNTERS if c.kind is Kind.CUMULATIVE or c.unit == "code"}
    for name in columns:
        if name in KEY:
            continue
        stem, _, counter = name.partition("_")
        column = pl.col(name)
        if name == "t_first" or (stem == "first" and counter not in cumulative):
            expressions.append(column.first())
        elif name == "t_last" or (stem == "last" and counter not in cumulative):
            expressions.append(column.last())
        elif stem == "first" or name.startswith("t_first_"):
            expressions.append(column.drop_nulls().first())
        elif stem == "last" or name.startswith("t_last_"):
            expressions.append(column.drop_nulls().last())
        elif name == "interval_us":
            expressions.append(column.drop_nans().median().fill_null(float("nan")))
        elif name == "gap_us" or stem == "max":
            expressions.append(column.max())
        elif stem == "bits":
            expressions.append(column.bitwise_or())
        else:
            expressions.append(column.sum())
    return expressions
