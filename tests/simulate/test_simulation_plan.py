"""Plans of simulated clusters, the jobs drawn for them, and where these are placed."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sized_plan import month_plan, sized_plan
from tachograph.annexes.lab.simulate.behaviours import JobKind
from tachograph.annexes.lab.simulate.defects import DefectKind
from tachograph.annexes.lab.simulate.defects import sample_defects as draw_defects
from tachograph.annexes.lab.simulate.plan import DRIVER, NodeGroup, SimulationPlan
from tachograph.annexes.lab.simulate.telemetry import parts_of_nodes
from tachograph.annexes.lab.simulate.workload import (
    SimulatedRequest,
    SimulatedRun,
    place_runs,
    sample_requests,
)
from tachograph.catalog.errors import UsageError

LARGE = SimulationPlan(
    days=6, groups=(NodeGroup(200, 4, "A100 SXM 40GB"), NodeGroup(40, 4, "A100 SXM 80GB"))
)


@pytest.fixture(scope="module")
def requests() -> list[SimulatedRequest]:
    return sample_requests(LARGE)


@pytest.fixture(scope="module")
def runs(requests: list[SimulatedRequest]) -> list[SimulatedRun]:
    return place_runs(LARGE, requests)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"interval_s": 7}, "interval_s must divide a day"),
        ({"interval_s": 1200}, "at most 600"),
    ],
)
def test_impossible_plans_are_named(changes: dict[str, int], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        SimulationPlan(**changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("samples", [1, 50_000, 3_000_000, 200_000_000, 1_920_000_000])
def test_benchmark_plans_have_the_requested_samples(samples: int) -> None:
    plan = sized_plan(samples)
    assert samples <= plan.samples <= max(1.05 * samples, samples + 4 * 8640 * plan.days)
    biggest = max(
        sum(plan.groups[n.group].gpus for n in part) * 8640
        for part in parts_of_nodes(plan, plan.nodes())
    )
    assert biggest <= plan.rows_per_file


def test_month_is_the_size_of_the_study() -> None:
    plan = month_plan()
    assert (plan.gpus, plan.days) == (7168, 31)
    assert plan.samples == 7168 * 31 * 8640 == 1_919_877_120
    files = parts_of_nodes(plan, plan.nodes())
    assert sum(len(part) for part in files) == 1792
    assert all(len({node.group for node in part}) == 1 for part in files)


def test_jobs_ask_for_the_load(requests: list[SimulatedRequest]) -> None:
    requested = sum(request.gpus * request.run_s for request in requests)
    assert requested / LARGE.gpus / LARGE.seconds == pytest.approx(LARGE.load, rel=0.02)


def test_arrivals_are_poisson(requests: list[SimulatedRequest]) -> None:
    """Gaps between independent arrivals have the mean as standard deviation, and exceed it with
    probability 1/e.
    """
    planned = len(JobKind) * LARGE.each_kind
    arrivals = sorted({r.submit_s for r in requests if r.array is None and r.serial >= 0})
    gaps = np.diff(arrivals[planned:])
    assert len(gaps) > 900
    assert gaps.std() / gaps.mean() == pytest.approx(1, abs=0.12)
    assert (gaps > gaps.mean()).mean() == pytest.approx(math.exp(-1), abs=0.04)


def overlaps(plan: SimulationPlan, runs: list[SimulatedRun]) -> int:
    held: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for run in runs:
        for node, gpus in run.places:
            for gpu in gpus:
                assert 0 <= gpu < plan.groups[plan.nodes()[node].group].gpus
                held.setdefault((node, gpu), []).append((run.start_s or 0, run.end_s or 0))
    return sum(
        after[0] < before[1] for spans in held.values() for before, after in pairwise(sorted(spans))
    )


@settings(max_examples=settings().max_examples // 2)  # each places the jobs of a plan
@given(
    seed=st.integers(0, 10_000),
    groups=st.lists(
        st.builds(
            NodeGroup,
            st.integers(1, 5),
            st.sampled_from([1, 2, 4, 8]),
            st.sampled_from(sorted(DRIVER)),
        ),
        min_size=1,
        max_size=3,
    ),
    shared=st.sampled_from([0.0, 0.4, 1.0]),
    load=st.floats(0, 1.5),
)
def test_no_plan_puts_two_jobs_on_one_gpu(
    seed: int, groups: list[NodeGroup], shared: float, load: float
) -> None:
    plan = SimulationPlan(seed=seed, groups=tuple(groups), shared=shared, load=load, interval_s=600)
    runs = place_runs(plan, sample_requests(plan))
    assert overlaps(plan, runs) == 0
    for run in runs:
        if run.behaviour is not None and run.start_s is not None and run.end_s is not None:
            begins = [phase.begin_s for phase in run.behaviour.phases(0)]
            assert begins == sorted(set(begins))
            assert begins[0] == 0
            assert begins[-1] < run.end_s - run.start_s


def test_defects_never_overlap_on_a_node() -> None:
    drawn = draw_defects(LARGE, LARGE.nodes())
    assert sum(len(each) for each in drawn.values()) > 540
    for defects in drawn.values():
        for before, after in pairwise(defects):
            assert before.end_ns < after.begin_ns
    kinds = Counter(defect.kind for defects in drawn.values() for defect in defects)
    assert kinds[DefectKind.GAP] / (LARGE.days * 240) == pytest.approx(0.10, rel=0.25)
