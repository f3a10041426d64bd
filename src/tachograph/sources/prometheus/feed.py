"""What came since last time: a stream up to the watermark, and a second look at it for samples that came late."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

import httpx2

from tachograph.sources import Chunk, Part
from tachograph.sources.feeds import Asked, Watermark, beginning
from tachograph.sources.http_problems import AskError
from tachograph.sources.prometheus.importing import milliseconds, moment, windows
from tachograph.sources.prometheus.query import Querying, origin
from tachograph.sources.prometheus.rereads import Rereads
from tachograph.sources.prometheus.rows import Memory, parts
from tachograph.sources.prometheus.settings import NAME, Settings

_TOLERATED_S = 2.0  # of difference between clocks: `Date` has whole seconds


@dataclass(slots=True)
class PrometheusFeed:
    """One Prometheus, asked again and again."""

    settings: Settings
    querying: Querying
    memory: Memory
    zone_name: str = "UTC"
    asked: Asked = field(default_factory=Asked)
    _late_memory: Memory = field(init=False)

    def __post_init__(self) -> None:
        self._late_memory = Memory(
            legend=self.memory.legend, devices=self.memory.devices, rereads=Rereads(self.settings.refresh_s)
        )

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield the windows since the watermark, then those that were read `lookback_s` ago once more.

        Errors: AskError when the server gives nothing; what was yielded before stays.
        """
        self.asked = Asked()
        if self.querying.how == "auto":
            self.querying.how = self.querying.choose()
        until = self._until(now)
        since = watermark(self.settings.stream)
        late_since = watermark(self._late)
        if since is None:
            since = moment(milliseconds(beginning(self.settings.from_, now=now, zone_name=self.zone_name)))
        if late_since is None and self.settings.lookback_s > 0:
            late_since = since
            yield self._chunk(self._late, (), 0, since=since, until=since)
        reached = milliseconds(since)
        settled = until - self._lookback
        for window in windows(reached, until, self._window):
            found = self.querying.samples(window.start, window.end)
            rows = parts(found, self.memory, overlaps=False)
            yield self._chunk(
                self.settings.stream, rows, found.points, since=moment(window.start), until=moment(window.end)
            )
            if late_since == moment(window.start) and window.start < settled:
                late_since = moment(min(window.end, settled))  # read that long after: whatever is late has come
                yield self._chunk(self._late, (), 0, since=moment(window.start), until=late_since)
            reached = window.end
        if late_since is not None:
            yield from self._second_look(milliseconds(late_since), min(reached, settled))
        self._note_clocks()

    def close(self) -> None:
        """Let go of connections."""
        self.querying.server.close()

    @property
    def _late(self) -> str:
        return f"{self.settings.stream}:late"

    @property
    def _lookback(self) -> int:
        return round(self.settings.lookback_s * 1000)

    @property
    def _window(self) -> int:
        return round(self.settings.window_s * 1000)

    def _until(self, now: datetime) -> int:
        """Up to when every scrape can be asked for, by the clock of the server, whose times samples carry."""
        skew_s = self.querying.server.skew_s or 0.0
        ahead = skew_s if abs(skew_s) > _TOLERATED_S else 0.0
        return milliseconds(now) + math.floor((ahead - self.settings.settle_s) * 1000)

    def _second_look(self, since: int, until: int) -> Iterator[Chunk]:
        """Yield what was read at least `lookback_s` ago once more; not each time, but `lookback_s` of it together."""
        if self._lookback == 0 or until - since < self._lookback:
            return
        for window in windows(since, until, self._window):
            found = self.querying.samples(window.start, window.end)
            rows = tuple(
                Part(part.table, part.frame, part.units, overlaps=True, counted=True)
                for part in parts(found, self._late_memory, overlaps=True)
                if part.table != "allocations"  # who held what was seen when it came
            )
            yield self._chunk(self._late, rows, found.points, since=moment(window.start), until=moment(window.end))

    def _chunk(self, stream: str, rows: tuple[Part, ...], points: int, *, since: datetime, until: datetime) -> Chunk:
        return Chunk(stream, NAME, origin(self.querying), rows, points, watermark=until, since=since)

    def _note_clocks(self) -> None:
        """How far clocks are ahead: the server's, by its answers, and those of nodes that tell theirs."""
        server = self.querying.server
        if server.skew_s is not None:
            self.asked.skew_s[httpx2.URL(server.address).host] = server.skew_s
        try:
            found = self.querying.node_skew_s()
        except AskError:  # samples were read; a clock that is not told is not known
            return
        for run in found.runs:
            told = self.memory.legend.host_of(run.labels)
            if told is not None:
                self.asked.skew_s[told] = (server.skew_s or 0.0) + float(run.values[-1])
