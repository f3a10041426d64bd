"""Bounds of what jobs need, as columns: against the formula in plain Python, point by point."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence

import numpy as np
import pytest

from tachograph.judge.bounds import (
    CERTAINTY,
    GIB,
    LEAST_S,
    MEMORY_MARGIN,
    TIME_MARGIN,
    HostMemory,
    PastRuns,
    needed_memory_mib,
    student_t,
    time_bound_s,
    time_bounds_s,
    use_bounds,
)
from tachograph.judge.partitions import JobNeeds, rows_with_needs

# quantiles of Student's t at 0.998, by bisection of its distribution summed term by term
QUANTILES = {
    1: 159.15284869126938,
    2: 15.763914552039346,
    3: 8.052613074541462,
    4: 5.951372849087987,
    5: 5.030244405082008,
    6: 4.52412792517101,
    8: 3.990950391465522,
    9: 3.834510269504019,
    11: 3.6237693497057197,
    12: 3.5495437045318625,
    30: 3.1176817710714877,
    31: 3.10940084323789,
    400: 2.8949519974390614,
    401: 2.8949099015314337,
}


def plain_bound(values: Sequence[float], margin: float) -> float:
    """Return the larger of maximum plus margin and the prediction bound of log-normal values."""
    with_margin = max(values, default=0.0) * (1 + margin)
    logs = [math.log(value) for value in values if value > 0]
    if len(logs) < 3:
        return with_margin
    deviation = statistics.stdev(logs) * math.sqrt(1 + 1 / len(logs))
    exponent = statistics.fmean(logs) + QUANTILES[len(logs) - 1] * deviation
    return max(with_margin, math.inf if exponent >= 700 else math.exp(exponent))


def plain_time_s(values: Sequence[float]) -> float:
    least_s = max(LEAST_S, plain_bound(values, TIME_MARGIN))
    if math.isinf(least_s):
        return least_s
    step_s = 300.0 if least_s <= 7200 else 900.0 if least_s <= 43200 else 3600.0
    return math.ceil(least_s / step_s) * step_s


def samples(count: int) -> list[list[float]]:
    """Samples of run times, from none to hundreds: alike, spread widely, with zeros among them."""
    generator = random.Random(11)
    rows = []
    for _ in range(count):
        size = generator.choice([1, 2, 3, 4, 5, 6, 9, 12, 31, 401])
        middle, spread = generator.uniform(2, 11), generator.choice([0.0, 0.01, 0.2, 1.0, 100.0])
        logs = [min(600.0, generator.gauss(middle, spread)) for _ in range(size)]
        zeros = [0.0] * generator.choice([0, 0, 1])
        rows.append([*map(math.exp, logs), *zeros])
    return rows


@pytest.mark.parametrize("margin", [0.0, TIME_MARGIN, MEMORY_MARGIN])
def test_each_row_of_the_bounds_is_that_of_the_formula(margin: float) -> None:
    rows = [*samples(300), [], [0.0]]
    bounds = use_bounds(PastRuns.of(rows), margin=margin)
    assert bounds.tolist() == pytest.approx([plain_bound(row, margin) for row in rows], rel=1e-9)
    assert {math.isinf(bound) for bound in bounds.tolist()} == {False, True}


def test_a_further_value_counts_as_one_of_the_sample() -> None:
    whole = [row for row in samples(300) if len(row) > 1]
    before, further = [row[:-1] for row in whole], [row[-1] for row in whole]
    order = np.arange(len(whole))[::-1]
    runs = PastRuns.of(before).with_further(order, np.array(further)[order])
    of_whole = [plain_bound(row, 0.25) for row in whole[::-1]]
    assert use_bounds(runs, margin=0.25).tolist() == pytest.approx(of_whole, rel=1e-9)
    assert 0.0 in further


def test_time_limits_of_many_jobs_are_those_of_each() -> None:
    rows = samples(300)
    limits_s = time_bounds_s(PastRuns.of(rows)).tolist()
    assert limits_s == [time_bound_s(row) for row in rows]
    below = [number for number, limit_s in enumerate(limits_s) if limit_s < 1e9]  # exact in steps
    assert len(below) > 100
    assert [limits_s[number] for number in below] == [
        plain_time_s(rows[number]) for number in below
    ]


def test_needs_of_many_jobs_are_those_of_each() -> None:
    peaks = [row for row in samples(60) if plain_bound(row, MEMORY_MARGIN) < 1e12]
    shared_s = [100.0, 5000.0, 4000.0]
    needs = [
        JobNeeds(
            number % 4,
            shared_s if number % 3 else [],
            HostMemory(None, row, [9000.0] if number % 5 == 0 else []),
        )
        for number, row in enumerate(peaks)
    ]
    ran_s = [700.0 * number for number in range(len(peaks))]
    rows = [
        {
            "elapsed_s": elapsed_s or None,
            "mem_requested_mib": 1e4,
            "nodes": 2,
            "state": "FAILED" if number % 2 else "COMPLETED",
        }
        for number, elapsed_s in enumerate(ran_s)
    ]
    jobs = rows_with_needs(rows, needs)
    for job, need, row, elapsed_s in zip(jobs, needs, rows, ran_s, strict=True):
        assert job == need.beside(row)
        runs_s = [*shared_s, elapsed_s]
        assert job["time_needed_s"] == (plain_time_s(runs_s) if need.runs_s else None)
        largest, killed = max(need.memory.peaks), max(need.memory.killed, default=0.0)
        needed = plain_bound(need.memory.peaks if largest > killed else [killed], MEMORY_MARGIN)
        needed_mib = math.ceil(needed / GIB) * GIB
        sufficed = row["state"] == "COMPLETED" and not need.memory.killed
        assert job["memory_needed_mib"] == (min(needed_mib, 5000.0) if sufficed else needed_mib)
    assert needed_memory_mib([HostMemory(), HostMemory(killed=[1.0])]) == [None, GIB]


@pytest.mark.parametrize("freedom", QUANTILES)
def test_quantiles_of_students_t(freedom: int) -> None:
    assert student_t(freedom, CERTAINTY) == pytest.approx(QUANTILES[freedom], rel=1e-11)
