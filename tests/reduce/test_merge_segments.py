"""Accumulators add up: cut a job at any samples into days, reduce the pieces, put them together in any way."""

from __future__ import annotations

import itertools
import random
from datetime import timedelta
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from random_cluster import random_cluster

from in_memory import outcome
from madelake import held, job, utc
from tachograph.pipeline.accumulators import merge_segments


@pytest.fixture(scope="module")
def pieces() -> list[pl.DataFrame]:
    """Segments of three days; sampling intervals made equal, whose median is not what this is about."""
    cluster = random_cluster(11)
    found = outcome(cluster.samples, cluster.jobs, cluster.allocations, devices=cluster.devices)
    parts = [part.segments.with_columns(interval_us=pl.lit(1e7), gap_us=pl.lit(1e9)) for part in found.reduced]
    assert len(parts) == 3
    shared = parts[0].join(parts[1], on=["run", "node", "gpu", "mig"], how="semi", nulls_equal=True)
    assert shared.height > 5
    return parts


def same(left: pl.DataFrame, right: pl.DataFrame) -> None:
    assert_frame_equal(left, right.select(left.columns), check_exact=False, rel_tol=1e-12, abs_tol=0)


def test_merging_is_associative(pieces: list[pl.DataFrame]) -> None:
    first, second, third = pieces
    at_once = merge_segments(pieces)
    same(at_once, merge_segments([merge_segments([first, second]), third]))
    same(at_once, merge_segments([first, merge_segments([second, third])]))


def test_order_of_pieces_is_irrelevant(pieces: list[pl.DataFrame]) -> None:
    at_once = merge_segments(pieces)
    for order in itertools.permutations(pieces):
        assert_frame_equal(merge_segments(order), at_once)


def test_merging_one_piece_changes_nothing(pieces: list[pl.DataFrame]) -> None:
    key = ["run", "node", "gpu", "mig"]
    assert_frame_equal(merge_segments(pieces[:1]), pieces[0].sort(key))


def test_nothing_is_nothing() -> None:
    assert merge_segments([]).height == 0


def shifted(hours: float, seed: int) -> dict[str, Any]:
    """Summary of one job of two hours with everything moving, that begins `hours` before midnight or after it."""
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


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_midnight_changes_nothing(seed: int) -> None:
    """The same job before midnight and across it, at several places, one of them within a sample's interval."""
    times = {"job_key", "submit", "start", "end", "as_of"}
    whole = shifted(5.0, seed)
    for hours in (1.0, 0.123, 1.9, 1 / 3600):
        cut = shifted(hours, seed)
        for name in set(whole) - times:
            left, right = whole[name], cut[name]
            assert right == (pytest.approx(left, rel=1e-12) if isinstance(left, float) else left), (name, hours)
