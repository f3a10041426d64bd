"""Large reports: what is done for a further launch, and what is kept of it, does not grow with their number."""

from __future__ import annotations

import csv
import tracemalloc
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ncu_csv import SPEED, Dialect, Locale, Made, Value, assert_same, details, quoted, raw, read

from tachograph.nsight import csv_cells
from tachograph.nsight.csv_cells import cells
from tachograph.nsight.launches import LaunchMetrics, MetricColumns
from tachograph.nsight.metrics import fits, labels

LABELS = {metric: (section, label) for (section, label), metric in labels().items() if fits(metric, "inst")}
KEPT_BYTES = 30  # of a number of a launch, its share of all else included; in a dict of its own it takes 70 and more


def launches(count: int) -> list[Made]:
    """Launches of three kernels with numbers of thousands, none like another."""
    made = []
    for number in range(count):
        values = tuple(
            Value(section, label, metric, "inst", Decimal(1234 + 977 * place + number) * 1000 + Decimal("0.5"))
            for place, (metric, (section, label)) in enumerate(LABELS.items())
        )
        made.append(Made(number, f"kernel_{number % 3}<{'x' * 60}>", values))
    return made


@pytest.mark.parametrize("locale", ["C", "en", "de", "fr", "fr_narrow", "ch", "de_plain"])
@pytest.mark.parametrize("page", [details, raw])
def test_numbers_are_looked_at_closely_until_their_writing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locale: Locale, page: type
) -> None:
    ways = csv_cells._ways
    requested: list[str] = []

    def counted(text: str) -> dict[csv_cells.Decimal, float]:
        requested.append(text)
        return ways(text)

    monkeypatch.setattr(csv_cells, "_ways", counted)
    closely = []
    for count in (4, 40):
        requested.clear()
        made = launches(count)
        assert_same(read(tmp_path, page(made, Dialect(locale=locale))), made)
        closely.append(len(requested))
    assert closely[0] == closely[1] <= 2 * len(LABELS)


@pytest.mark.parametrize("page", [details, raw])
def test_a_further_launch_takes_little_memory(tmp_path: Path, page: type) -> None:
    taken = []
    for count in (10, 110):
        text = page(launches(count), Dialect(locale="en"))
        tracemalloc.start()
        report = read(tmp_path, text)
        taken.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(report.launches) == count
    assert (taken[1] - taken[0]) / 100 / len(LABELS) < KEPT_BYTES


def test_metrics_of_later_launches_are_not_measured_before(tmp_path: Path) -> None:
    first = Made(0, "a", (Value(SPEED, "Duration", "gpu__time_duration.sum", "ns", Decimal("7.5")),))
    other = Value("Occupancy", "Block Limit SM", "launch__occupancy_limit_blocks", "block", Decimal(32))
    one, two = read(tmp_path, details([first, replace(first, number=1, values=(*first.values, other))])).launches
    assert dict(one.metrics) == {"gpu__time_duration.sum": 7.5}
    assert (len(one.metrics), one.metrics.get(other.metric), other.metric in one.metrics) == (1, None, False)
    assert dict(two.metrics) == {"gpu__time_duration.sum": 7.5, other.metric: 32.0}
    columns = MetricColumns([one.metrics, {other.metric: 3.0}, two.metrics])
    assert isinstance(one.metrics, LaunchMetrics)
    assert columns.names() == set(two.metrics)
    assert repr(columns[other.metric]) == "[nan, 3.0, 32.0]"


def strict(record: str) -> list[str] | None:
    """The cells by the reader of the standard library alone."""
    for pieces in ([record], record.splitlines(keepends=True)):
        try:
            return next(csv.reader(pieces, strict=True), [])
        except csv.Error:
            continue
    return None


@given(st.lists(st.text('ab", ', max_size=5), min_size=1, max_size=4), st.sampled_from(["", "\n", "\r\n", ",\n"]))
def test_cells_of_quoted_records(row: list[str], end: str) -> None:
    assert cells(quoted(row) + end) == strict(quoted(row) + end)


@given(st.text('a", ', max_size=14).map('"{}'.format), st.sampled_from(["", "\n", "\r\n"]))
def test_cells_of_any_records(record: str, end: str) -> None:
    assert cells(record + end) == strict(record + end)
