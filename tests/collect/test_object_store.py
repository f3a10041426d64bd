"""Collector running: a bucket: rows and watermarks there, lock and status in a folder of this
host.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from collecting import collecting, until
from fake_feeds import START, STEP, Tape

from servers.s3 import S3, s3_server
from tachograph.catalog.config import CollectOptions
from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.cli import main
from tachograph.collect.collector import CollectPlan
from tachograph.collect.readers import PolledSource
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import watermark

pytestmark = pytest.mark.slow

NAME = "fake:one"
POLLS = 12


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    with s3_server(tmp_path) as running:
        for name, value in running.environment.items():
            monkeypatch.setenv(name, value)
        yield running


def plan_of(lake: str, state: Path, size: int) -> CollectPlan:
    state.mkdir()
    source = PolledSource(NAME, 0.1, Tape(NAME, POLLS, 0.01, size=size))
    return CollectPlan(Lake.create(lake), [source], CollectOptions(listen="", state=str(state)))


def test_each_row_is_committed_once_to_a_bucket_and_the_state_is_on_the_host(
    tmp_path: Path, server: S3, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, other = (plan_of(server.lake(), tmp_path / f"state{size}", size) for size in (5, 8))
    with collecting(plan) as reported, collecting(other) as told_too:
        until(lambda: watermark(plan.lake, NAME) == START + POLLS * STEP)
    assert (reported, told_too) == ([], [])
    times = plan.lake.scan(GPU_SAMPLES).select("t").collect()["t"].sort().to_list()
    assert times == [START + number * STEP for number in range(POLLS)]
    assert (plan.folder / "status.json").is_file()
    monkeypatch.setenv("TACHOGRAPH_COLLECT_STATE", str(plan.folder))
    assert main(["status", "--lake", server.lake()]) == 1  # what was collected is of March: behind
    assert "No collector running: the last one stopped at " in capsys.readouterr().out
