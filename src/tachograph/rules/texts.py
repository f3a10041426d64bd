"""Texts with placeholders, in pieces."""

from __future__ import annotations

import re
from typing import Literal

from tachograph.rules.expression import SLIPS, MalformedError, Name, Node, Part, parse
from tachograph.rules.model import Piece

LONGEST = 2_000  # characters of a text
DEEPEST = 4  # conditions within each other
MOST_CONDITIONS = 20
MOST_PLACES = 40  # where a $ or { may stand for a value
_PLACE = re.compile(
    r"(?P<twice>\$\$|\{\{|\}\})"
    r"|\{(?P<braced>\$?[A-Za-z_][A-Za-z0-9_]*(?:\.(?:first|second))?)\}"
    r"|(?P<dollar>\$[A-Za-z_][A-Za-z0-9_]*(?:\.(?:first|second)\b)?)"
    r"|(?P<condition>(?<![A-Za-z0-9_])if\()"
)
_PERCENT = re.compile(r"\s?%")
_HOURS = re.compile(r"\s?(?:cpuh|gpuh|CPU-h|GPU-h|h)(?![A-Za-z0-9])")


def pieces_of(text: str) -> tuple[Piece, ...]:
    """Return a text in pieces; `{name}` and `$name` are placeholders, `if(condition;text)` a part under a condition.

    `$$`, `{{` and `}}` stand for the characters themselves. A placeholder before % is shown in percent, one before
    `cpuh`, `GPU-h` or `h` in hours. Errors: MalformedError.

    >>> [piece.text for piece in pieces_of("ratio {ratio}%")]
    ['ratio ', 'ratio', '%']
    """
    if len(text) > LONGEST:
        raise MalformedError(0, f"a text longer than {LONGEST} characters")
    if text.count("if(") > MOST_CONDITIONS:
        raise MalformedError(0, f"a text with more than {MOST_CONDITIONS} conditions")
    if sum(1 for found in _PLACE.finditer(text) if not found["condition"]) > MOST_PLACES:
        raise MalformedError(0, f"a text with more than {MOST_PLACES} placeholders")
    return _pieces(text, 0, len(text), 0)


def _pieces(text: str, at: int, end: int, depth: int) -> tuple[Piece, ...]:
    pieces: list[Piece] = []
    plain = at
    while found := _PLACE.search(text, at, end):
        at = found.end()
        condition = _condition(text, found.end(), end) if found["condition"] else None
        if found["condition"] and condition is None:
            continue  # `if(` without a semicolon is text as any other
        pieces += _plain(text[plain : found.start()])
        if found["twice"]:
            pieces.append(Piece(found["twice"][0]))
        elif condition is None:
            pieces.append(_shown(text, found, end))
        else:
            semicolon, at = condition
            if depth >= DEEPEST:
                raise MalformedError(found.start(), f"conditions within conditions, more than {DEEPEST} deep")
            node = _parsed(text[found.end() : semicolon], found.end())
            inner = _pieces(text, semicolon + 1, at - 1, depth + 1)
            pieces.append(Piece(text[found.end() : semicolon], node, inner=inner, at=found.end()))
        plain = at
    return (*pieces, *_plain(text[plain:end]))


def _plain(text: str) -> list[Piece]:
    return [Piece(text)] if text else []


def _shown(text: str, found: re.Match[str], end: int) -> Piece:
    name = found["braced"] or found["dollar"]
    at = found.start("braced" if found["braced"] else "dollar")
    unit: Literal["", "%", "h"] = ""
    if found.end() < end:
        unit = "%" if _PERCENT.match(text, found.end()) else "h" if _HOURS.match(text, found.end()) else ""
    name, _, part = name.removeprefix("$").partition(".")
    node: Node = Name(at, SLIPS.get(name, name))
    if part:
        node = Part(at, node, part)
    return Piece(f"{name}.{part}" if part else name, node, unit, at=at)


def _parsed(source: str, at: int) -> Node:
    try:
        return parse(source)
    except MalformedError as problem:
        raise MalformedError(at + problem.at, problem.message) from None


def _condition(text: str, at: int, end: int) -> tuple[int, int] | None:
    """Return where the semicolon of `if(condition;text)` stands, and where it ends; None where it has none."""
    depth, semicolon = 0, -1
    for place in range(at, end):
        letter = text[place]
        if letter == "(":
            depth += 1
        elif letter == ")" and depth:
            depth -= 1
        elif letter == ")":
            return (semicolon, place + 1) if semicolon >= 0 else None
        elif letter == ";" and not depth and semicolon < 0:
            semicolon = place
    return None
