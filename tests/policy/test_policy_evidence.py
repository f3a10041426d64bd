"""Evidence of policies: twice, of every GPU, fresh and without a gap; and an independent look in
plain Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobframes import START, frame, gpus
from madelake import fill, held, job, make_lake, summarized
from tachograph.annexes.act.policies import policy_cases
from tachograph.annexes.act.policy import PolicyEvidence, exemption, fault_evidence, idle_evidence
from tachograph.catalog.config import Configuration
from tachograph.catalog.policies import PolicyOptions
from tachograph.catalog.rows import JobSummaryRow
from tachograph.catalog.tables import JOB_MINUTES, TIME

LEVELS = {
    "W": {"gpu_util": 0.95, "tensor_active": 0.3, "dram_active": 0.2, "sm_active": 0.6},
    "P": {"gpu_util": 1.0, "tensor_active": 0.0, "dram_active": 0.0, "sm_active": 0.1},
    "I": {"gpu_util": 0.0, "tensor_active": 0.0, "dram_active": 0.0, "sm_active": 0.0},
}
JOB: JobSummaryRow = {"gpus": 1, "start": START, "attribution": "explicit"}
HUNG = PolicyOptions("hung", "hung", minutes=20)
IDLE = PolicyOptions("idle", "held_idle", minutes=20)


def minutes(*courses: str) -> pl.DataFrame:
    """A row per GPU and letter: at work, polling, idle; '.': not measured."""
    rows: list[dict[str, Any]] = []
    for gpu, course in enumerate(courses):
        for minute, letter in enumerate(course):
            if letter != ".":
                key = {
                    "job_key": "c:100:1",
                    "job_id": "100",
                    "seq": 1,
                    "node": "n1",
                    "gpu": gpu,
                    "minute": minute,
                }
                rows.append(
                    key | {"t": START + timedelta(minutes=minute), "samples": 2} | LEVELS[letter]
                )
    return frame(JOB_MINUTES, rows)


def look(
    policy: PolicyOptions, *courses: str, held: int | None = None, late: float = 1
) -> PolicyEvidence | str:
    job: JobSummaryRow = {"gpus": held or len(courses), "start": START, "attribution": "explicit"}
    now = START + timedelta(minutes=max(map(len, courses)) + late)
    return idle_evidence(policy, job, gpus(*({} for _ in courses)), minutes(*courses), now=now)


def test_a_hang_of_all_gpus_in_two_windows() -> None:
    found = look(HUNG, "W" * 30 + "P" * 45, "W" * 30 + "I" * 45)
    assert isinstance(found, PolicyEvidence)
    assert found.since == START + timedelta(minutes=30)
    assert found.gpu_hours == pytest.approx(2 * 45 / 60)
    assert found.sentence == (
        "2 GPUs did no work from 30 min after the start on, for 45 min (1.5 h GPU time); idle "
        "or polling in both of "
        "the last two windows of 20 min, 100 % measured."
    )


@pytest.mark.parametrize(
    ("courses", "reason"),
    [
        (["W" * 40 + "P" * 39], "worked in the last 40 min"),
        (["W" * 30 + "P" * 45, "W" * 75], "worked in the last 40 min"),
        (
            ["W" * 30 + "P" * 45, "W" * 30 + "P" * 12 + "." * 4 + "P" * 29],
            "not measured throughout",
        ),
        (["W" * 30 + "P" * 45, "W" * 30 + "." * 45], "not measured throughout"),
        (["W" * 30 + "P" * 45, "W" * 30 + "P" * 40 + "." * 5], "not measured throughout"),
        (["P" * 75], "never worked"),
        (["W" * 10 + "P" * 25], "not run for two windows"),
    ],
)
def test_what_is_no_evidence_of_a_hang(courses: Sequence[str], reason: str) -> None:
    found = look(HUNG, *courses)
    assert isinstance(found, str)
    assert reason in found


def test_gpus_without_samples_and_old_ones_are_no_evidence() -> None:
    course = "W" * 30 + "P" * 45
    assert "samples are of 1" in str(look(HUNG, course, held=2))
    assert "old" in str(look(HUNG, course, late=31))
    assert isinstance(look(HUNG, course, late=29), PolicyEvidence)


def test_gpus_that_are_ambiguous_are_no_evidence() -> None:
    job: JobSummaryRow = {"gpus": 1, "start": START, "attribution": "ambiguous"}
    now = START + timedelta(minutes=61)
    assert "ambiguous" in str(idle_evidence(IDLE, job, gpus({}), minutes("I" * 60), now=now))


def test_held_idle_needs_no_work_before_and_takes_no_polling() -> None:
    found = look(IDLE, "I" * 60)
    assert isinstance(found, PolicyEvidence)
    assert found.since == START
    assert "from the start on" in found.sentence
    assert "not clearly idle" in str(look(IDLE, "P" * 60))


def test_least_gpu_hours() -> None:
    policy = PolicyOptions("hung", "hung", minutes=20, gpu_hours=1)
    assert "less than" in str(look(policy, "W" * 30 + "P" * 45))
    assert isinstance(look(policy, *["W" * 30 + "P" * 45] * 2), PolicyEvidence)


def test_utilisation_alone_is_no_evidence() -> None:
    """A job whose arithmetic and memory traffic were not measured may do anything."""
    only = minutes("W" * 30 + "I" * 45).with_columns(
        pl.lit(None, dtype=pl.Float32).alias(name) for name in ("tensor_active", "dram_active")
    )
    now = START + timedelta(minutes=76)
    assert "was measured" in str(idle_evidence(IDLE, JOB, gpus({}), only, now=now))


# long stretches: the windows of 20 minutes see something of each
COURSES = st.lists(
    st.tuples(st.sampled_from("WPI."), st.integers(2, 50)), min_size=1, max_size=6
).map(lambda parts: "".join(letter * count for letter, count in parts))


@given(st.lists(COURSES, min_size=1, max_size=3), st.sampled_from([HUNG, IDLE]))
def test_evidence_means_that_each_gpu_was_seen_without_work_in_both_windows(
    courses: list[str], policy: PolicyOptions
) -> None:
    """Independent of the program: letters of the last 40 minutes, in plain Python."""
    length = max((len(course.rstrip(".")) for course in courses), default=0)
    courses = [course[:length].ljust(length, ".") for course in courses]
    if not length:
        return
    found = look(policy, *courses)
    windows = [
        course[first : first + 20]
        for course in courses
        for first in (length - 40, length - 20)
        if first >= 0
    ]
    whole = length >= 40
    allowed = "PI" if policy is HUNG else "I"
    clean = whole and all(set(window) <= set(allowed) for window in windows)
    worked = any(course[: length - 40].count("W") >= 5 for course in courses) if whole else False
    never = all("W" not in course for course in courses)
    if isinstance(found, PolicyEvidence):
        assert whole
        assert all("W" not in window for window in windows)
        assert all(sum(letter in allowed for letter in window) >= 18 for window in windows)
        assert all("...." not in window for window in windows)
        assert policy is IDLE or worked
    elif clean and (worked if policy is HUNG else never):
        raise AssertionError(found)


# ------------------------------------------------------------------------------------------------------------ whom


def test_whom_a_policy_leaves_alone() -> None:
    policy = PolicyOptions(
        "a", "hung", "cancel", partitions=("gpu*",), exempt_users=("ann",), exempt_accounts=("staff*",),
        exempt_qos=("urgent",),
    )  # fmt: skip
    job: JobSummaryRow = {
        "user": "bob",
        "account": "physics",
        "qos": "normal",
        "partition": "gpu-long",
        "het_job_id": None,
    }
    assert exemption(policy, job) == ""
    changes: tuple[JobSummaryRow, ...] = (
        {"user": "ann"}, {"account": "staff-1"}, {"qos": "urgent"}, {"qos": None}, {"partition": "cpu"},
        {"partition": None}, {"het_job_id": "7"},
    )  # fmt: skip
    for change in changes:
        assert exemption(policy, job | change), change


# ------------------------------------------------------------------------------------------------------ failing GPUs


def faults(*rows: tuple[int, int, float | None, float | None]) -> pl.DataFrame:
    """Samples: GPU, minute, xid, remapped rows."""
    return pl.DataFrame(
        [("n1", gpu, START + timedelta(minutes=at), xid, rows, None) for gpu, at, xid, rows in rows],
        schema={"node": pl.String, "gpu": pl.Int16, "t": TIME, "xid": pl.Float64,
                "remapped_rows_uncorrectable": pl.Float64, "row_remap_failure": pl.Float64},
        orient="row",
    ).with_columns(
        mig=pl.lit(None, dtype=pl.Int16), cluster=pl.lit("north"), ecc_dbe=pl.lit(0.0)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("xids", "applies"),
    [
        ({**dict.fromkeys(range(30), 0.0), **dict.fromkeys(range(30, 61), 79.0)}, True),
        # In one window alone.
        ({**dict.fromkeys(range(50), 0.0), **dict.fromkeys(range(50, 61), 79.0)}, False),
        # Mostly the program's.
        ({**dict.fromkeys(range(30), 0.0), **dict.fromkeys(range(30, 61), 31.0)}, False),
        (dict.fromkeys(range(61), 79.0), False),  # came up before
    ],
)
def test_a_fault_shows_in_both_windows(xids: dict[int, float], applies: bool) -> None:
    policy = PolicyOptions("a", "failing_gpu", "drain", minutes=20)
    samples = faults(*((0, at, xid, None) for at, xid in xids.items()))
    found = fault_evidence(policy, JOB, gpus({}), samples, now=START + timedelta(minutes=61))
    assert isinstance(found, PolicyEvidence) is applies
    if isinstance(found, PolicyEvidence):
        assert found.nodes == ("n1",)
        assert "XID 79" in found.sentence
        other = gpus({"gpu": 1})
        assert isinstance(
            fault_evidence(policy, JOB, other, samples, now=START + timedelta(minutes=61)), str
        )
        assert isinstance(
            fault_evidence(policy, JOB, gpus({}), samples, now=START + timedelta(minutes=95)), str
        )


@pytest.mark.parametrize(("grows_at", "applies"), [(30, True), (50, False), (0, False)])
def test_uncorrectable_errors_show_in_both_windows(grows_at: int, applies: bool) -> None:
    policy = PolicyOptions("a", "failing_gpu", "drain", minutes=20)
    errors = pl.Series("ecc_dbe", [2.0 + (at >= grows_at) for at in range(61)])
    samples = faults(*((0, at, None, None) for at in range(61))).with_columns(errors)
    found = fault_evidence(policy, JOB, gpus({}), samples, now=START + timedelta(minutes=61))
    assert isinstance(found, PolicyEvidence) is applies


@pytest.mark.parametrize(
    ("telemetry", "applies"),
    [
        (("prod-gpu",), True),
        (("prod-gpu", "other"), False),  # of either, hence of nobody
    ],
)
def test_a_fault_is_found_where_telemetry_names_the_cluster_otherwise(
    telemetry: tuple[str, ...], *, applies: bool, tmp_path: Path
) -> None:
    now = START + timedelta(minutes=61)
    running = job("7", START, None, cluster="hpc", user="ana", gpus=1)
    lake = make_lake(tmp_path, jobs=[running], allocations=held("7", "n1", (0,), cluster="hpc"))
    for cluster in telemetry:
        gpu = {"node": "n1", "gpu": 0, "cluster": cluster}
        samples = [
            gpu | {"t": START + timedelta(minutes=at), "gpu_util": 0.5, "xid": 79 * (at > 30)}
            for at in range(61)
        ]
        fill(lake, {"devices": [gpu], "gpu_samples": samples}, chunk=cluster)
    summarized(lake, now=now)
    policy = PolicyOptions("a", "failing_gpu", "drain", minutes=20)
    (case,) = policy_cases(lake, Configuration(policy=(policy,)), now=now)
    assert isinstance(case.found, PolicyEvidence) is applies
