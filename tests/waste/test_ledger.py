"""The ledger: against plain Python, minute by minute; hours are conserved and none is counted
twice.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waste_cases import UNEVEN, Case, by_hand, columns, judged

from jobframes import START
from tachograph.catalog.tables import FINDINGS, IN_USE, JOB_GPUS, JOB_MINUTES, WASTE
from tachograph.judge import waste
from tachograph.judge.finding import Finding
from tachograph.judge.waste import ENERGIES, HOURS, IDLE_LONG, UNMEASURED
from tachograph.pipeline.timelines import timelines_of

# exact in single precision, as minutes are stored
level = st.sampled_from([0.0, 0.0, 0.005859375, 0.25, 0.5, 0.75, 1.0])
WATTS = (60.0, 100.0, 400.0)
# just below, and above the 0.02 of work and the 0.4 of SMs
COUNTERS = {
    **dict.fromkeys(
        ("tensor_active", "dram_active", "fp32_active"), (0.0, 0.015625, 0.03125, None)
    ),
    "sm_active": (0.0, 0.25, 0.5, None),
}
USES = tuple(f"gpu_hours_{name}" for name in IN_USE)


@st.composite
def intervals(draw: st.DrawFn, minutes: int) -> tuple[float, float] | None:
    first, last = sorted(draw(st.integers(0, 2 * minutes)) / 2 for _ in range(2))
    return draw(st.sampled_from([None, (first, last)]))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    gpus, minutes = draw(st.integers(1, 4)), draw(st.integers(1, 12))
    never = draw(st.frozensets(st.integers(0, gpus - 1)))
    # Minutes without any sample.
    silent = draw(st.frozensets(st.integers(0, minutes - 1), max_size=minutes - 1))
    activity: list[list[float | None]] = []
    for gpu in range(gpus):
        if gpu in never:
            values: list[float | None] = draw(
                st.lists(st.sampled_from([0.0, 0.005859375]), min_size=minutes, max_size=minutes)
            )
        else:
            values = draw(st.lists(level | st.none(), min_size=minutes, max_size=minutes))
            if all(value is None for value in values):
                values[-1] = 1.0
        activity.append(
            [None if minute in silent else value for minute, value in enumerate(values)]
        )
    apart = draw(st.booleans())  # whether GPUs draw different power
    hung, stall = draw(intervals(minutes)), draw(intervals(minutes))
    if hung and stall and stall[1] > hung[0]:
        stall = None  # one ends before the other begins
    watts = [
        [WATTS[(apart * gpu + minute) % 3] for minute in range(minutes)] for gpu in range(gpus)
    ]
    counters = {}
    for name in draw(st.lists(st.sampled_from(list(COUNTERS)), unique=True)):
        series = st.lists(st.sampled_from(COUNTERS[name]), min_size=minutes, max_size=minutes)
        counters[name] = draw(st.lists(series, min_size=gpus, max_size=gpus))
    return Case(
        activity,
        watts,
        elapsed_s=60.0 * minutes - draw(st.sampled_from([0, 17, 59])),
        uneven=draw(st.sampled_from([None, *UNEVEN])),
        counters=counters,
        hung=hung,
        stall=stall,
        cold=draw(intervals(minutes)),
        never=frozenset(gpu for gpu in never if any(value is not None for value in activity[gpu])),
    )


@given(st.lists(cases(), min_size=1, max_size=3), st.sampled_from([0.0, 2.0, 5.0]))
def test_it_is_the_sum_over_gpus_and_minutes(made: list[Case], idle_minutes: float) -> None:
    made = [replace(case, number=number) for number, case in enumerate(made)]
    for case, row in zip(made, judged(*made, idle_minutes=idle_minutes), strict=True):
        wanted = by_hand(case, idle_minutes)
        if not any(value is not None for levels in case.activity for value in levels):
            unknown = (*HOURS, *USES, *ENERGIES, UNMEASURED, IDLE_LONG)
            assert all(row[name] is None for name in unknown)
            continue
        for cause in (*WASTE, *IN_USE, "idle_long"):
            assert row[f"gpu_hours_{cause}"] * 3600 == pytest.approx(
                wanted[cause], rel=1e-6, abs=1e-6
            ), cause
        unmeasured = case.elapsed_s * len(case.activity) - wanted["measured"]
        assert row[UNMEASURED] * 3600 == pytest.approx(unmeasured, abs=1e-6)
        assert row["gpu_hours_idle_long"] <= row["gpu_hours_idle"] + 1e-12
        if all(len(set(minute)) == 1 for minute in zip(*case.power, strict=True)):
            for cause in WASTE[:-1]:
                assert row[f"energy_j_{cause}"] == pytest.approx(
                    wanted[f"energy_{cause}"], rel=1e-5, abs=1e-3
                ), cause


def steady(*levels: float, minutes: int = 60, watts: float = 100.0, **how: Any) -> Case:
    """GPUs each at one level for an hour."""
    return Case(
        [[one] * minutes for one in levels],
        [[watts] * minutes for _ in levels],
        60.0 * minutes,
        **how,
    )


def hours(row: dict[str, Any]) -> dict[str, float]:
    """The causes that took anything."""
    return {
        cause: round(row[f"gpu_hours_{cause}"], 9) for cause in WASTE if row[f"gpu_hours_{cause}"]
    }


def test_a_job_by_hand() -> None:
    case = Case(
        # cold, work of both, one rests, hung at 100 %, not measured; the third is never used
        activity=[
            [0.0] * 10 + [0.8] * 20 + [0.8] * 10 + [1.0] * 15 + [None] * 5,
            [0.0] * 10 + [0.4] * 20 + [0.0] * 10 + [1.0] * 15 + [None] * 5,
            [0.0] * 55 + [None] * 5,
        ],
        power=[[50.0] * 10 + [300.0] * 20 + [300.0] * 10 + [90.0] * 20, [50.0] * 60, [40.0] * 60],
        elapsed_s=3600,
        cold=(0, 10),
        hung=(40, 60),
        never=frozenset({2}),
        uneven="imbalanced_gpus",
        # work shows in 12 of the 20 minutes of both, and not while the other rests
        counters={"dram_active": [[0.0] * 10 + [0.3] * 12 + [0.0] * 38, [None] * 60, [None] * 60]},
    )
    (row,) = judged(case)
    assert {name: round(60 * value) for name, value in hours(row).items()} == {
        "never_used": 55,
        "hung": 30,
        "cold_start": 20,
        "idle": 10,
        "imbalance": 10,  # 20 minutes at half of the other's
    }
    assert row[UNMEASURED] * 60 == pytest.approx(15)
    assert row["gpu_hours_in_use"] * 60 == pytest.approx(12 * (1 + 0.5))
    assert row["gpu_hours_in_use_unknown"] * 60 == pytest.approx(8 * (1 + 0.5) + 10)
    assert row["energy_j_hung"] == pytest.approx((90 + 50) * 15 * 60)
    idle = [row["energy_j_never_used"], row["energy_j_cold_start"], row["energy_j_idle"]]
    # of GPUs idle power is known together: each has the same part of it
    assert math.fsum(idle) == pytest.approx(
        60 * (40 * 55 + (50 + 50) * 10 + 50 * 10 - 40 * 15) + 40 * 15 * 60
    )


def test_a_stall_and_a_hang_that_overlap_share_no_minute() -> None:
    (row,) = judged(steady(1.0, stall=(10, 50), hung=(40, 60)))
    assert hours(row) == {"hung": pytest.approx(50 / 60)}


@pytest.mark.parametrize(
    ("counters", "seen"),
    [
        ({"dram_active": 0.02}, True),
        ({"dram_active": 0.0199}, False),
        ({"tensor_active": 0.02}, True),
        ({"tensor_active": 0.0199, "dram_active": 0.0199}, False),
        ({"sm_active": 0.4}, True),
        ({"sm_active": 0.3999}, False),
        # Another pipe counts where tensor cores and memory traffic are known.
        ({"fp64_active": 0.02, "tensor_active": 0.0, "dram_active": 0.0}, True),
        ({"fp64_active": 0.5}, False),
        ({}, False),
    ],
)
def test_hours_are_in_use_where_a_counter_shows_work(
    counters: dict[str, float], seen: bool
) -> None:
    series = {name: [[value] * 60] * 2 for name, value in counters.items()}
    (row,) = judged(steady(1.0, 1.0, counters=series))
    assert (row["gpu_hours_in_use"], row["gpu_hours_in_use_unknown"]) == (
        2.0 * seen,
        2.0 - 2 * seen,
    )


def test_busy_waiting_is_hung() -> None:
    waiting = Finding(
        "busy_waiting",
        "problem",
        "t",
        "s",
        begin=START + timedelta(minutes=20),
        end=START + timedelta(minutes=60),
    )
    (row,) = judged(steady(1.0, 1.0), also=[waiting])
    assert hours(row) == {"hung": pytest.approx(2 * 40 / 60)}
    (row,) = judged(steady(1.0, 1.0, hung=(10, 60)), also=[waiting])
    assert hours(row) == {"hung": pytest.approx(2 * 50 / 60)}


def test_jobs_of_which_nothing_can_be_said_have_null() -> None:
    for job in ({"attribution": "ambiguous"}, {"gpu_hours": None}):
        (row,) = judged(steady(1.0), **job)
        assert all(row[name] is None for name in (*HOURS, *ENERGIES, UNMEASURED, IDLE_LONG))
    nothing = Case([[None] * 5], [[None] * 5], 300.0)
    assert judged(nothing, steady(1.0, number=2))[0][UNMEASURED] is None


@pytest.mark.parametrize("rows", [0, 1])
def test_without_any_minute_columns_are_as_declared(rows: int) -> None:
    nothing = columns(judged(Case([[None] * 5], [[None] * 5], 300.0))[:1]).head(rows)
    judged_again = waste.judge_waste(
        nothing,
        JOB_GPUS.empty(),
        timelines_of(JOB_MINUTES.empty(), idle_util=0.01),
        FINDINGS.empty(),
        uneven=UNEVEN,
        idle_util=0.01,
        idle_minutes=30,
    )
    assert judged_again.schema == nothing.schema


def test_energy_is_null_where_it_is_not_known() -> None:
    for row in (
        judged(steady(0.0), energy_j=None)[0],
        judged(Case([[0.0] * 5], [[None] * 5], 300.0))[0],
    ):
        assert row["gpu_hours_idle"] is not None
        assert [row[name] for name in ENERGIES] == [None] * 4


def test_idle_energy_is_never_more_than_the_energy_measured() -> None:
    """A job measured in part: its minutes count whole, and come to more than its energy."""
    (row,) = judged(steady(0.0, 1.0, never=frozenset({0})), energy_j=1000.0)
    assert 0 < row["energy_j_never_used"] < 1000.0
    (whole,) = judged(steady(0.0, 0.0, never=frozenset({0, 1})), energy_j=1000.0)
    assert math.fsum(whole[name] for name in ENERGIES) == pytest.approx(1000.0)


def test_gpus_that_were_not_accounted_are_not_counted() -> None:
    whole_node = steady(1.0, 0.0, 0.0, 0.0, never=frozenset({1, 2, 3}))
    (row,) = judged(whole_node, gpus=2)
    assert (row["gpu_hours"], hours(row), row[UNMEASURED]) == (2.0, {"never_used": 1.0}, 0.0)
    assert row["energy_j_never_used"] == pytest.approx(100.0 * 3600)
    # Whose two are the two idle nobody can tell: a part of each.
    (row,) = judged(steady(0.0, 0.0, 1.0, 1.0), gpus=2)
    assert hours(row) == {"idle": 1.0}
    assert row[UNMEASURED] == 0.0


def test_a_job_that_was_suspended_has_no_more_than_its_hours() -> None:
    suspended = replace(steady(0.0), elapsed_s=1800.0)
    (row,) = judged(suspended, as_of=START + timedelta(hours=1))
    assert (row["gpu_hours"], hours(row), row[UNMEASURED]) == (0.5, {"idle": 0.5}, 0.0)


def test_rounding_leaves_no_use_in_time_that_causes_took() -> None:
    """Three GPUs, one of them never used, of a job that was suspended: its minutes are no whole
    numbers.
    """
    never = frozenset({2})
    for elapsed_s in range(3001, 3100, 7):
        hung = replace(steady(0.9, 0.7, 0.0, hung=(0, 60), never=never), elapsed_s=float(elapsed_s))
        idle = replace(steady(0.0, 0.0, 0.0, never=never), elapsed_s=float(elapsed_s))
        for case in (hung, idle):
            (row,) = judged(case, as_of=START + timedelta(hours=1))
            assert [row[name] for name in USES] == [0.0, 0.0]


def test_a_job_that_goes_on_without_samples_is_unmeasured() -> None:
    (row,) = judged(replace(steady(1.0), elapsed_s=24 * 3600.0), state="RUNNING", end=None)
    assert row[UNMEASURED] == pytest.approx(23.0)
