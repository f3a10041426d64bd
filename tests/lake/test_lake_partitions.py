"""Partitions: files that share nodes belong together, large groups are cut between nodes, no row
is lost or doubled.
"""

from __future__ import annotations

from datetime import date
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_rows import plain, samples

from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.lake.data_files import DataFile, touching
from tachograph.lake.delta import Lake
from tachograph.lake.partitions import node_range, partitions, read_partition

FIRST, SECOND = date(2026, 3, 1), date(2026, 3, 2)


def made(directory: Path, *frames: pl.DataFrame) -> Lake:
    lake = Lake.create(str(directory / "lake"))
    for place, frame in enumerate(frames):
        lake.append(GPU_SAMPLES, frame, app_id=f"{place}")
    return lake


def file(low: str, high: str) -> DataFile:
    return DataFile(f"{low}-{high}", FIRST, 1, 1, low, high, None, None, 1)


def number(node: str | None) -> int:
    return int((node or "")[1:])


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=12))
@settings(deadline=None)
def test_files_are_in_one_group_where_their_nodes_touch(spans: list[tuple[int, int]]) -> None:
    files = [file(f"n{low}", f"n{min(9, low + length)}") for low, length in spans]
    groups = list(touching(files, node_range))
    assert sorted(one.path for group in groups for one in group) == sorted(
        one.path for one in files
    )
    alone = {(one.low, one.high) for one in files}
    covered = 0
    reached = -1  # the last node of the group so far
    for low, high in sorted((number(low), number(high)) for low, high in alone):
        covered += low > reached
        reached = max(reached, high)
    assert len(groups) == covered
    assert all(
        number(before[-1].low) <= max(number(one.high) for one in before) < number(after[0].low)
        for before, after in pairwise(groups)
    )


def test_a_day_of_separate_nodes_is_read_file_by_file(tmp_path: Path) -> None:
    lake = made(
        tmp_path, *(samples(node, seconds=range(0, 1200, 10)) for node in ("n1", "n2", "n3"))
    )
    parts = list(partitions(lake, GPU_SAMPLES))
    assert [(part.day, part.files[0].low, part.rows, part.is_whole) for part in parts] == [
        *((FIRST, node, 60, True) for node in ("n1", "n2", "n3")),
        *((SECOND, node, 60, True) for node in ("n1", "n2", "n3")),
    ]
    assert [part.day for part in partitions(lake, GPU_SAMPLES, [SECOND])] == [SECOND] * 3


def test_a_group_that_is_too_large_is_cut_between_nodes(tmp_path: Path) -> None:
    nodes = [samples(f"n{place}", seconds=range(0, 500, 10)) for place in range(6)]
    lake = made(
        tmp_path, pl.concat(nodes[:4]), pl.concat(nodes[3:]), pl.concat([nodes[0], nodes[5]])
    )
    parts = list(partitions(lake, GPU_SAMPLES, rows=160))
    assert [(part.low, part.high, part.rows) for part in parts] == [
        ("n0", "n1", 150),
        ("n2", "n3", 150),
        ("n4", "n5", 150),
    ]
    read = [read_partition(lake, GPU_SAMPLES, part) for part in parts]
    assert [merged for _, merged in read] == [50, 50, 50]
    assert pl.concat([frame for frame, _ in read]).drop("seq").rows() == plain(*nodes)


def test_a_node_is_never_cut(tmp_path: Path) -> None:
    lake = made(
        tmp_path, samples("n1", seconds=range(0, 400, 10)), samples("n1", seconds=range(5, 400, 10))
    )
    [part] = partitions(lake, GPU_SAMPLES, rows=10)
    assert (part.low, part.high, part.rows) == ("n1", "n1", 80)
    assert read_partition(lake, GPU_SAMPLES, part)[0].height == 80


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    lake = made(tmp_path, samples(power_w=5.0), samples(power_w=7.0))
    [part] = partitions(lake, GPU_SAMPLES)
    frame, merged = read_partition(lake, GPU_SAMPLES, part, ["t", "power_w"])
    assert (frame.columns, merged, set(frame["power_w"])) == (["t", "power_w"], 60, {7.0})


@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_a_damaged_file_is_an_error_that_names_the_file(tmp_path: Path, damage: str) -> None:
    lake = made(tmp_path, samples(power_w=5.0))
    [one] = lake.files(GPU_SAMPLES)
    path = Path(lake.uri(GPU_SAMPLES), one.path)
    match damage:
        case "gone":
            path.unlink()
        case "cut":
            path.write_bytes(path.read_bytes()[:400])
        case _:
            path.write_text("timestamp,node\n" * 50)
    [part] = partitions(lake, GPU_SAMPLES)
    with pytest.raises(LakeError) as caught:
        read_partition(lake, GPU_SAMPLES, part)
    assert caught.value.where == str(path)
    assert caught.value.do == "run `tachograph lake --repair`"
