"""Recorded accounting: three Slurm versions of this project's making, four of sites, and a
cluster's ten days.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import pytest
from slurm_reading import MADE, VERSIONS, reading_of
from syrupy.assertion import SnapshotAssertion

from row_lines import reading_lines
from tachograph.catalog.tables import ALLOCATIONS, JOBS
from tachograph.lake.conform import conform
from tachograph.sources.slurm.exports import frame_of
from tachograph.sources.slurm.fields import count_nodes, expand_nodes
from tachograph.sources.slurm.records import SlurmRow

SITES = ("21_8_8", "22_5_9", "23_2_6", "23_11_5")


def by_id(rows: list[SlurmRow]) -> dict[str, SlurmRow]:
    return {str(row["job_id"]): row for row in rows}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_job_of_a_version_is_read(version: str, snapshot: SnapshotAssertion) -> None:
    assert reading_lines(reading_of(MADE / version / "sacct.parsable2.txt")) == snapshot


@pytest.mark.parametrize(
    "name",
    [
        *(f"sacct_json_sites/slurm_{version}.json" for version in SITES),
        "sacct_xdmod/mortorq-utf8.log",
        "sacct_xdmod/robertson-filter-test.log",
    ],
)
def test_the_accounting_of_a_site(recorded: Path, name: str, snapshot: SnapshotAssertion) -> None:
    assert reading_lines(reading_of(recorded / name)) == snapshot


@pytest.mark.parametrize("version", VERSIONS)
def test_text_and_json_of_one_slurm_tell_the_same(version: str) -> None:
    text, document = (
        reading_of(MADE / version / name) for name in ("sacct.parsable2.txt", "sacct.json")
    )
    left, right = by_id(text.jobs), by_id(document.jobs)
    assert set(left) == set(right)
    # CPU time that was polled, of killed steps, is written in whole seconds in text: see
    # test_host_usage
    not_told = {"cpu_time_s", *(("submit_line",) if version == "22.05.8" else ())}
    for job_id, job in left.items():
        other = right[job_id]
        # 22.05 writes exit status SUCCESS in JSON even for jobs that failed: null there, never
        # wrong
        silent = not_told | (
            {"exit_code"} if version == "22.05.8" and job["state"] != "COMPLETED" else set()
        )
        assert {name: value for name, value in job.items() if name not in silent} == {
            name: value for name, value in other.items() if name not in silent
        }
        assert [other[name] for name in silent - {"cpu_time_s"}] == [None] * (len(silent) - 1)
    assert sorted(map(str, text.allocations)) == sorted(map(str, document.allocations))
    never = {"submit_line", "exit_code", "exit_signal"} if version == "22.05.8" else {"submit_line"}
    both = [
        sorted(
            str({name: value for name, value in step.items() if name not in never})
            for step in reading.steps
        )
        for reading in (text, document)
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_short_list_tells_the_same_but_for_raw_ids(version: str) -> None:
    whole, short = (
        reading_of(MADE / version / name) for name in ("sacct.parsable2.txt", "sacct.X.txt")
    )
    shared = (
        "name",
        "user",
        "account",
        "state",
        "exit_code",
        "start",
        "end",
        "gpus",
        "gpu_type",
        "timelimit_s",
        "elapsed_s",
    )
    left = {
        str(job["display_id"] or job["job_id"]): [job[name] for name in shared]
        for job in whole.jobs
    }
    right = {
        str(job["display_id"] or job["job_id"]): [job[name] for name in shared]
        for job in short.jobs
    }
    assert left == right
    assert [(reject.reason, reject.count) for reject in short.rejects()] == [("no_raw_job_id", 8)]


def test_ten_days_of_a_cluster(recorded: Path, now: datetime) -> None:
    path = recorded / "sacct_xdmod" / "phillips.log"
    reading = reading_of(path)
    lines = [line.split("|") for line in path.read_text().splitlines()]
    assert len(reading.jobs) == len(lines) == 4285
    never = [job for job in reading.jobs if job["node_list"] is None]
    assert len(never) == sum(line[24] == "None assigned" for line in lines)
    for job in never:
        assert (job["start"], job["elapsed_s"], job["nodes"], job["gpus"]) == (
            None,
            0.0,
            None,
            None,
        )
    for job, line in zip(reading.jobs, lines, strict=True):
        assert isinstance(job["end"], datetime)
        assert job["end"] == datetime.fromisoformat(line[13]).replace(tzinfo=UTC)
        if job["node_list"] is not None:
            assert isinstance(job["start"], datetime)
            assert (job["end"] - job["start"]).total_seconds() == job["elapsed_s"]
            assert (
                job["nodes"]
                == count_nodes(str(job["node_list"]))
                == len(expand_nodes(str(job["node_list"])))
            )
    ran = [line[22] for line in lines if line[24] != "None assigned"]
    assert [job["gpus"] for job in reading.jobs if job["gpus"]] == [
        int(found[1]) for line in ran if (found := re.search(r"gres/gpu=(\d+)", line))
    ]
    assert Counter(job["state"] for job in reading.jobs) == Counter(
        line[16].split()[0] for line in lines
    )
    for rows, table in ((reading.jobs, JOBS), (reading.allocations, ALLOCATIONS)):
        assert conform(frame_of(rows, table), table, now=now).rejects == ()


def test_answers_of_slurmrestd(recorded: Path) -> None:
    files = sorted((recorded / "slurmrestd").glob("*/slurmdb-*.json"))
    assert len(files) == 22
    for path in files:
        answered = json.loads(path.read_text())["jobs"]
        reading = reading_of(path)
        assert [job["job_id"] for job in reading.jobs] == [str(job["job_id"]) for job in answered]
        for job in reading.jobs:
            assert job["user"]
            assert job["cluster"] == "hpc"
            # this site does not account for GPUs: how many a job held is not known, and not zero
            assert job["gpus"] is None
            # without a gatherer all times are 0, and no memory is known
            assert (job["cpu_time_s"], job["max_rss_mib"]) == (None, None)
        # a database may still call a job pending that has begun: the next answer has it
        assert bool(reading.allocations) == any(
            "PENDING" not in job["state"]["current"] for job in answered
        )
