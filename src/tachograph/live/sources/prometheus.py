"""Prometheus as a live source: instant queries for GPUs, their answers, and when each GPU was scraped."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from tachograph.catalog.arrays import Floats
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.catalog.units import plural
from tachograph.live.snapshot import Snapshot, SourceInfo, SourceProblem, closed_on_failure
from tachograph.live.sources.series import SeriesLayout, SeriesTable, series_layout, wanted_metrics
from tachograph.live.unsupported import unsupported_counters
from tachograph.sources.http import HttpServer, RequestError
from tachograph.sources.metrics import NODE_INFO, SiteMetrics
from tachograph.sources.prometheus_query import (
    PROMETHEUS,
    InstantVector,
    PrometheusSettings,
    check_settings,
    matchers,
    read_vector,
    server_message,
)
from tachograph.sources.registry import convert_settings, entry_errors
from tachograph.sources.series import SeriesVocabulary

if TYPE_CHECKING:
    from tachograph.catalog.config import Configuration


_NAME = "__name__"


@dataclass(slots=True)
class VectorReader:
    """Maps series to cells of the table; known series are not examined again.

    metric: of series that are reported without a name. commonest: the metric that most of the GPUs report; "" for none.
    """

    vocabulary: SeriesVocabulary
    metric: str = ""
    commonest: str = ""
    _labels: list[bytes] = field(default_factory=list)
    _layout: SeriesLayout = field(default_factory=SeriesLayout)
    _known: dict[bytes, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    _version: int = -1

    def layout(self, labels: list[bytes]) -> SeriesLayout:
        """Return the target cells of series with these labels."""
        if labels != self._labels or self._version != self.vocabulary.indices.version:
            series = list(self._named(labels))
            self._layout, self._labels = series_layout(series, self.vocabulary), labels
            self._version = self.vocabulary.indices.version
            reported = Tally(series[place][0] for place in self._layout.kept.tolist())
            self.commonest = min(reported, key=lambda name: (-reported[name], name), default="")
        return self._layout

    def _named(self, labels: list[bytes]) -> Iterator[tuple[str, Mapping[str, str]]]:
        """Name and labels of each series; equal labels apart from the name are one object."""
        known: dict[bytes, tuple[str, Mapping[str, str]]] = {}
        shared = {tuple(block.items()): block for _, block in self._known.values()}
        for one in labels:
            found = self._known.get(one)
            if found is None:
                given = _labels(one)
                metric = given.pop(_NAME, self.metric)
                found = metric, shared.setdefault(tuple(given.items()), given)
            known[one] = found
            yield found
        self._known = known  # missing series are dropped


def series_selector(names: Sequence[str], *, selector: str = "") -> str:
    """Return the selector of the series of some metrics.

    >>> series_selector(["up"], selector='{job="dcgm"}')
    '{__name__=~"up",job="dcgm"}'
    """
    alternatives = "|".join(re.escape(name) for name in names).replace("\\", "\\\\").replace('"', '\\"')
    chosen = [f'{_NAME}=~"{alternatives}"', matchers(selector)]
    return "{" + ",".join(part for part in chosen if part) + "}"


def in_order(vector: InstantVector) -> InstantVector:
    """Return an answer sorted by labels, so that the same series are at the same places in the next one."""
    order = sorted(range(len(vector.labels)), key=vector.labels.__getitem__)
    return InstantVector([vector.labels[place] for place in order], vector.times[order], vector.values[order])


def gpu_metrics(own: SiteMetrics) -> list[str]:
    """Return the metrics to query."""
    return sorted(wanted_metrics(own) - {NODE_INFO})


def _labels(written: bytes) -> dict[str, str]:
    """Labels; none where they are no mapping of names to texts."""
    try:
        return msgspec.json.decode(written, type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


_FIRST_S = 5.0  # wait of connecting for the first answer
_TIMEOUT_S = 10.0  # upper limit of the timeout: a later answer would be outdated
_EVERY_S = (1.0, 10.0)  # between two polls, at least and at most
_GUESS_S = 2.0  # between two polls, while the scrape interval of targets is unknown
_SHARE = 0.02  # share of the time of a core for reading answers, at most
_LATE_S = 3.0  # without an answer, after which a problem is reported
_KEPT_S = 60.0  # the last values are shown for so long while the server does not answer
_RETRY_S = 10.0  # the longest until it is polled again
_SKEW_S = 2.0  # a larger difference counts as clock skew
_WHOLE: Final = {"partial_response": "false", "deny_partial_response": "1"}  # as `sources.prometheus_query` does


@dataclass(frozen=True, slots=True)
class _NewScrapes:
    """Result of one poll. scraped: per GPU, seconds since 1970."""

    layout: SeriesLayout
    table: Floats
    scraped: Floats


@dataclass(slots=True)
class ScrapeTimes:
    """How often targets are scraped, by the times of their samples. step_s: as reported, or 0 while it is not known."""

    step_s: float = 0.0
    learns: bool = True
    _before: tuple[SeriesLayout, Floats] | None = None

    def note(self, layout: SeriesLayout, scraped: Floats) -> None:
        """Update the interval by the times of one answer."""
        before, self._before = self._before, (layout, scraped)
        if not self.learns or before is None or before[0].gpus != layout.gpus:
            return
        passed = scraped - before[1]
        passed = passed[passed > 0]
        if passed.size:
            step_s = float(np.median(passed))
            self.step_s = min(self.step_s or step_s, step_s)

    @property
    def every_s(self) -> float:
        """Seconds between two polls: three per scrape interval."""
        least, most = _EVERY_S
        return min(most, max(least, self.step_s / 3)) if self.step_s else _GUESS_S


@dataclass(slots=True)
class _VectorParts:
    """Results of the polling thread."""

    news: _NewScrapes | None = None
    failed: RequestError | None = None
    defect: Exception | None = None
    polled: float | None = None  # start of the open poll
    answered: float | None = None  # successfully, the last time
    lock: threading.Lock = field(default_factory=threading.Lock)


class PrometheusSource:
    """Prometheus as a live source; use `connect`."""

    def __init__(
        self,
        settings: PrometheusSettings,
        server: HttpServer,
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._server = settings, server
        self._clock, self._steady = clock, steady
        vocabulary = SeriesVocabulary(metrics=settings.metrics, labels=settings.labels)
        self._values, self._times = VectorReader(vocabulary), VectorReader(vocabulary)
        self._scrapes = ScrapeTimes(settings.step_s or 0.0, learns=settings.step_s is None)
        self._metrics = gpu_metrics(settings.metrics)
        self._gathered = SeriesTable()
        self._received = _VectorParts()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prometheus", daemon=True)

    @property
    def about(self) -> SourceInfo:
        """Description of the source; unsupported counters are known after the first answer."""
        gpus, reported = self._gathered.gpus, self._gathered.reported
        counted = f"{plural(len(gpus), 'GPU')} of {plural(len({gpu.node for gpu in gpus}), 'node')}"
        refresh_s = self._scrapes.step_s or _GUESS_S
        exporters, named = self._gathered.exporters, self._gathered.named
        return SourceInfo(
            PROMETHEUS,
            f"Prometheus at {self._server.where}, {counted}",
            refresh_s,
            unsupported_counters(reported, PROMETHEUS, named=named, exporters=exporters) if reported else {},
            exporters,
        )

    def read(self) -> Snapshot:
        """Return the newest received values; measured: when they were scraped.

        GPUs whose series have gone report nothing; so do all when the server has not answered for a minute.
        """
        reported, now = self._received, self._steady()
        with reported.lock:
            news, reported.news = reported.news, None
            failed, defect, polled, answered = reported.failed, reported.defect, reported.polled, reported.answered
        if defect is not None:
            raise defect
        if news is not None:
            self._gathered.put(0, news.layout, news.table, news.scraped)
        elif answered is not None and now - answered > _KEPT_S:
            self._gathered.forget(0)
        problems: list[SourceProblem] = []
        if failed is not None:
            problems.append(SourceProblem(failed.what, failed.where or self._server.where, failed.do))
        elif polled is not None and now - polled > _LATE_S:
            problems.append(SourceProblem("has not answered yet", self._server.where, "is it overloaded?"))
        return self._gathered.snapshot(self._clock(), problems)

    def close(self) -> None:
        """Stop polling, without a wait for an open poll."""
        self._closed.set()
        self._server.close()

    def begin(self) -> None:
        """Start polling and wait for the first answer.

        Errors: RequestError when the server does not answer, or with an error; InputError when it has no GPU series.
        """
        self._thread.start()
        reported, until = self._received, self._steady() + _FIRST_S
        while reported.answered is None and not (reported.failed or reported.defect) and self._steady() < until:
            time.sleep(0.01)
        if reported.failed is not None:
            raise reported.failed
        if reported.answered is None and reported.defect is None:
            raise InputError(f"no answer within {_FIRST_S:g} s", where=self._server.where, do="is it overloaded?")
        self.read()
        if not self._gathered.gpus:
            do = "does it scrape dcgm-exporter? check the selector in [[sources]]"
            raise InputError("no GPU series", where=self._server.where, do=do)

    def _run(self) -> None:
        """Poll repeatedly."""
        failures, wait_s = 0, 0.0
        while not self._closed.wait(wait_s):
            began = time.thread_time()
            self._received.polled = self._steady()
            try:
                news = self._poll()
            except RequestError as problem:
                failures += 1
                wait_s = min(_RETRY_S, 0.25 * 2.0 ** min(failures, 10))
                self._hand_over(None, problem)
            except Exception as defect:  # noqa: BLE001  raised where it is read, not in this thread
                self._received.defect = None if self._closed.is_set() else defect
                return
            else:
                failures = 0
                self._scrapes.note(news.layout, news.scraped)
                wait_s = max(self._scrapes.every_s, (time.thread_time() - began) / _SHARE)
                self._hand_over(news, None)

    def _hand_over(self, news: _NewScrapes | None, failed: RequestError | None) -> None:
        reported = self._received
        with reported.lock:
            reported.failed, reported.polled = failed, None
            if news is not None:
                reported.news, reported.answered = news, self._steady()

    def _poll(self) -> _NewScrapes:
        vector = self._query("{}", self._metrics)
        layout = self._values.layout(vector.labels)
        answered = float(vector.times.max(initial=-math.inf))
        return _NewScrapes(layout, layout.table(vector.values[layout.kept]), self._scraped(layout, answered))

    def _scraped(self, layout: SeriesLayout, answered: float) -> Floats:
        """When the values of each GPU were scraped, by our clock; where that is unknown, when they were answered."""
        made = np.full(len(layout.gpus), np.nan)
        metric = self._values.commonest
        if metric:
            reported = self._query("timestamp({})", [metric])
            if self._times.metric != metric:
                self._times = VectorReader(self._times.vocabulary, metric)
            times = self._times.layout(reported.labels)
            rows = {gpu: row for row, gpu in enumerate(layout.gpus)}
            for place, cell in zip(times.kept.tolist(), times.cells.tolist(), strict=True):
                row = rows.get(times.gpus[cell % len(times.gpus)])
                if row is not None:
                    made[row] = np.fmax(made[row], reported.values[place])
        skew_s = self._server.skew_s or 0.0
        made = np.where(np.isnan(made), answered, made)
        return made - skew_s if abs(skew_s) > _SKEW_S else made

    def _query(self, template: str, metrics: Sequence[str]) -> InstantVector:
        """The answer to `template` with the series of some metrics in it."""
        query = template.replace("{}", series_selector(metrics, selector=self._settings.selector))
        parameters = {"query": query, **_WHOLE}
        return in_order(self._server.post_read("/api/v1/query", parameters, read_vector))


def connect(configuration: Configuration, *, url: str | None = None) -> PrometheusSource:
    """Return a Prometheus as a live source, polled once: the one at `url`, else the first of `[[sources]]`.

    Errors: ConfigError where none is named, or its settings do not fit; RequestError, InputError where it does not
    answer, or has no series of a GPU.
    """
    settings = _settings(configuration, url)
    with entry_errors(settings.title):
        check_settings(settings)
        settings = msgspec.structs.replace(settings, attempts=1, timeout_s=min(settings.timeout_s, _TIMEOUT_S))
        source = PrometheusSource(settings, HttpServer(settings, own_words=server_message))
    with closed_on_failure(source.close):
        source.begin()
    return source


def _settings(configuration: Configuration, url: str | None) -> PrometheusSettings:
    entries = [entry for entry in configuration.sources if entry.get("source") == PROMETHEUS]
    configured = [convert_settings(entry, PrometheusSettings, where="[[sources]]") for entry in entries]
    if url:
        same = [settings for settings in configured if settings.url.rstrip("/") == url.rstrip("/")]
        usual = same[0] if same else PrometheusSettings(source=PROMETHEUS)
        return msgspec.structs.replace(usual, url=url)  # credentials are for the server of their settings only
    if not configured:
        do = 'add source = "prometheus" and its url to tachograph.toml'
        raise ConfigError("no Prometheus configured", where="[[sources]]", do=do)
    return configured[0]
