"""Rows of superseded analyses: no reader sees them, compaction drops them; analyses at once do
no harm.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake.transaction import AddAction
from lake_jobs import accounting, analyzed, compacted, computed, recording
from lake_rows import NOW, lying

from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import (
    ALL_TABLES,
    FINDINGS,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_SUMMARIES,
    LakeTable,
)
from tachograph.lake.delta import AppendResult, Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.query import read_summaries
from tachograph.pipeline import row_buffers, run

RESULTS = (JOB_GPUS, JOB_MINUTES, FINDINGS)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an analyzed lake: of job 2 there are the samples of its first half."""
    folder = tmp_path_factory.mktemp("template") / "lake"
    made = Lake.create(str(folder))
    ingest(made, [accounting(1, 2), recording(1), recording(2, end_s=600)], now=NOW)
    analyzed(made)
    return folder


@pytest.fixture
def lake(template: Path, tmp_path: Path) -> Lake:
    """A copy of it."""
    return Lake.open(str(shutil.copytree(template, tmp_path / "lake")))


def all_lying(lake: Lake) -> list[int]:
    return [lying(lake, table) for table in RESULTS]


def only_once(tmp_path: Path) -> Lake:
    """A lake with all samples, analyzed once."""
    made = Lake.create(str(tmp_path / "once"))
    ingest(
        made,
        [accounting(1, 2), recording(1), recording(2, end_s=600), recording(2, start_s=600)],
        now=NOW,
    )
    analyzed(made)
    return made


class NoSummaries(Lake):
    """A lake whose analysis dies before it writes its summaries."""

    def commit(self, table: LakeTable, staged: Sequence[AddAction], **how: Any) -> bool:
        if table is JOB_SUMMARIES:
            raise KeyboardInterrupt
        return super().commit(table, staged, **how)


def test_readers_see_the_latest_analysis_only_and_compaction_drops_the_others(
    lake: Lake, tmp_path: Path
) -> None:
    before = all_lying(lake)
    ingest(lake, [recording(2, start_s=600)], now=NOW)
    assert analyzed(lake) == 1
    once = only_once(tmp_path)
    assert computed(lake) == computed(once)
    assert all(more > less for more, less in zip(all_lying(lake), before, strict=True))
    analyzed(lake, full=True)
    done = {one.table: one for one in compacted(lake)}
    assert computed(lake) == computed(once)
    assert all_lying(lake) == all_lying(once)
    # Of job 2 two analyses, of job 1 one.
    assert (done["job_gpus"].superseded, done["job_gpus"].duplicates) == (6, 0)
    minutes = done["job_minutes"]
    assert (minutes.superseded, minutes.duplicates) == (2 * 20 + 2 * 10 + 2 * 20, 0)
    versions = [lake.version(table) for table in ALL_TABLES]
    assert sum(one.superseded for one in compacted(lake)) == 0
    assert [lake.version(table) for table in ALL_TABLES] == versions


@pytest.mark.slow
def test_an_analysis_that_died_hides_nothing_even_after_compaction(lake: Lake) -> None:
    seen, before = computed(lake), all_lying(lake)
    with pytest.raises(KeyboardInterrupt):
        analyzed(NoSummaries(lake.location), full=True)
    left = all_lying(lake)
    assert left == [2 * count for count in before]
    assert computed(lake) == seen
    compacted(lake)  # it may still be at work
    assert (computed(lake), all_lying(lake)) == (seen, left)
    compacted(lake, datetime.now(UTC) + timedelta(days=2))
    assert (computed(lake), all_lying(lake)) == (seen, before)


def test_portions_of_an_analysis_change_no_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = [accounting(1, 2, 3, 4, 5), *(recording(number) for number in (1, 2, 3))]
    lakes = [Lake.create(str(tmp_path / name)) for name in ("whole", "portions")]
    for lake in lakes:
        ingest(lake, chunks, now=NOW)
        assert analyzed(lake) == 5
        monkeypatch.setattr(run, "JOBS_TOGETHER", 2)
        monkeypatch.setattr(run, "GPU_ROWS", 1)
        monkeypatch.setattr(run, "FINDING_ROWS", 1)
        monkeypatch.setattr(row_buffers, "SUMMARY_ROWS", 2)
    whole, portions = map(computed, lakes)
    assert whole == portions
    assert [len(lake.files(JOB_SUMMARIES)) for lake in lakes] == [1, 3]
    assert [len(lake.files(JOB_GPUS)) for lake in lakes] == [1, 3]
    # What holds lies apart; job 5 has none.
    assert [len(lake.files(FINDINGS)) for lake in lakes] == [2, 5]


def test_an_analysis_under_way_finds_its_rows_after_a_compaction(lake: Lake) -> None:
    class Compacting(Lake):
        def append(self, table: LakeTable, frame: pl.DataFrame, **how: Any) -> AppendResult:
            landed = super().append(table, frame, **how)
            if table is JOB_MINUTES:
                compacted(lake, datetime.now(UTC))
            return landed

    seen = computed(lake)
    analyzed(Compacting(lake.location), full=True)
    assert computed(lake) == seen


@pytest.mark.slow
def test_compaction_is_no_news(lake: Lake) -> None:
    ingest(lake, [recording(1, power_w=300.0)], now=NOW)
    assert analyzed(lake) == 1
    compacted(lake)
    assert analyzed(lake) == 0


def test_every_table_is_read_as_delta(lake: Lake) -> None:
    compacted(lake)
    for table in ALL_TABLES:
        if lake.delta(table) is not None:
            frame = pl.scan_delta(lake.uri(table)).collect()
            expected = table.schema | ({"day": pl.Date()} if table.by_day else {})
            assert dict(frame.schema) == expected, table.name
            assert frame.height == lying(lake, table)


def test_an_analysis_without_jobs_leaves_no_summaries_and_counts(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "samples only"))
    ingest(lake, [recording(1)], now=NOW)
    with pytest.raises(LakeError, match="nothing was analyzed yet"):
        read_summaries(lake)
    analyzed(lake)
    assert read_summaries(lake).is_empty()
