"""The lake in Python: what it returns is what the commands print."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from matplotlib.figure import Figure
from studied_lake import END, START, configuration_beside, figures, level

import tachograph
from tachograph.api.open_lake import OpenLake
from tachograph.catalog.errors import NotFoundError, UsageError


@pytest.fixture(scope="module")
def opened(study_lake: Path) -> OpenLake:
    config = configuration_beside(study_lake)
    return tachograph.open(str(study_lake), str(config))


def test_jobs_are_chosen_as_by_the_options(opened: OpenLake) -> None:
    assert opened.jobs()["job_id"].sort().to_list() == ["1", "2", "3", "4", "5", "6"]
    assert opened.jobs(user="eve", state="running")["job_id"].to_list() == ["5"]
    assert opened.jobs(user=["ada", "eve"], where=["gpus=1", "gpu_util_mean<1%"])[
        "job_id"
    ].to_list() == ["4"]
    assert opened.jobs(until=START).is_empty()
    assert opened.jobs(since="2026-04-01T14:15")["job_id"].sort().to_list() == [
        "1",
        "2",
        "4",
        "5",
        "6",
    ]
    assert opened.jobs(since=datetime(2026, 4, 2, tzinfo=UTC))["job_id"].to_list() == ["5"]
    with pytest.raises(UsageError, match="invalid condition"):
        opened.jobs(where="gpus")


def test_what_belongs_to_a_job(opened: OpenLake) -> None:
    assert opened.gpus("1").select("node", "gpu").rows() == [("n1", 0), ("n1", 1)]
    minutes = opened.minutes("1")
    assert minutes.height == 2 * 30
    assert minutes["job_id"].unique().to_list() == ["1"]
    both = opened.jobs(user=["ada", "bob"])
    assert opened.minutes(both).height == 2 * 30 + 2 * 30 + 2
    assert opened.gpus(both).height == 5
    codes = opened.findings().group_by("job_id").agg("code")
    assert dict(codes.rows())["4"] == opened.findings("4")["code"].to_list()
    with pytest.raises(NotFoundError, match="no job '7'"):
        opened.gpus("7")


def test_a_figure_its_numbers_and_the_study_agree(opened: OpenLake) -> None:
    numbers = opened.numbers("spatial_imbalance")
    assert isinstance(opened.figure("6"), Figure)
    study = opened.study(["spatial_imbalance"])
    (made,) = study.report.figures
    assert dict(made.numbers.facts) == dict(numbers.facts)
    assert study.answers == {"RQ4": made.sentences}
    assert repr(study).startswith(
        "2 jobs studied; filters left out still_running 1, no_samples 1, short 1, idle 1."
    )


@pytest.mark.slow
def test_the_command_writes_the_same(opened: OpenLake, study_lake: Path, tmp_path: Path) -> None:
    done = figures(
        study_lake, "-o", str(tmp_path / "a"), "--figure", "6", "--format", "svg", "--json"
    )
    written = opened.study(["6"]).write(tmp_path / "b", formats=["svg"])
    printed = json.loads(done.out)
    assert printed == json.loads((tmp_path / "a" / "study.json").read_text("utf-8"))
    assert printed["files"] == list(written.files)
    for name in written.files:
        if name.startswith("06"):
            assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_a_changed_configuration_is_reported(study_lake: Path, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("[filters]\nmin_elapsed_s = 1\n", encoding="utf-8")
    changed = ("--config", str(tmp_path / "other.toml"), "--figure", "6", "--format", "svg")
    done = figures(study_lake, "-o", str(tmp_path / "a"), *changed)
    assert "the configuration changed after the last analysis" in done.err
    study = json.loads((tmp_path / "a" / "study.json").read_text("utf-8"))
    assert study["dataset"]["stale"] is True


@pytest.mark.parametrize(("window", "places"), [(1, 2), (5, 10), (15, 30), (30, 60)])
def test_windows_are_those_asked_for(opened: OpenLake, window: int, places: int) -> None:
    totals = [
        [sum(level(place, gpu) for place in range(begin, begin + places)) for gpu in (0, 1)]
        for begin in range(0, 60, places)
    ]
    expected = sum(1 - sum(pair) / (2 * max(pair)) for pair in totals) / len(totals)
    found = opened.numbers("spatial_imbalance", window=window).facts["median"]
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pipe": "fp8"}, "no pipe 'fp8'; use fp64, fp32, fp16, tensor"),
        ({"whiskers": "long"}, "use tukey, percentile"),
        ({"window": 7}, "use 1, 5, 15, 30"),
        ({"variant": "mine"}, "no variant 'mine'; use paper, notebooks"),
        ({"no_filter": "lazy"}, "no filter 'lazy'"),
    ],
)
def test_unknown_options_are_errors(
    opened: OpenLake, options: dict[str, object], message: str
) -> None:
    with pytest.raises((UsageError, NotFoundError), match=message):
        opened.study(**options)  # type: ignore[arg-type]


def test_the_lake_is_left_as_it_was(opened: OpenLake, study_lake: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in study_lake.rglob("*")}
    opened.study(["6"], window=5)
    opened.minutes("1")
    assert {path: path.stat().st_mtime_ns for path in study_lake.rglob("*")} == before
    assert opened.jobs().filter(pl.col("end") == END).height == 4


def test_importing_the_package_imports_nothing_else() -> None:
    program = (
        "import sys, tachograph; print(sorted(name for name in sys.modules if "
        "name.startswith('tachograph')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "['tachograph', 'tachograph.catalog', 'tachograph.catalog.version']\n"


def test_a_misspelt_option_is_told(opened: OpenLake) -> None:
    for call in (
        lambda: opened.jobs(wher="gpus>1"),  # type: ignore[call-arg]
        lambda: opened.study(wher="gpus>1"),
        lambda: opened.figure("energy", windw=5),
    ):
        with pytest.raises(
            TypeError, match=r"'windw'; did you mean window|'wher'; did you mean where"
        ):
            call()
    with pytest.raises(TypeError, match="argument 'pipe'"):
        opened.jobs(pipe="fp32")  # type: ignore[call-arg]
    (one,), (same,) = opened.study("energy").report.figures, opened.study(["05"]).report.figures
    assert one.entry == same.entry
