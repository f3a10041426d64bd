"""A lake that an earlier version analyzed: everything reads it, and the next analysis brings it
along.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import polars as pl
import pytest
from exported_lake import add_job, in_lake

import tachograph
from in_process import run_here
from madelake import summarized
from tachograph.catalog.codes import REPORTED
from tachograph.catalog.errors import TachographError
from tachograph.catalog.tables import (
    ANALYSES,
    COMPUTED,
    FINDINGS,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_NODE_MINUTES,
    JOB_SUMMARIES,
    JUDGED,
    LakeTable,
)
from tachograph.collect.status import STATUS_FILE, CollectStatus, read_status, write_status
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries, read_verdicts

LATER_FINDINGS = ("kind", "verdict", "begin", "end", "checks", "needs", "covered_by")
LATER_MINUTES = (
    "mem_copy_util",
    *(f"{link}_{way}_bytes_per_s" for link in ("pcie", "nvlink") for way in ("tx", "rx")),
)


def without(table: LakeTable, later: Collection[str]) -> LakeTable:
    """A table as it was before it had these columns."""
    return replace(
        table,
        columns=tuple(column for column in table.columns if column.name not in later),
        apart=None,
    )


EARLIER = (
    without(FINDINGS, LATER_FINDINGS), without(JOB_GPUS, JUDGED), without(JOB_SUMMARIES, JUDGED),
    without(JOB_MINUTES, LATER_MINUTES),
)  # fmt: skip


@pytest.fixture
def today(exported: Lake, tmp_path: Path) -> Lake:
    """A copy of the lake that this version analyzed."""
    return Lake.open(str(shutil.copytree(exported.location, tmp_path / "today")))


@pytest.fixture
def lake(exported: Lake, tmp_path: Path) -> Lake:
    """Tables as an earlier version left them; of findings it knew advice that holds, and no
    more.
    """
    folder = Path(shutil.copytree(exported.location, tmp_path / "lake"))
    for table in (*EARLIER, ANALYSES, JOB_NODE_MINUTES):
        shutil.rmtree(folder / table.name, ignore_errors=True)
    lake = Lake.open(str(folder))
    for table in (*EARLIER, ANALYSES):
        rows = exported.scan(COMPUTED.get(table.name, ANALYSES)).collect()
        number = rows.get_column("seq")[0]
        if table.name == FINDINGS.name:
            rows = rows.filter((pl.col("kind") == "check") & REPORTED)
        if table is ANALYSES:
            rows = rows.with_columns(method=pl.lit("earlier"))
        frame = rows.select(name for name in table.schema if name != "seq")
        lake.append(table, frame, app_id=f"analysis:{number}", mark=1, seq=number)
    delta = lake.delta(FINDINGS)
    assert delta is not None
    assert not {field.name for field in delta.schema().fields} & set(LATER_FINDINGS)
    return lake


def printed(lake: Lake, *command: object) -> tuple[str, str]:
    """What a command writes to stdout and stderr; it must end well."""
    done = run_here(
        [*map(str, command), "--lake", lake.location], Path(lake.location).parent, os.environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_commands_read_it(lake: Lake, tmp_path: Path) -> None:
    jobs = json.loads(printed(lake, "jobs", "--json")[0])
    assert len(jobs) == 4
    some = next(job for job in jobs if job["findings"])
    assert some["score_gpu"] is None
    found_again = json.loads(printed(lake, "jobs", "--finding", some["findings"][0], "--json")[0])
    assert some["job_id"] in [job["job_id"] for job in found_again]
    assert "What was looked for" not in printed(lake, "job", some["job_id"])[0]
    values = json.loads(printed(lake, "job", some["job_id"], "--json")[0])
    assert {(one["kind"], one["verdict"]) for one in values["verdicts"]} == {("check", "yes")}
    for words in (
        ("job", some["job_id"], "--html", tmp_path / "job.html"),
        *(("export", form, "--to", tmp_path) for form in ("csv", "parquet", "jsonl")),
        ("export", "openmetrics", "--to", tmp_path / "x.prom", "--jobs", 9),
        *(
            ("lake",),
            ("waste",),
            ("lab", "classify", "--all"),
            ("lab", "rules", "run"),
            ("share", "colocate", "--runs", "1"),
        ),
    ):
        assert "".join(printed(lake, *words))
    exported = pl.read_parquet(tmp_path / "findings.parquet")
    assert exported.select(pl.col("kind", "verdict", "checks").unique()).rows() == [
        ("check", "yes", "[]")
    ]
    assert 'verdict="yes"' in (tmp_path / "x.prom").read_text()


def test_kinds_and_verdicts_of_an_earlier_version_are_those_of_today(today: Lake) -> None:
    written = today.scan(FINDINGS).collect()
    kinds, before = ("advice", "class", "rule", "score"), ("yes", "insufficient", "no", "unknown")
    codes = [f"code_{kind}" for kind in kinds]
    earlier = written.head(4).with_columns(
        code=pl.Series(codes), kind=pl.Series(kinds), verdict=pl.Series(before)
    )
    today.append(
        FINDINGS, earlier.drop("seq"), app_id="analysis:9", mark=9, seq=written.get_column("seq")[0]
    )
    read = (
        read_verdicts(today, read_summaries(today)).filter(pl.col("code").is_in(codes)).sort("code")
    )
    assert read.select("kind", "verdict").rows() == [
        ("check", "yes"), ("check", "unknown"), ("check", "no"), ("score", "unknown"),
    ]  # fmt: skip


def test_a_code_of_today_is_known_and_says_why_nobody_has_it(lake: Lake) -> None:
    err = printed(lake, "jobs", "--finding", "job_hang", "--verdict", "unknown")
    why = (
        "No matching jobs; the newest of 4 jobs began 2026-04-01.\n"
        "No job meets: finding job_hang\n"
        "Leave it out or widen it; `tachograph jobs` lists all jobs.\n"
    )
    assert err == (
        why,
        "findings of another version or configuration; run `tachograph analyze` to update\n",
    )
    assert printed(lake, "jobs", "--finding", "busy_waiting")[1] == err[1]


def test_python_reads_it(lake: Lake) -> None:
    opened = tachograph.open(lake.location)
    every = opened.findings(verdict=None)
    assert opened.findings().equals(every.filter(pl.col("covered_by").is_null()))
    assert opened.findings(verdict="unknown").is_empty()
    assert "More: tachograph job 1" in repr(opened.job("1"))


def test_the_next_analysis_brings_it_along(lake: Lake) -> None:
    before = in_lake(lake)
    report, _ = summarized(lake)
    assert report.jobs == len(before["job_summaries"])
    after = in_lake(lake)
    assert all(row["verdict"] and row["kind"] and row["checks"] for row in after["findings"])
    assert {row["kind"] for row in after["findings"]} > {"check"}
    for row in after["job_summaries"]:
        assert (row["health"] is not None) is (row["job_id"] != "4"), row["job_id"]
    assert summarized(lake)[0].jobs == 0  # nothing is left to do


def test_new_samples_alone_bring_all_of_it_along(lake: Lake) -> None:
    """Not only the jobs that are new: rows of two versions side by side would be compared with
    each other.
    """
    assert add_job(lake, "9").jobs == 5


def test_python_chooses_by_verdict(today: Lake) -> None:
    opened = tachograph.open(today.location)
    every = opened.findings(verdict=None)
    counted = {
        answer: every.filter(pl.col("verdict") == answer).height
        for answer in ("yes", "no", "unknown")
    }
    holds = every.filter(pl.col("verdict") == "yes")
    facts = holds.filter((pl.col("severity") == "fact") | pl.col("covered_by").is_not_null()).height
    assert min(facts, *counted.values()) > 0
    assert opened.findings().height == every.filter(REPORTED).height == counted["yes"] - facts
    assert opened.findings(verdict="no").height == counted["no"]
    assert opened.findings("4", verdict="unknown").select(pl.col("job_id").unique()).rows() == [
        ("4",)
    ]
    undecided = opened.jobs(finding="score_gpu", verdict="unknown")
    of_score = every.filter((pl.col("code") == "score_gpu") & (pl.col("verdict") == "unknown"))
    assert sorted(undecided["job_key"]) == sorted(of_score["job_key"]) != []
    with pytest.raises(TachographError, match="no verdict 'maybe'"):
        opened.findings(verdict="maybe")  # type: ignore[arg-type]


def test_the_status_file_of_an_earlier_collector_is_read(tmp_path: Path) -> None:
    """Keys of that version that are named otherwise now are left out."""
    now = datetime(2026, 3, 1, tzinfo=UTC)
    write_status(tmp_path, CollectStatus("0", "lake", "node", 7, started=now, updated=now))
    written = msgspec.json.decode((tmp_path / STATUS_FILE).read_bytes())
    written["sources"] = {"one": {"name": "one", "every_s": 60.0, "polls": 3, "land_s": 1.5}}
    written["steps"] = {"analyze": {"runs": 1, "said": "3 jobs summarized"}}
    (tmp_path / STATUS_FILE).write_bytes(msgspec.json.encode(written))
    status = read_status(tmp_path)
    assert status is not None
    assert (status.sources["one"].polls, status.steps["analyze"].runs) == (3, 1)
