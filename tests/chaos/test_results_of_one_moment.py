"""What reports read belongs together, also when an analysis and a compaction come in between."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path

import pytest
from readers import GPUS, chunk
from story import NOW

from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import ALL_TABLES, JOB_GPUS, LakeTable
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.compact import compact
from tachograph.lake.data_files import DataFile
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.query import read_consistently, read_gpus, read_summaries
from tachograph.lake.retention import rows_that_count
from tachograph.pipeline.run import analyze

pytestmark = pytest.mark.slow


def redo(lake: Lake) -> None:
    analyze(lake, Configuration(), judge=JobJudge, now=NOW, threads=1, full=True)
    compact(lake, ALL_TABLES, counting=rows_that_count(lake, datetime.now(UTC)))


class BusyLake(Lake):
    """Between the summaries and their GPUs others analyze and compact."""

    times = 1

    def files(self, table: LakeTable, days: Iterable[date] | None = None) -> list[DataFile]:
        if table is JOB_GPUS and self.times:
            self.times -= 1
            redo(Lake(self.location))
        return super().files(table, days)


def test_summaries_and_what_belongs_to_them_are_of_one_moment(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    ingest(lake, [chunk(0)], now=NOW)
    redo(lake)
    assert apart(BusyLake(lake.location)) == (1, 0)  # what is read without care misses them
    for times in (1, 2, 3):
        busy = BusyLake(lake.location)
        busy.times = times
        assert read_consistently(busy, partial(apart, busy)) == (1, GPUS)


def apart(lake: Lake) -> tuple[int, int]:
    """How many summaries there are, and how many of their GPUs."""
    summaries = read_summaries(lake)
    return summaries.height, read_gpus(lake, summaries).height
