"""Windows, intervals and votes of random series, recomputed in plain Python."""

from __future__ import annotations

import math
from itertools import pairwise
from statistics import fmean, quantiles

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph.judge.checks.stable import stable_votes, steadiness
from tachograph.judge.classes import kernel
from tachograph.judge.classes.series import Series
from tachograph.judge.classes.windows import hang_votes, majority, spreads

WIDTH, HANG, LEVEL, THETA, SLACK = 4, 9, 0.5, 0.2, 2
Job = list[tuple[float | None, int]]  # value of each minute, and its mark: 0, a light load, work

_VALUES = st.sampled_from([None, 0.0, 0.0, 0.0, 0.125, 0.375, 0.5, 1.0, 2.0])
_RUNS = st.tuples(_VALUES, st.sampled_from([0, kernel.LIGHT, kernel.WORKS]), st.integers(1, 14))
_FEW = st.tuples(_VALUES, st.just(value=0), st.integers(1, 14))


def _job(runs: list[tuple[float | None, int, int]]) -> Job:
    return [
        (value, 0 if value is None else works)
        for value, works, length in runs
        for _ in range(length)
    ]


compiling = settings(deadline=None)  # the first example waits for the loops to be compiled
JOBS = st.lists(
    st.lists(st.one_of(_FEW, _FEW, _RUNS), max_size=8).map(_job), min_size=1, max_size=4
)


def as_series(jobs: list[Job]) -> Series:
    values = np.array(
        [math.nan if value is None else value for job in jobs for value, _ in job], np.float32
    )
    works = np.array([works for job in jobs for _, works in job], np.uint8)
    offset = np.concatenate(([0], np.cumsum([len(job) for job in jobs]))).astype(np.int64)
    return Series(
        tuple(map(str, range(len(jobs)))),
        offset,
        {"x": values},
        works,
        np.full_like(values, np.nan),
        np.full_like(values, np.nan),
    )


def window(job: Job, at: int) -> tuple[float, float, int]:
    """Spread, highest value, minutes measured."""
    seen = [value for value, _ in job[at : at + WIDTH] if value is not None]
    if not seen:
        return math.nan, math.nan, 0
    quarters = quantiles(seen, n=4, method="inclusive") if len(seen) > 1 else [seen[0]] * 3
    return (quarters[2] - quarters[0]) / 2, max(seen), len(seen)


def flat(job: Job, at: int, level: float | None) -> bool:
    spread, high, seen = window(job, at)
    marks = [works for _, works in job[at : at + WIDTH]]
    if level is not None and (kernel.WORKS in marks or marks.count(kernel.LIGHT) > 1):
        return False
    return seen == 0 or (spread < THETA and (level is None or high < level))


def longest_hang(job: Job, where: int, level: float | None, *, optimistic: bool) -> tuple[int, int]:
    windows = range(len(job) - WIDTH + 1)
    sure = [window(job, at)[2] >= math.ceil(0.8 * WIDTH) for at in windows]
    hung = [flat(job, at, level) and (optimistic or sure[at]) for at in windows]
    normal = [not hung[at] and (optimistic or sure[at]) for at in windows]
    edges = [at for at in windows if at == 0 or hung[at] != hung[at - 1]] + [len(windows)]
    found = []
    for first, last in pairwise(edges):
        begin, end = first, last - 1 + WIDTH
        if not hung[first] or end - begin < HANG:
            continue
        starts, ends = begin <= SLACK, end >= len(job) - SLACK
        if {kernel.END: not ends, kernel.BEGIN: not starts or ends, kernel.MIDDLE: starts or ends}[
            where
        ]:
            continue
        sides = [(job[:begin], normal[:first])] if where != kernel.BEGIN else []
        sides += [(job[end:], normal[last:])] if where != kernel.END else []
        if all(is_normal(*side, level, optimistic=optimistic, where=where) for side in sides):
            found.append((begin, end))
    return max(found, key=lambda one: one[1] - one[0], default=(0, 0))


def is_normal(
    minutes: Job, windows: list[bool], level: float | None, *, optimistic: bool, where: int
) -> bool:
    """Whether what lies before, or after, an interval is work: its minutes, and which windows
    are not flat.
    """
    if level is not None:
        busy = [
            works > 0 or (optimistic if value is None else value >= level)
            for value, works in minutes
        ]
        return sum(busy) >= WIDTH // 2
    text = "".join("x" if window else " " for window in windows)
    most = max(map(len, text.split()), default=0)
    return most > 0 and (where != kernel.END or most - 1 + WIDTH > HANG)


@compiling
@given(JOBS)
def test_spreads_are_those_of_plain_python(jobs: list[Job]) -> None:
    found = spreads(as_series(jobs), ("x",), width=WIDTH)
    expected = [window(job, at) for job in jobs for at in range(len(job) - WIDTH + 1)]
    assert found.windows[-1] == len(expected)
    assert found.of["x"].measured.tolist() == [seen for _, _, seen in expected]
    np.testing.assert_array_equal(
        found.of["x"].spread, np.array([s for s, _, _ in expected], np.float32)
    )
    np.testing.assert_array_equal(
        found.of["x"].high, np.array([h for _, h, _ in expected], np.float32)
    )


@compiling
@given(
    JOBS, st.sampled_from([kernel.END, kernel.BEGIN, kernel.MIDDLE]), st.sampled_from([LEVEL, None])
)
def test_votes_are_those_of_plain_python(jobs: list[Job], where: int, level: float | None) -> None:
    windows = spreads(as_series(jobs), ("x",), width=WIDTH)
    found = hang_votes(windows, "x", where=where, theta=THETA, level=level, hang_minutes=HANG)
    for place, job in enumerate(jobs):
        seen = [value for value, _ in job if value is not None]
        begin, end = longest_hang(job, where, level, optimistic=False)
        if not seen:
            expected = kernel.MISSING
        elif level is not None and sum(value >= level for value in seen) < WIDTH // 2:
            expected = kernel.UNUSED
        elif end:
            expected = kernel.YES
            assert (found.begin[place], found.end[place]) == (begin, end)
        else:
            expected = (
                kernel.UNDECIDED
                if longest_hang(job, where, level, optimistic=True)[1]
                else kernel.NO
            )
        assert found.vote[place] == expected


@compiling
@given(
    st.lists(
        st.lists(st.sampled_from([-2, -1, 0, 1, 2]), min_size=3, max_size=3), min_size=1, max_size=5
    )
)
def test_a_majority_is_counted(votes: list[list[int]]) -> None:
    answers = majority([np.array(each, np.int8) for each in votes])
    for place in range(3):
        mine = [each[place] for each in votes]
        voters = [vote for vote in mine if vote >= 0]
        yes, open_ = voters.count(kernel.YES), voters.count(kernel.UNDECIDED)
        if sum(vote != kernel.MISSING for vote in mine) < len(mine) / 2:
            expected = kernel.UNDECIDED
        elif yes > len(voters) / 2:
            expected = kernel.YES
        else:
            expected = kernel.UNDECIDED if yes + open_ > len(voters) / 2 else kernel.NO
        assert answers[place] == expected


@compiling
@given(JOBS)
def test_steadiness_is_that_of_plain_python(jobs: list[Job]) -> None:
    series = as_series(jobs)
    found = steadiness(series, "x")
    votes = stable_votes(found, level=None)
    for place, job in enumerate(jobs):
        seen = [value for value, _ in job if value is not None]
        if not seen:
            assert votes[place] == kernel.MISSING
            continue
        mean = fmean(seen)
        away = [abs(value - mean) / mean if mean else 0.0 for value in seen]
        assert math.isclose(found.away[place], fmean(away), rel_tol=1e-5, abs_tol=1e-7)
        assert math.isclose(
            found.within[place], sum(r <= 0.1 for r in away) / len(away), rel_tol=1e-5
        )


@pytest.mark.parametrize("width", [1, 20, 255, 256, 300])
def test_minutes_at_work_are_counted_alike_with_and_without_the_compiler(width: int) -> None:
    works = np.ones(700, np.uint8)
    works[600::3] = 0
    offset = np.array([0, 400, 700])
    windows = np.array([0, 401 - width, 702 - 2 * width])
    counts = []
    plain = kernel.window_works.__wrapped__  # type: ignore[attr-defined]
    for function in (kernel.window_works, plain):
        count = np.zeros(windows[-1], np.int32)
        function(works, offset, windows, width, count)
        counts.append(count)
    sliding = [
        np.lib.stride_tricks.sliding_window_view(part, width).sum(1, dtype=np.int32)
        for part in (works[:400], works[400:])
    ]
    assert counts[0].tolist() == counts[1].tolist() == np.concatenate(sliding).tolist()
