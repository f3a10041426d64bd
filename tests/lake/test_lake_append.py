"""Appends: once per chunk, all or nothing, whoever else writes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import polars as pl
import pytest
from lake_rows import WAIT, at_once, lying, plain, rows, samples, started

from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import ALLOCATIONS, GPU_SAMPLES
from tachograph.lake.delta import Lake


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake.create(str(tmp_path / "lake"))


def test_what_is_appended_is_read_by_day_and_sorted(lake: Lake) -> None:
    frame = samples(seconds=range(0, 1200, 10), power_w=100.0)
    lake.append(GPU_SAMPLES, frame.sample(fraction=1, shuffle=True, seed=1), app_id="a")
    assert lake.days(GPU_SAMPLES) == [date(2026, 3, 1), date(2026, 3, 2)]
    assert [file.rows for file in lake.files(GPU_SAMPLES)] == [60, 60]
    assert rows(lake) == frame.rows()


def test_the_same_chunk_twice_changes_nothing(lake: Lake) -> None:
    frame = samples(seconds=[0, 10, 10, 20])
    first = lake.append(GPU_SAMPLES, frame, app_id="a")
    version = lake.version(GPU_SAMPLES)
    second = lake.append(GPU_SAMPLES, frame, app_id="a")
    assert (first.known, first.duplicates, second.known, second.duplicates) == (False, 1, True, 1)
    assert (lake.version(GPU_SAMPLES), lying(lake)) == (version, 3)
    assert (lake.mark(GPU_SAMPLES, "a"), lake.mark(GPU_SAMPLES, "b")) == (1, None)


def test_seq_is_the_version_in_which_a_row_landed(lake: Lake) -> None:
    for place in range(3):
        lake.append(GPU_SAMPLES, samples(seconds=[place]), app_id=f"{place}")
        assert lake.scan(GPU_SAMPLES).select(pl.col("seq").max()).collect().item() == lake.version(
            GPU_SAMPLES
        )
    assert lake.scan(GPU_SAMPLES).collect().sort("t").get_column("seq").to_list() == [1, 2, 3]


def test_an_append_of_no_rows_is_remembered(lake: Lake) -> None:
    lake.append(GPU_SAMPLES, samples(seconds=[]), app_id="empty")
    assert lake.mark(GPU_SAMPLES, "empty") == 1
    assert lake.files(GPU_SAMPLES) == []


APPEND = f"""
import sys
from lake_rows import samples
from tachograph.lake.delta import Lake
from tachograph.catalog.tables import GPU_SAMPLES
lake = Lake.create(sys.argv[1])
{WAIT}
known = 0
for place in range(int(sys.argv[3])):
    frame = samples("n" + sys.argv[2], seconds=range(place * 60, place * 60 + 60, 10))
    known += lake.append(GPU_SAMPLES, frame, app_id=sys.argv[2] + "-" + str(place)).known
print(known)
"""


def test_the_same_chunks_from_two_processes_at_once_land_once(lake: Lake) -> None:
    known = at_once([started(APPEND, lake.location, "1", "8") for _ in range(2)])
    assert sum(map(int, known)) == 8
    assert len(lake.files(GPU_SAMPLES)) == 8
    assert lying(lake) == 48
    assert rows(lake) == plain(samples("n1", seconds=range(0, 480, 10)))


CREATE = f"""
import sys
from lake_rows import samples
from tachograph.lake.delta import Lake
from tachograph.catalog.tables import GPU_SAMPLES
{WAIT}
for place in range(8):
    lake = Lake.create(sys.argv[1] + "/" + str(place))
    lake.append(GPU_SAMPLES, samples("n" + sys.argv[2], seconds=[0]), app_id=sys.argv[2])
"""


@pytest.mark.slow
def test_a_table_that_two_processes_create_at_once_has_the_rows_of_both(tmp_path: Path) -> None:
    at_once([started(CREATE, tmp_path, name) for name in ("1", "2")])
    assert [lying(Lake(str(tmp_path / f"{place}"))) for place in range(8)] == [2] * 8


def test_a_write_that_fails_leaves_no_file_and_no_version(lake: Lake) -> None:
    lake.append(GPU_SAMPLES, samples(seconds=[0]), app_id="before")
    version = lake.version(GPU_SAMPLES)
    second_day = Path(lake.uri(GPU_SAMPLES), "day=2026-03-02")
    second_day.write_text("in the way")
    with pytest.raises(LakeError):
        lake.append(GPU_SAMPLES, samples(seconds=[10, 1200]), app_id="a")
    assert len(list(Path(lake.uri(GPU_SAMPLES)).rglob("part-*.parquet"))) == 1
    assert (lake.version(GPU_SAMPLES), lake.mark(GPU_SAMPLES, "a")) == (version, None)
    second_day.unlink()
    lake.append(GPU_SAMPLES, samples(seconds=[10, 1200]), app_id="a")
    assert lying(lake) == 3


def test_files_are_replaced_in_one_step_and_what_was_appended_meanwhile_stays(lake: Lake) -> None:
    lake.append(GPU_SAMPLES, samples(seconds=[0, 10]), app_id="a")
    lake.append(GPU_SAMPLES, samples(seconds=[20]), app_id="b")
    files = lake.files(GPU_SAMPLES)
    frame = lake.read_files(GPU_SAMPLES, files).collect()
    lake.append(GPU_SAMPLES, samples(seconds=[30]), app_id="c")
    assert lake.replace(GPU_SAMPLES, files, [(files[0].day, frame)])
    assert lying(lake) == 4
    assert len(lake.files(GPU_SAMPLES)) == 2


def test_files_that_somebody_else_replaced_are_not_replaced_again(lake: Lake) -> None:
    lake.append(GPU_SAMPLES, samples(seconds=[0, 10]), app_id="a")
    lake.append(GPU_SAMPLES, samples(seconds=[20]), app_id="b")
    files = lake.files(GPU_SAMPLES)
    frame = lake.read_files(GPU_SAMPLES, files).collect()
    assert lake.replace(GPU_SAMPLES, files, [(files[0].day, frame)])
    version, paths = lake.version(GPU_SAMPLES), [file.path for file in lake.files(GPU_SAMPLES)]
    assert not lake.replace(GPU_SAMPLES, files[:1], [(files[0].day, frame)])
    assert (lake.version(GPU_SAMPLES), [file.path for file in lake.files(GPU_SAMPLES)]) == (
        version,
        paths,
    )
    # Two old, one new, none left behind.
    assert len(list(Path(lake.uri(GPU_SAMPLES)).rglob("part-*.parquet"))) == 3


def test_the_log_carries_what_readers_choose_files_by(lake: Lake) -> None:
    frames = [samples("n2", seconds=[5]), samples("n7", seconds=[0, 10])]
    lake.append(GPU_SAMPLES, pl.concat(frames), app_id="a")
    [file] = lake.files(GPU_SAMPLES)
    assert (file.low, file.high, file.rows, file.seq) == ("n2", "n7", 3, 1)
    assert (file.first, file.last) == (frames[1]["t"][0], frames[1]["t"][1])
    log = (
        sorted(Path(lake.uri(GPU_SAMPLES), "_delta_log").glob("*.json"))[-1]
        .read_text()
        .splitlines()
    )
    added = next(json.loads(line)["add"] for line in log if "add" in json.loads(line))
    assert added["size"] == Path(lake.uri(GPU_SAMPLES), file.path).stat().st_size
    assert added["partitionValues"] == {"day": "2026-03-01"}


def test_a_lake_whose_allocations_have_no_steps_is_read_and_goes_on(lake: Lake) -> None:
    before = replace(
        ALLOCATIONS,
        key=tuple(name for name in ALLOCATIONS.key if name != "step"),
        columns=tuple(column for column in ALLOCATIONS.columns if column.name != "step"),
    )
    schema = {name: dtype for name, dtype in ALLOCATIONS.schema.items() if name != "seq"}
    held = {"job_id": "7", "node": "n1", "gpu": 0, "provenance": "explicit"}
    lake.append(before, pl.DataFrame([held], schema=schema).drop("step"), app_id="a")
    assert lake.latest(ALLOCATIONS).select("job_id", "step").rows() == [("7", None)]
    lake.append(ALLOCATIONS, pl.DataFrame([held | {"step": "batch"}], schema=schema), app_id="b")
    assert set(lake.latest(ALLOCATIONS).select("job_id", "step").rows()) == {
        ("7", None),
        ("7", "batch"),
    }
