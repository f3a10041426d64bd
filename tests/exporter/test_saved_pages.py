"""`tachograph ingest dcgm-exporter`: saved pages land once, exporters are asked once, and both
say what is wrong.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from servers.exporter import exporter
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, GPU_SAMPLES
from tachograph.cli import main
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest as run_ingest
from tachograph.sources.dcgm_exporter import read

UTIL = "DCGM_FI_DEV_GPU_UTIL"
PAGE = f'# TYPE {UTIL} gauge\n{UTIL}{{gpu="0",Hostname="n1",hpc_job="7"}} 50\n{UTIL}{{gpu="1",Hostname="n1"}} 60\n'
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Done:
    """What a command printed and its exit code."""

    returncode: int
    stdout: str
    stderr: str


Ingest = Callable[..., Done]


@pytest.fixture
def ingest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Ingest:
    """Runs `tachograph ingest dcgm-exporter` in the test's folder, which holds nothing else of
    anybody's.
    """
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TACHOGRAPH_")]:
        monkeypatch.delenv(name)

    def run(*arguments: str | Path) -> Done:
        code = main(["ingest", "dcgm-exporter", *map(str, arguments), "--lake", "lake"])
        printed = capsys.readouterr()
        return Done(code, printed.out, printed.err)

    return run


def landed(folder: Path) -> list[tuple[object, ...]]:
    rows = Lake.open(str(folder / "lake")).latest(GPU_SAMPLES).sort("t", "node", "gpu")
    return [
        (t, node, gpu, round(util, 3))
        for t, node, gpu, util in rows.select("t", "node", "gpu", "gpu_util").rows()
    ]


def save(path: Path, text: str = PAGE, at: datetime = NOON) -> Path:
    path.write_text(text)
    os.utime(path, (at.timestamp(), at.timestamp()))
    return path


def test_a_saved_page_is_of_the_time_it_was_saved_and_lands_once(
    ingest: Ingest, tmp_path: Path
) -> None:
    save(tmp_path / "page.prom")
    first = ingest("page.prom")
    assert (first.returncode, first.stderr) == (0, "")
    assert "2 gpu_samples, 1 allocation committed to" in first.stdout
    assert landed(tmp_path) == [(NOON, "n1", 0, 0.5), (NOON, "n1", 1, 0.6)]
    assert "1 of 1 chunk was already in the lake" in ingest("page.prom").stdout
    lake = Lake.open(str(tmp_path / "lake"))
    assert lake.latest(ALLOCATIONS).select("job_id", "node", "gpu").rows() == [("7", "n1", 0)]
    assert lake.latest(DEVICES).height == 2


def test_pages_of_a_folder_are_samples_of_their_times(ingest: Ingest, tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    save(pages / "a.prom")
    save(pages / "b.metrics", at=NOON.replace(minute=1))
    packed = pages / "c.prom.gz"
    packed.write_bytes(gzip.compress(PAGE.encode()))
    os.utime(packed, (NOON.replace(minute=2).timestamp(),) * 2)
    save(pages / "other.txt", "nothing of an exporter\n")
    done = ingest("pages")
    assert done.returncode == 0
    assert [row[0] for row in landed(tmp_path)][::2] == [
        NOON.replace(minute=minute) for minute in (0, 1, 2)
    ]
    assert "no counter" in done.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"nothing of an exporter\n", "no metric of this page is known"),
        (b"", "the file is empty"),
        (
            b'{"status":"success","data":{"resultType":"vector","result":[]}}',
            "this is JSON, not a page of an exporter",
        ),
        (gzip.compress(PAGE.encode(), mtime=0)[:-9], "damaged gzip"),
        (b"\x00\xff" * 100, "no metric of this page is known"),
    ],
    ids=["other text", "nothing", "JSON", "cut off gzip", "binary"],
)
def test_a_file_that_is_no_page_is_named(
    ingest: Ingest, tmp_path: Path, content: bytes, said: str
) -> None:
    (tmp_path / "bad.prom").write_bytes(content)
    save(tmp_path / "good.prom")
    done = ingest("bad.prom", "good.prom")
    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert f"bad.prom: {said}" in done.stderr
    assert len(landed(tmp_path)) == 2


def test_exporters_are_asked_once(ingest: Ingest, tmp_path: Path) -> None:
    with exporter({"n1": {0: {UTIL: 50}}, "n2": {0: {UTIL: 70}}}) as server:
        urls = [part for url in server.urls for part in ("--url", url)]
        done = ingest(*urls)
        assert (done.returncode, done.stderr) == (0, "")
        server.fail("n2", "status")
        part = ingest(*urls)
        assert part.returncode == 4
        assert "answered 500" in part.stderr
        assert part.stderr.count("\n") == 1
        assert "1 gpu_sample committed to" in part.stdout
    assert sorted((row[1], row[3]) for row in landed(tmp_path)) == [
        ("n1", 0.5),
        ("n1", 0.5),
        ("n2", 0.7),
    ]


def test_hosts_that_ask_at_about_the_same_time_do_not_lose_each_others_rows(tmp_path: Path) -> None:
    lake, now = Lake.create(str(tmp_path / "lake")), datetime.now(UTC)
    with exporter({"n1": {0: {UTIL: 50}}, "n2": {0: {UTIL: 70}}}) as server:
        # Who began first lands last.
        for node, at in (("n1", now), ("n2", now - timedelta(seconds=1))):
            options = argparse.Namespace(files=[], url=[server.url(node)], time=None, node=None)
            run_ingest(lake, read(options, configuration=Configuration(), now=at), now=now)
    assert lake.latest(GPU_SAMPLES).get_column("node").sort().to_list() == ["n1", "n2"]


def test_exporters_of_the_configuration_are_asked_with_its_names(
    ingest: Ingest, tmp_path: Path
) -> None:
    with exporter({"n1": {}}) as server:
        server.nodes["n1"].more = 'busy{card="3",box="rack1"} 0.25\n'
        (tmp_path / "tachograph.toml").write_text(
            f'[[sources]]\nsource = "dcgm-exporter"\nurls = ["{server.url("n1")}"]\n'
            'metrics = { busy = ["gpu_util", "fraction"] }\nlabels = { gpu = ["card"], node = ["box"] }\n'
        )
        done = ingest("--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"]["gpu_samples"] == 1
    assert [row[1:] for row in landed(tmp_path)] == [("rack1", 3, 0.25)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no page and no address"),
        (["page.prom", "--url", "http://127.0.0.1:1"], "pages and --url are both given"),
        (["--url", "127.0.0.1:1"], "invalid url"),
        (["--url", "http://127.0.0.1:1"], "cannot connect: connection refused"),
        (["absent.prom"], "no such file"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    ingest: Ingest, tmp_path: Path, arguments: list[str], said: str
) -> None:
    save(tmp_path / "page.prom")
    done = ingest(*arguments)
    assert done.returncode in (2, 3, 4)
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_the_recorded_page_lands(ingest: Ingest, tmp_path: Path, recorded: Path) -> None:
    done = ingest(recorded / "prometheus_h100" / "dcgm_exporter_metrics_excerpt.prom", "--json")
    assert done.returncode == 0
    rows = {"gpu_samples": 8, "devices": 8, "allocations": 1}  # four metrics name one pod
    assert json.loads(done.stdout)["rows"] == rows
