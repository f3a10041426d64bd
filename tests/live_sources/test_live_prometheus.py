"""Prometheus and VictoriaMetrics as live sources: real servers, GPUs that come and go, servers that go and come."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import parse_qs

import numpy as np
import pytest
from live_expected import expected

from own_time import own_seconds
from servers.exporter import exporter
from servers.faulty import Garbage, Reply, SeenRequest, Status, faulty
from servers.process import free_port
from servers.prometheus import Series, prometheus
from servers.victoria import put, victoria
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.live.snapshot import GpuId, Snapshot
from tachograph.live.sources.prometheus import PrometheusSource, ScrapeTimes, connect
from tachograph.live.sources.series import SeriesLayout

pytestmark = pytest.mark.slow

UTIL, POWER, SM = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_SM_ACTIVE"
NODES = {name: {gpu: {UTIL: 10 * gpu + 5, POWER: 100.25, SM: 0.5} for gpu in range(2)} for name in ("n1", "n2")}
Rows = list[tuple[Mapping[str, str], str]]


def configured(**settings: object) -> Configuration:
    return Configuration(sources=({"source": "prometheus", "timeout_s": 2.0, "step_s": 1.0, **settings},))


def read_until(source: PrometheusSource, true: Callable[[Snapshot], bool], within_s: float = 60.0) -> Snapshot:
    until = time.monotonic() + within_s
    while not true(snapshot := source.read()):
        assert time.monotonic() < until, snapshot
        time.sleep(0.03)
    return snapshot


def connected(configuration: Configuration, within_s: float = 60.0) -> PrometheusSource:
    """A source on a server that may not have scraped anything yet."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        with suppress(InputError):
            return connect(configuration)
        time.sleep(0.1)
    return connect(configuration)


def values_of(snapshot: Snapshot) -> dict[tuple[str, int, int | None], dict[str, float]]:
    return {
        (gpu.node, gpu.gpu, gpu.mig): {n: v for n in snapshot.values if (v := snapshot.value(n, row)) is not None}
        for row, gpu in enumerate(snapshot.gpus)
    }


def test_a_real_prometheus_that_scrapes_exporters(tmp_path: Path) -> None:
    with exporter(NODES) as server:
        server.hold("n1", 0, "7")
        server.hold("n2", 1, "8", "9")
        targets = [f"127.0.0.1:{node.port}" for node in server.nodes.values()]
        with prometheus(tmp_path / "p", targets=targets) as url, closing(connected(configured(url=url))) as source:
            snapshot = read_until(source, lambda s: len(s.gpus) == 4)
            texts = {served.node: served.text for served in server.served}
            wanted = expected(texts["n1"] + texts["n2"])
            found = values_of(snapshot)
            assert found.keys() == wanted.keys()
            for unit, values in wanted.items():
                assert found[unit] == pytest.approx(values)
            assert {gpu.name: one.job_id for gpu, one in snapshot.allocations.items()} == {"n1:0": "7", "n2:1": "8,9"}
            assert snapshot.devices[GpuId("n1", 0)].uuid == "GPU-n1-0"
            served = [one.t for one in server.served if one.node == "n1"]
            assert min(abs(t - snapshot.measured[0]) for t in served) < 0.5, "when it was scraped"
            before = snapshot.measured.copy()
            assert read_until(source, lambda s: bool((s.measured > before).all())).problems == ()
            server.set("n1", 0, {UTIL: 90})
            read_until(source, lambda s: s.value("gpu_util", 0) == pytest.approx(0.9))
            server.nodes["n1"].gpus.pop()  # it is lost: its series go stale
            lost = read_until(source, lambda s: s.value("gpu_util", 1) is None)
            assert (len(lost.gpus), math.isnan(lost.measured[1])) == (4, True)
            assert lost.value("gpu_util", 0) == pytest.approx(0.9)
            assert "4 GPUs of 2 nodes" in source.about.sentence
            assert "sm_active" not in source.about.unsupported
            assert "fp64_active" in source.about.unsupported


def test_a_real_victoriametrics(tmp_path: Path) -> None:
    now = time.time()
    series = [
        Series({"__name__": metric, "gpu": str(gpu), "Hostname": node, "instance": f"{node}:9400"}, [(now - 3, value)])
        for node in ("n1", "n2", "n30")
        for gpu in range(2)
        for metric, value in ((UTIL, 25.0), (SM, 0.75), (POWER, 1e9))
    ]
    with victoria(tmp_path / "v") as url:
        put(url, series)
        with closing(connect(configured(url=url))) as source:
            snapshot = source.read()
            assert values_of(snapshot) == {
                (node, gpu, None): {"gpu_util": 0.25, "sm_active": 0.75}
                for node in ("n1", "n2", "n30")
                for gpu in (0, 1)
            }
            assert snapshot.measured == pytest.approx(np.full(6, now - 3), abs=0.01)
        with closing(connect(configured(url=url, selector='{instance="n2:9400"}'))) as source:
            assert [gpu.name for gpu in source.read().gpus] == ["n2:0", "n2:1"]


def series_of(request: SeenRequest, rows: Rows, t: float) -> Reply:
    """What a server answers to an instant query of all series, or of their times."""
    query = parse_qs(request.body.decode())["query"][0]
    times = query.startswith("timestamp(")
    chosen = [(labels, value) for labels, value in rows if not times or labels["__name__"] in query]
    result = [
        {
            "metric": {name: text for name, text in labels.items() if not times or name != "__name__"},
            "value": [t, repr(t - 7) if times else value],
        }
        for labels, value in chosen
    ]
    return Reply(json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode())


ROWS: Rows = [({"__name__": UTIL, "gpu": str(gpu), "Hostname": "n1"}, str(20 + gpu)) for gpu in range(2)]


def test_a_server_that_fails_is_told_and_its_last_values_stay() -> None:
    with (
        faulty(lambda request: series_of(request, ROWS, time.time())) as server,
        closing(connect(configured(url=server.url))) as source,
    ):
        source.read()
        for fault, what in (
            (Status(503, body=b'{"status":"error","errorType":"busy","error":"too much"}'), "too much"),
            (Garbage(), "is no JSON"),
            (Garbage(b'{"status":"success","isPartial":true,"data":{"resultType":"vector"}}'), "partial"),
        ):
            server.faults.append(fault)
            wrong = read_until(source, lambda s: bool(s.problems))
            assert what in wrong.problems[0].what
            assert wrong.problems[0].do
            assert wrong.value("gpu_util", 1) == pytest.approx(0.21)
            assert read_until(source, lambda s: not s.problems).value("gpu_util", 1) == pytest.approx(0.21)


def test_a_server_that_goes_and_comes_back() -> None:
    port = free_port()
    with faulty(lambda request: series_of(request, ROWS, time.time()), port=port) as server:
        source = connect(configured(url=server.url))
    with closing(source):
        (problem,) = read_until(source, lambda s: bool(s.problems)).problems
        assert problem.what == "cannot connect: connection refused"
        more: Rows = [*ROWS, ({"__name__": UTIL, "gpu": "2", "Hostname": "n1"}, "99")]
        with faulty(lambda request: series_of(request, more, time.time()), port=port):
            assert read_until(source, lambda s: len(s.gpus) == 3).problems == ()


def test_reading_never_waits_for_a_server_that_hangs() -> None:
    with (
        faulty(lambda request: series_of(request, ROWS, time.time())) as server,
        closing(connect(configured(url=server.url, timeout_s=30.0))) as source,
    ):
        server.hold_after(len(server.requests))
        until = time.monotonic() + 60
        while not (snapshot := source.read()).problems:
            began = time.monotonic()
            source.read()
            assert time.monotonic() - began < 5
            assert time.monotonic() < until
            time.sleep(0.05)
        assert snapshot.problems[0].what == "has not answered yet"
        assert snapshot.value("gpu_util", 0) == 0.2


def test_the_token_is_sent_and_the_time_of_scrapes_is_queried(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret\n")
    with faulty(lambda request: series_of(request, ROWS, time.time())) as server:
        settings = configured(url=server.url, token_file=str(tmp_path / "token"))
        with closing(connect(settings)) as source:
            snapshot = source.read()
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer s3cret"}
        assert all(request.method == "POST" for request in server.requests)
    assert snapshot.measured == pytest.approx(np.full(2, snapshot.t - 7), abs=1.0)


def test_why_a_server_cannot_be_used_is_reported() -> None:
    with pytest.raises(ConfigError, match="no Prometheus configured"):
        connect(Configuration())
    with pytest.raises(ConfigError, match="selector"):
        connect(configured(url="http://127.0.0.1:1", selector="{what"))
    with pytest.raises(InputError, match="cannot connect"):
        connect(Configuration(), url=f"http://127.0.0.1:{free_port()}")
    with (
        faulty(lambda request: series_of(request, [], 0.0)) as server,
        pytest.raises(InputError, match="no GPU series"),
    ):
        connect(Configuration(), url=server.url)
    with faulty(lambda request: Reply(b"", 401)) as server, pytest.raises(InputError, match="401") as reported:
        connect(Configuration(), url=server.url)
    assert "token_file" in reported.value.do


def test_how_often_targets_are_scraped_is_learned() -> None:
    scrapes, layout = ScrapeTimes(), SeriesLayout(gpus=(GpuId("n1", 0), GpuId("n1", 1)))
    assert scrapes.every_s == 2.0
    for k in range(40):  # polled each two seconds, scraped each fifteen
        now = 2.0 * k
        scrapes.note(layout, np.array([now // 15 * 15, (now + 7) // 15 * 15]))
    assert (scrapes.step_s, scrapes.every_s) == (15.0, 5.0)
    assert ScrapeTimes(60.0, learns=False).every_s == 10.0


def test_a_thousand_gpus_cost_the_reader_little() -> None:
    rows: Rows = [
        (
            {"__name__": metric, "Hostname": f"n{k:03d}", "gpu": str(gpu), "modelName": "NVIDIA H100", "job": "dcgm"},
            "0.5",
        )
        for metric in (UTIL, SM, POWER, "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_DEV_FB_USED")
        for k in range(125)
        for gpu in range(8)
    ]
    with (
        faulty(lambda request: series_of(request, rows, 1e9)) as server,
        closing(connect(configured(url=server.url))) as source,
    ):
        assert len(source.read().gpus) == 1000
        assert own_seconds(lambda: [source.read() for _ in range(50)], enough=0.2, tries=5) < 0.2
