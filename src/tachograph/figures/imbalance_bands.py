"""How imbalance is distributed among jobs of low, middle and high utilisation: shared by two figures.

Source: IPDPS 2026, figures 6 and 7: bands of mean GPU_UTIL under 30 %, from 30 to 70 %, over 70 %.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from tachograph.figures import style
from tachograph.figures.statistics import cumulative, histogram
from tachograph.figures.study import Fact, Numbers, Study, not_recorded, share

LOW, HIGH = 0.30, 0.70  # of mean utilisation
EVEN = 0.30  # imbalance below which a job counts as even
BANDS = pl.Enum(["low", "mid", "high"])
BAND_NAMES: Mapping[str, str] = {"low": "under 30 %", "mid": "30 to 70 %", "high": "over 70 %"}
_COLOURS: Mapping[str, str] = {"low": "#00204d", "mid": "#7c7b78", "high": "#e6c200"}  # cividis, dark to light
_LINES: Mapping[str, str] = {"low": "-", "mid": "--", "high": ":"}
_EDGES = np.round(np.linspace(0, 1, 21), 2)


def compute_bands(study: Study, column: str) -> Numbers:
    """Return of one imbalance: its histogram and cumulative distribution in each band of utilisation.

    distribution: one row per (band, low, high): jobs and their share of the band's. cumulative: (band, value, share).
    Jobs without this imbalance (one GPU, no activity) or without utilisation are in no band.
    """
    if lacking := study.lacking(["gpu_util_mean", column]):
        why = not_recorded(lacking) if study.jobs.height else "no jobs"
        return Numbers({}, {}, study.jobs.height, {"distribution": why, "cumulative": why})
    util = pl.col("gpu_util_mean")
    band = pl.when(util < LOW).then(pl.lit("low")).when(util <= HIGH).then(pl.lit("mid")).otherwise(pl.lit("high"))
    jobs = study.jobs.select("gpu_util_mean", column).drop_nulls().with_columns(band=band.cast(BANDS))
    parts = {name: jobs.filter(pl.col("band") == name).get_column(column) for name in BAND_NAMES}
    distribution = [
        histogram(values, _EDGES).select(
            pl.lit(name, dtype=pl.String).alias("band"), pl.all(), share=pl.col("jobs") / max(1, len(values))
        )
        for name, values in parts.items()
    ]
    facts: dict[str, Fact] = {"jobs": jobs.height, "median": _median(jobs.get_column(column))}
    for name, values in parts.items():
        facts[f"{name}_jobs"] = len(values)
        facts[f"{name}_median"] = _median(values)
        facts[f"{name}_even_jobs"] = int((values < EVEN).sum())
        facts[f"{name}_even_share"] = share(int((values < EVEN).sum()), len(values))
    tables = {"distribution": pl.concat(distribution), "cumulative": cumulative(jobs, "band", column)}
    return Numbers(tables, facts, study.jobs.height)


def draw_bands(numbers: Numbers, label: str) -> Figure:
    """Return the histogram of each band beside the cumulative distributions."""
    with style.style():
        figure, (left, right) = style.new_figure(style.PAGE_IN, 2.6, 1, 2)
        width = float(_EDGES[1] - _EDGES[0]) / (len(BAND_NAMES) + 1)
        for place, (band, named) in enumerate(BAND_NAMES.items()):
            jobs = numbers.facts[f"{band}_jobs"]
            rows = numbers.tables["distribution"].filter(pl.col("band") == band)
            at = rows.get_column("low").to_numpy() + (place + 0.5) * width
            text = f"{named} ({jobs:,} jobs)"
            left.bar(at, rows.get_column("share"), width, align="edge", color=_COLOURS[band], label=text)
            curve = numbers.tables["cumulative"].filter(pl.col("band") == band)
            if curve.height:
                values = np.append(0.0, curve.get_column("value").to_numpy())
                shares = np.append(0.0, curve.get_column("share").to_numpy())
                right.step(
                    np.append(values, 1.0),
                    np.append(shares, 1.0),
                    _LINES[band],
                    where="post",
                    color=_COLOURS[band],
                    label=named,
                )
        left.set_ylabel("share of the band's jobs")
        style.percent_axis(left, limits=False)
        style.percent_axis(right)
        right.set_ylabel("share with at most this")
        for axes in (left, right):
            axes.set_xlabel(label)
            axes.set_xlim(0, 1)
            axes.grid(axis="y")
        left.legend(title="mean GPU utilisation", alignment="left")
        right.legend(title="mean GPU utilisation", alignment="left", loc="lower right")
    return figure


def _median(values: pl.Series) -> float | None:
    middle = values.median()
    return float(middle) if isinstance(middle, int | float) else None
