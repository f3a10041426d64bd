"""Accumulators add up: cut a job at any samples into days, reduce the pieces, put them together
in any way.
"""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest

from in_memory import outcome
from madelake import held, job, utc


def shifted(hours: float, seed: int) -> dict[str, Any]:
    """Summary of one job of two hours with everything moving, that begins `hours` before
    midnight or after it.
    """
    dice = random.Random(seed)
    start = utc(24) - timedelta(hours=hours)
    samples = []
    energy = 0.0
    for i in range(700):
        energy = 0.0 if dice.random() < 0.01 else energy + dice.randint(0, 3000)
        skipped = dice.random() < 0.03
        row = {
            "t": start + timedelta(seconds=10 * i), "node": "n1", "gpu": 0, "energy_j": energy,
            "power_w": float(dice.randint(50, 400)), "pcie_rx_bytes_per_s": float(dice.randint(0, 1 << 20)),
            "gpu_util": dice.randint(0, 64) / 64, "xid": dice.choice([0, 0, 0, 0, 31, 79]), "pcie_replays": i // 50,
            "fp64_active": dice.randint(0, 64) / 64, "dram_active": dice.randint(0, 64) / 64,
            "throttle_reasons": dice.choice([0, 4, 0x40]), "hbm_used_mib": float(dice.randint(0, 40_000)),
        }  # fmt: skip
        if dice.random() < 0.05:
            row["xid"] = row["power_w"] = None
        if not skipped:
            samples.append(row)
    jobs = [job("1", start, start + timedelta(seconds=7000), gpus=1)]
    return outcome(samples, jobs, held("1", "n1", [0])).jobs["1"]


@pytest.mark.parametrize("seed", [1, 2])
def test_midnight_changes_nothing(seed: int) -> None:
    """The same job before midnight and across it, at several places, one of them within a
    sample's interval.
    """
    times = {"job_key", "submit", "start", "end", "as_of"}
    whole = shifted(5.0, seed)
    for hours in (1.0, 0.123, 1.9, 1 / 3600):
        cut = shifted(hours, seed)
        for name in set(whole) - times:
            left, right = whole[name], cut[name]
            assert right == (pytest.approx(left, rel=1e-12) if isinstance(left, float) else left), (
                name,
                hours,
            )
