"""A stretch of the past, window by window: each is asked for once, and lands whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import msgspec

from tachograph.sources import Chunk, Pending
from tachograph.sources.prometheus.query import Querying, origin
from tachograph.sources.prometheus.rows import Memory, parts
from tachograph.sources.prometheus.settings import NAME, Settings

# what changes the rows; how they are asked for does not, but for the times of `range`
_SAID = ("url", "selector", "how", "step_s", "labels", "metrics", "refresh_s")


@dataclass(frozen=True, slots=True)
class Window:
    """[start, end), milliseconds since 1970."""

    start: int
    end: int


def windows(start: int, end: int, size: int) -> Iterator[Window]:
    """Yield the windows of [start, end), cut where the time since 1970 is a multiple of `size`.

    >>> list(windows(5, 25, 10))
    [Window(start=5, end=10), Window(start=10, end=20), Window(start=20, end=25)]
    """
    while start < end:
        until = min(end, (start // size + 1) * size)
        yield Window(start, until)
        start = until


def pending(querying: Querying, memory: Memory, start: int, end: int, *, settled: int) -> Iterator[Pending]:
    """Yield the windows of [start, end) as chunks that are asked for only where they are not in the lake.

    What is younger than `settled` may not all be there yet: it is a window of its own, and so is asked for again as a
    part of the whole one by whoever comes later.
    """
    reached: list[int] = []

    def fetch(window: Window, chunk_id: str) -> Chunk:
        if reached[-1:] != [window.start]:  # a window in between was there already: nobody watched who held what
            memory.holders.now.clear()
        reached[:] = [window.end]
        found = querying.samples(window.start, window.end)
        made = parts(found, memory, overlaps=True)
        return Chunk(chunk_id, NAME, origin(querying), made, rows_read=found.points)

    asked = list(windows(start, min(end, settled), round(querying.settings.window_s * 1000)))
    if end > settled:
        asked.append(Window(max(start, settled), end))
    for window in asked:
        chunk_id = f"{NAME}:{_name(querying.settings, window)}"
        yield Pending(chunk_id, NAME, origin(querying), partial(fetch, window, chunk_id))


def milliseconds(moment: datetime) -> int:
    """Return the milliseconds since 1970.

    >>> milliseconds(datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC))
    1500
    """
    return round(moment.timestamp() * 1000)


def moment(milliseconds: int) -> datetime:
    """Return the UTC time of milliseconds since 1970.

    >>> moment(1500).isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    seconds, rest = divmod(milliseconds, 1000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest * 1000)


def _name(settings: Settings, window: Window) -> str:
    """What the window is called: the same whenever the same is asked."""
    told = msgspec.to_builtins(settings)
    said = [told[name] for name in _SAID] + [window.start, window.end]
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:32]
