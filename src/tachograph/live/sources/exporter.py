"""dcgm-exporters, one or a thousand, as a live source: each is asked when it may have news, and none is waited for.

An exporter looks at its GPUs every so often (30 s unless told otherwise) and answers the same page in between: that is
no new measurement. So the time between two changes is learned, and it is asked again shortly before the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from tachograph.counters import NAMES
from tachograph.errors import InputError
from tachograph.live.missing import blind
from tachograph.live.snapshot import Problem, Snapshot
from tachograph.live.source import About, closed_on_failure
from tachograph.live.sources.asking import Answer, Asker
from tachograph.live.sources.exporter_page import PageReader, Reading, wanted_metrics
from tachograph.live.sources.gathered import Gathered
from tachograph.live.sources.series import Meaning
from tachograph.sources.feeds import converted, named
from tachograph.sources.http_problems import AskError
from tachograph.sources.metrics.endpoints import NAME, Endpoint, Settings, endpoints_of
from tachograph.units import plural

if TYPE_CHECKING:
    from tachograph.config import Configuration

_FIRST_S = 3.0  # so long connecting waits for the first answer at most
_OTHERS_S = 0.3  # and so long for further ones, once one has come
_WAIT_S = 0.2  # so long a reading waits for answers to what it asked
_LATE_S = 1.5  # silence that is told
_LEAST_S = 0.2  # between two askings of one exporter
_PER_S = 50.0  # askings of all exporters together, while it is not known when they have news
_LONGEST_S = 5.0  # between two askings of one whose page stays the same
_RETRY_S = 10.0  # the longest until one that failed is asked again
_OF_NODES_S = 300.0  # between two askings of what tells of no GPU
_KEPT_ROUNDS = 3.0  # times the time between two looks: so long values of an exporter that does not answer are shown
_LEAST_ROUND_S = 3.0  # where it looks more often than that
_STUCK_ROUNDS = 4.0  # times `refresh_s`: a page that stays the same for longer is not measured any more
_MOVING: Final = frozenset(map(NAMES.index, ("energy_j", "power_w")))  # always, of a GPU that is measured


@dataclass(slots=True)
class Rhythm:
    """When an exporter has news. period: seconds between two changes of its page, as far as is known; 0: not yet."""

    least_s: float = _LEAST_S
    period: float = 0.0
    _changed: float | None = None
    _same: bool = False

    def changed(self, now: float) -> float:
        """Note that the page changed; return when to ask again.

        >>> rhythm = Rhythm()
        >>> rhythm.changed(100.0), rhythm.same(115.0), rhythm.changed(130.0)
        (100.2, 115.5, 157.0)
        """
        if self._changed is not None:
            passed = now - self._changed
            # without a look at the same page in between it may have changed several times
            self.period = passed if self._same else 0.7 * min(passed, self.period or passed)
        self._changed, self._same = now, False
        return now + max(self.least_s, 0.9 * self.period)

    def same(self, now: float) -> float:
        """Note that the page is as it was; return when to ask again."""
        self._same = True
        passed = 0.0 if self._changed is None else now - self._changed
        return now + max(self.least_s, min(_LONGEST_S, passed / 30))


@dataclass(slots=True)
class _Exporter:
    """One exporter and what is known of it. Times are of the clock that only goes forward."""

    endpoint: Endpoint
    pages: PageReader
    rhythm: Rhythm
    refresh_s: float
    due: float = 0.0
    asked: float | None = None  # and not answered yet
    answered: float = float("-inf")  # well, the last time
    changed: float = float("-inf")
    failures: int = 0
    content: bytes = b""
    reading: Reading | None = None
    trouble: Problem | None = None

    @property
    def where(self) -> str:
        """Its address."""
        return self.endpoint.server.where

    @property
    def kept_s(self) -> float:
        """So long its values are shown while it does not answer."""
        period = max(self.rhythm.period, _LEAST_ROUND_S) if self.rhythm.period else self.refresh_s
        return _KEPT_ROUNDS * min(self.refresh_s, period)

    def problem(self, now: float) -> Problem | None:
        """What is wrong with it."""
        if self.asked is not None and now - self.asked > _LATE_S and self.trouble is None:
            return Problem("has not answered yet", self.where, "is it overloaded?")
        if self.trouble is None and self.stuck(now):
            return Problem("its values do not change any more", self.where, "is DCGM alive? restart nv-hostengine")
        return self.trouble

    def stuck(self, now: float) -> bool:
        """Whether values that always move have stood still for too long."""
        if self.reading is None or self.reading.host or now - self.changed < _STUCK_ROUNDS * self.refresh_s:
            return False
        return not _MOVING.isdisjoint(self.reading.layout.counters.tolist())


class ExporterSource:
    """Exporters as a live source; use `connect`. clock: seconds since 1970; steady: for spans of time."""

    def __init__(
        self,
        exporters: Sequence[tuple[Endpoint, Settings]],
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        wait_s: float = _WAIT_S,
    ) -> None:
        self._clock, self._steady, self._wait_s = clock, steady, wait_s
        least_s = max(_LEAST_S, len(exporters) / _PER_S)
        self._exporters = [_exporter(endpoint, settings, least_s) for endpoint, settings in exporters]
        parallel = max((settings.parallel for _, settings in exporters), default=1)
        self._asker = Asker(min(parallel, len(exporters)), steady=steady)
        self._gathered = Gathered()
        self._about: About | None = None

    @property
    def about(self) -> About:
        """What it is; what it does not tell is known after the first answer."""
        if self._about is None:
            periods = sorted(one.rhythm.period or one.refresh_s for one in self._exporters)
            told = self._gathered.told
            missing = blind(told, NAME) if told else {}
            self._about = About(NAME, self._sentence(), periods[len(periods) // 2], missing)
        return self._about

    def read(self) -> Snapshot:
        """Return the newest values of every exporter; of those that answer slowly, the last ones.

        measured: when the page that tells them first came, or the time written behind them.
        """
        self._take(self._ask(), self._wait_s)
        now = self._steady()
        for number, one in enumerate(self._exporters):
            if one.reading is not None and now - one.answered > one.kept_s:
                self._gathered.forget(number)
                one.reading, one.content = None, b""
        problems = [told for one in self._exporters if (told := one.problem(now)) is not None]
        return self._gathered.snapshot(self._clock(), problems)

    def close(self) -> None:
        """Let go of connections; what is still being answered is not waited for."""
        self._asker.close()
        for one in self._exporters:
            one.endpoint.server.close()

    def begin(self) -> None:
        """Ask everybody once, until one tells of a GPU or nobody does.

        Errors: InputError naming the first exporter and why it does not tell of a GPU.
        """
        asked = self._ask()
        until = self._steady() + _FIRST_S
        while not self._gathered.gpus and self._asker.waiting and self._steady() < until:
            self._take(asked, 0.1)
        if not self._gathered.gpus:
            raise self._nothing()
        self._take(asked, _OTHERS_S)

    def _ask(self) -> set[int]:
        """Ask those that may have news; return who they are."""
        asked: set[int] = set()
        now = self._steady()
        for number, one in enumerate(self._exporters):
            if one.asked is None and now >= one.due:
                one.asked = now
                self._asker.ask(number, one.endpoint.server)
                asked.add(number)
        return asked

    def _take(self, asked: set[int], wait_s: float) -> None:
        """Take in the answers that have come; those of `asked` are waited for."""
        answers = self._asker.answers(asked, wait_s)
        read = [(answer, reading) for answer in answers if (reading := self._note(answer)) is not None]
        self._gathered.enter(chain.from_iterable(reading.layout.gpus for _, reading in read))
        for answer, reading in read:
            self._put(answer, reading)
        if read:
            self._about = None

    def _note(self, answer: Answer) -> Reading | None:
        """Return what an answer says that is new."""
        one = self._exporters[answer.number]
        one.asked = None
        if isinstance(answer.content, AskError):
            problem = answer.content
            one.trouble = Problem(problem.what, problem.where or one.where, problem.do)
            self._later(one, answer.at)
            return None
        one.failures = 0
        if answer.content == one.content and one.reading is not None:
            one.answered, one.trouble = answer.at, _damage(one.reading, one.where)
            one.due = one.rhythm.same(answer.at)
            return None
        return self._read(one, answer.content, answer.at)

    def _read(self, one: _Exporter, content: bytes, at: float) -> Reading | None:
        reading = one.pages.read(content)
        if reading.host:
            one.trouble = None
            one.due = at + _OF_NODES_S
            return None
        if not reading.layout.gpus:
            one.trouble = Problem("no GPU is on this page", one.where, "is this the address of dcgm-exporter?")
            self._later(one, at)
            return None
        one.trouble = _damage(reading, one.where)
        before, one.reading, one.content, one.answered = one.reading, reading, content, at
        if before is not None and _same(before, reading):  # something else on the page changed
            one.due = one.rhythm.same(at)
            return None
        one.changed, one.due = at, one.rhythm.changed(at)
        return reading

    def _put(self, answer: Answer, reading: Reading) -> None:
        now = self._clock() - max(0.0, self._steady() - answer.at)
        if not reading.whole:
            self._gathered.patch(answer.number, reading.layout, reading.table, now)
            return
        stamps = reading.stamps
        measured = np.where(np.isnan(stamps), now, np.minimum(stamps, now))
        self._gathered.put(answer.number, reading.layout, reading.table, measured)

    def _later(self, one: _Exporter, at: float) -> None:
        one.failures += 1
        one.due = at + min(_RETRY_S, max(one.rhythm.least_s, 0.25 * 2.0 ** min(one.failures, 10)))

    def _sentence(self) -> str:
        count = len(self._exporters)
        gpus = plural(len(self._gathered.gpus), "GPU")
        if count == 1:
            return f"dcgm-exporter at {self._exporters[0].endpoint.label}, {gpus}"
        nodes = len({gpu.node for gpu in self._gathered.gpus})
        return f"{count:,} exporters, {gpus} of {plural(nodes, 'node')}"

    def _nothing(self) -> InputError:
        told = [one.trouble for one in self._exporters if one.trouble is not None]
        if not told:
            first = Problem(f"no answer within {_FIRST_S:g} s", self._exporters[0].where, "is it overloaded?")
        else:
            first = told[0]
        more = f" (and {plural(len(self._exporters) - 1, 'other')})" if len(self._exporters) > 1 else ""
        return InputError(f"{first.what}{more}", where=first.where, do=first.do)


def connect(configuration: Configuration, *, urls: Sequence[str] = ()) -> ExporterSource:
    """Return exporters as a live source, asked once: those at `urls` (hostlists allowed), else those of `[[sources]]`,
    else the one of this node, as `[watch]` names it.

    Errors: ConfigError for settings or addresses that do not fit; InputError where none tells of a GPU, and why.
    """
    exporters: list[tuple[Endpoint, Settings]] = []
    for settings in _settings(configuration, tuple(urls)):
        with named(settings.title):
            exporters += [(endpoint, settings) for endpoint in endpoints_of(settings)]
    source = ExporterSource(exporters)
    with closed_on_failure(source.close):
        source.begin()
    return source


def _settings(configuration: Configuration, urls: tuple[str, ...]) -> list[Settings]:
    """What is asked: settings of the configuration, with the addresses that were given."""
    raw: list[Mapping[str, object]] = [one for one in configuration.sources if one.get("source") == NAME]
    found = [converted(one, Settings, where="[[sources]]") for one in raw]
    if urls:
        first = found[0] if found else Settings(source=NAME)
        return [msgspec.structs.replace(first, url="", urls=urls)]
    return found or [Settings(source=NAME, urls=(configuration.watch.exporter,))]


def _exporter(endpoint: Endpoint, settings: Settings, least_s: float) -> _Exporter:
    meaning = Meaning(settings.metrics, settings.labels)
    pages = PageReader(meaning, wanted_metrics(settings.metrics), endpoint.node)
    return _Exporter(endpoint, pages, Rhythm(least_s), settings.refresh_s)


def _damage(reading: Reading, where: str) -> Problem | None:
    """What is wrong with a page that tells something nevertheless."""
    do = "look at the page and at the exporter's log"
    if not reading.whole:
        return Problem("the page ends in the middle of a line", where, do)
    return Problem("some lines of the page cannot be read", where, do) if reading.lost else None


def _same(before: Reading, now: Reading) -> bool:
    """Whether a page says what the one before said, of the same GPUs; a time behind a value makes it news."""
    return (
        before.layout.gpus == now.layout.gpus
        and before.layout.holders == now.layout.holders
        and np.array_equal(before.table, now.table, equal_nan=True)
        and np.array_equal(before.stamps, now.stamps, equal_nan=True)
        and before.whole == now.whole
    )
