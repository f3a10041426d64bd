"""`sacct --json`: shapes of the versions, and documents that cannot be read."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slurm_reading import MADE, ReadText
from syrupy.assertion import SnapshotAssertion

from row_lines import row_lines
from tachograph.catalog.chunks import Reject
from tachograph.catalog.errors import InputError
from tachograph.sources.slurm.database import from_database
from tachograph.sources.slurm.exports import AccountingReading, read_content
from tachograph.sources.slurm.fields import BadRowError, json_number, json_text
from tachograph.sources.slurm.records import SlurmCluster, job_row

Job = dict[str, Any]
DOCUMENT = json.loads((MADE / "26.05.5" / "sacct.json").read_text())


@pytest.fixture
def read_job(read_text: ReadText) -> Callable[[Callable[[Job], object]], AccountingReading]:
    """Reads the first job of a document after a change."""

    def reader(change: Callable[[Job], object]) -> AccountingReading:
        document = {**DOCUMENT, "jobs": [copy.deepcopy(DOCUMENT["jobs"][0])]}
        change(document["jobs"][0])
        return read_text(json.dumps(document))

    return reader


ReadJob = Callable[[Callable[[Job], object]], AccountingReading]


def put(*path: str, value: object) -> Callable[[Job], object]:
    """A change of one value."""

    def change(job: Job) -> None:
        for name in path[:-1]:
            job = job[name]
        job[path[-1]] = value

    return change


def tres(*rows: tuple[str, int]) -> list[Job]:
    return [{"type": "gres", "name": name, "id": 1, "count": count} for name, count in rows]


_CPUS = {"type": "cpu", "name": "", "count": 4}
_UNSET = {"set": False, "infinite": False, "number": 5}
_SET = {"set": True, "infinite": False}
_SIGNALLED = {
    "status": "SIGNALED",
    "return_code": None,
    "signal": {"signal_id": 11, "name": "SEGV"},
}
_KILLED = {
    "status": ["SIGNALED"],
    "return_code": _UNSET,
    "signal": {"id": {**_SET, "number": 9}, "name": "KILL"},
}


_NO_LIMIT = {"set": True, "infinite": True, "number": 0}
_STOPPED = ["CANCELLED", "COMPLETING"]
_OF_CPUS = {"allocated": [*tres(("nvme", 1)), _CPUS]}
_ERROR = {"status": "ERROR", "return_code": 3}
# 128 and the signal, as sacct prints it
_SEGV = {"status": ["ERROR"], "return_code": {**_SET, "number": 139}}
VALUES: tuple[tuple[tuple[str, ...], tuple[object, ...]], ...] = (
    (("time", "start"), (None, 0, 4294967294, _UNSET)),
    (("time", "limit"), (10, {**_SET, "number": 10}, _NO_LIMIT, _UNSET, None, 4294967295)),
    (("state", "current"), ("CANCELLED", _STOPPED, "CANCELLED by 0")),
    (
        ("exit_code",),
        ({"status": "SUCCESS", "return_code": 0}, _ERROR, _SIGNALLED, _SEGV, _KILLED, None),
    ),
    (("exclusive",), ("YES", "NODE", "NO", "USER", "", None)),
    (
        ("tres", "allocated"),
        (
            tres(("gpu", 2), ("gpu:a100", 2)),
            tres(("gpu:h100", 2), ("gpu:a100", 1)),
            tres(("gpumem", 80), ("gpu", 1), ("energy", -2)),
            *(tres(("gpu", count)) for count in (1, 0, -1)),  # -1: as requested
        ),
    ),
    (("tres",), (_OF_CPUS,)),
    (("array",), ({"job_id": 3},)),
)


def test_values_of_every_version(read_job: ReadJob, snapshot: SnapshotAssertion) -> None:
    """What a value changes in the row of the job."""
    (plain,) = read_job(lambda job: None).jobs
    changes = [
        f"{'.'.join(path)} = {json.dumps(value)}: "
        + repr({key: new for key, new in row.items() if new != plain[key]})
        for path, values in VALUES
        for value in values
        for row in read_job(put(*path, value=value)).jobs
    ]
    assert row_lines([plain]) + "\n".join(changes) == snapshot


_ASSOCIATION = {"user": "u", "account": "a", "cluster": "c"}
CHANGES: Mapping[str, Job] = {
    # the cluster of `meta` goes first
    "told by the association": {
        **dict.fromkeys(_ASSOCIATION, ""),
        "association": _ASSOCIATION,
    },
    # also where a start and nodes are written
    "a pending job holds nothing": {"state": {"current": ["PENDING"]}},
    "a number that no column holds": {"array": {"job_id": 7, "task_id": 10**30}},
    "a task not yet split off": {
        "job_id": 77,
        "nodes": "None assigned",
        "state": {"current": ["PENDING"]},
        "array": {"job_id": 77, "task_id": {"set": False, "number": 0}, "task": "0-5%4"},
        "time": {**DOCUMENT["jobs"][0]["time"], "start": 1_800_000_000, "end": 0},
    },
}


@pytest.mark.parametrize("what", CHANGES)
def test_jobs_that_are_written_differently(
    what: str, read_job: ReadJob, snapshot: SnapshotAssertion
) -> None:
    reading = read_job(lambda job: job.update(CHANGES[what]))
    assert row_lines([*reading.jobs, *reading.allocations]) == snapshot


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (put("job_id", value="x"), "bad_job_id"),
        (put("job_id", value=0), "bad_job_id"),
        (put("time", "start", value=10**15), "bad_time"),
        (put("time", "end", value=1795246600), "end_before_start"),
        (put("nodes", value="n[1-"), "bad_node_list"),
        (put("nodes", value="n[1-100000000]"), "too_many_nodes"),
        (put("state", "current", value="3:0"), "bad_state"),
    ],
)
def test_a_job_that_cannot_be_read_is_counted(
    read_job: ReadJob, change: Callable[[Job], object], reason: str
) -> None:
    reading = read_job(change)
    assert reading.jobs == []
    reject = next(one for one in reading.rejects() if one.reason != "step_of_rejected_job")
    counts = {one.reason: one.count for one in reading.rejects()}
    assert counts == {reason: 1, "step_of_rejected_job": reading.rows_read - 1}
    assert reject.example is not None
    assert '"name": "train"' in reading.rejected[0][2]
    assert reading.steps == []


def test_what_is_no_object_is_counted(read_text: ReadText) -> None:
    reading = read_text(json.dumps({"jobs": [DOCUMENT["jobs"][0], 3, None]}))
    assert len(reading.jobs) == 1
    assert reading.rejects() == (Reject("not_an_object", None, 2, "2: 3"),)


SHAPES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["set", "infinite", "number", "current", "status", "id", "start"]),
            inner,
        )
    ),
    max_leaves=8,
)
PLACES = (
    "job_id",
    "state",
    "exit_code",
    "time",
    "tres",
    "array",
    "het",
    "nodes",
    "name",
    "association",
)


@given(SHAPES)
def test_any_value_anywhere_is_read_or_rejected(value: object) -> None:
    assert json_number(value) is None or isinstance(json_number(value), int)
    assert json_text(value) is None or isinstance(json_text(value), str)
    for place in PLACES:
        with contextlib.suppress(BadRowError):
            job_row(
                from_database({**DOCUMENT["jobs"][0], place: value}, SlurmCluster()), SlurmCluster()
            )


def test_a_document_that_is_cut_off_names_the_place(read_text: ReadText) -> None:
    whole = json.dumps(DOCUMENT, indent=1)
    with pytest.raises(InputError, match=r"cut off at line 3, column") as caught:
        read_text("\n".join(whole.split("\n")[:2]) + '\n  "acc')
    assert caught.value.do
    with pytest.raises(InputError, match=r"line \d+, column \d+"):
        read_text(whole[: len(whole) // 2])


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{"jobs": [}', "no JSON"),
        ('{"jobs": []} {"jobs": []}', "Extra data"),
        ("[" * 200_000, "too deeply|cut off"),
        ('{"a": ' + "1" * 5000 + "}", "number too long|known"),
        ('{"jobs": [{"job_id": 1, "job_state": "RUNNING"}]}', "ingest allocation-map"),
        (
            '{"jobs": [], "errors": [{"description": "Unable to query JobId=3"}]}',
            "Unable to query JobId=3",
        ),
        (
            '{"status":"success","data":{"resultType":"vector","result":[]}}',
            "tachograph ingest prometheus",
        ),
        ('{"metrics": ["x"], "data": [], "job_id": "5"}', "ingest ldms"),
        ('[{"index":0,"gpu_id":0,"nersc_ldms_dcgm_fb_free":1}]', "ingest ldms"),
        ('{"5": [{"Job ID": 5, "nersc_ldms_dcgm_fb_free": 1}]}', "ingest ldms"),
        ('{"a": 1}', "known"),
        ("[]", "known"),
    ],
)
def test_other_documents_are_an_error_that_says_what_to_do(
    read_text: ReadText, content: str, what: str
) -> None:
    with pytest.raises(InputError, match=what) as caught:
        read_text(content)
    assert caught.value.do


def test_texts_that_are_not_utf8_are_replaced_and_counted(read_text: ReadText) -> None:
    content = json.dumps(DOCUMENT).replace('"train"', '"caf?"').encode().replace(b"?", b"\xe9")
    reading = read_text(content)
    assert reading.jobs[0]["name"] == "caf\ufffd"
    assert reading.rejects() == (Reject("invalid_utf8", "name", 1),)


def test_half_a_surrogate_pair_is_replaced(read_text: ReadText) -> None:
    reading = read_text(json.dumps(DOCUMENT).replace('"train"', '"a\\ud800b"'))
    assert reading.jobs[0]["name"] == "a?b"


@given(st.sets(st.integers(0, 40), min_size=1), st.sampled_from([None, 0, 3]))
def test_waiting_tasks_written_as_bits(tasks: set[int], at_once: int | None) -> None:
    bits = sum(1 << task for task in tasks)
    array = {"job_id": 3, "task": hex(bits), "limits": {"max": {"running": {"tasks": at_once}}}}
    document = {"jobs": [{"job_id": 5, "time": {}, "state": "PENDING", "array": array}]}
    (reading,) = read_content(json.dumps(document).encode(), where="x", cluster=SlurmCluster())
    (job,) = reading.jobs
    shown = re.fullmatch(r"3_\[([\d,-]+)\]|3_\[([\d,-]+)%3\]", str(job["display_id"]))
    assert shown
    assert (shown[2] is None) == (not at_once)
    ranges = [part.partition("-") for part in (shown[1] or shown[2]).split(",")]
    listed = [task for low, _, high in ranges for task in range(int(low), int(high or low) + 1)]
    assert listed == sorted(tasks)
    assert len(ranges) == sum(task - 1 not in tasks for task in tasks)
    assert job["array_job_id"] == "3"
