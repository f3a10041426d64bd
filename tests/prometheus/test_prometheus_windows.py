"""What an import asks for, window by window: everything, and again what may not have settled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tachograph.catalog.chunks import Chunk
from tachograph.sources.http import HttpServer
from tachograph.sources.prometheus import pending
from tachograph.sources.prometheus_query import PrometheusQueries, PrometheusSettings
from tachograph.sources.series import SeriesAnswer, SeriesMemory


class Asked(PrometheusQueries):
    """A server that has nothing, and keeps what it was asked for."""

    def __init__(self) -> None:
        settings = PrometheusSettings(source="prometheus", url="http://127.0.0.1:9", window_s=100)
        super().__init__(settings, HttpServer(settings), ())
        self.windows: list[tuple[int, int]] = []

    def samples(self, start: int, end: int) -> SeriesAnswer:
        self.windows.append((start, end))
        return SeriesAnswer([])


@pytest.fixture
def server() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.server.close()


def chunks(server: Asked, *, end: int, settled: int) -> list[Chunk]:
    return [one.fetch() for one in pending(server, SeriesMemory(), 50_000, end, settled=settled)]


def test_windows_are_those_of_the_clock(server: Asked) -> None:
    chunks(server, end=320_000, settled=400_000)
    assert server.windows == [
        (50_000, 100_000),
        (100_000, 200_000),
        (200_000, 300_000),
        (300_000, 320_000),
    ]


def test_what_may_not_have_settled_is_asked_for_and_once_more_later(server: Asked) -> None:
    early = {chunk.id for chunk in chunks(server, end=300_000, settled=270_000)}
    assert server.windows[-2:] == [(200_000, 270_000), (270_000, 300_000)]
    later = [chunk.id for chunk in chunks(server, end=300_000, settled=400_000)]
    assert [chunk_id in early for chunk_id in later] == [True, True, False]
