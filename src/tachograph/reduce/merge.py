"""Accumulators add up: segments of one job and GPU, wherever and in whatever order they were reduced."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tachograph.counters import COUNTERS
from tachograph.reduce.partition import INTEGRATED

KEY = ("run", "node", "gpu", "mig")
DAY_US = 86_400_000_000
_UNIT = "unit"  # the key as a number


def merge_segments(parts: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return one row per (run, node, gpu, mig) from any number of frames of segments.

    Sums and counts add, maxima are compared; between neighbouring segments a cumulative counter's step, an integral's
    trapezoid and a code's change are added, so that cutting a job at midnight changes nothing.
    """
    frames = [part for part in parts if part.height]
    if not frames:
        return pl.DataFrame(schema=dict.fromkeys(KEY, pl.Null)) if not parts else parts[0]
    together = pl.concat(frames, how="diagonal").sort(*KEY, "t_first")
    together = together.with_columns(pl.struct(KEY).rle_id().alias(_UNIT))
    repeated = together.get_column(_UNIT).is_duplicated()
    if not repeated.any():
        return together.drop(_UNIT)
    several = together.filter(repeated)
    several = several.with_columns(_joints(several.columns))
    merged = several.group_by(_UNIT, maintain_order=True).agg(_additions(several.columns))
    return pl.concat([together.filter(~repeated), merged.select(together.columns)]).sort(_UNIT).drop(_UNIT)


def _joints(columns: Sequence[str]) -> list[pl.Expr]:
    """What happened between a segment and the one before it, added to the segment.

    Within a day two segments of one job and GPU are apart because somebody else held the GPU in between: a cumulative
    counter's step there is not the job's.
    """
    expressions: list[pl.Expr] = []
    next_day = pl.col("t_first") // DAY_US != pl.col("t_last").shift(1).over(_UNIT) // DAY_US
    longest = pl.max_horizontal(pl.col("gap_us"), pl.col("gap_us").shift(1).over(_UNIT))
    for name in INTEGRATED:
        if f"area_{name}" in columns:
            distance = pl.col(f"t_first_{name}") - _last_known(f"t_last_{name}")
            both = _last_known(f"last_{name}") + pl.col(f"first_{name}")
            bridged = (distance <= longest).fill_null(value=False)
            expressions.append(_plus(f"area_{name}", bridged, both * distance * 0.5e-6))
            expressions.append(_plus(f"seconds_{name}", bridged, distance * 1e-6))
    for counter in COUNTERS:
        name = counter.name
        if f"grown_{name}" in columns:
            step = (pl.col(f"first_{name}") - _last_known(f"last_{name}")).clip(lower_bound=0)
            distance = pl.col(f"t_first_{name}") - _last_known(f"t_last_{name}")
            expressions.append(_plus(f"grown_{name}", next_day, step))
            expressions.append(_plus(f"seconds_{name}", next_day, distance * 1e-6))
        if f"events_{name}" in columns:
            first = pl.col(f"first_{name}")
            new = (
                (first != _last_known(f"last_{name}")) & (first != 0) & next_day
            )  # within a day the kernel has seen it
            expressions.append(pl.col(f"events_{name}") + new.fill_null(value=False).cast(pl.Int64))
            expressions.append(pl.max_horizontal(f"max_new_{name}", pl.when(new).then(first)).alias(f"max_new_{name}"))
    return expressions


def _plus(name: str, condition: pl.Expr, value: pl.Expr) -> pl.Expr:
    """The column and, where `condition` holds and the value is known, the value."""
    return pl.col(name) + pl.when(condition).then(value).otherwise(0.0).fill_null(0.0)


def _last_known(name: str) -> pl.Expr:
    """Last value that is not null in any segment before this one of the same job and GPU."""
    return pl.col(name).forward_fill().shift(1).over(_UNIT)


def _additions(columns: Sequence[str]) -> list[pl.Expr]:
    """How each accumulator column of neighbouring segments, ordered in time, becomes one."""
    expressions: list[pl.Expr] = []
    for name in columns:
        if name == _UNIT:
            continue
        column = pl.col(name)
        if name in KEY:
            expressions.append(column.first())
            continue
        stem = name.partition("_")[0]
        if stem == "first" or name.startswith("t_first"):
            expressions.append(column.drop_nulls().first())
        elif stem == "last" or name.startswith("t_last"):
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
