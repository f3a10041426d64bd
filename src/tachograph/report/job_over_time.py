"""Data of a job page over time: use, activity, imbalance, memory, power."""

from __future__ import annotations

from typing import Any

import numpy as np

from tachograph.catalog.arrays import Floats
from tachograph.catalog.counters import COUNTERS_BY_NAME
from tachograph.catalog.units import capitalized
from tachograph.judge.activity import ACTIVITY_NAMES, number
from tachograph.report.drawing.job_page import OverTime
from tachograph.report.job import JobReport
from tachograph.report.recording import finding_marks
from tachograph.report.timeline import Series

WINDOW = 12  # bins
BUSY = 0.01  # of GPUs all less active than this no imbalance is drawn
HOVERED_GPUS = 16  # up to here each GPU has its value


def over_time(report: JobReport) -> OverTime:
    """Return the curves of the page; imbalance across GPUs per bin, over time per WINDOW."""
    timeline = report.timeline
    labels: list[str] = []
    levels_by_gpu: list[Floats] = []
    for gpu in report.gpus:
        series = timeline.per_gpu.get((gpu.row["node"], gpu.row["gpu"], gpu.row["mig"]))
        if series is not None:
            labels.append(gpu.label)
            levels_by_gpu.append(floats(series))
    levels = np.vstack(levels_by_gpu) if levels_by_gpu else np.empty((0, 0))
    means = {name: floats(series) for name, series in timeline.means.items()}
    capacity, elapsed_s = number(report.summary, "hbm_mib"), number(report.summary, "elapsed_s")
    return OverTime(
        timeline.bin_s,
        np.nan if elapsed_s is None else elapsed_s,
        ACTIVITY_NAMES.get(timeline.counter or "", "activity"),
        levels,
        labels,
        means,
        _imbalance(levels, axis=0) if len(labels) > 1 else np.empty(0),
        _imbalance_over_time(levels),
        means.get("hbm_used_mib", np.empty(0)),
        np.nan if capacity is None else capacity,
        (
            means.get("power_w", np.empty(0)),
            floats(timeline.power_low),
            floats(timeline.power_high),
        ),
    )


def _imbalance(levels: Floats, *, axis: int) -> Floats:
    """1 - mean / max; NaN if nothing was measured or all were idle."""
    known = ~np.isnan(levels)
    count = known.sum(axis=axis)
    total, most = (
        np.nansum(levels, axis=axis),
        np.where(known, levels, -1.0).max(axis=axis, initial=-1.0),
    )
    busy = (count > 0) & (most >= BUSY)
    return np.where(busy, 1 - total / np.where(busy, count * most, 1.0), np.nan)


def _imbalance_over_time(levels: Floats) -> Floats:
    """Largest GPU imbalance per bin, over WINDOW up to that bin."""
    if levels.shape[1] < WINDOW:
        return np.empty(0)
    windows = np.lib.stride_tricks.sliding_window_view(levels, WINDOW, axis=1)
    each = _imbalance(windows, axis=2)
    most = np.where(np.isnan(each), -1.0, each).max(axis=0, initial=-1.0)
    return np.concatenate([np.full(WINDOW - 1, np.nan), np.where(most < 0, np.nan, most)])


def hover_json(report: JobReport) -> dict[str, Any]:
    """Return the values of the plot over time for pointer and keyboard.

    `series`: {label: [unit, values, the panel they are shown in]}.
    """
    shown = over_time(report)
    mean, low, high = shown.power
    series: dict[str, tuple[str, Floats, str]] = {}
    if len(shown.labels) <= HOVERED_GPUS:
        panel = f"{capitalized(shown.activity)} of each GPU"
        for label, level in zip(shown.labels, shown.levels, strict=True):
            series[label] = ("fraction", level, panel)
    for name, values in shown.means.items():
        if COUNTERS_BY_NAME[name].unit == "fraction":
            series[name] = ("fraction", values, "Activity by unit, mean over the GPUs")
    series["imbalance across GPUs"] = ("ratio", shown.spatial, "Imbalance")
    series["imbalance over time"] = ("ratio", shown.temporal, "Imbalance")
    series["memory"] = ("MiB", shown.memory_mib, "Memory used, of the GPU with most")
    for name, values in (("power", mean), ("lowest", low), ("highest", high)):
        series[name] = ("W", values, "Power per GPU")
    measured: dict[str, list[Any]] = {}
    for label, (unit, values, panel) in series.items():
        if not np.isnan(values).all():
            measured[label] = [unit, _rounded(values), panel]
    start = report.summary.get("start")
    return {
        "bin_s": shown.bin_s,
        "length_s": shown.length_s,
        "start": report.local(start),
        "start_s": None if start is None else start.timestamp(),
        "marks": [[mark.label, mark.begin_s, mark.end_s] for mark in finding_marks(report)],
        "series": measured,
    }


def _rounded(values: Floats) -> list[float | None]:
    """Return values with four digits; None for NaN."""
    return [None if value != value else round(value, 4) for value in values.tolist()]


def floats(series: Series) -> Floats:
    """Return a series as an array, NaN where not measured."""
    return np.array([np.nan if value is None else value for value in series], dtype=np.float64)
