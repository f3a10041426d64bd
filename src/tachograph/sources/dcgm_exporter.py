"""dcgm-exporter, node_exporter and others of their kind, read without a Prometheus: saved pages, or asked directly.

An exporter tells the values of now. A page is one look: its samples are of the moment it was scraped, unless a time
stands behind the value.
"""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import polars as pl

from tachograph.config import Configuration
from tachograph.errors import ConfigError, InputError, UsageError
from tachograph.schema import TIME, Reject
from tachograph.sources import Chunk, Part
from tachograph.sources.feeds import FeedSettings, settings_of
from tachograph.sources.files import expand, fingerprint
from tachograph.sources.frames import BROKEN_GZIP, opened
from tachograph.sources.metrics.endpoints import NAME, Settings
from tachograph.sources.metrics.names import refuse_unknown
from tachograph.sources.metrics.pages import Gathering, Vocabulary
from tachograph.sources.metrics.scrape import ScrapeFeed, connect_exporters, with_cluster
from tachograph.units import parse_time, plural

__all__ = ["SUFFIXES", "Settings", "add_options", "connect", "read"]

SUFFIXES = (".prom", ".metrics", ".txt", ".prom.gz", ".metrics.gz", ".txt.gz")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the pages or addresses, and what pages do not tell."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="saved pages, or folders of them")
    parser.add_argument("--url", action="append", default=[], help="ask an exporter once; hostlist allowed; repeatable")
    parser.add_argument("--time", help="when the pages were saved (default: when the file was last changed)")
    parser.add_argument("--node", help="host of pages that name none")


def connect(settings: FeedSettings, *, configuration: Configuration) -> ScrapeFeed:
    """Return the feed; nothing is asked yet.

    Errors: ConfigError for settings that do not fit, naming the key.
    """
    if not isinstance(settings, Settings):
        raise ConfigError(f"these are settings of {settings.source}", do=f"use source = {NAME!r}")
    return connect_exporters(settings, cluster=configuration.site.cluster or None)


def read(options: argparse.Namespace, *, configuration: Configuration, now: datetime) -> Iterator[Chunk]:
    """Yield one chunk per page; of exporters that are asked one for all of them.

    Without pages and addresses the exporters of the configuration are asked. Names of metrics and labels are the
    configuration's.
    Errors: InputError for a page that cannot be read, and, behind the chunk, naming exporters that did not answer.
    """
    settings = _configured(configuration)
    if options.files and options.url:
        raise UsageError("pages and --url are both given", do="give one of them")
    if options.files:
        yield from _read_pages(options, settings, configuration, now)
    else:
        yield from _ask_once(tuple(options.url), settings, configuration, now)


def _configured(configuration: Configuration) -> Settings:
    """The first entry of the configuration that is about exporters; else the defaults."""
    raw = next((entry for entry in configuration.sources if entry.get("source") == NAME), {"source": NAME})
    settings = settings_of(raw, where="[[sources]]")
    return settings if isinstance(settings, Settings) else Settings(source=NAME)


def _ask_once(
    urls: tuple[str, ...], settings: Settings, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    if not urls and not (settings.urls or settings.url):
        raise UsageError("no page and no address", do="name files, or --url http://HOST:9400/metrics")
    if urls:
        settings = msgspec.structs.replace(settings, url="", urls=urls)
    feed = connect(msgspec.structs.replace(settings, name="once"), configuration=configuration)
    once = f"{NAME}-once:{socket.gethostname()}:{now.isoformat()}"  # no stream: others ask theirs at the same time
    try:
        for chunk in feed.poll(lambda stream: None, now=now):
            yield replace(chunk, id=once, watermark=None, parts=tuple(map(_one_look, chunk.parts)))
    finally:
        feed.close()
    missing = feed.asked.unreachable
    if missing:
        first = next(iter(missing))
        more = f" (and {plural(len(missing) - 1, 'other')})" if len(missing) > 1 else ""
        raise InputError(f"{missing[first]}{more}", where=first, do="the others are read")


def _one_look(part: Part) -> Part:
    """The part; one look does not tell since when a job holds its GPU."""
    if part.table != "allocations":
        return part
    return replace(part, frame=part.frame.with_columns(start=pl.lit(None, dtype=TIME)))


def _read_pages(
    options: argparse.Namespace, settings: Settings, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    refuse_unknown(settings.metrics, where="[[sources]]")
    vocabulary = Vocabulary(metrics=settings.metrics, labels=settings.labels)
    meaning = msgspec.json.encode((settings.metrics, settings.labels)).decode()
    told = parse_time(options.time, now=now, zone_name=configuration.site.time_zone) if options.time else None
    for given in options.files:
        in_folder = getattr(options, "in_folder", False) or Path(given).is_dir()
        for path in expand([given], SUFFIXES):
            gathering = Gathering(vocabulary)
            t = told or _changed(path)
            gathering.add(_content(path), t=t, node=options.node)
            parts = _parts(gathering, path, in_folder=in_folder, cluster=configuration.site.cluster or None)
            print_of = fingerprint(path, NAME, t.isoformat(), options.node or "", meaning)
            yield Chunk(f"{print_of}:0", NAME, str(path), parts, gathering.known)


def _changed(path: Path) -> datetime:
    """When the page was saved. Copying a file keeps it with `cp -p` only."""
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)


def _content(path: Path) -> bytes:
    with opened(path) as file:
        try:
            content = file.read()
        except BROKEN_GZIP as problem:
            raise InputError(f"damaged gzip: {problem}", where=str(path), do="copy it again") from None
    if not content.strip():
        raise InputError("the file is empty", where=str(path), do="save the page again")
    if content.lstrip()[:1] in (b"{", b"["):
        raise InputError("this is JSON, no page of an exporter", where=str(path), do="save what /metrics answers")
    return content


def _parts(gathering: Gathering, path: Path, *, in_folder: bool, cluster: str | None) -> tuple[Part, ...]:
    """The parts; of a folder's file without a metric one reject."""
    if not gathering.known and not in_folder:
        what = "no metric of this page is known"
        raise InputError(
            what, where=str(path), do="see docs/counters.md; name your own ones under metrics in [[sources]]"
        )
    if not gathering.known:
        return (Part("gpu_samples", pl.DataFrame(), rejects=(Reject("no_counter", None, 1, str(path)[-200:]),)),)
    return tuple(
        Part(part.table, with_cluster(part.frame, cluster), part.units, part.rejects, part.overlaps)
        if part.table == "allocations" and part.frame.height
        else part
        for part in gathering.parts()
    )
