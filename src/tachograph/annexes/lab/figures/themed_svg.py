"""Drawings of Matplotlib whose colours are those of the page around them, light or dark."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from tachograph.annexes.lab.figures.style import PAGE_COLOURS
from tachograph.report.pages import STATIC


def themed(svg: str) -> str:
    """Return a drawing whose ink and paper are those of a light or a dark page around it.

    Where its style sheet is not applied, it is as it was drawn.
    """
    for colour, variable in PAGE_COLOURS.items():
        svg = svg.replace(colour, f"{variable.removesuffix(')')}, {colour})")
    begin = svg.index(">", svg.index("<svg")) + 1
    return f"{svg[:begin]}<style>{_themes()}</style>{svg[begin:]}"


@cache
def _themes() -> str:
    """Colours of pages as variables, light and dark, from their style sheets."""
    page, study = (
        (files(STATIC[0]) / STATIC[1] / name).read_text("utf-8")
        for name in ("page.css", "study.css")
    )
    of_study = (
        line
        for line in study.splitlines()
        if line.startswith((":root", "@media (prefers-color-scheme: dark)"))
    )
    return page[: page.index("\n* {")] + "\n" + "\n".join(of_study)
