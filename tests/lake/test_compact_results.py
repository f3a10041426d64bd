"""Compaction of what is computed of jobs: a part of it at a time, old files left as they are."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from jobframes import frame
from tachograph.catalog.tables import FINDINGS, JOB_GPUS, JOB_SUMMARIES, LakeTable
from tachograph.lake.compact import FEW_FILES, Compaction, compact
from tachograph.lake.delta import Lake
from tachograph.lake.retention import rows_that_count

NOW = datetime(2026, 11, 1, tzinfo=UTC)
TABLES = (JOB_GPUS, FINDINGS, JOB_SUMMARIES)
TOGETHER = 40  # rows: of ten jobs
GPUS_OF_A_JOB = 4


def job_keys(numbers: Sequence[int]) -> list[dict[str, str]]:
    return [{"job_key": f"c:{number:04}:1", "job_id": f"{number:04}"} for number in numbers]


def store(lake: Lake, numbers: Sequence[int], seq: int) -> None:
    """Append what an analysis computes of some jobs, the summaries last."""
    jobs = job_keys(numbers)
    devices = [job | {"node": "n1", "gpu": gpu} for job in jobs for gpu in range(GPUS_OF_A_JOB)]
    found = [
        job | {"code": code, "verdict": verdict, "needs": []}
        for job in jobs
        for code, verdict in (("job_hang", "yes"), ("x", "no"), ("y", "no"), ("z", "unknown"))
    ]
    for table, rows in ((JOB_GPUS, devices), (FINDINGS, found), (JOB_SUMMARIES, jobs)):
        lake.append(table, frame(table, rows).drop("seq"), app_id=f"analysis:{seq}", seq=seq)


def compacted(lake: Lake) -> dict[str, Compaction]:
    done = compact(lake, TABLES, rows_together=TOGETHER, counting=rows_that_count(lake, NOW))
    return {one.table: one for one in done}


def current(lake: Lake, table: LakeTable) -> pl.DataFrame:
    """Return the rows that readers see, without what only says when they were written."""
    counting = rows_that_count(lake, NOW).get(table.name)
    if counting is None:
        return lake.latest(table).drop("seq")
    return counting(lake.scan(table)).drop("seq").collect().sort(*table.sort)


def every(lake: Lake) -> list[pl.DataFrame]:
    return [current(lake, table) for table in TABLES]


def paths(lake: Lake, table: LakeTable) -> set[str]:
    return {file.path for file in lake.files(table)}


@pytest.fixture
def year(tmp_path: Path) -> Lake:
    """Thirty analyses of four jobs each."""
    lake = Lake.create(str(tmp_path / "lake"))
    for day in range(30):
        store(lake, range(4 * day, 4 * day + 4), seq=day + 1)
    return lake


def test_many_rows_become_files_of_few_jobs(year: Lake) -> None:
    before = every(year)
    done = compacted(year)
    assert all(left.equals(right) for left, right in zip(every(year), before, strict=True))
    assert done["job_gpus"].rows_after == done["job_gpus"].rows_before == 30 * 4 * GPUS_OF_A_JOB
    files = sorted(year.files(JOB_GPUS), key=lambda file: file.keys or ("", ""))
    assert [file.rows for file in files] == [TOGETHER] * 12
    bounds = [bound for file in files for bound in file.keys or ()]
    assert bounds == sorted(set(bounds))  # no job lies in two files
    findings = year.files(FINDINGS)
    assert len(findings) == 2 * 12
    assert max(file.rows for file in findings) == 30


def test_nothing_new_is_nothing_to_do(year: Lake) -> None:
    compacted(year)
    versions = [year.version(table) for table in TABLES]
    compacted(year)
    assert [year.version(table) for table in TABLES] == versions


def test_old_files_stay_when_new_ones_are_put_together(year: Lake) -> None:
    compacted(year)
    old = paths(year, JOB_GPUS)
    for day in range(30, 39):
        store(year, [4 * day], seq=day + 1)
    before = every(year)
    compacted(year)
    assert all(left.equals(right) for left, right in zip(every(year), before, strict=True))
    assert len(paths(year, JOB_GPUS) - old) == 1
    assert old <= paths(year, JOB_GPUS)


def test_a_large_file_is_rewritten_once_rows_in_it_no_longer_count(year: Lake) -> None:
    compacted(year)
    old = paths(year, JOB_GPUS)
    store(year, [5], seq=100)
    before = every(year)
    done = compacted(year)
    assert all(left.equals(right) for left, right in zip(every(year), before, strict=True))
    assert done["job_gpus"].superseded == GPUS_OF_A_JOB
    assert len(old - paths(year, JOB_GPUS)) == 1
    assert year.scan(JOB_GPUS).select(pl.len()).collect().item() == 30 * 4 * GPUS_OF_A_JOB


def test_rows_of_summaries_that_were_written_again_do_not_stay(year: Lake) -> None:
    for seq in range(100, 120):
        store(year, range(120), seq)
        compacted(year)
        rows = year.scan(JOB_SUMMARIES).select(pl.len()).collect().item()
        assert rows <= (FEW_FILES + 2) * 120
    before = current(year, JOB_SUMMARIES)
    for seq in range(200, 200 + FEW_FILES + 1):
        store(year, [0], seq)
    compacted(year)
    assert year.scan(JOB_SUMMARIES).select(pl.len()).collect().item() == 120
    assert current(year, JOB_SUMMARIES).equals(before)
