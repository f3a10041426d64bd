"""Figure 5: energy of jobs by GPU-hours, compute-bound and memory-bound.

Boxes of energy in half-decade bins of GPU-hours, and how jobs, GPU-hours and energy divide between
the two types. Source: IPDPS 2026, figure 5.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.numbers import (
    Fact,
    FigureNumbers,
    Study,
    count_jobs,
    percent,
)
from tachograph.annexes.lab.figures.statistics import box_caption, boxes
from tachograph.catalog.units import text

J_PER_KWH = 3.6e6
BINS_PER_DECADE = 2
# Labels of bins that fit side by side; if there are more bins, only decades have one.
MOST_BORDERS = 11
TYPES: Mapping[str, str] = {"compute": "compute-bound", "memory": "memory-bound"}
UNKNOWN = "unknown"
_ORDER = pl.Enum([*TYPES, UNKNOWN])
_PARTS: Mapping[str, str] = {"jobs": "jobs", "gpu_hours": "GPU-hours", "energy_kwh": "energy"}


def compute(study: Study) -> FigureNumbers:
    """Return energy by GPU-hours and job type, and the totals of each type.

    boxes: one row per (type, bin): `statistics.boxes` of energy in kWh; bins of GPU-hours are half
    decades, from the first to the last with a job. totals: one row per type: jobs, gpu_hours,
    energy_kwh, each with its share of that of the jobs whose type is known (null for the unknown),
    and kwh_per_gpu_hour (scaled to the run time). Left out and counted are jobs whose energy is not
    known for all of their GPUs, and those without run time or energy, which no logarithm shows.
    """
    if why := study.why_not(["gpu_hours", "energy_j"]):
        return study.nothing(("boxes", "totals"), why)
    of_known_energy = study.jobs.filter(
        pl.col("gpu_hours").is_not_null(), pl.col("energy_j").is_not_null()
    )
    partly = (pl.col("energy_gpus") < pl.col("gpus")).fill_null(False)
    nothing = (pl.col("gpu_hours") <= 0) | (pl.col("energy_j") <= 0)
    facts: dict[str, Fact] = {
        "energy_unknown_jobs": study.jobs.height - of_known_energy.height,
        "energy_partly_known_jobs": of_known_energy.filter(partly).height,
        "nothing_used_jobs": of_known_energy.filter(~partly, nothing).height,
    }
    jobs = of_known_energy.filter(~partly, ~nothing).select(
        "gpu_hours",
        energy_kwh=pl.col("energy_j") / J_PER_KWH,
        run_kwh=pl.coalesce("energy_j_estimated", "energy_j") / J_PER_KWH,
        type=pl.col(study.bound).fill_null(UNKNOWN).cast(_ORDER),
    )
    facts["jobs"] = jobs.height
    if not jobs.height:
        why = "no job with GPU-hours and the energy of all its GPUs"
        return study.nothing(("boxes", "totals"), why, facts)
    jobs = jobs.with_columns(_bins(jobs.get_column("gpu_hours")))
    totals = _totals(jobs)
    facts |= {"pipe": study.options.pipe, "whiskers": study.options.whiskers}
    facts |= _total_facts(totals)
    missing = {} if facts["typed_jobs"] else {"totals": "no job of a known type"}
    tables = {"boxes": _boxes(jobs, study.options.whiskers), "totals": totals}
    return FigureNumbers(tables, facts, study.jobs.height, missing)


def draw(numbers: FigureNumbers) -> Figure:
    """Return box plots by GPU-hours and shares by type; unknown type only if no type is known."""
    with style.style():
        figure, (plot, bars) = style.new_figure(style.PAGE_IN, 3.0, 1, 2, width_ratios=[2.7, 1])
        _draw_boxes(plot, numbers)
        if "totals" in numbers.missing:
            style.not_drawn(bars, numbers.missing["totals"])
        else:
            _draw_shares(bars, numbers)
        figure.supxlabel(box_caption(numbers.facts["whiskers"]), fontsize=6, color=style.FAINT)
    return figure


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return the energy shares of memory-bound and compute-bound jobs, in total and per
    GPU-hour.
    """
    facts = numbers.facts
    if not facts.get("typed_jobs"):
        return ()
    phrases = []
    for name, named in reversed(list(TYPES.items())):
        if facts[f"{name}_jobs"]:
            phrases.append(
                f"{named} jobs are {percent(facts[f'{name}_jobs_share'])} of the jobs, take "
                f"{percent(facts[f'{name}_gpu_hours_share'])} of the GPU-hours and "
                f"{percent(facts[f'{name}_energy_kwh_share'])} of the energy, "
                f"{_kwh(numbers.number(f'{name}_kwh_per_gpu_hour'))} per GPU-hour"
            )
    energy = _kwh(numbers.number("typed_energy_kwh"))
    return (
        (
            f"Of {count_jobs(facts['typed_jobs'])} of a known type (together {energy}), "
            f"{'; '.join(phrases)}."
        ),
        *_type_with_more(numbers),
    )


def _type_with_more(numbers: FigureNumbers) -> tuple[str, ...]:
    """Sentence on the type with more energy per GPU-hour, if there are both."""
    compute, memory = (numbers.number(f"{name}_kwh_per_gpu_hour") for name in TYPES)
    if compute is None or memory is None:
        return ()
    ratio = numbers.number("compute_to_memory_ratio")
    return (
        (
            f"A GPU-hour of a compute-bound job uses {text(ratio, 'ratio')} times the energy of a "
            "memory-bound one."
        ),
    )


def _bins(hours: pl.Series) -> pl.Series:
    """The half decade of each job, by borders rather than by logarithm, with rounding errors."""
    values = hours.to_numpy()
    first, last = (
        int(np.floor(np.log10(end) * BINS_PER_DECADE)) for end in (values.min(), values.max())
    )
    borders = [_border(number) for number in range(first, last + 2)]
    return pl.Series(
        "bin", np.searchsorted(borders, values, side="right") - 1 + first, dtype=pl.Int32
    )


def _border(number: int) -> float:
    return float(10.0 ** (number / BINS_PER_DECADE))


def _boxes(jobs: pl.DataFrame, whiskers: str) -> pl.DataFrame:
    """Boxes of energy of each type and bin, with the bin's ends in GPU-hours."""
    parts = []
    for (kind,), part in jobs.sort("type").group_by("type", maintain_order=True):
        parts.append(
            boxes(part, "bin", "energy_kwh", whiskers=whiskers).select(
                pl.lit(kind).alias("type"), pl.all()
            )
        )
    table = pl.concat(parts)
    numbers = table.get_column("bin").to_list()
    low = [_border(number) for number in numbers]
    high = [_border(number + 1) for number in numbers]
    return table.with_columns(low_gpu_hours=pl.Series(low), high_gpu_hours=pl.Series(high))


def _totals(jobs: pl.DataFrame) -> pl.DataFrame:
    """One row per type; without jobs the share is 0, the energy per GPU-hour null."""
    sums: dict[str, dict[str, float]] = {}
    over_run: dict[str, float] = {}
    for kind in (*TYPES, UNKNOWN):
        part = jobs.filter(pl.col("type") == kind)
        hours = float(part.get_column("gpu_hours").sum())
        energy = float(part.get_column("energy_kwh").sum())
        over_run[kind] = float(part.get_column("run_kwh").sum())
        sums[kind] = {"jobs": part.height, "gpu_hours": hours, "energy_kwh": energy}
    rows = []
    for kind, parts in sums.items():
        row: dict[str, Fact] = {"type": kind, **parts}
        for name, value in parts.items():
            whole = sum(sums[other][name] for other in TYPES)
            row[f"{name}_share"] = value / whole if whole and kind in TYPES else None
        row["kwh_per_gpu_hour"] = over_run[kind] / parts["gpu_hours"] if parts["jobs"] else None
        rows.append(row)
    names = [*_PARTS, *(f"{name}_share" for name in _PARTS)]
    numbers = dict.fromkeys(names, pl.Float64())
    schema = {"type": pl.String(), **numbers, "jobs": pl.Int64(), "kwh_per_gpu_hour": pl.Float64()}
    return pl.DataFrame(rows, schema=schema)


def _total_facts(totals: pl.DataFrame) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    for row in totals.iter_rows(named=True):
        facts |= {f"{row['type']}_{name}": value for name, value in row.items() if name != "type"}
    typed = totals.filter(pl.col("type") != UNKNOWN)
    for name in _PARTS:
        facts[f"typed_{name}"] = sum(typed.get_column(name).to_list())
    compute, memory = typed.get_column("kwh_per_gpu_hour").to_list()
    facts["compute_to_memory_ratio"] = compute / memory if compute and memory else None
    return facts


def _draw_boxes(axes: Axes, numbers: FigureNumbers) -> None:
    table = numbers.tables["boxes"]
    types = list(TYPES) if numbers.facts["typed_jobs"] else [UNKNOWN]
    table = table.filter(pl.col("type").is_in(types))
    bins = table.get_column("bin").to_list()
    first, last = min(bins), max(bins)
    width = 0.8 / len(types)
    handles = []
    for index, kind in enumerate(types):
        rows = table.filter(pl.col("type") == kind)
        at = rows.get_column("bin").to_numpy() + 0.5 + (index - (len(types) - 1) / 2) * width
        colour, hatch = style.BOUND_COLOURS.get(kind, style.NEITHER), style.HATCHES.get(kind, "")
        if rows.height:
            style.draw_boxes(
                axes, rows, at.tolist(), width=width * 0.85, colour=colour, hatch=hatch
            )
        _count_row(axes, rows, TYPES.get(kind, "jobs"), len(types) - 1 - index)
        label = TYPES.get(kind, "type not known")
        handles.append(
            Patch(facecolor=colour, alpha=0.75, hatch=hatch, edgecolor=style.INK, label=label)
        )
    least, greatest = float(table["low"].to_numpy().min()), float(table["high"].to_numpy().max())
    style.log_axis(axes, "y", least / 2, greatest * 2.5)
    axes.grid(axis="y")
    axes.set_xlim(first, last + 1)
    borders = range(first, last + 2)
    if len(borders) > MOST_BORDERS:
        borders = range(first + first % BINS_PER_DECADE, last + 2, BINS_PER_DECADE)
    axes.set_xticks(borders, [_hours(border) for border in borders])
    axes.set_xlabel("GPU-hours of the job")
    axes.set_ylabel("energy of the job (kWh)")
    axes.legend(handles=handles, loc="upper left")


def _count_row(axes: Axes, rows: pl.DataFrame, label: str, line: int) -> None:
    """Write over each bin the number of jobs of its box."""
    height = 1.02 + 0.06 * line
    transform = axes.get_xaxis_transform()
    axes.text(
        -0.01,
        height,
        f"n {label}",
        transform=axes.transAxes,
        ha="right",
        fontsize=6,
        color=style.FAINT,
    )
    for left_border, jobs in rows.select("bin", "jobs").iter_rows():
        axes.text(
            left_border + 0.5,
            height,
            style.short_count(jobs),
            transform=transform,
            ha="center",
            fontsize=6,
        )


def _draw_shares(axes: Axes, numbers: FigureNumbers) -> None:
    totals = {row["type"]: row for row in numbers.tables["totals"].iter_rows(named=True)}
    starts = dict.fromkeys(_PARTS, 0.0)
    for kind, colour in style.BOUND_COLOURS.items():
        hatch = style.HATCHES[kind]
        for bar, (name, start) in enumerate(starts.items()):
            part = totals[kind][f"{name}_share"]
            style.draw_share(axes, bar, start, part, colour=colour, hatch=hatch, height=0.55)
            if part > 0.2:
                style.write_share(axes, bar, start + part / 2, f"{part * 100:.0f} %")
            starts[name] += part
    axes.set_yticks(range(len(_PARTS)), list(_PARTS.values()))
    axes.invert_yaxis()
    style.percent_axis(axes, "x")
    axes.set_xticks([0, 0.5, 1])
    axes.set_xlabel("share, of jobs of a known type")
    style.set_title(axes, f"n = {count_jobs(numbers.facts['typed_jobs'])}")


def _hours(edge: int) -> str:
    """A border of the bins as its label: half decades are written as 3, 30 and so on.

    >>> [_hours(edge) for edge in (-1, 0, 1, 3, 9, 10, 11)]
    ['0.3', '1', '3', '30', '30k', '100k', '300k']
    """
    value = _border(edge)
    return style.log_label(value) if value < 1e4 else f"{style.log_label(value / 1e3)}k"


def _kwh(value: float | None) -> str:
    if value is None:
        return "unknown energy"
    return f"{value:,.0f} kWh" if value >= 100 else f"{value:.3g} kWh"
