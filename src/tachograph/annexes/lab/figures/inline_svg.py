"""Files of Matplotlib as SVG inside a page, with the page's colours and font, light or dark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

_ID = re.compile(r'(id="|url\(#|href="#)([^")]*)')
# of all elements, as a style sheet, which pages that are served may not contain; the same stands at
# the root
_STYLE = re.compile(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", re.DOTALL)
_LINES = 'stroke-linejoin="round" stroke-linecap="butt" '
_HASHED = re.compile(r"[a-z][0-9a-f]{10}")


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
    colours: Mapping[str, str],
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
    opening = f'<svg role="img" aria-label="{escape(label, quote=True)}" {_LINES}'
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', rf'{opening}viewBox="\1">', svg, count=1)
    return svg.strip()
