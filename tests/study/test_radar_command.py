"""`tachograph study radar` and its like in Python: files, choices, and what makes no sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from studied_lake import figures


@pytest.mark.slow
def test_the_command(study_lake: Path, tmp_path: Path) -> None:
    done = figures(
        study_lake, "radar", "-o", str(tmp_path / "r"), "--format", "png", "--by", "partition"
    )
    assert done.code == 0, done.err
    assert (tmp_path / "r" / "radar_grid.png").read_bytes().startswith(b"\x89PNG")
    assert "partition" in done.out.splitlines()[0]
    done = figures(
        study_lake,
        "radar",
        "-o",
        str(tmp_path / "s"),
        "--format",
        "svg",
        "--json",
        "--where",
        "gpus>0",
    )
    values = json.loads(done.out)
    assert values["chosen_by"] == {"where": "gpus>0"}
    assert set(values["files"]) == {path.name for path in (tmp_path / "s").iterdir()}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("radr",), "unknown argument 'radr'"),
        (("radar", "--pipe", "fp32"), "--pipe is an option of the study"),
        (("radar", "--no-filter", "short"), "--no-filter is an option of the study"),
        (("radar", "--by", "usr"), "no groups by 'usr'"),
        (("--by", "user"), "--by is an option of"),
        (("radar", "--user", "nobody"), "no matching job has samples"),
    ],
)
def test_what_makes_no_sense_is_told(
    study_lake: Path, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    done = figures(study_lake, *options, "-o", str(tmp_path / "r"))
    assert done.code in (2, 6)
    assert words in done.err
    assert not (tmp_path / "r").exists()
