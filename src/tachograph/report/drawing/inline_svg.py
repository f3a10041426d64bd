"""Matplotlib figures as SVG inside a page, with the page's colours and font, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from html import escape
from types import MappingProxyType

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text

# drawn in these colours, which are then replaced by the page's own (CSS custom properties)
INK, FAINT, GRID = "#010203", "#040506", "#070809"
COMPUTE, MEMORY, ACCENT, WARNING, PAPER = "#0a0b0c", "#0d0e0f", "#101112", "#131415", "#161718"
_CSS = {
    INK: "var(--ink)",
    FAINT: "var(--faint)",
    GRID: "var(--line)",
    COMPUTE: "var(--compute)",
    MEMORY: "var(--memory)",
    ACCENT: "var(--accent)",
    WARNING: "var(--problem)",
    PAPER: "var(--paper)",
}
_ID = re.compile(r'(id="|url\(#|href="#)([^")]*)')
# of all elements, as a style sheet, which pages that are served may not contain; the same stands at
# the root
_STYLE = re.compile(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", re.DOTALL)
_LINES = 'stroke-linejoin="round" stroke-linecap="butt" '
_HASHED = re.compile(r"[a-z][0-9a-f]{10}")
WIDTH_IN = 7.6  # of a plot; the page scales it


def _style() -> AbstractContextManager[None]:
    return mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "tachograph",
            "text.parse_math": False,  # names of users have dollar signs
            "font.size": 9.0,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": GRID,
            "xtick.color": INK,
            "ytick.color": INK,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )


def new_figure(height_in: float) -> tuple[Figure, Axes]:
    """Return an empty figure of the page's width and its axes."""
    with _style():
        figure = Figure(figsize=(WIDTH_IN, height_in), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
    figure.patch.set_alpha(0)
    axes.patch.set_alpha(0)
    axes.tick_params(length=3)
    return figure, axes


def new_panels(heights_in: Sequence[float], *, above_in: float = 0.0) -> tuple[Figure, list[Axes]]:
    """Return a figure of page width, its axes stacked over one x axis; `above_in`: room above."""
    with _style():
        height = sum(heights_in) + 0.3 * len(heights_in) + 0.2 + above_in
        figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
        FigureCanvasSVG(figure)
        grid = figure.subplots(
            len(heights_in), 1, sharex=True, squeeze=False, height_ratios=list(heights_in)
        )
        every: list[Axes] = list(grid[:, 0])
    figure.patch.set_alpha(0)
    for axes in every:
        axes.patch.set_alpha(0)
        axes.tick_params(length=3)
    return figure, every


def to_svg(figure: Figure, *, name: str, label: str, plot: Axes | None = None) -> str:
    """Return the figure as `<svg>` with ids prefixed by `name`; `label` describes it.

    plot: axes whose begin and end the page needs (`data-begin`, `data-end`: shares of the width).
    """
    buffer = io.StringIO()
    engine = figure.get_layout_engine()
    # Made outside the style, in which a dollar sign begins no mathematics.
    for text in figure.findobj(Text):
        text.set_parse_math(False)
    with _style():
        if engine is not None:  # else everything is drawn twice, at first only for its place
            engine.execute(figure)
            figure.set_layout_engine(None)
        figure.savefig(
            buffer,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    box = plot.get_position() if plot is not None else None
    return inlined(
        buffer.getvalue(),
        name=name,
        label=label,
        attributes=f'data-begin="{box.x0:.5f}" data-end="{box.x1:.5f}" ' if box is not None else "",
    )


def _stable(drawn: str, numbered: dict[str, int]) -> str:
    """Return an id that is the same in every process; Matplotlib uses memory addresses."""
    return (
        f"{drawn[0]}{numbered.setdefault(drawn, len(numbered))}"
        if _HASHED.fullmatch(drawn)
        else drawn
    )


def inlined(
    svg: str,
    *,
    name: str,
    label: str,
    colours: Mapping[str, str] = MappingProxyType(_CSS),
    attributes: str = "",
) -> str:
    """Return an SVG file by Matplotlib as a page element; colours: {drawn: in the page}."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = _STYLE.sub("", svg)
    numbered: dict[str, int] = {}
    svg = _ID.sub(lambda found: f"{found[1]}{name}-{_stable(found[2], numbered)}", svg)
    for drawn, css in colours.items():
        svg = svg.replace(drawn, css)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font-size: \1px", svg)
    opening = f'<svg role="img" aria-label="{escape(label, quote=True)}" {_LINES}{attributes}'
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'{opening}viewBox="\1">', svg, count=1)
    return svg.strip()
