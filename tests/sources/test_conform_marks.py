"""Marks and limits at the edge of the types they come in."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest

from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.lake.conform import conform

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def conformed(column: str, series: pl.Series) -> tuple[list[object], dict[str, int]]:
    frame = pl.DataFrame({"t": [datetime(2026, 4, 1, tzinfo=UTC)] * len(series), "node": "n1", "gpu": 0})
    result = conform(frame.with_columns(series.alias(column)), GPU_SAMPLES, now=NOW)
    return result.frame.get_column(column).to_list(), {reject.reason: reject.count for reject in result.rejects}


def test_numbers_beyond_what_a_count_can_be() -> None:
    values, reasons = conformed("pcie_replays", pl.Series([2**64 - 1, 9_300_000_000_000_000_000, 5], dtype=pl.UInt64))
    assert values == [None, None, 5]
    assert reasons == {"out_of_range": 2}


@pytest.mark.parametrize("column", ["pcie_tx_bytes_per_s", "energy_j", "throttle_reasons"])
def test_marks_that_single_precision_rounds_up(column: str) -> None:
    values, reasons = conformed(column, pl.Series([2147483632.0, 2147483635.0, 7.0], dtype=pl.Float32))
    assert values == [None, None, 7]
    assert reasons == {"missing_mark": 2}
