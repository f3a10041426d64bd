"""Prometheus, and what answers like it, as a live source: instant queries for the GPUs of a whole fleet.

An instant query tells values as they are now, and not when they were scraped: a second one asks for the timestamp() of
one counter. A thread asks, about as often as there may be news; who reads never waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from tachograph.arrays import Floats
from tachograph.errors import ConfigError, InputError
from tachograph.live.missing import blind
from tachograph.live.snapshot import Problem, Snapshot
from tachograph.live.source import About, closed_on_failure
from tachograph.live.sources.gathered import Gathered
from tachograph.live.sources.prometheus_answer import Reader, Vector, gpu_metrics, joined, read_vector, selectors
from tachograph.live.sources.series import Layout, Meaning
from tachograph.sources.feeds import converted, named
from tachograph.sources.http import Server
from tachograph.sources.http_problems import AskError
from tachograph.sources.prometheus.decode import own_words
from tachograph.sources.prometheus.settings import NAME, Settings, check
from tachograph.units import plural

if TYPE_CHECKING:
    from tachograph.config import Configuration

_FIRST_S = 5.0  # so long connecting waits for the first answer
_TIMEOUT_S = 10.0  # of silence, where the settings allow more: nobody wants to see an older answer
_EVERY_S = (1.0, 10.0)  # between two askings, at least and at most
_GUESS_S = 2.0  # between two askings, while it is not known how often targets are scraped
_SHARE = 0.02  # of the time of a core, at most, is spent on reading answers
_LATE_S = 3.0  # silence that is told
_KEPT_S = 60.0  # so long the last values are shown while the server does not answer
_RETRY_S = 10.0  # the longest until it is asked again
_LOOK_AROUND = 30  # askings until selectors that gave nothing are tried again
_SKEW_S = 2.0  # a difference of clocks that is taken for one
_WHOLE: Final = {"partial_response": "false", "deny_partial_response": "1"}  # as `sources.prometheus.query` asks


@dataclass(frozen=True, slots=True)
class _News:
    """What one asking came to. scraped: per GPU, seconds since 1970."""

    layout: Layout
    table: Floats
    scraped: Floats


@dataclass(slots=True)
class Scrapes:
    """How often targets are scraped, by the times of their samples. step_s: as told, or 0 while it is not known."""

    step_s: float = 0.0
    learns: bool = True
    _before: tuple[Layout, Floats] | None = None

    def note(self, layout: Layout, scraped: Floats) -> None:
        """Take the times of one answer into account."""
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
        """Seconds between two askings: three in the time of a scrape."""
        least, most = _EVERY_S
        return min(most, max(least, self.step_s / 3)) if self.step_s else _GUESS_S


@dataclass(slots=True)
class _Told:
    """What the thread that asks hands over."""

    news: _News | None = None
    failed: AskError | None = None
    defect: Exception | None = None
    asked: float | None = None  # since when an answer is waited for
    answered: float | None = None  # well, the last time
    lock: threading.Lock = field(default_factory=threading.Lock)


class PrometheusSource:
    """Prometheus as a live source; use `connect`. nodes: ask for GPUs of these hosts only; empty: of all."""

    def __init__(
        self,
        settings: Settings,
        server: Server,
        *,
        nodes: Sequence[str] = (),
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._server, self._nodes = settings, server, tuple(nodes)
        self._clock, self._steady = clock, steady
        meaning = Meaning(settings.metrics, settings.labels)
        self._values, self._times = Reader(meaning), Reader(meaning)
        self._scrapes = Scrapes(settings.step_s or 0.0, learns=settings.step_s is None)
        self._metrics = gpu_metrics(settings.metrics)
        self._askings = 0
        self._telling: set[int] = set()  # selectors that gave series: there is one for each label that may hold a host
        self._gathered = Gathered()
        self._told = _Told()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="prometheus", daemon=True)

    @property
    def about(self) -> About:
        """What it is; what it does not tell is known after the first answer."""
        gpus, told = self._gathered.gpus, self._gathered.told
        counted = f"{plural(len(gpus), 'GPU')} of {plural(len({gpu.node for gpu in gpus}), 'node')}"
        refresh_s = self._scrapes.step_s or _GUESS_S
        return About(
            NAME, f"Prometheus at {self._server.where}, {counted}", refresh_s, blind(told, NAME) if told else {}
        )

    def read(self) -> Snapshot:
        """Return the newest values that were answered; measured: when they were scraped.

        GPUs whose series have gone tell nothing; so do all when the server has not answered for a minute.
        """
        told, now = self._told, self._steady()
        with told.lock:
            news, told.news = told.news, None
            failed, defect, asked, answered = told.failed, told.defect, told.asked, told.answered
        if defect is not None:
            raise defect
        if news is not None:
            self._gathered.put(0, news.layout, news.table, news.scraped)
        elif answered is not None and now - answered > _KEPT_S:
            self._gathered.forget(0)
        problems: list[Problem] = []
        if failed is not None:
            problems.append(Problem(failed.what, failed.where or self._server.where, failed.do))
        elif asked is not None and now - asked > _LATE_S:
            problems.append(Problem("has not answered yet", self._server.where, "is it overloaded?"))
        return self._gathered.snapshot(self._clock(), problems)

    def close(self) -> None:
        """Ask no more; what is being answered is not waited for."""
        self._closed.set()
        self._server.close()

    def begin(self) -> None:
        """Start to ask and wait for the first answer.

        Errors: AskError when the server does not answer, or not well; InputError when it has no series of a GPU.
        """
        self._thread.start()
        told, until = self._told, self._steady() + _FIRST_S
        while told.answered is None and not (told.failed or told.defect) and self._steady() < until:
            time.sleep(0.01)
        if told.failed is not None:
            raise told.failed
        if told.answered is None and told.defect is None:
            raise InputError(f"no answer within {_FIRST_S:g} s", where=self._server.where, do="is it overloaded?")
        self.read()
        if not self._gathered.gpus:
            do = "does it scrape dcgm-exporter? look at the selector in [[sources]]"
            raise InputError("it has no series of a GPU", where=self._server.where, do=do)

    def _run(self) -> None:
        """Ask again and again."""
        failures, wait_s = 0, 0.0
        while not self._closed.wait(wait_s):
            began = time.thread_time()
            self._told.asked = self._steady()
            try:
                news = self._ask()
            except AskError as problem:
                failures += 1
                wait_s = min(_RETRY_S, 0.25 * 2.0 ** min(failures, 10))
                self._hand_over(None, problem)
            except Exception as defect:  # noqa: BLE001  raised where it is read: nobody sees this thread
                self._told.defect = None if self._closed.is_set() else defect
                return
            else:
                failures = 0
                self._scrapes.note(news.layout, news.scraped)
                wait_s = max(self._scrapes.every_s, (time.thread_time() - began) / _SHARE)
                self._hand_over(news, None)

    def _hand_over(self, news: _News | None, failed: AskError | None) -> None:
        told = self._told
        with told.lock:
            told.failed, told.asked = failed, None
            if news is not None:
                told.news, told.answered = news, self._steady()

    def _ask(self) -> _News:
        vectors = self._query("{}", self._metrics)
        self._askings += 1
        all_again = self._askings % _LOOK_AROUND == 0
        self._telling = {number for number, found in vectors.items() if found.labels and not all_again}
        vector = joined(list(vectors.values()))
        layout = self._values.layout(vector.labels)
        return _News(layout, layout.table(vector.values[layout.kept]), self._scraped(layout, vector.t))

    def _scraped(self, layout: Layout, answered: float) -> Floats:
        """When the values of each GPU were scraped, by our clock; where that is not told, when they were answered."""
        made = np.full(len(layout.gpus), np.nan)
        metric = self._values.commonest
        vectors = self._query("timestamp({})", [metric]) if metric else {}
        told = joined(list(vectors.values()))
        if self._times.metric != metric:
            self._times = Reader(self._times.meaning, metric)
        times = self._times.layout(told.labels)
        rows = {gpu: row for row, gpu in enumerate(layout.gpus)}
        for place, cell in zip(times.kept.tolist(), times.cells.tolist(), strict=True):
            row = rows.get(times.gpus[cell % len(times.gpus)])
            if row is not None:
                made[row] = np.fmax(made[row], told.values[place])
        skew_s = self._server.skew_s or 0.0
        made = np.where(np.isnan(made), answered, made)
        return made - skew_s if abs(skew_s) > _SKEW_S else made

    def _query(self, form: str, metrics: Sequence[str]) -> dict[int, Vector]:
        """The answers to `form` with the series of some metrics in it, by selector."""
        chosen = dict(enumerate(selectors(metrics, selector=self._settings.selector, nodes=self._nodes)))
        telling = {number: one for number, one in chosen.items() if number in self._telling} or chosen
        return {number: self._post(form.replace("{}", one)) for number, one in telling.items()}

    def _post(self, query: str) -> Vector:
        return self._server.post_read("/api/v1/query", {"query": query, **_WHOLE}, read_vector)


def connect(
    configuration: Configuration, *, url: str | None = None, name: str | None = None, nodes: Sequence[str] = ()
) -> PrometheusSource:
    """Return a Prometheus as a live source, asked once: the one at `url`, else that of `[[sources]]` called `name`,
    else the first of `[[sources]]`. nodes: only GPUs of these hosts.

    Errors: ConfigError where none is named, or its settings do not fit; AskError, InputError where it does not answer,
    or has no series of a GPU.
    """
    settings = _settings(configuration, url, name)
    with named(settings.title):
        check(settings)
        settings = msgspec.structs.replace(settings, attempts=1, timeout_s=min(settings.timeout_s, _TIMEOUT_S))
        source = PrometheusSource(settings, Server(settings, own_words=own_words), nodes=nodes)
    with closed_on_failure(source.close):
        source.begin()
    return source


def _settings(configuration: Configuration, url: str | None, name: str | None) -> Settings:
    entries = [one for one in configuration.sources if one.get("source") == NAME]
    if name is not None:
        entries = [one for one in entries if one.get("name", NAME) == name]
    found = [converted(one, Settings, where="[[sources]]") for one in entries]
    if url:
        same = next((one for one in found if one.url.rstrip("/") == url.rstrip("/")), Settings(source=NAME))
        return msgspec.structs.replace(same, url=url)  # credentials are for the server they are named with
    if not found:
        what = f"no Prometheus is called {name!r}" if name else "no Prometheus is named"
        raise ConfigError(what, where="[[sources]]", do='add source = "prometheus" and its url to tachograph.toml')
    return found[0]
