"""Simulated GPUs that recurring jobs share: work is conserved, GPUs count the work of all of them."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import pairwise
from statistics import fmean

import numpy as np
import polars as pl
import pytest

from tachograph.annexes.lab.simulate.cluster import SimulatedCluster, simulate
from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.annexes.lab.simulate.shared_gpus import HABITS, sharing_runs
from tachograph.annexes.lab.simulate.telemetry import column_name
from tachograph.annexes.lab.simulate.workload import SimulatedRun

PLAN = SimulationPlan.sharing(seed=3)
JOBS = {job.name: job for habit in HABITS for job in habit.jobs}
PLANTED = {pair: factor for habit in HABITS for pair, factor in habit.slowdowns.items()}
PACE = {"H100 SXM 80GB": 1.0, "A100 SXM 80GB": 1.5}
NOISE = 0.06
HANDOVER_S = 60


@pytest.fixture(scope="module")
def runs() -> list[SimulatedRun]:
    return sharing_runs(PLAN)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCluster:
    return simulate(PLAN, tmp_path_factory.mktemp("sharing") / "cluster")


def span(run: SimulatedRun) -> tuple[int, int]:
    assert run.start_s is not None
    assert run.end_s is not None
    return run.start_s, run.end_s


def by_gpu(runs: list[SimulatedRun]) -> dict[tuple[int, int], list[SimulatedRun]]:
    found = defaultdict(list)
    for run in runs:
        ((node, (gpu,)),) = run.places
        found[node, gpu].append(run)
    return found


def rate(run: SimulatedRun, present: list[SimulatedRun]) -> float:
    """How fast a run goes on with all that are present."""
    others = [other.request.name for other in present if other is not run]
    return 1 / math.prod(PLANTED.get((run.request.name, other), 1.0) for other in others)


def test_a_slowed_run_does_the_work_of_one_alone(runs: list[SimulatedRun]) -> None:
    """By start and end of all runs on its GPU alone, whatever the simulator did on the way."""
    logs: dict[str, list[float]] = defaultdict(list)
    for holders in by_gpu(runs).values():
        borders = sorted({second for run in holders for second in span(run)})
        work = dict.fromkeys((run.request.job_id for run in holders), 0.0)
        for low, high in pairwise(borders):
            present = [run for run in holders if span(run)[0] <= low and high <= span(run)[1]]
            for run in present:
                work[run.request.job_id] += rate(run, present) * (high - low)
        for run in holders:
            pace = PACE[PLAN.groups[run.request.group].model]
            nominal_s = 60 * pace * JOBS[run.request.name].minutes
            done = math.log(work[run.request.job_id] / nominal_s)
            if run.state == "COMPLETED":
                logs[run.request.name].append(done)
            else:
                assert done < 0
    assert logs.keys() == JOBS.keys()
    for done_of_job in logs.values():
        assert abs(fmean(done_of_job)) < 0.03
        assert max(map(abs, done_of_job)) < 0.18  # of a spread of 4 %


def test_runs_have_company_exactly_where_they_meet(runs: list[SimulatedRun]) -> None:
    for holders in by_gpu(runs).values():
        for run in holders:
            (start, end), others = span(run), [other for other in holders if other is not run]
            common = [min(span(other)[1], end) - max(span(other)[0], start) for other in others]
            assert run.has_company == any(seconds > HANDOVER_S for seconds in common)
            assert run.request.share is not None or not run.has_company
        assert max(span(run)[1] for run in holders) < PLAN.seconds


@pytest.mark.parametrize(
    ("counter", "level"),
    [("fp64_active", "fp64"), ("tensor_active", "hmma"), ("hbm_used_mib", "hbm_mib")],
)
def test_a_gpu_counts_the_work_of_all_its_jobs(
    cluster: SimulatedCluster, runs: list[SimulatedRun], counter: str, level: str
) -> None:
    samples = pl.concat([pl.read_parquet(file) for file in cluster.telemetry])
    names = [node.name for node in PLAN.nodes()]
    for (node, gpu), holders in by_gpu(runs).items():
        here = samples.filter(ProducerName=names[node], gpu_id=gpu).sort("ts_ns")
        seconds = here["ts_ns"].to_numpy() / 1e9 - PLAN.start_s
        expected, known = np.zeros(seconds.size), np.ones(seconds.size, dtype=bool)
        for run in holders:
            start, end = span(run)
            # times are rounded to seconds
            known &= (abs(seconds - start) > 2) & (abs(seconds - end) > 2)
        for place in np.flatnonzero(known):
            present = [run for run in holders if span(run)[0] <= seconds[place] < span(run)[1]]
            for run in present:
                slowed = 1.0 if level == "hbm_mib" else rate(run, present)
                expected[place] += slowed * getattr(JOBS[run.request.name].work, level)
        counted = here[column_name(counter)].to_numpy()[known]
        expected = expected[known]
        least = 1.0 if level == "hbm_mib" else 1 - NOISE
        idle = 4.0 if level == "hbm_mib" else 0.0
        assert np.all(counted <= np.maximum(expected, idle) * (1 + 1e-5))
        assert np.all(counted >= least * expected * (1 - 1e-5))
    fractions = samples.select(pl.col("^.*_(active|occupancy)$").max()).row(0)
    assert max(value for value in fractions if value is not None) <= 1


def test_the_truth_has_the_planted_slowdowns(
    cluster: SimulatedCluster, runs: list[SimulatedRun]
) -> None:
    truth = pl.read_parquet(cluster.folder / "truth" / "sharing.parquet")
    planted = truth.filter(pl.col("partner").is_not_null())
    assert {(row["name"], row["partner"]): row["slowdown"] for row in planted.to_dicts()} == PLANTED
    assert truth.filter(pl.col("partner").is_null())["name"].unique().to_list() == ["solo"]
    for row in truth.to_dicts():
        mine = [
            run
            for run in runs
            if run.request.name == row["name"]
            and PLAN.groups[run.request.group].model == row["model"]
            and run.state == "COMPLETED"
        ]
        assert row["beside"] == sum(run.has_company for run in mine)
        assert row["alone"] == len(mine) - row["beside"]
    jobs = dict(cluster.jobs.select("job_id", "attribution").rows())
    for run in runs:
        expected = "ambiguous" if run.has_company else "explicit"
        assert jobs[str(run.request.job_id)] == expected
