"""Figure 13: spatial imbalance over windows of 1, 5, 15 and 30 minutes, of the same jobs.

A short burst on one GPU decides a long window; IPDPS 2026 compares the four and takes one minute.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.imbalance_bands import (
    BAND_COLOURS,
    BAND_LINES,
    BAND_NAMES,
    BANDS,
    EVEN,
    UNEVEN,
    axis_top,
    band_of,
    beyond,
    why_none,
)
from tachograph.annexes.lab.figures.numbers import Fact, FigureNumbers, Study, count_jobs, percent
from tachograph.annexes.lab.figures.statistics import boxes, cumulative
from tachograph.catalog.units import text

_LOOKS: Mapping[int, tuple[str, str]] = {
    60: (style.INK, "-"),
    300: (style.COMPUTE, "--"),
    900: (style.SECOND, "-."),
    1800: (style.MEMORY, ":"),
}
_PARTS = ("windows", "cumulative", "bands")


def compute(study: Study) -> FigureNumbers:
    """Return the distribution of spatial imbalance per window length, for jobs that have all.

    windows: one row per window_s: `statistics.boxes`. cumulative: (window_s, value, share). bands:
    one row per (window_s, band) that has jobs: their number, and the shares that are even and
    uneven.
    """
    if why := why_none(study, "spatial_imbalance"):
        return study.nothing(_PARTS, why)
    if study.windows is None:
        return study.nothing(_PARTS, "minutes of jobs were not read")
    measured = study.windows.drop_nulls("spatial_imbalance")
    lengths = sorted(measured.get_column("window_s").unique())
    complete = measured.group_by("job_key").len().filter(pl.col("len") == len(lengths))
    jobs = (
        measured.join(complete, on="job_key", how="semi")
        .join(study.jobs.select("job_key", "gpu_util_mean"), on="job_key")
        .drop_nulls("gpu_util_mean")
        .select(
            "window_s",
            pl.col("spatial_imbalance").clip(0, 1),
            band=band_of(pl.col("gpu_util_mean")),
        )
    )
    if jobs.is_empty():
        return study.nothing(_PARTS, "no job has an imbalance over windows of every length")
    facts: dict[str, Fact] = {
        "jobs": jobs.height // len(lengths),
        "windows": ", ".join(str(length // 60) for length in lengths),
    }
    rows = boxes(jobs, "window_s", "spatial_imbalance")
    bands = []
    for length in lengths:
        mine = jobs.filter(pl.col("window_s") == length)
        facts[f"{length // 60}min_median"] = (
            rows.filter(pl.col("window_s") == length).get_column("median").item()
        )
        facts |= beyond(f"{length // 60}min_", mine.get_column("spatial_imbalance"))
        for (band,), part in mine.sort("band").group_by("band", maintain_order=True):
            bands.append(
                {
                    "window_s": length,
                    "band": band,
                    "jobs": part.height,
                    **beyond("", part["spatial_imbalance"]),
                }
            )
    tables = {
        "windows": rows,
        "cumulative": cumulative(jobs, "window_s", "spatial_imbalance"),
        "bands": pl.DataFrame(bands, schema_overrides={"window_s": pl.Int64, "band": BANDS}),
    }
    return FigureNumbers(tables, facts, study.jobs.height)


def draw(numbers: FigureNumbers) -> Figure:
    """Return the cumulative distributions, and the share of uneven jobs by band and window."""
    with style.style():
        figure, (curves_axes, right) = style.new_figure(style.PAGE_IN, 2.8, 1, 2)
        curves = numbers.tables["cumulative"].rename({"window_s": "group"})
        looks = {
            length: (text(length, "s"), *_LOOKS.get(length, (style.FAINT, "-")))
            for length in numbers.tables["windows"].get_column("window_s")
        }
        title = f"windows of\nn = {count_jobs(numbers.facts['jobs'])}"
        style.draw_ecdf(
            curves_axes, curves, looks, top=axis_top(curves.get_column("value")), title=title
        )
        style.mark_limits(curves_axes, (EVEN, UNEVEN))
        curves_axes.set_xlabel("spatial imbalance (0: even)")
        curves_axes.set_ylabel("cumulative share of jobs")
        _draw_bands(right, numbers)
    return figure


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return medians and the shares of uneven jobs, by length of window."""
    facts = numbers.facts
    if not facts.get("jobs"):
        return ()
    lengths = str(facts["windows"]).split(", ")
    medians = ", ".join(text(numbers.number(f"{length}min_median"), "ratio") for length in lengths)
    uneven = ", ".join(percent(facts[f"{length}min_uneven_share"]) for length in lengths)
    jobs = count_jobs(facts["jobs"])
    return (
        (
            f"Over windows of {facts['windows']} min the median spatial imbalance of {jobs} is "
            f"{medians}."
        ),
        f"Imbalance over {UNEVEN:.2f}: {uneven} of these jobs.",
    )


def _draw_bands(axes: Axes, numbers: FigureNumbers) -> None:
    table = numbers.tables["bands"]
    lengths = numbers.tables["windows"].get_column("window_s").to_list()
    for band, named in BAND_NAMES.items():
        rows = table.filter(pl.col("band") == band)
        if rows.height:
            label = f"{named} (n = {rows.item(0, 'jobs'):,})"
            indexes = [lengths.index(length) for length in rows.get_column("window_s")]
            axes.plot(
                indexes,
                rows.get_column("uneven_share").to_numpy(),
                BAND_LINES[band],
                color=BAND_COLOURS[band],
                label=label,
                marker="o",
                markersize=4,
            )
    axes.set_xticks(range(len(lengths)), [text(length, "s") for length in lengths])
    axes.set_xlabel("windows of")
    axes.set_xlim(-0.3, len(lengths) - 0.7)
    style.percent_axis(axes)
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel(f"share of the band's jobs over {UNEVEN:.2f}")
    axes.grid(axis="y")
    axes.legend(title="mean GPU utilisation", alignment="left", loc="upper left")
