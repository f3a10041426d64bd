"""Series as pages of an exporter, and what was removed from the rows made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from row_lines import frame_lines
from tachograph.catalog.chunks import ChunkPart
from tachograph.catalog.tables import TABLES
from tachograph.lake.conform import conform
from tachograph.sources.series import SeriesMemory, SeriesVocabulary
from tachograph.sources.series_rows import SeriesRows

Series = tuple[str, dict[str, str], float]


def as_page(series: Sequence[Series]) -> bytes:
    """The page, line by line."""
    lines = []
    for metric, labels, value in series:
        block = ",".join(f'{name}="{text}"' for name, text in labels.items())
        lines.append(f"{metric}{{{block}}} {value}\n")
    return "".join(lines).encode()


def reasons(parts: Mapping[str, ChunkPart]) -> dict[tuple[str, str], int]:
    """{(table, reason): count of rejects}"""
    return {
        (part.table, reject.reason): reject.count
        for part in parts.values()
        for reject in part.rejects
    }


def page_lines(
    content: str | bytes, *, node: str | None = "n1", vocabulary: SeriesVocabulary | None = None
) -> str:
    """Return the rows of a page as they land, sorted, and what was rejected or is not read."""
    t = datetime(2026, 3, 1, 12, tzinfo=UTC)
    rows = SeriesRows(SeriesMemory(vocabulary or SeriesVocabulary()))
    rows.add_page(content.encode() if isinstance(content, str) else content, t=t, node=node)
    lines = []
    for part in rows.parts():
        done = conform(part.frame, TABLES[part.table], now=t, units=part.units)
        lines.append(f"{part.table}{' that may be there' * part.overlaps}:\n")
        lines += sorted(frame_lines(done.frame).splitlines(keepends=True))
        lines += [
            f"{one.reason} {one.column} {one.count} {one.example}\n"
            for one in (*part.rejects, *done.rejects)
        ]
    return "".join([*lines, f"not read: {dict(rows.unread)}\n" if rows.unread else ""])
