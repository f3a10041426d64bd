"""The long run of screens in short: faults at random in pages, terminal, keys and filters."""

from __future__ import annotations

from pathlib import Path

import pytest
import screens

SCREENS = 40


@pytest.mark.slow
def test_screens_of_faulty_exporters(recorded: Path) -> None:
    page = recorded / "prometheus_h100" / "dcgm_exporter_metrics_excerpt.prom"
    outcome = screens.run(SCREENS, seed=3, recorded=page.read_bytes(), life=SCREENS // 2)
    assert outcome.failures == {}
    assert outcome.screens == SCREENS
    assert outcome.cells > SCREENS
    assert len(outcome.places) >= 3
