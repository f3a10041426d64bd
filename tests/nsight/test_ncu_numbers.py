"""Numbers in cells: read where the file shows how it writes them, else rejected."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ncu_csv import SIGNS, Locale, written

from tachograph.nsight.csv_cells import AMBIGUOUS, NOT_A_NUMBER, OTHER_LOCALE, CellNumbers, _ways
from tachograph.nsight.csv_cells import Decimal as Sign
from tachograph.nsight.launches import RejectCounter


def read_all(cells: Sequence[str]) -> tuple[dict[int, float], dict[str, int]]:
    """{place of the cell: its number}, {reason: cells rejected}."""
    counted = RejectCounter()
    numbers = CellNumbers(counted)
    values: dict[int, float] = {}
    for place, cell in enumerate(cells):
        quick = numbers.quick(cell)
        if quick is not None:
            values[place] = quick
        else:
            numbers.read(cell, "c", lambda value, place=place: values.__setitem__(place, value))  # type: ignore[misc]
    numbers.finish()
    return values, {reject.reason: reject.count for reject in counted.rejects()}


@given(
    numbers=st.lists(st.decimals(-(10**12), 10**12, places=3) | st.integers(0, 10**6).map(Decimal), max_size=120),
    locale=st.sampled_from(sorted(SIGNS)),
)
def test_any_number_in_any_locale(numbers: list[Decimal], locale: Locale) -> None:
    cells = [written(number, locale) for number in [*numbers, Decimal("0.25")]]
    values, rejected = read_all(cells)
    assert rejected == {}
    assert [Decimal(repr(values[place])) for place in range(len(numbers))] == [
        number if number else Decimal(0) for number in numbers
    ]


@pytest.mark.parametrize("cells", [["1,205"], ["1.205", "2.407"], ["1,205", "12", "3"], ["120.416", "1.5", "1,5"]])
def test_what_can_be_read_in_two_ways_is_rejected(cells: list[str]) -> None:
    values, rejected = read_all(cells)
    assert rejected[AMBIGUOUS] >= 1
    assert 1.205 not in values.values()
    assert 1205.0 not in values.values()
    assert 120416.0 not in values.values()


def test_a_later_number_settles_earlier_ones() -> None:
    assert read_all(["1,205", "2.5"])[0] == {0: 1205.0, 1: 2.5}
    assert read_all(["1,205", "2,5"])[0] == {0: 1.205, 1: 2.5}


def test_damage_does_not_turn_the_file() -> None:
    cells = ["7,5", *["2.5"] * 200, "1.205", "8,5"]
    values, rejected = read_all(cells)
    assert values[201] == 1.205
    assert rejected == {OTHER_LOCALE: 1}
    assert 202 not in values


@pytest.mark.parametrize(
    "cell", ["1_000", "0x1f", "1,20,5.0", "12,3456.7", "--1", "1e999", "٣", "1.2.3", "9" * 400, "1 20"]
)
def test_not_a_number(cell: str) -> None:
    assert read_all([cell]) == ({}, {NOT_A_NUMBER: 1})


@pytest.mark.parametrize(
    ("cell", "value"), [("4.0e-05", 4e-5), ("+3", 3.0), ("(!) 2.5", 2.5), ("12.5 %", 12.5), ("1'205.50", 1205.5)]
)
def test_other_writings(cell: str, value: float) -> None:
    assert read_all([cell]) == ({0: value}, {})


@given(
    shows=st.sampled_from(["0.5", "0,5"]),
    taught=st.lists(
        st.sampled_from(["1,205.5", "1.205,5", "1 205", "1\u202f205", "1'205", "7", "-2", "3e5"]), max_size=4
    ),
    cells=st.lists(st.text("0123456789,.'; \u202f-e", max_size=14), min_size=1, max_size=5),
)
def test_the_fast_way_reads_as_the_careful_way_or_not_at_all(shows: str, taught: list[str], cells: list[str]) -> None:
    numbers = CellNumbers(RejectCounter())
    for cell in [shows] * 50 + taught:
        if numbers.quick(cell) is None:
            numbers.read(cell, "c", lambda value: None)
    sign: Sign = "." if shows == "0.5" else ","
    careful = [_ways(cell).get(sign) for cell in cells]
    row = numbers.row(cells)
    assert numbers.decimal == sign
    for place, cell in enumerate(cells):
        assert numbers.quick(cell) in (None, careful[place])
        if row is not None:
            assert repr(row[place]) == (repr(careful[place]) if cell else "nan")
    if row is not None:
        assert len(row) == len(cells)


def test_a_row_of_thousands_is_read_at_once_when_one_was_seen() -> None:
    numbers = CellNumbers(RejectCounter())
    row = ["1,205.5", "", "12", "3,000,000"]
    assert numbers.row(row) is None
    for cell in ["0.5"] * 50 + ["1,205.5"]:
        numbers.read(cell, "c", lambda value: None)
    values = numbers.row(row)
    assert values is not None
    assert repr(values) == "[1205.5, nan, 12.0, 3000000.0]"


def test_cells_of_instances_are_not_kept() -> None:
    numbers, found = CellNumbers(RejectCounter()), list[float]()
    for cell in ["0.5"] * 50:
        numbers.read(cell, "c", lambda value: None)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for place in range(50):
        numbers.read(f"{place}.5 ({'1; ' * 10_000}2)", "c", found.append)
    kept = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert found == [place + 0.5 for place in range(50)]
    assert kept < 50_000
