"""The three ways to a score on common inputs: where they agree, and where they differ as
documented.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.annexes.share import nsight_scores
from tachograph.catalog.rows import JobGpuRow
from tachograph.catalog.score_formulas import ELAPSED, SM_ELAPSED, TENSOR
from tachograph.judge.score_ways import profiled_way, sampled_way
from tachograph.judge.scores import with_scores
from tachograph.sources.score_sums import PmSums, sums_of, sums_of_row, total

SM_HZ, DRAM_HZ, W_HW = 1.98e9, 3.201e9, 64
KEY: dict[str, Any] = {"node": "n1", "gpu": 0, "mig": None}
GPU: JobGpuRow = {"node": "n1", "gpu": 0, "mig": None, "gpu_model": "NVIDIA H200"}
METRICS = (
    *("sm__cycles_active.avg", "sm__cycles_elapsed.avg", "sm__warps_active.avg"),
    *("dram__cycles_active.avg", "dram__cycles_elapsed.avg"),
)


def sample(
    begin: float, active: float, warps: float, dram: float, *, length: float = 0.05
) -> PmSums:
    """A sample: share of cycles in which SMs and memory were active, warps in an active cycle."""
    sm, memory = SM_HZ * length, DRAM_HZ * length
    values = (active * sm, sm, active * sm * warps, dram * memory, memory)
    return PmSums(begin, begin + length, length, 1, sums=dict(zip(METRICS, values, strict=True)))


def summed(parts: Iterable[PmSums]) -> PmSums:
    whole = total(parts)
    assert whole is not None
    return whole


def dcgm(active: float, occupancy: float, dram: float, *, clocks: bool = True) -> dict[str, Any]:
    row = {"gpu_model": "H200 SXM 141GB", "sm_active_mean": active, "sm_occupancy_mean": occupancy}
    row |= {"dram_active_mean": dram, "sm_clock_mhz_mean": SM_HZ / 1e6 if clocks else None}
    row |= {"mem_clock_mhz_mean": DRAM_HZ / 1e6 if clocks else None}
    return with_scores(
        pl.DataFrame(
            [row], schema_overrides=dict.fromkeys(row, pl.Float64) | {"gpu_model": pl.String}
        )
    ).row(0, named=True)


activities = st.tuples(st.floats(0.01, 1), st.floats(0, 64), st.floats(0, 1))


@given(st.lists(activities, min_size=1, max_size=20))
def test_the_three_ways_agree_on_the_same_cycles(samples: list[tuple[float, float, float]]) -> None:
    """DCGM's means of the same samples, with the clocks at which they were counted, give the
    same scores.
    """
    parts = [sample(0.05 * at, *one) for at, one in enumerate(samples)]
    whole = summed(parts)
    of_pm = whole.scores(W_HW)
    report = {**whole.sums, ELAPSED: whole.sums[SM_ELAPSED]}
    of_nsight = (nsight_scores.practice_gpu(report), nsight_scores.practice_gpumem(report))
    counters = whole.counters(W_HW)
    of_dcgm = dcgm(counters["sm_active"], counters["sm_occupancy"], counters["dram_active"])
    # in plain Python
    count = len(samples)
    occupancy = sum(active * warps for active, warps, _ in samples) / count / W_HW
    s, d = sum(one[0] for one in samples) / count, sum(one[2] for one in samples) / count
    assert of_pm["score_gpu"] == pytest.approx(100 * (1 - occupancy))
    assert of_pm["score_gpumem"] == pytest.approx(100 * d * DRAM_HZ / (d * DRAM_HZ + s * SM_HZ))
    assert of_pm["score_gpumem_normalized"] == pytest.approx(100 * d / (d + s))
    for name, one in zip(("score_gpu", "score_gpumem"), of_nsight, strict=True):
        assert one.value == of_pm[name]
    for name, value in of_pm.items():
        assert of_dcgm[name] == pytest.approx(value)


def test_without_clocks_only_the_normalized_form_is_the_same() -> None:
    whole = sample(0, 1.0, 32, 1.0)
    of_dcgm = dcgm(1.0, 0.5, 1.0, clocks=False)
    of_pm = whole.scores(W_HW)
    assert (of_dcgm["score_gpumem"], of_dcgm["score_gpumem_normalized"]) == (50.0, 50.0)
    # Memory counts more cycles in the same time.
    assert of_pm["score_gpumem"] == pytest.approx(61.7834394904)
    assert of_pm["score_gpumem_normalized"] == pytest.approx(50.0)


def test_a_smaller_w_max_limits_warps_per_active_cycle() -> None:
    """Half of the time 64 warps, W_max 16: as published 100 (1 - 16/16 x 0.5), not 1 -
    min(occupancy x 4, 1).
    """
    whole = sample(0, 0.5, 64, 0.1)
    assert whole.scores(16)["score_gpu"] == pytest.approx(50.0)
    # Per elapsed cycle: four times it is above 1.
    assert whole.counters(W_HW)["sm_occupancy"] == pytest.approx(0.5)


def test_averages_come_first_and_clamps_after() -> None:
    """With W_max 32 one sample of 64 warps and one of none are 32 on average, not 16."""
    parts = [sample(0, 1.0, 64, 0.5), sample(0.05, 1.0, 0, 0.5)]
    whole = summed(parts)
    assert whole.scores(32)["score_gpu"] == pytest.approx(0.0)
    each = [one.scores(32)["score_gpu"] for one in parts]
    assert each == pytest.approx([0.0, 100.0])  # whose mean is 50


def test_scores_of_minutes_are_recomputed_exactly_from_stored_sums() -> None:
    rng = random.Random(3)
    parts = [sample(0.05 * at, rng.random(), 64 * rng.random(), rng.random()) for at in range(2000)]
    minutes: dict[int, PmSums] = {}
    for one in parts:
        minutes.setdefault(one.minute, PmSums(one.begin, one.begin)).add(one)
    rows = [one.row(**KEY, max_warps=W_HW, cut=None) for one in minutes.values()]
    again = summed(map(sums_of_row, rows))
    straight = summed(parts)
    assert (len(rows), again.samples) == (2, 2000)
    for name, value in again.scores(W_HW).items():
        assert math.isclose(value or 0, straight.scores(W_HW)[name] or 0, rel_tol=1e-12)
    assert sums_of(again.as_json()) == again


def test_what_was_cut_stays_missing() -> None:
    only_sm = PmSums(0, 1, 1, 1, sums=dict.fromkeys(METRICS[:3], 1.0))
    row = only_sm.row(**KEY, max_warps=64, cut="score_gpumem")
    assert (row["dram_cycles_active"], row["score_gpumem"], row["score_gpumem_normalized"]) == (
        None,
        None,
        None,
    )
    assert only_sm.scores(None)["score_gpu"] is None  # of an unknown device
    assert "dram_active" not in only_sm.counters(64)


def test_rest_between_kernels_counts_in_pm_sampling_and_not_in_nsight() -> None:
    """A kernel for half of the time: its report has 100 % activity, the samples of the whole
    time 50 %.
    """
    kernel = dict(sample(0, 1.0, 64, 0.5).sums)
    kernel[ELAPSED] = kernel[SM_ELAPSED]
    of_report = profiled_way([kernel, kernel], max_warps=W_HW)
    rows = [sample(60.0, 0.5, 64, 0.25, length=30).row(**KEY, max_warps=W_HW, cut=None)]
    begin, end = datetime.fromtimestamp(60, UTC), datetime.fromtimestamp(120, UTC)
    of_samples = sampled_way(rows, gpus=[GPU], begin=begin, end=end)
    assert of_report.scores["score_gpu"] == pytest.approx(0.0)
    assert of_samples.scores["score_gpu"] == pytest.approx(50.0)
    assert of_report.scores["score_gpumem"] == pytest.approx(of_samples.scores["score_gpumem"])


def test_reports_with_warps_per_active_cycle_give_the_same() -> None:
    whole = dict(sample(0, 0.7, 24, 0.3).sums)
    whole[ELAPSED] = whole[SM_ELAPSED]
    ratio = dict(whole)
    ratio["sm__warps_active.avg.per_cycle_active"] = (
        ratio.pop("sm__warps_active.avg") / whole["sm__cycles_active.avg"]
    )
    one, other = (profiled_way([launch, whole], max_warps=W_HW) for launch in (whole, ratio))
    assert one.scores["score_gpu"] == pytest.approx(other.scores["score_gpu"])


def test_minutes_that_are_in_part_of_others_are_left_out() -> None:
    rows = [
        sample(60.0 * at, active, 64, 0.2, length=60).row(**KEY, max_warps=64, cut="tensor_active")
        for at, active in enumerate((1.0, 0.5, 1.0))
    ]
    begin, end = datetime.fromtimestamp(30, UTC), datetime.fromtimestamp(150, UTC)
    way = sampled_way(rows, gpus=[GPU], begin=begin, end=end)
    # Of the minute between.
    assert way.scores["score_gpu"] == pytest.approx(50.0)
    assert way.notes == (
        "2 minutes at begin or end left out, in part of others",
        "not counted in one pass: tensor_active",
    )


@given(st.permutations(range(12)), st.integers(1, 11))
def test_order_and_grouping_of_samples_do_not_matter(order: list[int], split: int) -> None:
    parts = [sample(0.05 * at, (at + 1) / 12, at * 5.0, at / 12) for at in range(12)]
    straight = summed(parts)
    mixed = [parts[at] for at in order]
    other = summed([summed(mixed[:split]), summed(mixed[split:])])
    assert (other.begin, other.end, other.samples) == (
        straight.begin,
        straight.end,
        straight.samples,
    )
    for name, value in straight.scores(64).items():
        assert other.scores(64)[name] == pytest.approx(value)


@pytest.mark.parametrize("form", ["row", "document"])
def test_sums_of_an_older_version_keep_their_elapsed_cycles(form: str) -> None:
    """A lake or a recording from before has cycles of GPCs alone; later ones have those of SMs."""
    new = sample(60, 0.5, 16, 0.25)
    old = PmSums(0, 60, 60, 10, sums=dict(new.sums))
    old.sums[ELAPSED] = old.sums.pop(SM_ELAPSED)
    row = old.row(**KEY, max_warps=64, cut=None)
    assert (row["sm_cycles_elapsed"], row["gpc_cycles_elapsed"]) == (None, old.sums[ELAPSED])
    again = sums_of_row(row) if form == "row" else sums_of(old.as_json())
    assert again.scores(64) == new.scores(64)
    both = summed([again, new])
    assert both.counters(64)["sm_active"] == pytest.approx(0.5)


def test_cycles_of_gpcs_do_not_lower_the_activity_of_sms() -> None:
    """As on an H100: the SMs were active in all of their cycles, of which GPCs counted 4.5 % more."""
    sums = dict(sample(0, 1.0, 64, 0.5).sums)
    sums |= {ELAPSED: 1.045 * sums[SM_ELAPSED], TENSOR: 0.9 * sums[SM_ELAPSED]}
    counters = PmSums(0, 1, 0.05, 1, sums=sums).counters(64)
    shares = [counters[name] for name in ("sm_active", "sm_occupancy", "tensor_active")]
    assert shares == pytest.approx([1.0, 1.0, 0.9])
    assert counters["sm_clock_mhz"] == pytest.approx(1980)
