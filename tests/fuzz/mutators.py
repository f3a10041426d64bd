"""What goes wrong with files, in small: bits flip, ends are cut off, pieces repeat, numbers grow.

Each mutator takes bytes and a source of chance and returns other bytes; `mutate` does one to four
of them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

LARGEST = 200_000  # bytes of a mutation: what is longer only takes longer
LONG_LINE = 50_000
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_PIECES = (
    b"\0", b"\xff", b"\xff\xfe", b"\xc3\x28", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n", b"\n\n", b"\t", b" ",
    b'"', b"'", b"\\", b"\\u0000", b"\\ud800", b",", b"|", b";", b"=", b":", b"#", b"{", b"}", b"[", b"]", b"[]",
    b"{}", b"null", b"true", b"NaN", b"Infinity", b"-Infinity", b"1e999", b"N/A", b"None", b"Unknown", b"<<<NULL>>>",
    b"e", b"+", b"-", b".", b"%", b"..", b"[1-", b"[0-99999999]", b"n[1-3,5-", b"2026-02-30T25:61:61", b"0000-00-00",
    b"\xe2\x80\xae", b"\x1b[31m",
)  # fmt: skip
_NUMBERS = (
    b"0", b"-0", b"-1", b"1e308", b"1e-320", b"-1e309", b"127", b"32768", b"2147483648", b"4294967295",
    b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809", b"18446744073709551616", b"0.1e-9999",
    b"1" * 400, b"9" * 5000, b"00", b"0x10",
)  # fmt: skip


def _place(data: bytes, chance: random.Random) -> int:
    return chance.randrange(len(data) + 1)


def _span(data: bytes, chance: random.Random, most: int = 400) -> tuple[int, int]:
    start = _place(data, chance)
    return start, min(len(data), start + chance.randint(1, most))


def flip_bits(data: bytes, chance: random.Random) -> bytes:
    """Some bits are others."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8) if data else 0):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def insert_bytes(data: bytes, chance: random.Random) -> bytes:
    """Bytes by chance come in."""
    at = _place(data, chance)
    return data[:at] + chance.randbytes(chance.randint(1, 16)) + data[at:]


def insert_piece(data: bytes, chance: random.Random) -> bytes:
    """Something that means much to some reader comes in."""
    at = _place(data, chance)
    return data[:at] + chance.choice(_PIECES) + data[at:]


def overwrite(data: bytes, chance: random.Random) -> bytes:
    """Such a piece stands over what was there."""
    at, piece = _place(data, chance), chance.choice(_PIECES)
    return data[:at] + piece + data[at + len(piece) :]


def delete(data: bytes, chance: random.Random) -> bytes:
    """A stretch is missing."""
    start, end = _span(data, chance)
    return data[:start] + data[end:]


def truncate(data: bytes, chance: random.Random) -> bytes:
    """The end is cut off, or the beginning."""
    at = _place(data, chance)
    return data[:at] if chance.random() < 0.8 else data[at:]


def duplicate(data: bytes, chance: random.Random) -> bytes:
    """A stretch stands there twice, or many times."""
    start, end = _span(data, chance)
    times = chance.choice((1, 1, 2, 10, 100))
    return data[:end] + data[start:end] * times + data[end:]


def swap(data: bytes, chance: random.Random) -> bytes:
    """Two stretches change places."""
    (a, b), (c, d) = sorted((_span(data, chance), _span(data, chance)))
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:] if b <= c else data


def change_number(data: bytes, chance: random.Random) -> bytes:
    """A number is another one, often one that fits nowhere."""
    found = list(_NUMBER.finditer(data))
    if not found:
        return data + chance.choice(_NUMBERS)
    one = chance.choice(found)
    number = (
        chance.choice(_NUMBERS)
        if chance.random() < 0.7
        else str(chance.getrandbits(chance.randint(1, 70))).encode()
    )
    return data[: one.start()] + number + data[one.end() :]


def nest(data: bytes, chance: random.Random) -> bytes:
    """Brackets within brackets."""
    at, depth = _place(data, chance), chance.choice((2, 50, 3000, 30_000))
    opened, closed = chance.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")")))
    middle = chance.choice((b"", b"1"))
    return (
        data[:at]
        + opened * depth
        + middle
        + (closed * depth if chance.random() < 0.7 else b"")
        + data[at:]
    )


def long_line(data: bytes, chance: random.Random) -> bytes:
    """A line that does not end."""
    at, piece = (
        _place(data, chance),
        chance.choice((b"x", b" ", b"9", b",", b'"', b"|", b"\\", b"n1,", b"\xc3\xa9")),
    )
    return data[:at] + piece * (chance.randint(1, LONG_LINE) // len(piece)) + data[at:]


def move_lines(data: bytes, chance: random.Random) -> bytes:
    """Lines in another order, some twice, some gone."""
    lines = data.split(b"\n")
    chosen = [
        lines[chance.randrange(len(lines))] for _ in range(min(len(lines), chance.randint(1, 40)))
    ]
    return b"\n".join([lines[0], *chosen] if chance.random() < 0.5 else chosen)


_MUTATORS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    flip_bits, insert_bytes, insert_piece, overwrite, delete, truncate, duplicate, swap, change_number, change_number,
    move_lines, insert_piece, overwrite,
)  # fmt: skip
_RARE: tuple[Callable[[bytes, random.Random], bytes], ...] = (nest, long_line)


def splice(data: bytes, other: bytes, chance: random.Random) -> bytes:
    """The beginning of one file and the end of another, or a stretch of another in the middle."""
    at = _place(data, chance)
    if chance.random() < 0.5:
        return data[:at] + other[_place(other, chance) :]
    start, end = _span(other, chance)
    return data[:at] + other[start:end] + data[at:]


_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 0.5, -0.0, 1e308, float("nan"), float("inf"), 2**31, 2**53 + 1, 2**63, 2**64,
    -(2**63) - 1, 10**30, 253402300800, 9e15, "", " ", "0", "-1", "1e999", "N/A", "\0", "\ud800", "\u202e",
    "x" * 3000, "n[1-99999999]", "n[001-004],n[", "gpu:a100:4(IDX:0-3)", "gres/gpu=4", "(IDX:0-999999999)", "9" * 400,
    "2026-13-01T00:00:00", "0001-01-01T00:00:00", [], {}, [[]], [None], [{}], {"": {}},
    {"number": -1, "set": True, "infinite": False}, {"number": 1e300, "set": True}, ["COMPLETED", 1],
)  # fmt: skip


def change_document(data: bytes, chance: random.Random) -> bytes:
    """Of a JSON document one to five values are others, gone, twice, or where another one was."""
    try:
        document = json.loads(data)
        for _ in range(chance.randint(1, 5)):
            if places := list(_places(document)):
                _change(places, chance)
        return json.dumps(document, ensure_ascii=chance.random() < 0.9).encode(
            "utf-8", "surrogatepass"
        )
    except (ValueError, RecursionError):  # no document, or one within itself
        return insert_piece(data, chance)


def _change(places: Sequence[tuple[Any, Any]], chance: random.Random) -> None:
    """Change one of these places."""
    holder, key = chance.choice(places)
    kind = chance.random()
    if kind < 0.6:
        holder[key] = deepcopy(chance.choice(_VALUES))
    elif kind < 0.75:
        del holder[key]
    elif isinstance(holder, list):
        holder[key:key] = [holder[key]] * chance.choice((1, 3))
    elif kind < 0.85:
        holder[chance.choice(("", "x" * 300, "\ud800", "\0", "job_id"))] = holder.pop(key)
    else:
        other, place = chance.choice(places)
        holder[key] = json.loads(json.dumps(other[place]))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    inside = (
        list(enumerate(value))
        if isinstance(value, list)
        else list(value.items())
        if isinstance(value, dict)
        else []
    )
    for key, inner in inside:
        yield value, key
        yield from _places(inner)


def mutate(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """Return one of the seeds, changed one to four times."""
    data = chance.choice(seeds)
    if data[:1] in (b"{", b"[") and chance.random() < 0.5:
        return change_document(data, chance)[:LARGEST]
    for _ in range(chance.randint(1, 4)):
        kind = chance.random()
        if kind < 0.05:
            data = chance.choice(_RARE)(data, chance)
        elif kind < 0.15:
            data = splice(data, chance.choice(seeds), chance)
        else:
            data = chance.choice(_MUTATORS)(data, chance)
    return data[:LARGEST]
