"""Feeds of `collect` as live sources: exporters and Prometheus, polled by threads."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
import numpy as np

from tachograph.annexes.watch.live.newest_snapshot import newest_snapshot
from tachograph.annexes.watch.live.snapshot import (
    GpuDevice,
    GpuId,
    Snapshot,
    SourceInfo,
    SourceProblem,
    closed_on_failure,
)
from tachograph.annexes.watch.live.unsupported import advised_source, unsupported_counters
from tachograph.catalog.arrays import Floats
from tachograph.catalog.chunks import of_cluster
from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.catalog.errors import ConfigError, InputError, TachographError
from tachograph.catalog.units import plural
from tachograph.lake.newest_rows import ALLOCATIONS, SAMPLES, NewestRows, NewestTables
from tachograph.lake.places import ClusterNames
from tachograph.sources.dcgm_exporter import ScrapeFeed
from tachograph.sources.endpoints import (
    DCGM_EXPORTER,
    ExporterSettings,
    endpoints_of,
    expanded_urls,
)
from tachograph.sources.gpu_indices import AMBIGUOUS, NO_GPU
from tachograph.sources.metrics import short_node
from tachograph.sources.prometheus import connect as connect_prometheus
from tachograph.sources.prometheus_query import PROMETHEUS, PrometheusSettings
from tachograph.sources.registry import SourceFeed, convert_settings, entry_errors

if TYPE_CHECKING:
    from tachograph.catalog.config import Configuration

Settings = TypeVar("Settings", ExporterSettings, PrometheusSettings)
_FIRST_S = 5.0  # wait of connecting for the first poll
_LATE_S = 3.0  # without an end of a poll, after which a problem is reported
_RETRY_S = 10.0  # the longest until a source that failed is polled again
_SHARE = 0.1  # share of the time of a core for a feed, at most
_SEEN_S = 3600.0  # a GPU without values keeps its row for so long
_MADE_S = 2.0  # a snapshot is made anew after so long: values become too old
_MOVING: Final = ("energy_j", "power_w")  # these always change, of a GPU that is measured


class LiveFeed(SourceFeed, Protocol):
    """A feed that knows who wrote the series it read."""

    @property
    def exporters(self) -> frozenset[str]:
        """Names of exporters."""
        ...


class PolledFeed:
    """A feed and its newest rows: polled by one thread, read by another.

    first_s: how far back the first poll reads; overlap_s: how far back each further one does again,
    for samples that arrive late. cluster: of rows that name none. where, do: of problems that name
    no address. clock: seconds since 1970.
    """

    def __init__(
        self,
        feed: LiveFeed,
        *,
        where: str,
        every_s: float,
        kept_s: float,
        cluster: str = "",
        first_s: float = 0.0,
        overlap_s: float = 0.0,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.feed, self.where, self.every_s = feed, where, every_s
        self._cluster, self._rows = cluster, NewestRows(kept_s)
        self._first_s, self._overlap_s = first_s, overlap_s
        self._clock, self._steady = clock, steady
        self._marks: dict[str, datetime] = {}
        self._began: float | None = None  # of the poll under way
        self._closed = threading.Event()
        self.named: set[str] = set()  # counters with a series, usable or not
        self.polls = 0
        self.failures = 0  # in a row
        self.failed: TachographError | None = None
        self.defect: Exception | None = None
        self.tables = NewestTables({}, kept_s)
        self.unplaced: frozenset[str] = frozenset()
        self.has_unknown_holders = False  # a job holds a GPU that has no index

    def poll(self) -> None:
        """Poll once, and take over the rows."""
        now = datetime.fromtimestamp(self._clock(), UTC)
        self._began = self._steady()
        try:
            self._take(now)
        except TachographError as problem:
            self.failed = problem
            self.failures += 1
        else:
            self.failed = None
            self.failures = 0
        self._began = None
        self.polls += 1

    def problems(self) -> list[SourceProblem]:
        """Return the problems of the last poll."""
        if self._began is not None and self._steady() - self._began > _LATE_S:
            return [SourceProblem("has not answered yet", self.where, "is it overloaded?")]
        unreachable = self.feed.outcome.unreachable
        if unreachable:
            do = "is it running, and is the address right?"
            return [SourceProblem(why, label, do) for label, why in unreachable.items()]
        if self.failed is not None:
            return [SourceProblem.of(self.failed, where=self.where)]
        return []

    def start(self) -> None:
        """Poll repeatedly, in a thread."""
        threading.Thread(target=self._run, name="poll", daemon=True).start()

    def close(self) -> None:
        """Stop without waiting for a running poll; may be called twice."""
        if not self._closed.is_set():
            self._closed.set()
            self.feed.close()

    def _run(self) -> None:
        wait_s = 0.0
        while not self._closed.wait(wait_s):
            began = time.thread_time()
            try:
                self.poll()
            except Exception as defect:  # noqa: BLE001  raised where it is read, not in this thread
                self.defect = None if self._closed.is_set() else defect
                return
            wait_s = max(self.every_s, (time.thread_time() - began) / _SHARE)
            if self.failures:
                wait_s = max(wait_s, min(_RETRY_S, 0.25 * 2.0 ** min(self.failures, 10)))

    def _take(self, now: datetime) -> None:
        start = now - timedelta(seconds=self._first_s)
        overlap = timedelta(seconds=self._overlap_s)

        def watermark(name: str) -> datetime | None:
            if name in self._marks:
                return self._marks[name] - overlap
            return start if self._first_s and not name.endswith(":late") else None

        for polled in self.feed.poll(watermark, now=now):
            chunk = of_cluster(polled, self._cluster)
            self._rows.add(chunk, now)
            if chunk.watermark is not None:
                self._marks[chunk.id] = chunk.watermark
            for part in chunk.parts:
                if part.table == ALLOCATIONS and any(
                    reject.reason in (NO_GPU, AMBIGUOUS) for reject in part.rejects
                ):
                    self.has_unknown_holders = True
                if part.table == SAMPLES:
                    self.named.update(name for name in COUNTER_NAMES if name in part.frame.columns)
        self.tables, self.unplaced = self._rows.tables(), self._rows.unplaced


class FeedSource:
    """Feeds as one live source; use `connect_exporters` or `connect_server`. clock: s since 1970.

    sentence: of the source, before its GPUs. stuck_s: values that always change and do not for so
    long are reported. names: of clusters, as a lake knows them.
    """

    def __init__(
        self,
        name: str,
        feeds: Sequence[PolledFeed],
        *,
        sentence: Callable[[FeedSource], str],
        stuck_s: float | None = None,
        names: ClusterNames | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name, self._feeds, self._sentence = name, feeds, sentence
        self._names, self._clock = names, clock
        self._moving = None if stuck_s is None else MovingValues(stuck_s)
        self._snapshot = Snapshot(0.0, (), np.empty(0), {})
        self._seen: dict[GpuId, float] = {}  # when each GPU had values last
        self._devices: dict[GpuId, GpuDevice] = {}
        self._reported: set[str] = set()
        self._polls: list[int] = []

    @property
    def exporters(self) -> tuple[str, ...]:
        """Names of the exporters that write the values, as a lake knows them."""
        return tuple(sorted({name for feed in self._feeds for name in feed.feed.exporters}))

    @property
    def gpus(self) -> tuple[GpuId, ...]:
        """The GPUs of the last snapshot."""
        return self._snapshot.gpus

    @property
    def about(self) -> SourceInfo:
        """Description of the source; unsupported counters are known after the first answer."""
        named = {name for feed in self._feeds for name in feed.named}
        unsupported: Mapping[str, str] = {}
        if self._reported:
            unsupported = unsupported_counters(
                self._reported, self._name, named=named, exporters=self.exporters
            )
        return SourceInfo(self._name, self._sentence(self), unsupported, self.exporters)

    def read(self) -> Snapshot:
        """Return the newest values with scrape times. A GPU without new values stays for an
        hour.
        """
        now = self._clock()
        for feed in self._feeds:
            if feed.defect is not None:
                raise feed.defect
        polls = [feed.polls for feed in self._feeds]
        if polls != self._polls or abs(now - self._snapshot.t) > _MADE_S:
            self._polls = polls
            self._snapshot = self._make_snapshot(now)
            self._reported |= self._snapshot.values.keys()
        problems = [problem for feed in self._feeds for problem in feed.problems()]
        if self._moving is not None:
            problems += self._moving.problems(self._snapshot, now)
        return replace(self._snapshot, t=now, problems=tuple(problems))

    def close(self) -> None:
        """Stop polling."""
        for feed in self._feeds:
            feed.close()

    def begin(self) -> None:
        """Start polling, and wait for the first polls.

        Errors: that of the first feed that failed; InputError if none reports a GPU.
        """
        for feed in self._feeds:
            feed.start()
        until = time.monotonic() + _FIRST_S
        while (
            any(not feed.polls and feed.defect is None for feed in self._feeds)
            and time.monotonic() < until
        ):
            time.sleep(0.01)
        self.check()

    def check(self) -> None:
        """Raise the reason if there is no GPU."""
        if self.read().gpus:
            return
        for feed in self._feeds:
            if feed.failed is not None:
                raise feed.failed
            if not feed.polls:
                raise InputError(
                    f"no answer within {_FIRST_S:g} s", where=feed.where, do="is it overloaded?"
                )
        do = "is it an exporter of GPUs? check urls, metrics and selector in [[sources]]"
        raise InputError("no GPU is reported", where=self._feeds[0].where, do=do)

    def _make_snapshot(self, now: float) -> Snapshot:
        tables = [feed.tables for feed in self._feeds]
        if not any(SAMPLES in part.rows for part in tables):
            return Snapshot(now, (), np.empty(0), {})
        snapshot = self._with_silent(newest_snapshot(tables, now, self._names), now)
        if any(feed.has_unknown_holders for feed in self._feeds):
            return snapshot
        unplaced = frozenset().union(*(feed.unplaced for feed in self._feeds))
        return replace(snapshot, free=unlabelled_gpus(snapshot, unplaced))

    def _with_silent(self, snapshot: Snapshot, now: float) -> Snapshot:
        """The snapshot with a row for each GPU that had values within an hour."""
        self._seen |= dict.fromkeys(snapshot.gpus, now)
        self._seen = {gpu: t for gpu, t in self._seen.items() if abs(now - t) < _SEEN_S}
        devices = self._devices | dict(snapshot.devices)
        self._devices = {gpu: device for gpu, device in devices.items() if gpu in self._seen}
        if len(self._seen) == len(snapshot.gpus):
            return snapshot
        gpus = tuple(sorted(self._seen, key=GpuId.order))
        return replace(snapshot.of(gpus), devices=self._devices)


def unlabelled_gpus(snapshot: Snapshot, unplaced: frozenset[str]) -> frozenset[GpuId]:
    """Return GPUs without a job on nodes where another GPU's labels name one.

    unplaced: nodes left out.

    On nodes with slices it is unknown which GPU a job holds.
    """
    sliced = {gpu.host for gpu in snapshot.gpus if gpu.mig is not None}
    labelled = {gpu.host for gpu in snapshot.allocations if gpu.node not in unplaced} - sliced
    return frozenset(
        gpu for gpu in snapshot.gpus if gpu.host in labelled and gpu not in snapshot.allocations
    )


class MovingValues:
    """Since when the values of a node that always change have been constant."""

    def __init__(self, stuck_s: float) -> None:
        self._stuck_s = stuck_s
        self._since: dict[str, tuple[float, bytes]] = {}

    def problems(self, snapshot: Snapshot, now: float) -> list[SourceProblem]:
        """Return one problem per node with stale values."""
        rows: dict[str, list[int]] = {}
        for row, gpu in enumerate(snapshot.gpus):
            rows.setdefault(gpu.host, []).append(row)
        moving = np.array([snapshot.column(name) for name in _MOVING])
        problems: list[SourceProblem] = []
        since: dict[str, tuple[float, bytes]] = {}
        for node, gpu_rows in rows.items():
            values: Floats = moving[:, gpu_rows]
            if np.isnan(values).all():
                continue
            before = self._since.get(node)
            written = values.tobytes()
            since[node] = before if before is not None and before[1] == written else (now, written)
            if now - since[node][0] > self._stuck_s:
                problems.append(
                    SourceProblem(
                        "its values no longer change", node, "is DCGM alive? restart the exporter"
                    )
                )
        self._since = since
        return problems


_EVERY_S = 0.5  # between two polls of exporters
_PER_S = 50.0  # polls of all exporters together
_ROUND_S = 2.0  # wait of a poll for exporters that answer slowly; it does not wait for them again
_KEPT_READINGS = 3.0  # values are valid for this many readings of the exporter
_STUCK_READINGS = 4.0  # an exporter may miss one or two
_LEAST_REFRESH_S = 3.0  # values of faster exporters are kept as long, for late polls
_NODE_EXPORTER = "http://localhost:9400/metrics"  # the default port of dcgm-exporter
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


def connect_exporters(
    configuration: Configuration, *, urls: Sequence[str] = (), names: ClusterNames | None = None
) -> FeedSource:
    """Return exporters as a live source, polled once.

    Those at `urls` (hostlists allowed), else those of `[[sources]]`, else the one of this node.
    names: of clusters, as a lake knows them.

    Errors: ConfigError for invalid settings or URLs; InputError if none reports a GPU, with the
    reason.
    """
    return _begun(exporter_source(_exporter_settings(configuration, tuple(urls)), names=names))


def connect_node_exporter(
    settings: ExporterSettings, *, names: ClusterNames | None = None
) -> FeedSource:
    """Return one exporter as a live source, polled once; names and errors as above."""
    return _begun(exporter_source([settings], names=names))


def _begun(source: FeedSource) -> FeedSource:
    with closed_on_failure(source.close):
        source.begin()
    return source


def node_exporter(configuration: Configuration) -> ExporterSettings:
    """Return the settings of this node's exporter, with its URL alone.

    That of `[[sources]]` whose host is this node or `localhost`, else the default port of this
    node with the names of metrics and labels of the first entry. Errors: ConfigError.
    """
    entries = _configured(configuration, DCGM_EXPORTER, ExporterSettings)
    here = short_node(socket.gethostname()).lower()
    for settings in entries:
        for url in expanded_urls(settings):
            host = urlsplit(url).hostname or ""  # in small letters
            if host in _LOOPBACK or short_node(host) == here:
                return msgspec.structs.replace(settings, url="", urls=(url,))
    settings = entries[0] if entries else ExporterSettings(source=DCGM_EXPORTER)
    return msgspec.structs.replace(settings, url="", urls=(_NODE_EXPORTER,))


def exporter_source(
    entries: Sequence[ExporterSettings],
    *,
    names: ClusterNames | None = None,
    clock: Callable[[], float] = time.time,
) -> FeedSource:
    """Return exporters as a live source; nothing is polled yet."""
    feeds: list[PolledFeed] = []
    labels: list[str] = []
    for settings in entries:
        with entry_errors(settings.title):
            endpoints = endpoints_of(settings)
            feed = ScrapeFeed(settings)
        feed.round_s = min(feed.round_s, _ROUND_S)
        labels += [endpoint.label for endpoint in endpoints]
        every_s = max(_EVERY_S, len(endpoints) / _PER_S)
        kept_s = _KEPT_READINGS * max(settings.refresh_s, _LEAST_REFRESH_S)
        where = endpoints[0].server.where
        feeds.append(
            PolledFeed(
                feed,
                where=where,
                every_s=every_s,
                kept_s=kept_s,
                cluster=settings.cluster,
                clock=clock,
            )
        )

    def sentence(source: FeedSource) -> str:
        gpus = plural(len(source.gpus), "GPU")
        if len(labels) == 1:
            return f"{advised_source(DCGM_EXPORTER, source.exporters)} at {labels[0]}, {gpus}"
        nodes = len({gpu.host for gpu in source.gpus})
        return f"{len(labels):,} exporters, {gpus} of {plural(nodes, 'node')}"

    refresh_s = max(settings.refresh_s for settings in entries)
    return FeedSource(
        DCGM_EXPORTER,
        feeds,
        sentence=sentence,
        stuck_s=_STUCK_READINGS * refresh_s,
        names=names,
        clock=clock,
    )


def _exporter_settings(
    configuration: Configuration, urls: tuple[str, ...]
) -> list[ExporterSettings]:
    """Settings of exporters: from the configuration, with the given URLs."""
    configured = _configured(configuration, DCGM_EXPORTER, ExporterSettings)
    if urls:
        first = configured[0] if configured else ExporterSettings(source=DCGM_EXPORTER)
        return [msgspec.structs.replace(first, url="", urls=urls)]
    return configured or [node_exporter(configuration)]


def _configured(
    configuration: Configuration, source: str, settings: type[Settings]
) -> list[Settings]:
    """Settings of a source in `[[sources]]`, in their order; none where it is not named."""
    entries = [entry for entry in configuration.sources if entry.get("source") == source]
    return [convert_settings(entry, settings, where="[[sources]]") for entry in entries]


_SERVER_EVERY_S = 2.0  # between two polls of a server, while the scrape interval is not known
_TIMEOUT_S = 10.0  # upper limit of the timeout: a later answer would be outdated
_BACK_S = 300.0  # read by the first poll
_OVERLAP_S = 15.0  # a scrape may take so long until it can be queried
_SERVER_KEPT_S = 180.0  # three scrapes of a minute, the usual interval


def connect_server(
    configuration: Configuration, *, url: str | None = None, names: ClusterNames | None = None
) -> FeedSource:
    """Return a Prometheus polled once: at `url`, else the first of `[[sources]]`.

    names: of clusters, as a lake knows them.

    Errors: ConfigError without a server or for invalid settings; RequestError, InputError if it
    does not answer, or has no GPU series.
    """
    settings = _server_settings(configuration, url)
    live = msgspec.structs.replace(
        settings,
        attempts=1,
        timeout_s=min(settings.timeout_s, _TIMEOUT_S),
        lookback_s=0.0,
        settle_s=0.0,
    )
    feed = PolledFeed(
        connect_prometheus(live, configuration=configuration),
        where=settings.url,
        every_s=settings.step_s / 3 if settings.step_s else _SERVER_EVERY_S,
        kept_s=max(_SERVER_KEPT_S, 3 * (settings.step_s or 0.0)),
        cluster=settings.cluster,
        first_s=_BACK_S,
        overlap_s=_OVERLAP_S,
    )

    def sentence(source: FeedSource) -> str:
        nodes = plural(len({gpu.host for gpu in source.gpus}), "node")
        return f"Prometheus at {settings.url}, {plural(len(source.gpus), 'GPU')} of {nodes}"

    return _begun(FeedSource(PROMETHEUS, [feed], sentence=sentence, names=names))


def _server_settings(configuration: Configuration, url: str | None) -> PrometheusSettings:
    configured = _configured(configuration, PROMETHEUS, PrometheusSettings)
    if url:
        of_url = [
            settings for settings in configured if settings.url.rstrip("/") == url.rstrip("/")
        ]
        usual = of_url[0] if of_url else PrometheusSettings(source=PROMETHEUS)
        # Credentials are for the server of their settings only.
        return msgspec.structs.replace(usual, url=url)
    if not configured:
        do = 'add source = "prometheus" and its url to tachograph.toml'
        raise ConfigError("no Prometheus configured", where="[[sources]]", do=do)
    return configured[0]
