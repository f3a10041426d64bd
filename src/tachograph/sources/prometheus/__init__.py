"""Prometheus, and what answers like it: Thanos, Mimir, VictoriaMetrics; and answers of theirs that were saved."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.errors import UsageError
from tachograph.sources import Chunk, Pending
from tachograph.sources.feeds import beginning, named
from tachograph.sources.prometheus.options import add_options, settings_of_options
from tachograph.sources.prometheus.settings import Settings, check
from tachograph.units import parse_time

if TYPE_CHECKING:
    from tachograph.config import Configuration
    from tachograph.sources.prometheus.feed import PrometheusFeed
    from tachograph.sources.prometheus.rows import Memory

__all__ = ["SUFFIXES", "Settings", "add_options", "connect", "read"]

SUFFIXES = (".json", ".jsonl")


def connect(settings: Settings, *, configuration: Configuration) -> PrometheusFeed:
    """Return the feed of a `[[sources]]` entry; nothing is asked yet.

    Errors: ConfigError naming the key.
    """
    from tachograph.sources.prometheus.feed import PrometheusFeed
    from tachograph.sources.prometheus.query import Querying, server_of

    with named(settings.title):
        check(settings)
        memory = _memory(settings)
        beginning(settings.from_, now=datetime.now(UTC), zone_name=configuration.site.time_zone)
        querying = Querying(settings, server_of(settings), memory.legend.metrics)
    return PrometheusFeed(settings, querying, memory, zone_name=configuration.site.time_zone)


def read(options: argparse.Namespace, *, configuration: Configuration, now: datetime) -> Iterator[Chunk | Pending]:
    """Yield saved answers, or the windows of the time asked for.

    Errors: InputError for a file that cannot be read, or a server that does not answer; UsageError, ConfigError.
    """
    from tachograph.sources.prometheus.importing import milliseconds, pending
    from tachograph.sources.prometheus.query import Querying, server_of
    from tachograph.sources.prometheus.saved import read_saved

    settings = settings_of_options(options, configuration)
    check(settings, where="--url")
    memory = _memory(settings)
    if options.files:
        for file in options.files:
            yield read_saved(Path(file), memory)
        return
    if options.from_ is None:
        raise UsageError("--from is missing", do="say from when on: a time, or a span before now such as 12h")
    zone_name = configuration.site.time_zone
    start = milliseconds(parse_time(options.from_, now=now, zone_name=zone_name))
    end = milliseconds(parse_time(options.to, now=now, zone_name=zone_name)) if options.to else milliseconds(now)
    end = min(end, milliseconds(now))
    settled = milliseconds(now) - round(settings.settle_s * 1000)
    if start >= end:
        raise UsageError("--from is not before --to, or both are yet to come", do="give a time that has passed")
    server = server_of(settings)
    try:
        querying = Querying(settings, server, memory.legend.metrics)
        yield from pending(querying, memory, start, end, settled=settled)
    finally:
        server.close()


def _memory(settings: Settings) -> Memory:
    from tachograph.sources.prometheus.legend import Legend
    from tachograph.sources.prometheus.rereads import Rereads
    from tachograph.sources.prometheus.rows import Memory

    return Memory(Legend(settings.labels, settings.metrics), rereads=Rereads(settings.refresh_s))
