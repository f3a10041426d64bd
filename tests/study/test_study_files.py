"""What `tachograph study` writes: all of it or nothing, beside what is there already."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from base64 import b64decode
from pathlib import Path

import polars as pl
import pytest
from studied_lake import figures

from madelake import job, make_lake, summarized, utc
from tachograph.annexes.lab.figures.registry import FIGURES, QUESTIONS

SMALL = ("--figure", "spatial_imbalance", "--format", "svg")


@pytest.mark.slow
def test_every_file_that_is_named_is_there(study_lake: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "study"
    done = figures(study_lake, "-o", str(folder), "--format", "svg")
    assert done.code == 0, done.err
    logged = [f"{what} {entry.name}" for what in ("compute", "draw") for entry in FIGURES]
    steps = [line.rpartition(" (")[0] for line in done.err.splitlines()]
    assert list(filter(None, steps)) == logged
    study = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    assert sorted(path.name for path in folder.iterdir()) == study["files"]
    for entry in FIGURES:
        beside = json.loads((folder / f"{entry.stem}.json").read_text(encoding="utf-8"))
        assert beside == study["figures"][entry.name]
        assert (folder / f"{entry.stem}.svg").exists() is beside["drawn"]
        for name in beside["tables"].values():
            assert pl.read_csv(folder / name).width > 0
        (line,) = re.findall(rf"^ *{entry.number} +{entry.name} .*", done.out, re.MULTILINE)
        assert ("not drawn; " in line) is not beside["drawn"]
    for name, question in QUESTIONS.items():
        assert f"{name}  {question[:40]}" in done.out
    assert f"{len(study['files'])} files in {folder}" in done.out


def test_the_page_has_the_png_where_no_svg_is_written(study_lake: Path, tmp_path: Path) -> None:
    figures(study_lake, "-o", str(tmp_path), "--figure", "6", "--format", "png", "--format", "pdf")
    assert not list(tmp_path.glob("*.svg"))
    page = (tmp_path / "study.html").read_text(encoding="utf-8")
    ((width, shown),) = re.findall(
        r'width: (\d+)%[^<]*><img src="data:image/png;base64,([^"]*)"', page
    )
    assert width == "100"
    assert b64decode(shown) == (tmp_path / "06_spatial_imbalance.png").read_bytes()


@pytest.mark.slow
def test_other_files_stay_and_those_of_an_earlier_study_go(
    study_lake: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    (tmp_path / "06_spatial_imbalance.old.csv").write_text("mine", encoding="utf-8")
    figures(study_lake, "-o", str(tmp_path), "--figure", "7", "--format", "svg")
    assert (tmp_path / "07_temporal_imbalance.svg").exists()
    done = figures(study_lake, "-o", str(tmp_path), *SMALL)
    assert not list(tmp_path.glob("07_*"))
    assert "of an earlier study removed" in done.out
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "mine"
    assert (tmp_path / "06_spatial_imbalance.old.csv").exists()


@pytest.mark.slow
def test_a_study_json_that_lies_removes_nothing_else(study_lake: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    names = ["notes.txt", "../notes.txt", "07_x/../notes.txt", 3]
    (tmp_path / "study.json").write_text(json.dumps({"files": names}), encoding="utf-8")
    assert figures(study_lake, "-o", str(tmp_path), *SMALL).code == 0
    assert (tmp_path / "notes.txt").exists()
    (tmp_path / "study.json").write_text("no json", encoding="utf-8")
    assert figures(study_lake, "-o", str(tmp_path), *SMALL).code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (("--format", "gif"), 2, "no format 'gif'; use pdf, svg, png"),
        (("--figure", "spatial"), 6, "no figure 'spatial'"),
        (("--user", "zoe"), 6, "your choice leaves out all 6 jobs"),
        (("--excluded",), 2, "unrecognized arguments: --excluded"),
        (("--window", "often"), 2, "'often' is not a number from 1 to 30"),
        (("-o", __file__), 2, f"{__file__}: is a file, not a folder; name another folder with -o"),
    ],
)
def test_mistakes_are_one_line(
    study_lake: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, reported: str
) -> None:
    done = figures(study_lake, "-o", str(tmp_path / "study"), *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
    assert reported in done.err
    assert not (tmp_path / "study").exists()


def test_lakes_without_jobs(tmp_path: Path) -> None:
    make_lake(tmp_path / "raw", jobs=[job("1", utc(1), utc(2))])
    samples = [{"t": utc(1), "node": "n1", "gpu": 0, "gpu_util": 0.5}]
    summarized(make_lake(tmp_path / "idle", gpu_samples=samples))
    for name, reported in (
        ("raw", "nothing was analyzed yet; run `tachograph analyze`\n"),
        ("idle", "there is no job to study"),
    ):
        done = figures(tmp_path / name, "-o", str(tmp_path / "study"))
        assert (done.code, reported in done.err) == (5, True), done.err
        assert not (tmp_path / "study").exists()


_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.dont_write_bytecode = True  # it would be cut off, and read by other processes
from tachograph.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_disk_that_is_full_leaves_the_folder_as_it_was(study_lake: Path, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    assert figures(study_lake, "-o", str(folder), *SMALL).code == 0
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    arguments = [
        "study",
        "--lake",
        str(study_lake),
        "-o",
        str(folder),
        "--figure",
        "6",
        "--pipe",
        "fp32",
    ]
    environment = {**os.environ, "MPLCONFIGDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 7, done.stderr
    assert (
        f"{folder}: cannot be written: File too large; raise the limit of file sizes, or name another folder with -o"
        in done.stderr
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(study_lake: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = figures(study_lake, "-o", str(tmp_path / "study"), *SMALL)
    assert done.code == 7
    assert "cannot be written: Permission denied" in done.err
