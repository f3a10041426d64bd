"""The long run of screens in short: faults at random in pages, terminal, keys, filters and mouse."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import pytest
import screens
from faulty_fleet import METRICS, FaultyFleet

from tachograph.live.snapshot import GpuId, Snapshot

SCREENS = 120


@pytest.mark.slow
def test_screens_of_faulty_exporters(recorded: Path) -> None:
    page = recorded / "prometheus_h100" / "dcgm_exporter_metrics_excerpt.prom"
    outcome = screens.run(SCREENS, seed=3, recorded=page.read_bytes(), life=60)
    assert outcome.failures == {}
    assert (outcome.screens, outcome.apps >= 2) == (SCREENS, True)
    assert outcome.cells > SCREENS
    assert set(outcome.by_screen) == {"fleet", "focus", "job", "help"}
    assert len(outcome.faults) > 15
    assert len(outcome.by_size) > 5


def test_a_fleet_is_the_same_again_and_has_what_its_pages_tell() -> None:
    one, two = (FaultyFleet(random.Random(5)) for _ in range(2))
    for _ in range(20):
        one.go_on()
        two.go_on()
        first, second = one.source.read(), two.source.read()
        assert (first.t, first.gpus, first.allocations) == (second.t, second.gpus, second.allocations)
        assert all(first.column(name).tobytes() == second.column(name).tobytes() for name in first.values)
    assert len(one.faults) > 8
    for fleet in (one, two):
        fleet.source.close()


def test_what_is_wrong_on_a_screen_is_found() -> None:
    """The checks can fail: values out of range, and memory that grows."""
    outcome = screens.Outcome(1, screens=1000)
    gpu = (GpuId("n1", 0),)
    column = np.array([7.0])
    screens._check_ranges(Snapshot(0.0, gpu, column, {"sm_active": column, "power_w": column}), outcome)
    assert list(outcome.failures) == ["sm_active out of its range"]
    memory = [(at, 1000 * at, 10_000 * at) for at in range(100, 1001, 100)]
    screens._compare_memory(outcome, memory)
    assert "memory grows" in outcome.failures
    steady = screens.Outcome(1, screens=1000)
    screens._compare_memory(steady, [(at, 5000, 10_000_000) for at in range(100, 1001, 100)])
    assert (steady.failures, steady.grown_bytes_per_screen) == ({}, 0.0)


def test_values_are_written_as_the_table_writes_them() -> None:
    assert [screens._written(value, "%") for value in (0.423, 1.0, None)] == ["42%", "100%", "-"]
    assert screens._written(71.4, "°") == "71°"
    assert all(low <= high and math.isfinite(high) for low, high in METRICS.values())
