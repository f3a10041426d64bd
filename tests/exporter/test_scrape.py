"""Rounds over exporters: those that answer land, those that do not are named, and nothing is
taken twice.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
from scraping import feeding, frame, nodes, poll, rejects

from own_time import own_seconds
from servers.exporter import Exporter, Fault, exporter
from tachograph.catalog.chunks import Chunk
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, GPU_SAMPLES
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest, watermark
from tachograph.sources.dcgm_exporter import ScrapeFeed
from tachograph.sources.endpoints import DCGM_EXPORTER, MAX_ENDPOINTS, ExporterSettings, expand_url
from tachograph.sources.exporter_mapping import LabelNames
from tachograph.sources.registry import load_feed, settings_of

UTIL = "DCGM_FI_DEV_GPU_UTIL"
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
TWO_NODES = {
    name: {gpu: {UTIL: 10 * gpu + 5, ENERGY: 1e6} for gpu in range(2)} for name in ("n1", "n2")
}


def polled(server: Exporter, **settings: Any) -> AbstractContextManager[ScrapeFeed]:
    """Return a feed of all nodes of a server that is polled twice a second."""
    given = {"timeout_s": 0.5, "every_s": 0.5, "cluster": "c1", **settings}
    return feeding(*server.urls, **given)


def test_a_round_is_one_chunk_of_its_stream_and_lands_once(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    with exporter(TWO_NODES) as server, polled(server) as feed:
        server.hold("n1", 0, "7", "8")
        now = datetime.now(UTC)
        chunk = poll(feed, now)
    (looked,) = frame(chunk).filter(pl.col("node") == "n1", pl.col("gpu") == 0).get_column("t")
    assert (chunk.id, chunk.watermark) == ("dcgm-exporter:dcgm-exporter", now)
    ingest(lake, [chunk, chunk], now=datetime.now(UTC))
    samples = lake.latest(GPU_SAMPLES).sort("node", "gpu")
    assert samples.select("node", "gpu", "gpu_util", "energy_j").rows() == [
        (node, gpu, pytest.approx(0.1 * gpu + 0.05), 1000.0)
        for node in ("n1", "n2")
        for gpu in (0, 1)
    ]
    assert samples.filter(~pl.col("t").is_between(now, now + timedelta(seconds=30))).is_empty()
    held = lake.latest(ALLOCATIONS).sort("job_id")
    assert held.select("cluster", "job_id", "node", "gpu", "start", "end", "provenance").rows() == [
        ("c1", job, "n1", 0, looked, None, "explicit") for job in ("7", "8")
    ]
    assert lake.latest(DEVICES).get_column("uuid").sort().to_list() == [
        f"GPU-{node}-{gpu}" for node in ("n1", "n2") for gpu in (0, 1)
    ]
    assert watermark(lake, chunk.id) == now


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("slow", "no answer within 0.5 s"),
        ("status", "answered 500"),
        ("cut_off", "the answer was cut off"),
        ("half_header", "the answer"),
        ("closed", "the answer was cut off"),
        ("garbage", "no metric of this page is known"),
        ("drip", "no complete answer within 1 s"),
    ],
)
def test_one_exporter_that_fails_is_named_and_the_others_land(fault: Fault, said: str) -> None:
    with exporter(TWO_NODES, slow_s=6) as server, polled(server, refresh_s=0) as feed:
        server.fail("n2", fault)
        began = time.monotonic()
        chunk = poll(feed)
        assert time.monotonic() - began < 5
        assert nodes(chunk) == ["n1"]
        (label,) = feed.outcome.unreachable
        assert label in server.url("n2")
        assert said in feed.outcome.unreachable[label]
        server.fail("n2", None)
        if fault not in ("slow", "drip"):  # of those the old answer may still be under way
            assert nodes(poll(feed)) == ["n1", "n2"]
            assert feed.outcome.unreachable == {}


def test_an_exporter_that_is_still_answering_is_not_asked_again() -> None:
    with exporter(TWO_NODES, slow_s=4) as server, polled(server) as feed:
        server.fail("n2", "drip")
        poll(feed)
        server.set("n1", 0, {UTIL: 77})
        poll(feed)
        assert list(feed.outcome.unreachable.values()) == ["is still answering the previous poll"]
        assert [entry.node for entry in server.served].count("n2") == 1
        server.fail("n2", None)


def test_a_value_that_is_read_again_is_counted_and_does_not_land() -> None:
    with exporter(TWO_NODES) as server, polled(server) as feed:
        first = poll(feed)
        server.set("n2", 1, {ENERGY: 2e6})
        second = poll(feed)
    assert frame(first).height == 4
    assert frame(second).select("node", "gpu").rows() == [("n2", 1)]
    assert rejects(second)["reread"][0] == 3
    assert second.watermark is not None


def told(chunk: Chunk, now: datetime) -> list[tuple[object, ...]]:
    """(job, GPU of n1, minutes from `now` to the start, to the end)"""
    parts = [part.frame for part in chunk.parts if part.table == "allocations"]
    return [
        (job, gpu, *(t and round((t - now).total_seconds() / 60) for t in times))
        for part in parts
        for job, gpu, *times in part.select("job_id", "gpu", "start", "end").rows()
    ]


def test_jobs_are_told_when_they_begin_and_end_and_again_after_a_restart() -> None:
    now = datetime.now(UTC)
    with exporter(TWO_NODES) as server:
        server.hold("n1", 0, "7")
        with polled(server) as feed:
            assert told(poll(feed, now), now) == [("7", 0, 0, None)]
            server.hold("n1", 1, "8")
            assert told(poll(feed, now + timedelta(minutes=1)), now) == [("8", 1, 1, None)]
            assert told(poll(feed, now + timedelta(minutes=2)), now) == []
            server.fail("n1", "status")  # who does not answer ends nothing
            assert told(poll(feed, now + timedelta(minutes=3)), now) == []
            server.fail("n1", None)
            server.hold("n1", 0, "9")
            assert told(poll(feed, now + timedelta(minutes=4)), now) == [
                ("7", 0, 0, 4),
                ("9", 0, 4, None),
            ]
        with polled(server) as restarted:
            later = now + timedelta(minutes=5)
            assert told(poll(restarted, later), now) == [("9", 0, 5, None), ("8", 1, 5, None)]


def test_clocks_that_are_ahead_are_noticed() -> None:
    with exporter(TWO_NODES) as server, polled(server) as feed:
        server.nodes["n2"].clock_ahead_s = 120
        poll(feed)
        ahead = {label: round(skew) for label, skew in feed.outcome.skew_s.items()}
    assert sorted(ahead.values())[1] == pytest.approx(120, abs=1)
    assert sorted(ahead.values())[0] == pytest.approx(0, abs=1)


def test_many_exporters_behind_tls_share_what_is_costly() -> None:
    settings = ExporterSettings(source=DCGM_EXPORTER, urls=("https://n[001-500]:9400",))
    # 25 s where each reads them.
    assert own_seconds(lambda: ScrapeFeed(settings, cluster=None).close(), enough=5) < 5


def test_rounds_land_also_when_the_clock_was_set_back(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    now = datetime.now(UTC)
    clock = (now, now - timedelta(hours=1), now - timedelta(minutes=59))
    with exporter(TWO_NODES) as server, polled(server, refresh_s=0) as feed:
        for at in clock:
            ingest(lake, feed.poll(partial(watermark, lake), now=at), now=now)
    samples = lake.latest(GPU_SAMPLES).filter(pl.col("node") == "n1", pl.col("gpu") == 0)
    assert [round((t - now).total_seconds() / 60) for t in samples.get_column("t").sort()] == [
        -60,
        -59,
        0,
    ]


@pytest.mark.parametrize(
    ("url", "expanded"),
    [
        ("http://n1:9400/metrics", ["http://n1:9400/metrics"]),
        ("https://gpu[08-10]:9400", [f"https://gpu{n}:9400/metrics" for n in ("08", "09", "10")]),
        (
            "http://r[1-2]n[1,3].x.org/custom",
            [f"http://r{r}n{n}.x.org/custom" for r in (1, 2) for n in (1, 3)],
        ),
        ("http://n1,n2:9400", ["http://n1:9400/metrics", "http://n2:9400/metrics"]),
        ("http://[fe80::1]:9400/metrics", ["http://[fe80::1]:9400/metrics"]),
    ],
)
def test_a_hostlist_stands_for_many(url: str, expanded: list[str]) -> None:
    assert list(expand_url(url)) == expanded


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "urls is missing"),
        ({"urls": ["http://n[1:9400/metrics"]}, "no hostlist"),
        ({"urls": [f"http://n[1-{MAX_ENDPOINTS + 1}]:9400"]}, "names no hosts, or too many"),
        ({"urls": ["http://n[1-99999999999]:9400"]}, "names no hosts, or too many"),
        ({"urls": ["gpu01:9400"]}, "invalid url"),
        ({"urls": ["http://[::1"]}, "invalid url"),
        (
            {"urls": ["http://n1"], "metrics": {"x": ["nonsense", "percent"]}},
            "metrics.x: unknown counter 'nonsense'",
        ),
        ({"urls": ["http://n1"], "labels": {"host": ["x"]}}, "unknown field 'host'"),
        ({"urls": ["http://n1"], "paralel": 3}, "unknown field 'paralel'"),
        ({"urls": ["http://n1"], "parallel": 0}, "parallel is 0, less than 1"),
        ({"urls": ["http://n1"], "timeout_s": -1}, "timeout_s is -1, less than 0.001"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_feed(DCGM_EXPORTER).connect(
            settings_of({"source": DCGM_EXPORTER, **settings}, where="t.toml"),
            configuration=Configuration(),
        )
    assert said in str(raised.value)


def test_every_setting_is_told_with_its_default() -> None:
    told = (Path(__file__).parents[2] / "docs" / "ingest-exporter.md").read_text()
    fields = {field.name: field.default for field in msgspec.structs.fields(ExporterSettings)}
    assert [
        name for name in fields if name not in ("source", "name") and f"`{name}`" not in told
    ] == []
    for name in ("every_s", "refresh_s", "timeout_s", "parallel", "attempts"):
        assert f"| `{name}` | `{float(fields[name]):g}` |" in told
    assert [name for name in LabelNames.__struct_fields__ if f"`{name}`" not in told] == []
