"""Plots of the page of one job, as inline SVG; None if there is nothing to draw.

Shapes: `levels` is (GPUs, bins), series are (bins,), one bin lasts `bin_s` seconds; missing is NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator, PercentFormatter
from matplotlib.transforms import offset_copy

from tachograph.catalog.units import capitalized, text
from tachograph.judge.workload.classes import Bottleneck, bottleneck
from tachograph.report.drawing.inline_svg import (
    ACCENT,
    COMPUTE,
    FAINT,
    GRID,
    INK,
    MEMORY,
    PAPER,
    WARNING,
    new_figure,
    new_panels,
    to_svg,
)
from tachograph.report.drawing.names import drawn_name
from tachograph.report.recording import Mark
from tachograph.report.svg import extent, label_of, lanes

Floats = npt.NDArray[np.float64]
MAX_ROW_LABELS = 16  # more GPUs than this are named by nodes or not at all
MAX_BARS = 24
_LANE_IN = 0.21  # height of a lane of marks above a plot
_SEEN = 0.005  # activity from which on a line is drawn
_STEPS_S = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)
# colours of workload classes by bottleneck; hatches distinguish the shares in grey
_LIMITED_BY: Mapping[Bottleneck, str] = {
    "idle": GRID, "compute": COMPUTE, "memory": MEMORY, "io": ACCENT, "mixed": FAINT, "unknown": GRID,
}  # fmt: skip
_HATCHES = ("", "///", "...", "\\\\\\", "xx", "++", "---", "oo")
# counters of the activity plot: label, colour, line width
_LINES: Mapping[str, tuple[str, str, str]] = {
    "gpu_util": ("utilisation", INK, "-"),
    "gr_engine_active": ("graphics engine", INK, "--"),
    "sm_active": ("SMs", ACCENT, "-"),
    "tensor_active": ("tensor cores", COMPUTE, "-"),
    "fp64_active": ("FP64", COMPUTE, "--"),
    "fp32_active": ("FP32", COMPUTE, ":"),
    "fp16_active": ("FP16", COMPUTE, "-."),
    "dram_active": ("memory traffic", MEMORY, "-"),
}


def _show_marks(
    axes: Axes, marks: Sequence[Mark], length_s: float, *, ground: bool = True, labels: bool = True
) -> None:
    """Mark intervals: dashed edges, a pale hatched `ground`, a labelled bar above the plot.

    Edges are dark on light, so that they are seen on any colour and in grey; no bar lies over
    another.
    """
    for place, lane in enumerate(lanes(marks, length_s)):
        for mark in lane:
            span = (mark.begin_s, max(mark.end_s, mark.begin_s + length_s / 400))
            if ground:
                axes.axvspan(*span, facecolor=WARNING, alpha=0.12, linewidth=0)
                axes.axvspan(
                    *span, facecolor="none", edgecolor=FAINT, hatch="////", alpha=0.25, linewidth=0
                )
            for edge in span:
                axes.axvline(edge, color=PAPER, linewidth=2.4)
                axes.axvline(edge, color=WARNING, linewidth=1.2, linestyle=(0, (4, 2)))
            if labels:
                _label_mark(axes, mark, span, place, length_s)


def _label_mark(
    axes: Axes, mark: Mark, span: tuple[float, float], place: int, length_s: float
) -> None:
    figure = axes.get_figure(root=True)
    above = offset_copy(
        axes.get_xaxis_transform(), fig=figure, y=_LANE_IN * place + 0.05, units="inches"
    )
    axes.add_line(
        Line2D(
            span,
            (1, 1),
            transform=above,
            color=WARNING,
            linewidth=3.5,
            solid_capstyle="butt",
            clip_on=False,
        )
    )
    left = mark.begin_s <= extent(mark, length_s)[0]
    axes.annotate(
        label_of(mark), (span[0 if left else 1], 1),
        xycoords=above, xytext=(0, 2.5), textcoords="offset points",
        fontsize=8, color=INK, ha="left" if left else "right", va="bottom", annotation_clip=False,
    )  # fmt: skip


def _lanes_in(marks: Sequence[Mark], length_s: float) -> float:
    """Height that the marks above a plot need."""
    return _LANE_IN * len(lanes(marks, length_s))


@dataclass(frozen=True, slots=True)
class OverTime:
    """Data drawn over the time of a job; missing is NaN.

    Shapes: `levels` (GPUs, bins), the others (bins,).

    elapsed_s: run time (NaN: unknown). levels: `activity` of each GPU, named by `labels`. means:
    {counter: mean over the GPUs}. spatial, temporal: imbalance. memory_mib: most used of a GPU,
    `capacity_mib` its capacity (NaN: unknown). power: mean, lowest, highest (W).
    """

    bin_s: float
    elapsed_s: float
    activity: str
    levels: Floats
    labels: Sequence[str]
    means: Mapping[str, Floats]
    spatial: Floats
    temporal: Floats
    memory_mib: Floats
    capacity_mib: float
    power: tuple[Floats, Floats, Floats]

    @property
    def length_s(self) -> float:
        """Length of the axis, s: to the job's end if that is in the last bin."""
        whole = max(self.levels.shape[1], self.power[0].size) * self.bin_s
        return self.elapsed_s if whole - self.bin_s < self.elapsed_s < whole else whole


@dataclass(frozen=True, slots=True)
class _Panel:
    title: str
    height_in: float
    draw: Callable[[Axes], None]
    ground: bool = True


def over_time(shown: OverTime, *, marks: Sequence[Mark] = (), name: str = "time") -> str | None:
    """Return panels over one time axis: use per GPU, activity, imbalance, memory, power.

    name: of the plot in its page, which other plots do not have.
    """
    panels = list(_panels(shown))
    if not panels:
        return None
    length_s = shown.length_s
    above = _lanes_in(marks, length_s)
    figure, every = new_panels([panel.height_in for panel in panels], above_in=above)
    for panel, axes in zip(panels, every, strict=True):
        panel.draw(axes)
    _time_axis(every[-1], length_s)  # which all share
    for place, (panel, axes) in enumerate(zip(panels, every, strict=True)):
        axes.set_title(
            panel.title, loc="left", fontsize=8, color=FAINT, pad=2 if place else 3 + 72 * above
        )
        axes.tick_params(labelbottom=axes is every[-1])
        _show_marks(axes, marks, length_s, ground=panel.ground, labels=not place)
    return to_svg(figure, name=name, label="What the GPUs did over time", plot=every[-1])


def _panels(shown: OverTime) -> Iterator[_Panel]:
    """Return the panels that have data, from top to bottom."""
    gpus, what = shown.levels.shape[0], capitalized(shown.activity)
    if shown.levels.size and not np.isnan(shown.levels).all():
        if gpus == 1:
            yield _Panel(what, 0.9, lambda axes: _area(axes, shown.levels[0], shown.bin_s))
        else:
            height = min(4.5, max(0.7, 0.2 * gpus))
            title = f"{what} of each GPU: yellow is 100 %, dark is 0 %, blank was not measured"
            yield _Panel(
                title,
                height,
                lambda axes: _strips(axes, shown.levels, shown.labels, shown.bin_s),
                ground=False,
            )
    drawn = {
        name: shown.means[name]
        for name in _LINES
        if name in shown.means and np.nanmax(shown.means[name], initial=0.0) >= _SEEN
    }
    if drawn:
        yield _Panel(
            "Activity by unit, mean over the GPUs",
            1.5,
            lambda axes: _activity(axes, drawn, shown.bin_s),
        )
    imbalances = {"across GPUs": shown.spatial, "over time": shown.temporal}
    known = {
        name: values
        for name, values in imbalances.items()
        if values.size and not np.isnan(values).all()
    }
    if known:
        title = f"Imbalance (0: all alike): {', '.join(known)}"
        yield _Panel(title, 0.8, lambda axes: _imbalance(axes, known, shown.bin_s))
    if shown.memory_mib.size and not np.isnan(shown.memory_mib).all():
        title = "Memory used, of the GPU with most, GiB"
        yield _Panel(
            title,
            0.8,
            lambda axes: _memory_used(axes, shown.memory_mib, shown.capacity_mib, shown.bin_s),
        )
    mean, low, high = shown.power
    if mean.size and not np.isnan(mean).all():
        yield _Panel(
            "Power per GPU: mean, lowest to highest",
            0.9,
            lambda axes: _power(axes, mean, low, high, shown.bin_s),
        )


def _middles(values: Floats, bin_s: float) -> Floats:
    return (np.arange(values.size, dtype=np.float64) + 0.5) * bin_s


def _percent_axis(axes: Axes, step: float) -> None:
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.yaxis.set_major_locator(MultipleLocator(step))
    axes.grid(axis="y", color=GRID, linewidth=0.6)


def _area(axes: Axes, level: Floats, bin_s: float) -> None:
    axes.stairs(
        level, np.arange(level.size + 1) * bin_s, fill=True, color=ACCENT, alpha=0.75, linewidth=0
    )
    _percent_axis(axes, 0.5)


def _strips(axes: Axes, levels: Floats, labels: Sequence[str], bin_s: float) -> None:
    gpus, bins = levels.shape
    axes.imshow(
        np.ma.masked_invalid(levels),
        aspect="auto",
        interpolation="nearest",
        cmap=mpl.colormaps["viridis"].with_extremes(bad=(0, 0, 0, 0)),
        vmin=0,
        vmax=1,
        extent=(0, bins * bin_s, gpus - 0.5, -0.5),
    )
    if gpus <= MAX_ROW_LABELS:
        axes.set_yticks(range(gpus), [*map(drawn_name, labels)])
        axes.set_yticks(np.arange(1, gpus) - 0.5, minor=True)
        axes.grid(which="minor", axis="y", color=PAPER, linewidth=1.2)
    else:
        axes.set_ylabel(f"{gpus} GPUs")
        axes.set_yticks([])
    axes.tick_params(axis="y", which="both", length=0)
    axes.spines[:].set_visible(False)


def _activity(axes: Axes, drawn: Mapping[str, Floats], bin_s: float) -> None:
    for name, values in drawn.items():
        label, colour, style = _LINES[name]
        axes.plot(_middles(values, bin_s), values, style, color=colour, linewidth=1.2, label=label)
    _percent_axis(axes, 0.25)
    axes.legend(
        loc="upper left", bbox_to_anchor=(1.0, 1.05), frameon=False, fontsize=7.5, borderaxespad=0.3
    )


def _imbalance(axes: Axes, known: Mapping[str, Floats], bin_s: float) -> None:
    for (name, values), (colour, style) in zip(
        known.items(), ((ACCENT, "-"), (MEMORY, "--")), strict=False
    ):
        axes.plot(_middles(values, bin_s), values, style, color=colour, linewidth=1.2, label=name)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_locator(MultipleLocator(0.5))
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.legend(
        loc="upper left", bbox_to_anchor=(1.0, 1.05), frameon=False, fontsize=7.5, borderaxespad=0.3
    )


def _memory_used(axes: Axes, used_mib: Floats, capacity_mib: float, bin_s: float) -> None:
    used, capacity = used_mib / 1024, capacity_mib / 1024
    axes.stairs(
        used, np.arange(used.size + 1) * bin_s, fill=True, color=ACCENT, alpha=0.45, linewidth=0
    )
    if capacity == capacity:
        axes.axhline(capacity, color=WARNING, linewidth=1.0, linestyle="--")
    axes.set_ylim(0, float(np.nanmax([np.nanmax(used), capacity])) * 1.06 or 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.grid(axis="y", color=GRID, linewidth=0.6)


def _power(axes: Axes, mean: Floats, low: Floats, high: Floats, bin_s: float) -> None:
    middle = _middles(mean, bin_s)
    if not np.allclose(low, high, equal_nan=True):
        axes.fill_between(middle, low, high, color=ACCENT, alpha=0.25, linewidth=0)
    axes.plot(middle, mean, color=ACCENT, linewidth=1.3)
    axes.set_ylim(0, float(np.nanmax(high)) * 1.08 or 1.0)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value, "W")))
    axes.grid(axis="y", color=GRID, linewidth=0.6)


@dataclass(frozen=True, slots=True)
class ComparedLine:
    """One job of a comparison: label, and the mean over its GPUs in bins of `bin_s` seconds."""

    label: str
    bin_s: float
    values: Floats


_COMPARED = ((ACCENT, "-"), (MEMORY, "--"), (COMPUTE, "-."), (INK, ":"))


def compared(lines: Sequence[ComparedLine], counter: str) -> str | None:
    """Return the lines of up to four jobs over one time axis, which begins when each started."""
    known = [line for line in lines if line.values.size and not np.isnan(line.values).all()]
    if not known:
        return None
    figure, axes = new_figure(2.4)
    for line, (colour, style) in zip(known, _COMPARED, strict=False):
        label = drawn_name(line.label)
        axes.plot(
            _middles(line.values, line.bin_s),
            line.values,
            style,
            color=colour,
            linewidth=1.4,
            label=label,
        )
    _percent_axis(axes, 0.25)
    _time_axis(axes, max(line.values.size * line.bin_s for line in known))
    figure.legend(loc="outside upper left", ncols=len(known), frameon=False, fontsize=8)
    return to_svg(
        figure, name="compared", label=f"{counter} of each job over time, mean over its GPUs"
    )


@dataclass(frozen=True, slots=True)
class StepBar:
    """A step on the timeline: id, start and end (s after job start), mean activity 0..1 or None."""

    label: str
    begin_s: float
    end_s: float
    level: float | None


def steps(bars: Sequence[StepBar], length_s: float, *, marks: Sequence[Mark] = ()) -> str | None:
    """Return steps over the time of the job, coloured as the strips of utilisation.

    Each has a row up to MAX_ROW_LABELS; more share rows where one ends before the next starts.
    """
    if not bars or length_s <= 0:
        return None
    rows = _rows_of_bars(bars)
    figure, axes = new_figure(min(5.5, 0.62 + 0.2 * len(rows)) + _lanes_in(marks, length_s))
    colours = mpl.colormaps["viridis"]
    for place, row in enumerate(rows):
        axes.barh(
            [place] * len(row), [max(bar.end_s - bar.begin_s, length_s / 400) for bar in row],
            left=[bar.begin_s for bar in row], height=0.7, linewidth=0.4, edgecolor=PAPER,
            color=[GRID if bar.level is None else colours(bar.level) for bar in row],
        )  # fmt: skip
    if all(len(row) == 1 for row in rows):
        axes.set_yticks(range(len(rows)), [drawn_name(row[0].label) for row in rows])
    else:
        axes.set_yticks([])
        axes.set_ylabel(f"{len(bars)} steps")
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    _time_axis(axes, length_s)
    _show_marks(axes, marks, length_s)
    return to_svg(figure, name="steps", label="Steps over time, by their mean utilisation")


def _rows_of_bars(bars: Sequence[StepBar]) -> list[list[StepBar]]:
    ordered = sorted(bars, key=lambda bar: (bar.begin_s, -bar.end_s))
    if len(ordered) <= MAX_ROW_LABELS:
        return [[bar] for bar in ordered]
    rows: list[list[StepBar]] = []
    for bar in ordered:
        row = next((row for row in rows if row[-1].end_s <= bar.begin_s), None)
        if row is None:
            rows.append([bar])
        else:
            row.append(bar)
    return rows


def memory(peaks_mib: Floats, capacities_mib: Floats, labels: Sequence[str]) -> str | None:
    """Return the peak memory of each GPU and, if known, its capacity."""
    if peaks_mib.size == 0 or np.isnan(peaks_mib).all():
        return None
    peaks, capacities = peaks_mib / 1024, capacities_mib / 1024
    if peaks.size > MAX_BARS:
        return _memory_curve(peaks, capacities)
    figure, axes = new_figure(0.65 + 0.2 * peaks.size)
    rows = np.arange(peaks.size)
    axes.barh(rows, np.nan_to_num(capacities), height=0.62, color=FAINT, alpha=0.25)
    axes.barh(rows, np.nan_to_num(peaks), height=0.62, color=ACCENT)
    axes.set_yticks(rows, [*map(drawn_name, labels)])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("GiB; bar: peak, pale: capacity")
    axes.set_xlim(
        0, float(np.nanmax([np.nanmax(peaks), np.nanmax(np.nan_to_num(capacities))])) * 1.01 or 1.0
    )
    axes.spines["left"].set_visible(False)
    return to_svg(
        figure, name="memory", label="Peak of memory used of each GPU against its capacity"
    )


def _memory_curve(peaks: Floats, capacities: Floats) -> str:
    figure, axes = new_figure(1.9)
    order = np.argsort(-np.nan_to_num(peaks))
    place = np.arange(1, peaks.size + 1)
    axes.fill_between(
        place, np.nan_to_num(peaks[order]), color=ACCENT, alpha=0.6, step="mid", linewidth=0
    )
    if not np.isnan(capacities).all():
        axes.plot(
            place,
            capacities[order],
            color=WARNING,
            linewidth=1.0,
            linestyle="--",
            drawstyle="steps-mid",
        )
        axes.annotate(
            "capacity",
            (1.0, float(np.nanmax(capacities))),
            xycoords=("axes fraction", "data"),
            xytext=(-2, -4),
            textcoords="offset points",
            ha="right",
            va="top",
        )
    axes.set_xlim(1, peaks.size)
    axes.set_ylim(
        0, float(np.nanmax([np.nanmax(peaks), np.nanmax(np.nan_to_num(capacities))])) * 1.05 or 1.0
    )
    axes.set_ylabel("peak, GiB")
    axes.set_xlabel("GPUs, most used first")
    return to_svg(figure, name="memory", label="Peak of memory used of all GPUs, most used first")


def roofline(pipes: Mapping[str, tuple[float, float]]) -> str | None:
    """Return the shares of labelled samples per pipe: compute-bound and memory-bound."""
    if not pipes:
        return None
    figure, axes = new_figure(0.6 + 0.28 * len(pipes))
    rows = np.arange(len(pipes))
    compute = np.array([share for share, _ in pipes.values()])
    traffic = np.array([share for _, share in pipes.values()])
    axes.barh(rows, compute, height=0.62, color=COMPUTE, label="compute-bound")
    axes.barh(rows, traffic, left=compute, height=0.62, color=MEMORY, label="memory-bound")
    axes.set_yticks(rows, list(pipes))
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.spines["left"].set_visible(False)
    figure.legend(loc="outside upper left", ncols=2, frameon=False, fontsize=8)
    return to_svg(figure, name="roofline", label="Compute-bound and memory-bound samples by pipe")


def work(shares: Mapping[str, float]) -> str | None:
    """Return one stacked bar of GPU time by workload class, without shares under 0.1 %."""
    drawn = {name: share for name, share in shares.items() if share >= 0.001}
    if not drawn:
        return None
    rows = -(-len(drawn) // 4)
    figure, axes = new_figure(0.62 + 0.19 * rows)
    left = 0.0
    for place, (name, share) in enumerate(drawn.items()):
        colour, hatch = _LIMITED_BY[bottleneck(name)], _HATCHES[place % len(_HATCHES)]
        axes.barh(
            [0], [share], left=left, height=0.7, facecolor=colour, hatch=hatch, edgecolor=PAPER, linewidth=1.2,
            label=f"{name} {text(share, 'fraction')}",
        )  # fmt: skip
        left += share
    axes.set_xlim(0, max(1.0, left))
    axes.set_yticks([])
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.spines["left"].set_visible(False)
    figure.legend(loc="outside upper left", ncols=min(4, len(drawn)), frameon=False, fontsize=8)
    return to_svg(figure, name="work", label="Shares of GPU time by workload class")


def _time_axis(axes: Axes, length_s: float) -> None:
    step = next((step for step in _STEPS_S if length_s / step <= 8), _STEPS_S[-1])
    axes.set_xlim(0, length_s)
    axes.set_xticks(np.arange(0, length_s + 1, step))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda seconds, _: "start" if seconds == 0 else text(seconds, "s"))
    )
