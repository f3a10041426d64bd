"""`tachograph collect` and `status` as people call them: real processes, real exporters."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from collecting import until

from servers.exporter import Exporter, exporter
from servers.process import free_port
from tachograph.cli import main

NODES: Mapping[str, Mapping[int, Mapping[str, float]]] = {
    name: {0: {"DCGM_FI_DEV_GPU_UTIL": 50, "DCGM_FI_DEV_POWER_USAGE": 100}} for name in ("n1", "n2")
}


@pytest.fixture
def nodes() -> Iterator[Exporter]:
    """Exporters of two nodes; the clock of the second is 30 s ahead."""
    with exporter(NODES) as server:
        server.nodes["n2"].clock_ahead_s = 30.0
        yield server


@dataclass(frozen=True)
class Done:
    """What became of a command."""

    returncode: int
    stdout: str
    stderr: str


class Site:
    """A folder with a configuration, and commands in it."""

    def __init__(
        self, folder: Path, urls: list[str], listen: str = "", every_s: float = 0.2
    ) -> None:
        self.folder = folder
        self.lake = folder / "lake"
        self.listen = listen
        self.file = folder / "tachograph.toml"
        self.file.write_text(
            f'lake = "{self.lake}"\n[collect]\nlisten = "{listen}"\nanalyze_s = 3600\n'
            f'[[sources]]\nsource = "dcgm-exporter"\nevery_s = {every_s}\nrefresh_s = 0.1\nurls = {json.dumps(urls)}\n',
            encoding="utf-8",
        )

    def run(self, *words: str) -> Done:
        """Run a command in this process."""
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = main([*words, "--config", str(self.file)])
        return Done(code, out.getvalue(), err.getvalue())

    def status(self) -> dict[str, Any]:
        done = self.run("status", "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if found["healthy"] else 1)
        return found

    @contextmanager
    def collecting(self, **environment: str) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "tachograph", "collect", "--config", str(self.file)]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_the_whole_way_from_exporters_to_metrics_and_status(
    tmp_path: Path, nodes: Exporter
) -> None:
    site = Site(tmp_path, nodes.urls, f"127.0.0.1:{free_port()}")
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        with site.collecting(
            NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="2000000"
        ) as process:
            printed = [manager.recv(1000).split(b"\n") for _ in range(2)]
            assert [first for first, *_ in printed] == [b"READY=1", b"WATCHDOG=1"]
            until(
                lambda: (
                    metric(site, 'rows_committed_total{source="dcgm-exporter",table="gpu_samples"}')
                    > 8
                )
            )
            # "skipping" where this host is loaded; before the first poll is noted it is late.
            until(lambda: site.status()["sources"][0]["condition"] in ("ok", "skipping"))
            found = site.status()
            assert (found["running"], found["pid"]) == (True, process.pid)
            (source,) = found["sources"]
            assert source["condition"] == ("ok" if found["healthy"] else "skipping")
            assert 0 <= source["lag_s"] < 30
            assert list(source["skewed"]) == [
                label for label in source["skew_s"] if source["skew_s"][label] > 20
            ]
            assert len(source["skewed"]) == 1
            nodes.fail("n1", "closed")
            until(lambda: metric(site, 'unreachable_endpoints{source="dcgm-exporter"}') == 1)
            nodes.fail("n2", "closed")
            until(lambda: metric(site, 'source_up{source="dcgm-exporter"}') == 0)
            until(lambda: "failing" in site.run("status").stdout)
            shown = site.run("status")
            assert shown.returncode == 1
            assert "last error at " in shown.stdout
            nodes.fail("n1", None)
            nodes.fail("n2", None)
            until(lambda: metric(site, 'source_up{source="dcgm-exporter"}') == 1)
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
            assert process.stderr is not None
            reported = process.stderr.read().splitlines()
    assert reported[0].startswith("collecting dcgm-exporter into ")
    assert "tachograph: dcgm-exporter: works again" in reported
    assert reported[-1] == "stopped"
    assert site.run("status").stdout.startswith("No collector running: the last one stopped at ")
    assert "gpu_samples" in site.run("lake", "--no-gaps").stdout


def metric(site: Site, series: str) -> float:
    """Value of a series of the collector; -1 where it is not exposed."""
    with urllib.request.urlopen(f"http://{site.listen}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [
        line.rpartition(" ")[2]
        for line in lines
        if line.rpartition(" ")[0] == f"tachograph_collect_{series}"
    ]
    return float(found[0]) if found else -1.0


@pytest.mark.slow
def test_once_commits_analyzes_and_ends(tmp_path: Path, nodes: Exporter) -> None:
    site = Site(tmp_path, nodes.urls, every_s=30)
    done = site.run("collect", "--once")
    assert (done.returncode, done.stderr) == (0, "")
    first, second = done.stdout.splitlines()
    assert first.startswith("dcgm-exporter: ")
    assert "2 gpu_samples" in first
    assert ", none of a known job: ingest the accounting of that time" in second
    assert site.status()["healthy"] is True
    for node in nodes.nodes:
        nodes.fail(node, "closed")
    done = site.run("collect", "--once")
    assert done.returncode == 4
    assert done.stdout.startswith("dcgm-exporter: failed\n")
    assert done.stderr.startswith("tachograph: dcgm-exporter: ")
    assert site.status()["healthy"] is False


def test_check_polls_and_commits_nothing(tmp_path: Path, nodes: Exporter) -> None:
    site = Site(tmp_path, [*nodes.urls, f"http://127.0.0.1:{free_port()}/metrics"])
    done = site.run("collect", "--check")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 gpu_samples" in done.stdout
    assert "the beginning" in done.stdout
    assert "refused" in done.stdout
    assert not site.lake.exists()
    for node in nodes.nodes:
        nodes.fail(node, "status")
    done = site.run("collect", "--check")
    assert done.returncode == 4
    assert "500" in done.stdout


@pytest.mark.parametrize("source", ["prometheus", "sacct"])
def test_check_names_the_time_from_which_an_empty_lake_is_filled(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: Exporter, source: str
) -> None:
    file = tmp_path / "site.toml"
    where = {  # neither answers as its source does
        "prometheus": f'url = "{nodes.urls[0].removesuffix("/metrics")}"',
        "sacct": 'command = ["false"]',
    }
    site = f'lake = "{tmp_path}/lake"\n[site]\ntime_zone = "Europe/Berlin"\n'
    entry = f'[[sources]]\nsource = "{source}"\nfrom = "2025-03-01"\n{where[source]}\n'
    file.write_text(site + entry, encoding="utf-8")
    main(["collect", "--check", "--config", str(file)])
    printed = capsys.readouterr().out
    assert "2025-03-01 00:00:00 CET" in printed
    assert "the beginning" not in printed


def fails(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(words)
    (line,) = capsys.readouterr().err.splitlines()
    return code, line


def test_a_configuration_without_or_with_wrong_sources_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "site.toml"
    for written, printed in (
        ("", "no [[sources]] to collect from"),
        (
            '[[sources]]\nsource = "dcm-exporter"',
            "unknown source 'dcm-exporter'; use one of: ",
        ),
        (
            '[[sources]]\nsource = "dcgm-exporter"\nurl = "http://n1:9400/metrics"\n' * 2,
            "two [[sources]] are called",
        ),
        (
            '[[sources]]\nsource = "dcgm-exporter"\nurl = "http://n1"\nevery_s = 0',
            "every_s must be above 0",
        ),
        ('[[sources]]\nsource = "dcgm-exporter"\ncolour = 1', "colour"),
    ):
        file.write_text(written, encoding="utf-8")
        code, line = fails(
            "collect", "--config", str(file), "--lake", str(tmp_path / "lake"), capsys=capsys
        )
        assert code == 3
        assert line.startswith(f"tachograph: {file}: ")
        assert printed in line
    assert not (tmp_path / "lake").exists()


def test_options_that_do_not_fit_and_addresses_that_are_taken(
    tmp_path: Path, nodes: Exporter, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails("collect", "--check", "--once", capsys=capsys)[0] == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        site = Site(tmp_path, nodes.urls, f"127.0.0.1:{taken.getsockname()[1]}")
        code, line = fails("collect", "--quiet", "--config", str(site.file), capsys=capsys)
    assert (code, "collect.listen: cannot listen on 127.0.0.1:" in line) == (3, True)


@pytest.mark.parametrize("key", ["analyze_s"])
def test_a_number_that_cannot_be_is_named(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    site = Site(tmp_path, ["http://127.0.0.1:1/metrics"])
    monkeypatch.setenv(f"TACHOGRAPH_COLLECT_{key.upper()}", "0")
    code, line = fails("collect", "--quiet", "--config", str(site.file), capsys=capsys)
    assert (code, f"collect.{key} must be above 0" in line) == (3, True)
    assert not site.lake.exists()


def test_status_before_anything_was_collected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = tmp_path / "lake"
    code, line = fails("status", "--lake", str(lake), capsys=capsys)
    assert (code, "there is no lake" in line) == (5, True)
    site = Site(tmp_path, ["http://127.0.0.1:1/metrics"])
    assert main(["status", "--config", str(site.file)]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith(f"No collector has run yet. Lake: {lake}\n")
    assert "never polled" in shown
