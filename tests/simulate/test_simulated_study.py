"""The population of the month: the shapes that the study published, in the digits that exporters
print.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from sized_plan import STUDY_LONGEST_S, STUDY_SIZES, month_plan
from tachograph.annexes.lab.simulate.behaviours import JobKind
from tachograph.annexes.lab.simulate.cluster import SimulatedCluster, simulate
from tachograph.annexes.lab.simulate.plan import NodeGroup
from tachograph.annexes.lab.simulate.workload import SimulatedRun, place_runs, sample_requests

PREFIX = "nersc_ldms_dcgm_"
FOUR_DAYS = replace(
    month_plan(),
    days=4,
    groups=(NodeGroup(600, 4, "A100 SXM 40GB"), NodeGroup(100, 4, "A100 SXM 80GB")),
)


@pytest.fixture(scope="module")
def runs() -> list[SimulatedRun]:
    return [
        run
        for run in place_runs(FOUR_DAYS, sample_requests(FOUR_DAYS))
        if run.start_s is not None and run.gpus
    ]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCluster:
    plan = replace(
        month_plan(),
        days=1,
        defects=False,
        groups=(NodeGroup(8, 4, "A100 SXM 40GB"), NodeGroup(2, 4, "A100 SXM 80GB")),
    )
    return simulate(plan, tmp_path_factory.mktemp("study"))


def test_most_jobs_hold_one_whole_node_and_some_hundreds_of_gpus(runs: list[SimulatedRun]) -> None:
    sizes = Counter(run.gpus for run in runs)
    assert 0.80 < sizes[4] / len(runs) < 0.90
    assert max(sizes) >= 512
    assert sum(count for size, count in sizes.items() if size < 4) < 0.05 * len(runs)
    assert sum(share for _, share in STUDY_SIZES) == pytest.approx(1)
    on_large = sum(FOUR_DAYS.groups[run.request.group].device.hbm_mib >= 80_000 for run in runs)
    assert 0.08 < on_large / len(runs) < 0.25


def test_jobs_run_up_to_two_days_and_fill_the_cluster(runs: list[SimulatedRun]) -> None:
    seconds = [run.request.run_s for run in runs if run.request.state != "TIMEOUT"]
    assert 36 * 3600 < max(seconds) <= STUDY_LONGEST_S
    held = sum(
        (min(run.end_s or 0, FOUR_DAYS.seconds) - (run.start_s or 0)) * run.gpus for run in runs
    )
    assert 0.6 < held / FOUR_DAYS.gpus / FOUR_DAYS.seconds <= 0.85
    per_day = len(runs) / FOUR_DAYS.days / FOUR_DAYS.gpus
    assert per_day * 31 * 7168 > 60_000


def test_pipes_of_ordinary_jobs_are_mixed_as_published(runs: list[SimulatedRun]) -> None:
    works = [
        run.behaviour.work for run in runs if run.behaviour and run.request.kind is JobKind.STEADY
    ]
    share = Counter(
        "+".join(
            name
            for name, used in (
                ("fp64", w.fp64),
                ("fp32", w.fp32),
                ("fp16", w.fp16),
                ("tensor", w.hmma + w.dfma),
            )
            if used > 0
        )
        for w in works
    )
    assert 0.45 < share["fp64"] / len(works) < 0.55
    assert 0.18 < share["fp64+tensor"] / len(works) < 0.28
    assert (
        share["fp64"]
        > share["fp64+tensor"]
        > share["fp32"]
        > share["fp32+tensor"]
        > share["fp16"]
        > 0
    )
    assert share["tensor"] > share["fp32+tensor"]
    for work in works:
        assert 0.2 <= work.util <= 1
        assert max(work.fp64, work.fp32, work.fp16, work.hmma, work.dfma) <= work.sm <= work.util
        assert 0 < work.dram <= 0.86


def test_values_have_the_digits_that_are_printed(cluster: SimulatedCluster) -> None:
    frame = pl.concat([pl.read_parquet(file) for file in cluster.telemetry])
    busy = frame.filter(pl.col(f"{PREFIX}gpu_utilization") > 5)
    assert busy.height > 0.2 * frame.height
    parts = {
        "sm_active": 1e6,
        "dram_active": 1e6,
        "fp64_active": 1e6,
        "power_usage": 1e3,
        "pcie_rx_bytes": 1.0,
    }
    for name, per_unit in parts.items():
        values = busy[PREFIX + name].to_numpy()
        nearest = (np.rint(values.astype(np.float64) * per_unit) / per_unit).astype(np.float32)
        assert (values == nearest).all(), name
        assert len(set(values.tolist())) > 1000
