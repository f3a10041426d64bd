"""Whatever way a report is written, the very values come back."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ncu_csv import COPY, LAUNCHES, NOISE, Dialect, Locale, Made, Value, assert_same, details, raw, read

from tachograph.nsight.metrics import is_whole, labels

TIMES = {
    "%": Decimal(1),
    "byte": Decimal(1),
    "Kbyte": Decimal(1000),
    "Mbyte": Decimal(10) ** 6,
    "Gbyte": Decimal(10) ** 9,
    "byte/second": Decimal(1),
    "Mbyte/s": Decimal(10) ** 6,
    "Gbyte/second": Decimal(10) ** 9,
    "Tbyte/s": Decimal(10) ** 12,
    "ns": Decimal(1),
    "nsecond": Decimal(1),
    "us": Decimal(1000),
    "usecond": Decimal(1000),
    "msecond": Decimal(10) ** 6,
    "second": Decimal(10) ** 9,
    "hz": Decimal(1),
    "Khz": Decimal(1000),
    "Mhz": Decimal(10) ** 6,
    "Ghz": Decimal(10) ** 9,
    "cycle/nsecond": Decimal(10) ** 9,
    "cycle/usecond": Decimal(10) ** 6,
    "inst/cycle": Decimal(1),
    "inst": Decimal(1),
    "Kinst": Decimal(1000),
    "register/thread": Decimal(1),
    "block": Decimal(1),
    "warp": Decimal(1),
    "": Decimal(1),
}
LABELS = sorted({metric: (section, label) for (section, label), metric in labels().items()}.items())
locales = st.sampled_from(get_args(Locale))
numbers = (
    st.decimals(min_value=0, max_value=10**9, places=2)
    | st.integers(0, 10**12).map(Decimal)
    | st.decimals(0, 999, places=3)
)


@st.composite
def launches(draw: st.DrawFn) -> list[Made]:
    """Some launches, each with a number that shows how numbers are written."""
    made = []
    for number in range(draw(st.integers(1, 4))):
        chosen = draw(st.lists(st.sampled_from(LABELS), unique=True, max_size=6))
        values = []
        for metric, (section, label) in chosen:
            unit = "%" if "pct" in metric else draw(st.sampled_from(sorted(TIMES)))
            count = draw(st.integers(0, 10**12).map(Decimal) if is_whole(metric, unit) else numbers)
            values.append(Value(section, label, metric, unit, count, TIMES[unit]))
        collected = Value("Command line profiler metrics", "own__ratio.max", "own__ratio.max", "", Decimal("0.25"))
        kernel = draw(st.text('abc_<>,:*&" ()é', min_size=1, max_size=20).map(str.strip).filter(bool))
        made.append(Made(number, kernel, (*values, collected), ranges=("step",)))
    return made


def counted(value: Value, unit: str) -> Decimal:
    """The number as it can stand in a column of this unit."""
    return value.number.to_integral_value() if is_whole(value.metric, unit) else value.number


dialects = st.builds(
    Dialect,
    locale=locales,
    sized=st.booleans(),
    timed=st.booleans(),
    nvtx=st.booleans(),
    tails=st.sampled_from(("no columns", "absent", "comma", "empty")),
    end=st.sampled_from(("\n", "\r\n")),
    noise=st.lists(st.sampled_from(NOISE), max_size=4).map(tuple),
    order=st.lists(st.integers(0, 100), max_size=5).map(tuple),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ncu")


@given(made=launches(), dialect=dialects)
def test_details(folder: Path, made: list[Made], dialect: Dialect) -> None:
    assert_same(read(folder, details(made, dialect)), made, dialect)


@given(made=launches(), dialect=dialects)
def test_raw(folder: Path, made: list[Made], dialect: Dialect) -> None:
    # a column has one unit, and nothing but whole numbers of what is counted
    units = {value.metric: value for one in reversed(made) for value in one.values}
    alike = [
        Made(
            one.number,
            one.kernel,
            tuple(
                Value(v.section, v.label, v.metric, (unit := units[v.metric]).unit, counted(v, unit.unit), unit.times)
                for v in one.values
            ),
            ranges=one.ranges,
        )
        for one in made
    ]
    assert_same(read(folder, raw(alike, dialect)), alike, dialect)


@pytest.mark.parametrize("locale", get_args(Locale))
def test_a_locale(tmp_path: Path, locale: Locale) -> None:
    dialect = Dialect(locale=locale, nvtx=True)
    for page in (details, raw):
        report = read(tmp_path, page(LAUNCHES, dialect))
        assert_same(report, LAUNCHES, dialect)
        assert (report.rejects, report.problems) == ((), ())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
def test_an_encoding(tmp_path: Path, encoding: str) -> None:
    dialect = Dialect(locale="fr", end="\r\n")
    assert_same(read(tmp_path, details(LAUNCHES, dialect).encode(encoding)), LAUNCHES, dialect)


def test_both_pages_in_one_file(tmp_path: Path) -> None:
    later = Made(7, "later", COPY.values)
    report = read(tmp_path, details(LAUNCHES) + "\n".join(NOISE) + "\n" + raw([later]))
    assert_same(report, [*LAUNCHES, later])
    assert [launch.kernel for launch in report.launches] == [COPY.kernel, "sgemm_128x64_nn", "later"]
