"""Source and feed `dcgm-exporter`: pages of exporters, saved or polled.

An exporter reports current values. A page is one scrape: its samples have the time of the scrape,
unless a time follows the value.
"""

from __future__ import annotations

import argparse
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import msgspec
import polars as pl

from tachograph.catalog.chunks import Chunk, ChunkPart, Reject, next_watermark, of_cluster
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import InputError, UsageError
from tachograph.catalog.tables import TIME
from tachograph.catalog.units import parse_time, plural
from tachograph.sources.endpoints import (
    DCGM_EXPORTER,
    ExporterEndpoint,
    ExporterSettings,
    endpoints_of,
)
from tachograph.sources.files import add_files, expand, fingerprint, read_unpacked
from tachograph.sources.http import HttpAnswer, HttpServer, RequestError
from tachograph.sources.line_protocol import collector_page, is_collector_text
from tachograph.sources.metrics import refuse_unknown_metrics
from tachograph.sources.node_pins import NodePin, NodePins
from tachograph.sources.registry import PollOutcome, Watermark, settings_in
from tachograph.sources.series import SeriesMemory, SeriesRereads, SeriesVocabulary
from tachograph.sources.series_rows import SeriesRows

_ABORT_ROUNDS = 1.5  # after which an answer that is still under way is broken off
_HEAD_BYTES = 65536  # of a file, by which line protocol is recognised
_PAGE_KINDS = ("", "text/plain", "application/openmetrics-text")  # content types


@dataclass(frozen=True, slots=True)
class _ScrapedPage:
    """A response and its arrival time on the monotonic clock."""

    answer: HttpAnswer
    at_s: float


class ScrapeFeed:
    """Exporters that are polled in rounds; a round is committed as one chunk of the stream.

    round_s: how long a round waits for answers; one that comes later is taken in the next round.
    """

    def __init__(
        self,
        settings: ExporterSettings,
        *,
        cluster: str | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.outcome = PollOutcome()
        self.round_s = settings.round_s
        self._settings = settings
        self._endpoints = endpoints_of(settings)
        self._cluster = cluster
        self._steady = steady
        vocabulary = SeriesVocabulary(metrics=settings.metrics, labels=settings.labels)
        self._memory = SeriesMemory(vocabulary, rereads=SeriesRereads(settings.refresh_s))
        pins = NodePins({endpoint.label: endpoint.node for endpoint in self._endpoints})
        self._pins = (
            {} if settings.many_nodes else {label: NodePin(pins, label) for label in pins.hosts}
        )
        self._pool = ThreadPoolExecutor(max(1, settings.parallel), thread_name_prefix="scrape")
        self._late: dict[str, Future[_ScrapedPage]] = {}
        self._late_since: dict[str, float] = {}

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield one round as a chunk; samples have response times, the watermark is `now`.

        Where the clock was set back the watermark is just behind the last one.
        Errors: InputError when no exporter answered with metrics.
        """
        self.outcome = PollOutcome()
        rows = SeriesRows(self._memory)
        began = self._steady()
        for endpoint, page in self._pages(began):
            t = now + timedelta(seconds=page.at_s - began)
            pin = self._pins.get(endpoint.label)
            if not rows.add_page(page.answer.content, t=t, node=endpoint.node, pin=pin):
                self.outcome.unreachable[endpoint.label] = _no_metric(page.answer.kind)
            if pin is not None and pin.refused is not None:
                self.outcome.other_nodes[endpoint.label] = pin.refused
            if endpoint.server.skew_s is not None:
                self.outcome.skew_s[endpoint.label] = endpoint.server.skew_s
        if not rows.known:
            raise self._nothing()
        parts = with_cluster(rows.parts(), self._cluster)
        origin = self._settings.stream
        mark = next_watermark(now, before=watermark(self._settings.stream))
        yield replace(_chunk(self._settings.stream, origin, parts, rows), watermark=mark)

    @property
    def exporters(self) -> frozenset[str]:
        """Names of the exporters that wrote the pages, as far as known."""
        return frozenset(self._memory.vocabulary.exporters)

    def close(self) -> None:
        """Close connections."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for endpoint in self._endpoints:
            if endpoint.label in self._late:
                endpoint.server.abort()
            endpoint.server.close()

    def _pages(self, began: float) -> Iterator[tuple[ExporterEndpoint, _ScrapedPage]]:
        """Yield responses in order of arrival; exporters without one count as unreachable."""
        waiting: dict[Future[_ScrapedPage], ExporterEndpoint] = {}
        for endpoint in self._endpoints:
            self._request(endpoint, began, waiting)
        try:
            for answered in as_completed(tuple(waiting), timeout=self.round_s):
                endpoint = waiting.pop(answered)
                try:
                    yield endpoint, answered.result()
                except RequestError as problem:
                    self.outcome.unreachable[endpoint.label] = problem.what
        except TimeoutError:
            self._leave(waiting, began)

    def _request(
        self,
        endpoint: ExporterEndpoint,
        began: float,
        waiting: dict[Future[_ScrapedPage], ExporterEndpoint],
    ) -> None:
        """Await an exporter's late answer or request its page; abort requests that take too
        long.
        """
        late = self._late.get(endpoint.label)
        if late is not None and not late.done():
            self.outcome.unreachable[endpoint.label] = "is still answering the previous poll"
            if began - self._late_since[endpoint.label] > _ABORT_ROUNDS * self._settings.round_s:
                endpoint.server.abort()
            return
        self._late.pop(endpoint.label, None)
        if late is None or late.exception() is not None:
            late = self._pool.submit(self._fetch, endpoint.server)
        waiting[late] = endpoint

    def _leave(
        self, waiting: Mapping[Future[_ScrapedPage], ExporterEndpoint], began: float
    ) -> None:
        after_s = self._steady() - began
        for future, endpoint in waiting.items():
            if future.cancel():
                why = (
                    f"its turn did not come within {after_s:.0f} s; raise parallel, or lower "
                    "timeout_s"
                )
            else:
                why = f"no complete answer within {after_s:.0f} s"
                self._late[endpoint.label] = future
                self._late_since[endpoint.label] = began
            self.outcome.unreachable[endpoint.label] = why

    def _fetch(self, server: HttpServer) -> _ScrapedPage:
        answer = server.get("")
        return _ScrapedPage(answer, self._steady())

    def _nothing(self) -> InputError:
        label, why = next(iter(self.outcome.unreachable.items()), ("", "no exporter is named"))
        others = len(self.outcome.unreachable) - 1
        more = f" (and {plural(others, 'other')})" if others > 0 else ""
        return InputError(f"{why}{more}", where=label or self._settings.stream, do="check urls")


def _no_metric(kind: str) -> str:
    of = "this page" if kind in _PAGE_KINDS else f"this answer ({kind[:60]})"
    return f"no metric of {of} is known; is it an exporter's?"


def _chunk(name: str, origin: str, parts: tuple[ChunkPart, ...], rows: SeriesRows) -> Chunk:
    """The chunk of one page or round; a line with a value is a row."""
    passed = {"facts": rows.facts} if rows.facts else {}
    read = rows.known + rows.unreadable
    return Chunk(name, DCGM_EXPORTER, origin, parts, read, passed=passed, unread=rows.unread)


def with_cluster(parts: Iterable[ChunkPart], cluster: str | None) -> tuple[ChunkPart, ...]:
    """Return parts with the cluster of allocations that name none set."""
    named = pl.coalesce(pl.col("^cluster$"), pl.lit(cluster, dtype=pl.String))
    return _with_allocations(parts, cluster=named)


def _without_starts(parts: Iterable[ChunkPart]) -> tuple[ChunkPart, ...]:
    """The parts; one scrape does not show since when a job holds its GPU."""
    return _with_allocations(parts, start=pl.lit(None, dtype=TIME))


def _with_allocations(parts: Iterable[ChunkPart], **columns: pl.Expr) -> tuple[ChunkPart, ...]:
    changed: list[ChunkPart] = []
    for part in parts:
        if part.table == "allocations" and part.frame.height:
            changed.append(replace(part, frame=part.frame.with_columns(**columns)))
        else:
            changed.append(part)
    return tuple(changed)


SUFFIXES = (".prom", ".metrics", ".txt", ".lp", ".prom.gz", ".metrics.gz", ".txt.gz", ".lp.gz")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare files or URLs, and data missing in the pages."""
    add_files(parser, "saved pages, or folders of them", may_lack=True)
    parser.add_argument(
        "--url",
        action="append",
        default=[],
        help="poll an exporter once; hostlist allowed; repeatable",
    )
    parser.add_argument(
        "--time", help="when the pages were saved (default: when the file was last changed)"
    )
    parser.add_argument("--node", help="host of pages that name none")


SETTINGS = ExporterSettings


def connect(settings: ExporterSettings, *, configuration: Configuration) -> ScrapeFeed:
    """Return the feed; nothing is requested yet.

    Errors: ConfigError for an invalid URL, an unknown counter or unit, a missing file.
    """
    return ScrapeFeed(settings, cluster=configuration.site.cluster or None)


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield one chunk per page; one for all polled exporters.

    Without pages and addresses the exporters of the configuration are polled. Names of metrics and
    labels are the configuration's. Errors: InputError for a page that cannot be read, and, behind
    the chunk, naming exporters that did not answer.
    """
    settings = cast("ExporterSettings", settings_in(configuration, DCGM_EXPORTER)[0])
    if options.files and options.url:
        raise UsageError("pages and --url are both given", do="give one of them")
    if options.files:
        chunks = _read_pages(options, settings, configuration, now)
    else:
        chunks = _scrape_once(tuple(options.url), settings, configuration, now)
    # An option counts more, and names what this leaves.
    cluster = "" if getattr(options, "cluster", "") else settings.cluster
    for chunk in chunks:
        yield of_cluster(chunk, cluster)


def _scrape_once(
    urls: tuple[str, ...], settings: ExporterSettings, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    if not urls and not (settings.urls or settings.url):
        raise UsageError(
            "no page and no address", do="name files, or --url http://HOST:9400/metrics"
        )
    if urls:
        settings = msgspec.structs.replace(settings, url="", urls=urls)
    feed = connect(msgspec.structs.replace(settings, name="once"), configuration=configuration)
    # No stream: others poll theirs.
    once = f"{DCGM_EXPORTER}-once:{socket.gethostname()}:{now.isoformat()}"
    with closing(feed):
        for chunk in feed.poll(lambda stream: None, now=now):
            yield replace(chunk, id=once, watermark=None, parts=_without_starts(chunk.parts))
    missing = feed.outcome.unreachable
    if missing:
        first = next(iter(missing))
        more = f" (and {plural(len(missing) - 1, 'other')})" if len(missing) > 1 else ""
        raise InputError(f"{missing[first]}{more}", where=first, do="the others are read")


def _read_pages(
    options: argparse.Namespace,
    settings: ExporterSettings,
    configuration: Configuration,
    now: datetime,
) -> Iterator[Chunk]:
    refuse_unknown_metrics(settings.metrics, where="[[sources]]")
    vocabulary = SeriesVocabulary(metrics=settings.metrics, labels=settings.labels)
    meaning = msgspec.json.encode((settings.metrics, settings.labels)).decode()
    given_t = (
        parse_time(options.time, now=now, zone_name=configuration.site.time_zone)
        if options.time
        else None
    )
    for file in options.files:
        in_folder = getattr(options, "in_folder", False) or Path(file).is_dir()
        for path in expand([file], SUFFIXES):
            rows = SeriesRows(SeriesMemory(vocabulary))
            # Copying a file keeps its time with `cp -p` only.
            t = given_t or datetime.fromtimestamp(path.stat().st_mtime, UTC)
            rows.add_page(_content(path), t=t, node=options.node)
            parts = _parts(
                rows, path, in_folder=in_folder, cluster=configuration.site.cluster or None
            )
            print_of = fingerprint(path, DCGM_EXPORTER, t.isoformat(), options.node or "", meaning)
            yield _chunk(f"{print_of}:0", str(path), parts, rows)


def _content(path: Path) -> bytes:
    content = read_unpacked(path)
    if content.lstrip()[:1] in (b"{", b"["):
        raise InputError(
            "this is JSON, not a page of an exporter",
            where=path,
            do="save the answer of /metrics",
        )
    text = content[:_HEAD_BYTES].decode("utf-8", "replace")
    if is_collector_text(text):
        return collector_page(content.decode("utf-8-sig", "replace"))
    return content


def _parts(
    rows: SeriesRows, path: Path, *, in_folder: bool, cluster: str | None
) -> tuple[ChunkPart, ...]:
    """The parts; of a folder's file without a metric one reject."""
    if not rows.known and not in_folder:
        what = "no metric of this page is known"
        raise InputError(
            what,
            where=path,
            do="see docs/counters.md; name your own ones under metrics in [[sources]]",
        )
    if not rows.known:
        return (
            ChunkPart(
                "gpu_samples",
                pl.DataFrame(),
                rejects=(Reject("no_counter", None, 1, str(path)[-200:]),),
            ),
        )
    return _without_starts(with_cluster(rows.parts(), cluster))
