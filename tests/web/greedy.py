"""Answers that take too much, made by a real worker: it imports this file by PYTHONPATH."""

from __future__ import annotations

import time

from tachograph.catalog.errors import SeveralJobsError


def take(_: object, __: object, mib: int) -> int:
    """Take memory, and answer with little."""
    return len(bytearray(mib << 20)) >> 20


def answer(_: object, __: object, mib: int) -> bytes:
    """Answer with much."""
    return bytes(mib << 20)


def wait(_: object, __: object) -> None:
    """Answer never."""
    time.sleep(1e6)


def rest(_: object, __: object, seconds: float) -> bool:
    """Answer late."""
    time.sleep(seconds)
    return True


def refuse(_: object, __: object) -> None:
    """Refuse what is asked, as an answer of the lake does."""
    raise SeveralJobsError("several", candidates=[("a", "a:1:1")])
