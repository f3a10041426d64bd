"""Made-up jobs that could share a GPU, and an estimator small enough to follow by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl

from jobframes import START, frame, summary
from tachograph.annexes.share.demand import (
    Calibration,
    CorunOutcome,
    Demand,
    Estimate,
    Matrix,
    Sharing,
)
from tachograph.annexes.share.proposals import PairJudge
from tachograph.catalog.arrays import Floats
from tachograph.catalog.tables import JOB_SUMMARIES

SHARING = Sharing("mps", lasting=True)
RESOURCES = ("issue", "fma", "fp16", "fp64", "tensor", "dram", "l2_bandwidth", "l2")


def requested(demand: Demand, name: str, achievable: float) -> float | None:
    """What a demand asks of a resource, as a share of what there is."""
    if name == "dram":
        return (
            None
            if demand.dram is None
            else demand.dram / (achievable if demand.dram_of == "peak" else 1.0)
        )
    return demand.cycles.get(name)


def sums(demands: Sequence[Demand], achievable: float) -> dict[str, float]:
    """What is asked of each resource that anybody measured."""
    found = {}
    for name in RESOURCES:
        known = [
            share
            for demand in demands
            if (share := requested(demand, name, achievable)) is not None
        ]
        if known:
            found[name] = math.fsum(known)
    return found


def on_shares(
    demands: Sequence[Demand], sums: Mapping[str, float] | None = None, safe: bool = False
) -> Estimate:
    """Nothing is slowed by others; at the worst by half."""
    alone = tuple(CorunOutcome(demand.name, 1.0, 2.0, None) for demand in demands)
    return Estimate(alone, sums or {}, None, None, safe, ())


def by_hand(demands: Sequence[Demand], calibration: Calibration) -> Estimate:
    """All are slowed alike, by the highest sum above 1."""
    found = sums(demands, calibration.achievable_share)
    short = max(found, key=lambda name: found[name], default=None)
    slowdown = max(1.0, found[short]) if short else 1.0
    unmeasured = any("issue" not in demand.cycles for demand in demands)
    outcome = [
        CorunOutcome(demand.name, slowdown, float(len(demands)), short if slowdown > 1 else None)
        for demand in demands
    ]
    return Estimate(tuple(outcome), found, None, None, slowdown == 1 and not unmeasured, ())


class JudgeByHand(PairJudge):
    """Judges by `by_hand`; under shares nothing is slowed by others."""

    def pairs(
        self, rows: Sequence[Demand], columns: Sequence[Demand], sharing: Sharing = SHARING
    ) -> Matrix:
        shape = (len(rows), len(columns))
        first = [
            [by_hand([row, column], self.calibration).members[0] for column in columns]
            for row in rows
        ]
        slowdown = np.array([[one.slowdown for one in line] for line in first], float)
        slowdown = slowdown.reshape(shape)
        places = [
            [255 if one.binding is None else RESOURCES.index(one.binding) for one in line]
            for line in first
        ]
        binding = np.array(places, np.uint8).reshape(shape)
        names = tuple(row.name for row in rows), tuple(column.name for column in columns)
        gain, safe = np.full(shape, np.nan), np.zeros(shape, np.uint8)
        return Matrix(*names, RESOURCES, slowdown, slowdown, gain, binding, safe)

    def estimate(self, demands: Sequence[Demand], sharing: Sharing = SHARING) -> Estimate:
        found = by_hand(demands, self.calibration)
        return found if sharing.shares is None else on_shares(demands, found.sums, found.safe)

    def alone(self, demands: Sequence[Demand]) -> Floats:
        return np.ones((len(demands), 1 + (self.gpu.sms or 0)))


def job(number: int, **given: Any) -> dict[str, Any]:
    """A row of job_summaries: one busy GPU of an A100 80 GB, light on everything, an hour."""
    start = START + timedelta(hours=number)
    elapsed = given.get("elapsed_s", 3600.0)
    row = {
        "job_key": f"c:{number}:1",
        "job_id": str(number),
        "display_id": str(number),
        "user": "ann",
        "name": "train",
        "gpus": 1,
        "gpu_model": "A100 SXM 80GB",
        "hbm_mib": 81920.0,
        "samples": 360,
        "coverage": 1.0,
        "elapsed_s": elapsed,
        "start": start,
        "end": start + timedelta(seconds=elapsed),
        "gr_engine_active_mean": 0.8,
        "sm_active_mean": 0.4,
        "sm_occupancy_mean": 0.1,
        "dram_active_mean": 0.08,
        "dram_active_max": 0.2,
        "fp64_active_mean": 0.0,
        "fp32_active_mean": 0.08,
        "fp16_active_mean": 0.0,
        "tensor_active_mean": 0.04,
        "hbm_used_mib_max": 10240.0,
        "gpus_never_used": 0,
    }
    return summary(**(row | given))


def lake_of(*rows: dict[str, Any], stable: str = "yes") -> tuple[pl.DataFrame, pl.DataFrame]:
    """Summaries, and the verdict on `stable` of each."""
    jobs = frame(JOB_SUMMARIES, rows)
    verdicts = jobs.select("job_key", code=pl.lit("stable"), verdict=pl.lit(stable))
    return jobs, verdicts
