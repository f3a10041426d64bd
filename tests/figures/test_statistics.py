from __future__ import annotations

import polars as pl
import pytest

from tachograph.annexes.lab.figures.statistics import (
    box_caption,
    boxes,
    rank_correlation,
)


def jobs_of(values: list[float | None], group: str = "a") -> pl.DataFrame:
    return pl.DataFrame(
        {"group": [group] * len(values), "value": values},
        schema={"group": pl.String, "value": pl.Float64},
    )


def test_whiskers_of_percentiles_end_there() -> None:
    values = [float(value) for value in range(101)]
    (row,) = boxes(jobs_of(list(values)), "group", "value", whiskers="percentile").to_dicts()
    assert (
        (row["low"], row["high"], row["outside"]) == (row["p5"], row["p95"], 10) == (5.0, 95.0, 10)
    )
    assert "5th to 95th percentile" in box_caption("percentile")
    assert "1.5 times" in box_caption("tukey")


def test_rank_correlation_of_ties_and_of_nothing() -> None:
    frame = pl.DataFrame({"a": [1.0, 2.0, 2.0, 4.0, None], "b": [4.0, 3.0, 1.0, 1.0, 0.0]})
    assert rank_correlation(frame, "a", "b") == pytest.approx(-0.8333333333)
    assert rank_correlation(frame.with_columns(b=pl.lit(1.0)), "a", "b") is None
    assert rank_correlation(frame.head(2), "a", "b") is None
