"""Files of all kinds, known by their content, many at once."""

from __future__ import annotations

import gzip
import hashlib
import os
from pathlib import Path

import pytest
from ncu_csv import COPY, LAUNCHES, details, raw, read

from tachograph.annexes.share.nsight.reports import read_reports

DENIED = (
    "==PROF== Connected to process 4711 (/usr/bin/python3)\n"
    "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU "
    "Performance Counters on the"
    " target device 0. For instructions see https://developer.nvidia.com/ERR_NVGPUCTRPERM\n"
    "==ERROR== The application returned an error code (1).\n"
)
FOREIGN = {
    "nsys": "Time (%),Total Time (ns),Instances,Avg (ns),Name\n100.0,12,1,12.0,k\n",
    "JSON": '{"kernels": []}\n',
    "page for people": (
        "  k (8, 1, 1)x(256, 1, 1), Context 1\n    Section: Occupancy\n    Block Limit SM   block\n"
    ),
    "no kernel": '"Metric Name","Metric Unit","Metric Value"\n"a__b.sum","%","1.5"\n',
    "spreadsheet": raw(LAUNCHES).replace('","', '";"'),
    "database": "SQLite format 3\0 and more",
    "binary": "\x7fELF" + "\0" * 600,
    "zeros": "\0" * 40_000,
}


@pytest.mark.parametrize("kind", sorted(FOREIGN))
def test_a_file_of_another_kind(tmp_path: Path, kind: str) -> None:
    report = read(tmp_path, FOREIGN[kind])
    (problem,) = report.problems
    assert (report.launches, problem.partition(";")[0]) == (
        (),
        "it contains no table of Nsight Compute",
    )


def test_empty(tmp_path: Path) -> None:
    assert read(tmp_path, "").problems == ("the file is empty; profile or copy it again",)


def test_only_errors(tmp_path: Path) -> None:
    (problem,) = read(tmp_path, DENIED).problems
    assert problem.startswith(
        "the profiler failed: ERR_NVGPUCTRPERM - The user does not have permission"
    )
    assert "; have the administrator load the kernel module nvidia with NVreg_Restrict" in problem


def test_a_table_without_launches(tmp_path: Path) -> None:
    source = '"ID","Kernel Name","Address","Source","a__b.sum"\n"1","k","0x0","IMAD","3"'
    for text in (details(LAUNCHES).splitlines()[0], raw(LAUNCHES).splitlines()[0], source):
        (problem,) = read(tmp_path, text + "\n").problems
        assert problem.startswith("its table holds no launch of a kernel; export it")


def test_one_bad_file_does_not_stop_the_rest(tmp_path: Path) -> None:
    good, bad, gone = tmp_path / "good.csv", tmp_path / "bad.csv", tmp_path / "gone.csv"
    good.write_text(details(LAUNCHES))
    bad.write_text("{}")
    reports = read_reports([bad, gone, good])
    assert [(Path(report.file).name, len(report.launches)) for report in reports] == [
        ("bad.csv", 0),
        ("gone.csv", 0),
        ("good.csv", 2),
    ]
    assert reports[1].problems == ("No such file or directory; name a readable file",)


def test_a_folder_stands_for_its_reports(tmp_path: Path) -> None:
    inside = tmp_path / "runs" / "deep"
    inside.mkdir(parents=True)
    (inside / "b.csv.gz").write_bytes(gzip.compress(raw(LAUNCHES).encode()))
    (inside / "a.log").write_text(details([COPY]))
    (inside / "slurm.log").write_text("nothing\n")
    (inside / "picture.png").write_bytes(b"\x89PNG")
    reports = read_reports([tmp_path / "runs"])
    assert [
        (Path(report.file).name, len(report.launches), len(report.problems)) for report in reports
    ] == [
        ("a.log", 1, 0),
        ("b.csv.gz", 2, 0),
        ("slurm.log", 0, 1),
    ]


def test_a_compressed_file_that_is_cut(tmp_path: Path) -> None:
    cut = read(tmp_path, gzip.compress(details(LAUNCHES).encode())[:-40])
    assert len(cut.launches) < 2
    assert cut.problems[0].startswith("the file is cut off")


def test_a_file_that_is_there_twice_is_read_once(tmp_path: Path) -> None:
    first, copy, other = tmp_path / "first.csv", tmp_path / "copy.csv", tmp_path / "other.csv"
    first.write_text(details(LAUNCHES))
    copy.write_text(details(LAUNCHES))
    other.write_text(details(LAUNCHES).replace("sgemm", "dgemm"))
    remarks: list[str] = []
    steps: list[tuple[str, int, int]] = []
    reports = read_reports(
        [first, copy, first, other],
        remark=remarks.append,
        progress=lambda *step: steps.append(step),
    )
    assert [Path(report.file).name for report in reports] == ["first.csv", "other.csv"]
    assert remarks == [
        f"{copy}: the same as {first}, read once",
        f"{first}: the same as {first}, read once",
    ]
    assert steps == [("read reports", number, 4) for number in range(4)]
    assert reports[0].digest == hashlib.sha256(first.read_bytes()).hexdigest()


def test_a_pipe_is_refused_and_the_others_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "good.csv").write_text(raw(LAUNCHES))
    pipe, good = read_reports([tmp_path / "pipe.csv", tmp_path / "good.csv"])
    assert "not a regular file" in pipe.problems[0]
    assert len(good.launches) == len(LAUNCHES)
