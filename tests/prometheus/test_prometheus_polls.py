"""Polls at any time, of samples that come at any time: none is missed, none waits for longer
than it must.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph.sources.http import HttpServer, RequestError
from tachograph.sources.prometheus import PrometheusFeed, milliseconds, moment
from tachograph.sources.prometheus_query import PrometheusQueries, PrometheusSettings
from tachograph.sources.series import SeriesAnswer, SeriesMemory, SeriesRun

HOUR = 3_600_000
BEGIN = 1_790_000_000_000 // HOUR * HOUR - 600_000  # ten minutes before a full hour, in ms
SILENT = 300_000  # at least, in ms
LABELS = b'{"__name__": "DCGM_FI_DEV_GPU_UTIL", "gpu": "0", "Hostname": "n1"}'


class Scraped(PrometheusQueries):
    """A server at a time `now`, in ms. `arrivals`: {time of a sample: when it can be queried}, both
    in ms.

    `answers`: how many requests more it answers; None: all.
    """

    def __init__(self, settings: PrometheusSettings, arrivals: Mapping[int, int]) -> None:
        super().__init__(settings, HttpServer(settings), (), how="raw")
        self.arrivals, self.now = arrivals, 0
        self.answers: int | None = None

    def samples(self, start: int, end: int) -> SeriesAnswer:
        if self.answers is not None:
            if self.answers == 0:
                raise RequestError("refused", where="test")
            self.answers -= 1
        there = sorted(t for t, at in self.arrivals.items() if start <= t < end and at <= self.now)
        return SeriesAnswer(
            [SeriesRun(LABELS, np.array(there, np.int64), np.ones(len(there)))] if there else []
        )

    def node_skew_s(self) -> SeriesAnswer:
        return SeriesAnswer()


@dataclass(slots=True)
class Landed:
    """What polls of a feed brought, as a lake keeps it."""

    times: set[int] = field(default_factory=set)
    marks: dict[str, datetime] = field(default_factory=dict)

    def poll(self, feed: PrometheusFeed, now: int) -> None:
        try:
            for chunk in feed.poll(self.marks.get, now=moment(now)):
                assert chunk.watermark is not None
                before = self.marks.get(chunk.id)
                assert before is None or before < chunk.watermark
                assert before is None or chunk.since == before, "time between was read by no chunk"
                self.marks[chunk.id] = chunk.watermark
                for part in chunk.parts:
                    if part.table == "gpu_samples":
                        self.times |= {milliseconds(t) for t in part.frame["t"]}
        except RequestError:
            return


@st.composite
def scrapes(draw: st.DrawFn, lookback_s: int) -> dict[int, int]:
    """Samples with silences between them, some late by up to `lookback_s`."""
    arrivals, t = {}, BEGIN
    for _ in range(draw(st.integers(1, 8))):
        t += 1000 * draw(st.sampled_from([0, 1, 10, 59, 61, 299, 301, 700, 3600]))
        step = 1000 * draw(st.sampled_from([1, 5, 15, 60]))
        late = 1000 * draw(
            st.sampled_from([0, 0, 0, min(lookback_s, 1), lookback_s // 3, lookback_s])
        )
        for _ in range(draw(st.integers(1, 40))):
            t += step
            arrivals[t] = t + late
    return arrivals


@settings(max_examples=settings().max_examples // 2)
@given(
    data=st.data(),
    lookback_s=st.sampled_from([0, 60, 300, 1000]),
    settle_s=st.sampled_from([0, 30]),
    window_s=st.sampled_from([60.0, 250.0, 3600.0]),
    waits=st.lists(st.sampled_from([1, 5, 15, 60, 400, 4000]), min_size=1, max_size=6),
    answers=st.lists(st.sampled_from([None, None, 0, 1, 3]), min_size=1, max_size=5),
)
def test_every_sample_lands_as_soon_as_it_can(
    data: st.DataObject,
    lookback_s: int,
    settle_s: int,
    window_s: float,
    waits: Sequence[int],
    answers: Sequence[int | None],
) -> None:
    arrivals = data.draw(scrapes(lookback_s))
    settings = PrometheusSettings(
        source="prometheus",
        url="http://127.0.0.1:9",
        from_=moment(BEGIN).isoformat(),
        lookback_s=lookback_s,
        settle_s=settle_s,
        window_s=window_s,
    )
    server, landed, silent = Scraped(settings, arrivals), Landed(), max(SILENT, 1000 * lookback_s)
    with closing(PrometheusFeed(settings, server, SeriesMemory())) as feed:
        now = BEGIN
        for number in range(20):
            now += 1000 * waits[number % len(waits)]
            server.now, server.answers = now, answers[number % len(answers)]
            landed.poll(feed, now)
            mark = landed.marks.get(settings.stream, moment(BEGIN))
            assert milliseconds(mark) <= max(max(landed.times, default=BEGIN - 1) + 1, now - silent)
            if server.answers is None:  # every request was answered
                assert landed.times >= {
                    t for t, at in arrivals.items() if at == t < now - 1000 * settle_s
                }
        server.answers, now = None, max(now, *arrivals)
        for later in (2, 4, 8):
            server.now = now + later * silent
            landed.poll(feed, server.now)
    assert landed.times == set(arrivals)
