"""Figure 14: radar plots of workload classes along six axes of GPU activity; drawn if named.

A profile that lacks an axis has a gap there, which is labelled; it is not drawn as 0.
Source: KempnerPulse, "Workload Classification & Health States".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, pi
from types import MappingProxyType
from typing import cast

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.numbers import Fact, FigureNumbers, Study
from tachograph.judge.workload.classes import (
    AXES,
    AXIS_NAMES,
    FULL_IO_BYTES_PER_S,
    RULED,
    WORKLOAD_CLASSES,
    bottleneck,
)

COLUMNS = 4  # panels beside each other
# counters of the axes; several: the largest
_COUNTERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "sm": ("sm_active",),
        "tensor": ("tensor_active",),
        "dram": ("dram_active",),
        "gr": ("gr_engine_active",),
        "io": ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"),
        "fp64": ("fp64_active", "tensor_dfma_active"),
    }
)
# Okabe and Ito
_OF_BOTTLENECK = {
    "idle": "#767676",
    "compute": "#0072b2",
    "io": "#56b4e9",
    "memory": "#d55e00",
    "mixed": "#e69f00",
    "unknown": "#767676",
}


def compute(study: Study) -> FigureNumbers:
    """Return the profile of the jobs of each workload class, and the ranges of its rule.

    profiles: one row per class with jobs: their number, GPU-hours, and along each axis the mean of
    their means (0..1; null: not measured), every job counting alike. `io` is the busier direction
    of PCIe, 1 from 2.5 GB/s on; `gr` is utilisation where the engine's activity is missing; `fp64`
    the busier of both pipes. bounds: one row per class and axis of its published rule.
    """
    jobs = study.jobs.filter(pl.col("workload").is_in(WORKLOAD_CLASSES))
    if jobs.is_empty():
        return study.nothing(("profiles",), study.why_not(["workload"]) or "no workload class")
    profiles = (
        jobs.with_columns(_axis(axis).alias(axis) for axis in AXES)
        .group_by(pl.col("workload").cast(pl.Enum(WORKLOAD_CLASSES)))
        .agg(pl.len().cast(pl.Int64).alias("jobs"), pl.col("gpu_hours").sum(), pl.col(AXES).mean())
        .sort("workload")
    )
    missing = {axis: profiles.get_column(axis).null_count() for axis in AXES}
    facts: dict[str, Fact] = {
        "jobs": jobs.height,
        "classes": profiles.height,
        **{f"without_{axis}": count for axis, count in missing.items()},
    }
    lacking = {
        axis: f"not measured: {' or '.join(_COUNTERS[axis])}"
        for axis, count in missing.items()
        if count == profiles.height
    }
    tables = {"profiles": profiles, "bounds": _bounds()}
    return FigureNumbers(tables, facts, study.jobs.height, lacking)


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return what was not measured; may be empty."""
    classes = numbers.facts.get("classes")
    message = []
    for axis in AXES:
        count = numbers.facts.get(f"without_{axis}")
        if count:
            classes_without = "all" if count == classes else f"{count} of {classes}"
            message.append(
                f"{AXIS_NAMES[axis]} was not measured in {classes_without}: a gap, not 0."
            )
    return tuple(message)


def draw(numbers: FigureNumbers) -> Figure:
    """Return one plot per class; grey bars: ranges of its rule."""
    profiles, bounds = numbers.tables["profiles"], numbers.tables["bounds"]
    columns = min(profiles.height, COLUMNS)
    lines = ceil(profiles.height / columns)
    with style.style():
        figure, panels = style.new_figure(
            max(2.6, 2.1 * columns),
            2.25 * lines + 0.5,
            lines,
            columns,
            subplot_kw={"projection": "polar"},
        )
        for axes in panels[profiles.height :]:
            axes.set_axis_off()
        for axes, row in zip(panels, profiles.iter_rows(named=True), strict=False):
            workload = row["workload"]
            values = [row[axis] for axis in AXES]
            _dress(axes, values)
            _draw_bounds(axes, bounds.filter(workload=workload))
            _polygon(axes, values, _OF_BOTTLENECK[bottleneck(workload)])
            axes.set_title(f"{workload} (n = {row['jobs']:,})", fontsize=7.5, y=1.32)
        full = f"I/O: busier direction of PCIe, 100 % from {FULL_IO_BYTES_PER_S / 1e9:g} GB/s on."
        notes = [full, "Grey bars: the range of the rule.", *sentences(numbers)]
        figure.supxlabel("\n".join(notes), fontsize=6, color=style.FAINT)
    return figure


def _bounds() -> pl.DataFrame:
    """The ranges of the rules: (workload, axis, low, high)."""
    rows = [
        (ruled.name, axis, float(low), float(high))
        for ruled in RULED
        for axis, (low, high) in ruled.bounds.items()
    ]
    return pl.DataFrame(rows, schema=["workload", "axis", "low", "high"], orient="row")


def _axis(axis: str) -> pl.Expr:
    """One axis of each job, clipped to 0..1: means of MIG slices may exceed 1."""
    if axis == "gr":
        return pl.coalesce("gr_engine_active_mean", "gpu_util_mean").clip(0, 1)
    value = pl.max_horizontal(f"{counter}_mean" for counter in _COUNTERS[axis])
    if axis == "fp64":  # without the pipe's own counter that of the tensor pipe does not count
        return pl.when(pl.col("fp64_active_mean").is_not_null()).then(value.clip(0, 1))
    return (value / FULL_IO_BYTES_PER_S if axis == "io" else value).clip(0, 1)


def _angles() -> list[float]:
    return [2 * pi * index / len(AXES) for index in range(len(AXES))]


def _polygon(axes: Axes, values: Sequence[float | None], colour: str) -> None:
    """Draw a profile: sides between neighbours that are known, and a point for each value."""
    angles = _angles()
    points = [
        (angle, value) for angle, value in zip(angles, values, strict=True) if value is not None
    ]
    for here, value in enumerate(values):
        following = values[(here + 1) % len(values)]
        if value is not None and following is not None:
            ends = [angles[here], angles[here] + 2 * pi / len(values)]
            axes.plot(ends, [value, following], color=colour, linewidth=1.4)
    if len(points) == len(values):
        axes.fill(*zip(*points, strict=True), color=colour, alpha=0.18, linewidth=0)
    axes.plot(
        [angle for angle, _ in points],
        [value for _, value in points],
        color=colour,
        linestyle="none",
        marker="o",
        markersize=2.5,
        markeredgecolor="white",
        markeredgewidth=0.3,
    )


def _draw_bounds(axes: Axes, bounds: pl.DataFrame) -> None:
    """The ranges of a rule, as bars along the axes."""
    for axis, low, high in bounds.select("axis", "low", "high").iter_rows():
        angle = _angles()[AXES.index(axis)]
        axes.plot(
            [angle, angle],
            [low, high],
            color="#b0b0b0",
            linewidth=3.2,
            solid_capstyle="butt",
            zorder=1,
        )


def _dress(axes: Axes, values: Sequence[float | None]) -> None:
    """Axes from 0 to 100 %, the first one upwards; those not measured are labelled."""
    polar = cast("PolarAxes", axes)
    polar.set_theta_zero_location("N")
    polar.set_theta_direction(-1)
    names = [
        f"{AXIS_NAMES[axis]}\nno data" if value is None else AXIS_NAMES[axis]
        for axis, value in zip(AXES, values, strict=True)
    ]
    axes.set_xticks(_angles(), names, fontsize=6)
    sides = ("center", "left", "left", "center", "right", "right")
    for label, side, value in zip(axes.get_xticklabels(), sides, values, strict=True):
        label.set(horizontalalignment=side)
        if value is None:
            label.set(color=style.FAINT, fontstyle="italic")
    axes.tick_params(axis="x", pad=0)
    axes.set_ylim(0, 1)
    axes.set_yticks((0.25, 0.5, 0.75, 1.0), ("", "50 %", "", "100 %"), fontsize=4)
    polar.set_rlabel_position(30)
    axes.spines["polar"].set(linewidth=0.5, color=style.GRID)
