"""The table of statistics names every column of segments, and how each is merged."""

from __future__ import annotations

import polars as pl
import pytest

from in_memory import outcome
from madelake import held, job, utc
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.tables import PIPES
from tachograph.pipeline.accumulators import SEGMENT_KEY, merge_segments
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
