"""What `tachograph lake` tells: facts of tables, planted gaps of nodes, removals."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from lake_rows import NOW, START, chunk, samples

from in_process import run_here
from tachograph.catalog.tables import ALL_TABLES, DEVICES, GPU_SAMPLES, JOBS
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.describe import (
    describe_nodes,
    describe_rejects,
    describe_space,
    describe_tables,
)
from tachograph.lake.ingest import ingest

NODE = ("node", "gpus", "samples", "interval_s", "gaps", "longest_gap_s", "silence_s")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.create(str(tmp_path / "lake"))


def told(lake: Lake) -> list[tuple[object, ...]]:
    return describe_nodes(lake).select(NODE).rows()


def without(*gaps: tuple[int, int], until: int = 1200, step: int = 10) -> list[int]:
    """Seconds from 0 to `until`, none of those after the first and before the second of each
    gap.
    """
    return [
        second
        for second in range(0, until, step)
        if not any(low < second < high for low, high in gaps)
    ]


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (  # the first silence is three intervals long: none
            [
                samples("n1", seconds=without((100, 130), (200, 240), (800, 900))),
                samples("n2", seconds=without()),
            ],
            [("n1", 1, 120 - 2 - 3 - 9, 10.0, 2, 100.0, 140.0), ("n2", 1, 120, 10.0, 0, None, 0.0)],
        ),
        # Across midnight.
        ([samples(seconds=without((500, 700)))], [("n1", 1, 101, 10.0, 1, 200.0, 200.0)]),
        (  # the gaps of a node are those of its GPU with most silence
            [
                samples("n1", 0, seconds=without((100, 200), (300, 400))),
                samples("n1", 1, seconds=without((100, 350))),
                samples("n1", 1, mig=2, seconds=without(step=5)),
            ],
            [("n1", 3, 102 + 96 + 240, 10.0, 2, 250.0, 250.0)],
        ),
        ([samples(seconds=[0])], [("n1", 1, 1, None, 0, None, 0.0)]),  # one sample has no interval
        ([], []),
    ],
)
def test_gaps_of_nodes(
    lake: Lake, frames: list[pl.DataFrame], expected: list[tuple[object, ...]]
) -> None:
    ingest(lake, [chunk("a", *frames)], now=NOW)
    assert told(lake) == expected


def test_overlapping_recordings_make_no_gap_and_no_sample_twice(lake: Lake) -> None:
    first, second = samples(seconds=without((300, 600))), samples(seconds=range(250, 650, 10))
    ingest(lake, [chunk("a", first), chunk("b", second)], now=NOW)
    before = told(lake)
    assert before == [("n1", 1, 120, 10.0, 0, None, 0.0)]
    compact(lake, [GPU_SAMPLES])
    assert told(lake) == before


def test_the_facts_of_tables_come_from_the_log(lake: Lake) -> None:
    ingest(lake, [chunk("a", samples(seconds=range(0, 1200, 10)))], now=NOW)
    facts = {fact.table: fact for fact in describe_tables(lake, (GPU_SAMPLES, DEVICES, JOBS))}
    assert set(facts) == {"gpu_samples", "devices"}
    of_samples = facts["gpu_samples"]
    assert (of_samples.rows, of_samples.files) == (120, 2)
    assert (of_samples.first, of_samples.last) == (START, START + timedelta(seconds=1190))
    on_disk = sum(
        file.stat().st_size for file in Path(lake.uri(GPU_SAMPLES)).rglob("part-*.parquet")
    )
    assert of_samples.bytes == on_disk
    assert of_samples.bytes_per_row == on_disk / 120


def test_removals_are_put_together_by_reason(lake: Lake) -> None:
    for name in ("a", "b"):
        node = f"n{name}"
        ingest(
            lake,
            [chunk(name, samples(node, seconds=[0, 0, 10], gpu_util=[2.0, 3.0, 0.5]))],
            now=NOW,
        )
    assert describe_rejects(lake).rows() == [
        ("gpu_samples", "out_of_range", "gpu_util", 4, "2.0", 2),
        ("gpu_samples", "duplicate", None, 2, None, 2),
    ]


def test_the_command_tells_the_same(lake: Lake) -> None:
    bad = samples("n2", seconds=[0, 10, 20], gpu_util=[5.0, -1.0, 0.5])
    ingest(lake, [chunk("a", samples("n1", seconds=without((200, 300)))), chunk("b", bad)], now=NOW)
    found = json.loads(command("--json", lake=lake))
    assert {table["table"]: table["rows"] for table in found["tables"]} == {
        "gpu_samples": 114,
        "devices": 2,
        "rejects": 1,
    }
    assert [tuple(node[name] for name in NODE) for node in found["nodes"]] == told(lake)
    [removed] = found["rejects"]
    assert removed == describe_rejects(lake).row(0, named=True)
    assert (removed["reason"], removed["column"], removed["removed"], removed["example"]) == (
        "out_of_range",
        "gpu_util",
        2,
        "5.0",
    )
    lines = command(lake=lake).splitlines()
    assert [line.split() for line in lines if line.startswith(("n1 ", "n2 "))] == [
        ["n1", "1", "111", "10", "s", "1", "1", "min", "40", "s", "1", "min", "40", "s"],
        ["n2", "1", "3", "10", "s", "0", "–", "0", "s"],
    ]
    assert [line.split() for line in lines if "out_of_range" in line] == [
        ["gpu_samples", "out_of_range", "gpu_util", "2", "5.0"]
    ]
    assert "nodes" not in json.loads(command("--json", "--no-gaps", lake=lake))


def command(*arguments: str, lake: Lake) -> str:
    done = run_here(
        ["lake", "--lake", lake.location, *arguments], Path(lake.location).parent, os.environ
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_space_is_expected_at_the_rate_of_the_days_with_rows(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path))
    day = 86_400
    ingest(
        lake,
        [chunk("days", samples(seconds=[600, day + 700, 20 * day + 700]))],
        now=NOW + timedelta(days=30),
    )
    (space,) = describe_space(lake, [GPU_SAMPLES], {"gpu_samples": 90})
    assert space.rows == 3
    assert space.days == 3.0  # of 21: there were no rows on the others
    assert space.bytes == sum(file.size for file in lake.files(GPU_SAMPLES))
    on_disk = sum(
        path.stat().st_size for path in Path(lake.uri(GPU_SAMPLES)).rglob("*") if path.is_file()
    )
    assert space.bytes + (space.other_bytes or 0) == on_disk
    a_day = space.bytes / 3
    assert (space.bytes_per_day, space.expected_year_bytes) == (a_day, a_day * 365)
    assert (space.retention_days, space.expected_kept_bytes) == (90, a_day * 90)


def test_nothing_is_expected_of_less_than_a_day(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path))
    ingest(lake, [chunk("minutes", samples(seconds=range(0, 1200, 10)))], now=NOW)  # over midnight
    for space in describe_space(lake, ALL_TABLES, {}):
        assert space.bytes_per_day is space.expected_year_bytes is None
        assert space.expected_kept_bytes is space.retention_days is None


def test_space_of_replaced_files_is_counted_until_the_vacuum(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path))
    for number in range(4):
        ingest(lake, [chunk(f"part-{number}", samples(seconds=range(number, 600, 10)))], now=NOW)

    def other() -> int:
        (space,) = describe_space(lake, [GPU_SAMPLES], {})
        return space.other_bytes or 0

    before = other()
    compact(lake, ALL_TABLES)
    replaced = other()
    compact(lake, ALL_TABLES, vacuum_hours=0)
    assert before < replaced
    assert other() < replaced
