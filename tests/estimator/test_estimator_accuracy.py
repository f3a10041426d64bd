"""Errors against published numbers, and those of a prototype recomputed here by other means."""

from __future__ import annotations

import json
import math

import pytest

from in_process import run_here
from tachograph.sharing import accuracy
from tachograph.sharing.accuracy import errors, estimator_accuracy
from tachograph.sharing.demand import Calibration

MEASURED = {
    "Table 2": (1.06, 1.14, 1.23, 1.36, 1.9),
    "Table 3": (1.915, 1.896, 1.893, 1.65, 1.001),
    "Table 4": (1.988, 1.977, 1.356, 1.018),
    "Pitfall 1": (2.0,),
    "Pitfall 2": (1.85, 15.8),
    "Section 4.3": (1.7,),
    "Section 4.1": (2.0, 1.0),
}


def test_the_twenty_numbers_are_those_that_were_published() -> None:
    rows = accuracy.twenty()
    found = {table: tuple(row.measured for row in rows if row.table == table) for table in MEASURED}
    assert found == MEASURED
    assert len(rows) == 20


def test_errors_stay_within_what_is_requested() -> None:
    found = estimator_accuracy()
    assert errors(found.twenty).mean <= 0.03
    assert errors(found.twenty).worst <= 0.10
    assert errors(found.twenty, left_out=True).mean <= 0.04
    assert errors(found.held_out).mean <= 0.05
    assert errors(found.held_out).worst <= 0.10


def prototype() -> list[float]:
    """What a capacity rule tells of the twenty: sums above 1 are shared, or the heavy one is first; no queue of warps.

    DRAM as x = n / (1 + c U^2) with c = 0.571, solved by bisection.
    """

    def bandwidth(used: float) -> float:
        low, high = 0.0, 1.0
        requested = 2 * used * (1 + 0.571 * used**2)
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if middle * (1 + 0.571 * middle**2) < requested else (low, middle)
        return 2 * used / low

    def beside_copy(ipc: float) -> float:
        compute, copy = ipc / 4, 0.61 / 4
        rate = 1.0 if compute + copy <= 1 else (1 - compute) / copy
        return 2 / (2 - rate)

    fp64 = [2 / max(1.0, 2 * used) for used in (0.2496, 0.4932, 0.7299, 0.9659)]
    return [
        *map(bandwidth, (0.2133, 0.4012, 0.5506, 0.6918, 0.9)),
        *map(beside_copy, (1.08, 2.06, 2.9, 3.45, 4.0)),
        *fp64, 2.0, 2 * 3.45 / 4, 16 / 4 * 3.45 + 1, 1.5, 2.0, 1.0,
    ]  # fmt: skip


def test_it_is_closer_than_the_rule_of_capacity_alone() -> None:
    found = estimator_accuracy().twenty
    rule = [result / one.published.measured - 1 for result, one in zip(prototype(), found, strict=True)]
    mean, worst = sum(map(abs, rule)) / 20, max(map(abs, rule))
    assert (round(mean, 3), round(worst, 3)) == (0.033, 0.118)
    assert errors(found).mean < mean
    assert errors(found).worst < worst


def test_where_no_warps_wait_irregularly_it_shows_what_the_rule_shows() -> None:
    same = {"Table 2", "Table 4", "Pitfall 1", "Pitfall 2", "Section 4.1"}
    for result, one in zip(prototype(), estimator_accuracy().twenty, strict=True):
        if one.published.table in same:
            assert one.predicted == pytest.approx(result, rel=1e-6), one.published.name


@pytest.mark.parametrize("dominance", [1.3, 3.0, 5.6])
def test_the_factor_of_dominance_matters_little(dominance: float) -> None:
    found = estimator_accuracy(dominance=dominance).twenty
    assert errors(found).mean <= 0.03
    assert errors(found).worst <= 0.10


def test_without_dominance_it_is_wrong() -> None:
    assert errors(estimator_accuracy(dominance=math.inf).twenty).worst > 0.10


def test_the_latency_of_dram_is_fitted_from_kernels_alone() -> None:
    best = min(
        (sum((_used(k * b, c) / u - 1) ** 2 for b, u in accuracy.SOLO_BANDWIDTH), c)
        for c in (step / 100 for step in range(45, 70))
        for k in [
            sum(u * (1 + c * u * u) * b for b, u in accuracy.SOLO_BANDWIDTH)
            / sum(b * b for b, _ in accuracy.SOLO_BANDWIDTH)
        ]
    )
    assert accuracy.fitted_curvature() == pytest.approx(best[1], abs=0.006)
    assert Calibration().dram_curvature == pytest.approx(accuracy.fitted_curvature(), abs=1e-9)


def _used(requests: float, curvature: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * (1 + curvature * middle**2) < requests else (low, middle)
    return low


def test_the_fit_does_not_hang_on_one_point() -> None:
    points = accuracy.SOLO_BANDWIDTH
    for place in range(len(points)):
        assert accuracy.fitted_curvature(points[:place] + points[place + 1 :]) == pytest.approx(0.571, abs=0.09)


def test_only_table_2_gave_a_number() -> None:
    for one in estimator_accuracy().twenty:
        assert (one.left_out == one.predicted) or one.published.table == "Table 2", one.published.name


def test_the_command_shows_the_same_as_text_and_as_json(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("accuracy")
    text = run_here(["interference", "accuracy"], folder, {})
    document = json.loads(run_here(["interference", "accuracy", "--json"], folder, {}).stdout)
    assert text.returncode == 0
    assert len(document["published"]["rows"]) == 20
    for row in (*document["published"]["rows"], *document["held_out"]["rows"]):
        line = next(line for line in text.stdout.splitlines() if row["case"] in line and row["table"] in line)
        assert f"{row['measured']:.3f}" in line
        assert f"{row['predicted']:.3f}" in line
    assert f"mean error {document['published']['mean_absolute_error']:.1%}" in text.stdout
