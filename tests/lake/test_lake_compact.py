"""Compaction: readers see the same rows, sorted and each key once; nothing lost, nothing counted
twice.
"""

from __future__ import annotations

import threading
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


def test_a_day_becomes_one_sorted_file(lake: Lake) -> None:
    early, late = (
        samples("n1", seconds=range(0, 1200, 10)),
        samples("n1", seconds=range(5, 1200, 10)),
    )
    fill(lake, late, samples("n0", 1), early, samples("n1", 1, mig=3), samples("n1", 1))
    before = rows(lake)
    compact(lake, TABLES)
    files = lake.files(GPU_SAMPLES)
    assert [(file.day, file.low, file.high, file.rows) for file in files] == [
        (date(2026, 3, 1), "n0", "n1", 300),
        (date(2026, 3, 2), "n1", "n1", 120),
    ]
    for file in files:
        frame = lake.read_files(GPU_SAMPLES, [file]).collect()
        assert is_resolved(frame, GPU_SAMPLES)
        keys = [
            (n, g, -1 if m is None else m, t)
            for n, g, m, t in frame.select("node", "gpu", "mig", "t").rows()
        ]
        assert keys == sorted(keys)
    assert (
        rows(lake)
        == before
        == plain(early, late, samples("n0", 1), samples("n1", 1, mig=3), samples("n1", 1))
    )


def test_a_second_compaction_writes_nothing(lake: Lake) -> None:
    fill(
        lake,
        *(
            samples(node, seconds=range(place, 900, 10))
            for place, node in enumerate(("n1", "n2", "n1"))
        ),
    )
    compact(lake, TABLES)
    versions = [lake.version(table) for table in TABLES]
    done = compact(lake, TABLES)
    assert [one.days for one in done] == [0] * len(done)
    assert [lake.version(table) for table in TABLES] == versions


def test_duplicates_are_merged_and_counted_once(lake: Lake) -> None:
    whole = samples(seconds=range(0, 600, 10), gpu_util=0.5, power_w=100.0)
    again = samples(seconds=range(-300, 300, 10), power_w=200.0, sm_active=0.25)
    fill(lake, whole, again)
    seen = rows(lake)
    [done] = compact(lake, [GPU_SAMPLES])
    assert (done.rows_before, done.rows_after, done.duplicates, done.superseded) == (120, 90, 30, 0)
    assert merged_rows(lake) == 30
    compact(lake, [GPU_SAMPLES])
    assert merged_rows(lake) == 30
    frame = lake.scan(GPU_SAMPLES).sort("t").select("gpu_util", "power_w", "sm_active").collect()
    utilisation = pytest.approx(0.5)
    assert frame.rows()[:30] == [(None, 200.0, 0.25)] * 30
    # The later one where both have a value.
    assert frame.rows()[30:60] == [(utilisation, 200.0, 0.25)] * 30
    assert frame.rows()[60:] == [(utilisation, 100.0, None)] * 30
    assert rows(lake) == seen


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
def test_no_row_is_lost_and_readers_see_the_same(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[list[tuple[str, int, int]]], most: int
) -> None:
    lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
    away = 0
    for place, keys in enumerate(chunks):
        frames = [
            samples(node, gpu, seconds=[300 * step], power_w=float(place))
            for node, gpu, step in keys
        ]
        frame = pl.concat([samples(seconds=[]), *frames])
        away += lake.append(GPU_SAMPLES, frame, app_id=f"{place}").duplicates
    seen, lies = rows(lake), lying(lake)
    assert lies + away == sum(map(len, chunks))
    done = compact(lake, [GPU_SAMPLES], rows=most)
    assert rows(lake) == seen
    assert lying(lake) == len(seen) == len({key for keys in chunks for key in keys})
    assert lying(lake) + away + sum(one.duplicates for one in done) == sum(map(len, chunks))
    assert merged_rows(lake) == sum(one.duplicates for one in done)


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


def test_readers_see_the_same_rows_while_days_are_compacted(lake: Lake) -> None:
    frames = [
        samples(f"n{place % 3}", seconds=range(place, 1200, 10), power_w=float(place))
        for place in range(9)
    ]
    fill(lake, *frames)
    before = rows(lake)
    stop = threading.Event()
    different: list[int] = []
    reads = []

    def read() -> None:
        while not stop.is_set():
            seen = rows(lake)
            reads.append(len(seen))
            if seen != before:
                different.append(len(seen))

    reader = threading.Thread(target=read)
    reader.start()
    compact(lake, [GPU_SAMPLES])
    while len(reads) < 3:
        pass
    stop.set()
    reader.join()
    assert different == []


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
