"""Imports from real servers: the rows in the lake are those that were put into the server,
whichever way is taken.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from made_series import T0, Made, assert_rows, cluster, held, moment
from test_prometheus_windows import options

from servers.faulty import faulty, forward
from servers.prometheus import backfill, prometheus
from servers.victoria import put, victoria
from tachograph.catalog.chunks import Chunk, PendingChunk
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import DEVICES
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import IngestReport, ingest
from tachograph.sources import prometheus as source

pytestmark = pytest.mark.slow

NOW = datetime(2026, 11, 1, tzinfo=UTC)
START = datetime.fromtimestamp(T0, UTC).isoformat()
END = datetime.fromtimestamp(T0 + 6000, UTC).isoformat()
WAYS = [
    ("prometheus", "raw"),
    ("prometheus", "range"),
    ("victoria", "export"),
    ("victoria", "raw"),
    ("victoria", "range"),
]


@dataclass
class Servers:
    """Both, with the same series."""

    prometheus: str
    victoria: str
    made: Made

    def url(self, name: str) -> str:
        return self.prometheus if name == "prometheus" else self.victoria


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("servers")
    made = cluster()
    backfill(folder / "prometheus", made.series)
    with prometheus(folder / "prometheus") as one, victoria(folder / "victoria") as other:
        put(other, made.series)
        yield Servers(one, other, made)


def fetched(chunk: Chunk | PendingChunk) -> Chunk:
    return chunk.fetch() if isinstance(chunk, PendingChunk) else chunk


def imported(lake: Lake, url: str, *more: str) -> IngestReport:
    asked = options(f"--url {url} --from {START} --to {END} --step 15", *more)
    return ingest(lake, source.read(asked, configuration=Configuration(), now=NOW), now=NOW)


@pytest.mark.parametrize(("server", "how"), WAYS)
def test_every_way_gives_the_same_rows(
    servers: Servers, tmp_path: Path, server: str, how: str
) -> None:
    lake = Lake.create(str(tmp_path))
    report = imported(lake, servers.url(server), "--how", how)
    assert report.chunks == 3
    assert_rows(lake, servers.made)
    assert report.rejects == {}
    assert held(lake) == {
        ("4711", "n2", 0, None, moment(T0 + 15 * 50), moment(T0 + 15 * 200)),
        ("4712", "n2", 0, None, moment(T0 + 15 * 200), None),
    }
    devices = lake.latest(DEVICES).select("node", "gpu", "mig", "uuid").rows()
    assert sorted(devices, key=str) == [
        ("n1", 0, None, "GPU-n1-0"),
        ("n1", 1, None, "GPU-n1-1"),
        ("n2", 0, None, "GPU-n2-0"),
        ("n2", 1, 7, "GPU-n2-1"),
    ]


@pytest.mark.parametrize("window", ["1000", "86400"])
def test_the_size_of_windows_changes_nothing(servers: Servers, tmp_path: Path, window: str) -> None:
    lake = Lake.create(str(tmp_path))
    imported(lake, servers.victoria, "--window", window)
    assert_rows(lake, servers.made)
    assert len(held(lake)) == 2


def test_windows_that_are_there_are_not_asked_for_again(servers: Servers, tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path))
    with faulty(forward(servers.prometheus)) as between:
        imported(lake, between.url)
        asked = len(between.requests)
        assert asked >= 3
        again = imported(lake, between.url)
        assert len(between.requests) == asked
        assert (again.chunks_known, again.rows_read) == (3, 0)
    assert_rows(lake, servers.made)


def test_a_killed_import_takes_up_where_it_was(servers: Servers, tmp_path: Path) -> None:
    with faulty(forward(servers.prometheus)) as between:
        command = [
            sys.executable,
            "-m",
            "tachograph",
            "ingest",
            "prometheus",
            "--url",
            between.url,
            "--how",
            "raw",
        ]
        command += [
            "--from",
            START,
            "--to",
            END,
            "--window",
            "1500",
            "--lake",
            str(tmp_path / "lake"),
        ]
        between.hold_after(5)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while len(between.requests) < 6:
            time.sleep(0.02)
            assert process.poll() is None
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        between.go_on()
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    lake = Lake.open(str(tmp_path / "lake"))
    assert "3 of 4 chunks were already in the lake" in done.stdout
    assert_rows(lake, servers.made)


def test_what_is_too_much_for_the_server_is_asked_in_parts(tmp_path: Path) -> None:
    made = cluster()
    backfill(tmp_path / "server", made.series)
    with prometheus(tmp_path / "server", arguments=["--query.max-samples=900"]) as url:
        for how in ("raw", "range"):
            lake = Lake.create(str(tmp_path / how))
            imported(lake, url, "--how", how)
            assert_rows(lake, made)


def test_a_selector_leaves_out_the_others(servers: Servers, tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path))
    report = imported(lake, servers.prometheus, "--selector", '{job="dcgm", Hostname=~"n1.*"}')
    wanted = Made(
        gpu_rows={key: row for key, row in servers.made.gpu_rows.items() if key[0] == "n1"}
    )
    assert_rows(lake, wanted)
    assert "node_samples" not in report.rows


@pytest.mark.parametrize(("server", "way"), [("prometheus", "raw"), ("victoria", "export")])
def test_auto_takes_the_best_way_and_says_which(servers: Servers, server: str, way: str) -> None:
    asked = options(f"--url {servers.url(server)} --from {START} --to {END}")
    chunks = source.read(asked, configuration=Configuration(), now=NOW)
    assert fetched(next(chunks)).origin == f"{servers.url(server)} ({way})"
