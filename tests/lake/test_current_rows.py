"""Rows that count of a table of jobs: what a condition selects, what is read for it, and how
files are laid out.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobframes import START, frame, summary
from tachograph.api.job_report import read_job
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import ALL_TABLES, FINDINGS, JOB_GPUS, JOB_SUMMARIES, JOBS, LakeTable
from tachograph.lake.compact import compact
from tachograph.lake.data_files import DataFile
from tachograph.lake.delta import Lake
from tachograph.lake.filters import FirstJobs, JobFilter, parse_condition
from tachograph.lake.query import read_findings, read_summaries, select_jobs

# Of `tachograph jobs`, which takes 180: all rows of the lake below, with all columns, take 330
# more.
MOST_MIB = 300


def summaries(numbers: Sequence[int], **given: object) -> pl.DataFrame:
    """Return rows of job_summaries without `seq`, of a job an hour."""
    rows = [
        summary(
            job_key=f"c:{number:06d}:1",
            job_id=f"{number:06d}",
            display_id=f"{number:06d}",
            start=START + timedelta(hours=number),
            as_of=START + timedelta(hours=number + 2),
            user=f"u{number % 3}",
            **given,
        )
        for number in numbers
    ]
    return frame(JOB_SUMMARIES, rows).drop("seq")


def findings(numbers: Sequence[int]) -> pl.DataFrame:
    """Return what was found of jobs: one finding holds, four do not."""
    rows = [
        {
            "job_key": f"c:{number:06d}:1",
            "job_id": f"{number:06d}",
            "kind": "check",
            "severity": "hint",
            "code": code,
            "verdict": verdict,
            "title": code,
            "sentence": "...",
            "evidence": "{}",
            "checks": "[]",
            "needs": [],
        }
        for number in numbers
        for code, verdict in (
            ("job_hang", "yes"),
            *((code, "no") for code in ("idle_gpus", "cold_start", "stalls", "x")),
        )
    ]
    return frame(FINDINGS, rows).drop("seq")


def recorded(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, DataFile]]:
    """Return a list that gets (table, file) of all files that are read from now on."""
    read: list[tuple[str, DataFile]] = []
    whole = Lake.read_files

    def counted(
        self: Lake,
        table: LakeTable,
        files: Sequence[DataFile],
        columns: Sequence[str] | None = None,
    ) -> pl.LazyFrame:
        read.extend((table.name, file) for file in files)
        return whole(self, table, files, columns)

    monkeypatch.setattr(Lake, "read_files", counted)
    return read


@settings(max_examples=settings().max_examples // 5)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 9), st.floats(0, 1)), min_size=1, max_size=6), max_size=5
    )
)
def test_a_condition_sees_the_last_row_of_each_job(
    tmp_path_factory: pytest.TempPathFactory, written: list[list[tuple[int, float]]]
) -> None:
    lake = Lake.create(str(tmp_path_factory.mktemp("lake")))
    last: dict[int, float] = {}
    for seq, rows in enumerate(written, 1):
        of_append = dict(rows)
        last |= of_append
        values = pl.Series("gpu_util_mean", list(of_append.values()), dtype=pl.Float64)
        lake.append(
            JOB_SUMMARIES,
            summaries(list(of_append)).with_columns(values),
            app_id=f"a{seq}",
            seq=seq,
        )
    if not written:
        return
    found = read_summaries(lake, ("job_id", "gpu_util_mean"), where=pl.col("gpu_util_mean") > 0.5)
    assert found.rows() == [
        (f"{number:06d}", value) for number, value in sorted(last.items()) if value > 0.5
    ]
    chosen = select_jobs(
        lake, JobFilter(where=(parse_condition("gpu_util_mean>0.5"),)), first=FirstJobs("-start", 2)
    )
    expected = sorted(number for number, value in last.items() if value > 0.5)
    assert chosen.matching == len(expected)
    assert chosen.jobs.get_column("job_id").to_list() == [
        f"{number:06d}" for number in expected[-2:]
    ]


def test_a_condition_on_rows_that_complete_each_other_is_refused(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    with pytest.raises(ValueError, match="do not replace each other"):
        lake.latest(JOBS, where=pl.col("user") == "u")


def test_of_one_job_one_file_of_each_table_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    for part in range(12):
        numbers = range(10 * part, 10 * part + 10)
        for table, rows in ((JOB_SUMMARIES, summaries(numbers)), (FINDINGS, findings(numbers))):
            lake.append(table, rows, app_id=f"p{part}", seq=part + 1)
        held = [
            {"job_key": f"c:{n:06d}:1", "job_id": f"{n:06d}", "node": "n1", "gpu": 0}
            for n in numbers
        ]
        lake.append(JOB_GPUS, frame(JOB_GPUS, held).drop("seq"), app_id=f"p{part}", seq=part + 1)
    read = recorded(lake, monkeypatch)
    report = read_job(lake, "c:000057:1", now=START, configuration=Configuration())
    assert report.summary["job_id"] == "000057"
    files = {
        name: [file.keys for table, file in read if table == name]
        for name in ("findings", "job_gpus")
    }
    ours = ("c:000050:1", "c:000059:1")
    assert files == {"findings": [ours, ours], "job_gpus": [ours]}  # what holds, and the rest
    assert sum(file.rows for table, file in read if table == "findings") == 50


def test_what_holds_lies_apart_from_what_does_not(tmp_path: Path) -> None:
    lake = Lake.create(str(tmp_path / "lake"))
    for part in range(12):
        lake.append(FINDINGS, findings(range(part, part + 1)), app_id=f"p{part}", seq=1)
    lake.append(JOB_SUMMARIES, summaries(range(12)), app_id="all", seq=1)
    before = read_findings(lake, read_summaries(lake))
    for _ in range(2):
        lying = [
            lake.read_files(FINDINGS, [file], ["verdict"]).collect().to_series()
            for file in lake.files(FINDINGS)
        ]
        assert sorted(tuple(verdicts.unique()) for verdicts in lying) == sorted(
            [("no",), ("yes",)] * (len(lying) // 2)
        )
        assert read_findings(lake, read_summaries(lake)).equals(before)
        compact(lake, ALL_TABLES)
    assert (before.height, len(lake.files(FINDINGS))) == (12, 2)


_MEASURED = """
import os, subprocess, sys
process = subprocess.Popen([sys.executable, "-m", "tachograph", *sys.argv[1:]], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss // 1024)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [["jobs", "--limit", "5"], ["jobs", "--worst", "--limit", "5"], ["job", "050007"]]
)
def test_memory_is_that_of_what_is_shown(many: Path, command: list[str]) -> None:
    environment = os.environ | {"TACHOGRAPH_LAKE": str(many)}
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *command],
        env=environment,
        cwd=many.parent,
        capture_output=True,
        text=True,
    )
    code, peak_mib = map(int, done.stdout.split())
    assert code == 0, done.stderr
    assert peak_mib < MOST_MIB


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of 90,000 jobs of which every number is known."""
    folder = tmp_path_factory.mktemp("many")
    lake = Lake.create(str(folder / "lake"))
    numbers = [name for name, dtype in JOB_SUMMARIES.schema.items() if dtype == pl.Float64]
    first = summaries([0], attribution="explicit", samples=10)
    measured = [
        (pl.int_range(pl.len()) % (7 + place) / (7 + place)).alias(name)
        for place, name in enumerate(numbers)
    ]
    for part in range(3):
        number = pl.int_range(pl.len()) + part * 30_000
        ids = number.cast(pl.String).str.zfill(6)
        rows = first[[0] * 30_000].with_columns(
            *measured,
            pl.concat_str(pl.lit("c:"), ids, pl.lit(":1")).alias("job_key"),
            *(ids.alias(name) for name in ("job_id", "display_id")),
            *(pl.col(name) + pl.duration(hours=number) for name in ("start", "as_of")),
        )
        lake.append(JOB_SUMMARIES, rows, app_id=f"p{part}", seq=part + 1)
    lake.append(FINDINGS, findings(range(5)), app_id="some", seq=1)
    return folder / "lake"
