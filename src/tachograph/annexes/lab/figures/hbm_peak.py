"""Figure 3: peak memory of jobs that requested GPUs with a large memory."""

from __future__ import annotations

import numpy as np
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
from tachograph.annexes.lab.figures.statistics import cumulative, histogram
from tachograph.catalog.units import KI, text

LITTLE, HALF, MUCH, FULL = 0.20, 0.50, 0.80, 0.90  # of the capacity
# Capacities from this fraction of the largest on count as it: drivers report up to a tenth less.
SAME = 0.9
FIT = 0.9  # of a smaller capacity, up to which a job would fit: peaks between samples are not seen
BIN = 0.05
REQUESTED, LARGEST, ALL = "requested", "largest_capacity", "all"  # which jobs
_PARTS = ("histogram", "cumulative")


def compute(study: Study) -> FigureNumbers:
    """Return the distribution of hbm_peak_fraction among the jobs with a large memory.

    Which jobs these are, by the first rule that fits (fact `population`): requested: those whose
    hbm_request is the largest tier, where that is one for a large memory (the largest capacity
    there is, or more than the smallest); largest_capacity: those on GPUs of the largest capacity,
    where there are several; all. Facts `fits_smaller_...`: jobs that would fit on the next smaller
    GPUs of the study, with a tenth of these to spare. histogram: (low, high, jobs, share).
    cumulative: (value, share). Shares are of the jobs whose peak is known.
    """
    if not study.jobs.height:
        return study.nothing(_PARTS, "no jobs")
    jobs, facts = _population(study.jobs)
    peaks = jobs.get_column("hbm_peak_fraction").drop_nulls()
    facts |= {"population_jobs": jobs.height, "jobs": peaks.len()}
    if not peaks.len():
        why = study.why_not(["hbm_peak_fraction"])
        return study.nothing(
            _PARTS, why or "the peak of no job with a large memory is known", facts
        )
    values = peaks.to_numpy()
    bins = max(round(1 / BIN), int(np.ceil(values.max() / BIN)))
    edges = np.round(np.arange(bins + 1) * BIN, 2)
    table = histogram(peaks, edges).with_columns(share=pl.col("jobs") / peaks.len())
    curve = cumulative(jobs.with_columns(group=pl.lit(0)), "group", "hbm_peak_fraction").drop(
        "group"
    )
    for name, number in (
        ("under_20", int((values < LITTLE).sum())),
        ("under_50", int((values < HALF).sum())),
        ("at_least_80", int((values >= MUCH).sum())),
        ("at_least_90", int((values >= FULL).sum())),
    ):
        facts |= counted(name, number, peaks.len())
    facts["median"] = float(np.median(values))
    facts |= _smaller(study.jobs, jobs)
    return FigureNumbers({"histogram": table, "cumulative": curve}, facts, study.jobs.height)


def draw(numbers: FigureNumbers) -> Figure:
    """Return the histogram with the cumulative distribution over it."""
    table, curve = (numbers.tables[part] for part in _PARTS)
    end = float(table.item(-1, "high"))
    with style.style():
        figure, (axes,) = style.new_figure(style.COLUMN_IN, 2.5)
        axes.bar(
            table["low"],
            table["jobs"],
            BIN * 0.92,
            align="edge",
            color=style.ACCENT,
            alpha=0.75,
            label="jobs",
        )
        axes.set_ylabel("jobs")
        axes.set_ylim(0, table.get_column("jobs").to_numpy().max() * 1.05)
        style.count_axis(axes)
        axes.set_xlabel("peak use of GPU memory")
        style.percent_axis(axes, "x", limits=False)
        axes.set_xlim(0, end)
        shares = axes.twinx()
        values = [0.0, *curve["value"], end]
        shares.step(values, [0.0, *curve["share"], 1.0], where="post", color=style.INK)
        style.percent_axis(shares)
        shares.set_ylim(0, 1.05)
        shares.set_ylabel("cumulative share (line)")
        shares.spines["right"].set_visible(True)
        for at, name, arrow, side, above in (
            (LITTLE, "under_20", "← {}", "right", 2),
            (HALF, "under_50", "← {}", "right", 2),
            (MUCH, "at_least_80", "{} →", "left", 2),
            (FULL, "at_least_90", "{} →", "left", 12),
        ):
            axes.axvline(at, color=style.FAINT, linestyle=":", linewidth=0.9)
            message = arrow.format(percent(numbers.facts[f"{name}_share"]))
            axes.annotate(
                message,
                (at, 1),
                (0, above),
                xycoords=axes.get_xaxis_transform(),
                textcoords="offset points",
                ha=side,
                fontsize=7,
            )
        style.set_title(axes, f"n = {_jobs(numbers)}", pad=24)
    return figure


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return how many jobs use little and much of the memory, and of how many that is unknown."""
    facts = numbers.facts
    if not facts.get("jobs"):
        return ()
    little, half, much, full = (
        percent(facts[f"{name}_share"])
        for name in ("under_20", "under_50", "at_least_80", "at_least_90")
    )
    message = (
        f"Of {_jobs(numbers)}, {little} use less than 20 % of the GPU memory at their peak, "
        f"{half} less than 50 %, "
        f"{much} at least 80 % and {full} at least 90 %; the median is "
        f"{text(numbers.number('median'), 'fraction')}."
    )
    unknown = (numbers.number("population_jobs") or 0) - (numbers.number("jobs") or 0)
    if not unknown:
        return (message,)
    return message, f"The peak of {count_jobs(unknown)} more of this kind is not known."


def _population(jobs: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, Fact]]:
    """The jobs with a large memory and how they were found."""
    capacity = pl.col("hbm_mib") / KI
    smallest, largest = jobs.select(low=capacity.min(), high=capacity.max()).row(0)
    requests = jobs.with_columns(
        tier=pl.col("hbm_request").str.extract(r"(?i)^(\d+)\s*g").cast(pl.Int64)
    )
    tier = requests.select(pl.col("tier").max()).item()
    if tier is not None and (largest is None or tier >= SAME * largest or smallest < SAME * tier):
        return requests.filter(pl.col("tier") == tier), {
            "population": REQUESTED,
            "request_gb": tier,
        }
    if largest is not None and smallest < SAME * largest:
        large = jobs.filter(capacity >= SAME * largest)
        least = float(large.select(capacity.min()).item())
        return large, {
            "population": LARGEST,
            "capacity_gib_min": least,
            "capacity_gib_max": float(largest),
        }
    return jobs, {"population": ALL}


def _smaller(every: pl.DataFrame, jobs: pl.DataFrame) -> dict[str, Fact]:
    """Next smaller capacity than that of the jobs, and the jobs that would fit; may be empty."""
    least = jobs.select(pl.col("hbm_mib").min()).item()
    if least is None:
        return {}
    smaller = every.filter(pl.col("hbm_mib") < SAME * least).select(pl.col("hbm_mib").max()).item()
    if smaller is None:
        return {}
    peaks_mib = (
        jobs.select(pl.col("hbm_peak_fraction") * pl.col("hbm_mib")).to_series().drop_nulls()
    )
    fits = int((peaks_mib <= FIT * smaller).sum())
    return {"smaller_gib": smaller / KI, **counted("fits_smaller", fits, len(peaks_mib))}


def _jobs(numbers: FigureNumbers) -> str:
    """Jobs with a known peak, as text."""
    jobs = count_jobs(numbers.facts["jobs"])
    if numbers.facts["population"] == REQUESTED:
        return f"{jobs} that requested GPUs with {numbers.facts['request_gb']} GB"
    if numbers.facts["population"] == LARGEST:
        least, greatest = (f"{numbers.number(f'capacity_gib_{end}'):.0f}" for end in ("min", "max"))
        sizes = least if least == greatest else f"{least} to {greatest}"
        return f"{jobs} on the largest GPUs ({sizes} GiB)"
    return jobs
