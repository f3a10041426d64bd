"""A value that is read again is no new sample; a new look at the GPU is one, even with the same values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tachograph.catalog.tables import TIME
from tachograph.sources.exporter_pages import PageRereads

START = datetime(2026, 3, 1, tzinfo=UTC)


def frame(after_s: float, *gpus: tuple[int, int | None, float | None], column: str = "gpu_util") -> pl.DataFrame:
    t = START + timedelta(seconds=after_s)
    rows = [(t, "n1", gpu, mig, value) for gpu, mig, value in gpus]
    schema = {"t": TIME, "node": pl.String(), "gpu": pl.Int16(), "mig": pl.Int16(), column: pl.Float64()}
    return pl.DataFrame(rows, schema=schema, orient="row")


def test_the_same_values_within_the_refresh_are_one_sample() -> None:
    reread = PageRereads(30)
    kept = [reread.fresh(frame(after_s, (0, None, 5.0))).height for after_s in (0, 10, 20, 26.9, 27, 37)]
    assert kept == [1, 0, 0, 0, 1, 0]


def test_one_value_that_changed_makes_a_sample_of_its_gpu_only() -> None:
    reread = PageRereads(30)
    reread.fresh(frame(0, (0, None, 5.0), (1, None, 5.0), (1, 3, None)))
    fresh = reread.fresh(frame(10, (0, None, 5.0), (1, None, 6.0), (1, 3, None)))
    assert fresh.select("gpu", "mig").rows() == [(1, None)]


def test_a_counter_that_comes_or_goes_is_a_change() -> None:
    reread = PageRereads(30)
    reread.fresh(frame(0, (0, None, 5.0)))
    assert reread.fresh(frame(5, (0, None, 5.0), column="power_w")).height == 1
    assert reread.fresh(frame(10, (0, None, None))).height == 1


def test_scraping_as_often_as_the_exporter_looks_drops_nothing() -> None:
    reread = PageRereads(30)
    assert all(reread.fresh(frame(after_s, (0, None, 5.0))).height == 1 for after_s in range(0, 300, 30))


def test_a_new_process_keeps_what_it_sees_first() -> None:
    assert PageRereads(30).fresh(frame(0, (0, None, 5.0))).height == 1


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.floats(0.5, 40), st.sampled_from([1.0, 2.0, None])), max_size=20))
def test_it_is_what_a_plain_reading_keeps(steps: list[tuple[float, float | None]]) -> None:
    reread = PageRereads(30)
    now_s = 0.0
    last: tuple[datetime, float | None] | None = None
    for step, value in steps:
        now_s += step
        t = START + timedelta(seconds=now_s)
        new = last is None or value != last[1] or t - last[0] >= timedelta(seconds=27)
        assert reread.fresh(frame(now_s, (0, None, value))).height == int(new)
        last = (t, value) if new else last
