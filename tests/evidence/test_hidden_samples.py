"""A verdict on a job that was measured in part is never contradicted when the rest is shown."""

from __future__ import annotations

import polars as pl
import pytest
from hidden_samples import KINDS, contradictions, verdicts


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> tuple[pl.DataFrame, pl.DataFrame]:
    return verdicts(tmp_path_factory.mktemp("hidden") / "lake", list(KINDS), [1, 2])


def test_no_verdict_is_contradicted(judged: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    wrong = contradictions(*judged)
    told = wrong.select("kind", "hidden", "code", "verdict", "whole", "sentence")
    assert not told.height, told.rows()[:10]
