"""A feed of exporters, its rounds, and what these bring."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

import polars as pl

from tachograph.catalog.chunks import Chunk
from tachograph.sources.dcgm_exporter import ScrapeFeed
from tachograph.sources.endpoints import DCGM_EXPORTER, ExporterSettings


@contextmanager
def feeding(*urls: str, cluster: str | None = None, **settings: Any) -> Iterator[ScrapeFeed]:
    converted = ExporterSettings(source=DCGM_EXPORTER, urls=urls, **settings)
    with closing(ScrapeFeed(converted, cluster=cluster)) as feed:
        yield feed


def poll(feed: ScrapeFeed, now: datetime | None = None) -> Chunk:
    (chunk,) = feed.poll(lambda stream: None, now=now or datetime.now(UTC))
    return chunk


def frame(chunk: Chunk, table: str = "gpu_samples") -> pl.DataFrame:
    (part,) = [part for part in chunk.parts if part.table == table]
    return part.frame


def nodes(chunk: Chunk) -> list[str]:
    return sorted(set(frame(chunk)["node"]))


def rejects(chunk: Chunk) -> dict[str, tuple[int, str | None]]:
    """Return {reason: (count, example)}."""
    return {
        reject.reason: (reject.count, reject.example)
        for part in chunk.parts
        for reject in part.rejects
    }
