"""Sources: each reads one format and hands over chunks of contract columns. It never guesses a value.

A source is added by one file and one line in `registry.SOURCES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tachograph.rejects import Reject

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class Part:
    """Rows for one table: contract column names, in the units given (contract units where none is given).

    `rejects` are rows the reader itself had to give up (a line that does not parse, a time that does not exist).
    `overlaps`: some of the rows may have been read before; only those that tell more than the lake land.
    `counted`: all were read before, and what is removed from them was counted then.
    """

    table: str
    frame: pl.DataFrame
    units: Mapping[str, str] = field(default_factory=dict)
    rejects: tuple[Reject, ...] = ()
    overlaps: bool = False
    counted: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """What lands in the lake whole or not at all. `id` is the same whenever the same input is read again.

    A chunk with a `watermark` is a part of a stream that never ends: `id` is the stream's, everything up to the
    watermark has been read, and the chunk lands only where the stream has not got that far yet. `since`: the watermark
    from which it was read on, where known; of a chunk whose stream has got further meanwhile only what is new lands.
    """

    id: str
    source: str
    origin: str
    parts: tuple[Part, ...]
    rows_read: int
    watermark: datetime | None = None
    since: datetime | None = None

    @property
    def name(self) -> str:
        """The id; of a stream with the watermark."""
        return self.id if self.watermark is None else f"{self.id}@{self.watermark.isoformat()}"


def mark_of(now: datetime, *, before: datetime | None) -> datetime:
    """Return the watermark of what is read `now` and can never be read again: later than the one `before`.

    A clock that was set back must not make what comes look like something that has landed already.
    """
    return now if before is None else max(now, before + timedelta(microseconds=1))


@dataclass(frozen=True, slots=True)
class Pending:
    """A chunk that is asked for only where the lake does not have it: `fetch` returns the chunk called `id`."""

    id: str
    source: str
    origin: str
    fetch: Callable[[], Chunk]
