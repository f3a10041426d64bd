"""What an import asks for, window by window: everything, and again what may not have settled;
options and entries that do not fit.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from tachograph.catalog.chunks import Chunk
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError, UsageError
from tachograph.sources import prometheus as source
from tachograph.sources.http import HttpServer
from tachograph.sources.prometheus import pending
from tachograph.sources.prometheus_query import PrometheusQueries, PrometheusSettings
from tachograph.sources.series import SeriesAnswer, SeriesMemory

NOW = datetime(2026, 11, 1, tzinfo=UTC)


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
    borders = [50_000, 100_000, 200_000, 300_000, 320_000]
    assert server.windows == list(pairwise(borders))


def test_what_may_not_have_settled_is_asked_for_and_once_more_later(server: Asked) -> None:
    early = {chunk.id for chunk in chunks(server, end=300_000, settled=270_000)}
    assert server.windows[-2:] == [(200_000, 270_000), (270_000, 300_000)]
    later = [chunk.id for chunk in chunks(server, end=300_000, settled=300_000)]
    assert [chunk_id in early for chunk_id in later] == [True, True, False]


def options(command: str, *more: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    source.add_options(parser)
    parser.add_argument("--config")
    return parser.parse_args([*command.split(), *more])


@pytest.mark.parametrize(
    ("command", "error", "told"),
    [
        ("", UsageError, "no server is given"),
        ("--url http://x", UsageError, "--from is missing"),
        ("--url http://x --from 2026-01-02 --to 2026-01-01", UsageError, "--from is not before"),
        ("--url http://x --from 2030-01-01", UsageError, "before --to, or both are yet to come"),
        ("--url http://x --from 1h --how range", ConfigError, "how = range needs step_s"),
        ("--url http://x --from 1h --selector up", ConfigError, "invalid selector 'up'"),
        ("--name other --from 1h", UsageError, "entry of prometheus is called 'other'"),
    ],
)
def test_options_that_do_not_fit(command: str, error: type[Exception], told: str) -> None:
    with pytest.raises(error) as caught:
        list(source.read(options(command), configuration=Configuration(), now=NOW))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("entry", "command", "error"),
    [
        (
            {"metrics": {"foo": ["gpu_utl", "percent"]}},
            "saved.json",
            "[[sources]] prometheus: metrics.foo: unknown counter 'gpu_utl'; see docs/counters.md",
        ),
        (
            {"name": "big", "window_s": 0},
            "--from 1h",
            "[[sources]] big: window_s is 0, less than 1; give window_s more",
        ),
        (
            {"window_s": "x"},
            "--from 1h",
            "[[sources]] prometheus: window_s must be a number, not text",
        ),
        (
            {"headers": 5},
            "--from 1h",
            "[[sources]] prometheus: headers must be a table of names and values, not a whole number",
        ),
    ],
)
def test_errors_of_an_entry_name_the_file_and_the_key(
    entry: dict[str, object], command: str, error: str
) -> None:
    configuration = Configuration(sources=({"source": "prometheus", "url": "http://x", **entry},))
    words = options(f"{command} --config own.toml")
    with pytest.raises(ConfigError) as caught:
        list(source.read(words, configuration=configuration, now=NOW))
    assert str(caught.value).startswith(f"own.toml: {error}")


def test_an_error_of_an_option_names_the_option() -> None:
    configuration = Configuration(sources=({"source": "prometheus", "url": "http://x"},))
    words = options("--from 1h --selector up --config own.toml")
    with pytest.raises(ConfigError, match=r"^--url: invalid selector 'up'"):
        list(source.read(words, configuration=configuration, now=NOW))
