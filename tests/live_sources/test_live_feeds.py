"""Exporters and Prometheus as live sources: values and their age, sources that fail and recover,
restarts.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from plain_numbers import expected
from servers.exporter import Exporter, Gpu, Node, exporter, page
from servers.faulty import CutOff, Garbage, HangUp, Reply, Silence, Status, faulty
from servers.process import free_port
from servers.prometheus import Series, prometheus
from servers.victoria import put, victoria
from tachograph.annexes.watch.live.snapshot import GpuId, Snapshot
from tachograph.annexes.watch.live.sources.feeds import (
    FeedSource,
    connect_exporters,
    connect_server,
    exporter_source,
    node_exporter,
)
from tachograph.annexes.watch.live.unsupported import NO_VALUE, unsupported_summary
from tachograph.catalog.config import Configuration
from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.sources.endpoints import ExporterSettings

UTIL, POWER, SM = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_SM_ACTIVE"
TWO_NODES = {
    name: {gpu: {UTIL: 10 * gpu + 5, POWER: 100.5} for gpu in range(2)} for name in ("n1", "n2")
}
NOON = 1_795_262_400.0


class PolledByHand:
    """Exporters whose polls are those that a test makes; the time of the clock is `now`."""

    def __init__(self, urls: list[str], **settings: object) -> None:
        self.now = NOON
        entry = ExporterSettings(source="dcgm-exporter", urls=tuple(urls), **settings)  # type: ignore[arg-type]
        self.source = exporter_source([entry], clock=lambda: self.now)

    def poll(self, after_s: float = 0.0) -> Snapshot:
        """Poll once, so much later."""
        self.now += after_s
        for feed in self.source._feeds:
            feed.poll()
        return self.source.read()


@contextmanager
def by_hand(urls: list[str], **settings: object) -> Iterator[PolledByHand]:
    polled = PolledByHand(urls, **settings)
    with closing(polled.source):
        yield polled


@contextmanager
def one_page(text: str) -> Iterator[PolledByHand]:
    with (
        faulty(lambda request: Reply(text.encode())) as server,
        by_hand([f"{server.url}/metrics"]) as polled,
    ):
        yield polled


def as_dict(snapshot: Snapshot) -> dict[tuple[str, int, int | None], dict[str, float]]:
    return {
        (gpu.node, gpu.gpu, gpu.mig): {
            name: value
            for name in snapshot.values
            if (value := snapshot.value(name, row)) is not None
        }
        for row, gpu in enumerate(snapshot.gpus)
    }


def assert_as_expected(snapshot: Snapshot, text: str) -> None:
    wanted = expected(text)
    values = as_dict(snapshot)
    assert values.keys() == wanted.keys()
    for unit, of_unit in wanted.items():
        assert values[unit] == pytest.approx(of_unit), unit


def test_values_are_those_of_the_pages_of_all_nodes() -> None:
    with exporter(TWO_NODES) as server, by_hand(server.urls) as polled:
        snapshot = polled.poll()
        texts = {served.node: served.text for served in server.served}
        assert_as_expected(snapshot, texts["n1"] + texts["n2"])
        assert [gpu.name for gpu in snapshot.gpus] == ["n1:0", "n1:1", "n2:0", "n2:1"]
        assert snapshot.problems == ()
        device = snapshot.devices[GpuId("n1", 1)]
        assert (device.model, device.uuid, device.pci) == (
            "NVIDIA H100 80GB HBM3",
            "GPU-n1-1",
            "00000000:08:00.0",
        )
        about = polled.source.about
        assert about.sentence == "2 exporters, 4 GPUs of 2 nodes"
        assert set(about.unsupported) == set(COUNTER_NAMES) - {"gpu_util", "power_w"}
        assert "DCGM_FI_PROF_SM_ACTIVE" in about.unsupported["sm_active"]


def test_a_recorded_page(recorded: Path) -> None:
    text = (recorded / "prometheus_h100" / "dcgm_exporter_metrics_excerpt.prom").read_text()
    with one_page(text) as polled:
        snapshot = polled.poll()
    assert len(snapshot.gpus) == 8
    assert_as_expected(snapshot, text)
    assert snapshot.value("power_w", 0) == 113.611


def amd_page() -> str:
    """What device-metrics-exporter writes of two GPUs."""
    values = {
        "gpu_gfx_activity": 88,
        "gpu_umc_activity": 40,
        "gpu_used_vram": 41_000,
        "gpu_total_vram": 196_592,
    }
    labels = 'gpu_id="{0}",serial_number="s{0}",card_series="AMD Instinct MI300X",hostname="a1"'
    return "".join(
        f"{name}{{{labels.format(gpu)}}} {value}\n"
        for name, value in values.items()
        for gpu in range(2)
    )


def test_of_a_page_of_amd_nothing_of_nvidia_is_printed() -> None:
    with one_page(amd_page()) as polled:
        polled.poll()
        about = polled.source.about
    assert about.exporters == ("AMD device-metrics-exporter",)
    assert about.sentence.startswith("AMD device-metrics-exporter at ")
    printed = " ".join([about.sentence, *about.unsupported.values(), *unsupported_summary(about)])
    assert "gpu_prof_tensor_active_percent" in printed
    assert not any(name in printed for name in ("DCGM", "dcgm", "NVML", "nvidia", "hpc_job"))


def test_a_metric_without_usable_value_is_not_to_be_added() -> None:
    with one_page(page("n1", Node([Gpu(0, {UTIL: 50.0, SM: 9.2e18})]), 0.0)) as polled:
        polled.poll()
        assert polled.source.about.unsupported["sm_active"] == NO_VALUE
        assert polled.source.about.exporters == ("dcgm-exporter",)


def test_jobs_of_labels_hold_gpus_and_beside_them_others_are_free() -> None:
    with exporter(TWO_NODES) as server, by_hand(server.urls) as polled:
        server.hold("n1", 0, "7", "8")
        server.hold("n2", 0, "0")
        snapshot = polled.poll()
        assert {gpu.name: held.job_id for gpu, held in snapshot.allocations.items()} == {
            "n1:0": "7,8"
        }
        # Of n2 no job is named: the exporter may not know jobs.
        assert snapshot.free == {GpuId("n1", 1)}
        assert snapshot.value("gpu_util", 0) == 0.05
        server.hold("n1", 0)
        assert polled.poll(60.0).allocations == {}


JOBSTATS = (
    'nvidia_gpu_jobId{Hostname="n1",minor_number="0",uuid="GPU-n1-1"} 7\n'
    'nvidia_gpu_jobId{Hostname="n1",minor_number="1",uuid="GPU-n1-0"} 8\n'
)


@pytest.mark.parametrize("order", [("jobstats", "n1"), ("n1", "jobstats")])
def test_exporters_of_one_node_complete_each_other(order: tuple[str, ...]) -> None:
    with exporter({"n1": {0: {UTIL: 10}, 1: {UTIL: 90}}, "jobstats": {}}) as server:
        server.nodes["jobstats"].more = JOBSTATS
        with by_hand([server.url(name) for name in order], many_nodes=True) as polled:
            snapshot = polled.poll()
    assert {gpu.name: held.job_id for gpu, held in snapshot.allocations.items()} == {
        "n1:1": "7",
        "n1:0": "8",
    }
    assert as_dict(snapshot) == {
        ("n1", 0, None): {"gpu_util": 0.1},
        ("n1", 1, None): {"gpu_util": 0.9},
    }


def test_where_a_job_holds_an_unknown_gpu_none_is_free() -> None:
    text = page("n1", Node([Gpu(0, {UTIL: 5.0}, jobs=("7",)), Gpu(1, {UTIL: 5.0})]), 0.0)
    unknown = 'nvidia_gpu_jobId{Hostname="n1",uuid="GPU-unknown"} 9\n'
    for more, free in (("", {GpuId("n1", 1)}), (unknown, set())):
        with one_page(text + more) as polled:
            snapshot = polled.poll()
            assert snapshot.allocations[GpuId("n1", 0)].job_id == "7"
            assert snapshot.free == free


def test_the_same_page_again_is_no_new_measurement() -> None:
    with exporter(TWO_NODES) as server, by_hand(server.urls) as polled:
        before = polled.poll()
        again = polled.poll(5.0)
        assert again.measured.tolist() == before.measured.tolist()
        assert again.t == before.t + 5.0
        server.set("n1", 0, {UTIL: 90})
        later = polled.poll(5.0)
        assert later.column("gpu_util").tolist() == [0.9, 0.15, 0.05, 0.15]
        assert later.measured[0] == pytest.approx(before.measured[0] + 10, abs=2)
        assert later.measured[2] == before.measured[2], "the other node reported nothing new"
        assert again.value("gpu_util", 0) == 0.05, "a snapshot that was handed out does not change"


def test_a_time_behind_the_value_is_when_it_was_measured() -> None:
    text = f'{UTIL}{{gpu="0",Hostname="n1"}} 40 {round((NOON - 7) * 1000)}\n'
    with one_page(text) as polled:
        assert polled.poll().measured.tolist() == [NOON - 7]


def test_an_exporter_that_fails_is_reported_its_values_grow_old_and_it_recovers() -> None:
    with exporter(TWO_NODES) as server, by_hand(server.urls) as polled:
        server.set("n1", 1, {POWER: lambda t: t % 500})
        before = polled.poll()
        server.fail("n2", "closed")
        server.set("n1", 0, {UTIL: 90})
        failing = polled.poll(60.0)
        (problem,) = failing.problems
        assert problem.what
        assert problem.where in server.url("n2")
        assert problem.do
        assert failing.column("gpu_util").tolist() == [0.9, 0.15, 0.05, 0.15]
        assert failing.measured[2] == before.measured[2], "its age shows"
        silent = polled.poll(60.0)
        assert (silent.gpus, silent.devices) == (before.gpus, before.devices)
        assert np.isnan(silent.measured).tolist() == [False, False, True, True]
        assert silent.value("gpu_util", 2) is None, "in the end its values are gone"
        server.fail("n2", None)
        recovered = polled.poll(60.0)
        assert (recovered.problems, recovered.value("gpu_util", 2)) == ((), 0.05)
        server.fail("n2", "closed")
        polled.poll(3500.0)
        assert len(polled.poll(200.0).gpus) == 2, "and after an hour so are its rows"


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (Status(403), "answered 403 Forbidden"),
        (CutOff(), "the answer was cut off"),
        (Garbage(), "no metric of this answer (text/html) is known"),
        (Garbage(http=False, body=b"SSH-2.0-OpenSSH_9.2\r\n"), "the answer"),
        (HangUp(), "the answer was cut off"),
        (Silence(2), "no answer within 0.5 s"),
    ],
)
def test_the_only_exporter_fails_and_recovers(fault: object, what: str) -> None:
    text = f'{UTIL}{{gpu="0",Hostname="n1"}} 40\n'
    with (
        faulty(lambda request: Reply(text.encode())) as server,
        by_hand([f"{server.url}/metrics"], timeout_s=0.5) as polled,
    ):
        polled.poll()
        server.faults.append(fault)  # type: ignore[arg-type]
        failing = polled.poll(1.0)
        assert failing.problems[0].what.startswith(what)
        assert failing.value("gpu_util", 0) == 0.4, "the last value stays for a while"
        recovered = polled.poll(1.0)
        assert (recovered.problems, recovered.value("gpu_util", 0)) == ((), 0.4)


def test_values_that_stand_still_for_long_are_reported() -> None:
    with exporter(TWO_NODES) as server, by_hand(server.urls) as polled:
        server.set("n1", 0, {POWER: lambda t: t % 500})
        assert polled.poll().problems == ()
        assert polled.poll(119.0).problems == ()
        (problem,) = polled.poll(2.0).problems
        assert (problem.where, problem.what) == ("n2", "its values no longer change")
        server.set("n2", 0, {POWER: 99.0})
        assert polled.poll(1.0).problems == ()


def test_the_address_of_the_settings_is_polled_with_its_token(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    with exporter(TWO_NODES) as server:
        entry = {"source": "dcgm-exporter", "urls": server.urls[:1], "token_file": str(secret)}
        with closing(connect_exporters(Configuration(sources=(entry,)))) as source:
            assert len(source.read().gpus) == 2
        assert server.served[0].headers["authorization"] == "Bearer s3cret"


def exporters_at(*urls: str) -> dict[str, object]:
    return {"source": "dcgm-exporter", "urls": list(urls), "refresh_s": 5.0}


@pytest.mark.parametrize(
    ("entries", "url", "refresh_s"),
    [
        ([], "http://localhost:9400/metrics", 30.0),
        ([{"source": "prometheus", "url": "http://localhost:9090"}], None, 30.0),
        ([exporters_at("http://gpu[1-3]:9401")], None, 5.0),
        ([exporters_at("http://gpu1:1", "http://localhost:2")], "http://localhost:2/metrics", 5.0),
        (
            [exporters_at("http://gpu[1-3]:1"), exporters_at("http://HOST.example.org:3/m")],
            "http://HOST.example.org:3/m",
            5.0,
        ),
    ],
)
def test_the_exporter_of_a_node_is_the_configured_one_of_this_host(
    entries: list[dict[str, object]],
    url: str | None,
    refresh_s: float,
) -> None:
    here = socket.gethostname().partition(".")[0]
    text = json.dumps(entries).replace("HOST", here)
    settings = node_exporter(Configuration(sources=tuple(json.loads(text))))
    usual = "http://localhost:9400/metrics"
    assert settings.urls == ((url or usual).replace("HOST", here),)
    assert (settings.url, settings.refresh_s) == ("", refresh_s)


def test_why_exporters_cannot_be_used_is_reported() -> None:
    url = f"http://127.0.0.1:{free_port()}/metrics"
    with pytest.raises(InputError, match="cannot connect: connection refused") as reported:
        connect_exporters(Configuration(), urls=[url])
    assert (reported.value.where or "") in url
    with pytest.raises(ConfigError, match="invalid url"):
        connect_exporters(Configuration(), urls=["ftp://n1/metrics"])
    node = 'node_uname_info{nodename="n1"} 1\nnode_load1 0.5\n'
    with (
        faulty(lambda request: Reply(node.encode())) as other,
        pytest.raises(InputError, match="no GPU is reported"),
    ):
        connect_exporters(Configuration(), urls=[f"{other.url}/metrics"])


# --- polled by their own threads: real servers


def read_until(
    source: FeedSource, true: Callable[[Snapshot], bool], within_s: float = 60.0
) -> Snapshot:
    until = time.monotonic() + within_s
    while not true(snapshot := source.read()):
        assert time.monotonic() < until, snapshot
        time.sleep(0.03)
    return snapshot


@pytest.mark.slow
def test_a_slow_exporter_delays_no_other_and_its_late_answer_is_taken() -> None:
    entry = {"source": "dcgm-exporter", "timeout_s": 60.0}
    with exporter(TWO_NODES, slow_s=6.0) as server:
        with closing(
            connect_exporters(Configuration(sources=(entry,)), urls=server.urls)
        ) as source:
            before = source.read()
            server.fail("n2", "slow")
            server.set("n2", 0, {UTIL: 80})
            read_until(source, lambda s: bool(s.problems))
            server.set("n1", 0, {UTIL: 90})
            began = time.monotonic()
            snapshot = read_until(source, lambda s: s.value("gpu_util", 0) == 0.9)
            assert time.monotonic() - began < 10
            assert (snapshot.value("gpu_util", 2), snapshot.measured[2]) == (
                0.05,
                before.measured[2],
            )
            server.fail("n2", None)
            assert read_until(source, lambda s: s.value("gpu_util", 2) == 0.8).problems == ()
            server.fail("n1", "slow")
            read_until(source, lambda s: bool(s.problems))
            began = time.monotonic()
        assert time.monotonic() - began < 10, "closing waits for no answer"


@pytest.mark.slow
def test_an_exporter_that_is_started_late_is_found() -> None:
    port = free_port()
    with exporter(TWO_NODES) as first:
        urls = [*first.urls, f"http://127.0.0.1:{port}/metrics"]
        with closing(connect_exporters(Configuration(), urls=urls)) as source:
            (problem,) = source.read().problems
            assert problem.what == "cannot connect: connection refused"
            late = Exporter({"n3": {0: {UTIL: 33}}}, slow_s=1)
            late.nodes["n3"].port = port
            late.start()
            try:
                snapshot = read_until(source, lambda s: len(s.gpus) == 5)
                assert (snapshot.problems, snapshot.value("gpu_util", 4)) == ((), 0.33)
            finally:
                late.stop()


def server_configuration(**settings: object) -> Configuration:
    return Configuration(
        sources=({"source": "prometheus", "timeout_s": 2.0, "step_s": 1.0, **settings},)
    )


def connected(configuration: Configuration, within_s: float = 60.0) -> FeedSource:
    """A source on a server that may not have scraped anything yet."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        with suppress(InputError):
            return connect_server(configuration)
        time.sleep(0.1)
    return connect_server(configuration)


@pytest.mark.slow
def test_a_real_prometheus_that_scrapes_exporters_and_is_stopped(tmp_path: Path) -> None:
    nodes: Mapping[str, Mapping[int, Mapping[str, float]]] = {
        name: {gpu: {UTIL: 10 * gpu + 5, POWER: 100.25, SM: 0.5} for gpu in range(2)}
        for name in ("n1", "n2")
    }
    with exporter(nodes) as server:
        server.hold("n1", 0, "7")
        server.hold("n2", 1, "8", "9")
        targets = [f"127.0.0.1:{node.port}" for node in server.nodes.values()]
        with prometheus(tmp_path / "p", targets=targets) as url:
            source = connected(server_configuration(url=url))
            snapshot = read_until(source, lambda s: len(s.gpus) == 4)
            texts = {served.node: served.text for served in server.served}
            assert_as_expected(snapshot, texts["n1"] + texts["n2"])
            held = {gpu.name: one.job_id for gpu, one in snapshot.allocations.items()}
            assert held == {"n1:0": "7", "n2:1": "8,9"}
            assert snapshot.devices[GpuId("n1", 0)].uuid == "GPU-n1-0"
            served = [one.t for one in server.served if one.node == "n1"]
            assert min(abs(t - snapshot.measured[0]) for t in served) < 0.5, "when it was scraped"
            before = snapshot.measured.copy()
            assert read_until(source, lambda s: bool((s.measured > before).all())).problems == ()
            server.set("n1", 0, {UTIL: 90})
            read_until(source, lambda s: s.value("gpu_util", 0) == 0.9)
            server.nodes["n1"].gpus.pop()  # it is lost: its values grow old
            lost = read_until(source, lambda s: s.t - s.measured[1] > 5)
            assert lost.t - lost.measured[0] < 5
            assert "4 GPUs of 2 nodes" in source.about.sentence
            assert "sm_active" not in source.about.unsupported
            assert "fp64_active" in source.about.unsupported
        with closing(source):
            # while it stops, it may still answer that it does
            refused = "cannot connect: connection refused"
            stopped = read_until(source, lambda s: refused in [one.what for one in s.problems])
            assert stopped.value("gpu_util", 0) == 0.9


@pytest.mark.slow
def test_a_real_victoriametrics(tmp_path: Path) -> None:
    now = time.time()
    series = [
        Series(
            {"__name__": metric, "gpu": str(gpu), "Hostname": node, "instance": f"{node}:9400"},
            [(now - 3, value)],
        )
        for node in ("n1", "n2", "n30")
        for gpu in range(2)
        for metric, value in ((UTIL, 25.0), (SM, 0.75), (POWER, 1e9))
    ]
    with victoria(tmp_path / "v") as url:
        put(url, series)
        with closing(connected(server_configuration(url=url))) as source:
            snapshot = source.read()
            assert as_dict(snapshot) == {
                (node, gpu, None): {"gpu_util": 0.25, "sm_active": 0.75}
                for node in ("n1", "n2", "n30")
                for gpu in (0, 1)
            }
            assert snapshot.measured == pytest.approx(np.full(6, now - 3), abs=0.01)
        with closing(
            connect_server(server_configuration(url=url, selector='{instance="n2:9400"}'))
        ) as source:
            assert [gpu.name for gpu in source.read().gpus] == ["n2:0", "n2:1"]


@pytest.mark.slow
def test_reading_never_waits_for_a_server_that_hangs() -> None:
    with faulty(lambda request: Reply(b"")) as server:
        server.hold_after(0)
        began = time.monotonic()
        with pytest.raises(InputError, match="no answer within"):
            connect_server(server_configuration(url=server.url, timeout_s=30.0))
        assert time.monotonic() - began < 30


def test_why_a_server_cannot_be_used_is_reported() -> None:
    with pytest.raises(ConfigError, match="no Prometheus configured"):
        connect_server(Configuration())
    with pytest.raises(ConfigError, match="selector"):
        connect_server(server_configuration(url="http://127.0.0.1:1", selector="{what"))
    with pytest.raises(InputError, match="cannot connect"):
        connect_server(Configuration(), url=f"http://127.0.0.1:{free_port()}")
    with (
        faulty(lambda request: Reply(b"", 401)) as server,
        pytest.raises(InputError, match="401") as reported,
    ):
        connect_server(Configuration(), url=server.url)
    assert "token_file" in (reported.value.do or "")
