"""Mixes of kernels, and what DCGM's means of a job tell: against the same in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
from colocate_jobs import job

from tachograph.annexes.share.demand import Demand, Matrix
from tachograph.annexes.share.mixes import (
    Mix,
    MixOutcome,
    busy_of,
    corun_of_mixes,
    issued_at_least,
    issuing,
    mix,
    of_means,
)
from tachograph.catalog.devices import DEVICES_BY_NAME


def demand(name: str = "k", **given: float | None) -> Demand:
    cycles = {
        pipe: share for pipe in ("issue", "fma") if (share := given.pop(pipe, None)) is not None
    }
    return Demand(name=name, cycles=cycles, **given)  # type: ignore[arg-type]


def test_a_mix_is_weighted_by_time_and_keeps_the_worst_phase() -> None:
    found = mix(
        [demand("a", fma=0.9, dram=0.1, seconds=1.0), demand("b", fma=0.1, dram=0.5, seconds=3.0)]
    )
    assert [share for share, _ in found.members] == [0.25, 0.75]
    assert found.mean.cycles["fma"] == pytest.approx(0.25 * 0.9 + 0.75 * 0.1)
    assert found.mean.dram == pytest.approx(0.25 * 0.1 + 0.75 * 0.5)
    assert (found.highest.cycles["fma"], found.highest.dram) == (0.9, 0.5)
    assert (found.mean.seconds, found.mean.name) == (4.0, "a + b")


def test_what_one_member_does_not_report_is_not_known_of_the_mean() -> None:
    found = mix([demand(fma=0.5, dram=0.4, hbm_bytes=1e9), demand(issue=0.3)], [1, 1])
    assert dict(found.mean.cycles) == {}
    assert (found.mean.dram, found.mean.hbm_bytes, found.highest.hbm_bytes) == (None, None, None)
    assert dict(found.highest.cycles) == {"issue": 0.3, "fma": 0.5}
    assert found.highest.dram == 0.4


def _outcome(table: dict[tuple[str, str], float], one: Mix, other: Mix) -> MixOutcome:
    def pairs(rows: list[Demand], columns: list[Demand]) -> Matrix:
        slowdown = np.array([[table[row.name, column.name] for column in columns] for row in rows])
        names = tuple(row.name for row in rows), tuple(column.name for column in columns)
        nothing = np.zeros(slowdown.shape, np.uint8)
        return Matrix(*names, ("dram",), slowdown, slowdown, slowdown, nothing, nothing)

    here, there = pairs(one.demands, other.demands), pairs(other.demands, one.demands)
    return corun_of_mixes(one, other, here=here, there=there)


def test_two_mixes_are_expected_to_meet_by_their_shares() -> None:
    table = {("a", "c"): 1.0, ("a", "d"): 2.0, ("b", "c"): 1.5, ("b", "d"): 3.0}
    table |= {("c", "a"): 1.1, ("d", "a"): 1.2, ("c", "b"): 1.3, ("d", "b"): 1.4}
    one: Mix = mix([demand("a", seconds=1.0), demand("b", seconds=3.0)])
    other: Mix = mix([demand("c", seconds=1.0), demand("d", seconds=1.0)])
    found = _outcome(table, one, other)
    assert found.slowdowns[0] == pytest.approx(0.25 * 0.5 * (1.0 + 2.0) + 0.75 * 0.5 * (1.5 + 3.0))
    assert found.slowdowns[1] == pytest.approx(0.5 * (0.25 * (1.1 + 1.2) + 0.75 * (1.3 + 1.4)))
    assert found.worst == (3.0, "b", "d")
    table["a", "c"] = math.nan
    unmeasured = _outcome(table, one, other)
    assert (unmeasured.slowdowns[0], unmeasured.worst) == (None, (3.0, "b", "d"))


def test_means_become_what_is_requested_while_busy() -> None:
    row = job(
        1,
        gr_engine_active_mean=0.5,
        sm_active_mean=0.25,
        dram_active_mean=0.1,
        fp64_active_mean=0.05,
    )
    found = of_means(row, device=DEVICES_BY_NAME["A100 SXM 80GB"])
    assert found.dram == pytest.approx(0.1 / 0.5)
    assert found.sm_share == pytest.approx(0.25 / 0.5)
    assert found.cycles["fp64"] == pytest.approx(0.05 / 0.25)
    assert found.cycles["fma"] == pytest.approx(0.08 / 0.25)
    assert found.warps == pytest.approx(0.1 / 0.25 * 64 / 4)
    assert found.hbm_bytes == 10240 * 2**20
    assert "issue" not in found.cycles
    assert (found.irregular, found.l2_hit, found.footprint) == (None, None, None)


def test_nothing_measured_is_nothing_known() -> None:
    found = of_means({})
    assert (dict(found.cycles), found.dram, found.sm_share, found.hbm_bytes, found.warps) == (
        {},
        None,
        None,
        None,
        None,
    )
    assert busy_of({}) is None
    assert of_means({"dram_active_mean": 0.3}).dram is None  # of which time is not known
    assert busy_of({"gr_engine_active_mean": math.nan, "gpu_util_mean": 0.2}) == 0.2


def test_rounding_never_needs_for_more_than_there_is() -> None:
    found = of_means(
        job(
            1,
            gr_engine_active_mean=0.4,
            sm_active_mean=0.41,
            tensor_active_mean=0.42,
            dram_active_mean=0.5,
        )
    )
    assert (found.dram, found.sm_share, found.cycles["tensor"]) == (1.0, 1.0, 1.0)


def test_issue_slots_have_a_lower_bound() -> None:
    assert issued_at_least(demand(fma=0.4)) == pytest.approx(0.2)
    assert issued_at_least(demand(issue=0.7, fma=0.4)) == 0.7
    assert issuing(demand(issue=0.7)).cycles["issue"] == 0.7
    assert issuing(demand(fma=0.4)).cycles == {"fma": 0.4, "issue": 0.2}
    assert issuing(demand(), 1.0).cycles["issue"] == 1.0
    # measured: 96.59 % of the FP64 pipe of an H100 at 2.01 of 4 instructions per cycle
    assert issued_at_least(Demand(name="a", cycles={"fp64": 0.9659})) <= 2.01 / 4
