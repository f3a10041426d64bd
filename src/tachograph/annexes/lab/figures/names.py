"""Names chosen by users, as drawn in figures."""

from __future__ import annotations

from functools import cache

from matplotlib.font_manager import FontProperties, findfont, get_font

from tachograph.catalog.units import printable

NO_NAME = "(no name)"
_MOST = 40  # characters
_FONT = "DejaVu Sans"  # font of all figures; missing glyphs would become boxes, with a warning


def drawn_name(name: str | None) -> str:
    r"""Return a name as a label: at most 40 characters, only letters that the font has.

    Others are written out, as controls are. A leading underscore gets a blank before it: Matplotlib
    leaves labels that begin with one out of legends.

    >>> drawn_name("_qz"), drawn_name(" "), drawn_name("训练\x1b"), drawn_name("a" * 50)[-2:]
    (' _qz', '(no name)', '\\u8bad\\u7ec3\\x1b', 'a…')
    """
    shown = "".join(
        letter if ord(letter) in _drawable() else letter.encode("unicode_escape").decode()
        for letter in printable(name or "", most=400)
    )
    if not shown.strip():
        return NO_NAME
    cut = shown if len(shown) <= _MOST else f"{shown[: _MOST - 1]}…"
    return f" {cut}" if cut.startswith("_") else cut


@cache
def _drawable() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family=[_FONT]))).get_charmap())
