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


FRACTIONS = [1.0000001192, 1.01, 1.02, 1.29, 1.0, 0.5]
CLAMPED = [1.0, 1.0, None, None, 1.0, 0.5]
OF_FRACTIONS = {"clamped": 2, "out_of_range": 2}


@pytest.mark.parametrize(
    ("column", "dtype", "written", "values", "reasons"),
    [
        ("pcie_replays", pl.UInt64, [2**64 - 1, 93 * 10**17, 5], [None, None, 5],
         {"out_of_range": 2}),
        # marks that single precision rounds up
        *((column, pl.Float32, [2147483632.0, 2147483635.0, 7.0], [None, None, 7],
           {"missing_mark": 2})
          for column in ("pcie_tx_bytes_per_s", "energy_j", "throttle_reasons")),
        # a fraction above its range by rounding is the end of its range
        ("sm_active", pl.Float64, FRACTIONS, CLAMPED, OF_FRACTIONS),
        ("sm_active", pl.Float32, FRACTIONS, CLAMPED, OF_FRACTIONS),
        ("gpu_temp_c", pl.Float64, [150.0, 151.0], [150.0, None], {"out_of_range": 1}),
    ],
)  # fmt: skip
def test_values_at_the_edge_of_their_type(
    column: str,
    dtype: type[pl.DataType],
    written: list[float],
    values: list[float | None],
    reasons: dict[str, int],
) -> None:
    frame = pl.DataFrame(
        {"t": [datetime(2026, 4, 1, tzinfo=UTC)] * len(written), "node": "n1", "gpu": 0}
    ).with_columns(pl.Series(column, written, dtype=dtype))
    result = conform(frame, GPU_SAMPLES, now=NOW)
    assert result.frame.get_column(column).to_list() == values
    assert {reject.reason: reject.count for reject in result.rejects} == reasons


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
