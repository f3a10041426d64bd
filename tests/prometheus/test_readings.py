"""Metrics of a scrape that are stamped seconds apart are one row; values of one metric never
are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.sources.series import SeriesAnswer, SeriesMemory, SeriesRun, SeriesVocabulary
from tachograph.sources.series_rows import SeriesRows, series_parts

COLUMNS = {
    "DCGM_FI_DEV_GPU_UTIL": "gpu_util",
    "DCGM_FI_PROF_SM_ACTIVE": "sm_active",
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
    "DCGM_FI_DEV_FB_USED": "hbm_used_mib",
}
STAMPS = dict(zip(COLUMNS, (0, 2, 3, 1), strict=True))
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def rows_of(times: Mapping[str, Sequence[float]]) -> list[tuple[float, dict[str, float]]]:
    """(time, {column: value}) of each row; the value of a metric is the time in seconds when it
    was stamped.
    """
    runs = [
        SeriesRun(
            f'{{"__name__":"{metric}","gpu":"0","Hostname":"n"}}'.encode(),
            np.array([round(t * 1000) for t in stamps]),
            np.array(stamps, np.float64),
        )
        for metric, stamps in times.items()
    ]
    (part,) = (
        one
        for one in series_parts(SeriesAnswer(runs), SeriesMemory(), overlaps=False)
        if one.table == SAMPLES
    )
    assert part.rows_used == sum(map(len, times.values()))
    return [
        (
            row["t"].timestamp(),
            {
                name: row[name]
                for name in part.frame.columns
                if name in NAMES and row[name] is not None
            },
        )
        for row in part.frame.iter_rows(named=True)
    ]


SAMPLES, NAMES = "gpu_samples", set(COLUMNS.values())


@pytest.mark.parametrize("every", [10, 30, 60])
def test_a_scrape_is_one_row_of_the_first_stamp(every: int) -> None:
    made = rows_of(
        {metric: [every * k + after for k in range(1, 7)] for metric, after in STAMPS.items()}
    )
    assert [t for t, _ in made] == [every * k for k in range(1, 7)]
    for t, values in made:
        assert values == {COLUMNS[metric]: t + after for metric, after in STAMPS.items()}


def test_metrics_of_other_rates_stay_readings_of_their_own() -> None:
    """One is read each second, one each ten: what lies more than half a second apart is not
    joined.
    """
    often = [float(t) for t in range(100, 130)]
    made = rows_of({"DCGM_FI_DEV_GPU_UTIL": often, "DCGM_FI_DEV_FB_USED": [100.3, 110.3, 120.7]})
    assert [t for t, values in made if "hbm_used_mib" in values] == [100, 110, 120.7]


def test_parts_of_a_column_are_added_within_a_reading() -> None:
    """Two links stamped apart: the sum of both, no row with one of them."""
    own = {"nvlink_bytes": ("nvlink_tx_bytes_per_s", "B/s", "sum link")}
    rows = SeriesRows(SeriesMemory(SeriesVocabulary(metrics=own)))
    for k in range(3):
        start = round(NOON.timestamp()) + 30 * k
        lines = [
            f'nvlink_bytes{{gpu="0",Hostname="n",link="{one}"}} {one + 5} {(start + one) * 1000}\n'
            for one in (0, 1)
        ]
        rows.add_page("".join(lines).encode(), t=NOON, node=None)
    (part,) = (one for one in rows.parts() if one.table == SAMPLES)
    assert part.frame.get_column("nvlink_tx_bytes_per_s").to_list() == [11, 11, 11]


@given(
    st.dictionaries(
        st.sampled_from(sorted(COLUMNS)),
        st.sets(st.integers(0, 200), min_size=1, max_size=12),
        min_size=1,
    )
)
def test_no_value_is_lost_or_moved_far(stamps: Mapping[str, set[int]]) -> None:
    made = rows_of({metric: sorted(times) for metric, times in stamps.items()})
    found = {(name, value): t for t, values in made for name, value in values.items()}
    assert found.keys() == {
        (COLUMNS[metric], float(t)) for metric, times in stamps.items() for t in times
    }
    assert all(0 <= stamp - t <= 15 for (_, stamp), t in found.items())
    assert [t for t, _ in made] == sorted({t for t, _ in made})
