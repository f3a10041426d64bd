"""Exporters as a live source: values and their age, exporters that do not answer and delay no others."""

from __future__ import annotations

import math
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from live_expected import expected

from own_time import own_seconds
from servers.exporter import Exporter, Gpu, Node, exporter, page
from servers.faulty import CutOff, Garbage, HangUp, Reply, Silence, Status, faulty
from servers.process import free_port
from tachograph.catalog.config import Configuration
from tachograph.catalog.counters import COUNTER_NAMES, COUNTERS
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.live import snapshot as live
from tachograph.live.snapshot import Snapshot
from tachograph.live.sources.exporter import ExporterRhythm, ExporterSource, connect
from tachograph.live.sources.series import LivePageReader, SeriesTable, wanted_metrics
from tachograph.live.unsupported import NO_VALUE, unsupported_summary
from tachograph.sources.series import SeriesVocabulary

UTIL = "DCGM_FI_DEV_GPU_UTIL"
POWER = "DCGM_FI_DEV_POWER_USAGE"
SM = "DCGM_FI_PROF_SM_ACTIVE"
TWO_NODES = {name: {gpu: {UTIL: 10 * gpu + 5, POWER: 100.5} for gpu in range(2)} for name in ("n1", "n2")}


def configured(**settings: object) -> Configuration:
    return Configuration(sources=({"source": "dcgm-exporter", "timeout_s": 0.5, **settings},))


@contextmanager
def watching(urls: list[str], **settings: object) -> Iterator[ExporterSource]:
    with closing(connect(configured(**settings), urls=urls)) as source:
        yield source


def read_until(source: ExporterSource, true: Callable[[Snapshot], bool], within_s: float = 60.0) -> Snapshot:
    until = time.monotonic() + within_s
    while True:
        snapshot = source.read()
        if true(snapshot):
            return snapshot
        assert time.monotonic() < until, snapshot
        time.sleep(0.02)


def as_dict(snapshot: Snapshot) -> dict[tuple[str, int, int | None], dict[str, float]]:
    return {
        (gpu.node, gpu.gpu, gpu.mig): {
            name: value for name in snapshot.values if (value := snapshot.value(name, row)) is not None
        }
        for row, gpu in enumerate(snapshot.gpus)
    }


def assert_as_expected(snapshot: Snapshot, text: str) -> None:
    wanted = expected(text)
    found = as_dict(snapshot)
    assert found.keys() == wanted.keys()
    for unit, values in wanted.items():
        assert found[unit] == pytest.approx(values), unit


def test_values_are_those_of_the_pages_of_all_nodes() -> None:
    with exporter(TWO_NODES) as server, watching(server.urls, timeout_s=60.0) as source:
        snapshot = source.read()
        texts = {served.node: served.text for served in server.served}
        assert_as_expected(snapshot, texts["n1"] + texts["n2"])
        assert [gpu.name for gpu in snapshot.gpus] == ["n1:0", "n1:1", "n2:0", "n2:1"]
        assert snapshot.problems == ()
        reported = snapshot.devices[live.GpuId("n1", 1)]
        assert (reported.model, reported.uuid, reported.pci) == (
            "NVIDIA H100 80GB HBM3",
            "GPU-n1-1",
            "00000000:08:00.0",
        )
        assert source.about.sentence == "2 exporters, 4 GPUs of 2 nodes"
        assert set(source.about.unsupported) == set(COUNTER_NAMES) - {"gpu_util", "power_w"}
        assert "DCGM_FI_PROF_SM_ACTIVE" in source.about.unsupported["sm_active"]


def test_a_recorded_page(recorded: Path) -> None:
    text = (recorded / "prometheus_h100" / "dcgm_exporter_metrics_excerpt.prom").read_text()
    with faulty(lambda request: Reply(text.encode())) as server, watching([f"{server.url}/metrics"]) as source:
        snapshot = source.read()
    assert len(snapshot.gpus) == 8
    assert_as_expected(snapshot, text)
    assert snapshot.value("power_w", 0) == 113.611


def test_beside_a_gpu_with_a_job_one_without_is_free() -> None:
    with exporter(TWO_NODES) as server:
        server.hold("n1", 0, "7")
        with watching(server.urls) as source:
            assert source.read().free == {live.GpuId("n1", 1)}


def amd_page(**more: float) -> str:
    """What device-metrics-exporter writes of two GPUs."""
    values = {
        "gpu_gfx_activity": 88,
        "gpu_umc_activity": 40,
        "gpu_used_vram": 41_000,
        "gpu_total_vram": 196_592,
        **more,
    }
    labels = 'gpu_id="{0}",serial_number="s{0}",card_series="AMD Instinct MI300X",hostname="a1"'
    return "".join(f"{name}{{{labels.format(gpu)}}} {value}\n" for name, value in values.items() for gpu in range(2))


def test_of_a_page_of_amd_nothing_of_nvidia_is_printed() -> None:
    with faulty(lambda request: Reply(amd_page().encode())) as server, watching([f"{server.url}/metrics"]) as source:
        source.read()
        about = source.about
    assert about.exporters == ("AMD device-metrics-exporter",)
    assert about.sentence.startswith("AMD device-metrics-exporter at ")
    printed = " ".join([about.sentence, *about.unsupported.values(), *unsupported_summary(about)])
    assert "gpu_prof_tensor_active_percent" in printed
    assert not any(name in printed for name in ("DCGM", "dcgm", "NVML", "nvidia", "hpc_job"))


def test_a_metric_without_usable_value_is_not_to_be_added() -> None:
    text = page("n1", Node([Gpu(0, {UTIL: 50.0, SM: 9.2e18})]), 0.0)
    with faulty(lambda request: Reply(text.encode())) as server, watching([f"{server.url}/metrics"]) as source:
        source.read()
        about = source.about
    assert about.unsupported["sm_active"] == NO_VALUE
    assert about.exporters == ("dcgm-exporter",)


def test_the_newer_name_of_the_clock_reasons_is_read() -> None:
    text = page("n1", Node([Gpu(0, {UTIL: 50.0, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 4.0})]), 0.0)
    with faulty(lambda request: Reply(text.encode())) as server, watching([f"{server.url}/metrics"]) as source:
        assert source.read().value("throttle_reasons", 0) == 4.0
        assert "throttle_reasons" not in source.about.unsupported


def test_a_job_of_two_is_not_counted_twice_and_holds_the_gpu() -> None:
    with exporter(TWO_NODES) as server:
        server.hold("n1", 0, "7")
        server.hold("n1", 1, "8", "9")
        server.hold("n2", 0, "0")
        with watching(server.urls) as source:
            snapshot = source.read()
            allocations = {gpu.name: allocation.job_id for gpu, allocation in snapshot.allocations.items()}
            assert allocations == {"n1:0": "7", "n1:1": "8,9"}
            assert snapshot.free == frozenset()  # of n2 no job is named: the exporter may not know jobs
            assert snapshot.value("gpu_util", 1) == pytest.approx(0.15)
            server.hold("n1", 0)
            assert "n1:0" not in {gpu.name for gpu in read_until(source, lambda s: len(s.allocations) == 1).allocations}


JOBSTATS = (
    'nvidia_gpu_jobId{minor_number="0",uuid="GPU-n1-1"} 7\n'
    'nvidia_gpu_jobId{minor_number="1",uuid="GPU-n1-0"} 8\n'
    'nvidia_gpu_jobId{minor_number="0",uuid="GPU-unknown"} 9\n'
)


def test_a_job_holds_the_gpu_of_its_uuid_whichever_page_comes_first() -> None:
    dcgm = page("n1", Node([Gpu(0, {UTIL: 10}), Gpu(1, {UTIL: 90})]), 0).encode()
    for pages in ((dcgm, JOBSTATS.encode()), (JOBSTATS.encode(), dcgm)):
        vocabulary = SeriesVocabulary()
        readers = [LivePageReader(vocabulary, wanted_metrics({}), "n1") for _ in pages]
        for _ in range(2):
            readings = [reader.read(text) for reader, text in zip(readers, pages, strict=True)]
        assert all(reader.current for reader in readers)
        held = {gpu.name: of.job_id for one in readings for gpu, of in one.layout.allocations_of(one.table).items()}
        assert held == {"n1:1": "7", "n1:0": "8"}
        known = {gpu.name: of.uuid for one in readings for gpu, of in one.layout.devices.items()}
        assert known == {"n1:0": "GPU-n1-0", "n1:1": "GPU-n1-1"}


def test_exporters_of_one_node_complete_each_other() -> None:
    with exporter({"n1": {0: {UTIL: 10}, 1: {UTIL: 90}}, "jobstats": {}}) as server:
        server.nodes["jobstats"].more = JOBSTATS.replace("{", '{Hostname="n1",')
        with watching([server.url("jobstats"), server.url("n1")], refresh_s=0.2) as source:
            wanted = {"n1:1": "7", "n1:0": "8"}
            read_until(source, lambda s: {gpu.name: of.job_id for gpu, of in s.allocations.items()} == wanted)


def test_slices_of_a_gpu_are_rows_of_their_own() -> None:
    with exporter({"n1": {0: {UTIL: 5}}}) as server:
        server.nodes["n1"].gpus.append(Gpu(0, {SM: 0.5}, labels={"GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb"}))
        server.nodes["n1"].gpus.append(Gpu(0, {SM: 1.29}, labels={"GPU_I_ID": "8", "GPU_I_PROFILE": "1g.10gb"}))
        server.nodes["n1"].gpus.append(Gpu(0, {SM: 8.5}, labels={"GPU_I_ID": "9", "GPU_I_PROFILE": "1g.10gb"}))
        with watching(server.urls) as source:
            assert as_dict(source.read()) == {
                ("n1", 0, None): {"gpu_util": 0.05},
                ("n1", 0, 7): {"sm_active": 0.5},
                ("n1", 0, 8): {"sm_active": 1.29},  # normalised by its profile
                ("n1", 0, 9): {},  # more than all of the GPU: impossible
            }


def test_the_same_page_again_is_no_new_measurement() -> None:
    with exporter(TWO_NODES) as server, watching(server.urls) as source:
        before = source.read()
        read_until(source, lambda s: len(server.served) >= 8)
        again = source.read()
        assert again.measured.tolist() == before.measured.tolist()
        assert again.t > before.t
        server.set("n1", 0, {UTIL: 90})
        later = read_until(source, lambda s: s.value("gpu_util", 0) == pytest.approx(0.9))
        assert later.measured[0] > before.measured[0]
        assert later.measured[1] == later.measured[0], "the whole page is new"
        assert later.measured[2] == before.measured[2], "the other node reported nothing new"
        assert again.value("gpu_util", 0) == pytest.approx(0.05), "a snapshot that was handed out does not change"


def test_a_time_behind_the_value_is_when_it_was_measured() -> None:
    with exporter({"n1": {0: {UTIL: 5}}}) as server:
        server.nodes["n1"].stamp = True
        with watching(server.urls) as source:
            (measured,) = source.read().measured.tolist()
            served = server.served[0].t
    assert measured == pytest.approx(served, abs=0.002)


@pytest.mark.slow
def test_a_slow_exporter_delays_nobody_and_its_last_values_stay() -> None:
    with exporter(TWO_NODES, slow_s=15.0) as server, watching(server.urls, timeout_s=60.0) as source:
        before = source.read()
        server.fail("n2", "slow")
        server.set("n1", 0, {UTIL: 90})
        server.set("n2", 0, {UTIL: 80})
        began = time.monotonic()
        snapshot = read_until(source, lambda s: s.value("gpu_util", 0) == pytest.approx(0.9) and s.problems != ())
        assert time.monotonic() - began < 12
        assert snapshot.value("gpu_util", 2) == pytest.approx(0.05)
        assert snapshot.measured[2] == before.measured[2]
        (problem,) = snapshot.problems
        assert (problem.what, problem.where) == ("has not answered yet", server.url("n2"))
        late = read_until(source, lambda s: s.value("gpu_util", 2) == pytest.approx(0.8))  # its late answer is taken
        assert late.problems == ()


def test_values_of_an_exporter_that_is_gone_are_dropped_in_the_end() -> None:
    with exporter(TWO_NODES) as server, watching(server.urls, refresh_s=0.4) as source:
        server.set("n1", 1, {POWER: lambda t: t % 500})
        source.read()
        server.fail("n2", "closed")
        snapshot = read_until(source, lambda s: s.value("gpu_util", 2) is None)
        assert math.isnan(snapshot.measured[2])
        assert snapshot.value("gpu_util", 0) == pytest.approx(0.05)
        assert [problem.where for problem in snapshot.problems] == [server.url("n2")]
        assert len(snapshot.gpus) == 4
        server.fail("n2", None)
        back = read_until(source, lambda s: s.value("gpu_util", 2) is not None)
        assert back.problems == ()


def test_an_exporter_that_is_started_anew_is_found_again() -> None:
    port = free_port()
    with exporter(TWO_NODES) as first:
        other = f"http://127.0.0.1:{port}/metrics"
        with watching([*first.urls, other]) as source:
            (problem,) = read_until(source, lambda s: bool(s.problems)).problems
            assert (problem.what, problem.where) == ("cannot connect: connection refused", other)
            assert problem.do == "is it running, and is the port right?"
            late = Exporter({"n3": {0: {UTIL: 33}}}, slow_s=1)
            late.nodes["n3"].port = port
            late.start()
            try:
                snapshot = read_until(source, lambda s: len(s.gpus) == 5)
                assert snapshot.problems == ()
                assert snapshot.value("gpu_util", 4) == pytest.approx(0.33)
            finally:
                late.stop()


@pytest.mark.parametrize(
    ("fault", "what"),
    [
        (Status(401), "answered 401 Unauthorized"),
        (Status(403), "answered 403 Forbidden"),
        (CutOff(), "the answer broke off"),
        (Garbage(), "no GPU is on this page"),
        (Garbage(http=False, body=b"SSH-2.0-OpenSSH_9.2\r\n"), "the answer"),
        (HangUp(), "the answer broke off"),
        (Silence(5), "no answer within 0.5 s"),
    ],
)
def test_what_goes_wrong_is_told_and_over_when_it_is(
    fault: Status | CutOff | Garbage | HangUp | Silence, what: str
) -> None:
    text = 'DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="n1"} 40\n'
    with faulty(lambda request: Reply(text.encode())) as server, watching([f"{server.url}/metrics"]) as source:
        source.read()
        server.faults.append(fault)
        wrong = read_until(source, lambda s: any(p.what.startswith(what) for p in s.problems))
        assert wrong.problems[0].do
        assert wrong.value("gpu_util", 0) == 0.4, "the last value stays for a while"
        assert read_until(source, lambda s: not s.problems).value("gpu_util", 0) == 0.4


def test_half_a_page_tells_what_it_has_and_the_rest_stays() -> None:
    heads = [f'{metric}{{gpu="{gpu}",Hostname="n1"}} ' for metric in (UTIL, POWER) for gpu in range(2)]
    pages = ["".join(f"{head}{value}\n" for head in heads) for value in (40, 50)]
    pages[1] = pages[1][:-40]
    with faulty(lambda request: Reply(pages[0].encode())) as server, watching([f"{server.url}/metrics"]) as source:
        source.read()
        pages[0] = pages[1]
        snapshot = read_until(source, lambda s: bool(s.problems))
        assert snapshot.problems[0].what == "the page ends in the middle of a line"
        assert as_dict(snapshot) == {
            ("n1", 0, None): {"gpu_util": 0.5, "power_w": 50},
            ("n1", 1, None): {"gpu_util": 0.5, "power_w": 40},
        }


@pytest.mark.slow
def test_a_page_of_a_node_without_gpus_is_nothing_to_complain_of() -> None:
    node = 'node_uname_info{nodename="n1"} 1\nnode_load1 0.5\n'
    with faulty(lambda request: Reply(node.encode())) as other, exporter(TWO_NODES) as server:
        with watching([*server.urls, f"{other.url}/metrics"]) as source:
            for _ in range(5):
                assert source.read().problems == ()
                time.sleep(0.25)
        assert len(other.requests) == 1


def test_values_that_stand_still_for_long_are_reported() -> None:
    with exporter(TWO_NODES) as server, watching(server.urls, refresh_s=0.1) as source:
        snapshot = read_until(source, lambda s: bool(s.problems))
        assert snapshot.problems[0].what == "its values no longer change"


@pytest.mark.slow
def test_a_refused_certificate_and_an_unknown_host(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-keyout", str(key), "-out", str(certificate), "-subj", "/CN=n1", "-days", "2"]
    subprocess.run(made, check=True, capture_output=True)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with faulty(lambda request: Reply(b""), tls=tls) as server, pytest.raises(InputError) as reported:
        connect(configured(), urls=[f"{server.url}/metrics"])
    assert "its certificate is not trusted" in reported.value.what
    with pytest.raises(InputError) as reported:
        connect(configured(), urls=["http://no-such-host.invalid:9400/metrics"])
    assert reported.value.do


def test_an_exporter_that_cannot_be_reached_is_an_error() -> None:
    url = f"http://127.0.0.1:{free_port()}/metrics"
    with pytest.raises(InputError, match="cannot connect: connection refused") as reported:
        connect(Configuration(), urls=[url])
    assert reported.value.where == url
    with pytest.raises(ConfigError, match="invalid url"):
        connect(Configuration(), urls=["ftp://n1/metrics"])
    with pytest.raises(ConfigError, match="timeout_s"):
        connect(configured(timeout_s=-1), urls=[url])


def test_the_address_of_the_settings_is_polled(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("s3cret\n")
    with exporter(TWO_NODES) as server:
        settings = configured(urls=server.urls[:1], token_file=str(secret))
        with closing(connect(settings)) as source:
            assert len(source.read().gpus) == 2
        assert server.served[0].headers["authorization"] == "Bearer s3cret"


def test_closing_waits_for_nobody_and_may_happen_twice() -> None:
    with exporter(TWO_NODES, slow_s=30.0) as server:
        source = connect(configured(timeout_s=60.0), urls=server.urls)
        server.fail("n1", "slow")
        read_until(source, lambda s: bool(s.problems))
        began = time.monotonic()
        source.close()
        source.close()
        assert time.monotonic() - began < 15


def test_an_exporter_is_asked_when_it_may_have_news() -> None:
    rhythm = ExporterRhythm(least_s=0.9)
    polls, changes, now = 0, 0, 0.0
    shown: int | None = None
    delays = []
    while now < 3000:
        polls += 1
        page_number = int(now // 30)
        if page_number != shown:
            shown, changes = page_number, changes + 1
            delays.append(now - 30 * page_number)
            now = rhythm.changed(now)
        else:
            now = rhythm.same(now)
    assert changes == 100, "none is missed"
    assert polls < 6 * changes
    assert max(delays) < 2.0
    for _ in range(20):  # the exporter is set to measure each second
        now = rhythm.changed(now)
    assert rhythm.period < 1.0


def test_new_pages_of_a_thousand_gpus_cost_little() -> None:
    names = [f"DCGM_FI_{counter.dcgm_name}" for counter in COUNTERS if counter.dcgm_name][:20]
    rounds = []
    for turn in range(3):
        units = [Gpu(gpu, dict.fromkeys(names, (gpu + turn) / 100)) for gpu in range(8)]
        rounds.append([page(f"n{node:03d}", Node(units), 0.0).encode() for node in range(125)])
    readers = [LivePageReader(SeriesVocabulary(), wanted_metrics({})) for _ in range(125)]
    gathered, took = SeriesTable(), []
    for pages in rounds:
        began = time.thread_time()
        readings = [reader.read(one) for reader, one in zip(readers, pages, strict=True)]
        gathered.enter(gpu for reading in readings for gpu in reading.layout.gpus)
        for number, reading in enumerate(readings):
            gathered.put(number, reading.layout, reading.table, 1.0)
        snapshot = gathered.snapshot(1.0, [])
        took.append(time.thread_time() - began)
    assert (len(snapshot.gpus), len(snapshot.values)) == (1000, len(names))
    assert snapshot.column("sm_active").tolist() == [(gpu.gpu + 2) / 100 for gpu in snapshot.gpus]
    assert min(took[1:]) < 0.15


def test_a_page_that_stays_costs_next_to_nothing() -> None:
    with (
        exporter({"n1": {gpu: {UTIL: 50.0, POWER: 100.0} for gpu in range(8)}}) as server,
        watching(server.urls) as source,
    ):
        source.read()
        assert own_seconds(lambda: [source.read() for _ in range(20)], enough=0.1, tries=5) < 0.1


def test_neither_dataframes_nor_compilers_are_imported() -> None:
    code = (
        "import sys; from tachograph.live.sources import dmon, exporter, prometheus;"
        "sys.exit(' '.join({'polars', 'numba', 'pandas', 'matplotlib'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
