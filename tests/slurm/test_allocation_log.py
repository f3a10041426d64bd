"""Files that a prolog and an epilog write, followed while they grow."""

from __future__ import annotations

import argparse
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from feeding import Landing
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.catalog.tables import ALLOCATIONS
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest, watermark
from tachograph.sources.allocation_map import AllocationLogFeed, connect, read
from tachograph.sources.registry import settings_of
from tachograph.sources.slurm.allocations import read_log
from tachograph.sources.slurm.records import SlurmCluster, SlurmRow

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
T0 = 1795240000
STREAM = "allocation-map:allocation-map"


def feed_of(*patterns: str | Path) -> AllocationLogFeed:
    return AllocationLogFeed(map(str, patterns), STREAM, SlurmCluster(name="demo"))


def poll(feed: AllocationLogFeed, landing: Landing, minute: int = 0) -> None:
    mark = landing.marks.get(STREAM, NOW)
    landing.poll(feed, mark + timedelta(minutes=1 + minute))


def test_files_that_were_followed_add_nothing_when_they_are_ingested(tmp_path: Path) -> None:
    written = tmp_path / "map.log"
    written.write_text(day_of_jobs("n1"), encoding="utf-8")
    lake = Lake.create(str(tmp_path / "lake"))
    feed = feed_of(written)
    ingest(lake, feed.poll(partial(watermark, lake), now=NOW), now=NOW)
    before = sorted(lake.scan(ALLOCATIONS).collect().rows(), key=repr)
    assert before
    chunks = list(
        read(argparse.Namespace(files=[str(written)]), configuration=Configuration(), now=NOW)
    )
    # the feed knows the cluster, the configuration of this command does not: rows are compared as
    # one writes them
    chunks = [
        replace(
            one,
            parts=tuple(
                replace(p, frame=p.frame.with_columns(cluster=pl.lit("demo"))) for p in one.parts
            ),
        )
        for one in chunks
    ]
    report = ingest(lake, chunks, now=NOW)
    assert sorted(lake.scan(ALLOCATIONS).collect().rows(), key=repr) == before
    assert report.rows == {"allocations": 0}
    assert report.duplicates == sum(part.frame.height for one in chunks for part in one.parts)


def held(landing: Landing) -> set[tuple[object, ...]]:
    """(job, node, GPU, start, end), times in seconds since T0."""
    rows = landing.allocations.select("job_id", "node", "gpu", "start", "end").iter_rows()
    return {(job, node, gpu, since(start), since(end)) for job, node, gpu, start, end in rows}


def expected(text: str) -> set[tuple[object, ...]]:
    rows: list[SlurmRow] = read_log(text, cluster=SlurmCluster(name="demo"))[0]
    return {
        (row["job_id"], row["node"], row["gpu"], since(row["start"]), since(row["end"]))
        for row in rows
    }


def since(moment: object) -> int | None:
    return int(moment.timestamp()) - T0 if isinstance(moment, datetime) else None


def line(at: int, event: str, job: int, node: str = "n1", **more: object) -> str:
    return (
        f"{T0 + at} {event} job={job} node={node} "
        + " ".join(f"{k}={v}" for k, v in more.items())
        + "\n"
    )


def day_of_jobs(node: str) -> str:
    """Jobs one after the other on two GPUs, one of which runs still."""
    lines: list[tuple[int, str]] = []
    for job in range(1, 9):
        lines.append((job * 100, line(job * 100, "prolog", job, node, restart=0, gpus=job % 2)))
        if job != 8:
            lines.append(
                (
                    job * 100 + 150,
                    line(job * 100 + 150, "epilog", job, node, restart=0, gpus=job % 2),
                )
            )
    return "".join(text for _, text in sorted(lines))


@settings(max_examples=settings().max_examples // 2)
@given(cuts=st.lists(st.integers(0, 2000), max_size=8), restarts=st.sets(st.integers(0, 8)))
def test_wherever_a_file_is_cut_it_comes_to_the_same(
    cuts: list[int], restarts: set[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("map")
    whole = {node: day_of_jobs(node) for node in ("n1", "n2")}
    feed, landing = feed_of(folder), Landing()
    try:
        for number, cut in enumerate([*sorted(cuts), 10_000]):
            for node, text in whole.items():
                (folder / f"{node}.log").write_bytes(text.encode()[:cut])
            if number in restarts:  # the process was killed, and a new one begins
                feed = feed_of(folder)
            poll(feed, landing)
    finally:
        shutil.rmtree(folder)
    assert held(landing) == expected(whole["n1"]) | expected(whole["n2"])
    assert landing.rejected == {}
    assert len(held(landing)) == 16


@pytest.mark.file_times
def test_lines_land_also_when_the_clock_was_set_back(tmp_path: Path) -> None:
    file, lake = tmp_path / "n1.log", Lake.create(str(tmp_path / "lake"))
    file.write_text(line(1, "prolog", 1, gpus=0), encoding="utf-8")
    feed, ahead = feed_of(file), datetime.now(UTC) + timedelta(days=30)
    ingest(lake, feed.poll(partial(watermark, lake), now=ahead), now=ahead)
    # By the same process, and by one that begins then.
    for event, anew in (("epilog", False), ("prolog", True)):
        with file.open("a", encoding="utf-8") as growing:
            growing.write(line(9, event, 1 + anew, gpus=0))
        poll_of = feed_of(file).poll if anew else feed.poll
        ingest(lake, poll_of(partial(watermark, lake), now=datetime.now(UTC)), now=ahead)
    rows = lake.latest(ALLOCATIONS).sort("job_id").select("job_id", "start", "end").iter_rows()
    assert [(job, since(start), since(end)) for job, start, end in rows] == [
        ("1", 1, 9),
        ("2", 9, None),
    ]


def test_a_file_that_is_rotated_goes_on_where_it_was(tmp_path: Path) -> None:
    file, feed, landing = tmp_path / "n1.log", feed_of(tmp_path / "*"), Landing()
    file.write_text(line(1, "prolog", 1, gpus=0), encoding="utf-8")
    poll(feed, landing)
    with file.open("a", encoding="utf-8") as growing:
        growing.write(line(2, "prolog", 2, gpus=1))
    file.rename(tmp_path / "n1.log.1")
    (tmp_path / "n1.log.2.gz").write_bytes(b"\x1f\x8b")
    file.write_text(line(3, "epilog", 1, gpus=0), encoding="utf-8")
    poll(feed, landing)
    assert held(landing) == {("1", "n1", 0, 1, 3), ("2", "n1", 1, 2, None)}


def test_a_file_that_is_emptied_is_read_from_its_beginning(tmp_path: Path) -> None:
    file, feed, landing = tmp_path / "n1.log", feed_of(tmp_path / "n1.log"), Landing()
    file.write_text(line(1, "prolog", 1, gpus=0) * 3, encoding="utf-8")
    poll(feed, landing)
    # Shorter, then longer.
    for text in (line(5, "epilog", 1, gpus=0), line(6, "prolog", 22, gpus="0,1,2,3") * 2):
        file.write_text(text, encoding="utf-8")
        poll(feed, landing)
    assert held(landing) == {
        ("1", "n1", 0, 1, 5),
        *(("22", "n1", gpu, 6, None) for gpu in range(4)),
    }


def test_lines_that_cannot_be_read_are_counted_once(tmp_path: Path) -> None:
    file, feed, landing = tmp_path / "n1.log", feed_of(tmp_path), Landing()
    ugly = (
        "nonsense\n\xff\n" + line(1, "prolog", 1, gpus="GPU-x") + line(2, "prolog", 3, mig="MIG-1")
    )
    file.write_bytes((ugly + line(3, "prolog", 4, gpus="2")).encode("latin-1"))
    for _ in range(3):
        poll(feed, landing)
    assert landing.rejected == {"not_understood": 2, "bad_gpu_index": 1, "mig_index": 1}
    assert held(landing) == {("4", "n1", 2, 3, None)}


def test_an_old_file_that_was_read_is_not_read_again(tmp_path: Path) -> None:
    old, new = tmp_path / "n1.log", tmp_path / "n2.log"
    old.write_text(line(1, "prolog", 1, gpus=0), encoding="utf-8")
    new.write_text(line(1, "prolog", 2, "n2", gpus=0), encoding="utf-8")
    long_ago = (NOW - timedelta(days=30)).timestamp()
    os.utime(old, (long_ago, long_ago))
    landing = Landing(marks={STREAM: NOW})
    feed = feed_of(tmp_path)
    poll(feed, landing)
    assert held(landing) == {("2", "n2", 0, 1, None)}
    with old.open("a", encoding="utf-8") as growing:
        growing.write(line(9, "epilog", 1, gpus=0))
    poll(feed, landing)
    assert held(landing) == {("2", "n2", 0, 1, None), ("1", "n1", 0, None, 9)}


def test_a_file_that_cannot_be_read_does_not_keep_the_others(tmp_path: Path) -> None:
    good, gone, feed, landing = (
        tmp_path / "n1.log",
        tmp_path / "n2.log",
        feed_of(tmp_path / "*.log"),
        Landing(),
    )
    good.write_text(line(1, "prolog", 1, gpus=0), encoding="utf-8")
    gone.symlink_to(tmp_path / "away")
    poll(feed, landing)
    assert held(landing) == {("1", "n1", 0, 1, None)}


def test_where_there_is_no_file_it_says_so(tmp_path: Path) -> None:
    for pattern in (tmp_path / "*.log", tmp_path / "no" / "folder"):
        landing = Landing()
        with pytest.raises(InputError, match=r"no such file; is the prolog in place\?"):
            poll(feed_of(pattern), landing)
        assert landing.marks == {}


@pytest.mark.parametrize("files", [[], [""]])
def test_settings_that_do_not_fit(files: list[str]) -> None:
    with pytest.raises(ConfigError, match="files is empty"):
        connect(
            settings_of({"source": "allocation-map", "files": files}, where="test"),
            configuration=Configuration(),
        )
