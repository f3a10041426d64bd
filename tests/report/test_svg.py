"""Plots of reports, read back from their SVG point by point and compared with the numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from msgspec.structs import replace
from synthetic_job import NOW, judged

from jobframes import START, gpus, minutes, summary
from svg_reader import Point, ReadChart, ReadPlot, read_drawings, read_plot, read_plots, tick_value
from tachograph.api.open_lake import open_lake
from tachograph.judge.steps import job_steps
from tachograph.report.charts import (
    Axis,
    Chart,
    Curve,
    Dots,
    Tick,
    amount_axis,
    fraction_axis,
    log_axis,
    time_axis,
)
from tachograph.report.job import JobReport, build_job_report
from tachograph.report.job_page import JobPlots
from tachograph.report.job_plots import (
    ComparedLine,
    compared_charts,
    recording_charts,
    roofline_sentence,
    work_charts,
)
from tachograph.report.recording import (
    Mark,
    Panel,
    Recording,
    Values,
    finding_marks,
    recording,
)
from tachograph.report.svg import heat_colour, svg

PIXEL = 0.02  # to which coordinates are written, and what two of them may differ


def generated(count: int, length: int, **more: object) -> JobReport:
    """Return a job of `count` GPUs on one node for `length` minutes, with gaps in its data."""
    levels = [
        [None if minute % 17 == gpu % 5 else (gpu * 31 + minute * 7) % 101 / 100
         for minute in range(length)]
        for gpu in range(count)
    ]  # fmt: skip
    waves = [math.sin(minute / 9) for minute in range(length)]
    table = minutes(
        *levels,
        sm_active=[0.3] * length,
        tensor_active=[0.17 + 0.05 * wave for wave in waves],
        fp64_active=[0.02 + 0.01 * wave for wave in waves],
        dram_active=[0.3 + 0.25 * wave for wave in waves],
        power_w=[200 + 100 * wave for wave in waves],
        hbm_used_mib=[30720.0 + minute % 200 for minute in range(length)],
    )
    table = table.with_columns(power_w=pl.col("power_w") + pl.col("gpu"))
    row = summary(
        elapsed_s=length * 60.0 - 20, gpus=count, gpu_util_mean=0.5, hbm_mib=40960.0, **more
    )
    held = [
        {"hbm_mib": 40960.0, "hbm_used_mib_max": 20000.0 + (gpu * 7919) % 20000}
        for gpu in range(count)
    ]
    verdicts = judged(length // 3, length // 2)
    return build_job_report(row, gpus(*held), table, verdicts, NOW, zone_name="Europe/Berlin")


def flat(lines: Sequence[Sequence[Point]]) -> list[Point]:
    return [point for line in lines for point in line]


def same_line(
    plot: ReadPlot, chart: ReadChart, points: list[Point], values: Values, shown: Recording
) -> None:
    """Compare the points of a line with one value per bin: null has no point."""
    expected = [(place, value) for place, value in enumerate(values) if value is not None]
    assert len(points) == len(expected)
    x, y = plot.x(), chart.y()
    close_x, close_y = (abs(axis(PIXEL) - axis(0.0)) for axis in (x, y))
    for (at_x, at_y), (place, value) in zip(points, expected, strict=True):
        middle = min(shown.length_s, (place + 0.5) * shown.bin_s)
        assert x(at_x) == pytest.approx(middle, abs=close_x)
        assert y(at_y) == pytest.approx(value, abs=close_y)


def same_heat(plot: ReadPlot, chart: ReadChart, shown: Recording) -> None:
    assert shown.strips is not None
    rows = shown.strips.rows
    assert chart.heat is not None
    assert chart.heat.size == (len(rows[0]), len(rows))
    assert chart.heat.info["transparency"] in (0, b"\0")
    cells = chart.heat.tobytes()
    for place, row in enumerate(rows):
        for column, value in enumerate(row):
            cell = cells[place * len(row) + column]
            assert (cell == 0) == (value is None)
            if value is not None:
                assert (cell - 1) / 254 == pytest.approx(value, abs=0.51 / 254)
    palette = chart.heat.getpalette()
    assert palette is not None
    assert palette[3:6] + palette[765:768] == [68, 1, 84, 253, 231, 37]
    left, clipped, wide = chart.heat_box
    x = plot.x()
    close = abs(x(PIXEL) - x(0.0))
    assert x(left) == pytest.approx(0.0, abs=close)
    assert x(left + clipped) == pytest.approx(shown.length_s, abs=close)
    assert x(left + wide) == pytest.approx(len(rows[0]) * shown.bin_s, abs=close)


def same_panel(plot: ReadPlot, chart: ReadChart, panel: Panel, shown: Recording) -> None:
    limits = 0 if panel.limit is None else 1
    assert len(chart.curves) == len(panel.lines) + limits
    for (label, lines), line in zip(chart.curves, panel.lines, strict=False):
        assert label == (line.label if len(panel.lines) > 1 else "")
        same_line(plot, chart, flat(lines), line.values, shown)
    if panel.limit is not None:
        label, lines = chart.curves[-1]
        assert label == panel.limit.label
        for _, at_y in flat(lines):
            close = abs(chart.y()(PIXEL) - chart.y()(0.0))
            assert chart.y()(at_y) == pytest.approx(panel.limit.value, abs=close)
    if panel.band is not None:
        highs: list[Point] = []
        lows: list[Point] = []
        for outline in chart.fills[0]:
            half = len(outline) // 2
            highs += outline[:half]
            lows += reversed(outline[half:])
        same_line(plot, chart, highs, panel.band.high, shown)
        same_line(plot, chart, lows, panel.band.low, shown)


def same_recording(drawn: str, shown: Recording) -> None:
    """Compare a plot over time with a recording: strips, panels, marks, the wall clock."""
    for plot in read_plots(drawn):
        same_drawing(plot, shown)


def same_drawing(plot: ReadPlot, shown: Recording) -> None:
    charts = list(plot.charts)
    if shown.strips is not None:
        same_heat(plot, charts.pop(0), shown)
    assert len(charts) == len(shown.panels)
    for chart, panel in zip(charts, shown.panels, strict=True):
        same_panel(plot, chart, panel, shown)
    marks = [mark for mark in shown.marks if mark.kind not in ("step", "wait")]
    assert sorted(plot.marks) == sorted(mark.label for mark in marks)
    x = plot.x()
    close = abs(x(PIXEL) - x(0.0))
    for chart in plot.charts:
        spans = sorted((x(begin), x(end)) for begin, end in chart.shades)
        for span, mark in zip(spans, sorted(marks, key=lambda mark: mark.begin_s), strict=True):
            assert span[0] == pytest.approx(mark.begin_s, abs=close)
            assert span[1] == pytest.approx(mark.end_s, abs=close + abs(x(1.5) - x(0.0)))
    assert shown.start_s is not None
    zone = ZoneInfo(shown.zone)
    for (_, label), clock in zip(plot.x_ticks, plot.clocks, strict=True):
        local = datetime.fromtimestamp(shown.start_s + tick_value(label), zone)
        assert f"{local:%H:%M}" in clock


def drawn_over_time(shown: Recording) -> str:
    marks = [mark for mark in shown.marks if mark.kind not in ("step", "wait")]
    return str(svg(recording_charts(shown), label="over time", marks=marks))


@pytest.mark.parametrize(("count", "length"), [(1, 10), (4, 150), (16, 30), (512, 12), (2, 2000)])
def test_over_time_shows_every_value(count: int, length: int) -> None:
    report = generated(count, length)
    shown = recording(report)
    assert len(shown.panels) == (4 if count == 1 else 5)
    same_recording(str(JobPlots(report).time), shown)


def test_over_time_of_jobs_of_the_demo(demo: Path) -> None:
    opened = open_lake(str(demo / "lake"))
    jobs = opened.jobs().filter(pl.col("gpu_util_mean").is_not_null())
    jobs = jobs.sort("gpus", "elapsed_s", descending=True)
    for job in (*jobs.head(2)["job_id"], "1000360", *jobs.tail(2)["job_id"]):
        report = opened.job(job).report
        shown = replace(recording(report), marks=finding_marks(report))
        same_recording(str(JobPlots(report).time), shown)


def changed(values: Values, by: float) -> Values:
    place = next(place for place, value in enumerate(values) if value is not None)
    value = values[place] or 0.0
    return (*values[:place], value + by, *values[place + 1 :])


def variations(shown: Recording) -> list[Recording]:
    """Return recordings that differ in one value, one gap or one mark."""
    assert shown.strips is not None
    first = shown.strips.rows[0]
    different = [
        replace(shown, strips=replace(shown.strips, rows=(row, *shown.strips.rows[1:])))
        for row in (changed(first, 0.03), (*first[:-1], None if first[-1] is not None else 0.5))
    ]
    for place, panel in enumerate(shown.panels):
        by = 0.02 * max(value for value in panel.lines[0].values if value is not None)
        for number, line in enumerate(panel.lines):
            for values in (changed(line.values, max(by, 0.01)), (*line.values[:-1], None)):
                lines = list(panel.lines)
                lines[number] = replace(line, values=values)
                panels = list(shown.panels)
                panels[place] = replace(panel, lines=tuple(lines))
                if values != line.values:
                    different.append(replace(shown, panels=tuple(panels)))
    mark = shown.marks[0]
    different.append(
        replace(shown, marks=(replace(mark, end_s=mark.end_s + 120), *shown.marks[1:]))
    )
    different.append(replace(shown, start_s=(shown.start_s or 0.0) + 3600))
    different.append(replace(shown, length_s=shown.length_s - 60))
    return different


def test_a_changed_value_is_seen() -> None:
    shown = recording(generated(3, 60))
    drawn = drawn_over_time(shown)
    same_recording(drawn, shown)
    for different in variations(shown):
        with pytest.raises(AssertionError):
            same_recording(drawn, different)


@pytest.mark.parametrize("count", [4, 24, 25, 512])
def test_memory_shows_each_peak(count: int) -> None:
    report = generated(count, 5)
    plot = read_plot(str(JobPlots(report).memory))
    (chart,) = plot.charts
    peaks = [gpu.row["hbm_used_mib_max"] or 0.0 for gpu in report.gpus]
    if count > 24:
        close = abs(chart.y()(PIXEL) - chart.y()(0.0))
        (_, lines), (_, capacity) = chart.curves
        ordered = sorted(peaks, reverse=True)
        assert [chart.y()(y) for _, y in flat(lines)] == pytest.approx(ordered, abs=close)
        assert [chart.y()(y) for _, y in flat(capacity)] == pytest.approx(
            [40960.0] * count, abs=close
        )
        return
    x = plot.x()
    close = abs(x(PIXEL) - x(0.0))
    for name, expected in (("peak", peaks), ("capacity", [40960.0] * count)):
        boxes = [box for box in chart.boxes if box[0] == name]
        assert [x(right) for _, _, _, right, _ in boxes] == pytest.approx(expected, abs=close)
    labels = [label for _, label in chart.y_labels]
    assert labels == [gpu.label for gpu in report.gpus]


def test_work_is_one_bar() -> None:
    shares = {"tensor compute": 0.7, "memory-bound": 0.2995, "unknown": 0.0005}
    plot = read_plot(str(svg(work_charts(shares), label="work")))
    (chart,) = plot.charts
    x = plot.x()
    ends = [(label, x(left), x(right)) for label, _, left, right, _ in chart.boxes]
    assert [label for label, _, _ in ends] == ["tensor compute 70 %", "memory-bound 30 %"]
    assert [end for _, *span in ends for end in span] == pytest.approx(
        [0.0, 0.7, 0.7, 0.9995], abs=0.0005
    )


def test_roofline_has_a_point_per_bin_and_says_what_bounds() -> None:
    report = generated(2, 50)
    plot = read_plot(str(JobPlots(report).roofline))
    (chart,) = plot.charts
    x, y = plot.x(log=True), chart.y(log=True)
    means = report.timeline.means
    by_label = {label: points for label, points, _ in chart.dots}
    assert set(by_label) == {"tensor cores", "FP64 units"}
    for label, counter in (("tensor cores", "tensor_active"), ("FP64 units", "fp64_active")):
        pairs = zip(means[counter], means["dram_active"], strict=True)
        expected = [(a / d, a) for a, d in pairs if a is not None and d and a >= 0.005]
        read = [(x(at_x), y(at_y)) for at_x, at_y in by_label[label]]
        assert len(read) == len(expected)
        for one, other in zip(read, expected, strict=True):
            assert one == pytest.approx(other, rel=0.003)
        assert all(active <= min(1.0, intensity) * 1.003 for intensity, active in read)
    (_, roof), (_, ridge) = chart.curves
    assert (x(flat(roof)[1][0]), y(flat(roof)[1][1])) == pytest.approx((1.0, 1.0), rel=0.003)
    assert x(flat(ridge)[0][0]) == pytest.approx(1.0, rel=0.003)
    assert "only points near the roof are bound by it" in roofline_sentence(report)
    assert "compute-bound 100" not in roofline_sentence(report)


def test_roofline_without_traffic_is_at_the_edge() -> None:
    table = minutes([0.5] * 3, tensor_active=[0.17] * 3, dram_active=[0.0] * 3)
    row = summary(gpus=1, elapsed_s=180.0, gpu_util_mean=0.5)
    report = build_job_report(row, gpus({}), table, [], NOW)
    plot = read_plot(str(JobPlots(report).roofline))
    assert plot.x(log=True)(plot.charts[0].dots[0][1][0][0]) == pytest.approx(10.0, rel=0.003)
    assert roofline_sentence(report).endswith("tensor cores 17 %.")


def stepped(count: int) -> JobReport:
    """Return a job with `count` steps of 10 minutes, every other one idle; 5 minutes between."""
    length = 15 * count
    level = [0.8 if minute // 15 % 2 == 0 else 0.0 for minute in range(length)]
    row = summary(elapsed_s=length * 60.0, gpus=1, gpu_util_mean=0.5)
    rows = pl.DataFrame(
        [
            {"step": str(step), "name": "<b>&", "gpus": 1, "elapsed_s": 600.0, "coverage": 1.0,
             "gpu_util_mean": level[15 * step], "attribution": "time",
             "start": START + timedelta(minutes=15 * step),
             "end": START + timedelta(minutes=15 * step + 10)}
            for step in range(count)
        ]
    )  # fmt: skip
    table = minutes(level)
    steps = job_steps(row, rows, table, idle_util=0.01)
    return build_job_report(row, gpus({}), table, [], NOW, steps=steps)


@pytest.mark.parametrize("count", [1, 16, 17])
def test_steps_are_where_they_were(count: int) -> None:
    report = stepped(count)
    for plot in read_plots(str(JobPlots(report).steps)):
        (chart,) = plot.charts
        x = plot.x()
        close = abs(x(PIXEL) - x(0.0))
        assert len(chart.boxes) == count
        for step, (label, colour, left, right, _) in enumerate(chart.boxes):
            assert label.startswith(f"step {step} (<b>&): ")
            assert x(left) == pytest.approx(900.0 * step, abs=close)
            assert x(right) == pytest.approx(900.0 * step + 600, abs=close)
            assert colour == heat_colour(report.steps.steps[step].activity_mean or 0.0)
        rows = {middle for *_, middle in chart.boxes}
        assert len(rows) == (count if count <= 16 else 1)


def test_compared_jobs_begin_together() -> None:
    lines = [
        ComparedLine("job <1>", 60.0, (0.1, None, 0.5)),
        ComparedLine("job 2", 120.0, (0.9, 0.8)),
        ComparedLine("job 3", 60.0, (None,)),
    ]
    for plot in read_plots(str(svg(compared_charts(lines), label="compared"))):
        (chart,) = plot.charts
        x, y = plot.x(), chart.y()
        read = {
            label: [(round(x(at_x)), round(y(at_y), 2)) for at_x, at_y in flat(points)]
            for label, points in chart.curves
        }
        assert read == {"job <1>": [(30, 0.1), (150, 0.5)], "job 2": [(60, 0.9), (180, 0.8)]}


def test_no_data_is_no_plot() -> None:
    report = build_job_report(summary(), gpus({}), minutes(), [], NOW)
    plots = JobPlots(report)
    shown = (plots.time, plots.steps, plots.work, plots.roofline, plots.memory)
    assert shown == (None,) * 5
    assert plots.roofline_words == ""


NAMES = ("$x^{2$", "_hidden", "", "a\nb\tc", "\x1b[2J", "\u202egnp.exe", "训练", "<script>", "&amp;",
         "\x00", "x" * 100_000)  # fmt: skip


def test_names_are_text_whatever_they_are() -> None:
    held = gpus(*({"node": name, "hbm_used_mib_max": 5.0} for name in NAMES))
    report = build_job_report(summary(gpus=len(NAMES)), held, minutes(), [], NOW)
    lines = [ComparedLine(name, 60.0, (0.5, 0.5)) for name in NAMES[:4]]
    for drawn in (JobPlots(report).memory, svg(compared_charts(lines), label="<b>")):
        words = read_plot(str(drawn)).words
        assert len(str(drawn)) < 60_000
        assert "<script" not in str(drawn)
        assert all(word.isprintable() for word in words)
    assert any(word.startswith("训练") for word in read_plot(str(JobPlots(report).memory)).words)


@pytest.mark.parametrize("most", [0.0, 0.3, 7.0, 700.0, 40960.0, 3e6])
def test_axes_of_amounts_hold_their_values(most: float) -> None:
    for unit in ("W", "MiB", "B/s"):
        axis = amount_axis(most, unit)
        assert axis.high >= most
        assert 2 <= len(axis.ticks) <= 8
        assert axis.ticks[0].value == 0.0
        assert axis.ticks[-1].value <= axis.high


@pytest.mark.parametrize("length_s", [1.0, 20.0, 59.0, 600.0, 9000.0, 86400.0, 604800.0, 3e6])
def test_axes_of_time_have_two_to_seven_ticks(length_s: float) -> None:
    axis = time_axis(length_s, START.timestamp(), "Europe/Berlin")
    assert 2 <= len(axis.ticks) <= 7
    assert axis.ticks[0].label == "start"
    assert axis.ticks[0].second == ("23 Apr 19:00:00" if length_s < 480 else "23 Apr 19:00")
    assert all(tick.value <= length_s for tick in axis.ticks)


def test_times_have_their_zone_where_its_offset_changes() -> None:
    clocks_go_back = datetime(2025, 10, 26, tzinfo=ZoneInfo("UTC")).timestamp()
    labels = [tick.second for tick in time_axis(3 * 3600, clocks_go_back, "Europe/Berlin").ticks]
    assert labels[0] == "26 Oct 02:00 CEST"
    assert labels[-1] == "04:00 CET"
    assert len(set(labels)) == len(labels)


def test_where_marks_overlap_the_worst_shades_alone() -> None:
    marks = [
        Mark("finding", "long", 0, 600, "hint", "a"),
        Mark("throttling", "short", 120, 240, "problem", "b"),
        Mark("wait", "later", 540, 660),
    ]
    curve = Curve((0.0, 900.0), (0.5, 0.5), "ink")
    chart = Chart("", 50, time_axis(900.0), fraction_axis(), (curve,))
    drawn = str(svg([chart], label="x", marks=marks))
    grounds = re.findall(
        r'class="ground (\w+)" color="[^"]+"><rect x="([\d.]+)" y="[^"]+" width="([\d.]+)"',
        drawn.partition('class="plot narrow"')[0],
    )
    second = read_plot(drawn).x()
    spans = [
        (colour, round(second(float(left))), round(second(float(left) + float(width))))
        for colour, left, width in grounds
    ]
    assert spans == [
        ("hint", 0, 120), ("problem", 120, 240), ("hint", 240, 540), ("hint", 540, 600),
        ("faint", 600, 660),
    ]  # fmt: skip


def test_labels_of_the_drawing_for_a_phone_have_room_in_it() -> None:
    start_s = datetime(2025, 3, 4, tzinfo=ZoneInfo("UTC")).timestamp()
    label = "Work stopped and did not resume, with a title that no phone has room for"
    marks = [Mark("finding", label, 60, 120, "problem", "a")]
    names = Axis(-0.5, 0.5, (Tick(0.0, "nid000022 of a cluster with a long name"),))
    curve = Curve((0.0, 86_400.0), (0.0, 0.0), "ink", "one of the lines")
    chart = Chart("Title", 50, time_axis(86_400.0, start_s), names, (curve,))
    wide, narrow = read_drawings(str(svg([chart], label="x", marks=marks)))
    for drawing, most in ((wide, 7), (narrow, 4)):
        width = float(str(drawing.get("viewBox")).split()[2])
        texts = [text for text in drawing.iter() if text.tag.endswith("}text")]
        ends = [_span(text) for text in texts]
        assert all(-0.5 <= left < right <= width + 0.5 for left, right in ends)
        group = next(group for group in drawing if str(group.get("class")).startswith("clock"))
        times = [_span(text) for text in group]
        assert 2 <= len(times) <= most
        assert all(right <= left for (_, right), (left, _) in pairwise(times))


def _span(text: ElementTree.Element) -> tuple[float, float]:
    """From where to where letters of 5.5 pixels are, which is a little less than they may be."""
    x, wide = float(text.get("x", 0)), 5.5 * len(str(text.text))
    shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[str(text.get("text-anchor"))]
    return x - shift * wide, x + (1 - shift) * wide


def test_names_of_points_stay_within_the_plot() -> None:
    dots = Dots((1.0, 5.0, 10.0), (0.5, 0.0, 0.5), "ink", names=("left", "low", "right"))
    chart = Chart("", 50, Axis(0.0, 10.0), fraction_axis(), (dots,))
    drawn = str(svg([chart], label="x"))
    places = {
        name: (float(y), anchor)
        for y, anchor, name in re.findall(
            r'y="([\d.]+)" text-anchor="(\w+)" fill="currentColor">(left|low|right)<', drawn
        )
    }
    assert places["right"][1] == "end"
    assert places["left"][1] == "start"
    assert places["low"][0] <= 4 + 50 + 8


def test_logarithmic_axes_are_even() -> None:
    axis = log_axis(0.01, 100.0)
    assert [tick.label for tick in axis.ticks] == ["0.01", "0.1", "1", "10", "100"]
    assert [axis.share(tick.value) for tick in axis.ticks] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
