"""`/now` beside a collector, a real process: what that polled is shown, and its exporters are
polled once.
"""

from __future__ import annotations

import json
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from served_entries import until
from servers.exporter import Exporter, exporter
from tachograph.annexes.serve.application import WebService, create_application
from tachograph.annexes.serve.identity.identities import StartLink
from tachograph.annexes.serve.snapshot import ServedLake
from tachograph.annexes.watch import served_fleet as fleet
from tachograph.annexes.watch.live.discovery import SourceRequest, choose_source
from tachograph.annexes.watch.live.selection import SelectedSource
from tachograph.annexes.watch.served_fleet import FleetWatch
from tachograph.catalog import config
from tachograph.collect.newest import NEWEST_FOLDER
from tachograph.collect.status import read_status
from tachograph.lake.delta import Lake

pytestmark = pytest.mark.slow
NODES = {
    name: {
        gpu: {"DCGM_FI_DEV_GPU_UTIL": 37, "DCGM_FI_DEV_POWER_USAGE": 300 + gpu} for gpu in (0, 1)
    }
    for name in "ab"
}
GPUS = [(node, gpu) for node in "ab" for gpu in (0, 1)]
MARKUP = "<script>alert(1)</script>"


def near(value: float) -> object:
    """A value with the precision in which it is stored."""
    return pytest.approx(value, rel=1e-6)


@pytest.fixture
def nodes() -> Iterator[Exporter]:
    with exporter(NODES) as server:
        server.hold("a", 0, "4711")
        server.hold("b", 1, MARKUP)
        yield server


@pytest.fixture
def site(marked: Lake, nodes: Exporter, tmp_path: Path) -> Path:
    """A folder with a lake and a configuration that names the exporters."""
    shutil.copytree(marked.location, tmp_path / "lake")
    lines = [
        f'lake = "{tmp_path / "lake"}"',
        '[collect]\nlisten = ""\nanalyze_s = 3600',
        f'[[sources]]\nsource = "dcgm-exporter"\nevery_s = 1\nrefresh_s = 0.1\nurls = {json.dumps(nodes.urls)}',
    ]
    (tmp_path / "tachograph.toml").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


@pytest.fixture
def may_poll() -> threading.Event:
    """When the server may poll exporters itself."""
    return threading.Event()


@pytest.fixture
def client(
    site: Path, may_poll: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> Iterator[TestClient]:
    """An admin's session of a server that looks for a collector again and again."""
    monkeypatch.setattr(fleet, "RETRY_S", 0.2)
    served = ServedLake(
        Lake.open(str(site / "lake")), config.load(str(site / "tachograph.toml"), {})
    )

    def opener(request: SourceRequest) -> SelectedSource:
        may_poll.wait(240)
        return choose_source(served.configuration, request)

    watch = FleetWatch(served.configuration, served.lake.location, opener=opener)
    watch.interval_s = 0.2
    served.shared_objects.get("fleet", lambda: watch)
    session = TestClient(create_application(WebService.of(served, link=StartLink("link", "eve"))))
    session.get("/login?token=link")
    yield session
    may_poll.set()
    watch.close()


@contextmanager
def collecting(site: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`tachograph collect`, for the time of the block, from its first published poll on."""
    command = [sys.executable, "-m", "tachograph", "collect"]
    with subprocess.Popen(command, cwd=site, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: published(site))
            yield process
        finally:
            process.kill()


def published(site: Path) -> list[Path]:
    return list((site / "lake" / "_collect" / NEWEST_FOLDER).glob("*.newest"))


def rows(client: TestClient) -> dict[tuple[str, int], dict[str, object]]:
    """What the REST interface has of now, by node and GPU."""
    found = client.get("/api/v1/now").raise_for_status().json()
    return {(row["node"], row["gpu"]): row for row in found}


def test_it_shows_what_the_collector_polled_and_polls_itself_once_that_is_gone(
    site: Path, nodes: Exporter, client: TestClient, may_poll: threading.Event
) -> None:
    def polls() -> int:
        return len([answer for answer in nodes.served if answer.node == "a"])

    with collecting(site) as collector:
        until(lambda: rows(client))
        now = rows(client)
        assert {key: row["gpu_util"] for key, row in now.items()} == {
            key: near(0.37) for key in GPUS
        }
        assert now["a", 0]["job_id"] == "4711"
        assert now["a", 1]["power_w"] == 301
        page = client.get("/now").text
        assert "collector (dcgm-exporter; every 1 s), 4 GPUs of 2 nodes" in page
        assert MARKUP not in page
        nodes.set("a", 0, {"DCGM_FI_DEV_GPU_UTIL": 91})
        until(lambda: rows(client)["a", 0]["gpu_util"] == near(0.91))
        assert {stat.S_IMODE(path.stat().st_mode) & 0o007 for path in published(site)} <= {0, 4}
        collector.send_signal(signal.SIGINT)
        assert collector.wait(60) == 0
    state = read_status(site / "lake" / "_collect")
    assert state is not None
    polled = state.sources["dcgm-exporter"].polls
    assert polls() == polled, "polled once"
    may_poll.set()
    until(lambda: "its sources are polled by this server" in client.get("/now").text)
    until(lambda: polls() > polled)
    until(lambda: rows(client)["a", 0]["gpu_util"] == near(0.91))
    with collecting(site) as another:
        until(lambda: "collector (dcgm-exporter" in client.get("/now").text)
        another.kill()
        until(lambda: "collector (dcgm-exporter" not in client.get("/now").text)
    assert published(site)  # of a process that is gone: not believed
    until(lambda: rows(client)["a", 0]["gpu_util"] == near(0.91))
