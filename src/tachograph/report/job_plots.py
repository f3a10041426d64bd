"""Plots of the page of a job as charts; a plot without data has none."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

import msgspec

from tachograph.catalog.tables import PIPES
from tachograph.catalog.units import text
from tachograph.judge.activity import PIPE_NAMES, number
from tachograph.judge.steps import StepUse
from tachograph.judge.workload.classes import Bottleneck, bottleneck
from tachograph.report.charts import (
    Axis,
    Box,
    Chart,
    Curve,
    Dots,
    FilledArea,
    Heat,
    Layer,
    Tick,
    amount_axis,
    fraction_axis,
    log_axis,
    rows_axis,
    time_axis,
)
from tachograph.report.job import JobReport
from tachograph.report.recording import Colour, GpuStrips, Panel, Recording, Values
from tachograph.report.steps import SHOWN_STEPS

MAX_ROW_LABELS = 16  # more GPUs than this are named by their nodes
MAX_BARS = 24
_LEAST_ACTIVE = 0.005  # bins in which a pipe did less are no points of its roofline
_LEAST_SHARE = 0.001  # of GPU time, of workload classes
_LIMITED_BY: Mapping[Bottleneck, Colour] = {
    "idle": "line", "compute": "compute", "memory": "memory", "io": "accent", "mixed": "faint",
    "unknown": "line",
}  # fmt: skip
_SHADES = (1.0, 0.6, 0.35)  # of classes with the same bottleneck
_PIPE_COLOURS: Mapping[str, Colour] = {
    "tensor": "compute", "fp64": "fp64", "fp32": "fp32", "fp16": "fp16",
}  # fmt: skip
_COMPARED: Sequence[tuple[Colour, bool]] = (
    ("accent", False), ("memory", True), ("compute", False), ("ink", True),
)  # fmt: skip


def recording_charts(shown: Recording) -> list[Chart]:
    """Return the strips of the GPUs and the panels, over one time axis."""
    axis = time_axis(shown.length_s, shown.start_s, shown.zone)
    charts = [] if shown.strips is None else [_strips(shown, shown.strips, axis)]
    return [*charts, *(_panel(panel, shown, axis) for panel in shown.panels)]


def _strips(shown: Recording, strips: GpuStrips, axis: Axis) -> Chart:
    count = len(strips.rows)
    whose = " of each GPU" if count > 1 else ""
    title = f"{strips.label.capitalize() if strips.label.islower() else strips.label}{whose}: "
    title += "yellow is 100 %, dark is 0 %, blank was not measured"
    rows = Heat(strips.rows, len(strips.rows[0]) * shown.bin_s)
    height = min(300.0, max(24.0, 15.0 * count))
    return Chart(title, height, axis, _gpu_axis(shown.gpus), (rows,))


def _gpu_axis(labels: Sequence[str]) -> Axis:
    """Return an axis with the names of few GPUs, of the nodes of more, or their number."""
    if len(labels) <= MAX_ROW_LABELS:
        return rows_axis(labels)
    nodes: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        nodes.setdefault(label.rpartition("GPU ")[0].strip(), []).append(place)
    middles = [Tick(sum(rows) / len(rows), node) for node, rows in nodes.items()]
    if len(nodes) > MAX_ROW_LABELS or "" in nodes:
        middles = [Tick(len(labels) / 2 - 0.5, f"{len(labels)} GPUs")]
    return msgspec.structs.replace(rows_axis(labels), ticks=tuple(middles))


def _middles(count: int, bin_s: float, length_s: float) -> list[float]:
    return [min(length_s, (place + 0.5) * bin_s) for place in range(count)]


def _panel(panel: Panel, shown: Recording, axis: Axis) -> Chart:
    xs = _middles(len(panel.lines[0].values), shown.bin_s, shown.length_s)
    layers: list[Layer] = []
    if panel.band is not None:
        layers.append(FilledArea(xs, panel.band.low, panel.band.high, panel.lines[0].colour))
    named = len(panel.lines) > 1
    for line in panel.lines:
        label = line.label if named else ""
        layers.append(Curve(xs, line.values, line.colour, label, line.dashed))
    if panel.limit is not None:
        value = panel.limit.value
        ends = (0.0, shown.length_s)
        layers.append(Curve(ends, (value, value), "problem", panel.limit.label, dashed=True))
    tall = len(panel.lines) > 2
    if panel.unit == "fraction":
        return Chart(
            panel.title, 100 if tall else 55, axis, fraction_axis(step=0.25 if tall else 0.5),
            tuple(layers),
        )  # fmt: skip
    if panel.unit == "ratio":
        ticks = tuple(Tick(value, f"{value:g}") for value in (0.0, 0.5, 1.0))
        return Chart(panel.title, 55, axis, Axis(0.0, 1.0, ticks), tuple(layers))
    most = max(_highest(panel), 0.0)
    return Chart(panel.title, 62, axis, amount_axis(most, panel.unit), tuple(layers))


def _highest(panel: Panel) -> float:
    series = [line.values for line in panel.lines]
    if panel.band is not None:
        series.append(panel.band.high)
    if panel.limit is not None:
        series.append((panel.limit.value,))
    return max(value for values in series for value in values if value is not None)


def step_charts(report: JobReport) -> list[Chart]:
    """Return steps over the time of the job, coloured as the strips of utilisation.

    Each has a row up to MAX_ROW_LABELS; more share rows where one ends before the next starts.
    """
    length_s, start = number(report.summary, "elapsed_s"), report.summary.get("start")
    steps = [
        step
        for step in report.steps.largest(SHOWN_STEPS)
        if step.begin_s is not None and step.end_s is not None
    ]
    if not steps or not length_s:
        return []
    rows = _rows_of_steps(steps)
    boxes = tuple(
        _step_box(step, place, length_s) for place, row in enumerate(rows) for step in row
    )
    axis = rows_axis([row[0].row["step"] for row in rows])
    if any(len(row) > 1 for row in rows):
        middle = Tick(len(rows) / 2 - 0.5, f"{len(steps)} steps")
        axis = msgspec.structs.replace(axis, ticks=(middle,))
    clock = time_axis(length_s, None if start is None else start.timestamp(), report.zone_name)
    return [Chart("", min(360.0, 15.0 * len(rows) + 4), clock, axis, boxes)]


def _step_box(step: StepUse, place: int, length_s: float) -> Box:
    """Return a step; a batch step is grey: it covers the gaps between the others."""
    begin_s, end_s = step.begin_s or 0.0, step.end_s or 0.0
    level = step.activity_mean if step.by_srun else None
    known = "not measured" if level is None else text(level, "fraction")
    return Box(
        (max(0.0, begin_s), min(length_s, end_s)),
        (place - 0.38, place + 0.38),
        "line",
        f"{step.label}: {known}",
        level,
        legend=False,
    )


def _rows_of_steps(steps: Sequence[StepUse]) -> list[list[StepUse]]:
    ordered = sorted(steps, key=lambda step: (step.begin_s or 0.0, -(step.end_s or 0.0)))
    if len(ordered) <= MAX_ROW_LABELS:
        return [[step] for step in ordered]
    rows: list[list[StepUse]] = []
    for step in ordered:
        begin_s = step.begin_s or 0.0
        row = next((row for row in rows if (row[-1].end_s or 0.0) <= begin_s), None)
        if row is None:
            rows.append([step])
        else:
            row.append(step)
    return rows


def work_charts(shares: Mapping[str, float]) -> list[Chart]:
    """Return one bar of GPU time by workload class, without shares under 0.1 %."""
    boxes: list[Box] = []
    left = 0.0
    by_colour: dict[Colour, int] = {}
    for name, share in shares.items():
        if share < _LEAST_SHARE:
            continue
        colour = _LIMITED_BY[bottleneck(name)]
        place = by_colour.get(colour, 0)
        by_colour[colour] = place + 1
        shade = _SHADES[place % len(_SHADES)]
        label = f"{name} {text(share, 'fraction')}"
        boxes.append(Box((left, left + share), (0.0, 1.0), colour, label, opacity=shade))
        left += share
    if not boxes:
        return []
    # Shares of classes that overlap may add up to a little more than all.
    axis = msgspec.structs.replace(fraction_axis(step=0.25), high=max(1.0, left))
    return [Chart("", 20, axis, Axis(0.0, 1.0), tuple(boxes))]


def memory_charts(report: JobReport) -> list[Chart]:
    """Return the peak memory of each GPU and, if known, its capacity."""
    peaks = [number(gpu.row, "hbm_used_mib_max") for gpu in report.gpus]
    capacities = [number(gpu.row, "hbm_mib") for gpu in report.gpus]
    most = max((value for value in (*peaks, *capacities) if value is not None), default=0.0)
    if all(peak is None for peak in peaks) or not most:
        return []
    if len(peaks) > MAX_BARS:
        return [_memory_curve(peaks, capacities, most)]
    boxes: list[Box] = []
    bars: Sequence[tuple[Colour, float, str, Sequence[float | None]]] = (
        ("faint", 0.3, "capacity", capacities),
        ("memory", 1.0, "peak", peaks),
    )
    for colour, opacity, label, values in bars:
        for place, value in enumerate(values):
            if value:
                span = (place - 0.32, place + 0.32)
                boxes.append(Box((0.0, value), span, colour, label, opacity=opacity))
    rows = rows_axis([gpu.label for gpu in report.gpus])
    axis = amount_axis(most, "MiB", ticks=5)
    return [Chart("Memory used", 15.0 * len(peaks) + 2, axis, rows, tuple(boxes))]


def _memory_curve(
    peaks: Sequence[float | None], capacities: Sequence[float | None], most: float
) -> Chart:
    """Return the peaks of many GPUs, most used first; those not measured are left out."""
    pairs = [pair for pair in zip(peaks, capacities, strict=True) if pair[0] is not None]
    ordered = sorted(pairs, key=lambda pair: -(pair[0] or 0.0))
    xs = [float(place) for place in range(1, len(ordered) + 1)]
    used = tuple(peak for peak, _ in ordered)
    layers = (
        FilledArea(xs, (0.0,) * len(xs), used, "memory"),
        Curve(xs, used, "memory", "peak"),
        Curve(xs, tuple(capacity for _, capacity in ordered), "problem", "capacity", dashed=True),
    )
    count = len(ordered)
    ticks = (Tick(1.0, "1"), Tick(float(count), f"{count:,}"))
    axis = Axis(1.0, max(2.0, count), ticks, "GPUs, most used first")
    return Chart("Memory used", 110, axis, amount_axis(most, "MiB"), layers)


class RooflinePoints(msgspec.Struct, frozen=True):
    """Bins in which a pipe was active.

    `intensity` is the pipe's activity over that of DRAM: 1 at the ridge point, infinite without
    traffic. `active` is a share of the pipe's peak, `of_roof` of what the roof allows there: the
    larger of both activities.
    """

    pipe: str
    intensity: tuple[float, ...]
    active: tuple[float, ...]
    of_roof: tuple[float, ...]


def roofline_points(report: JobReport) -> list[RooflinePoints]:
    """Return the job's bins on the roofline of each pipe that was used."""
    means = report.timeline.means
    traffic = means.get("dram_active", ())
    by_pipe: list[RooflinePoints] = []
    for pipe, counter in PIPES.items():
        pairs = [
            (active, dram)
            for active, dram in zip(means.get(counter, ()), traffic, strict=False)
            if active is not None and dram is not None and active >= _LEAST_ACTIVE
        ]
        if pairs:
            by_pipe.append(
                RooflinePoints(
                    pipe,
                    tuple(active / dram if dram > 0 else math.inf for active, dram in pairs),
                    tuple(active for active, _ in pairs),
                    tuple(max(pair) for pair in pairs),
                )
            )
    return by_pipe


def roofline_charts(report: JobReport) -> list[Chart]:
    """Return the roofline, which all pipes share as activities are shares of their peaks."""
    by_pipe = roofline_points(report)
    if not by_pipe:
        return []
    finite = [x for points in by_pipe for x in points.intensity if math.isfinite(x)] or [1.0]
    low = 10.0 ** max(-4, min(-1, math.floor(math.log10(min(finite)))))
    high = 10.0 ** min(4, max(1, math.ceil(math.log10(max(finite)))))
    least = min(active for points in by_pipe for active in points.active)
    bottom = 10.0 ** min(-2, math.floor(math.log10(least)))
    begin = max(low, bottom)
    layers: list[Layer] = [
        Curve((begin, 1.0, high), (begin, 1.0, 1.0), "ink", "roof"),
        Curve((1.0, 1.0), (bottom, 1.0), "faint", "ridge point", dashed=True),
    ]
    for points in by_pipe:
        beyond = [min(high, x) for x in points.intensity]
        label = PIPE_NAMES[points.pipe]
        layers.append(
            Dots(beyond, points.active, _PIPE_COLOURS[points.pipe], label, names=(label,))
        )
    axis = log_axis(low, high, title="arithmetic intensity, in multiples of the ridge point")
    peak = log_axis(bottom, 1.0, percent=True)
    return [Chart("Share of the pipe's peak", 170, axis, peak, tuple(layers))]


def roofline_sentence(report: JobReport) -> str:
    """Return what the points of the roofline mean; "" without points.

    A point is bound by what it is near; being left or right of the ridge alone bounds nothing.
    """
    by_pipe = roofline_points(report)
    if not by_pipe:
        return ""
    shares = ", ".join(
        f"{PIPE_NAMES[points.pipe]} {text(median(points.of_roof), 'fraction')}"
        for points in by_pipe
    )
    bin_text = text(report.timeline.bin_s, "s")
    return (
        f"Each point is {bin_text} of the job, mean over its GPUs. Left of the ridge point DRAM is "
        "nearer to its peak than the pipe, right of it the pipe is; only points near the roof are "
        f"bound by it. Median of the roof reached: {shares}."
    )


class ComparedLine(msgspec.Struct, frozen=True):
    """One job of a comparison: label, and the mean over its GPUs in bins of `bin_s` seconds."""

    label: str
    bin_s: float
    values: Values


def compared_charts(lines: Sequence[ComparedLine]) -> list[Chart]:
    """Return the lines of up to four jobs over one time axis, which begins when each started."""
    known = [line for line in lines if any(value is not None for value in line.values)]
    if not known:
        return []
    length_s = max(len(line.values) * line.bin_s for line in known)
    curves = tuple(
        Curve(
            _middles(len(line.values), line.bin_s, length_s),
            line.values,
            colour,
            line.label,
            dashed,
        )
        for line, (colour, dashed) in zip(known, _COMPARED, strict=False)
    )
    return [Chart("", 150, time_axis(length_s), fraction_axis(step=0.25), curves)]
