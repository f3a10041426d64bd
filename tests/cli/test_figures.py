"""`tachograph study` in a process of its own: table, JSON, errors, what it imports."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest

from in_process import run_here
from madelake import held, job, make_lake, summarized, utc
from tachograph.annexes.lab.figures.registry import FIGURES, QUESTIONS
from tachograph.cli import main
from tachograph.lake.delta import Lake


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One job of two GPUs that were measured, one of which nothing is known."""
    folder = tmp_path_factory.mktemp("figures") / "lake"
    start = utc(1, 12)
    end = start + timedelta(minutes=10)
    made = make_lake(
        folder,
        gpu_samples=[
            {
                "t": start + timedelta(seconds=30 * place),
                "node": "n1",
                "gpu": gpu,
                "gpu_util": 0.5 + 0.25 * gpu,
            }
            for gpu in (0, 1)
            for place in range(20)
        ],
        jobs=[job("1", start, end, gpus=2, user="ada"), job("2", start, end, gpus=1, user="bob")],
        allocations=held("1", "n1", (0, 1), start, end),
    )
    summarized(made)
    return folder


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TACHOGRAPH_")
    }
    return run_here(["study", *arguments], folder, {**environment, "COLUMNS": "100"})


@pytest.mark.slow
def test_one_command_writes_the_study_and_prints_its_answers(lake: Path, tmp_path: Path) -> None:
    done = run(tmp_path, "--lake", str(lake), "--format", "svg")
    assert done.returncode == 0
    logged = [f"{what} {entry.name}" for what in ("compute", "draw") for entry in FIGURES]
    assert [line.rpartition(" (")[0] for line in done.stderr.splitlines()] == logged
    assert (tmp_path / "tachograph-study" / "study.html").exists()
    for entry in FIGURES:
        assert f"{entry.name} " in done.stdout
    assert "not drawn; not measured" in done.stdout
    for name, question in QUESTIONS.items():
        assert (f"{name}  {question[:40]}" in done.stdout) is any(
            entry.question == name for entry in FIGURES
        )
    assert "1 job studied" in done.stdout


def test_json_is_what_study_json_holds(lake: Path, tmp_path: Path) -> None:
    done = run(
        tmp_path, "--lake", str(lake), "-o", "s", "--format", "svg", "--json", "--figure", "6"
    )
    printed, written = (
        json.loads(text)
        for text in (done.stdout, (tmp_path / "s" / "study.json").read_text("utf-8"))
    )
    assert {**printed, "made": ""} == {**written, "made": ""}
    assert list(printed["figures"]) == ["spatial_imbalance"]
    assert printed["figures"]["spatial_imbalance"]["facts"]["median"] == pytest.approx(
        1 - 1.25 / 1.5
    )


def test_a_lake_that_was_not_analyzed(tmp_path: Path) -> None:
    make_lake(tmp_path / "lake", jobs=[job("1", utc(1), utc(2))])
    done = run(tmp_path, "--lake", "lake")
    assert done.returncode == 5
    assert done.stderr == "tachograph: lake: nothing was analyzed yet; run `tachograph analyze`\n"
    assert not (tmp_path / "tachograph-study").exists()


def test_a_lake_without_jobs(tmp_path: Path) -> None:
    samples = [{"t": utc(1), "node": "n1", "gpu": 0, "gpu_util": 0.5}]
    summarized(make_lake(tmp_path / "lake", gpu_samples=samples))
    done = run(tmp_path, "--lake", "lake")
    assert done.returncode == 5
    assert "there is no job to study" in done.stderr


def test_a_changed_configuration_is_reported(lake: Path, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("[filters]\nmin_elapsed_s = 1\n", encoding="utf-8")
    done = run(
        tmp_path, "--lake", str(lake), "--config", "other.toml", "--format", "svg", "--figure", "6"
    )
    assert "the configuration changed after the last analysis" in done.stderr
    assert (
        json.loads((tmp_path / "tachograph-study" / "study.json").read_text("utf-8"))["dataset"][
            "stale"
        ]
        is True
    )
    assert Lake.open(str(lake)).location == str(lake)


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (("--format", "gif"), 2, "no format 'gif'; use pdf, svg, png"),
        (("--figure", "spatial"), 6, "no figure 'spatial'"),
        (("--user", "zoe"), 6, "your choice leaves out all 2 jobs"),
        (("--excluded",), 2, "unrecognized arguments: --excluded"),
        (("--window", "often"), 2, "'often' is not a number from 1 to 30"),
    ],
)
def test_mistakes_are_one_line(
    lake: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    code: int,
    reported: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["study", "--lake", str(lake), *arguments]) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert reported in printed.err
    assert printed.err.count("\n") == 1
    assert not (tmp_path / "tachograph-study").exists()
