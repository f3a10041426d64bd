"""NERSC's answers and exports."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from slurm_reading import ReadText, reading_of, told

from tachograph.catalog.errors import InputError
from tachograph.sources.slurm.records import SlurmCluster

PACIFIC = "America/Los_Angeles"


def test_an_answer_of_the_superfacility_api(recorded: Path) -> None:
    waiting, queued = reading_of(
        recorded / "nersc_perlmutter" / "job-data.json", time_zone=PACIFIC
    ).jobs
    assert told(waiting) == {
        "cluster": "perlmutter",
        "job_id": "51613962",
        "name": "ex_gpu_script.sh",
        "user": "user01",
        "account": "proj01_g",
        "partition": "gpu_ss11",
        "qos": "gpu_regular",
        "state": "PENDING",
        "submit": datetime(2026, 4, 15, 19, 51, 14, tzinfo=UTC),  # 12:51:14 local, 7 h behind
        "eligible": datetime(2026, 4, 15, 19, 51, 14, tzinfo=UTC),
        "elapsed_s": 0.0,
        "timelimit_s": 3600.0,
        "mem_requested_mib": 459804.0,  # of both nodes
        "constraints": "gpu&a100",
        "time_precision_s": 0.0,
    }
    assert (queued["job_id"], queued["state"], queued["qos"], queued["start"]) == (
        "51906088",
        "PENDING",
        "gpu_shared",
        None,
    )
    assert queued["submit"] == datetime(2026, 4, 22, 23, 15, 18, tzinfo=UTC)


def test_an_export_of_iris(recorded: Path) -> None:
    jobs = reading_of(
        recorded / "nersc_perlmutter" / "job-data-iris-export.json", time_zone=PACIFIC
    ).jobs
    assert len(jobs) == 8
    assert told(jobs[0]) == {
        "job_id": "51566986",
        "name": "ex_gpu_script.sh",
        "account": "proj01",
        "qos": "gpu_regular",
        "state": "COMPLETED",
        "submit": datetime(2026, 4, 14, 21, 43, tzinfo=UTC),
        "start": datetime(2026, 4, 14, 21, 52, tzinfo=UTC),
        "end": datetime(2026, 4, 14, 21, 54, tzinfo=UTC),  # 14:53 local, and the minute after
        "elapsed_s": 15.0,
        "nodes": 4,
        "cpus": 512,
        "time_precision_s": 60.0,
    }
    for job in jobs:
        assert isinstance(job["start"], datetime)
        assert isinstance(job["end"], datetime)
        assert (job["end"] - job["start"]).total_seconds() >= float(str(job["elapsed_s"]))


def test_an_export_of_iris_without_run_times(recorded: Path) -> None:
    jobs = reading_of(recorded / "nersc_perlmutter" / "user-jobs.json", time_zone=PACIFIC).jobs
    assert [job["job_id"] for job in jobs] == [
        "46597792",
        "46598165",
        "46598851",
        "46599456",
        "46600222",
        "46600581",
    ]
    assert told(jobs[3]) == {
        "cluster": "perlmutter",
        "job_id": "46599456",
        "name": "job_ss22",
        "user": "user02",
        "account": "m4659",
        "partition": "urgent_gpu_ss11",
        "qos": "gpu_interactive",
        "start": datetime(2025, 12, 17, 1, 30, tzinfo=UTC),  # 17:30 local, 8 h behind in winter
        "end": datetime(2025, 12, 17, 1, 55, tzinfo=UTC),
        "time_precision_s": 60.0,
    }


def test_a_running_job_of_squeue_has_no_end_and_holds_its_gpus(read_text: ReadText) -> None:
    record = {
        "jobid": "5",
        "array_job_id": "4",
        "array_task_id": "1",
        "name": "train",
        "state": "RUNNING",
        "start_time": "2026-04-22T16:15:18",
        "end_time": "2026-04-22T18:15:18",
        "submit_time": "2026-04-22T16:00:00",
        "time": "12:03",
        "time_limit": "2:00:00",
        "nodes": "2",
        "nodelist": "nid[001-002]",
        "tres_per_node": "gres/gpu:a100:4",
        "features": "gpu&hbm80g",
        "over_subscribe": "OK",
    }
    reading = read_text(json.dumps([{"status": "OK", "output": [record], "error": None}]))
    (job,) = reading.jobs
    assert (job["job_id"], job["display_id"], job["array_job_id"], job["array_task_id"]) == (
        "5",
        "4_1",
        "4",
        1,
    )
    assert (job["state"], job["end"], job["elapsed_s"], job["timelimit_s"]) == (
        "RUNNING",
        None,
        723.0,
        7200.0,
    )
    assert (job["gpus"], job["gpu_type"], job["hbm_request"], job["exclusive"]) == (
        8,
        "a100",
        "80g",
        None,
    )
    assert [row["node"] for row in reading.allocations] == ["nid001", "nid002"]


def test_rows_without_their_envelope_are_read(read_text: ReadText) -> None:
    row = {"jobid": "7.batch", "jobidraw": "7.batch", "start": "Unknown"}
    reading = read_text(
        json.dumps([{**row, "jobid": "7", "jobidraw": "7", "nodelist": "None assigned"}, row])
    )
    assert ([job["job_id"] for job in reading.jobs], [step["step"] for step in reading.steps]) == (
        ["7"],
        ["batch"],
    )


def test_an_answer_that_is_an_error_is_told(read_text: ReadText) -> None:
    with pytest.raises(InputError, match="token expired"):
        read_text(json.dumps({"status": "ERROR", "output": [], "error": "token expired"}))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"Job ID": "x"}, "bad_job_id"),
        ({"Start Time": "2026-13-01 00:00"}, "bad_time"),
        ({"End Time": "2026-04-14 14:00"}, "end_before_start"),
        ({"Elapsed secs": "long"}, "bad_duration"),
        ({"Elapsed secs": -1}, "bad_duration"),
        ({"Elapsed secs": 1e10}, "bad_duration"),
        ({"No. of nodes Allocated": 1.5}, "bad_count"),
        ({"State": "3:0"}, "bad_state"),
    ],
)
def test_a_row_of_iris_that_cannot_be_read_is_counted(
    read_text: ReadText, change: dict[str, object], reason: str
) -> None:
    row = {"Job ID": 5, "Start Time": "2026-04-14 14:52", "End Time": "2026-04-14 14:53"}
    reading = read_text(json.dumps([row, {**row, **change}]))
    assert len(reading.jobs) == 1
    assert [(place, why) for place, why, _ in reading.rejected] == [(2, reason)]


def test_ids_that_became_fractions_on_their_way_are_ids(read_text: ReadText) -> None:
    row = {
        "Job ID": 51566986.0,
        "Start Time": "2026-04-14 14:52",
        "End Time": None,
        "CPUs used": 32.0,
    }
    (job,) = read_text(json.dumps([row])).jobs
    assert (job["job_id"], job["end"], job["cpus"]) == ("51566986", None, 32)


def test_the_run_time_tells_which_of_two_hours_iris_means(read_text: ReadText) -> None:
    row = {
        "Job ID": 5,
        "Start Time": "2026-11-01 00:50",
        "End Time": "2026-11-01 01:10",
        "Elapsed secs": 4790.0,
    }
    (job,) = read_text(json.dumps([row]), cluster=SlurmCluster(time_zone=PACIFIC)).jobs
    assert job["start"] == datetime(2026, 11, 1, 7, 50, tzinfo=UTC)
    assert job["end"] == datetime(2026, 11, 1, 9, 11, tzinfo=UTC)


@pytest.mark.parametrize("written", [0, "", 9_999_999_999])
def test_the_shortest_and_the_longest_run_of_iris(read_text: ReadText, written: object) -> None:
    row = {"Job ID": 5, "Start Time": "2026-04-14 14:52", "Elapsed secs": written}
    (job,) = read_text(json.dumps([row])).jobs
    assert job["elapsed_s"] == (None if written == "" else written)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tres_per_node": "gres/gpu:a100:4"}, (None, None, None)),  # of an unknown number of nodes
        ({"tres_per_node": "gres/gpu", "nodes": "3"}, (3, None, 3)),
        ({"tres_per_node": "gres:gpu:2", "nodes": "3"}, (6, None, 3)),
        ({"tres_per_node": "gres/gpu:a100:2,nvme:4", "nodes": "3"}, (6, "a100", 3)),
        ({"tres_per_node": "N/A", "nodes": "3"}, (None, None, 3)),
        ({"nodes": "3"}, (None, None, 3)),
    ],
)
def test_gpus_of_squeue_are_those_of_each_node(
    read_text: ReadText, fields: dict[str, str], expected: tuple[object, ...]
) -> None:
    record = {"jobid": "5", "st": "R", "start_time": "2026-04-22T16:15:18", "nodelist": "n[1-3]"}
    (job,) = read_text(json.dumps([{"output": [{**record, **fields}]}])).jobs
    assert tuple(job[name] for name in ("gpus", "gpu_type", "nodes")) == expected
    assert (job["job_id"], job["state"], job["array_job_id"]) == ("5", "RUNNING", None)
