"""Lines of styled text: plain where no colour is wanted, rich where it is."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

Part = tuple[str, str]  # text, rich style ("" for none)
Line = tuple[Part, ...]

STYLES = {"problem": "bold red", "hint": "bold yellow", "note": "bold blue", "fact": ""}
_WITH_UNIT = re.compile(r"(\d) (?=(?:%|s|min|h|d|J|kJ|kWh|W|MiB|GiB|B/s|°C|MHz|GB)(?:\W|$))")
_GLUE = "\N{NO-BREAK SPACE}"  # textwrap does not break here
_ASCII = str.maketrans(
    {"–": "-", "×": "x", "°": " ", "·": ".", "…": "~", "µ": "u", "─": "-", "→": "->", "▲": "!", "●": "*", "○": "o"}
)


def plain(text: str, style: str = "") -> Line:
    """Return a line of one part."""
    return ((text, style),)


def wrapped(text: str, width: int, *, indent: str = "", first: str | None = None, style: str = "") -> list[Line]:
    """Return `text` in lines of at most `width` characters; the first starts with `first`, the others with `indent`."""
    lines = textwrap.wrap(
        _WITH_UNIT.sub(rf"\1{_GLUE}", text),
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
    joined = "".join("".join(part for part, _ in line).rstrip() + "\n" for line in lines)
    return joined.translate(_ASCII).encode("ascii", "replace").decode() if ascii_only else joined


def to_rich(lines: Sequence[Line]) -> Text:
    """Return lines as rich text, for a terminal that shows colours."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ignore")
    for line in lines:
        for part, style in line:
            text.append(part, style=style or None)
        text.append("\n")
    text.rstrip()
    return text
