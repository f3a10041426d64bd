"""Marks and limits at the edge of the types they come in."""

from __future__ import annotations

from datetime import UTC, datetime

import polars as pl
import pytest

from tachograph.catalog.tables import GPU_SAMPLES
from tachograph.lake.conform import conform

NOW = datetime(2026, 5, 1, tzinfo=UTC)


def conformed(column: str, series: pl.Series) -> tuple[list[object], dict[str, int]]:
    frame = pl.DataFrame(
        {"t": [datetime(2026, 4, 1, tzinfo=UTC)] * len(series), "node": "n1", "gpu": 0}
    )
    result = conform(frame.with_columns(series.alias(column)), GPU_SAMPLES, now=NOW)
    return result.frame.get_column(column).to_list(), {
        reject.reason: reject.count for reject in result.rejects
    }


def test_numbers_beyond_what_a_count_can_be() -> None:
    values, reasons = conformed(
        "pcie_replays", pl.Series([2**64 - 1, 9_300_000_000_000_000_000, 5], dtype=pl.UInt64)
    )
    assert values == [None, None, 5]
    assert reasons == {"out_of_range": 2}


@pytest.mark.parametrize("column", ["pcie_tx_bytes_per_s", "energy_j", "throttle_reasons"])
def test_marks_that_single_precision_rounds_up(column: str) -> None:
    values, reasons = conformed(
        column, pl.Series([2147483632.0, 2147483635.0, 7.0], dtype=pl.Float32)
    )
    assert values == [None, None, 7]
    assert reasons == {"missing_mark": 2}


@pytest.mark.parametrize("dtype", [pl.Float64, pl.Float32])
def test_a_fraction_above_its_range_by_rounding_is_the_end_of_its_range(
    dtype: type[pl.DataType],
) -> None:
    values, reasons = conformed(
        "sm_active", pl.Series([1.0000001192, 1.01, 1.02, 1.29, 1.0, 0.5], dtype=dtype)
    )
    assert values[:4] == [1.0, 1.0, None, None]
    assert values[4:] == [1.0, 0.5]
    assert reasons == {"clamped": 2, "out_of_range": 2}


def test_what_is_no_fraction_is_not_clamped() -> None:
    values, reasons = conformed("gpu_temp_c", pl.Series([150.0, 151.0]))
    assert values == [150.0, None]
    assert reasons == {"out_of_range": 1}


def test_ratios_of_mig_slices_may_be_above_one() -> None:
    keys = pl.DataFrame({"t": [NOW] * 4, "node": "n", "gpu": 0, "mig": [1, 2, 3, None]})
    made = conform(
        keys.with_columns(sm_active=pl.Series([1.29, 1.0000001, 8.5, 1.29])), GPU_SAMPLES, now=NOW
    )
    assert made.frame["sm_active"].cast(pl.Float64).round(3).to_list() == [1.29, 1.0, None, None]
    counted = {reject.reason: reject.count for reject in made.rejects}
    assert counted == {"slice_above_one": 1, "out_of_range": 2}
