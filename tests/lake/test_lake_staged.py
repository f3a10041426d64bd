"""Files that are written first and counted later: all at once, exactly once, or not at all."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import polars as pl
import pytest

from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import JOB_MINUTES
from tachograph.lake.delta import Lake

DAY = date(2026, 4, 1)


def minutes(*numbers: int) -> pl.DataFrame:
    """Return rows of job_minutes, of one GPU."""
    at = pl.datetime(2026, 4, 1, time_zone="UTC") + pl.duration(minutes=pl.col("minute"))
    frame = pl.DataFrame({"minute": numbers}).with_columns(
        job_key=pl.lit("c:1:0"), node=pl.lit("n1"), gpu=0, t=at
    )
    given = [name for name in frame.columns if name in JOB_MINUTES.schema]
    rest = [
        pl.lit(None, dtype=dtype).alias(name)
        for name, dtype in JOB_MINUTES.schema.items()
        if name not in given
    ]
    return frame.with_columns(rest).select(
        pl.col(name).cast(dtype) for name, dtype in JOB_MINUTES.schema.items()
    )


def read(lake: Lake) -> list[int]:
    """Return the minutes that a reader sees."""
    return sorted(lake.scan(JOB_MINUTES).select("minute").collect().to_series().to_list())


def test_staged_rows_are_seen_when_they_land_and_once(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path))
    staged = [
        lake.stage(JOB_MINUTES, minutes(0, 1), day=DAY),
        lake.stage(JOB_MINUTES, minutes(2), day=DAY),
    ]
    assert read(lake) == []
    assert lake.commit(JOB_MINUTES, staged, app_id="a", mark=1)
    assert read(lake) == [0, 1, 2]
    again = [lake.stage(JOB_MINUTES, minutes(0, 1, 2), day=DAY)]
    assert not lake.commit(JOB_MINUTES, again, app_id="a", mark=1)
    assert read(lake) == [0, 1, 2]
    assert lake.commit(
        JOB_MINUTES, [lake.stage(JOB_MINUTES, minutes(3), day=DAY)], app_id="a", mark=2
    )
    assert read(lake) == [0, 1, 2, 3]
    assert lake.mark(JOB_MINUTES, "a") == 2


def test_what_is_discarded_is_gone_and_what_landed_stays(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path))
    landed, dropped = (lake.stage(JOB_MINUTES, minutes(number), day=DAY) for number in (0, 1))
    lake.commit(JOB_MINUTES, [landed], app_id="a", mark=1)
    lake.discard(JOB_MINUTES, [landed, dropped])
    assert read(lake) == [0]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_a_file_that_was_vacuumed_meanwhile_does_not_land(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path))
    staged = [lake.stage(JOB_MINUTES, minutes(number), day=DAY) for number in (0, 1)]
    table = lake.delta(JOB_MINUTES)
    assert table is not None
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    with pytest.raises(LakeError, match="removed before they were committed"):
        lake.commit(JOB_MINUTES, staged, app_id="a", mark=1)
    assert read(lake) == []
    assert lake.mark(JOB_MINUTES, "a") is None
