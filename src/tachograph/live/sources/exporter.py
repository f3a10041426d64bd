"""dcgm-exporters as a live source: pages polled side by side by threads, each at the pace of its exporter."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
import numpy as np

from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.catalog.errors import InputError
from tachograph.catalog.units import plural
from tachograph.live.snapshot import Snapshot, SourceInfo, SourceProblem, closed_on_failure
from tachograph.live.sources.series import LivePageReader, PageReading, SeriesTable, wanted_metrics
from tachograph.live.unsupported import advised_source, unsupported_counters
from tachograph.sources.endpoints import DCGM_EXPORTER, ExporterEndpoint, ExporterSettings, endpoints_of
from tachograph.sources.http import HttpAnswer as Page
from tachograph.sources.http import RequestError
from tachograph.sources.registry import convert_settings, entry_errors
from tachograph.sources.series import SeriesVocabulary

if TYPE_CHECKING:
    from tachograph.catalog.config import Configuration


class Pollable(Protocol):
    """A server that can be polled: `sources.http.Server`."""

    def get(self, path: str) -> Page:
        """Return the answer."""
        ...


@dataclass(frozen=True, slots=True)
class PolledAnswer:
    """Result of one poll, and when, on the monotonic clock."""

    number: int
    content: bytes | RequestError
    at: float


class ServerPoller:
    """Polls servers, each identified by a number, with `threads` threads at most.

    They are daemons: a server that never ends its answer must not keep the program from ending.
    """

    def __init__(self, threads: int, *, steady: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._steady = max(1, threads), steady
        self._requests: SimpleQueue[tuple[int, Pollable] | None] = SimpleQueue()
        self._answers: SimpleQueue[PolledAnswer | Exception] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open: set[int] = set()
        self._closed = False

    @property
    def waiting(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._open)

    def poll(self, number: int, server: Pollable) -> None:
        """Poll a server as soon as a thread is free."""
        self._open.add(number)
        self._requests.put((number, server))
        if len(self._threads) < min(self._limit, len(self._open)):
            thread = threading.Thread(target=self._work, name="poll", daemon=True)
            self._threads.append(thread)
            thread.start()

    def answers(self, fresh: Container[int], wait_s: float) -> list[PolledAnswer]:
        """Return the answers that have come; wait for those of `fresh`, `wait_s` at most."""
        return list(self._arrived(fresh, self._steady() + wait_s))

    def close(self) -> None:
        """Stop polling; may be called twice."""
        if not self._closed:
            self._closed = True
            for _ in self._threads:
                self._requests.put(None)

    def _arrived(self, fresh: Container[int], until: float) -> Iterator[PolledAnswer]:
        while self._open:
            wait_s = until - self._steady() if any(number in fresh for number in self._open) else 0.0
            try:
                answer = self._answers.get(timeout=wait_s) if wait_s > 0 else self._answers.get_nowait()
            except Empty:
                return
            if isinstance(answer, Exception):
                raise answer
            self._open.discard(answer.number)
            yield answer

    def _work(self) -> None:
        while not self._closed and (request := self._requests.get()) is not None:
            number, server = request
            content: bytes | RequestError
            try:
                content = server.get("").content
            except RequestError as problem:
                content = problem
            except Exception as defect:  # noqa: BLE001  a thread reports only to the one who takes answers
                self._answers.put(defect)
                return
            self._answers.put(PolledAnswer(number, content, self._steady()))


_FIRST_S = 3.0  # longest wait of connecting for the first answer
_OTHERS_S = 0.3  # and for further ones, after the first one
_WAIT_S = 0.2  # wait of a read for the answers to its polls
_LATE_S = 1.5  # without an answer, after which a problem is reported
_LEAST_S = 0.2  # between two polls of one exporter
_PER_S = 50.0  # polls of all exporters together, while their periods are unknown
_LONGEST_S = 5.0  # between two polls of one with an unchanged page
_RETRY_S = 10.0  # the longest until one that failed is polled again
_OF_NODES_S = 300.0  # between two polls of a page that reports no GPU
_KEPT_ROUNDS = 3.0  # times the poll interval: values of an exporter that does not answer are shown for so long
_LEAST_ROUND_S = 3.0  # shorter poll intervals count as this
_STUCK_ROUNDS = 4.0  # times `refresh_s`: a page unchanged for longer is no measurement any more
_MOVING: Final = frozenset(map(COUNTER_NAMES.index, ("energy_j", "power_w")))  # always, of a GPU that is measured


@dataclass(slots=True)
class ExporterRhythm:
    """When the page of an exporter changes. period: seconds between two changes, as far as is known; 0: not yet."""

    least_s: float = _LEAST_S
    period: float = 0.0
    _changed: float | None = None
    _same: bool = False

    def changed(self, now: float) -> float:
        """Note that the page changed; return when to poll again.

        >>> rhythm = ExporterRhythm()
        >>> rhythm.changed(100.0), rhythm.same(115.0), rhythm.changed(130.0)
        (100.2, 115.5, 157.0)
        """
        if self._changed is not None:
            passed = now - self._changed
            # without a poll of the same page in between it may have changed several times
            self.period = passed if self._same else 0.7 * min(passed, self.period or passed)
        self._changed, self._same = now, False
        return now + max(self.least_s, 0.9 * self.period)

    def same(self, now: float) -> float:
        """Note that the page is unchanged; return when to poll again."""
        self._same = True
        passed = 0.0 if self._changed is None else now - self._changed
        return now + max(self.least_s, min(_LONGEST_S, passed / 30))


@dataclass(slots=True)
class _PolledExporter:
    """One exporter and its state. Times are of the monotonic clock."""

    endpoint: ExporterEndpoint
    pages: LivePageReader
    rhythm: ExporterRhythm
    refresh_s: float
    due: float = 0.0
    polled: float | None = None  # and not answered yet
    answered: float = float("-inf")  # successfully, the last time
    changed: float = float("-inf")
    failures: int = 0
    content: bytes = b""
    reading: PageReading | None = None
    failure: SourceProblem | None = None

    @property
    def where(self) -> str:
        """Its address."""
        return self.endpoint.server.where

    @property
    def kept_s(self) -> float:
        """How long its values are shown while it does not answer, in s."""
        period = max(self.rhythm.period, _LEAST_ROUND_S) if self.rhythm.period else self.refresh_s
        return _KEPT_ROUNDS * min(self.refresh_s, period)

    def problem(self, now: float) -> SourceProblem | None:
        """Its problems."""
        if self.polled is not None and now - self.polled > _LATE_S and self.failure is None:
            return SourceProblem("has not answered yet", self.where, "is it overloaded?")
        if self.failure is None and self.stuck(now):
            return SourceProblem("its values no longer change", self.where, self._revival())
        return self.failure

    def _revival(self) -> str:
        """What to do where values no longer change."""
        of_dcgm = self.reading is None or advised_source(DCGM_EXPORTER, self.reading.layout.exporters) == DCGM_EXPORTER
        return "is DCGM alive? restart nv-hostengine" if of_dcgm else "restart the exporter"

    def stuck(self, now: float) -> bool:
        """Whether values that always change have been constant for too long."""
        if self.reading is None or self.reading.host or now - self.changed < _STUCK_ROUNDS * self.refresh_s:
            return False
        return not _MOVING.isdisjoint(self.reading.layout.counters.tolist())


class ExporterSource:
    """Exporters as a live source; use `connect`. clock: seconds since 1970; steady: for spans of time."""

    def __init__(
        self,
        exporters: Sequence[tuple[ExporterEndpoint, ExporterSettings]],
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        wait_s: float = _WAIT_S,
    ) -> None:
        self._clock, self._steady, self._wait_s = clock, steady, wait_s
        least_s = max(_LEAST_S, len(exporters) / _PER_S)
        vocabularies: dict[int, SeriesVocabulary] = {}  # exporters of one node complete each other
        self._exporters = [_exporter(endpoint, settings, least_s, vocabularies) for endpoint, settings in exporters]
        parallel = max((settings.parallel for _, settings in exporters), default=1)
        self._poller = ServerPoller(min(parallel, len(exporters)), steady=steady)
        self._gathered = SeriesTable()
        self._about: SourceInfo | None = None

    @property
    def about(self) -> SourceInfo:
        """Description of the source; unsupported counters are known after the first answer."""
        if self._about is None:
            periods = sorted(one.rhythm.period or one.refresh_s for one in self._exporters)
            reported = self._gathered.reported
            exporters = self._gathered.exporters
            missing = (
                unsupported_counters(reported, DCGM_EXPORTER, named=self._gathered.named, exporters=exporters)
                if reported
                else {}
            )
            self._about = SourceInfo(
                DCGM_EXPORTER, self._sentence(), periods[len(periods) // 2], missing, exporters=exporters
            )
        return self._about

    def read(self) -> Snapshot:
        """Return the newest values of every exporter; of those that answer slowly, the last ones.

        measured: when the page with these values was first received, or their own timestamp.
        """
        self._take(self._poll(), self._wait_s)
        now = self._steady()
        for number, one in enumerate(self._exporters):
            if one.reading is not None and now - one.answered > one.kept_s:
                self._gathered.forget(number)
                one.reading, one.content = None, b""
        problems = [reported for one in self._exporters if (reported := one.problem(now)) is not None]
        return self._gathered.snapshot(self._clock(), problems)

    def close(self) -> None:
        """Close the connections, without a wait for open polls."""
        self._poller.close()
        for one in self._exporters:
            one.endpoint.server.close()

    def begin(self) -> None:
        """Poll all once, until one reports a GPU.

        Errors: InputError naming the first exporter and why it does not report a GPU.
        """
        polled = self._poll()
        until = self._steady() + _FIRST_S
        while not self._gathered.gpus and self._poller.waiting and self._steady() < until:
            self._take(polled, 0.1)
        if not self._gathered.gpus:
            raise self._nothing()
        self._take(polled, _OTHERS_S)

    def _poll(self) -> set[int]:
        """Poll those that are due; return which ones."""
        polled: set[int] = set()
        now = self._steady()
        for number, one in enumerate(self._exporters):
            if one.polled is None and now >= one.due:
                one.polled = now
                self._poller.poll(number, one.endpoint.server)
                polled.add(number)
        return polled

    def _take(self, polled: set[int], wait_s: float) -> None:
        """Store the received answers; wait for those of `polled`."""
        answers = self._poller.answers(polled, wait_s)
        read = [(answer, reading) for answer in answers if (reading := self._note(answer)) is not None]
        self._gathered.enter(chain.from_iterable(reading.layout.gpus for _, reading in read))
        for answer, reading in read:
            self._put(answer, reading)
        if read:
            self._about = None

    def _note(self, answer: PolledAnswer) -> PageReading | None:
        """Return the new values of an answer."""
        one = self._exporters[answer.number]
        one.polled = None
        if isinstance(answer.content, RequestError):
            problem = answer.content
            one.failure = SourceProblem(problem.what, problem.where or one.where, problem.do)
            self._postpone(one, answer.at)
            return None
        one.failures = 0
        if answer.content == one.content and one.reading is not None and one.pages.current:
            one.answered, one.failure = answer.at, _damage(one.reading, one.where)
            one.due = one.rhythm.same(answer.at)
            return None
        return self._read(one, answer.content, answer.at)

    def _read(self, one: _PolledExporter, content: bytes, at: float) -> PageReading | None:
        reading = one.pages.read(content)
        if reading.host:
            one.failure = None
            one.due = at + _OF_NODES_S
            return None
        if not reading.layout.gpus:
            one.failure = SourceProblem(
                "no GPU is on this page", one.where, "is it the address of an exporter of GPUs?"
            )
            self._postpone(one, at)
            return None
        one.failure = _damage(reading, one.where)
        before, one.reading, one.content, one.answered = one.reading, reading, content, at
        if before is not None and _same(before, reading):  # something else on the page changed
            one.due = one.rhythm.same(at)
            return None
        one.changed, one.due = at, one.rhythm.changed(at)
        return reading

    def _put(self, answer: PolledAnswer, reading: PageReading) -> None:
        now = self._clock() - max(0.0, self._steady() - answer.at)
        if not reading.whole:
            self._gathered.patch(answer.number, reading.layout, reading.table, now)
            return
        stamps = reading.stamps
        measured = np.where(np.isnan(stamps), now, np.minimum(stamps, now))
        self._gathered.put(answer.number, reading.layout, reading.table, measured)

    def _postpone(self, one: _PolledExporter, at: float) -> None:
        one.failures += 1
        one.due = at + min(_RETRY_S, max(one.rhythm.least_s, 0.25 * 2.0 ** min(one.failures, 10)))

    def _sentence(self) -> str:
        count = len(self._exporters)
        gpus = plural(len(self._gathered.gpus), "GPU")
        if count == 1:
            name = advised_source(DCGM_EXPORTER, self._gathered.exporters)
            return f"{name} at {self._exporters[0].endpoint.label}, {gpus}"
        nodes = len({gpu.node for gpu in self._gathered.gpus})
        return f"{count:,} exporters, {gpus} of {plural(nodes, 'node')}"

    def _nothing(self) -> InputError:
        late = SourceProblem(f"no answer within {_FIRST_S:g} s", self._exporters[0].where, "is it overloaded?")
        first = next((one.failure for one in self._exporters if one.failure is not None), late)
        more = f" (and {plural(len(self._exporters) - 1, 'other')})" if len(self._exporters) > 1 else ""
        return replace(first, what=f"{first.what}{more}").error


def connect(configuration: Configuration, *, urls: Sequence[str] = ()) -> ExporterSource:
    """Return exporters as a live source, polled once: those at `urls` (hostlists allowed), else those of `[[sources]]`,
    else the one of this node, as `[watch]` names it.

    Errors: ConfigError for invalid settings or addresses; InputError where none reports a GPU, with the reason.
    """
    exporters: list[tuple[ExporterEndpoint, ExporterSettings]] = []
    for settings in _settings(configuration, tuple(urls)):
        with entry_errors(settings.title):
            exporters += [(endpoint, settings) for endpoint in endpoints_of(settings)]
    source = ExporterSource(exporters)
    with closed_on_failure(source.close):
        source.begin()
    return source


def _settings(configuration: Configuration, urls: tuple[str, ...]) -> list[ExporterSettings]:
    """Settings of the polled exporters: those of the configuration, with the given addresses."""
    raw: list[Mapping[str, object]] = [one for one in configuration.sources if one.get("source") == DCGM_EXPORTER]
    found = [convert_settings(one, ExporterSettings, where="[[sources]]") for one in raw]
    if urls:
        first = found[0] if found else ExporterSettings(source=DCGM_EXPORTER)
        return [msgspec.structs.replace(first, url="", urls=urls)]
    return found or [ExporterSettings(source=DCGM_EXPORTER, urls=(configuration.watch.exporter,))]


def _exporter(
    endpoint: ExporterEndpoint, settings: ExporterSettings, least_s: float, vocabularies: dict[int, SeriesVocabulary]
) -> _PolledExporter:
    vocabulary = vocabularies.setdefault(
        id(settings), SeriesVocabulary(metrics=settings.metrics, labels=settings.labels)
    )
    pages = LivePageReader(vocabulary, wanted_metrics(settings.metrics), endpoint.node)
    return _PolledExporter(endpoint, pages, ExporterRhythm(least_s), settings.refresh_s)


def _damage(reading: PageReading, where: str) -> SourceProblem | None:
    """The problem of a page that is only partly readable."""
    do = "check the page and the exporter's log"
    if not reading.whole:
        return SourceProblem("the page ends in the middle of a line", where, do)
    return SourceProblem("some lines of the page cannot be read", where, do) if reading.lost else None


def _same(before: PageReading, now: PageReading) -> bool:
    """Whether a page equals the one before, with the same GPUs; a new timestamp makes it different."""
    return (
        before.layout.gpus == now.layout.gpus
        and before.layout.allocations == now.layout.allocations
        and np.array_equal(before.table, now.table, equal_nan=True)
        and np.array_equal(before.stamps, now.stamps, equal_nan=True)
        and before.whole == now.whole
    )
