"""What an import asks for, window by window: everything, and again what may not have settled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tachograph.sources import Chunk
from tachograph.sources.http import Server
from tachograph.sources.prometheus.decode import Runs
from tachograph.sources.prometheus.importing import pending
from tachograph.sources.prometheus.query import Querying
from tachograph.sources.prometheus.rows import Memory
from tachograph.sources.prometheus.settings import Settings


class Asked(Querying):
    """A server that has nothing, and keeps what it was asked for."""

    def __init__(self) -> None:
        settings = Settings(source="prometheus", url="http://127.0.0.1:9", window_s=100)
        super().__init__(settings, Server(settings), ())
        self.windows: list[tuple[int, int]] = []

    def samples(self, start: int, end: int) -> Runs:
        self.windows.append((start, end))
        return Runs([])


@pytest.fixture
def server() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.server.close()


def chunks(server: Asked, *, end: int, settled: int) -> list[Chunk]:
    return [one.fetch() for one in pending(server, Memory(), 50_000, end, settled=settled)]


def test_windows_are_those_of_the_clock(server: Asked) -> None:
    chunks(server, end=320_000, settled=400_000)
    assert server.windows == [(50_000, 100_000), (100_000, 200_000), (200_000, 300_000), (300_000, 320_000)]


def test_what_may_not_have_settled_is_asked_for_and_once_more_later(server: Asked) -> None:
    early = {chunk.id for chunk in chunks(server, end=300_000, settled=270_000)}
    assert server.windows[-2:] == [(200_000, 270_000), (270_000, 300_000)]
    later = [chunk.id for chunk in chunks(server, end=300_000, settled=400_000)]
    assert [chunk_id in early for chunk_id in later] == [True, True, False]
