"""Reports that are cut at any byte or damaged at any: nothing is invented, and nothing but project errors is raised."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isclose
from pathlib import Path

import pytest
from ncu_csv import COPY, LAUNCHES, MULTIPLY, Dialect, Made, assert_same, details, quoted, raw, read

from tachograph.catalog.errors import InputError
from tachograph.nsight.launches import NcuReport

Page = Callable[[Sequence[Made], Dialect], str]
DIALECTS = (Dialect(nvtx=True), Dialect(locale="de", tails="empty", end="\r\n"), Dialect(sized=False, tails="comma"))
TWO = (replace(COPY, values=COPY.values[:3]), replace(MULTIPLY, values=MULTIPLY.values[:2]))


def assert_true(report: NcuReport, launches: Sequence[Made]) -> None:
    """Assert that everything read was written."""
    truth = {made.number: made for made in launches}
    for launch in report.launches:
        made = truth[launch.number]
        assert launch.kernel == made.kernel
        assert launch.grid in (made.grid, None)
        for metric, value in launch.metrics.items():
            assert isclose(value, made.truth[metric], rel_tol=1e-9), metric


@pytest.mark.parametrize("dialect", DIALECTS, ids=["plain", "german", "comma"])
@pytest.mark.parametrize("page", [details, raw])
def test_cut_at_every_byte(tmp_path: Path, page: Page, dialect: Dialect) -> None:
    whole = page(TWO, dialect).encode()
    first = whole.decode().index('"1","4711"')  # where the second launch begins
    for end in range(0, len(whole), 1 if dialect is DIALECTS[0] else 5):
        report = read(tmp_path, whole[:end])
        assert_true(report, TWO)
        if end > first + 20:
            # the first launch is whole, for nothing of it was cut
            assert report.launches[0].metrics.keys() == TWO[0].truth.keys(), end
        if not whole[:end].endswith((b"\n", b"\r", b'"', b",")):
            assert report.problems, end
    assert_same(read(tmp_path, whole), TWO, dialect)


@pytest.mark.parametrize("page", [details, raw])
def test_the_launch_that_was_cut_is_counted(tmp_path: Path, page: Page) -> None:
    whole = page(TWO, Dialect())
    report = read(tmp_path, whole[:-6])
    assert [launch.number for launch in report.launches] == [0]
    assert report.problems == ("the file is cut off, 1 launch at its end was not read; copy or export it again",)


def test_cut_between_launches(tmp_path: Path) -> None:
    whole = details(TWO)
    cut = whole[: whole.index('"1","4711"') + 12]
    report = read(tmp_path, cut)
    assert_same(report, TWO[:1])
    assert len(report.problems) == 1


def test_unquoted_and_cut_within_a_value(tmp_path: Path) -> None:
    text = "ID,Kernel Name,a__b.sum,gpu__time_duration.sum\n,,inst,us\n0,k,12,12.5\n1,k,13,12.5"
    report = read(tmp_path, text)
    assert [dict(launch.metrics) for launch in report.launches] == [
        {"a__b.sum": 12.0, "gpu__time_duration.sum": 12500.0},
        {"a__b.sum": 13.0},
    ]
    assert [reject.example for reject in report.rejects] == ["12.5"]


@pytest.mark.parametrize("page", [details, raw])
def test_damaged_at_random(tmp_path: Path, page: Page) -> None:
    whole = page(LAUNCHES, Dialect(nvtx=True, tails="empty", noise=("==PROF== x", "a,b"))).encode()
    random_ = random.Random(7)
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(random_.choice((1, 1, 2, 8))):
            place = random_.randrange(len(damaged))
            if random_.random() < 0.2:
                del damaged[place : place + random_.randrange(40)]
            else:
                damaged[place] = random_.choice((random_.randrange(256), ord('"'), ord(","), ord("\n"), ord("="), 0))
        try:
            report = read(tmp_path, bytes(damaged))
        except InputError:
            continue
        for launch in report.launches:
            assert all(isinstance(value, float) and value == value for value in launch.metrics.values())
            launch.kernel.encode()


def test_any_bytes(tmp_path: Path) -> None:
    random_ = random.Random(8)
    for size in (1, 2, 3, 5, 100, 5000):
        for start in (b"", b"\x1f\x8b", b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf", b'"ID","', b"\x1f\x8b\x08\0"):
            report = read(tmp_path, start + random_.randbytes(size))
            assert not report.launches
            assert report.problems


def test_a_quote_that_never_closes_costs_one_row(tmp_path: Path) -> None:
    whole = raw(LAUNCHES).splitlines()
    text = "\n".join([*whole[:2], '"0","never closed', *whole[2:], ""])
    report = read(tmp_path, text)
    assert_same(report, LAUNCHES)
    assert [(reject.reason, reject.count) for reject in report.rejects] == [
        ("a row with a quote that does not close", 1)
    ]


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """A row is 7 KB of text and 4 KB of numbers; only the numbers may stay."""
    metrics = [f"unit__quantity_{number}.avg.pct_of_peak_sustained_elapsed" for number in range(500)]
    launches = 300
    path = tmp_path / "wide.csv"
    with path.open("w") as file:
        file.write(quoted(["ID", "Kernel Name", *metrics]) + "\n" + quoted(["", "", *["%"] * 500]) + "\n")
        cells = [f"{number}.123456" for number in range(500)]
        for number in range(launches):
            file.write(quoted([str(number), "kernel", *cells]) + "\n")
    from tachograph.nsight.reports import read_report

    tracemalloc.start()
    try:
        report = read_report(path)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(report.launches) == launches
    assert report.launches[-1].metrics[metrics[499]] == 499.123456
    numbers = launches * 500 * 8
    assert kept < 1.2 * numbers + 4e5
    assert peak < kept + 1e6
