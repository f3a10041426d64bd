"""Quirks of the two pages, one by one."""

from __future__ import annotations

import gzip
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from ncu_csv import (
    COPY,
    DURATION,
    LAUNCHES,
    MULTIPLY,
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

from tachograph.nsight.launches import NcuReport
from tachograph.nsight.metrics import VARIES, fits, is_whole, labels, metric_of, unit_factor

OWN = "Command line profiler metrics"


def lines_of(*rows: tuple[str, ...]) -> str:
    return "".join(quoted(row) + "\n" for row in rows)


def raw_page(columns: dict[str, tuple[str, str]], *, units: bool = True) -> str:
    """A raw page with one launch: {column: (unit, cell)}."""
    names = ("ID", "Kernel Name", *columns)
    rows = [names, ("", "", *(unit for unit, _ in columns.values()))] if units else [names]
    return lines_of(*rows, ("3", "k", *(cell for _, cell in columns.values())))


def details_page(*values: tuple[str, str, str, str]) -> str:
    names = ("ID", "Process ID", "Kernel Name", "Section Name", "Metric Name", "Metric Unit", "Metric Value")
    return lines_of(names, *(("0", "1", "k", *value) for value in values))


def reasons(report: NcuReport) -> dict[tuple[str, str | None], int]:
    return {(reject.reason, reject.column): reject.count for reject in report.rejects}


def test_memory_throughput_is_two_metrics(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        details_page(
            ("GPU Speed Of Light Throughput", "Memory Throughput", "%", "65.77"),
            ("Memory Workload Analysis", "Memory Throughput", "Gbyte/second", "1,205.50"),
        ),
    )
    assert dict(report.launches[0].metrics) == {
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 65.77,
        "dram__bytes.sum.per_second": 1205.5e9,
    }


@pytest.mark.parametrize(("section", "label"), sorted(labels()))
def test_every_label(section: str, label: str) -> None:
    metric = metric_of(section, label)
    assert metric is not None
    assert "__" in metric
    assert (section, label) not in VARIES


def test_labels_of_2020(tmp_path: Path) -> None:
    report = read(
        tmp_path,
        details_page(
            ("GPU Speed Of Light", "SM [%]", "%", "40.5"),
            ("GPU Speed Of Light", "Memory [%]", "%", "60.5"),
            ("GPU Speed Of Light", "SOL DRAM", "%", "50.5"),
            ("GPU Speed Of Light", "SM Frequency", "cycle/usecond", "1,410.25"),
        ),
    )
    assert dict(report.launches[0].metrics) == {
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 40.5,
        "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": 60.5,
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": 50.5,
        "gpc__cycles_elapsed.avg.per_second": 1410.25e6,
    }


def test_a_label_that_is_not_known_is_counted(tmp_path: Path) -> None:
    page = details_page(
        (SPEED, "Duration", "ns", "812.5"),
        ("My Section", "My Label", "%", "1.5"),
        ("Compute Workload Analysis", "Issue Slots Busy", "%", "30.5"),
        ("Launch Statistics", "Function Cache Configuration", "", "CachePreferNone"),
    )
    report = read(tmp_path, page)
    assert dict(report.launches[0].metrics) == {DURATION: 812.5}
    assert reasons(report) == {
        ("a label that is not known", "My Section: My Label"): 1,
        (
            "a label that stands for another metric from version to version of ncu",
            "Compute Workload Analysis: Issue Slots Busy",
        ): 1,
    }


def test_a_metric_collected_by_name(tmp_path: Path) -> None:
    report = read(tmp_path, details_page((OWN, "inst_executed", "inst", "12"), (OWN, "a__b.sum", "Kbyte", "1.5")))
    assert dict(report.launches[0].metrics) == {"inst_executed": 12.0, "a__b.sum": 1500.0}


def test_a_metric_in_two_sections(tmp_path: Path) -> None:
    page = details_page(
        (SPEED, "Duration", "us", "12.35"),
        ("PM Sampling", DURATION, "ns", "12346"),
        (SPEED, "Elapsed Cycles", "cycle", "100"),
        ("Source Counters", "gpc__cycles_elapsed.max", "cycle", "200"),
    )
    report = read(tmp_path, page)
    assert dict(report.launches[0].metrics) == {DURATION: 12350.0, "gpc__cycles_elapsed.max": 100.0}
    assert reasons(report) == {("a metric with two different values", "gpc__cycles_elapsed.max"): 1}


def test_a_percentage_in_bytes_is_not_believed(tmp_path: Path) -> None:
    report = read(tmp_path, details_page((SPEED, "Memory Throughput", "Gbyte/s", "812.5")))
    assert not report.launches[0].metrics
    assert [reject.example for reject in report.rejects] == ["812.5 Gbyte/s"]
    assert not fits("sm__maximum_warps_per_active_cycle_pct", "byte")


@pytest.mark.parametrize("cell", ["n/a", "nan", "-nan", "inf", "no data", "(!) n/a", "(!) nan", "N/A"])
def test_no_value(tmp_path: Path, cell: str) -> None:
    for text in (details_page((OWN, "a__b.sum", "", cell)), raw_page({"a__b.sum": ("", cell)})):
        report = read(tmp_path, text)
        assert dict(report.launches[0].metrics) == {}
        assert reasons(report) == {("no value", "a__b.sum"): 1}


def test_an_empty_cell_was_not_collected(tmp_path: Path) -> None:
    report = read(tmp_path, raw_page({"a__b.sum": ("inst", ""), "c__d.sum": ("inst", "4")}))
    assert dict(report.launches[0].metrics) == {"c__d.sum": 4.0}
    assert report.rejects == ()


def test_summary_per_kernel(tmp_path: Path) -> None:
    names = ("Process ID", "Kernel Name", "Block Size", "Grid Size", "Device", "CC", "Invocations", "Section Name")
    text = lines_of(
        (*names, "Metric Name", "Metric Unit", "Minimum", "Maximum", "Average"),
        ("1", "k", "(256, 1, 1)", "(8, 1, 1)", "0", "9.0", "3", SPEED, "Duration", "us", "1.5", "3.5", "2.5"),
        ("1", "k", "(256, 1, 1)", "(9, 1, 1)", "0", "9.0", "2", SPEED, "Duration", "us", "1.5", "3.5", "9.5"),
    )
    report = read(tmp_path, text)
    assert [(launch.grid, launch.metrics[DURATION]) for launch in report.launches] == [
        *[((8, 1, 1), 2500.0)] * 3,
        *[((9, 1, 1), 9500.0)] * 2,
    ]
    assert report.problems == ("it holds means over the launches of each kernel; each launch counts as the mean",)


def test_runs_one_after_the_other(tmp_path: Path) -> None:
    again = replace(COPY, values=(Value(SPEED, "Duration", DURATION, "us", Decimal("7.25"), Decimal(1000)),))
    for page in (details, raw):
        report = read(tmp_path, page([COPY]) + page([again]) + page([MULTIPLY]))
        assert [launch.metrics[DURATION] for launch in report.launches] == [1205250.0, 7250.0, 117344.0]
        assert [launch.number for launch in report.launches] == [0, 0, 1]


@pytest.mark.parametrize(("cell", "time", "ratio"), [("406,240", 406240.0, 1205.0), ("406.240", 406240.0, 1.205)])
def test_counts_show_how_numbers_are_written(tmp_path: Path, cell: str, time: float, ratio: float) -> None:
    """A time in ns has no fraction, so what stands in it groups digits; so it does in other numbers."""
    for text in (
        details_page((SPEED, "Duration", "ns", cell), (OWN, "a__b.ratio", "", "1,205")),
        raw_page({DURATION: ("ns", cell), "a__b.ratio": ("", "1,205")}),
    ):
        report = read(tmp_path, text)
        assert dict(report.launches[0].metrics) == {DURATION: time, "a__b.ratio": ratio}
        assert report.problems == ()


@pytest.mark.parametrize(
    ("metric", "unit", "whole"),
    [
        (DURATION, "nsecond", True),
        ("gpu__time_duration.avg", "ns", False),
        ("dram__bytes.sum", "byte", True),
        ("dram__bytes.sum", "Mbyte", False),
        ("dram__bytes.sum.per_second", "byte/second", False),
        ("launch__waves_per_multiprocessor", "", False),
        ("launch__grid_size", "", True),
        ("sm__cycles_active.avg", "cycle", False),
        ("device__attribute_clock_rate", "", True),
        ("a__b.sum", "", False),
    ],
)
def test_what_is_counted(metric: str, unit: str, *, whole: bool) -> None:
    assert is_whole(metric, unit) == whole


def test_output_of_the_application_before_the_header(tmp_path: Path) -> None:
    for page in (details, raw):
        assert_same(read(tmp_path, "10%\r20%\rno line end here: " + page(LAUNCHES)), LAUNCHES)


def test_rows_that_are_no_rows_are_counted(tmp_path: Path) -> None:
    whole = raw(LAUNCHES, Dialect(sized=False))
    row = whole.splitlines()[-1]
    cut = row[: row.index("sgemm") + 3]
    report = read(tmp_path, whole + cut + "\n" + '"0","0.25"\n' + row + "\n" + row[:-1] + "\n")
    assert len(report.launches) == 3
    assert reasons(report) == {
        ("a row with a quote that does not close", None): 2,
        ("a row with too few cells", None): 1,
    }


def test_a_row_with_too_many_cells(tmp_path: Path) -> None:
    for page in (details, raw):
        whole = page(LAUNCHES)
        report = read(tmp_path, whole + whole.splitlines()[-1] + ',"1"\n')
        assert_same(report, LAUNCHES)
        assert reasons(report) == {("a row with too many cells", None): 1}


def test_unquoted_as_other_programs_write_it(tmp_path: Path) -> None:
    names = ("", "ID", "Kernel Name", "Grid Size", DURATION, "a__b.sum")
    text = ",".join(names) + "\n0,,,,us,Kbyte\n" + '1,0.0,"f(int, int)","(8, 1, 1)",12.5,1.5\n2,1.0,g,,4.5,\n'
    report = read(tmp_path, text)
    assert [(launch.number, launch.kernel, launch.grid, dict(launch.metrics)) for launch in report.launches] == [
        (0, "f(int, int)", (8, 1, 1), {DURATION: 12500.0, "a__b.sum": 1500.0}),
        (1, "g", None, {DURATION: 4500.0}),
    ]


def test_compressed(tmp_path: Path) -> None:
    whole = gzip.compress(details(LAUNCHES).encode())
    assert_same(read(tmp_path, whole, "report.csv.gz"), LAUNCHES)
    assert_same(read(tmp_path, whole, "report"), LAUNCHES)
    cut = read(tmp_path, whole[:-40], "cut.csv.gz")
    assert len(cut.launches) < 2
    assert cut.problems[-1].startswith("the file is cut off")


def test_instances(tmp_path: Path) -> None:
    columns = {
        "a__b.sum": ("byte", "6 (1; 2; 3)"),
        "c__d.sum": ("", "1,205.50 (1,000.25; 205.25)"),
        "e__f": ("", "(1; 2)"),
        "g__h": ("", "0 (0x7f: 1; 0x80: 2)"),
    }
    report = read(tmp_path, raw_page(columns))
    assert dict(report.launches[0].metrics) == {"a__b.sum": 6.0, "c__d.sum": 1205.5, "g__h": 0.0}
    assert reasons(report) == {("no value", "e__f"): 1}


def test_more_instances_than_csv_allows_by_itself(tmp_path: Path) -> None:
    cell = "7 (" + "; ".join(["12345"] * 40_000) + ")"
    report = read(tmp_path, raw_page({"a__b.sum": ("byte", cell)}))
    assert dict(report.launches[0].metrics) == {"a__b.sum": 7.0}


def test_a_percent_sign(tmp_path: Path) -> None:
    assert dict(read(tmp_path, raw_page({"a__b.pct": ("", "12.5%")})).launches[0].metrics) == {"a__b.pct": 12.5}


def test_without_units_what_may_be_scaled_is_not_believed(tmp_path: Path) -> None:
    columns = {
        DURATION: ("", "12.5"),
        "dram__bytes.sum": ("", "1048576"),
        "launch__shared_mem_per_block_static": ("", "0"),
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": ("", "93.10"),
        "dram__bytes_read.sum.pct_of_peak_sustained_elapsed": ("", "3.25"),
    }
    report = read(tmp_path, raw_page(columns, units=False))
    assert dict(report.launches[0].metrics) == {
        "dram__bytes.sum": 1048576.0,
        "launch__shared_mem_per_block_static": 0.0,
        "sm__throughput.avg.pct_of_peak_sustained_elapsed": 93.1,
        "dram__bytes_read.sum.pct_of_peak_sustained_elapsed": 3.25,
    }
    assert reasons(report) == {("a value without its unit, which may be scaled", DURATION): 1}


def test_units_that_are_not_known(tmp_path: Path) -> None:
    for text in (raw_page({"a__b.sum": ("furlong", "12.5")}), details_page((OWN, "a__b.sum", "furlong", "12.5"))):
        report = read(tmp_path, text)
        assert not report.launches[0].metrics
        assert [reject.example for reject in report.rejects] == ["12.5 furlong"]


def test_the_chip_of_a_raw_page(tmp_path: Path) -> None:
    columns = {
        "device__attribute_display_name": ("", "NVIDIA H100 NVL"),
        "device__attribute_compute_capability_major": ("", "9"),
        "device__attribute_compute_capability_minor": ("", "0"),
        "device__attribute_multiprocessor_count": ("", "132"),
        "device__attribute_clock_rate": ("", "1785000"),
        "device__attribute_max_mem_frequency_khz": ("Ghz", "2.619"),
        "device__attribute_l2_cache_size": ("Mbyte", "52.43"),
        "device__attribute_total_memory": ("byte", "99,857,989,632"),
        "gpu__time_duration.sum": ("us", "12.25"),
    }
    (launch,) = read(tmp_path, raw_page(columns)).launches
    assert (launch.chip.name, launch.chip.compute_capability) == ("NVIDIA H100 NVL", "9.0")
    assert launch.chip.attributes == {
        "compute_capability_major": 9.0,
        "compute_capability_minor": 0.0,
        "multiprocessor_count": 132.0,
        "clock_rate": 1785000.0,
        "max_mem_frequency_khz": 2619000.0,
        "l2_cache_size": 52430000.0,
        "total_memory": 99857989632.0,
    }
    assert dict(launch.metrics) == {DURATION: 12250.0}


@pytest.mark.parametrize("part", ["9.5", "-9", ""])
def test_a_compute_capability_that_is_none(tmp_path: Path, part: str) -> None:
    columns = {f"device__attribute_compute_capability_{name}": ("", part) for name in ("major", "minor")}
    columns["device__attribute_compute_capability_minor"] = ("", "0")
    (launch,) = read(tmp_path, raw_page(columns | {"gpu__time_duration.sum": ("us", "12.25")})).launches
    assert launch.chip.compute_capability is None


def test_launches_on_one_chip_share_it(tmp_path: Path) -> None:
    names = ("ID", "Kernel Name", "Device", "CC", "device__attribute_multiprocessor_count", "a__b.sum")
    rows = [(str(place), "k", "NVIDIA L4", "8.9", "58" if place < 3 else "60", "1") for place in range(4)]
    chips = [launch.chip for launch in read(tmp_path, lines_of(names, ("",) * 6, *rows)).launches]
    assert chips[0] is chips[2]
    assert [chip.attributes["multiprocessor_count"] for chip in chips] == [58.0, 58.0, 58.0, 60.0]
    assert chips[0].name == "NVIDIA L4"


def test_attributes_on_a_details_page(tmp_path: Path) -> None:
    page = details_page((OWN, "device__attribute_multiprocessor_count", "", "132"), (SPEED, "Duration", "us", "1.25"))
    (launch,) = read(tmp_path, page).launches
    assert launch.chip.attributes == {"multiprocessor_count": 132.0}
    assert dict(launch.metrics) == {DURATION: 1250.0}


def test_the_name_of_a_chip_stays_where_an_empty_cell_follows(tmp_path: Path) -> None:
    names = ("ID", "Kernel Name", "Device", "Metric Name", "Metric Unit", "Metric Value")
    units = ("0", "k", "NVIDIA L4", "device__attribute_display_name", "", "")
    page = lines_of(names, units, ("1", "k", "0", *units[3:-1], "NVIDIA H100"), ("1", "k", "0", *units[3:]))
    assert [launch.chip.name for launch in read(tmp_path, page).launches] == ["NVIDIA L4", "NVIDIA H100"]


def test_dimensions_from_metrics(tmp_path: Path) -> None:
    columns = {f"launch__grid_dim_{axis}": ("", size) for axis, size in zip("xyz", ("512", "2", "1"), strict=True)}
    (launch,) = read(tmp_path, raw_page(columns)).launches
    assert (launch.grid, launch.block) == ((512, 2, 1), None)


def test_ranges_of_domains(tmp_path: Path) -> None:
    made = Made(0, "k", COPY.values)
    text = details([made], Dialect(nvtx=True)).replace(
        '"13416  "',
        '"1  ""mine:a:b:none:none:none:none:none:none""  ""<default domain>:c:none:none:none:none:none:x"""',
    )
    text = text.replace(
        '"app","127.0.0.1",""', '"app","127.0.0.1","1  ""mine:a:b:n:n:n:n:n:n""  ""<default domain>:c:n:n:n:n:n:x"""'
    )
    assert read(tmp_path, text).launches[0].ranges == ("mine@a:b", "c")


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    text = details(LAUNCHES).encode().replace(b"sgemm_128x64_nn", b"sgemm\xff")
    kernel = read(tmp_path, text).launches[1].kernel
    assert kernel == "sgemm?"


def test_the_mapping_of_a_raw_page(tmp_path: Path) -> None:
    (launch,) = read(tmp_path, raw_page({"a__b.sum": ("", "2"), "c__d.sum": ("", "n/a")})).launches
    assert (len(launch.metrics), list(launch.metrics), launch.metrics.get("c__d.sum")) == (1, ["a__b.sum"], None)
    assert "c__d.sum" not in launch.metrics
    assert launch.metrics == {"a__b.sum": 2.0}
    with pytest.raises(KeyError):
        launch.metrics["never"]


@pytest.mark.parametrize(
    ("unit", "factor"),
    [
        ("byte", 1.0),
        ("Kbyte/block", 1e3),
        ("Tbyte/s", 1e12),
        ("byte/second", 1.0),
        ("Kbyte/us", 1e9),
        ("nsecond", 1.0),
        ("msecond", 1e6),
        ("second", 1e9),
        ("cycle/second", 1.0),
        ("cycle/nsecond", 1e9),
        ("register/thread", 1.0),
        ("inst/cycle", 1.0),
        ("", 1.0),
        ("Kpct", None),
        ("byte/furlong", None),
    ],
)
def test_units(unit: str, factor: float | None) -> None:
    assert unit_factor(unit) == factor


def test_a_label_without_a_section_is_named_alone(tmp_path: Path) -> None:
    table = lines_of(
        ("ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"),
        ("0", "axpy", "gpu__time_duration.sum", "ns", "1000"),
        ("0", "axpy", "Sought", "", "1"),
    )
    assert [reject.column for reject in read(tmp_path, table).rejects] == ["Sought"]
