"""Conditions on columns that take few values: which values they accept, and what they select."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

import tachograph
from jobframes import START, frame, summary
from tachograph.catalog.errors import UsageError
from tachograph.catalog.tables import JOB_SUMMARIES, LINK_TRAFFIC, PIPES
from tachograph.judge.checks.ambiguous_attribution import AMBIGUOUS_REASONS
from tachograph.judge.health import STATES
from tachograph.judge.limiter import NEITHER
from tachograph.judge.workload.classes import WORKLOAD_CLASSES
from tachograph.lake.filters import FIXED_VALUES, JobFilter, filter_jobs, parse_condition
from tachograph.report.job_sentences import RECORDED_BY

NO_FINDINGS = pl.DataFrame(schema={"code": pl.String()})


def selected(written: str, values: list[object], *, column: str) -> list[object]:
    """Return the values of a column in the jobs that meet a condition."""
    rows = [
        summary(job_key=f"c:{number}:0", start=START + timedelta(hours=number), **{column: value})
        for number, value in enumerate(values)
    ]
    jobs = frame(JOB_SUMMARIES, rows)
    wanted = JobFilter(where=(parse_condition(written),))
    return filter_jobs(jobs, NO_FINDINGS, wanted)[column].to_list()


def test_the_values_are_those_that_the_judge_gives() -> None:
    assert FIXED_VALUES["workload"] == WORKLOAD_CLASSES
    assert FIXED_VALUES["health"] == STATES
    assert set(FIXED_VALUES["limiter"]) == {"compute", "memory", *LINK_TRAFFIC, NEITHER}
    assert set(FIXED_VALUES["main_pipe"]) == set(FIXED_VALUES["pipes"]) == set(PIPES)
    assert set(FIXED_VALUES["ambiguous_because"]) == {*AMBIGUOUS_REASONS, "unplaced"}
    assert set(FIXED_VALUES["recorded_by"]) == set(RECORDED_BY)


def test_the_demo_has_no_other_value(demo: Path) -> None:
    jobs = tachograph.open(str(demo / "lake")).jobs().cast({"exclusive": pl.String()})
    for name, known in FIXED_VALUES.items():
        values = jobs[name].explode() if name == "pipes" else jobs[name]
        assert set(values.drop_nulls()) <= set(known), name
    assert jobs["workload"].n_unique() > 3


@pytest.mark.parametrize("column", sorted(FIXED_VALUES.keys() - {"exclusive", "pipes"}))
def test_every_value_selects_the_jobs_that_have_it(column: str) -> None:
    values: list[object] = list(FIXED_VALUES[column])
    for value in FIXED_VALUES[column]:
        assert selected(f"{column}={value}", values, column=column) == [value]
        others = [other for other in values if other != value]
        assert selected(f"{column}!={value}", values, column=column) == others


def test_flags_and_lists_are_compared_by_value() -> None:
    flags: list[object] = [True, False, None]
    assert selected("exclusive=true", flags, column="exclusive") == [True]
    assert selected("exclusive!=TRUE", flags, column="exclusive") == [False]
    pipes: list[object] = [["fp64", "tensor"], ["fp32"]]
    assert selected("pipes~Tensor", pipes, column="pipes") == [["fp64", "tensor"]]


def test_case_is_that_of_the_column_and_a_part_of_a_value_is_enough_for_contains() -> None:
    states: list[object] = ["FAILED", "NODE_FAIL", "RUNNING"]
    assert selected("state=failed", states, column="state") == ["FAILED"]
    assert selected("state~fail", states, column="state") == ["FAILED", "NODE_FAIL"]
    assert selected("state=done", [*states, "DONE"], column="state") == ["DONE"]  # of LSF
    classes: list[object] = ["tensor-heavy compute", "tensor compute", "idle"]
    assert selected("workload~TENSOR", classes, column="workload") == classes[:2]


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        (
            "workload=tensor",
            "workload is never 'tensor'",
            "did you mean tensor-heavy compute or tensor compute? use one of: idle; ",
        ),
        ("workload~gemm", "workload is never 'gemm'", "use one of: idle; tensor-heavy compute; "),
        (
            "bound=memroy",
            "bound is never 'memroy'",
            "did you mean memory? use one of: compute; memory",
        ),
        ("pipes~fp6", "pipes is never 'fp6'", "did you mean fp64"),
        ("exclusive=yes", "exclusive is never 'yes'", "use one of: true; false"),
        ("exclusive~t", "exclusive is true or false: '~' is for text", "use = or !="),
        ("health=bad\x1b[2J", r"health is never 'bad\x1b[2J'", "use one of: CRIT; WARN; HOT"),
    ],
)
def test_another_value_is_an_error_that_names_those_that_exist(
    written: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as raised:
        parse_condition(written)
    assert raised.value.what == message
    assert raised.value.do is not None
    assert raised.value.do.startswith(hint)
