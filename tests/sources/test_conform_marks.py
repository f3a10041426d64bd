"""Marks and limits at the edge of the types they come in."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.catalog.chunks import BLANK_FLOATS
from tachograph.catalog.counters import COUNTERS, HOST_COUNTERS, Counter, HostCounter
from tachograph.catalog.limits import ValueLimits
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


EDGES = [0.0, -0.0, 1.0, 1.0000001, 1.01, 1.02, 8.0, 100.0, 150.0, 2.0**31, 1e30, *BLANK_FLOATS]
NOT_FINITE = [float("nan"), float("inf"), float("-inf")]


@given(
    st.sampled_from([*COUNTERS, *HOST_COUNTERS]),
    st.lists(st.sampled_from([*EDGES, *NOT_FINITE]) | st.floats(-10, 1e6), min_size=1),
    st.booleans(),
)
def test_values_that_are_not_doubtful_are_only_converted(
    counter: Counter | HostCounter, values: list[float], float32: bool
) -> None:
    with np.errstate(over="ignore"):  # a mark of doubles is infinite then
        raw = np.array(values, np.float32 if float32 else np.float64).astype(np.float64)
    limits = ValueLimits.of([(counter, counter.unit)], float32=float32)
    fine = ~limits.doubtful(raw)
    kept = raw[fine]
    if counter.storage == "i64":
        kept = np.rint(kept)
    assert limits.convert(raw)[fine].tolist() == kept.tolist()
    for flags in limits.changes(raw).values():
        assert not (flags & fine).any()
