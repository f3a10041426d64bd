"""Bars and sparklines of text characters, for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

BLOCKS = "▏▎▍▌▋▊▉█"
LEVELS = "▁▂▃▄▅▆▇█"
ASCII_LEVELS = "_.-:=+*#"
MISSING = " "


def bar(fraction: float | None, width: int, *, ascii_only: bool = False) -> str:
    """Return a bar of `width` characters, filled by `fraction` (0..1); all blank where it is not known.

    >>> bar(0.5, 8), bar(0.5, 8, ascii_only=True), bar(None, 3)
    ('████····', '####....', '   ')

    A value above zero shows at least its thinnest mark.
    """
    if fraction is None:
        return MISSING * width
    share = min(1.0, max(0.0, fraction))
    if ascii_only:
        full = round(share * width)
        return "#" * full + "." * (width - full)
    eighths = round(share * width * 8)
    if share > 0:
        eighths = max(1, eighths)
    full, part = divmod(eighths, 8)
    drawn = "█" * full + (BLOCKS[part - 1] if part else "")
    return drawn + "·" * (width - len(drawn))


def resample(values: Sequence[float | None], bins: int) -> list[float | None]:
    """Return means of at most `bins` equal stretches of `values`; a stretch without a value is None.

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


def sparkline(values: Sequence[float | None], width: int, *, ascii_only: bool = False, top: float = 1.0) -> str:
    """Return a line of at most `width` characters, each as high as its value between 0 and `top`; gaps are blank.

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
            marks.append(levels[int(min(1.0, max(0.0, value / top)) * last + 0.5)])
    return "".join(marks)
