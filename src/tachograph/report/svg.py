"""Charts as inline SVG, for print, mail and browsers without script.

Colours are names of the page's CSS variables: an element has the light colour as its own, and the
page's style sheet replaces it by name. Null is not drawn. All text is escaped.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise

import msgspec
from markupsafe import Markup, escape

from tachograph.report.charts import (
    MARK_LETTERS,
    MOST_LETTERS,
    Bars,
    Box,
    Chart,
    Curve,
    Dots,
    FilledArea,
    Heat,
    Layer,
    extent,
    label_of,
    lanes,
    shown_name,
)
from tachograph.report.recording import Colour, Mark, Values

WIDTH, NARROW = 720.0, 360.0  # of a plot, and of the same on a phone; the page scales them
_LETTER = 6.3  # mean width of one, in the font size of 10.5; digits are as wide
_LINE = 15.0  # height of a line of text
_RIGHT = 14.0
# Lines are told apart in grey, too: by dashes and by width.
_DASHES: Mapping[Colour, str] = {"fp64": "8 3", "fp32": "4 2.5", "fp16": "1.5 2.5"}
_WIDTHS: Mapping[Colour, float] = {"compute": 2.2}
# where the page's style sheet is missing; on paper and in mail
_COLOURS: Mapping[Colour, str] = {
    "ink": "#1c2126", "faint": "#66707a", "line": "#d9dee3", "paper": "#ffffff",
    "accent": "#2468a8", "compute": "#23784a", "fp64": "#0b5a4e", "fp32": "#4f8a10",
    "fp16": "#7a7a2a", "memory": "#c76a12", "problem": "#b3261e", "hint": "#8a5c00",
    "fact": "#4a6785",
}  # fmt: skip
# Colours of 0 to 1 in steps of a tenth: viridis of Smith and van der Walt (2015), whose greys rise.
_HEAT = (
    (68, 1, 84), (72, 36, 117), (65, 68, 135), (53, 95, 141), (42, 120, 142), (33, 145, 140),
    (34, 168, 132), (68, 191, 112), (122, 209, 81), (189, 223, 38), (253, 231, 37),
)  # fmt: skip


class _Frame(msgspec.Struct, frozen=True):
    """Where a chart is in its drawing."""

    left: float
    top: float
    width: float
    height: float
    chart: Chart

    def x(self, value: float) -> float:
        return self.left + self.width * self.chart.x.share(value)

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - self.chart.y.share(value))


def svg(charts: Sequence[Chart], *, label: str, marks: Sequence[Mark] = ()) -> Markup | None:
    """Return charts below each other, drawn twice: wide, and for a phone; None if there are none.

    The charts share an axis x, which is drawn below the last one; marks are intervals on it. The
    style sheet of a page shows one of the drawings; without it that is the wide one.
    """
    if not charts:
        return None
    wide = _drawing(charts, label, marks, WIDTH, Markup('class="plot"'))
    return wide + _drawing(
        charts, label, marks, NARROW, Markup('class="plot narrow" display="none"')
    )


def _drawing(
    charts: Sequence[Chart], label: str, marks: Sequence[Mark], width: float, attributes: Markup
) -> Markup:
    """Return one SVG element of charts below each other."""
    letters = round(MOST_LETTERS * width / WIDTH)
    widest = max((len(tick.label) for chart in charts for tick in chart.y.ticks), default=0)
    left = max(44.0, 10 + _LETTER * min(widest, letters))
    characters = round(MARK_LETTERS * width / WIDTH)
    rows = lanes(marks, charts[0].x.high, characters)
    parts: list[Markup] = []
    top = 4.0 + _LINE * len(rows)
    frames: list[_Frame] = []
    for chart in charts:
        heading, used = _heading(chart, left, top, width)
        parts.extend(heading)
        frames.append(_Frame(left, top + used, width - left - _RIGHT, chart.height, chart))
        top += used + chart.height + 9
    for frame in frames:
        parts.extend(_grid(frame, letters))
        parts.extend(_layer(layer, frame) for layer in frame.chart.layers)
        if not any(isinstance(layer, Heat) for layer in frame.chart.layers):
            parts.extend(_grounds(marks, frame))
        for row in rows:
            parts.extend(_shade(mark, frame) for mark in row)
    for place, row in enumerate(rows):
        parts.extend(_mark_label(mark, frames[0], 4 + _LINE * place, characters) for mark in row)
    below, used = _axis_x(frames[-1])
    parts.extend(below)
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" {} role="img" aria-label="{}" '
        'viewBox="0 0 {:g} {:.0f}" font-family="system-ui, sans-serif" font-size="10.5" '
        'stroke-linejoin="round">{}</svg>'
    ).format(attributes, label, width, top - 9 + used, Markup("").join(parts))


# Formatting Markup looks at each value whether to escape it, which takes most of the time of a
# drawing: what follows escapes words itself, and the rest are numbers.
def _group(name: str, colour: Colour, content: Markup, label: str = "") -> Markup:
    """Return elements of one colour; `label` is shown under the pointer."""
    title = f"<title>{escape(shown_name(label, most=200))}</title>" if label else ""
    attributes = f'class="{name} {colour}" color="{_COLOURS[colour]}"'
    return Markup(f"<g {attributes}>{title}{content}</g>")


def _text(x: float, y: float, words: str, *, anchor: str = "start") -> Markup:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return Markup(f'<text {place} fill="currentColor">{escape(shown_name(words, most=200))}</text>')


def _path(steps: str, *, width: float = 1.3, more: str = "") -> Markup:
    stroke = f'stroke="currentColor" stroke-width="{width:g}"{more}'
    return Markup(f'<path d="{steps}" fill="none" {stroke}/>')


def _rect(x: float, y: float, width: float, height: float, *, opacity: float = 1.0) -> Markup:
    place = f'x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return Markup(f'<rect {place} fill="currentColor" fill-opacity="{opacity:g}"/>')


def _heading(chart: Chart, left: float, top: float, width: float) -> tuple[list[Markup], float]:
    """Return the title and the legend on one line, or on more if they need them; their height."""
    entries: dict[str, Curve | FilledArea | Box | Bars | Dots] = {}
    for layer in chart.layers:
        if isinstance(layer, Heat) or not layer.label:
            continue
        if not isinstance(layer, Box) or layer.legend:
            entries[layer.label] = layer
    if not chart.title and not entries:
        return [], 4.0
    x, y = left, top + _LINE - 4
    parts: list[Markup] = []
    if chart.title:
        parts.append(_group("title", "faint", _text(x, y, chart.title)))
        x += _LETTER * len(chart.title) + 16
    for name, layer in entries.items():
        label = shown_name(name)
        wide = 20 + _LETTER * len(label) + 12
        if x > left and x + wide > width:
            x, y = left, y + _LINE
        parts.append(_group("key", layer.colour, _swatch(layer, x, y)))
        parts.append(_group("key", "ink", _text(x + 20, y, label)))
        x += wide
    return parts, y - top + 8


def _swatch(layer: Curve | FilledArea | Box | Bars | Dots, x: float, y: float) -> Markup:
    match layer:
        case Curve():
            return _line(layer, f"M{x:.1f},{y - 4:.1f}h16")
        case Dots():
            return _dot(x + 8, y - 4)
        case FilledArea():
            return _rect(x, y - 8, 14, 8, opacity=0.25)
        case Box() | Bars():
            return _rect(x, y - 8, 14, 8, opacity=layer.opacity)


def _grid(frame: _Frame, letters: int) -> Iterator[Markup]:
    axis = frame.chart.y
    right = frame.left + frame.width
    if axis.grid:
        lines = "".join(
            f"M{frame.left:.1f},{frame.y(tick.value):.2f}H{right:.1f}" for tick in axis.ticks
        )
        yield _group("grid", "line", _path(lines, width=0.7))
    labels = [
        _text(
            frame.left - 6,
            frame.y(tick.value) + 3.5,
            shown_name(tick.label, most=letters),
            anchor="end",
        )
        for tick in axis.ticks
    ]
    yield _group("y", "ink", Markup("").join(labels))


def _axis_x(frame: _Frame) -> tuple[list[Markup], float]:
    """Return the axis below a chart, and its height."""
    axis, bottom = frame.chart.x, frame.top + frame.height
    right = frame.left + frame.width
    steps, labels, seconds = [], [], []
    free = 0.0  # from where on there is no label yet: one that would overlap is left out
    for tick in axis.ticks:
        x = frame.x(tick.value)
        half = _LETTER * max(len(tick.label), len(tick.second)) / 2
        begin = min(max(0.0, x - half), right + _RIGHT - 2 * half)
        if begin < free:
            continue
        free = begin + 2 * half + 2
        anchor = "start" if x - half < 0 else "end" if x + half > right + _RIGHT else "middle"
        steps.append(f"M{x:.2f},{bottom:.1f}v4")
        labels.append(_text(x, bottom + _LINE, tick.label, anchor=anchor))
        if tick.second:
            seconds.append(_text(x, bottom + 2 * _LINE - 2, tick.second, anchor=anchor))
    line = f"M{frame.left:.1f},{bottom:.1f}H{right:.1f}{''.join(steps)}"
    parts = [_group("axis", "line", _path(line, width=1))]
    parts.append(_group("x", "ink", Markup("").join(labels)))
    parts.append(_group("clock", "faint", Markup("").join(seconds)))
    height = 6 + _LINE * (2 if seconds else 1)
    if axis.title:
        height += _LINE
        title = _text(right, bottom + height - 5, axis.title, anchor="end")
        parts.append(_group("title", "faint", title))
    return parts, height


def _layer(layer: Layer, frame: _Frame) -> Markup:
    match layer:
        case Curve():
            return _curve(layer, frame)
        case FilledArea():
            return _fill(layer, frame)
        case Box():
            return _box(layer, frame)
        case Bars():
            return _bars(layer, frame)
        case Dots():
            return _dots(layer, frame)
        case Heat():
            return _heat(layer, frame)


def _curve(layer: Curve, frame: _Frame) -> Markup:
    lines: list[str] = []
    lonely: list[Markup] = []
    for run in _runs(layer.xs, layer.ys):
        points = [(frame.x(x), frame.y(y)) for x, y in run]
        lines.append("M" + " ".join(f"{x:.2f},{y:.2f}" for x, y in points))
        if len(points) == 1:  # a line of one point cannot be seen
            lonely.append(_dot(*points[0], radius=1.6))
    content = _line(layer, "".join(lines))
    return _group("curve", layer.colour, content + Markup("").join(lonely), layer.label)


def _line(layer: Curve, steps: str) -> Markup:
    dashes = Markup(' stroke-dasharray="{}"').format(_DASHES.get(layer.colour, "5 3"))
    width = _WIDTHS.get(layer.colour, 1.3)
    return _path(steps, width=width, more=dashes if layer.dashed else "")


def _runs(xs: Sequence[float], ys: Values) -> Iterator[list[tuple[float, float]]]:
    """Return the runs of points that are not null.

    >>> list(_runs((1, 2, 3, 4), (None, 5.0, None, 6.0)))
    [[(2, 5.0)], [(4, 6.0)]]
    """
    run: list[tuple[float, float]] = []
    for x, y in zip(xs, ys, strict=True):
        if y is not None:
            run.append((x, y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _fill(layer: FilledArea, frame: _Frame) -> Markup:
    areas: list[str] = []
    for above, below in zip(_runs(layer.xs, layer.high), _runs(layer.xs, layer.low), strict=True):
        outline = [(frame.x(x), frame.y(y)) for x, y in (*above, *reversed(below))]
        areas.append("M" + " ".join(f"{x:.2f},{y:.2f}" for x, y in outline) + "Z")
    path = Markup('<path d="{}" fill="currentColor" fill-opacity="0.25"/>').format("".join(areas))
    return _group("fill", layer.colour, path, layer.label)


def _box(layer: Box, frame: _Frame) -> Markup:
    left, right = (frame.x(value) for value in layer.x)
    top, bottom = sorted(frame.y(value) for value in layer.y)
    box = _rect(left, top, max(1.0, right - left), bottom - top, opacity=layer.opacity)
    if layer.level is None:
        return _group("box", layer.colour, box, layer.label)
    title = Markup("<title>{}</title>").format(shown_name(layer.label, most=200))
    return Markup('<g class="box" color="{}">{}{}</g>').format(heat_colour(layer.level), title, box)


def _bars(layer: Bars, frame: _Frame) -> Markup:
    """Return the bars as one path; those of no height are left out."""
    steps: list[str] = []
    for (left, right), low, high in zip(layer.spans, layer.low, layer.high, strict=True):
        if high > low:
            outline = f"M{frame.x(left):.2f},{frame.y(low):.2f}V{frame.y(high):.2f}"
            steps.append(f"{outline}H{frame.x(right):.2f}V{frame.y(low):.2f}Z")
    path = Markup('<path d="{}" fill="currentColor" fill-opacity="{:g}"/>').format(
        "".join(steps), layer.opacity
    )
    return _group("bars", layer.colour, path, layer.label)


def _dots(layer: Dots, frame: _Frame) -> Markup:
    points = [(frame.x(x), frame.y(y)) for x, y in zip(layer.xs, layer.ys, strict=True)]
    content = Markup("".join(_dot(x, y) for x, y in points))
    names: list[Markup] = []
    lowest = 0.0
    # From the last to the first: names of points that are close together go down, not over it.
    for (x, y), name in reversed([*zip(points, layer.names, strict=False)]):
        label = shown_name(name)
        beside = max(y + 10, lowest + 12)
        right, bottom = frame.left + frame.width, frame.top + frame.height
        is_wide = x + 6 + _LETTER * len(label) > right
        if is_wide or beside > bottom:  # the name would leave the plot
            names.append(_text(x, y - 6, label, anchor="end" if is_wide else "start"))
            continue
        lowest = beside
        names.append(_text(x + 6, beside, label))
    return _group("dots", layer.colour, content + Markup("").join(names), layer.label)


def _dot(x: float, y: float, *, radius: float = 2.6) -> Markup:
    place = f'cx="{x:.2f}" cy="{y:.2f}" r="{radius:g}"'
    return Markup(f'<circle {place} fill="currentColor" fill-opacity="0.75"/>')


def _heat(layer: Heat, frame: _Frame) -> Markup:
    """Return a picture of one pixel per cell, cut off where the axis ends."""
    image = b64encode(_png(layer.rows)).decode()
    wide = frame.width * layer.x_end / frame.chart.x.high
    picture = Markup(
        '<svg class="heat" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}">'
        '<image href="data:image/png;base64,{}" width="{:.2f}" height="{:.2f}" '
        'preserveAspectRatio="none" image-rendering="pixelated"/></svg>'
    ).format(frame.left, frame.top, frame.width, frame.height, image, wide, frame.height)
    if frame.height / len(layer.rows) < 8:
        return picture
    between = "".join(
        f"M{frame.left:.1f},{frame.top + frame.height * row / len(layer.rows):.2f}h{frame.width:.2f}"
        for row in range(1, len(layer.rows))
    )
    return picture + _group("between", "paper", _path(between))


def _png(rows: Sequence[Values]) -> bytes:
    """Return rows of 0..1 as PNG: pixel 0 is transparent, 1 to 255 are the colours of 0 to 1."""
    lines = []
    for row in rows:
        pixels = (
            0 if level is None else 1 + round(254 * min(1.0, max(0.0, level))) for level in row
        )
        lines.append(b"\0" + bytes(pixels))
    header = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", _palette()),
        (b"tRNS", b"\0"),
        (b"IDAT", zlib.compress(b"".join(lines), 9)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


@cache
def _palette() -> bytes:
    colours = (heat_colour(place / 254) for place in range(255))
    return bytes(3) + b"".join(bytes.fromhex(colour[1:]) for colour in colours)


def heat_colour(level: float) -> str:
    """Return the colour of a value of 0..1: dark is 0, yellow is 1.

    >>> heat_colour(0.0), heat_colour(1.0), heat_colour(0.55)
    ('#440154', '#fde725', '#229c88')
    """
    place = min(1.0, max(0.0, level)) * (len(_HEAT) - 1)
    first = min(int(place), len(_HEAT) - 2)
    pairs = zip(_HEAT[first], _HEAT[first + 1], strict=True)
    mixed = (round(low + (high - low) * (place - first)) for low, high in pairs)
    return "#" + "".join(f"{part:02x}" for part in mixed)


_MARK_COLOURS: tuple[Colour, ...] = ("faint", "fact", "hint", "problem")  # the worst is last


def _mark_colour(mark: Mark) -> Colour:
    """Return the colour of a severity; what is no finding, as a wait, is faint."""
    return next((colour for colour in _MARK_COLOURS if colour == mark.severity), "faint")


def _ends(mark: Mark, frame: _Frame) -> tuple[float, float]:
    begin = frame.x(mark.begin_s)
    return begin, max(begin + 1.5, frame.x(mark.end_s))


def _shade(mark: Mark, frame: _Frame) -> Markup:
    """Return the edges of a marked interval, which are seen on any colour."""
    edges = "".join(f"M{x:.2f},{frame.top:.1f}v{frame.height:.1f}" for x in _ends(mark, frame))
    dashes = Markup(' stroke-dasharray="4 2"')
    return _group("halo", "paper", _path(edges, width=2.4)) + _group(
        "shade", _mark_colour(mark), _path(edges, width=1.2, more=dashes)
    )


def _grounds(marks: Sequence[Mark], frame: _Frame) -> Iterator[Markup]:
    """Return the ground of marked intervals: where they overlap the worst one shades alone."""
    spans = [(*_ends(mark, frame), _MARK_COLOURS.index(_mark_colour(mark))) for mark in marks]
    edges = sorted({edge for begin, end, _ in spans for edge in (begin, end)})
    for left, right in pairwise(edges):
        ranks = [rank for begin, end, rank in spans if begin <= left and right <= end]
        if ranks:
            ground = _rect(left, frame.top, right - left, frame.height, opacity=0.12)
            yield _group("ground", _MARK_COLOURS[max(ranks)], ground)


def _mark_label(mark: Mark, frame: _Frame, top: float, characters: int) -> Markup:
    begin, end = _ends(mark, frame)
    bar = _rect(begin, top + _LINE - 4, end - begin, 3)
    left = mark.begin_s <= extent(mark, frame.chart.x.high, characters)[0]
    label = label_of(mark, characters)
    x, anchor = (begin, "start") if left else (end, "end")
    words = _text(x, top + _LINE - 6, label, anchor=anchor)
    return _group("mark", _mark_colour(mark), bar) + _group("mark", "ink", words)
