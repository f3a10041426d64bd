"""Radar plots of jobs, groups of jobs, or workload classes along six axes of GPU activity.

A profile that lacks an axis has a gap there, which is labelled; it is not drawn as 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, pi
from types import MappingProxyType
from typing import Any, cast

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes

from tachograph.annexes.lab.figures import style
from tachograph.annexes.lab.figures.names import drawn_name
from tachograph.annexes.lab.figures.numbers import Fact, FigureNumbers
from tachograph.catalog.errors import UsageError
from tachograph.judge.workload.classes import AXES, AXIS_NAMES, FULL_IO_BYTES_PER_S, RULED

GROUPS: Mapping[str, str | None] = MappingProxyType(
    {"job": "job_key", "user": "user", "account": "account", "partition": "partition", "workload": "workload",
     "all": None}
)  # fmt: skip
NOT_KNOWN = "not known"
PANELS = 48  # plots that one figure holds
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
}


def compute(jobs: pl.DataFrame, *, by: str = "job") -> FigureNumbers:
    """Return profiles of jobs or groups of jobs, most GPU-hours first.

    jobs: rows of job_summaries. profiles: one row per group: its name, jobs, GPU-hours, and along
    each axis the mean of its jobs' means (0..1; null: not measured), every job counting alike. `io`
    is the busier direction of PCIe, 1 from 2.5 GB/s on; `gr` is utilisation where the engine's
    activity is missing; `fp64` the busier of both pipes. Errors: UsageError for groups that there
    are not.
    """
    if by not in GROUPS:
        raise UsageError(f"no groups by {by!r}", do=f"use {', '.join(GROUPS)}")
    axes = jobs.with_columns(**{axis: _axis(axis, jobs.columns) for axis in AXES})
    column = GROUPS[by]
    key = pl.lit("all") if column is None else pl.col(column).fill_null(NOT_KNOWN)
    shown = pl.coalesce("display_id", "job_id").first() if by == "job" else pl.col("group").first()
    profiles = (
        axes.with_columns(group=key)
        .group_by("group", maintain_order=True)
        .agg(
            shown.alias("name"),
            pl.len().cast(pl.Int64).alias("jobs"),
            pl.col("gpu_hours").sum(),
            *(pl.col(axis).mean() for axis in AXES),
        )
        .sort(["gpu_hours", "group"], descending=[True, False], nulls_last=True)
        .drop("group")
    )
    if not profiles.height:
        return FigureNumbers({}, {}, 0, {"profiles": "no jobs"})
    missing = {axis: profiles.get_column(axis).null_count() for axis in AXES}
    facts: dict[str, Fact] = {
        "by": by,
        "groups": profiles.height,
        "panels": min(profiles.height, PANELS),
        **{f"without_{axis}": count for axis, count in missing.items()},
    }
    lacking = {
        axis: f"not measured: {' or '.join(_COUNTERS[axis])}"
        for axis, count in missing.items()
        if count == profiles.height
    }
    return FigureNumbers({"profiles": profiles}, facts, jobs.height, lacking)


def nominal() -> FigureNumbers:
    """Return typical profiles of the twelve classes and the ranges, both from the rules.

    profiles: one row per class. bounds: one row per class and axis of its rule.
    """
    rules = []
    bounds_of_rules = []
    for ruled in RULED:
        rules.append((ruled.name, ruled.bottleneck, ruled.rule, *map(float, ruled.profile)))
        for axis, (low, high) in ruled.bounds.items():
            bounds_of_rules.append((ruled.name, axis, float(low), float(high)))
    profiles = pl.DataFrame(
        rules,
        schema=["name", "bottleneck", "rule", *AXES],
        orient="row",
    )
    bounds = pl.DataFrame(
        bounds_of_rules,
        schema=["name", "axis", "low", "high"],
        orient="row",
    )
    return FigureNumbers({"profiles": profiles, "bounds": bounds}, {"groups": profiles.height}, 0)


def sentences(numbers: FigureNumbers) -> tuple[str, ...]:
    """Return what was left out and not measured; may be empty."""
    facts, text = numbers.facts, []
    groups, panels = numbers.number("groups") or 0, numbers.number("panels")
    if panels is not None and panels < groups:
        text.append(f"The grid shows {panels:.0f} of {groups:.0f}: those with most GPU-hours.")
    for axis in AXES:
        count = facts.get(f"without_{axis}")
        if isinstance(count, int) and count:
            of = "all" if count == groups else f"{count} of {groups:.0f}"
            text.append(f"{AXIS_NAMES[axis]} was not measured in {of}: a gap, not 0.")
    return tuple(text)


def draw(numbers: FigureNumbers) -> Figure:
    """Return one plot per profile, in order, at most PANELS; grey bars: ranges of the rule."""
    rows = numbers.tables["profiles"].head(PANELS).to_dicts()
    columns = min(len(rows), 4 if len(rows) <= 16 else 6)
    lines = ceil(len(rows) / columns)
    small = columns > 4
    width, height = (
        (max(2.6, 2.1 * columns), 2.25 * lines) if not small else (1.62 * columns, 1.85 * lines)
    )
    bounds = numbers.tables.get("bounds")
    with style.style():
        figure, panels = style.new_figure(
            width, height + 0.5, lines, columns, subplot_kw={"projection": "polar"}
        )
        for place, axes in enumerate(panels):
            if place >= len(rows):
                axes.set_axis_off()
                continue
            row = rows[place]
            _dress(
                axes,
                labels=5.0 if small else 6.0,
                missing=[axis for axis in AXES if row[axis] is None],
            )
            if bounds is not None:
                _draw_bounds(axes, bounds.filter(pl.col("name") == row["name"]))
            colour = _OF_BOTTLENECK[row["bottleneck"]] if "bottleneck" in row else style.ACCENT
            _polygon(axes, [row[axis] for axis in AXES], colour)
            axes.set_title(_title(row), fontsize=6.5 if small else 7.5, y=1.32)
        _notes(
            figure, numbers, *(("Grey bars: the range of the rule.",) if bounds is not None else ())
        )
    return figure


def _axis(axis: str, columns: Sequence[str]) -> pl.Expr:
    """One axis of each job, clipped to 0..1: means of MIG slices may exceed 1."""
    means = [f"{counter}_mean" for counter in _COUNTERS[axis] if f"{counter}_mean" in columns]
    if axis == "gr":
        return pl.coalesce("gr_engine_active_mean", "gpu_util_mean").clip(0, 1)
    if axis == "fp64":  # without the tensor pipe's counter the FP64 pipe alone counts
        return pl.when(pl.col("fp64_active_mean").is_not_null()).then(
            pl.max_horizontal(means).clip(0, 1)
        )
    value = pl.max_horizontal(means)
    return (value / FULL_IO_BYTES_PER_S if axis == "io" else value).clip(0, 1)


def _title(row: Mapping[str, Any]) -> str:
    name = drawn_name(row["name"], most=24)
    return f"{name} (n = {row['jobs']:,})" if row.get("jobs", 1) > 1 else name


def _angles() -> list[float]:
    return [2 * pi * place / len(AXES) for place in range(len(AXES))]


def _polygon(axes: Axes, values: Sequence[float | None], colour: str) -> None:
    """Draw a profile: sides between neighbours that are known, and a point for each value."""
    angles = _angles()
    known = [
        (angle, value) for angle, value in zip(angles, values, strict=True) if value is not None
    ]
    for here in range(len(values)):
        behind = (here + 1) % len(values)
        one, other = values[here], values[behind]
        if one is not None and other is not None:
            ends = [angles[here], angles[here] + 2 * pi / len(values)]
            axes.plot(ends, [one, other], color=colour, linewidth=1.4)
    if len(known) == len(values):
        axes.fill(*zip(*known, strict=True), color=colour, alpha=0.18, linewidth=0)
    axes.plot(
        [angle for angle, _ in known],
        [value for _, value in known],
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


def _dress(axes: Axes, *, labels: float, missing: Sequence[str] = ()) -> None:
    """Axes from 0 to 100 %, the first one upwards; those not measured are labelled."""
    polar = cast("PolarAxes", axes)
    polar.set_theta_zero_location("N")
    polar.set_theta_direction(-1)
    names = [
        f"{AXIS_NAMES[axis]}\nno data" if axis in missing else AXIS_NAMES[axis] for axis in AXES
    ]
    axes.set_xticks(_angles(), names, fontsize=labels)
    for name, axis in zip(axes.get_xticklabels(), AXES, strict=True):
        if axis in missing:
            name.set(color=style.FAINT, fontstyle="italic")
    for name, side in zip(
        axes.get_xticklabels(), ("center", "left", "left", "center", "right", "right"), strict=True
    ):
        name.set(horizontalalignment=side)
    axes.tick_params(axis="x", pad=labels / 2 - 3)
    axes.set_ylim(0, 1)
    axes.set_yticks(
        (0.25, 0.5, 0.75, 1.0), ("", "50 %", "", "100 %"), fontsize=max(4.0, labels - 2.5)
    )
    polar.set_rlabel_position(30)
    axes.spines["polar"].set(linewidth=0.5, color=style.GRID)


def _notes(figure: Figure, numbers: FigureNumbers, *more: str) -> None:
    """Write notes below the figure: meaning of the axes, missing data."""
    full = f"I/O: busier direction of PCIe, 100 % from {FULL_IO_BYTES_PER_S / 1e9:g} GB/s on."
    figure.supxlabel("\n".join([full, *more, *sentences(numbers)]), fontsize=6, color=style.FAINT)
