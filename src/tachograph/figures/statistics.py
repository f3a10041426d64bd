"""Statistics of jobs as tables: boxes, cumulative distributions, histograms, densities. Pure."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WHISKER = 1.5
BOX_CAPTION = (
    "Boxes: first to third quartile; line: median; dot: mean; whiskers: last job within 1.5 times the length of the "
    "box; jobs beyond are counted, not drawn."
)
DENSITY_POINTS = 128
MANY_JOBS = 4096  # in one group of a density
LEAST_JOBS = 3  # of a correlation: two jobs always have a rho of 1 or -1


def boxes(jobs: pl.DataFrame, group: str, value: str) -> pl.DataFrame:
    """Return one row per value of `group`, in its order: jobs, mean, median, q1, q3, low, high, outside.

    `low` and `high` end the whiskers: the last values within 1.5 times the interquartile range of the box (Tukey,
    "Exploratory Data Analysis", 1977); `outside` counts the jobs beyond. Quartiles are interpolated linearly. Nulls of
    either column are left out.
    """
    known = jobs.select(group, value).drop_nulls()
    column = pl.col(value)
    quartiles = known.group_by(group).agg(
        jobs=pl.len().cast(pl.Int64),
        mean=column.mean(),
        median=column.median(),
        q1=column.quantile(0.25, "linear"),
        q3=column.quantile(0.75, "linear"),
    )
    reach = WHISKER * (pl.col("q3") - pl.col("q1"))
    inside = (column >= pl.col("q1") - reach) & (column <= pl.col("q3") + reach)
    whiskers = (
        known.join(quartiles, on=group)
        .group_by(group)
        .agg(
            low=column.filter(inside).min(),
            high=column.filter(inside).max(),
            outside=(~inside).sum().cast(pl.Int64),
        )
    )
    return quartiles.join(whiskers, on=group).sort(group)


def cumulative(jobs: pl.DataFrame, group: str, value: str, *, points: int = 200) -> pl.DataFrame:
    """Return (group, value, share): the share of the group's jobs with at most this value, at `points` quantiles.

    Groups with fewer jobs have a row per job. The last row of a group has share 1.
    """
    rows = []
    for (name,), part in jobs.select(group, value).drop_nulls().sort(group, value).group_by(group, maintain_order=True):
        values = part.get_column(value).to_numpy()
        places = np.unique(np.linspace(0, len(values) - 1, min(points, len(values))).round().astype(np.int64))
        at = values[places]
        up_to = np.searchsorted(values, at, side="right") / len(values)
        rows.append(pl.DataFrame({"value": at, "share": up_to}).with_columns(pl.lit(name).alias(group)))
    empty = pl.DataFrame(schema={group: jobs.schema[group], "value": pl.Float64(), "share": pl.Float64()})
    return pl.concat([empty, *(row.select(*empty.columns).cast(empty.schema) for row in rows)])


def histogram(values: pl.Series, edges: Floats) -> pl.DataFrame:
    """Return (low, high, jobs): how many values lie in [low, high), the last bin with its end. Nulls do not count.

    >>> histogram(pl.Series([0.0, 0.5, 1.0, None]), np.array([0.0, 0.5, 1.0])).rows()
    [(0.0, 0.5, 1), (0.5, 1.0, 2)]
    """
    counts, _ = np.histogram(values.drop_nulls().to_numpy(), edges)
    return pl.DataFrame({"low": edges[:-1], "high": edges[1:], "jobs": counts.astype(np.int64)})


def unit_ranks(values: pl.Series) -> Floats:
    """Return average ranks, centred and of length 1: rho is the sum of products of two of them. NaN where all tie.

    >>> first, second = unit_ranks(pl.Series([1, 2, 3])), unit_ranks(pl.Series([3.0, 1.5, 1.5]))
    >>> round(float((first * second).sum()), 3)
    -0.866
    """
    ranks = values.rank("average").to_numpy()
    centred = ranks - ranks.mean()
    length = np.sqrt(np.square(centred).sum())
    return np.asarray(centred / length if length else np.full(len(ranks), np.nan))


def rank_correlation(jobs: pl.DataFrame, one: str, other: str) -> float | None:
    """Return Spearman's rho of two columns, ties at their average rank; None of under 3 jobs or of equal values.

    >>> rank_correlation(pl.DataFrame({"a": [1, 2, 3], "b": [5, 7, 60]}), "a", "b")
    1.0
    """
    known = jobs.select(one, other).drop_nulls()
    if known.height < LEAST_JOBS:
        return None
    rho = float((unit_ranks(known.get_column(one)) * unit_ranks(known.get_column(other))).sum())
    return None if np.isnan(rho) else float(np.clip(round(rho, 12), -1, 1))


def densities(jobs: pl.DataFrame, group: str, value: str) -> pl.DataFrame:
    """Return (group, value, density): a Gaussian kernel estimate over the range of each group's values.

    Bandwidth by Silverman's rule (0.9 of the lesser of standard deviation and interquartile range / 1.34, times
    n**-0.2), which a few distant jobs do not widen. A group of fewer than two different values has no rows: there is
    no shape to show.
    """
    rows = []
    for (name,), part in jobs.select(group, value).drop_nulls().sort(group).group_by(group, maintain_order=True):
        values = part.get_column(value).cast(pl.Float64).to_numpy()
        if len(np.unique(values)) > 1:
            at = np.linspace(values.min(), values.max(), DENSITY_POINTS)
            estimate = _estimate(values, at)
            rows.append(pl.DataFrame({"value": at, "density": estimate}).with_columns(pl.lit(name).alias(group)))
    empty = pl.DataFrame(schema={group: jobs.schema[group], "value": pl.Float64(), "density": pl.Float64()})
    return pl.concat([empty, *(row.select(*empty.columns).cast(empty.schema) for row in rows)])


def _estimate(values: Floats, at: Floats) -> Floats:
    """Density of the values at some places; of many values those in a 512th of the range are taken together."""
    bandwidth = _bandwidth(values)
    weights = np.ones(len(values))
    if len(values) > MANY_JOBS:  # far below the bandwidth
        weights, edges = np.histogram(values, 512)
        values = (edges[:-1] + edges[1:]) / 2
    distance = (at[:, None] - values[None, :]) / bandwidth
    return np.asarray(np.exp(-0.5 * distance**2) @ weights / (weights.sum() * bandwidth * np.sqrt(2 * np.pi)))


def _bandwidth(values: Floats) -> float:
    """Silverman, "Density Estimation for Statistics and Data Analysis" (1986), equation 3.31; at least a hundredth."""
    low, high = np.percentile(values, [25, 75])
    spread = min(values.std(ddof=1), (high - low) / 1.34) or values.std(ddof=1)
    return float(max(0.9 * spread * len(values) ** -0.2, (values.max() - values.min()) / 100))
