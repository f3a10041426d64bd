"""Plots of what jobs used: GPU-hours by day and use, the share lost, use of a node's GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import cast

import polars as pl
from markupsafe import Markup

from tachograph.catalog.tables import WASTE
from tachograph.catalog.units import gpu_hours_text, plural, text
from tachograph.judge.ledger import WASTE_BUCKETS, WASTE_LABELS
from tachograph.judge.node_history import NodeGpuRow, NodeReport, sick_rows
from tachograph.judge.usage import DAY_PARTS, UsageReport
from tachograph.report.charts import (
    Axis,
    Bars,
    Box,
    Chart,
    Curve,
    Tick,
    amount_axis,
    fraction_axis,
    rows_axis,
)
from tachograph.report.node import gpu_label, xid_text
from tachograph.report.recording import Colour
from tachograph.report.svg import svg

# (interval of polars, its name, the most days that are drawn with one bar for each)
_PERIODS = (("1d", "day", 92), ("1w", "week", 92 * 7), ("1mo", "month", None))
_MOST_TICKS = 8
_WEEK = 7  # days; of data of more the trend is drawn
# (part, colour, opacity) of the bars from the bottom up
_PARTS: Sequence[tuple[str, Colour, float]] = (
    ("in_use", "accent", 1.0),
    ("in_use_unknown", "accent", 0.45),
    ("never_used", "problem", 1.0),
    ("hung", "ink", 0.8),
    ("cold_start", "hint", 1.0),
    ("idle", "problem", 0.5),
    ("imbalance", "memory", 0.75),
    ("unmeasured", "faint", 0.75),
    ("left_out", "faint", 0.25),
)
USE_LABELS = {**WASTE_LABELS, "left_out": "not in the ledger"}


def usage_headline(usage: UsageReport) -> str:
    """Return how many jobs held what, how much of it was lost, and of which of them that is known.

    The jobs that still run or could not be judged have hours, but no part in what was lost.
    """
    held = gpu_hours_text(usage.gpu_hours)
    ledger = usage.waste
    if not ledger.jobs or not ledger.gpu_hours:
        return f"{plural(usage.jobs, 'job')} held {held}; how much of it was lost is not known."
    lost = text(ledger.lost / ledger.gpu_hours, "fraction")
    back = gpu_hours_text(ledger.recoverable)
    return (
        f"{plural(usage.jobs, 'job')} held {held}. Of the {plural(ledger.jobs, 'job')} that ended "
        f"and were measured, {lost} of {gpu_hours_text(ledger.gpu_hours)} were lost; "
        f"{back} are recoverable."
    )


def use_by_period(days: pl.DataFrame, parts: Sequence[str] = DAY_PARTS) -> tuple[str, pl.DataFrame]:
    """Return the name of the period of a bar, and a row per period without a gap.

    Columns: `day` (the first of the period), and `parts`. Hours of unknown days are left out.
    """
    known = days.drop_nulls("day")
    if known.is_empty():
        return "day", known
    first, last = known["day"][0], known["day"][-1]
    length = (last - first).days + 1
    interval, name = next(
        (interval, name) for interval, name, most in _PERIODS if most is None or length <= most
    )
    begin = pl.col("day").dt.truncate(interval)
    sums = known.group_by(begin, maintain_order=True).agg(pl.col(parts).sum())
    ends = sums["day"]
    every = pl.date_range(ends[0], ends[-1], interval, eager=True).alias("day").to_frame()
    return name, every.join(sums, on="day", how="left", maintain_order="left").fill_null(0.0)


def use_charts(usage: UsageReport) -> list[Chart]:
    """Return GPU-hours per period, stacked by use; of more than a week the share lost, too."""
    name, periods = use_by_period(usage.days)
    if periods.is_empty():
        return []
    count = periods.height
    spans = [(place + 0.1, place + 0.9) for place in range(count)]
    top = [0.0] * count
    layers: list[Bars] = []
    for part, colour, opacity in _PARTS:
        hours = periods.get_column(part).to_list()
        if not any(hours):
            continue
        bottom = top
        top = [low + height for low, height in zip(bottom, hours, strict=True)]
        layers.append(Bars(spans, bottom, top, colour, USE_LABELS[part], opacity))
    axis = Axis(0.0, float(count), period_ticks(periods.get_column("day").to_list(), name))
    hours_axis = amount_axis(max(top), "")
    charts = [Chart(f"GPU-hours per {name}", 170, axis, hours_axis, tuple(layers))]
    if count > 1 and _days_between(periods) >= _WEEK:
        charts.append(_trend(periods, axis))
    return charts


def _days_between(periods: pl.DataFrame) -> int:
    first, last = periods["day"][0], periods["day"][-1]
    return int((last - first).days)


def _trend(periods: pl.DataFrame, axis: Axis) -> Chart:
    """Return the lost share of the hours in the ledger; null in a period without any."""
    whole = pl.sum_horizontal(WASTE_BUCKETS)
    share = pl.when(whole > 0).then(pl.sum_horizontal(WASTE) / whole)
    shares = periods.select(share).to_series().to_list()
    middles = [place + 0.5 for place in range(periods.height)]
    line = Curve(middles, tuple(shares), "problem", "lost")
    return Chart("Share of the hours of ended jobs", 60, axis, fraction_axis(), (line,))


def period_ticks(days: Sequence[date], name: str) -> tuple[Tick, ...]:
    """Return ticks at the middle of bars: the first day of each, its year where that changes."""
    step = -(-len(days) // _MOST_TICKS)
    ticks: list[Tick] = []
    year = None
    for place in range(0, len(days), step):
        day = days[place]
        label = f"{day:%b}" if name == "month" else f"{day.day} {day:%b}"
        ticks.append(Tick(place + 0.5, label, "" if day.year == year else str(day.year)))
        year = day.year
    return tuple(ticks)


def use_plot(usage: UsageReport) -> Markup | None:
    """Return the SVG plot; None without hours."""
    return svg(use_charts(usage), label="GPU-hours of jobs over time, by what the GPUs did")


def node_charts(report: NodeReport, *, most_days: int) -> list[Chart]:
    """Return a strip per GPU: the share of each of the last days in which it was in use.

    Weeks in which jobs began that met errors, faults or heat of a GPU are underlined.
    """
    sick = sick_rows(report.weeks)
    all_days: list[date] = [*report.days["day"].to_list(), *sick["week"].to_list()]
    if not all_days:
        return []
    last = max(all_days)
    first = max(min(all_days), last - timedelta(days=most_days - 1))
    count = (last - first).days + 1
    gpus = cast("list[NodeGpuRow]", report.gpus.to_dicts())
    rows = {(row["gpu"], row["mig"]): place for place, row in enumerate(gpus)}
    boxes = [
        _use_of_day(row, (row["day"] - first).days, rows[row["gpu"], row["mig"]])
        for row in cast("Iterator[NodeGpuRow]", report.days.iter_rows(named=True))
        if row["day"] >= first and row["gpu_util_mean"] is not None
    ]
    for row in cast("Iterator[NodeGpuRow]", sick.iter_rows(named=True)):
        begin = (row["week"] - first).days
        if begin + _WEEK > 0:
            boxes.append(_sick_week(row, begin, count, rows[row["gpu"], row["mig"]]))
    days = [first + timedelta(days=place) for place in range(count)]
    axis = Axis(0.0, float(count), period_ticks(days, "day"))
    labels = rows_axis([gpu_label(row) for row in gpus])
    return [Chart("Use of each GPU by day", 20.0 * len(rows), axis, labels, tuple(boxes))]


def _use_of_day(row: NodeGpuRow, place: int, gpu: int) -> Box:
    share = min(1.0, (row["gpu_util_mean"] or 0.0) * row["hours"] / 24)
    label = (
        f"{gpu_label(row)}, {row['day']}: {text(share, 'fraction')} of the day in use: "
        f"{text(row['gpu_util_mean'], 'fraction')} in {text(row['hours'], 'h')} of jobs"
    )
    return Box(
        (place, place + 0.95), (gpu - 0.42, gpu + 0.28), "accent", label, share, legend=False
    )


def _sick_week(row: NodeGpuRow, begin: int, count: int, gpu: int) -> Box:
    health = row["health"] or "not measured"
    label = (
        f"{gpu_label(row)}, jobs that began in the week of {row['week']}: health {health}; "
        f"XID errors {xid_text(row)}"
    )
    ends = max(0.0, begin), min(count, begin + _WEEK - 0.05)
    return Box(ends, (gpu + 0.3, gpu + 0.46), "problem", label, legend=False)


def node_plot(report: NodeReport, *, most_days: int) -> Markup | None:
    """Return the SVG plot; None without days."""
    return svg(
        node_charts(report, most_days=most_days),
        label="Share of each day in which each GPU was in use; weeks with problems underlined",
    )
