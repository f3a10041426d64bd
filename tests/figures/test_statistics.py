from __future__ import annotations

import statistics

import polars as pl
import pytest

from tachograph.annexes.lab.figures.statistics import (
    box_caption,
    boxes,
    cumulative,
    rank_correlation,
)


def jobs_of(values: list[float | None], group: str = "a") -> pl.DataFrame:
    return pl.DataFrame(
        {"group": [group] * len(values), "value": values},
        schema={"group": pl.String, "value": pl.Float64},
    )


def test_boxes_have_the_whiskers_they_state() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 30.0, -20.0]
    (row,) = boxes(jobs_of([*values, None]), "group", "value").to_dicts()
    q1, median, q3 = statistics.quantiles(values, n=4, method="inclusive")
    reach = 1.5 * (q3 - q1)
    inside = [value for value in values if q1 - reach <= value <= q3 + reach]
    assert (row["jobs"], row["q1"], row["median"], row["q3"]) == (10, q1, median, q3)
    assert row["mean"] == pytest.approx(statistics.fmean(values))
    assert (row["p5"], row["p95"]) == pytest.approx((-10.55, 20.1))
    assert (row["low"], row["high"], row["outside"]) == (min(inside), max(inside), 2)


def test_whiskers_of_percentiles_end_there() -> None:
    values = [float(value) for value in range(101)]
    (row,) = boxes(jobs_of(list(values)), "group", "value", whiskers="percentile").to_dicts()
    assert (
        (row["low"], row["high"], row["outside"]) == (row["p5"], row["p95"], 10) == (5.0, 95.0, 10)
    )
    assert "5th to 95th percentile" in box_caption("percentile")
    assert "1.5 times" in box_caption("tukey")


def test_cumulative_shares_count_ties_and_end_at_one() -> None:
    table = cumulative(jobs_of([0.5, 0.5, 0.1, None, 1.0]), "group", "value")
    assert table.select("value", "share").unique(maintain_order=True).rows() == [
        (0.1, 0.25),
        (0.5, 0.75),
        (1.0, 1.0),
    ]


def test_rank_correlation_of_ties_and_of_nothing() -> None:
    frame = pl.DataFrame({"a": [1.0, 2.0, 2.0, 4.0, None], "b": [4.0, 3.0, 1.0, 1.0, 0.0]})
    assert rank_correlation(frame, "a", "b") == pytest.approx(-0.8333333333)
    assert rank_correlation(frame.with_columns(b=pl.lit(1.0)), "a", "b") is None
    assert rank_correlation(frame.head(2), "a", "b") is None
