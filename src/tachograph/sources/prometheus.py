"""Source and feed `prometheus`: Prometheus, Thanos, Mimir, VictoriaMetrics, saved answers."""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import msgspec

from tachograph.catalog.chunks import Chunk, ChunkPart, PendingChunk, of_cluster
from tachograph.catalog.config import FILE_NAME
from tachograph.catalog.errors import ConfigError, UsageError
from tachograph.catalog.units import YEAR_S, parse_time, real_number
from tachograph.sources.files import add_files, fingerprint, read_bytes
from tachograph.sources.http import HttpAnswer, RequestError
from tachograph.sources.prometheus_query import (
    PROMETHEUS,
    QUERY_METHODS,
    PrometheusQueries,
    PrometheusSettings,
    check_settings,
    origin,
    read_export,
    read_result,
    server_of,
)
from tachograph.sources.registry import (
    PollOutcome,
    Watermark,
    entry_errors,
    settings_of,
    start_time,
)
from tachograph.sources.series import (
    SeriesAnswer,
    SeriesMemory,
    SeriesRereads,
    SeriesRun,
    SeriesVocabulary,
)
from tachograph.sources.series_rows import series_parts

if TYPE_CHECKING:
    from tachograph.catalog.config import Configuration


# options that are keys of the settings
_KEYS = ("url", "selector", "how", "step_s", "window_s")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the server and the time to read, or files."""
    add_files(parser, "saved answers (JSON), in place of a server", may_lack=True)
    parser.add_argument("--url", help="address of the server, with its path")
    parser.add_argument(
        "--name", help="entry of [[sources]] with the other settings, where there are several"
    )
    parser.add_argument(
        "--from",
        dest="from_",
        metavar="TIME",
        help="start of the time span: 2026-04-23T10:30, or 12h before now",
    )
    parser.add_argument(
        "--to", metavar="TIME", help="end of the time span, exclusive (default: now)"
    )
    parser.add_argument(
        "--selector", help="""matchers that every series must meet: '{job="dcgm"}'"""
    )
    parser.add_argument(
        "--how",
        choices=QUERY_METHODS,
        help="how samples are queried (default auto: the best supported way)",
    )
    parser.add_argument(
        "--step",
        dest="step_s",
        type=real_number(0.001, YEAR_S),
        metavar="S",
        help="scrape interval, for --how range",
    )
    parser.add_argument(
        "--window",
        dest="window_s",
        type=real_number(1, YEAR_S),
        metavar="S",
        help="queried at a time (default 3600)",
    )


def settings_of_options(
    options: argparse.Namespace, configuration: Configuration
) -> PrometheusSettings:
    """Return the settings of the configuration's entry, if there is one, overridden by options.

    Errors: UsageError where no server is named, or several are; ConfigError for an entry that does
    not fit.
    """
    entry = _entry(options, configuration)
    raw = dict(entry)
    raw |= {key: value for key in _KEYS if (value := getattr(options, key)) is not None}
    if not raw.get("url") and not options.files:
        raise UsageError(
            "no server is given", do="name one with --url, or in [[sources]] of tachograph.toml"
        )
    try:
        return _checked(raw, file="", where="--url")
    except ConfigError:
        if entry:
            file = getattr(options, "config", None) or FILE_NAME
            _checked(entry, file=file, where=f"{file}: [[sources]] {entry.get('name', PROMETHEUS)}")
        raise


def _checked(raw: Mapping[str, object], *, file: str, where: str) -> PrometheusSettings:
    """Validated settings. where: their location, for errors; `file`: the configuration file."""
    settings = settings_of({**raw, "source": PROMETHEUS}, where=file or where)
    if not isinstance(settings, PrometheusSettings):
        raise ConfigError(
            f"{PROMETHEUS} has other settings",
            where="[[sources]]",
            do="see docs/ingest-prometheus.md",
        )
    check_settings(settings, where=where)
    return settings


def _entry(options: argparse.Namespace, configuration: Configuration) -> dict[str, object]:
    """Selected configuration entry; none if only a server is named.

    Saved answers are read with the names of the only entry, so that they mean what the server's own
    mean.
    """
    entries = [entry for entry in configuration.sources if entry.get("source") == PROMETHEUS]
    if options.name is not None:
        entries = [entry for entry in entries if entry.get("name", PROMETHEUS) == options.name]
        if not entries:
            raise UsageError(
                f"no [[sources]] entry of {PROMETHEUS} is called {options.name!r}",
                do="see tachograph.toml",
            )
    elif options.url:
        return {}
    elif options.files:
        kept_keys = ("cluster", "labels", "metrics", "refresh_s")
        return (
            {key: entries[0][key] for key in kept_keys if key in entries[0]}
            if len(entries) == 1
            else {}
        )
    if len(entries) > 1:
        names = ", ".join(str(entry.get("name", PROMETHEUS)) for entry in entries)
        raise UsageError(
            f"several [[sources]] entries of {PROMETHEUS}", do=f"choose one with --name: {names}"
        )
    return entries[0] if entries else {}


# what changes the rows; how they are queried does not, but for the times of `range`
_SETTING_KEYS = ("url", "selector", "how", "step_s", "labels", "metrics", "refresh_s")


@dataclass(frozen=True, slots=True)
class ImportWindow:
    """[start, end), milliseconds since 1970."""

    start: int
    end: int


def windows(start: int, end: int, size: int) -> Iterator[ImportWindow]:
    """Yield the windows of [start, end), cut at multiples of `size` since 1970.

    >>> list(windows(5, 25, 10))
    [ImportWindow(start=5, end=10), ImportWindow(start=10, end=20), ImportWindow(start=20, end=25)]
    """
    while start < end:
        until = min(end, (start // size + 1) * size)
        yield ImportWindow(start, until)
        start = until


def pending(
    querying: PrometheusQueries, memory: SeriesMemory, start: int, end: int, *, settled: int
) -> Iterator[PendingChunk]:
    """Yield the windows of [start, end) as chunks, fetched only if the lake lacks them.

    What is younger than `settled` may not all be there yet: it is a window of its own, fetched
    again later as a part of the whole one.
    """
    reached: list[int] = []

    def fetch(window: ImportWindow, chunk_id: str) -> Chunk:
        # A window in between was there already: allocations were not watched.
        if reached[-1:] != [window.start]:
            memory.allocations.now.clear()
        reached[:] = [window.end]
        samples = querying.samples(window.start, window.end)
        parts = series_parts(samples, memory, overlaps=True)
        return Chunk(chunk_id, PROMETHEUS, origin(querying), parts, rows_read=samples.points)

    requested = list(windows(start, min(end, settled), round(querying.settings.window_s * 1000)))
    if end > settled:
        requested.append(ImportWindow(max(start, settled), end))
    for window in requested:
        chunk_id = f"{PROMETHEUS}:{_name(querying.settings, window)}"
        yield PendingChunk(chunk_id, PROMETHEUS, origin(querying), partial(fetch, window, chunk_id))


def milliseconds(moment: datetime) -> int:
    """Return the milliseconds since 1970.

    >>> milliseconds(datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC))
    1500
    """
    return round(moment.timestamp() * 1000)


def moment(milliseconds: int) -> datetime:
    """Return the UTC time of milliseconds since 1970.

    >>> moment(1500).isoformat()
    '1970-01-01T00:00:01.500000+00:00'
    """
    seconds, rest = divmod(milliseconds, 1000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest * 1000)


def _name(settings: PrometheusSettings, window: ImportWindow) -> str:
    """Name of the window, equal for equal queries."""
    values = msgspec.to_builtins(settings)
    text = [values[name] for name in _SETTING_KEYS] + [window.start, window.end]
    return hashlib.sha256(msgspec.json.encode(text)).hexdigest()[:32]


_TOLERATED_S = 2.0  # of difference between clocks: `Date` has whole seconds
_SILENT_S = 300.0  # at least: a younger window is read only up to its newest sample, more may come


@dataclass(slots=True)
class PrometheusFeed:
    """A polled Prometheus."""

    settings: PrometheusSettings
    querying: PrometheusQueries
    memory: SeriesMemory
    zone_name: str = "UTC"
    outcome: PollOutcome = field(default_factory=PollOutcome)
    _late_memory: SeriesMemory = field(init=False)

    def __post_init__(self) -> None:
        self._late_memory = SeriesMemory(
            vocabulary=self.memory.vocabulary,
            devices=self.memory.devices,
            rereads=SeriesRereads(self.settings.refresh_s),
        )

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield windows since the watermark, then windows read `lookback_s` ago again.

        Errors: RequestError if the server gives nothing; chunks already yielded stay.
        """
        self.outcome = PollOutcome()
        if self.querying.how == "auto":
            self.querying.how = self.querying.choose()
        until = self._until(now)
        since = watermark(self.settings.stream)
        late_since = watermark(self._late)
        if since is None:
            since = moment(
                milliseconds(start_time(self.settings.from_, now=now, zone_name=self.zone_name))
            )
        if late_since is None and self.settings.lookback_s > 0:
            late_since = since
            yield self._chunk(self._late, (), 0, since=since, until=since)
        reached = milliseconds(since)
        scraped = min(until, milliseconds(now) - round(self._behind_s * 1000))
        settled, silent = (
            scraped - self._lookback,
            scraped - max(self._lookback, round(_SILENT_S * 1000)),
        )
        for window in windows(reached, until, self._window):
            samples = self.querying.samples(window.start, window.end)
            end = min(window.end, max(silent, samples.end))
            # Nothing yet; a sample of the next window may tell that no more will come.
            if end <= reached:
                continue
            rows = series_parts(samples, self.memory, overlaps=False)
            yield self._chunk(
                self.settings.stream, rows, samples.points, since=moment(reached), until=moment(end)
            )
            if late_since == moment(reached) and reached < settled:
                # Read that long after: all late samples have arrived.
                late_since = moment(min(end, settled))
                yield self._chunk(self._late, (), 0, since=moment(reached), until=late_since)
            reached = end
        if late_since is not None:
            yield from self._second_look(
                milliseconds(late_since), min(reached - self._lookback, settled)
            )
        self._note_clocks()

    def close(self) -> None:
        """Close connections."""
        self.querying.server.close()

    @property
    def exporters(self) -> frozenset[str]:
        """Names of the exporters that wrote the series, as far as known."""
        return frozenset(self.memory.vocabulary.exporters)

    @property
    def _late(self) -> str:
        return f"{self.settings.stream}:late"

    @property
    def _lookback(self) -> int:
        return round(self.settings.lookback_s * 1000)

    @property
    def _window(self) -> int:
        return round(self.settings.window_s * 1000)

    @property
    def _behind_s(self) -> float:
        """Return how far the server's clock is behind ours; 0 if ahead or about equal."""
        skew_s = self.querying.server.skew_s or 0.0
        return -skew_s if skew_s < -_TOLERATED_S else 0.0

    def _until(self, now: datetime) -> int:
        """Up to when to query: never beyond our own clock, whatever the server's `Date` is.

        A server whose clock is behind has scraped less. A `Date` that is far off may not be its
        clock: then its newest samples tell how far it is.
        """
        behind_s = min(self._behind_s, self.settings.lookback_s)
        return milliseconds(now) - math.ceil((behind_s + self.settings.settle_s) * 1000)

    def _second_look(self, since: int, until: int) -> Iterator[Chunk]:
        """Yield windows read at least `lookback_s` ago again, in blocks of that length."""
        if self._lookback == 0 or until - since < self._lookback:
            return
        for window in windows(since, until, self._window):
            samples = self.querying.samples(window.start, window.end)
            rows = tuple(
                replace(part, rejects=(), overlaps=True, counted=True)
                for part in series_parts(samples, self._late_memory, overlaps=True)
                if part.table != "allocations"  # allocations were recorded at the first reading
            )
            yield self._chunk(
                self._late,
                rows,
                samples.points,
                since=moment(window.start),
                until=moment(window.end),
            )

    def _chunk(
        self,
        stream: str,
        rows: tuple[ChunkPart, ...],
        points: int,
        *,
        since: datetime,
        until: datetime,
    ) -> Chunk:
        return Chunk(
            stream, PROMETHEUS, origin(self.querying), rows, points, watermark=until, since=since
        )

    def _note_clocks(self) -> None:
        """Record clock skews of the server and of nodes that report their time."""
        server = self.querying.server
        if server.skew_s is not None:
            self.outcome.skew_s[httpx2.URL(server.address).host] = server.skew_s
        try:
            skews = self.querying.node_skew_s()
        except RequestError:  # samples were read; a clock that is not reported is not known
            return
        for run in skews.runs:
            host = self.memory.vocabulary.host_of(run.labels)
            if host is not None:
                self.outcome.skew_s[host] = (server.skew_s or 0.0) + float(run.values[-1])


def read_saved(path: Path, memory: SeriesMemory) -> Chunk:
    """Return the rows of one file; the lake merges answers of one metric at one instant.

    An instant query holds its own time. Queries of one metric after the other mean one instant, so
    its times are taken in whole seconds. Errors: InputError for a file that cannot be read, or that
    holds an error or no answer.
    """
    vocabulary = memory.vocabulary
    digest = fingerprint(path, PROMETHEUS, repr(vocabulary.labels), repr(vocabulary.metrics))
    chunk_id = f"{PROMETHEUS}:{digest}"
    answer = _decode(read_bytes(path), str(path))
    if answer.instant:
        answer.runs = [
            SeriesRun(run.labels, run.t // 1000 * 1000, run.values) for run in answer.runs
        ]
    return Chunk(
        chunk_id,
        PROMETHEUS,
        str(path),
        series_parts(answer, memory, overlaps=False),
        rows_read=answer.points,
    )


def _decode(content: bytes, where: str) -> SeriesAnswer:
    """An export has a series per line, an answer is one object with its status."""
    first = content.lstrip()[:4096].partition(b"\n")[0]
    if first.startswith(b'{"metric"'):
        return read_export(content.split(b"\n"), where)
    return read_result(HttpAnswer(content, where, kind="a file"))


SUFFIXES = (".json", ".jsonl")


SETTINGS = PrometheusSettings


def connect(settings: PrometheusSettings, *, configuration: Configuration) -> PrometheusFeed:
    """Return the feed of a `[[sources]]` entry; nothing is requested yet.

    Errors: ConfigError naming the key.
    """

    with entry_errors(settings.title):
        check_settings(settings)
        memory = _memory(settings)
        start_time(settings.from_, now=datetime.now(UTC), zone_name=configuration.site.time_zone)
        querying = PrometheusQueries(settings, server_of(settings), memory.vocabulary.names)
    return PrometheusFeed(settings, querying, memory, zone_name=configuration.site.time_zone)


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk | PendingChunk]:
    """Yield saved answers, or the windows of the requested time.

    Errors: InputError for a file that cannot be read, or a server that does not answer; UsageError,
    ConfigError.
    """

    settings = settings_of_options(options, configuration)
    memory = _memory(settings)
    # An option counts more, and names what this leaves.
    cluster = "" if getattr(options, "cluster", "") else settings.cluster
    if options.files:
        for file in options.files:
            yield of_cluster(read_saved(Path(file), memory), cluster)
        return
    if options.from_ is None:
        raise UsageError(
            "--from is missing", do="give the start as a time, or as a span before now such as 12h"
        )
    zone_name = configuration.site.time_zone
    start = milliseconds(parse_time(options.from_, now=now, zone_name=zone_name))
    end = (
        milliseconds(parse_time(options.to, now=now, zone_name=zone_name))
        if options.to
        else milliseconds(now)
    )
    end = min(end, milliseconds(now))
    settled = milliseconds(now) - round(settings.settle_s * 1000)
    if start >= end:
        raise UsageError(
            "--from is not before --to, or both are yet to come", do="give a time that has passed"
        )
    server = server_of(settings)
    try:
        querying = PrometheusQueries(settings, server, memory.vocabulary.names)
        for chunk in pending(querying, memory, start, end, settled=settled):
            yield of_cluster(chunk, cluster)
    finally:
        server.close()


def _memory(settings: PrometheusSettings) -> SeriesMemory:
    vocabulary = SeriesVocabulary(metrics=settings.metrics, labels=settings.labels)
    return SeriesMemory(vocabulary, rereads=SeriesRereads(settings.refresh_s))
