"""Statistics of jobs as tables: boxes, cumulative distributions, histograms. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import floor, log10

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WHISKER = 1.5
WHISKERS: Mapping[str, str] = {
    "tukey": "last job within 1.5 times the length of the box",
    "percentile": "5th to 95th percentile",
}
LEAST_JOBS = 3  # of a correlation: two jobs always have a rho of 1 or -1


def box_caption(whiskers: object) -> str:
    """Return the caption of boxes with these whiskers; default: Tukey."""
    ends = WHISKERS.get(str(whiskers), WHISKERS["tukey"])
    box = "Boxes: first to third quartile; line: median; dot: mean"
    return f"{box}; whiskers: {ends}; jobs beyond are counted, not drawn."


def boxes(jobs: pl.DataFrame, group: str, value: str, *, whiskers: str = "tukey") -> pl.DataFrame:
    """Return one row per `group`: jobs, mean, median, p5, q1, q3, p95, low, high, outside.

    `low` and `high` end the whiskers: the last values within 1.5 times the interquartile range of
    the box (Tukey, "Exploratory Data Analysis", 1977), or the 5th and 95th percentile with
    `whiskers` "percentile"; `outside` counts the jobs beyond. Quartiles and percentiles are
    interpolated linearly. Nulls of either column are left out.
    """
    measured = jobs.select(group, value).drop_nulls()
    column = pl.col(value)
    quartiles = measured.group_by(group).agg(
        jobs=pl.len().cast(pl.Int64),
        mean=column.mean(),
        median=column.median(),
        p5=column.quantile(0.05, "linear"),
        q1=column.quantile(0.25, "linear"),
        q3=column.quantile(0.75, "linear"),
        p95=column.quantile(0.95, "linear"),
    )
    reach = WHISKER * (pl.col("q3") - pl.col("q1"))
    ends = pl.col("q1") - reach, pl.col("q3") + reach
    if whiskers == "percentile":
        ends = pl.col("p5"), pl.col("p95")
    inside = (column >= ends[0]) & (column <= ends[1])
    within = (
        measured.join(quartiles, on=group)
        .group_by(group)
        .agg(
            low=column.filter(inside).min(),
            high=column.filter(inside).max(),
            outside=(~inside).sum().cast(pl.Int64),
        )
    )
    statistics = quartiles.join(within, on=group).sort(group)
    return statistics.with_columns(low="p5", high="p95") if whiskers == "percentile" else statistics


def cumulative(jobs: pl.DataFrame, group: str, value: str, *, points: int = 200) -> pl.DataFrame:
    """Return (group, value, share): share of jobs up to this value, at `points` quantiles.

    Groups with fewer jobs have a row per job. The last row of a group has share 1.
    """
    rows = []
    for (name,), part in (
        jobs.select(group, value)
        .drop_nulls()
        .sort(group, value)
        .group_by(group, maintain_order=True)
    ):
        values = part.get_column(value).to_numpy()
        ranks = np.unique(
            np.linspace(0, len(values) - 1, min(points, len(values))).round().astype(np.int64)
        )
        at = values[ranks]
        up_to = np.searchsorted(values, at, side="right") / len(values)
        rows.append(
            pl.DataFrame({"value": at, "share": up_to}).with_columns(pl.lit(name).alias(group))
        )
    empty = pl.DataFrame(
        schema={group: jobs.schema[group], "value": pl.Float64(), "share": pl.Float64()}
    )
    return pl.concat([empty, *(row.select(*empty.columns).cast(empty.schema) for row in rows)])


def round_up(value: float, steps: Sequence[float]) -> float:
    """Return the smallest step times a power of ten that is not below a positive value.

    >>> round_up(0.061, (1, 2, 5, 10)), round_up(0.05, (1, 2, 5, 10))
    (0.1, 0.05)
    """
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in steps if step * power >= value * (1 - 1e-12))


def histogram(values: pl.Series, edges: Floats) -> pl.DataFrame:
    """Return (low, high, jobs) per bin [low, high), the last including its end; no nulls.

    >>> histogram(pl.Series([0.0, 0.5, 1.0, None]), np.array([0.0, 0.5, 1.0])).rows()
    [(0.0, 0.5, 1), (0.5, 1.0, 2)]
    """
    counts, _ = np.histogram(values.drop_nulls().to_numpy(), edges)
    return pl.DataFrame({"low": edges[:-1], "high": edges[1:], "jobs": counts.astype(np.int64)})


def unit_ranks(values: pl.Series) -> Floats:
    """Return average ranks, centred, of length 1; NaN if all tie.

    rho is the dot product of two of them.

    >>> first, second = unit_ranks(pl.Series([1, 2, 3])), unit_ranks(pl.Series([3.0, 1.5, 1.5]))
    >>> round(float((first * second).sum()), 3)
    -0.866
    """
    ranks = values.rank("average").to_numpy()
    centred = ranks - ranks.mean()
    length = np.sqrt(np.square(centred).sum())
    return np.asarray(centred / length if length else np.full(len(ranks), np.nan))


def rank_correlation(jobs: pl.DataFrame, one: str, other: str) -> float | None:
    """Return Spearman's rho of two columns; None for under 3 jobs or constant columns.

    >>> rank_correlation(pl.DataFrame({"a": [1, 2, 3], "b": [5, 7, 60]}), "a", "b")
    1.0
    """
    measured = jobs.select(one, other).drop_nulls()
    if measured.height < LEAST_JOBS:
        return None
    rho = float(
        (unit_ranks(measured.get_column(one)) * unit_ranks(measured.get_column(other))).sum()
    )
    return None if np.isnan(rho) else float(np.clip(round(rho, 12), -1, 1))
