"""`tachograph share kernels` on synthetic reports: output, errors, and what is left out."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from nsight_reports import PUBLISHED, Made, raw_csv, sample
from tachograph.cli import main

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one good report, in which the commands run."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TACHOGRAPH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "130")
    (tmp_path / "good.csv").write_text(sample(), encoding="utf-8")
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    code = main(["share", "kernels", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, _ = run(capsys, *arguments, "--json")
    assert code == 0
    values: dict[str, Any] = json.loads(out)
    return values


def made(kernel: str) -> Made:
    return next(one for one in PUBLISHED if kernel in one.kernel)


def test_kernels_are_chosen_by_name_number_and_time(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def names(*arguments: str) -> list[str]:
        return [
            kernel["label"]
            for kernel in json_of(capsys, "good.csv", *arguments)["gpus"][0]["kernels"]
        ]

    assert names("--top", "1") == ["sleep_<132>"]
    assert names("--kernel", "mm*", "--kernel", "copy") == ["copy", "mm_1024"]
    assert sorted(names("--kernel", "*dmul<?>*")) == [f"dmul<{number}>" for number in range(1, 5)]
    _, out, _ = run(capsys, "good.csv", "--top", "2")
    assert "2 kernels, 2 launches, 40 ms; 11 more kernels took less time" in out
    code, _, err = run(capsys, "good.csv", "--kernel", "fmull")
    assert code == 6
    assert "no kernel 'fmull'; the reports have: " in err
    code, _, err = run(capsys, "good.csv", "--explain", "nosuch")
    assert (code, "the reports have: " in err, " and 9 more" in err) == (6, True, True)
    assert run(capsys, "good.csv", "--top", "0")[0] == 2


def test_together_shows_what_the_paper_warns_of(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = json_of(capsys, "good.csv", "--together", "copy", "fmul<4, 256>")["together"]
    compute, copy = sorted(values["members"], key=lambda member: member["slowdown"])
    assert compute["label"] == "fmul<4, 256>"
    assert copy["slowdown"] > 1.9  # published: time doubles
    assert copy["binding"] == "issue"
    assert values["safe"] is False
    code, out, _ = run(capsys, "good.csv", "--together", "copy", "fmul<4, 256>")
    assert (code, "Together, as streams of one process" in out) == (0, True)
    printed = " ".join(out.split())
    most = max(member["high"] for member in values["members"])
    assert f"Not safe: a slowdown of {most:.1f}x is possible." in printed
    assert f"{copy['slowdown']:.1f}x {copy['low']:.2f}x to {copy['high']:.1f}x issue" in printed
    shares = json_of(capsys, "good.csv", "--together", "copy", "copy", "--mps-share", "50,50")
    assert shares["sharing"] == {"mode": "mps", "shares": [0.5, 0.5]}
    # Published.
    assert shares["together"]["members"][0]["slowdown"] == pytest.approx(1.36, rel=0.05)
    slower = json_of(capsys, "good.csv", "--together", "copy", "mm_1024", "--mps-share", "50,50")
    assert slower["together"]["safe"] is False


def test_what_cannot_run_together_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in (
        (("--together", "copy"), "expected 2 arguments"),
        (("--together", "copy", "fmul"), "fits several kernels"),
        (("--matrix", "--mps-share", "30,30,30"), "invalid percentages"),
        (("--mps-share", "half"), "invalid percentages"),
        (("--mps-share", "0,50"), "above 0 and at most 100"),
    ):
        code, out, err = run(capsys, "good.csv", *arguments)
        assert (code, out) == (2, ""), arguments
        assert message in err


def test_pairs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = ("good.csv", "--kernel", "dmul", "--matrix")
    code, out, _ = run(capsys, *few)
    assert (code, "Slowdown of a row while a column runs beside it" in out) == (0, True)
    (gpu,) = json_of(capsys, *few)["gpus"]
    assert len(gpu["pairs"]) == 16
    rows = list(csv.DictReader(io.StringIO(run(capsys, *few, "--csv")[1])))
    assert [float(row["slowdown"]) for row in rows] == [pair["slowdown"] for pair in gpu["pairs"]]
    matrix = out[out.index("Slowdown of a row") : out.index("Safe (upper ends")].splitlines()
    for kernel in gpu["kernels"]:
        (line,) = [
            line for line in matrix if line.split()[:2] == [str(kernel["number"]), kernel["label"]]
        ]
        own = [pair["slowdown"] for pair in gpu["pairs"] if pair["row"] == kernel["number"]]
        assert line.split()[2:] == [f"{value:.2f}" for value in own]
    many = raw_csv([Made(f"k{n:02}(int)", 132, 128, 1.0 + n / 100) for n in range(20)])
    Path("many.csv").write_text(many)
    assert (
        "20 x 20 pairs: all of them with --json or --csv" in run(capsys, "many.csv", "--matrix")[1]
    )


BAD = {
    "empty.csv": ("", "empty"),
    "errors.csv": (
        "==ERROR== ERR_NVGPUCTRPERM - no permission to access GPU Performance Counters\n",
        "ERR_NVGPUCTRPERM",
    ),
    "other.csv": ("timestamp,gpu,util\n1,2,3\n", ""),
    "cut.csv": (sample()[: sample().index('"0","4242"')], ""),
}


@pytest.mark.parametrize("name", [*BAD, "none.ncu-rep"])
def test_a_file_that_cannot_be_read_is_reported_and_does_not_hide_the_others(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, message = BAD.get(name, (None, ""))
    if text is not None:
        Path(name).write_text(text)
    code, out, err = run(capsys, name)
    assert (code, out) == (4, "")
    assert name in err
    assert message in err
    code, out, err = run(capsys, name, "good.csv")
    assert (code, "13 kernels" in out, name in err) == (0, True, True)
    values = json_of(capsys, "good.csv", name)
    (file,) = [file for file in values["files"] if file["file"] == name]
    assert (file["launches"], len(file["problems"]) > 0) == (0, True)


def test_what_was_not_collected_is_reported_with_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("few.csv").write_text(
        raw_csv([made("copy")], without=("lts__t_sector", "sm__inst_issued", "sm__inst_executed."))
    )
    code, out, _ = run(capsys, "few.csv")
    assert code == 0
    assert "lts__t_sector_hit_rate.pct: whether others in L2 slow it down (kernel 1)" in out
    assert "collect it with: ncu --set full -o REPORT PROGRAM" in out
    kernel = json_of(capsys, "few.csv")["gpus"][0]["kernels"][0]
    assert (kernel["uses"]["l2_hit"], kernel["uses"]["ipc"]) == (None, None)
    assert kernel["scores"]["score_gpu_theory"] is None
    assert "issue" not in kernel["demand"]["cycles"]
    explained = run(capsys, "few.csv", "--explain", "copy")[1]
    assert "needs sm__inst_executed.avg.per_cycle_elapsed" in explained


def test_the_sample_of_the_documentation_is_what_the_script_writes() -> None:
    assert (REPOSITORY / "docs" / "samples" / "published-h100.csv").read_text(
        encoding="utf-8"
    ) == sample()
