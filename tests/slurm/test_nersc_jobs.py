"""NERSC's answers and exports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from slurm_reading import ReadText, reading_of
from syrupy.assertion import SnapshotAssertion

from row_lines import reading_lines
from tachograph.catalog.errors import InputError
from tachograph.sources.slurm.records import SlurmCluster

PACIFIC = "America/Los_Angeles"


@pytest.mark.parametrize("name", ["job-data", "job-data-iris-export", "user-jobs"])
def test_recorded_jobs(recorded: Path, name: str, snapshot: SnapshotAssertion) -> None:
    """The Superfacility API, Iris, and Iris without run times."""
    path = recorded / "nersc_perlmutter" / f"{name}.json"
    assert reading_lines(reading_of(path, time_zone=PACIFIC)) == snapshot


_ROW: dict[str, object] = {"jobid": "7.batch", "jobidraw": "7.batch", "start": "Unknown"}
CASES: Mapping[str, list[dict[str, object]]] = {
    "a running job of squeue": [{"status": "OK", "error": None, "output": [{
        "jobid": "5", "array_job_id": "4", "array_task_id": "1", "name": "train",
        "state": "RUNNING", "start_time": "2026-04-22T16:15:18",
        "end_time": "2026-04-22T18:15:18", "submit_time": "2026-04-22T16:00:00",
        "time": "12:03", "time_limit": "2:00:00", "nodes": "2", "nodelist": "nid[001-002]",
        "tres_per_node": "gres/gpu:a100:4", "features": "gpu&hbm80g", "over_subscribe": "OK",
    }]}],
    "rows without their envelope": [
        {**_ROW, "jobid": "7", "jobidraw": "7", "nodelist": "None assigned"}, _ROW,
    ],
    "ids that became fractions": [{
        "Job ID": 51566986.0, "Start Time": "2026-04-14 14:52", "End Time": None, "CPUs used": 32.0,
    }],
    # The run time tells which of two hours Iris means.
    "an hour that occurs twice": [{
        "Job ID": 5, "Start Time": "2026-11-01 00:50", "End Time": "2026-11-01 01:10",
        "Elapsed secs": 4790.0,
    }],
}  # fmt: skip


@pytest.mark.parametrize("what", CASES)
def test_answers_become_jobs(what: str, read_text: ReadText, snapshot: SnapshotAssertion) -> None:
    cluster = SlurmCluster(time_zone=PACIFIC)
    assert reading_lines(read_text(json.dumps(CASES[what]), cluster=cluster)) == snapshot


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
