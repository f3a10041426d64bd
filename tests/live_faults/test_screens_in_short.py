"""The long run of screens in short: faults at random in pages, terminal, keys and filters."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import screens
from faulty_fleet import FaultyFleet

SCREENS = 40


@pytest.mark.slow
def test_screens_of_faulty_exporters(recorded: Path) -> None:
    page = recorded / "prometheus_h100" / "dcgm_exporter_metrics_excerpt.prom"
    outcome = screens.run(SCREENS, seed=3, recorded=page.read_bytes(), life=SCREENS // 2)
    assert outcome.failures == {}
    assert outcome.screens == SCREENS
    assert outcome.cells > SCREENS
    assert len(outcome.places) >= 3


def test_a_fleet_is_the_same_again_and_reports_many_faults() -> None:
    one, two = (FaultyFleet(random.Random(5)) for _ in range(2))
    for _ in range(8):
        one.go_on()
        two.go_on()
        first, second = one.source.read(), two.source.read()
        assert (first.t, first.gpus, first.allocations) == (
            second.t,
            second.gpus,
            second.allocations,
        )
        assert all(
            first.column(name).tobytes() == second.column(name).tobytes() for name in first.values
        )
    assert len(one.faults) > 4
