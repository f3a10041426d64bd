"""Lines of styled text, plain or rich; bars and sparklines of characters."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from tachograph.catalog.units import printable

if TYPE_CHECKING:
    from rich.text import Text


Part = tuple[str, str]  # text, rich style ("" for none)
Line = tuple[Part, ...]

# Characters: a table in a file is as wide as its cells, which are limited.
MOST_LINE = 1_000_000
STYLES = {"problem": "bold red", "hint": "bold yellow", "fact": ""}
_WITH_UNIT = re.compile(r"(\d) (?=(?:%|s|min|h|d|J|kJ|kWh|W|MiB|GiB|B/s|°C|MHz|GB)(?:\W|$))")
_GLUE = "\N{NO-BREAK SPACE}"  # textwrap does not break here
_ASCII = str.maketrans(
    {
        "–": "-",
        "×": "x",
        "°": " ",
        "·": ".",
        "…": "~",
        "µ": "u",
        "─": "-",
        "→": "->",
        "▲": "!",
        "●": "*",
        "○": "o",
    }
)


def plain(text: str, style: str = "") -> Line:
    """Return a one-part line without terminal control characters."""
    return ((printable(text, most=MOST_LINE), style),)


def wrapped(
    text: str, width: int, *, indent: str = "", first: str | None = None, style: str = ""
) -> list[Line]:
    """Return `text` wrapped at `width`; the first line begins with `first`, others with
    `indent`.
    """
    lines = textwrap.wrap(
        _WITH_UNIT.sub(rf"\1{_GLUE}", printable(text, most=MOST_LINE)),
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_on_hyphens=False,
    )
    return [plain(line.replace(_GLUE, " "), style) for line in lines]


def to_text(lines: Iterable[Line], *, ascii_only: bool = False) -> str:
    """Return lines without colour, each ended by a newline.

    >>> to_text([(("5 ", ""), ("GPUs", "bold"))])
    '5 GPUs\\n'
    """
    joined = "".join("".join(_shown(part) for part, _ in line).rstrip() + "\n" for line in lines)
    return joined.translate(_ASCII).encode("ascii", "replace").decode() if ascii_only else joined


def to_rich(lines: Sequence[Line]) -> Text:
    """Return lines as rich text, for a terminal that shows colours."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ignore")
    for line in lines:
        for part, style in line:
            text.append(_shown(part), style=style or None)
        text.append("\n")
    text.rstrip()
    return text


def _shown(part: str) -> str:
    return printable(part, most=MOST_LINE)


BLOCKS = "▏▎▍▌▋▊▉█"
THIN = "╸━"
LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-:=+*#"
MISSING = " "


def bar(
    fraction: float | None,
    width: int,
    *,
    ascii_only: bool = False,
    marks: str = BLOCKS,
    empty: str = "·",
) -> str:
    """Return a bar of `width` characters filled by `fraction` (0..1); blank for None or NaN.

    marks: from the thinnest to a full character; empty: the unfilled character.

    >>> bar(0.5, 8), bar(0.5, 8, ascii_only=True), bar(None, 3), bar(0.5, 5, marks=THIN, empty=" ")
    ('████····', '####....', '   ', '━━╸  ')

    A value above zero shows at least its thinnest mark.
    """
    if fraction is None or fraction != fraction:
        return MISSING * width
    share = min(1.0, max(0.0, fraction))
    if ascii_only:
        full = round(share * width)
        return "#" * full + "." * (width - full)
    steps = round(share * width * len(marks))
    full, part = divmod(max(1, steps) if share > 0 else steps, len(marks))
    return (marks[-1] * full + (marks[part - 1] if part else "")).ljust(width, empty)


def resample(values: Sequence[float | None], bins: int) -> list[float | None]:
    """Return the means of at most `bins` equal parts of `values`; None for parts without a value.

    >>> resample([0.0, 1.0, None, None, 1.0, 1.0], 3)
    [0.5, None, 1.0]
    """
    if len(values) <= bins:
        return list(values)
    edges = [place * len(values) // bins for place in range(bins + 1)]
    means: list[float | None] = []
    for begin, end in pairwise(edges):
        known = [value for value in values[begin:end] if value is not None]
        means.append(sum(known) / len(known) if known else None)
    return means


def sparkline(values: Sequence[float | None], width: int, *, ascii_only: bool = False) -> str:
    """Return a line of at most `width` characters whose heights show values 0..1; gaps are blank.

    >>> sparkline([0.0, 0.5, None, 1.0], 10), sparkline([0.0, 0.5, None, 1.0], 10, ascii_only=True)
    ('▁▅ █', '_= #')
    """
    levels = ASCII_LEVELS if ascii_only else LEVELS
    last = len(levels) - 1
    marks = []
    for value in resample(values, width):
        if value is None:
            marks.append(MISSING)
        else:
            marks.append(levels[int(min(1.0, max(0.0, value)) * last + 0.5)])
    return "".join(marks)
