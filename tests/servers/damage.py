"""Texts that are damaged on their way: cut off, repeated, mixed up, with bytes of nobody."""

from __future__ import annotations

import random

JUNK = (
    b"",
    b"\n",
    b"}",
    b'"',
    b"{",
    b" ",
    b"\xff",
    b"\x00",
    b"NaN",
    b"+Inf",
    b"9223372036854775794",
    b"GPU",
    b"\\",
    b"#",
    b"\r\n",
    b"_",
    b"\xed\xa0\x80",
)


def damaged(random_: random.Random, text: bytes) -> bytes:
    """The text with a few random injuries, or none."""
    for _ in range(random_.choice([0, 0, 1, 1, 2, 5])):
        at, until = sorted(random_.randrange(len(text) + 1) for _ in range(2))
        match random_.randrange(6):
            case 0:
                text = text[:at]
            case 1:
                text = text[:at] + random_.choice(JUNK) + text[at:]
            case 2:
                text = text[:at] + bytes([random_.randrange(256)]) + text[at + 1 :]
            case 3:
                text = text[:at] + text[min(until, at + 200) :]
            case 4:
                text = text[:until] + text[at : at + 300] + text[until:]
            case 5:
                lines = text.split(b"\n")
                random_.shuffle(lines)
                text = b"\n".join(lines)
        if not text:
            return b""
    return text
