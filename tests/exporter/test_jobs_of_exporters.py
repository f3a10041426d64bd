"""From pages to summaries: jobs that share a node are told apart; an XID from before a job is
not its.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from scraping import feeding

from madelake import fill, held, job, summarized, utc
from servers.exporter import Gpu, Node, exporter, page
from tachograph.catalog.chunks import Chunk
from tachograph.catalog.config import SlurmOptions
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, JOBS
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest, watermark
from tachograph.pipeline.attribution import attribute
from tachograph.pipeline.job_runs import build_runs
from tachograph.sources.series import SeriesMemory
from tachograph.sources.series_rows import SeriesRows

UTIL, XID, POWER = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_POWER_USAGE"
START, END = utc(1, 10), utc(1, 11)


def node_at(t: datetime) -> Node:
    """Four GPUs: job 1 has the first two, job 2 the third, the fourth is nobody's."""
    on = START <= t < END
    xids = (31 if t >= utc(1, 10, 30) else 0, 0, 79, 0)  # 79 was there before job 2
    utils = (80, 40, 20, 99)
    holders = ("1", "1", "2", "0")
    return Node(
        [
            Gpu(
                index,
                {UTIL: utils[index], XID: xids[index], POWER: 100 * (index + 1)},
                (holders[index] if on else "0",),
            )
            for index in range(4)
        ]
    )


@pytest.fixture(scope="module")
def summaries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    lake = Lake.create(str(tmp_path_factory.mktemp("exporter") / "lake"))
    gathering = SeriesRows(SeriesMemory())
    t = START - timedelta(minutes=5)
    while t < END + timedelta(minutes=5):
        gathering.add_page(page("n1", node_at(t), t.timestamp()).encode(), t=t, node=None)
        t += timedelta(minutes=1)
    ingest(
        lake, [Chunk("pages", "dcgm-exporter", "made", gathering.parts(), gathering.known)], now=t
    )
    jobs = [job("1", START, END, gpus=2), job("2", START, END, gpus=1)]
    fill(
        lake,
        {"jobs": jobs, "allocations": [*held("1", "n1"), *held("2", "n1")]},
        chunk="accounting",
    )
    return summarized(lake)[1]


def test_jobs_that_share_a_node_are_told_apart(summaries: dict[str, dict[str, Any]]) -> None:
    first, second = summaries["1"], summaries["2"]
    assert (first["attribution"], second["attribution"]) == ("explicit", "explicit")
    assert first["gpu_util_mean"] == pytest.approx((0.8 + 0.4) / 2)
    assert second["gpu_util_mean"] == pytest.approx(0.2)
    assert second["power_w_max"] == 300


def test_an_xid_from_before_the_job_is_not_its(summaries: dict[str, dict[str, Any]]) -> None:
    assert (summaries["1"]["xid_events"], summaries["2"]["xid_events"]) == (1, 0)


def test_a_requeued_job_holds_in_each_run_what_it_held_then(tmp_path: Path) -> None:
    """Job 7 has GPU 0, then, requeued, GPU 1, which was job 8's: neither takes from the other."""
    lake = Lake.create(str(tmp_path / "lake"))
    looked = {5: "78", 25: "78", 45: "00", 65: "07", 85: "07", 95: "00"}
    served = {"n1": {gpu: {UTIL: 50} for gpu in range(2)}}
    with exporter(served) as server, feeding(*server.urls) as feed:
        for minute, holders in looked.items():
            for gpu, holder in enumerate(holders):
                server.hold("n1", gpu, holder)
            at = START + timedelta(minutes=minute)
            ingest(lake, feed.poll(partial(watermark, lake), now=at), now=at)
    runs = [("7", START), ("8", START), ("7", END)]
    half = timedelta(minutes=30)
    jobs = [job(name, start, start + half, gpus=1, submit=start) for name, start in runs]
    fill(lake, {"jobs": jobs}, chunk="accounting")
    allocations, devices = lake.latest(ALLOCATIONS), lake.latest(DEVICES)
    runs_of = build_runs(lake.latest(JOBS), allocations, slurm=SlurmOptions(), now=END + half)
    found = attribute(runs_of, allocations, devices.select("node", "gpu", "mig"))
    owned = found.intervals.join(runs_of.select("run", "job_id"), on="run").sort("start", "gpu")
    spans = owned.select("job_id", "gpu", pl.col("start", "end").dt.strftime("%H:%M"))
    assert spans.rows() == [
        ("7", 0, "10:05", "10:30"),
        ("8", 1, "10:05", "10:30"),
        ("7", 1, "11:05", "11:30"),
    ]
    assert found.contested.is_empty()
