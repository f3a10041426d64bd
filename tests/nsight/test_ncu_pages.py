"""The two pages of a CSV: whatever is written comes back, and what ncu does not write is counted
or refused.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ncu_csv import (
    COPY,
    DURATION,
    LAUNCHES,
    NOISE,
    SPEED,
    Dialect,
    Made,
    Value,
    assert_same,
    details,
    quoted,
    raw,
    read,
)

from tachograph.annexes.share.nsight.launches import NcuReport

OWN = "Command line profiler metrics"
TIMES = {
    "%": Decimal(1),
    "byte": Decimal(1),
    "Kbyte": Decimal(1000),
    "Gbyte/second": Decimal(10) ** 9,
    "Tbyte/s": Decimal(10) ** 12,
    "ns": Decimal(1),
    "usecond": Decimal(1000),
    "msecond": Decimal(10) ** 6,
    "second": Decimal(10) ** 9,
    "Ghz": Decimal(10) ** 9,
    "cycle/nsecond": Decimal(10) ** 9,
    "inst/cycle": Decimal(1),
    "Kinst": Decimal(1000),
    "register/thread": Decimal(1),
    "branches": Decimal(1),
    "": Decimal(1),
}
METRICS = {value.metric: (value.section, value.label) for made in LAUNCHES for value in made.values}
NUMBERS = st.decimals(0, 10**9, places=2) | st.integers(0, 10**15).map(Decimal)
DIALECTS = st.builds(
    Dialect,
    group=st.sampled_from(("", ",")),
    sized=st.booleans(),
    nvtx=st.booleans(),
    rules=st.booleans(),
    end=st.sampled_from(("\n", "\r\n")),
    noise=st.lists(st.sampled_from(NOISE), max_size=4).map(tuple),
    order=st.lists(st.integers(0, 100), max_size=5).map(tuple),
)


@st.composite
def launches(draw: st.DrawFn) -> list[Made]:
    """Some launches; a metric has one unit, as in a column of the raw page."""
    units = {metric: draw(st.sampled_from(sorted(TIMES))) for metric in METRICS}
    made = []
    for number in range(draw(st.integers(1, 4))):
        collected = draw(st.lists(st.sampled_from(sorted(METRICS)), unique=True, min_size=1))
        values = tuple(
            Value(*METRICS[metric], metric, units[metric], draw(NUMBERS), TIMES[units[metric]])
            for metric in collected
        )
        kernel = draw(
            st.text('abc_<>,:*&" ()é', min_size=1, max_size=20).map(str.strip).filter(bool)
        )
        made.append(Made(number, kernel, values, ranges=("step",)))
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ncu")


@settings(max_examples=settings().max_examples // 4)  # a file is written and read twice
@given(made=launches(), dialect=DIALECTS)
def test_what_is_written_is_read(folder: Path, made: list[Made], dialect: Dialect) -> None:
    for page in (details, raw):
        report = read(folder, page(made, dialect))
        assert_same(report, made, dialect)
        assert [problem for problem in report.problems if "warned" not in problem] == []


@pytest.mark.parametrize(
    ("decimal", "group"),
    [(",", ""), (",", "."), (",", "\u00a0"), (",", "\u202f"), (".", "\u2019"), (".", "'")],
)
def test_of_another_locale_no_number_is_used(tmp_path: Path, decimal: str, group: str) -> None:
    for page in (details, raw):
        report = read(tmp_path, page(LAUNCHES, Dialect(decimal=decimal, group=group)))
        assert report.launches == ()
        assert "LC_ALL=C ncu --csv" in report.problems[0]
        assert {reject.reason for reject in report.rejects} == {
            "not a number as the C locale writes it, or too large"
        }


def lines_of(*rows: tuple[str, ...]) -> str:
    return "".join(quoted(row) + "\n" for row in rows)


def raw_page(columns: dict[str, tuple[str, str]], *, units: bool = True) -> str:
    """A raw page with one launch: {column: (unit, cell)}."""
    names = ("ID", "Kernel Name", *columns)
    rows = [names, ("", "", *(unit for unit, _ in columns.values()))] if units else [names]
    return lines_of(*rows, ("3", "k", *(cell for _, cell in columns.values())))


def details_page(*values: tuple[str, str, str, str]) -> str:
    names = (
        "ID",
        "Process ID",
        "Kernel Name",
        "Section Name",
        "Metric Name",
        "Metric Unit",
        "Metric Value",
    )
    return lines_of(names, *(("0", "1", "k", *value) for value in values))


def reasons(report: NcuReport) -> dict[tuple[str, str | None], int]:
    return {(reject.reason, reject.column): reject.count for reject in report.rejects}


def test_memory_throughput_is_two_metrics(tmp_path: Path) -> None:
    page = details_page(
        (SPEED, "Memory Throughput", "%", "65.77"),
        ("Memory Workload Analysis", "Memory Throughput", "Gbyte/second", "1,205.50"),
        ("My Section", "My Label", "%", "1.5"),
    )
    assert dict(read(tmp_path, page).launches[0].metrics) == {
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 65.77,
        "dram__bytes.sum.per_second": 1205.5e9,
    }


@pytest.mark.parametrize(
    "cell", ["n/a", "nan", "inf", "no data", "(!) n/a", "", "No-CC", "9e999", "12.5 apples", "1_0"]
)
def test_what_is_no_number_is_missing(tmp_path: Path, cell: str) -> None:
    for text in (details_page((OWN, "a__b.sum", "", cell)), raw_page({"a__b.sum": ("", cell)})):
        report = read(tmp_path, text)
        assert dict(report.launches[0].metrics) == {}
        assert len(report.rejects) == cell[:1].isdecimal()


def test_without_units_values_may_be_scaled(tmp_path: Path) -> None:
    report = read(tmp_path, raw_page({DURATION: ("", "12.5")}, units=False))
    assert report.launches == ()
    assert reasons(report) == {("a table without the row of units", None): 1}


def test_runs_one_after_the_other_and_both_pages_in_one_file(tmp_path: Path) -> None:
    later = Made(7, "later", COPY.values)
    report = read(
        tmp_path,
        "10%\r20% no line end: " + details(LAUNCHES) + "\n".join(NOISE) + "\n" + raw([later]),
    )
    assert_same(report, [*LAUNCHES, later])
    assert [launch.kernel for launch in report.launches] == [
        COPY.kernel,
        "sgemm_128x64_nn",
        "later",
    ]


def test_damaged_rows_are_counted_and_the_others_read(tmp_path: Path) -> None:
    whole = raw(LAUNCHES)
    row = whole.splitlines()[-1]
    open_quote = row[: row.index("sgemm") + 3]
    report = read(tmp_path, whole + open_quote + "\n" + '"0","0.25"\n' + row + "\n")
    assert len(report.launches) == 3
    assert reasons(report) == {("a row that is damaged or has too few cells", None): 2}


def test_a_file_that_is_cut_gives_whole_launches(tmp_path: Path) -> None:
    """Of the details page, the launch before the cut may lack metrics, and is left out."""
    for page, least in ((details, 0), (raw, 1)):
        whole = page(LAUNCHES)
        for end in range(whole.index('"1","4711"') + 1, len(whole) - 2, 13):
            if whole[end - 1] not in '\n"':
                report = read(tmp_path, whole[:end])
                assert_same(report, [COPY] if least or report.launches else [])
                assert report.problems[0].startswith("the file is cut off")


def test_the_chip_of_a_raw_page(tmp_path: Path) -> None:
    columns = {
        "device__attribute_display_name": ("", "NVIDIA H100 NVL"),
        "device__attribute_compute_capability_major": ("", "9"),
        "device__attribute_compute_capability_minor": ("", "0"),
        "device__attribute_clock_rate": ("", "1785000"),
        "device__attribute_max_mem_frequency_khz": ("Ghz", "2.619"),
        "device__attribute_l2_cache_size": ("Mbyte", "52.43"),
        "device__attribute_total_memory": ("byte", "99,857,989,632"),
        **{
            f"launch__grid_dim_{axis}": ("", size)
            for axis, size in zip("xyz", ("512", "2", "1"), strict=True)
        },
    }
    (launch,) = read(tmp_path, raw_page(columns)).launches
    assert (launch.chip.name, launch.chip.compute_capability) == ("NVIDIA H100 NVL", "9.0")
    assert launch.chip.attributes == {
        "compute_capability_major": 9.0,
        "compute_capability_minor": 0.0,
        "clock_rate": 1785000.0,
        "max_mem_frequency_khz": 2619000.0,
        "l2_cache_size": 52430000.0,
        "total_memory": 99857989632.0,
    }
    assert (launch.grid, launch.block) == ((512, 2, 1), None)
