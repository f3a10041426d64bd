"""Where all installed GPU-hours went: as lines of text, as JSON, and as plots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from tachograph.catalog.columns import local_time
from tachograph.catalog.units import gpu_hours_text, plural, text
from tachograph.judge.capacity import CAPACITY_LABELS, CAPACITY_PARTS, HELD, CapacityReport
from tachograph.report.charts import Axis, Bars, Box, Chart, amount_axis, fraction_axis, rows_axis
from tachograph.report.json_values import json_values
from tachograph.report.lines import Line, bar, plain, wrapped
from tachograph.report.recording import Colour
from tachograph.report.svg import svg
from tachograph.report.tables import TextColumn, cut, fit_table
from tachograph.report.usage_plots import period_ticks, use_by_period

CAPACITY_TITLE = "All installed GPU-hours"
_UNUSABLE = ("down", "drained", "maintenance")
_WAITED = ("no_host", "fragmented", "reserved", "limited", "several_nodes", "waited")
# (colour, opacity) of each part
_COLOURS: Mapping[str, tuple[Colour, float]] = {
    "in_use": ("accent", 1.0),
    "in_use_unknown": ("accent", 0.45),
    "lost": ("problem", 1.0),
    "unmeasured": ("faint", 0.75),
    "no_host": ("memory", 1.0),
    "fragmented": ("memory", 0.7),
    "reserved": ("memory", 0.4),
    "limited": ("hint", 1.0),
    "several_nodes": ("hint", 0.65),
    "waited": ("hint", 0.35),
    "free": ("compute", 0.4),
    "down": ("ink", 0.9),
    "drained": ("ink", 0.6),
    "maintenance": ("fact", 0.7),
    "unknown": ("faint", 0.25),
}
# columns of the table by partition and model: all parts would be wider than a page
_OF_GROUPS: Mapping[str, Sequence[str]] = {
    "installed": ("installed",),
    "held": HELD,
    "lost": ("lost",),
    "free, waited": _WAITED,
    "free": ("free",),
    "not usable": _UNUSABLE,
    "state not known": ("unknown",),
}
_BAR = 8
_WIDEST = 26  # characters of a name


def capacity_headline(report: CapacityReport) -> str:
    """Return the parts in a sentence."""
    installed = report.hours("installed")
    end = report.last - timedelta(microseconds=1)  # of the last day that is covered
    begin, end_day = (local_time(time, report.zone_name)[:10] for time in (report.first, end))

    left_out = ""
    if report.nodes_left_out:
        nodes = plural(report.nodes_left_out, "node")
        left_out = f" Without {nodes} with MIG slices, of an unknown number of GPUs."

    def share(*parts: str) -> str:
        return text(report.hours(*parts) / installed if installed else None, "fraction")

    return (
        f"{begin} to {end_day}: of {gpu_hours_text(installed)} installed, "
        f"jobs held {share(*HELD)}; "
        f"{share(*_WAITED)} were free while jobs waited, {share('free')} while none did; "
        f"{share(*_UNUSABLE)} were down, drained or in maintenance; the state of "
        f"{share('unknown')} is not known.{left_out}"
    )


def part_rows(report: CapacityReport) -> list[dict[str, Any]]:
    """Return a row per part with hours: `label`, `hours`, `share` of what is installed."""
    installed = report.hours("installed")
    rows: list[dict[str, Any]] = [
        {"part": part, "label": CAPACITY_LABELS[part], "hours": report.hours(part)}
        for part in CAPACITY_PARTS
    ]
    return [{**row, "share": row["hours"] / installed} for row in rows if row["hours"]]


def group_rows(report: CapacityReport) -> list[dict[str, Any]]:
    """Return a row per partition and GPU model: `name`, `installed`, parts; in GPU-hours."""
    rows = report.by("cluster", "partition", "gpu_model").to_dicts()
    clusters = {row["cluster"] for row in rows}
    for row in rows:
        names = (row["cluster"] if len(clusters) > 1 else None, row["partition"], row["gpu_model"])
        row["name"] = " ".join(name for name in names if name) or "not known"
    return rows


def capacity_lines(
    report: CapacityReport, *, width: int, ascii_only: bool = False, by_group: bool = False
) -> list[Line]:
    """Return the parts as styled lines; by_group: those of each partition and GPU model, too."""
    rows = part_rows(report)
    installed = report.hours("installed")
    columns = [
        TextColumn("", [*(row["label"] for row in rows), "installed"]),
        TextColumn(
            "GPU-hours",
            [*(text(row["hours"], "h") for row in rows), text(installed, "h")],
            right=True,
        ),
        TextColumn(
            "",
            [*(bar(row["share"], _BAR, ascii_only=ascii_only) for row in rows), " " * _BAR],
            bar=True,
        ),
        TextColumn(
            "share", [*(text(row["share"], "fraction") for row in rows), "100 %"], right=True
        ),
    ]
    lines = [plain(""), plain(CAPACITY_TITLE, "bold"), *wrapped(capacity_headline(report), width)]
    lines += [plain(""), *fit_table(columns, width).with_note(width=width)]
    if by_group:
        lines += [plain(""), *fit_table(_group_columns(report), width).with_note(width=width)]
    return lines


def _group_columns(report: CapacityReport) -> list[TextColumn]:
    rows = group_rows(report)
    columns = [TextColumn("", [cut(row["name"], _WIDEST) for row in rows])]
    for title, names in _OF_GROUPS.items():
        cells = [text(sum(row[name] for name in names), "h") for row in rows]
        bare = [cell.removesuffix(" h") for cell in cells]
        columns.append(TextColumn(title, cells, right=True, bare=bare))
    return columns


def capacity_json(report: CapacityReport) -> dict[str, Any]:
    """Return everything as JSON values: GPU-hours."""
    values: dict[str, Any] = json_values(report, without=("zone_name",))
    hours = {part: report.hours(part) for part in ("installed", *CAPACITY_PARTS)}
    return {**values, **hours}


def capacity_values(report: CapacityReport) -> dict[str, Any]:
    """Return the values of `capacity_body.html.j2`."""
    columns = _OF_GROUPS.values()
    return {
        "installed": report.hours("installed"),
        "headline": capacity_headline(report),
        "parts": part_rows(report),
        "groups": [
            {"name": row["name"], "hours": [sum(row[part] for part in parts) for parts in columns]}
            for row in group_rows(report)
        ],
        "columns": tuple(_OF_GROUPS),
        "plots": [
            svg(day_charts(report), label="Installed GPU-hours over time, by what became of them"),
            svg(
                group_charts(report),
                label="Installed GPU-hours of each partition and GPU model, by what became of them",
            ),
        ],
    }


def day_charts(report: CapacityReport) -> list[Chart]:
    """Return installed GPU-hours per day, week or month, stacked by part."""
    name, periods = use_by_period(report.by("day"), CAPACITY_PARTS)
    count = periods.height
    spans = [(place + 0.1, place + 0.9) for place in range(count)]
    top = [0.0] * count
    layers: list[Bars] = []
    for part, (colour, opacity) in _COLOURS.items():
        hours = periods.get_column(part).to_list()
        bottom, top = top, [low + height for low, height in zip(top, hours, strict=True)]
        if any(hours):
            layers.append(Bars(spans, bottom, top, colour, CAPACITY_LABELS[part], opacity))
    axis = Axis(0.0, float(count), period_ticks(periods.get_column("day").to_list(), name))
    title = f"Installed GPU-hours per {name}"
    return [Chart(title, 190, axis, amount_axis(max(top), ""), tuple(layers))]


def group_charts(report: CapacityReport) -> list[Chart]:
    """Return the share of each part in what is installed, a row per partition and GPU model."""
    rows = group_rows(report)
    layers: list[Box] = []
    ends = [0.0] * len(rows)
    for part, (colour, opacity) in _COLOURS.items():
        for place, row in enumerate(rows):
            begin = ends[place]
            ends[place] = begin + row[part] / row["installed"]
            if row[part]:
                layers.append(_box(begin, ends[place], place, colour, part, opacity))
    axis = rows_axis([row["name"] for row in rows])
    return [
        Chart("Share by partition", 22.0 * len(rows), fraction_axis(step=0.25), axis, tuple(layers))
    ]


def _box(begin: float, end: float, row: int, colour: Colour, part: str, opacity: float) -> Box:
    label = CAPACITY_LABELS[part]
    return Box((begin, end), (row - 0.36, row + 0.36), colour, label, opacity=opacity)
