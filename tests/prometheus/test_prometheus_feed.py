"""The feed on real servers: what is scraped lands once, late samples too; gaps, restarts and
clocks that are wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from email.utils import format_datetime
from itertools import count, pairwise
from pathlib import Path

import httpx2
import pytest
from made_series import STEP, T0, Made, assert_rows, cluster, held, moment, rows_of
from prometheus_client.parser import text_string_to_metric_families

from servers.exporter import Exporter, exporter
from servers.faulty import Reply, SeenRequest, faulty, forward
from servers.prometheus import Series, backfill, prometheus
from servers.victoria import put, victoria
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import GPU_SAMPLES, REJECTS
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import IngestReport, ingest, watermark
from tachograph.sources.http import RequestError
from tachograph.sources.prometheus import PrometheusFeed, connect
from tachograph.sources.prometheus_query import PrometheusSettings
from tachograph.sources.registry import settings_of

pytestmark = pytest.mark.slow

END = T0 + STEP * 400


@contextmanager
def feed_of(url: str, **more: object) -> Iterator[PrometheusFeed]:
    raw = {
        "source": "prometheus",
        "url": url,
        "from": moment(T0).isoformat(),
        "settle_s": 0,
        **more,
    }
    settings = settings_of(raw, where="test")
    assert isinstance(settings, PrometheusSettings)
    feed = connect(settings, configuration=Configuration())
    try:
        yield feed
    finally:
        feed.close()


def poll(feed: PrometheusFeed, lake: Lake, t: float) -> IngestReport:
    """One round at a time of the feed's clock."""
    now = datetime.fromtimestamp(t, UTC)
    return ingest(lake, feed.poll(lambda stream: watermark(lake, stream), now=now), now=now)


def before(made: Made, t: float) -> Made:
    """What was there at a time."""
    return Made(
        gpu_rows={key: row for key, row in made.gpu_rows.items() if key[3] < moment(t)},
        node_rows={key: row for key, row in made.node_rows.items() if key[3] < moment(t)},
    )


@pytest.mark.parametrize("how", ["raw", "export"])
def test_rounds_land_everything_once(tmp_path: Path, how: str) -> None:
    made = cluster()
    lake = Lake.create(str(tmp_path / "lake"))
    with victoria(tmp_path / "server") as url:
        put(url, made.series)
        with feed_of(url, how=how, window_s=2000) as feed:
            for t in (T0 + 700, T0 + 715, T0 + 730.5, END + 1):
                poll(feed, lake, t)
                assert_rows(lake, before(made, t))
        # Behind the newest sample.
        assert watermark(lake, "prometheus:prometheus") == moment(END - STEP + 0.001)
        with feed_of(url, how=how) as feed:  # another process goes on
            poll(feed, lake, END + 100)
    assert_rows(lake, made)
    assert held(lake) == {
        ("4711", "n2", 0, None, moment(T0 + 15 * 50), moment(T0 + 15 * 200)),
        ("4712", "n2", 0, None, moment(T0 + 15 * 200), None),
    }


def test_after_downtime_each_window_lands_on_its_own(tmp_path: Path) -> None:
    made = cluster()
    backfill(tmp_path / "server", made.series)
    lake = Lake.create(str(tmp_path / "lake"))
    with (
        prometheus(tmp_path / "server") as url,
        faulty(_refuse_after(6, forward(url))) as between,
        feed_of(between.url, window_s=1200, attempts=1, how="raw") as feed,
    ):
        with pytest.raises(RequestError, match="answered 403"):
            poll(feed, lake, END)
        reached = watermark(lake, "prometheus:prometheus")
        assert reached is not None
        assert moment(T0) < reached < moment(END)
        assert_rows(lake, before(made, reached.timestamp()))
        between.answer = forward(url)
        poll(feed, lake, END)
    assert_rows(lake, made)


def _refuse_after(
    good: int, answer: Callable[[SeenRequest], Reply]
) -> Callable[[SeenRequest], Reply]:
    """Answers a number of requests, and no more."""
    asked = count(1)
    return lambda request: answer(request) if next(asked) <= good else Reply(b"", 403)


@pytest.mark.parametrize(
    ("scrapes", "window_s"),
    [
        pytest.param(range(400), 3600, id="scraped all the time"),
        pytest.param(range(122, 400), 3600, id="scraped since the hour began"),
        pytest.param([*range(110), *range(125, 400)], 60, id="silent for longer than a window"),
    ],
)
def test_borders_of_windows_delay_no_sample(
    tmp_path: Path, scrapes: Sequence[int], window_s: float
) -> None:
    """Polls at each scrape, from before an hour begins (T0 + 120 steps) until after it."""
    lake, made = Lake.create(str(tmp_path / "lake")), Made()
    made.add_gpu("n1", 0, None, scrapes)
    with victoria(tmp_path / "server") as url, feed_of(url, window_s=window_s, how="raw") as feed:
        put(url, made.series)
        for t in range(T0 + STEP * 117, T0 + STEP * 129, STEP):
            poll(feed, lake, t + 1)
            assert_rows(lake, before(made, t + 1))


def test_late_samples_land_and_nothing_twice(tmp_path: Path) -> None:
    made, late = Made(), Made()
    made.add_gpu("n1", 0, None, range(100))
    late.add_gpu("n1", 0, None, range(100, 120))
    late.add_gpu("n3", 0, None, range(87, 110))
    others = Made()
    others.add_gpu("n1", 0, None, range(120, 400))
    lake = Lake.create(str(tmp_path / "lake"))
    with victoria(tmp_path / "server") as url, feed_of(url, lookback_s=600) as feed:
        put(url, made.series)
        poll(feed, lake, T0 + 1700)
        assert_rows(lake, made)
        put(url, others.series)
        poll(feed, lake, T0 + 1800)
        put(url, late.series)  # of times that were read already
        poll(feed, lake, T0 + 1900)
        everything = Made(gpu_rows={**made.gpu_rows, **others.gpu_rows, **late.gpu_rows})
        assert len(rows_of(lake, GPU_SAMPLES)) < len(before(everything, T0 + 1900).gpu_rows)
        for t in range(2000, 4000, 200):
            poll(feed, lake, T0 + t)
        assert_rows(lake, before(everything, T0 + 3800))
        late_mark = watermark(lake, "prometheus:prometheus:late")
        assert late_mark is not None
        assert moment(T0 + 2600) <= late_mark <= moment(T0 + 3300)


def test_what_is_removed_counts_once_however_often_it_is_looked_at(tmp_path: Path) -> None:
    labels = {
        "__name__": "DCGM_FI_DEV_GPU_UTIL",
        "gpu": "0",
        "Hostname": "n1",
        "instance": "n1:9400",
    }
    util = [(float(T0 + STEP * k), 500.0 if k == 3 else 50.0) for k in range(100)]
    lake = Lake.create(str(tmp_path / "lake"))
    with victoria(tmp_path / "server") as url, feed_of(url, lookback_s=300) as feed:
        put(url, [Series(labels, util)])
        for t in range(60, 1000, 240):
            poll(feed, lake, T0 + t)
    late = watermark(lake, "prometheus:prometheus:late")
    assert late is not None
    assert late > moment(T0 + 3 * STEP)
    removed = lake.latest(REJECTS).select("target", "reason", "column", "removed").rows()
    assert removed == [("gpu_samples", "out_of_range", "gpu_util", 1)]


def test_a_gap_of_the_exporter_and_a_restart_of_the_server_stay_gaps(tmp_path: Path) -> None:
    """What a real Prometheus scraped from a real exporter is what the exporter served: nothing
    more, nothing less.
    """
    started = time.time()
    ramp = {
        "DCGM_FI_DEV_GPU_UTIL": lambda t: int(t * 10) % 100,
        "DCGM_FI_DEV_POWER_USAGE": lambda t: 100 + t % 60,
    }
    lake = Lake.create(str(tmp_path / "lake"))
    with exporter({"n1": {0: ramp, 1: ramp}}) as pages:
        targets = [url.removeprefix("http://").removesuffix("/metrics") for url in pages.urls]
        with prometheus(tmp_path / "server", targets=targets, interval="200ms"):
            scraped(pages, 6)  # Prometheus looks for its targets five seconds after it began
            pages.fail("n1", "status")
            scraped(pages, 6)
            pages.fail("n1", None)
            scraped(pages, 6)
        with prometheus(tmp_path / "server", targets=targets, interval="200ms") as url:
            scraped(pages, 6)
            with feed_of(url, **{"from": moment(started).isoformat()}) as feed:
                poll(feed, lake, time.time() - 0.6)
                poll(feed, lake, time.time() - 0.3)
                last = watermark(lake, "prometheus:prometheus")
            asked = {"query": "DCGM_FI_DEV_GPU_UTIL[1h]", "time": str(time.time())}
            kept = httpx2.get(f"{url}/api/v1/query", params=asked).json()["data"]["result"]
    assert last is not None
    found = rows_of(lake, GPU_SAMPLES)
    points = {
        (int(one["metric"]["gpu"]), moment(float(t))): float(value)
        for one in kept
        for t, value in one["values"]
        if moment(float(t)) < last
    }
    assert {(key[1], key[3]) for key in found} == points.keys()
    pages_of = [_values(one.text, 0) for one in pages.served if one.status == 200]
    shown = {
        (page["DCGM_FI_DEV_GPU_UTIL"], round(page["DCGM_FI_DEV_POWER_USAGE"], 3))
        for page in pages_of
    }
    for key, row in found.items():
        util = points[key[1] or 0, key[3]]
        assert row["gpu_util"] == pytest.approx(util / 100, abs=1e-6)
        assert any(util == one and abs(row["power_w"] - power) < 1e-2 for one, power in shown)
    for gpu in (0, 1):
        times = sorted(key[3] for key in found if key[1] == gpu)
        distances = sorted((later - earlier).total_seconds() for earlier, later in pairwise(times))
        assert distances[-2] > 0.7, "the failing exporter and the restart must both be gaps"


def scraped(pages: Exporter, more: int) -> None:
    """Wait for some scrapes."""
    goal, until = len(pages.served) + more, time.monotonic() + 120
    while len(pages.served) < goal:
        assert time.monotonic() < until, "nobody scrapes"
        time.sleep(0.02)


def _values(page: str, gpu: int) -> dict[str, float]:
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.labels["gpu"] == str(gpu)
    }


def test_clocks_that_differ_are_told_and_lose_nothing(tmp_path: Path) -> None:
    """The server's clock is 200 s behind ours: at our END it has scraped up to END - 200, and
    not beyond.
    """
    made = cluster()
    lake = Lake.create(str(tmp_path / "lake"))
    with victoria(tmp_path / "server") as url:
        put(url, made.series)
        ahead = Series(
            {"__name__": "node_time_seconds", "instance": "10.0.0.1:9100", "job": "node"}, []
        )
        points = [(time.time() - k, time.time() - k + 42.0) for k in range(20, -1, -1)]
        put(url, [Series(ahead.labels, points)])

        def behind(request: SeenRequest) -> Reply:
            reply = forward(url)(request)
            date = format_datetime(datetime.fromtimestamp(time.time() - 200, UTC), usegmt=True)
            return Reply(reply.body, reply.status, {**reply.headers, "Date": date})

        with faulty(behind) as between, feed_of(between.url) as feed:
            poll(feed, lake, END)
            reached = watermark(lake, "prometheus:prometheus")
            assert reached is not None
            assert -STEP < (reached - moment(END - 200)).total_seconds() < 3
            assert feed.outcome.skew_s["127.0.0.1"] == pytest.approx(-200, abs=2)
            assert feed.outcome.skew_s["n1"] == pytest.approx(-200 + 42, abs=2)
            assert_rows(lake, before(made, reached.timestamp()))


@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_a_wrong_date_for_some_answers_loses_nothing(tmp_path: Path, ahead_s: float) -> None:
    """A proxy in front of a server whose own clock is right."""
    lake, made, wrong = Lake.create(str(tmp_path / "lake")), Made(), [ahead_s]
    made.add_gpu("n1", 0, None, range(100))
    stamps = [Series(one.labels, [(t, value) for t, value in one.points]) for one in made.series]
    with victoria(tmp_path / "server") as url:

        def dated(request: SeenRequest) -> Reply:
            reply = forward(url)(request)
            date = format_datetime(datetime.fromtimestamp(time.time() + wrong[0], UTC), usegmt=True)
            return Reply(reply.body, reply.status, {**reply.headers, "Date": date})

        with faulty(dated) as between, feed_of(between.url) as feed:
            begun = T0
            for until in range(T0 + 300, T0 + 1800, 300):
                put(
                    url,
                    [
                        Series(one.labels, [at for at in one.points if begun <= at[0] < until])
                        for one in stamps
                    ],
                )
                begun = until
                poll(feed, lake, until)
                reached = watermark(lake, "prometheus:prometheus")
                assert reached is None or reached <= moment(until)
                if until == T0 + 900:
                    assert feed.outcome.skew_s["127.0.0.1"] == pytest.approx(ahead_s, abs=2)
                    wrong[0] = 0
            assert_rows(lake, made)
