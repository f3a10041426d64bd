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
from slurm_reading import MADE, VERSIONS, reading_of, told

from tachograph.catalog.tables import ALLOCATIONS, JOBS
from tachograph.lake.conform import conform
from tachograph.sources.slurm.exports import frame_of
from tachograph.sources.slurm.fields import count_nodes, expand_nodes
from tachograph.sources.slurm.records import SlurmRow


def by_id(rows: list[SlurmRow]) -> dict[str, SlurmRow]:
    return {str(row["job_id"]): row for row in rows}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["sacct.parsable2.txt", "sacct.json"])
def test_every_job_of_a_version_is_read(version: str, name: str) -> None:
    reading = reading_of(MADE / version / name)
    assert len(reading.jobs) == 18
    assert (len(reading.steps), reading.rows_read) == (41, 59)
    jobs = by_id(reading.jobs)
    assert Counter(job["state"] for job in reading.jobs) == {
        "COMPLETED": 12,
        "FAILED": 3,
        "CANCELLED": 2,
        "TIMEOUT": 1,
    }
    assert (jobs["2"]["nodes"], jobs["2"]["node_list"], jobs["2"]["cpus"]) == (2, "gpu[03-04]", 16)
    assert (jobs["2"]["gpus"], jobs["2"]["gpu_type"]) == (8, "h100")
    assert (jobs["2"]["qos"], jobs["2"]["timelimit_s"]) == ("high", 600.0)
    assert (jobs["3"]["display_id"], jobs["3"]["array_job_id"], jobs["3"]["array_task_id"]) == (
        "3_5",
        "3",
        5,
    )
    assert (jobs["12"]["display_id"], jobs["12"]["het_job_id"], jobs["12"]["het_offset"]) == (
        "11+1",
        "11",
        1,
    )
    assert (jobs["10"]["gpus"], jobs["11"]["gpus"], jobs["12"]["gpus"]) == (0, 0, 1)
    assert (jobs["8"]["start"], jobs["8"]["node_list"], jobs["8"]["gpus"]) == (None, None, None)


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


def test_the_requeued_job_of_a_site(recorded: Path) -> None:
    (job,) = reading_of(recorded / "sacct_json_sites" / "slurm_21_8_8.json").jobs
    assert told(job) == {
        "cluster": "cedar",
        "job_id": "55978384",
        "name": "submitit",
        "user": "purah",
        "account": "rrg-bengioy-ad_gpu",
        "partition": "gpubackfill",
        "qos": "normal",
        "state": "REQUEUED",
        "submit": datetime.fromtimestamp(1673275023, UTC),
        "eligible": datetime.fromtimestamp(1673275023, UTC),
        "start": datetime.fromtimestamp(1673275023, UTC),
        "end": datetime.fromtimestamp(1673369386, UTC),
        "elapsed_s": 86301.0,  # as accounted, less than end - start
        "timelimit_s": 1440 * 60.0,
        "nodes": 1,
        "node_list": "cdr896",
        "gpus": 1,
        "cpus": 4,
        "mem_requested_mib": 40960.0,
        "constraints": "[p100|p100l|v100l]",
        "time_precision_s": 0.0,
    }


def test_the_array_task_of_a_site(recorded: Path) -> None:
    reading = reading_of(recorded / "sacct_json_sites" / "slurm_22_5_9.json")
    (job,) = reading.jobs
    assert (job["display_id"], job["gpus"], job["nodes"], job["exit_code"]) == (
        "20247445_100",
        16,
        4,
        None,
    )
    assert [row["node"] for row in reading.allocations] == [
        "ng30103",
        "ng30203",
        "ng30706",
        "ng30707",
    ]


@pytest.mark.parametrize("name", ["slurm_23_2_6.json", "slurm_23_11_5.json"])
def test_the_running_job_of_a_site(recorded: Path, name: str) -> None:
    (job,) = reading_of(recorded / "sacct_json_sites" / name).jobs
    assert (job["state"], job["end"], job["exit_code"], job["gpus"], job["timelimit_s"]) == (
        "RUNNING",
        None,
        None,
        2,
        432000.0,
    )
    assert job["display_id"] is None
    assert job["submit_line"] is None


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


def test_names_that_are_no_ascii(recorded: Path) -> None:
    path = recorded / "sacct_xdmod" / "mortorq-utf8.log"
    (job,) = reading_of(path).jobs
    name = path.read_text().rstrip("\n").rpartition("|")[2]
    assert name.endswith(" Straße")
    assert (job["name"], job["user"], job["elapsed_s"], job["gpus"]) == (
        name,
        "façade",
        281813.0,
        None,
    )
    (job,) = reading_of(recorded / "sacct_xdmod" / "robertson-filter-test.log").jobs
    assert (job["nodes"], job["state"], job["timelimit_s"]) == (9, "COMPLETED", 3 * 86400.0)


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
        # a database may still call a job pending that has begun: the next answer has it
        assert bool(reading.allocations) == any(
            "PENDING" not in job["state"]["current"] for job in answered
        )
