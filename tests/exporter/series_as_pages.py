"""Series as pages of an exporter, and what was removed from the rows made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tachograph.catalog.chunks import ChunkPart

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
