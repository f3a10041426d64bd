"""Whatever accounting and maps say: intervals never overlap, a sample has one owner at most,
GPU-seconds add up.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from in_memory import Unit, outcome, owners
from madelake import held, job, utc
from tachograph.pipeline.attribution import INTERVALS_SCHEMA, separate

T = utc(23, 23, 30)  # half an hour before midnight
UNITS: list[Unit] = [("n1", 0, None), ("n1", 1, None), ("n2", 0, None), ("n2", 1, 3), ("n2", 1, 4)]
NODES = {"n1": (0, 1), "n2": (0, 1)}
# times in seconds, often the same or a few seconds apart
when = st.one_of(st.integers(0, 60).map(lambda n: 60 * n), st.integers(0, 400).map(lambda n: 9 * n))


@st.composite
def claims(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Accounting and allocations of some jobs that may contradict each other."""
    jobs, allocations = [], []
    for number in range(draw(st.integers(1, 6))):
        low, high = sorted((draw(when), draw(when)))
        start, end = T + timedelta(seconds=low), T + timedelta(seconds=high)
        name = str(draw(st.integers(1, 4)))  # the same id again: requeued
        submit = T - timedelta(seconds=number + 1)
        count = draw(st.sampled_from([None, 1, 2, 4]))
        exclusive = draw(st.sampled_from([None, True, False]))
        running = draw(st.integers(0, 9)) == 0
        if draw(st.booleans()):
            jobs.append(
                job(
                    name,
                    start,
                    None if running else end,
                    gpus=count,
                    exclusive=exclusive,
                    submit=submit,
                )
            )
        for node, gpus in NODES.items():
            if draw(st.booleans()):
                allocations += held(name, node, start=start, end=end)
            if draw(st.integers(0, 3)) == 0:
                source = draw(st.sampled_from(["explicit", "live_index"]))
                some = draw(st.lists(st.sampled_from(gpus), min_size=1, unique=True))
                shift = timedelta(seconds=draw(st.sampled_from([0, 3, -5, 70])))
                timed = draw(st.booleans())
                span = (start + shift, max(start, end) + shift) if timed else (None, None)
                allocations += held(name, node, some, *span, provenance=source)
    return jobs, allocations


# run, GPU, start and length in steps of 20 s, rank
CLAIM = st.tuples(
    st.integers(1, 3), st.integers(0, 1), st.integers(0, 9), st.integers(0, 6), st.integers(0, 2)
)
STEP = timedelta(seconds=20)


@given(st.lists(CLAIM, max_size=7))
def test_every_instant_is_of_the_best_claim(made: list[tuple[int, int, int, int, int]]) -> None:
    rows = [
        (run, "n1", gpu, None, T + first * STEP, T + (first + length) * STEP, rank)
        for run, gpu, first, length, rank in made
    ]
    schema = INTERVALS_SCHEMA | {"rank": pl.Int8()}
    intervals, contested = separate(pl.DataFrame(rows, schema=schema, orient="row"))
    for gpu in (0, 1):
        expected = [owner_at(made, gpu, step) for step in range(16)]
        owner: list[int | None] = [None] * 16
        for row in intervals.filter(gpu=gpu).iter_rows(named=True):
            steps = range((row["start"] - T) // STEP, (row["end"] - T) // STEP)
            before = steps[0] - 1
            assert before < 0 or owner[before] != row["run"]  # else it were one interval
            for step in steps:
                owner[step] = row["run"]
        for row in contested.filter(gpu=gpu).iter_rows(named=True):
            for step in range((row["start"] - T) // STEP, (row["end"] - T) // STEP):
                assert owner[step] is None
                owner[step] = 0
        assert owner == expected


def owner_at(made: list[tuple[int, int, int, int, int]], gpu: int, step: int) -> int | None:
    """The run that owns a GPU for a step; 0 where it is contested."""
    here = [claim for claim in made if claim[1] == gpu and claim[2] <= step < claim[2] + claim[3]]
    if not here:
        return None
    best = min(claim[4] for claim in here)
    equal = [claim for claim in here if claim[4] == best]
    runs = {claim[0] for claim in equal}
    if len(runs) == 1:
        return runs.pop()
    latest = max(claim[2] for claim in equal)
    overlap = min(claim[2] + claim[3] for claim in equal) - latest
    if overlap * STEP > timedelta(minutes=1) or all(claim[2] == latest for claim in equal):
        return 0
    return max(claim[0] for claim in equal if claim[2] == latest)


@given(claims())
def test_intervals_never_overlap(made: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
    found = owners(*made, UNITS, now=T + timedelta(seconds=5000))
    by_unit: dict[Unit, list[tuple[Any, Any]]] = {}
    for stretches in (found.intervals, found.contested):
        for row in stretches.iter_rows(named=True):
            assert row["start"] < row["end"]
            by_unit.setdefault((row["node"], row["gpu"], row["mig"]), []).append(
                (row["start"], row["end"])
            )
    for spans in by_unit.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(spans)))
    limits = {row["run"]: row for row in found.runs.iter_rows(named=True)}
    assert all(
        (row["attribution"] == "ambiguous") is (row["ambiguous_because"] is not None)
        for row in limits.values()
    )
    for row in found.intervals.iter_rows(named=True):
        run = limits[row["run"]]
        assert run["attribution"] != "ambiguous"
        assert run["start"] <= row["start"]
        assert row["end"] <= run["until"]


@settings(max_examples=settings().max_examples // 2)
@given(claims(), st.randoms(use_true_random=False))
def test_order_of_rows_is_irrelevant(
    made: tuple[list[dict[str, Any]], list[dict[str, Any]]], dice: Any
) -> None:
    jobs, allocations = made
    now = T + timedelta(seconds=5000)
    first = owners(jobs, allocations, UNITS, now=now)
    second = owners(
        dice.sample(jobs, len(jobs)),
        dice.sample(allocations, len(allocations)),
        UNITS[::-1],
        now=now,
    )
    assert first.intervals.equals(second.intervals)
    assert first.contested.sort("node", "gpu", "mig", "start").equals(
        second.contested.sort("node", "gpu", "mig", "start")
    )
    assert first.runs.select("job_key", "attribution").equals(
        second.runs.select("job_key", "attribution")
    )


@settings(max_examples=settings().max_examples // 3)
@given(claims())
def test_gpu_seconds_are_conserved(made: tuple[list[dict[str, Any]], list[dict[str, Any]]]) -> None:
    """Attributed + unattributed = recorded, counted over the jobs by hand; every sample in one
    job at most.
    """
    samples = [
        {"t": T + timedelta(seconds=30 * i), "node": node, "gpu": gpu, "mig": mig, "gpu_util": 0.5}
        for node, gpu, mig in UNITS
        for i in range(130)
    ]
    jobs, allocations = made
    found = outcome(samples, jobs, allocations, now=T + timedelta(seconds=5000))
    recorded = sum(part.samples for part in found.reduced)
    attributed = sum(part.attributed for part in found.reduced)
    assert recorded == len(samples)
    intervals = list(found.owned.intervals.iter_rows(named=True))
    claimed = 0
    for sample in samples:
        unit = (sample["node"], sample["gpu"], sample["mig"])
        owning = [
            row
            for row in intervals
            if (row["node"], row["gpu"], row["mig"]) == unit
            and row["start"] <= sample["t"] < row["end"]
        ]
        assert len(owning) <= 1
        claimed += len(owning)
    assert attributed == claimed
    assert attributed == sum(gpu["samples"] for gpu in per_gpu(found))
    total = sum(part.gpu_seconds for part in found.reduced)
    of_jobs = sum(part.gpu_seconds_attributed for part in found.reduced)
    assert abs(total - 30 * recorded) < 1e-6
    assert abs(of_jobs - 30 * attributed) < 1e-6


def per_gpu(found: Any) -> list[dict[str, Any]]:
    """Segments rather than summaries, which of requeued jobs show one run."""
    return [row for part in found.reduced for row in part.segments.iter_rows(named=True)]
