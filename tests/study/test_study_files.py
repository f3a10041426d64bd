"""What `tachograph study` writes: all of it or nothing, beside what is there already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from studied_lake import figures

from tachograph.annexes.lab.figures.registry import FIGURES

SMALL = ("--figure", "spatial_imbalance", "--format", "svg")


@pytest.mark.slow
def test_every_file_that_is_named_is_there(study_lake: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "study"
    done = figures(study_lake, "-o", str(folder), "--format", "svg")
    assert done.code == 0, done.err
    study = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    assert sorted(path.name for path in folder.iterdir()) == study["files"]
    for entry in FIGURES:
        beside = json.loads((folder / f"{entry.stem}.json").read_text(encoding="utf-8"))
        assert beside == study["figures"][entry.name]
        assert (folder / f"{entry.stem}.svg").exists() is beside["drawn"]
        for name in beside["tables"].values():
            assert pl.read_csv(folder / name).width > 0
    assert f"{len(study['files'])} files in {folder}" in done.out


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


def test_a_file_in_the_place_of_the_folder(study_lake: Path, tmp_path: Path) -> None:
    file = tmp_path / "study"
    file.write_text("mine", encoding="utf-8")
    done = figures(study_lake, "-o", str(file))
    assert (done.code, done.out) == (2, "")
    assert done.err == f"tachograph: {file}: is a file, not a folder; name another folder with -o\n"


_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
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
        f"{folder}: cannot be written: File too large; free some space, or name another folder with -o"
        in done.stderr
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(study_lake: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    done = figures(study_lake, "-o", str(tmp_path / "study"), *SMALL)
    assert done.code == 7
    assert "cannot be written: Permission denied" in done.err
