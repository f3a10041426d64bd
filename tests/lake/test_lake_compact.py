"""Compaction: readers see the same rows, sorted and each key once; nothing lost, nothing counted
twice.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

import polars as pl
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_rows import lying, merged_rows, plain, rows, samples

from tachograph.catalog.tables import DEVICES, GPU_SAMPLES, JOBS, NODE_SAMPLES, REJECTS
from tachograph.lake.compact import FEW_FILES, compact
from tachograph.lake.conform import is_resolved
from tachograph.lake.delta import Lake

TABLES = (GPU_SAMPLES, NODE_SAMPLES, DEVICES, JOBS, REJECTS)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.create(str(tmp_path / "lake"))


def fill(lake: Lake, *frames: pl.DataFrame) -> None:
    for place, frame in enumerate(frames):
        lake.append(GPU_SAMPLES, frame, app_id=f"chunk-{place}")


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(["n1", "n2", "n3"]), st.integers(0, 1), st.integers(0, 5)),
            max_size=8,
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([1, 4, 10, 1000]),
)
@settings(max_examples=settings().max_examples // 4)
def test_days_are_rewritten_sorted_and_once_and_no_row_is_lost(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[list[tuple[str, int, int]]], most: int
) -> None:
    lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
    away = 0
    written = []
    for place, keys in enumerate(chunks):
        frames = [
            samples(node, gpu, seconds=[300 * step], mig=gpu or None, power_w=float(place))
            for node, gpu, step in keys
        ]
        written.append(pl.concat([samples(seconds=[]), *frames]))
        away += lake.append(GPU_SAMPLES, written[-1], app_id=f"{place}").duplicates
    seen, lies = rows(lake), lying(lake)
    assert seen == plain(*written)
    assert lies + away == sum(map(len, chunks))
    done = compact(lake, [GPU_SAMPLES], rows=most)
    assert rows(lake) == seen
    assert lying(lake) == len(seen) == len({key for keys in chunks for key in keys})
    assert lying(lake) + away + sum(one.duplicates for one in done) == sum(map(len, chunks))
    assert merged_rows(lake) == sum(one.duplicates for one in done)
    files = lake.files(GPU_SAMPLES)
    for file in files:
        assert is_resolved(lake.read_files(GPU_SAMPLES, [file]).collect(), GPU_SAMPLES)
    assert most < 1000 or len(files) == len({file.day for file in files})
    version = lake.version(GPU_SAMPLES)
    assert [one.days for one in compact(lake, [GPU_SAMPLES], rows=most)] == [0]
    assert lake.version(GPU_SAMPLES) == version


def test_large_days_are_cut_between_nodes(lake: Lake) -> None:
    nodes = [samples(f"n{place}", seconds=range(0, 500, 10)) for place in range(6)]
    fill(lake, pl.concat(nodes[3:]), pl.concat(nodes[:4]))
    compact(lake, [GPU_SAMPLES], rows=120)
    assert [(file.low, file.high, file.rows) for file in lake.files(GPU_SAMPLES)] == [
        ("n0", "n1", 100),
        ("n2", "n3", 100),
        ("n4", "n5", 100),
    ]
    version = lake.version(GPU_SAMPLES)
    compact(lake, [GPU_SAMPLES], rows=120)
    assert lake.version(GPU_SAMPLES) == version
    assert rows(lake) == plain(*nodes)


def test_a_table_read_whole_is_rewritten_once_it_has_many_files(lake: Lake) -> None:
    for place in range(FEW_FILES + 1):
        lake.append(DEVICES, device("n1", hbm_mib=float(place)), app_id=f"{place}")
    before = rows(lake, DEVICES)
    [done] = compact(lake, [DEVICES])
    assert (done.files_before, done.files_after, done.duplicates) == (FEW_FILES + 1, 1, FEW_FILES)
    assert (
        rows(lake, DEVICES)
        == before
        == [tuple(device("n1", hbm_mib=float(FEW_FILES)).drop("seq", strict=False).row(0))]
    )


def device(node: str, **given: float) -> pl.DataFrame:
    schema = {name: dtype for name, dtype in DEVICES.schema.items() if name != "seq"}
    return pl.DataFrame([dict.fromkeys(schema) | {"node": node, "gpu": 0} | given], schema=schema)


def test_old_files_are_deleted_only_when_asked(lake: Lake) -> None:
    fill(lake, samples(), samples(seconds=range(5, 600, 10)))
    compact(lake, [GPU_SAMPLES])
    assert len(list(Path(lake.uri(GPU_SAMPLES)).rglob("part-*.parquet"))) == 3
    compact(lake, [GPU_SAMPLES], vacuum_hours=1)
    assert len(list(Path(lake.uri(GPU_SAMPLES)).rglob("part-*.parquet"))) == 3
    compact(lake, [GPU_SAMPLES], vacuum_hours=0)
    assert len(list(Path(lake.uri(GPU_SAMPLES)).rglob("part-*.parquet"))) == 1
    assert len(rows(lake)) == 120


def test_others_read_the_table_and_its_days_as_delta(lake: Lake) -> None:
    fill(lake, samples(seconds=range(0, 1200, 10), power_w=100.0), samples("n2"), samples("n2"))
    compact(lake, TABLES)
    location = lake.uri(GPU_SAMPLES)
    scan = pl.scan_delta(location)
    assert scan.select(pl.len()).collect().item() == 180
    assert scan.collect_schema()["day"] == pl.Date
    by_day = (
        scan.group_by("day")
        .agg(pl.len(), pl.col("t").dt.date().unique().alias("of"))
        .sort("day")
        .collect()
    )
    assert by_day.rows() == [
        (date(2026, 3, 1), 120, [date(2026, 3, 1)]),
        (date(2026, 3, 2), 60, [date(2026, 3, 2)]),
    ]
    second_day = scan.filter(pl.col("day") > date(2026, 3, 1)).select("power_w").collect()
    assert second_day["power_w"].to_list() == [100.0] * 60
    table = DeltaTable(location)
    assert table.metadata().partition_columns == ["day"]
    assert table.file_uris(file_pruning_predicate=[("day", "=", "2026-03-02")]) == [
        f"{location}/{lake.files(GPU_SAMPLES)[1].path}"
    ]
