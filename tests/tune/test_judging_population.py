"""The simulated jobs that judgement is measured with, and their truth, recomputed from what
their GPUs do.
"""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest

from tachograph.annexes.lab.simulate.behaviours import SCENARIOS
from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.annexes.lab.simulate.truth import classes_frame
from tachograph.annexes.lab.simulate.workload import SimulatedRun, place_runs, sample_requests

PLAN = SimulationPlan.judging(300, seed=11)


@pytest.fixture(scope="module")
def runs() -> list[SimulatedRun]:
    return place_runs(PLAN, sample_requests(PLAN))


@pytest.fixture(scope="module")
def truth(runs: list[SimulatedRun]) -> pl.DataFrame:
    return classes_frame(PLAN, runs)


def resting_minutes(run: SimulatedRun) -> list[bool]:
    """Second 30 of each minute: whether no GPU does arithmetic or moves memory."""
    assert run.behaviour is not None
    assert run.start_s is not None
    assert run.end_s is not None
    lines = {tuple(run.behaviour.phases(slot)) for slot in range(run.gpus)}
    found = []
    for second in range(30, run.end_s - run.start_s, 60):
        levels = [next(p.level for p in reversed(line) if p.begin_s <= second) for line in lines]
        found.append(all(sum(level[3:9]) == 0 and level.dram < 1e-4 for level in levels))
    return found


def test_shares_add_up_and_each_scenario_is_there(truth: pl.DataFrame) -> None:
    assert sum(scenario.share for scenario in SCENARIOS) == pytest.approx(1)
    counts = Counter(truth["scenario"])
    assert truth.height == 300
    for scenario in SCENARIOS:
        assert abs(counts[scenario.name] - 300 * scenario.share) <= 1.5, scenario.name


def test_hang_classes_are_where_the_long_idle_intervals_are(
    runs: list[SimulatedRun], truth: pl.DataFrame
) -> None:
    """Half a minute at either end apart, which minutes do not show."""
    by_id = {str(row["display_id"]): row for row in truth.iter_rows(named=True)}
    seen = Counter[str]()
    for run in runs:
        row = by_id[str(run.request.job_id)]
        marks = "".join("r" if idle else "w" for idle in resting_minutes(run))
        pieces = [
            (piece, len(piece)) for piece in marks.replace("wr", "w r").replace("rw", "r w").split()
        ]
        long = [
            place
            for place, (piece, length) in enumerate(pieces)
            if piece[0] == "r" and length >= 60
        ]
        last = len(pieces) - 1
        assert row["job_hang"] == any(
            place == last and place > 0 and pieces[place - 1][1] >= 10 for place in long
        )
        assert row["cold_start"] == any(place == 0 and last > 0 for place in long), row
        assert row["stall"] == any(0 < place < last for place in long), row
        assert row["job_hang_host"] is False or row["job_hang"]
        seen.update(
            name for name in ("job_hang", "job_hang_host", "cold_start", "stall") if row[name]
        )
    assert all(seen[name] >= 10 for name in ("job_hang", "job_hang_host", "cold_start", "stall"))


def test_nothing_planted_lies_between_what_is_long_enough_and_what_is_not(
    truth: pl.DataFrame,
) -> None:
    hung = truth.filter(pl.col("scenario") != "idle").drop_nulls("rest_begin_s")
    minutes = (hung["rest_end_s"] - hung["rest_begin_s"]) / 60
    assert not minutes.is_between(50.5, 60.5).any()
    assert minutes.is_between(20, 50.5).sum() > 20
    assert minutes.is_between(60.5, 75).any()


def test_idle_nodes_and_gpus_are_where_work_differs_by_two(
    runs: list[SimulatedRun], truth: pl.DataFrame
) -> None:
    planted = {
        "idle_nodes": {"idle_nodes", "half_used"},
        "idle_gpus": {"one_gpu", "one_gpu_idle", "half_used"},
    }
    planted["idle_gpus"] |= {"idle_nodes", "imbalanced", "work_of_one_at_the_end"}
    for name, scenarios in planted.items():
        yes = truth.filter(pl.col(name))
        assert set(yes["scenario"]) <= scenarios
        assert yes.height > 10
    assert truth.filter(pl.col("scenario").is_in(["one_gpu", "idle_nodes"]))["idle_gpus"].all()
    assert len(runs) == truth.height


def test_steady_work_is_stable_and_work_in_turns_is_not(truth: pl.DataFrame) -> None:
    regular = truth.filter(pl.col("scenario") == "regular")["stable"].drop_nulls()
    assert len(regular) > 10
    assert regular.all()
    for scenario in (
        "bursty",
        "slow_bursts",
        "changing_levels",
        "interactive",
        "hang_spinning",
        "stall",
    ):
        assert not truth.filter(pl.col("scenario") == scenario)["stable"].any(), scenario
    assert truth.filter(pl.col("scenario") == "idle")["stable"].all()


def test_another_seed_is_another_population_and_the_same_is_the_same() -> None:
    def drawn(seed: int) -> list[tuple[int, int]]:
        return [
            (request.submit_s, request.run_s)
            for request in sample_requests(SimulationPlan.judging(60, seed=seed))
        ]

    assert drawn(4) == drawn(4)
    assert drawn(4) != drawn(5)
