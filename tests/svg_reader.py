"""Reads charts back from SVG: pixels to values through the ticks of the axes, as a person does."""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

from PIL import Image

Point = tuple[float, float]
_NAME = "{http://www.w3.org/2000/svg}"
_SECONDS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}


def tick_value(label: str) -> float:
    """Return the value of a tick's label in the unit of the lake."""
    if label == "start":
        return 0.0
    number, _, unit = label.replace(",", "").partition(" ")
    if unit == "%":
        return float(number) / 100
    if unit == "GiB":
        return float(number) * 1024
    parts = re.findall(r"([\d.]+) (d|h|min|s)\b", label)
    if parts:
        return sum(float(count) * _SECONDS[name] for count, name in parts)
    return float(number)


def through(ticks: Sequence[Point], *, log: bool) -> Callable[[float], float]:
    """Return {pixel: value} between the first and the last tick of an axis."""
    (first_at, first), (last_at, last) = ticks[0], ticks[-1]
    if log:
        first, last = math.log(first), math.log(last)

    def value(pixel: float) -> float:
        read = first + (pixel - first_at) * (last - first) / (last_at - first_at)
        return math.exp(read) if log else read

    return value


@dataclass
class ReadChart:
    """What one chart shows. Ticks are (pixel, label); boxes (label, colour, left,
    right, middle of y); bars {label: (left, right, low, high)}.
    """

    y_labels: list[tuple[float, str]]
    grid: list[float]
    curves: list[tuple[str, list[list[Point]]]] = field(default_factory=list)
    fills: list[list[list[Point]]] = field(default_factory=list)
    boxes: list[tuple[str, str, float, float, float]] = field(default_factory=list)
    bars: dict[str, list[tuple[float, float, float, float]]] = field(default_factory=dict)
    dots: list[tuple[str, list[Point], list[str]]] = field(default_factory=list)
    heat: Image.Image | None = None
    heat_box: tuple[float, float, float] = (0.0, 0.0, 0.0)
    shades: list[tuple[float, float]] = field(default_factory=list)

    def y(self, *, log: bool = False) -> Callable[[float], float]:
        labels = [tick_value(label) for _, label in self.y_labels]
        return through(list(zip(self.grid, labels, strict=True)), log=log)


@dataclass
class ReadPlot:
    """All charts of a plot, and its axis x."""

    charts: list[ReadChart]
    x_ticks: list[tuple[float, str]]
    clocks: list[str]
    marks: list[str]
    words: list[str]

    def x(self, *, log: bool = False) -> Callable[[float], float]:
        ticks = [(pixel, tick_value(label)) for pixel, label in self.x_ticks]
        return through(ticks, log=log)


def _points(steps: str) -> list[list[Point]]:
    lines = []
    for line in steps.split("M")[1:]:
        pairs = [pair.split(",") for pair in line.rstrip("Z").split()]
        lines.append([(float(x), float(y)) for x, y in pairs])
    return lines


def _texts(group: ElementTree.Element) -> Iterator[ElementTree.Element]:
    yield from group.iter(f"{_NAME}text")


def read_drawings(svg: str) -> tuple[ElementTree.Element, ElementTree.Element]:
    """Return the wide drawing of a plot, and that for a phone."""
    wide, narrow = ElementTree.fromstring(f"<both>{svg}</both>")
    return wide, narrow


def read_plot(svg: str) -> ReadPlot:
    """Return what a plot shows in its wide drawing."""
    return read_plots(svg)[0]


def read_plots(svg: str) -> tuple[ReadPlot, ReadPlot]:
    """Return what both drawings of a plot show. Each must be well-formed XML."""
    wide, narrow = read_drawings(svg)
    assert narrow.get("display") == "none"
    return _read_drawing(wide), _read_drawing(narrow)


def _read_drawing(root: ElementTree.Element) -> ReadPlot:
    assert root.get("role") == "img"
    assert root.get("aria-label")
    charts: list[ReadChart] = []
    grid: list[float] = []
    plot = ReadPlot(charts, [], [], [], [str(text.text) for text in _texts(root)])
    x_pixels: list[float] = []
    for group in root:
        kind = str(group.get("class")).split()[0]
        paths = [str(path.get("d")) for path in group.iter(f"{_NAME}path")]
        if kind == "grid":
            grid = [float(y) for y in re.findall(r"M[\d.]+,([\d.]+)H", paths[0])]
        elif kind == "y":
            labels = [(float(text.get("y", 0)) - 3.5, str(text.text)) for text in _texts(group)]
            charts.append(ReadChart(labels, grid))
            grid = []
        elif kind == "axis":
            x_pixels = [float(x) for x in re.findall(r"M([\d.]+),[\d.]+v4", paths[0])]
        elif kind == "x":
            labels_x = [str(text.text) for text in _texts(group)]
            plot.x_ticks = list(zip(x_pixels, labels_x, strict=True))
        elif kind == "clock":
            plot.clocks = [str(text.text) for text in _texts(group)]
        elif kind == "mark":
            plot.marks += [str(text.text) for text in _texts(group)]
        elif charts:
            _read_layer(charts[-1], kind, group, paths)
    return plot


def _read_layer(
    chart: ReadChart, kind: str, group: ElementTree.Element, paths: Sequence[str]
) -> None:
    title = group.find(f"{_NAME}title")
    label = "" if title is None else str(title.text)
    if kind == "curve":
        chart.curves.append((label, _points(paths[0])))
    elif kind == "fill":
        chart.fills.append(_points(paths[0]))
    elif kind == "box":
        (rect,) = group.iter(f"{_NAME}rect")
        left, top, wide, high = (float(rect.get(name, 0)) for name in ("x", "y", "width", "height"))
        chart.boxes.append((label, str(group.get("color")), left, left + wide, top + high / 2))
    elif kind == "bars":
        outlines = re.findall(r"M([\d.]+),([\d.]+)V([\d.]+)H([\d.]+)V\2Z", paths[0])
        assert "".join(paths).count("M") == len(outlines)
        chart.bars[label] = [
            (float(left), float(right), float(low), float(high))
            for left, low, high, right in outlines
        ]
    elif kind == "dots":
        circles = group.iter(f"{_NAME}circle")
        points = [(float(dot.get("cx", 0)), float(dot.get("cy", 0))) for dot in circles]
        chart.dots.append((label, points, [str(text.text) for text in _texts(group)]))
    elif kind == "heat":
        (image,) = group.iter(f"{_NAME}image")
        data = str(image.get("href")).partition(",")[2]
        chart.heat = Image.open(io.BytesIO(base64.b64decode(data)))
        left, clipped = float(group.get("x", 0)), float(group.get("width", 0))
        chart.heat_box = (left, clipped, float(image.get("width", 0)))
    elif kind == "shade":
        edges = re.findall(r"M([\d.]+),", paths[0])
        chart.shades.append((float(edges[0]), float(edges[1])))
