"""Statistics of jobs as tables: boxes, cumulative distributions, histograms, densities. Pure."""

from __future__ import annotations

import numpy as np
import polars as pl
from matplotlib.mlab import GaussianKDE
from numpy.typing import NDArray

Floats = NDArray[np.float64]

WHISKER = 1.5
BOX_CAPTION = (
    "Boxes: first to third quartile; line: median; dot: mean; whiskers: last job within 1.5 times the length of the "
    "box; jobs beyond are counted, not drawn."
)
DENSITY_POINTS = 128


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


def densities(jobs: pl.DataFrame, group: str, value: str) -> pl.DataFrame:
    """Return (group, value, density): a Gaussian kernel estimate over the range of each group's values.

    Bandwidth by Scott's rule. A group of fewer than two different values has no rows: there is no shape to show.
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
    """Density of the values at some places; thousands of equal values cost as one."""
    if len(values) > 4096:  # binned to a 512th of the range, far below the bandwidth
        edges = np.linspace(values.min(), values.max(), 513)
        counts, _ = np.histogram(values, edges)
        bandwidth = values.std(ddof=1) * len(values) ** -0.2
        distance = (at[:, None] - (edges[:-1] + edges[1:])[None, :] / 2) / bandwidth
        kernel = np.exp(-0.5 * distance**2) @ counts
        return np.asarray(kernel / (len(values) * bandwidth * np.sqrt(2 * np.pi)))
    return np.asarray(GaussianKDE(values, "scott").evaluate(at))
