"""What a collection would do: each source asked once, nothing landed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime

from tachograph.collect.reader import Source
from tachograph.errors import TachographError
from tachograph.ingest import watermark
from tachograph.lake import Lake
from tachograph.schema import TABLES, conform
from tachograph.sources import Chunk

LONGEST_S = 20.0  # of chunks of one source; what is left is not asked for
MOST_CHUNKS = 5


@dataclass(slots=True)
class Checked:
    """What one source answered. `watermarks`: from where each stream would be read on; None: from its beginning."""

    name: str
    every_s: float
    problem: str | None = None
    chunks: int = 0
    more: bool = False  # there would have been more chunks
    rows: dict[str, int] = field(default_factory=dict)  # that would land, by table
    rejects: dict[str, int] = field(default_factory=dict)  # by reason
    watermarks: dict[str, datetime | None] = field(default_factory=dict)
    unreachable: dict[str, str] = field(default_factory=dict)
    skew_s: dict[str, float] = field(default_factory=dict)


def check(source: Source, lake: Lake, *, now: datetime) -> Checked:
    """Ask a source once, without landing what it answers; what goes wrong is part of the answer."""
    checked = Checked(source.name, source.every_s)

    def known(stream: str) -> datetime | None:
        checked.watermarks[stream] = watermark(lake, stream)
        return checked.watermarks[stream]

    until = time.monotonic() + LONGEST_S
    try:
        for chunk in source.feed.poll(known, now=now):
            if checked.chunks == MOST_CHUNKS or time.monotonic() > until:
                checked.more = True
                break
            _count(checked, chunk, now)
    except TachographError as problem:
        checked.problem = " ".join(str(problem).split())
    checked.unreachable = dict(source.feed.asked.unreachable)
    checked.skew_s = dict(source.feed.asked.skew_s)
    return checked


def _count(checked: Checked, chunk: Chunk, now: datetime) -> None:
    checked.chunks += 1
    for part in chunk.parts:
        conformed = conform(part.frame, TABLES[part.table], now=now, units=part.units, origin=chunk.origin)
        checked.rows[part.table] = checked.rows.get(part.table, 0) + conformed.frame.height
        for reject in (*part.rejects, *conformed.rejects):
            checked.rejects[reject.reason] = checked.rejects.get(reject.reason, 0) + reject.count
