"""Imbalance of jobs with low, medium and high utilisation; shared by two figures.

A strip of dots per band beside the cumulative distributions: most jobs are even, and the few that
are not stay visible.

Source: IPDPS 2026, figures 6 and 7: bands of mean GPU_UTIL under 30 %, from 30 to 70 %, over 70 %.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from matplotlib.figure import Figure

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.numbers import (
    Fact,
    FigureNumbers,
    Study,
    count_jobs,
    counted,
    percent,
)
from tachograph.annexes.lab.figures.statistics import boxes, cumulative
from tachograph.catalog.units import text

LOW, HIGH = 0.30, 0.70  # of mean utilisation
EVEN = 0.30  # imbalance below which a job counts as even, or steady
UNEVEN = 0.70  # imbalance above which one counts as uneven, or unsteady
BANDS = pl.Enum(["low", "mid", "high"])
BAND_NAMES: Mapping[str, str] = {"low": "under 30 %", "mid": "30 to 70 %", "high": "over 70 %"}
# Cividis, dark to light.
BAND_COLOURS: Mapping[str, str] = {"low": "#00204d", "mid": "#7c7b78", "high": "#dcae00"}
BAND_LINES: Mapping[str, str] = {"low": "-", "mid": "--", "high": "-."}
STRIP_CAPTION = (
    "Dots: jobs (of more than 200 in a row, evenly spaced ranks); bar: first to third "
    "quartile; circle: median."
)
_TOPS = (0.1, 0.2, 0.5, 1.0)  # ends of axes of imbalance, which is below 1


def compute_bands(study: Study, column: str) -> FigureNumbers:
    """Return quartiles and cumulative distribution of one imbalance per utilisation band.

    bands: one row per band that has jobs: `statistics.boxes`. cumulative: (band, value, share).
    Jobs without this imbalance (one GPU, no activity) or without utilisation are in no band.
    """
    if why := why_none(study, column):
        return study.nothing(("bands", "cumulative"), why)
    jobs = imbalanced(study, column).select(column, band=band_of(pl.col("gpu_util_mean")))
    parts = {name: jobs.filter(pl.col("band") == name).get_column(column) for name in BAND_NAMES}
    facts: dict[str, Fact] = {"jobs": jobs.height, "median": _median(jobs.get_column(column))}
    facts |= beyond("", jobs.get_column(column))
    for name, values in parts.items():
        facts |= {
            f"{name}_jobs": len(values),
            f"{name}_median": _median(values),
            **beyond(f"{name}_", values),
        }
    tables = {"bands": boxes(jobs, "band", column), "cumulative": cumulative(jobs, "band", column)}
    return FigureNumbers(tables, facts, study.jobs.height)


def band_of(util: pl.Expr) -> pl.Expr:
    """Return the band of a mean utilisation."""
    band = (
        pl.when(util < LOW)
        .then(pl.lit("low"))
        .when(util <= HIGH)
        .then(pl.lit("mid"))
        .otherwise(pl.lit("high"))
    )
    return band.cast(BANDS)


def beyond(prefix: str, values: pl.Series) -> dict[str, Fact]:
    """Return numbers and shares of even and of uneven jobs."""
    even, uneven = int((values < EVEN).sum()), int((values > UNEVEN).sum())
    return {
        **counted(f"{prefix}even", even, len(values)),
        **counted(f"{prefix}uneven", uneven, len(values)),
    }


def imbalanced(study: Study, column: str) -> pl.DataFrame:
    """Return jobs that have this imbalance and a utilisation; negative values become 0."""
    return study.jobs.filter(
        pl.col(column).is_not_null() & pl.col("gpu_util_mean").is_not_null()
    ).with_columns(pl.col(column).clip(0, 1))


def why_none(study: Study, column: str) -> str | None:
    """Return why no job has this imbalance; None if some have."""
    if why := study.why_not(["gpu_util_mean"]):
        return why
    if imbalanced(study, column).height:
        return None
    if column == "spatial_imbalance" and not (study.jobs.get_column("gpus").fill_null(2) > 1).any():
        return "no job has more than one GPU"
    return "no GPU was ever active"


def axis_top(values: pl.Series) -> float:
    """Return the end of an imbalance axis that covers all values.

    >>> axis_top(pl.Series([0.02, 0.13])), axis_top(pl.Series([0.0])), axis_top(pl.Series([0.75]))
    (0.2, 0.1, 1.0)
    """
    greatest = values.max()
    return next(
        (top for top in _TOPS if not isinstance(greatest, int | float) or greatest <= top), 1.0
    )


def draw_bands(numbers: FigureNumbers, label: str) -> Figure:
    """Return a strip of jobs per band, and the cumulative distributions."""
    bands, curves = (
        numbers.tables[part].rename({"band": "group"}) for part in ("bands", "cumulative")
    )
    rows = pl.DataFrame({"group": pl.Series(list(BAND_NAMES), dtype=BANDS)}).join(
        bands, on="group", how="left", maintain_order="left"
    )
    with style.style():
        figure, (strips, curves_axes) = style.new_figure(style.PAGE_IN, 2.8, 1, 2)
        top = axis_top(curves.get_column("value"))
        style.draw_strips(strips, curves, rows, colours=BAND_COLOURS)
        strips.set_yticks(
            range(rows.height),
            [f"{BAND_NAMES[band]}\nn = {numbers.facts[f'{band}_jobs']:,}" for band in BAND_NAMES],
        )
        strips.set_ylabel("mean GPU utilisation")
        looks = {
            band: (named, BAND_COLOURS[band], BAND_LINES[band])
            for band, named in BAND_NAMES.items()
        }
        title = f"mean GPU utilisation\nn = {count_jobs(numbers.facts['jobs'])}"
        style.draw_ecdf(curves_axes, curves, looks, top=top, title=title)
        curves_axes.set_ylabel("cumulative share of the band's jobs")
        for axes in (strips, curves_axes):
            axes.set_xlim(-0.02 * top if axes is strips else 0, top)
            style.mark_limits(axes, (EVEN, UNEVEN))
            axes.set_xlabel(label)
        figure.supxlabel(STRIP_CAPTION, fontsize=6, color=style.FAINT)
    return figure


def half_of(numbers: FigureNumbers, which: str, imbalance: str) -> str:
    """Return the sentence of the median."""
    jobs, median = numbers.facts["jobs"], text(numbers.number("median"), "ratio")
    if jobs == 1:
        return f"The only job {which} has a {imbalance} of {median}."
    return f"Of {count_jobs(jobs)} {which}, half have a {imbalance} of at most {median}."


def even_in_bands(numbers: FigureNumbers) -> str:
    """Return per band the share of jobs with an imbalance under EVEN."""
    facts = numbers.facts
    return "; ".join(
        (
            f"{percent(facts[f'{band}_even_share'])} of the {count_jobs(facts[f'{band}_jobs'])} "
            f"with utilisation {named}"
        )
        for band, named in BAND_NAMES.items()
        if facts[f"{band}_jobs"]
    )


def uneven_jobs(numbers: FigureNumbers, imbalance: str) -> str:
    """Return how many jobs have an imbalance over UNEVEN, and in which band most of them are."""
    facts = numbers.facts
    message = f"Over {UNEVEN:.2f}: {percent(facts['uneven_share'])} of the jobs with a {imbalance}"
    worst_band = max(BAND_NAMES, key=lambda band: numbers.number(f"{band}_uneven_jobs") or 0)
    if not facts["uneven_jobs"]:
        return f"{message}."
    return (
        f"{message}, {facts[f'{worst_band}_uneven_jobs']:,} of {facts['uneven_jobs']:,} at a "
        f"utilisation {BAND_NAMES[worst_band]}."
    )


def _median(values: pl.Series) -> float | None:
    middle = values.median()
    return float(middle) if isinstance(middle, int | float) else None
