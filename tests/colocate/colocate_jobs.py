"""Made-up jobs that could share a GPU, and a law of sharing small enough to follow by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import polars as pl

from jobframes import START, frame, summary
from tachograph.annexes.share.demand import (
    NOTHING,
    Calibration,
    CorunBounds,
    Demand,
    GpuCapacity,
)
from tachograph.annexes.share.mixes import SmShares
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.tables import JOB_SUMMARIES

RESOURCES = ("issue", "fma", "fp16", "fp64", "tensor", "dram")


def needs(demand: Demand, achievable: float) -> dict[str, float]:
    """What a demand takes of each resource, as a share of what there is."""
    return {**demand.cycles, "dram": (demand.dram or 0.0) / achievable}


def by_hand(one: Demand, other: Demand, achievable: float) -> tuple[float, str | None]:
    """Slowdown of both by the highest sum above 1, and its resource."""
    both = [needs(demand, achievable) for demand in (one, other)]
    sums = {name: sum(need.get(name, 0.0) for need in both) for name in RESOURCES}
    short = max(sums, key=lambda name: sums[name])
    return (sums[short], short) if sums[short] > 1 else (1.0, None)


def law_by_hand(
    rows: Sequence[Demand],
    columns: Sequence[Demand],
    *,
    gpu: GpuCapacity,
    calibration: Calibration,
    settings: InterferenceOptions,
    shares: SmShares | None = None,
) -> CorunBounds:
    """Slowdown by hand, at least half and at most twice of it lost; on half of the SMs 1.06x."""
    cells = [
        [by_hand(row, column, calibration.achievable_share) for column in columns] for row in rows
    ]
    lost = np.array([[slowdown - 1 for slowdown, _ in line] for line in cells])
    if shares is not None:
        lost = np.full(lost.shape, 0.06)
    places = [
        [NOTHING if name is None else RESOURCES.index(name) for _, name in line] for line in cells
    ]
    binding = np.array(places, np.uint8)
    in_turn = np.zeros(lost.shape)
    return CorunBounds(1 + lost, 1 + lost / 2, 1 + 2 * lost, binding, RESOURCES, in_turn)


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
    return dict(summary(**(row | given)))


def lake_of(*rows: dict[str, Any], stable: str = "yes") -> tuple[pl.DataFrame, pl.DataFrame]:
    """Summaries, and the verdict on `stable` of each."""
    jobs = frame(JOB_SUMMARIES, rows)
    verdicts = jobs.select("job_key", code=pl.lit("stable"), verdict=pl.lit(stable))
    return jobs, verdicts
