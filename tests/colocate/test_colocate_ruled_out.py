"""Ruling pairs out at once says what judging each of them says."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from colocate_jobs import JudgeByHand, job, lake_of

from tachograph.annexes.share import proposals as judging
from tachograph.annexes.share.colocation import ColocateReport, build_colocate_report
from tachograph.annexes.share.demand import Calibration, Demand, Footprint, GpuCapacity
from tachograph.annexes.share.partitions import ruled_out
from tachograph.annexes.share.proposals import PairJudge
from tachograph.annexes.share.sharing_json import colocate_json
from tachograph.catalog.arrays import Flags
from tachograph.catalog.config import InterferenceOptions, Thresholds

SETTINGS = InterferenceOptions()


def some_jobs(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Runs of kinds of which some hardly work, some nearly all the time, on GPUs with MIG and
    without.
    """
    chance = random.Random(seed)
    for kind in range(count):
        busy = chance.choice([0.06, 0.09, 0.12, 0.4, 1.0])
        active = busy * chance.choice([0.02, 0.08, 0.3, 0.9])
        requested = {
            "gr_engine_active_mean": busy,
            "sm_active_mean": active,
            "dram_active_mean": busy * chance.choice([0.0, 0.1, 0.3, 0.45]),
            "fp32_active_mean": active * chance.choice([0.0, 0.2, 0.6]),
            "tensor_active_mean": active * chance.choice([0.0, 0.1, 0.5]),
            "hbm_used_mib_max": chance.choice([4e3, 1.5e4, 3e4, 4.2e4]),
        }
        model, memory = chance.choice([("A100 SXM 80GB", 81920.0), ("A40", 49152.0)])
        where = {
            "user": chance.choice(["ann", "bob"]),
            "name": f"k{kind}",
            "gpu_model": model,
            "hbm_mib": memory,
        }
        for run in range(chance.choice([1, 2])):
            yield job(
                10 * kind + run,
                elapsed_s=chance.choice([3600.0, 7200.0, 1e4]),
                **where,
                **requested,
            )


def report(rows: Sequence[dict[str, Any]], judge: type[PairJudge], **given: Any) -> ColocateReport:
    summaries, verdicts = lake_of(*rows)
    return build_colocate_report(
        summaries,
        verdicts,
        settings=SETTINGS,
        thresholds=Thresholds(),
        calibration=Calibration(achievable_share=0.8),
        judge=judge,
        least_runs=1,
        **given,
    )


def nothing_ruled_out(slowdown: Any, *_: Any, **__: Any) -> Flags:
    return np.zeros(slowdown.shape, dtype=bool)


@pytest.mark.parametrize(("seed", "judge"), [(1, JudgeByHand), (2, PairJudge)])
def test_the_same_as_judging_every_pair(
    seed: int, judge: type[PairJudge], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = list(some_jobs(seed, 28))
    quick, quick_all = report(rows, judge), report(rows, judge, every=True)
    monkeypatch.setattr(judging, "ruled_out", nothing_ruled_out)
    slow = report(rows, judge)
    assert colocate_json(quick) == colocate_json(slow)
    assert quick_all.proposals == slow.proposals
    assert quick_all.short == slow.short
    assert slow.proposals
    assert sum(count for _, count in slow.short) > 20


def test_what_is_not_known_or_reported_by_footprints_is_never_ruled_out() -> None:
    wide = Demand(name="a", cycles={"fma": 1.0}, sm_share=1.0)
    result = Demand(
        name="b", cycles={"fma": 1.0}, sm_share=1.0, footprint=Footprint(132, 128, 32, 0.0)
    )
    slowed = np.array([[2.0, np.nan, 2.0], [np.nan, 2.0, 2.0], [2.0, 2.0, 2.0]])
    found = ruled_out(
        slowed, [wide, wide, result], busy=[1.0] * 3, gpu=GpuCapacity(name="A40"), settings=SETTINGS
    )
    assert found.tolist() == [[True, False, False], [False, True, False], [False, False, False]]
