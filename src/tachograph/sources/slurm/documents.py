"""JSON documents: parsed with errors that name line and column, and values picked out of them."""

from __future__ import annotations

import json

import msgspec

from tachograph.errors import InputError


def parse(content: bytes, *, where: str) -> tuple[object, bool]:
    """Return the document and whether the text was valid UTF-8; other bytes become U+FFFD.

    Errors: InputError naming line and column when it is no JSON, or cut off.
    """
    try:
        return msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf")), True
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # the standard parser takes control characters in texts, and says where it stopped
    text = content.decode("utf-8-sig", "replace")
    try:
        return json.loads(text, strict=False), "\ufffd" not in text
    except json.JSONDecodeError as problem:
        cut = problem.pos >= len(text.rstrip()) or problem.msg.startswith("Unterminated")
        what = "the JSON is cut off" if cut else f"no JSON: {problem.msg}"
        place = f"line {problem.lineno}, column {problem.colno}"
        raise InputError(f"{what} at {place}", where=where, do="export it again, one document per file") from None
    except (RecursionError, ValueError):
        raise InputError(
            "the JSON nests too deeply or holds a number too long", where=where, do="export it again"
        ) from None


_LARGEST = 1 << 62  # what a column of integers holds, and far more than Slurm counts


def at(value: object, *path: str) -> object:
    """Return what lies at `path` of nested objects, None where it ends.

    >>> at({"time": {"start": 5}}, "time", "start"), at({"time": 3}, "time", "start")
    (5, None)
    """
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def number(value: object) -> int | None:
    """Return a number in any of Slurm's shapes: plain, text, {set, infinite, number}; None: not set, or infinite.

    >>> number(5), number({"set": True, "infinite": False, "number": 7}), number({"set": False, "number": 0})
    (5, 7, None)
    >>> number({"set": True, "infinite": True, "number": 0}), number(None), number("INFINITE")
    (None, None, None)
    """
    if isinstance(value, dict):
        if value.get("set") is False or value.get("infinite") is True:
            return None
        value = value.get("number")
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19:
        value = int(value)
    return value if isinstance(value, int) and abs(value) < _LARGEST else None


def text(value: object) -> str | None:
    """Return a text, the first of a list of texts, a number as text; None for anything else, and for an empty text.

    >>> text("a"), text(["COMPLETED"]), text(""), text(7), text(7.0)
    ('a', 'COMPLETED', None, '7', '7')
    """
    if isinstance(value, list):
        value = value[0] if value else None
    if isinstance(value, int | float) and not isinstance(value, bool):
        whole = number(value)
        value = str(value) if whole is None and value == value else None if whole is None else str(whole)
    if not isinstance(value, str) or not value:
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def objects(value: object) -> list[dict[str, object]]:
    """Return the objects of a list, [] where there is none.

    >>> objects([{"a": 1}, 3]), objects(None)
    ([{'a': 1}], [])
    """
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
