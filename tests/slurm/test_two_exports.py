"""Two exports of the same accounting in one lake: `sacct -X` beside the one with steps."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from slurm_reading import MADE

from madelake import NOW, fill, job, summarized, utc
from tachograph.catalog.config import Configuration
from tachograph.lake.delta import Lake
from tachograph.lake.ingest import ingest
from tachograph.lake.query import read_summaries
from tachograph.sources import sacct

LATER = NOW + timedelta(days=60)  # the recordings are of November
WITHOUT_STEPS, TEXT, JSON = "sacct.X.txt", "sacct.parsable2.txt", "sacct.json"


def accounted(lake: Lake, file: Path) -> None:
    options = argparse.Namespace(files=[str(file)], trusted=True)
    ingest(lake, sacct.read(options, configuration=Configuration(), now=LATER), now=LATER)


def runs(lake: Lake) -> Mapping[str, str]:
    """{displayed id: key of the run}, each displayed id once."""
    rows = read_summaries(lake)
    ids = rows["display_id"].fill_null(rows["job_id"])
    assert ids.is_unique().all()
    return dict(zip(ids, rows["job_key"], strict=True))


@pytest.mark.parametrize(
    ("version", "full", "analyzed_between", "order"),
    [
        ("22.05.8", TEXT, False, 1),
        ("24.11.5", JSON, True, -1),
        ("26.05.5", TEXT, True, 1),
    ],
)
def test_an_export_without_steps_beside_a_full_one_adds_no_job(
    tmp_path: Path, version: str, full: str, analyzed_between: bool, order: int
) -> None:
    alone, both = (Lake.create(str(tmp_path / name)) for name in ("alone", "both"))
    accounted(alone, MADE / version / full)
    summarized(alone, now=LATER)
    first, second = (full, WITHOUT_STEPS)[::order]
    accounted(both, MADE / version / first)
    if analyzed_between:
        summarized(both, now=LATER)
    accounted(both, MADE / version / second)
    summarized(both, now=LATER)
    assert runs(both) == runs(alone)
    assert {"3_0", "3_5", "11+1"} <= set(runs(both))


def test_an_id_that_was_used_again_is_another_run(tmp_path: Path) -> None:
    """Both have the displayed id 3_0; the record without a raw id has the submit time of one."""
    lake = Lake.create(str(tmp_path / "lake"))
    first, later = utc(1, 10), utc(20, 10)
    hour = timedelta(hours=1)
    rows = [
        job("4", first, first + hour, display_id="3_0"),
        job("70", later, later + hour, display_id="3_0"),
        job("3_0", later, later + hour, name="later"),
        job("3_1", later, later + hour),
    ]
    fill(lake, {"jobs": rows})
    _, jobs = summarized(lake)
    assert sorted(jobs) == ["3_1", "4", "70"]
    assert (jobs["4"]["name"], jobs["70"]["name"]) == (None, "later")
    assert read_summaries(lake).filter(pl.col("job_id") == "70").height == 1
