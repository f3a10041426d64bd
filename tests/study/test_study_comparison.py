"""Studies side by side: lakes and days, the same numbers in every form."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from studied_lake import figures

from tachograph.api.open_lake import open_lake


@pytest.fixture
def other(study_lake: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(study_lake, tmp_path / "other" / "lake"))


def test_a_column_per_lake(study_lake: Path, other: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    done = figures(study_lake, "--compare", str(other), "-o", str(out))
    assert done.code == 0
    heading, *rows = (line.split() for line in done.out.splitlines() if line)
    assert heading == ["number", str(study_lake), str(other)]
    assert ["jobs", "studied", "2", "2"] in rows
    assert sorted(file.name for file in out.iterdir()) == [
        "compare.csv",
        "compare.html",
        "compare.json",
    ]
    facts = pl.read_csv(out / "compare.csv", infer_schema=False)
    assert facts.columns == ["figure", "fact", str(study_lake), str(other)]
    median = facts.filter(
        (pl.col("figure") == "spatial_imbalance") & (pl.col("fact") == "median")
    ).row(0)
    assert median[2] == median[3]
    assert (
        float(median[2]) == open_lake(str(study_lake)).numbers("spatial_imbalance").facts["median"]
    )
    page = (out / "compare.html").read_text("utf-8")
    for report in json.loads((out / "compare.json").read_text("utf-8"))["studies"].values():
        for one in report["questions"].values():
            assert not one["answers"] or one["answers"][0][:40] in page.replace("\xa0", " ")


@pytest.mark.parametrize(
    ("arguments", "code", "reported"),
    [
        (("2026-13",), 2, "Invalid time: '2026-13'"),
        (("2026-02-30", "2026-04"), 2, "Invalid time: '2026-02-30'"),
        (("2026-03",), 6, "no job is left to study"),
        (("nowhere",), 5, "there is no lake"),
        (("2026-04", "--format", "svg"), 2, "--format does not go with --compare"),
        (tuple(f"2026-0{month}" for month in range(1, 8)), 2, "7 studies to compare"),
    ],
)
def test_mistakes(
    study_lake: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, reported: str
) -> None:
    done = figures(study_lake, "-o", str(tmp_path / "c"), "--compare", *arguments)
    assert (done.code, reported in done.err) == (code, True)
    assert not (tmp_path / "c").exists()
