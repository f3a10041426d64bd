"""The table of statistics names every column of segments, and how each is merged."""

from __future__ import annotations

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from in_memory import outcome
from madelake import held, job, utc
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.tables import PIPES
from tachograph.pipeline.accumulators import SEGMENT_KEY, counted_by_time, merge_segments
from tachograph.pipeline.kernel import APART
from tachograph.pipeline.statistics import COMPUTE, MEMORY, Merge, merge_of, statistics_of

OF_THE_SEGMENT = {
    *SEGMENT_KEY,
    "samples",
    "t_first",
    "t_last",
    "interval_us",
    "steady_us",
    "sampled_us",
    "continues",
    "gap_us",
    "idle",
    "known",
}


def test_the_columns_of_a_segment_are_those_of_the_table() -> None:
    begin, end = utc(1), utc(1, 1)
    values = {counter.name: 1 for counter in COUNTERS}
    rows = [{"t": utc(1, 0, minute), "node": "n1", "gpu": 0, **values} for minute in range(60)]
    (part,) = outcome(
        rows, [job("1", begin, end, gpus=1)], held("1", "n1", [0], begin, end)
    ).reduced
    kept = {one.of(counter.name) for counter in COUNTERS for one in statistics_of(counter)}
    of_pipes = {one.of(pipe) for pipe in PIPES for one in (COMPUTE, MEMORY)}
    assert set(part.segments.columns) == OF_THE_SEGMENT | kept | of_pipes
    assert merge_segments([part.segments, part.segments]).height == 1


@pytest.mark.parametrize(
    ("column", "merge"),
    [
        ("t_first", Merge.FIRST),
        ("t_last_power_w", Merge.LAST),
        ("max_new_xid", Merge.MAXIMUM),
        ("label_3", Merge.SUM),
    ],
)
def test_a_column_is_merged_by_its_statistic(column: str, merge: Merge) -> None:
    assert merge_of(column) is merge


def test_samples_count_by_their_time_where_intervals_differ() -> None:
    border = APART * 10.0
    rows: list[tuple[str, int, float | None, float | None]] = [
        *(("alike", 4, 40.0, 10.0), ("alike", 3, 31.0, border)),
        *(("apart", 4, 40.0, 10.0), ("apart", 2, 21.0, border + 0.01)),
        *(("various", 6, 60.0, 10.0), ("various", 1, 60.0, 60.0), ("various", 5, 70.0, None)),
        *(("various", 0, 0.0, None), ("various", 9, None, None), ("unknown", 2, 9.0, None)),
    ]
    names = ("unit", "samples", "sampled_us", "steady_us")
    values = {"sum_gpu_util": 1.0, "max_gpu_util": 1.0, "label_1": 10}
    frame = pl.DataFrame(rows, names, orient="row").with_columns(
        pl.lit(value).alias(name) for name, value in values.items()
    )
    expected = []
    for unit, samples, sampled, steady in rows:
        mine = [row for row in rows if row[0] == unit]
        timed = [row for row in mine if row[2] is not None]
        mean = sum(row[2] or 0.0 for row in timed) / sum(row[1] for row in timed)
        weight = sampled / samples / mean if sampled and unit in ("apart", "various") else 1.0
        steady = mean if unit in ("apart", "various") else steady
        row = (unit, samples, sampled, steady, weight, 1.0, round(10 * weight))
        expected.append(dict(zip((*names, *values), row, strict=True)))
    assert_frame_equal(counted_by_time(frame, "unit"), pl.DataFrame(expected), check_dtypes=False)
    alike = frame.filter(unit="alike")
    assert_frame_equal(counted_by_time(alike, "unit"), alike)


def test_a_column_that_is_no_statistic_is_a_defect() -> None:
    part = pl.DataFrame(
        {"run": 1, "node": "n", "gpu": 0, "mig": None, "t_first": [0, 1], "mean_power_w": 1.0}
    )
    with pytest.raises(KeyError, match="mean_power_w"):
        merge_segments(
            [
                part.with_columns(
                    t_last="t_first",
                    gap_us=1.0,
                    interval_us=1.0,
                    steady_us=1.0,
                    sampled_us=1.0,
                    continues=False,
                    samples=1,
                )
            ]
        )
