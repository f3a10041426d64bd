"""`tachograph waste` on the demo: as in a shell, and against the truth of what was planted."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import tachograph
from in_process import clean_environment
from tachograph.catalog.config import load
from tachograph.catalog.errors import ConfigError
from tachograph.cli import main


def run(
    folder: Path, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `tachograph waste`, in this process."""
    patch.chdir(folder)
    code = main(["waste", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_hours_of_the_demo_add_up(demo: Path) -> None:
    command = [sys.executable, "-m", "tachograph", "waste", "--json", "--by", "account"]
    done = subprocess.run(
        command, cwd=demo, env=clean_environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    data = json.loads(done.stdout)
    hours = {row["cause"]: row["gpu_hours"] for row in data["causes"]}
    assert sum(hours.values()) == pytest.approx(data["gpu_hours"], rel=1e-9)
    assert sum(row["gpu_hours"] for row in data["groups"]) == pytest.approx(
        data["gpu_hours"], rel=1e-9
    )
    assert all(hours[cause] > 0 for cause in ("never_used", "idle", "imbalance", "in_use"))
    jobs = tachograph.open(str(demo / "lake")).jobs()
    assert data["jobs"] + sum(row["jobs"] for row in data["left_out"]) == jobs.height
    assert data["gpu_hours"] + sum(row["gpu_hours"] for row in data["left_out"]) == pytest.approx(
        jobs["gpu_hours"].sum(), rel=1e-9
    )


def test_planted_idle_gpus_are_the_never_used_ones(demo: Path) -> None:
    truth = pl.read_parquet(demo / "cluster" / "truth" / "jobs.parquet")
    jobs = tachograph.open(str(demo / "lake")).jobs()
    chosen = jobs.filter(pl.col("gpu_hours_idle").is_not_null(), pl.col("end").is_not_null())
    both = chosen.join(
        truth.select("job_id", "submit", "kind", unused="gpus_never_used"), on=["job_id", "submit"]
    )
    assert both.height > 300
    one = both.filter(pl.col("kind") == "one_gpu_of_many", pl.col("coverage") > 0.99)
    idle = both.filter(pl.col("kind").is_in(["idle", "cpu_only"]), pl.col("coverage") > 0.99)
    assert one.height
    assert idle.height
    unused = one["gpu_hours"] * one["unused"] / one["gpus"]
    assert one["gpu_hours_never_used"].to_list() == pytest.approx(unused.to_list(), rel=0.05)
    lost = (idle["gpu_hours_never_used"] + idle["gpu_hours_idle"]).to_list()
    assert lost == pytest.approx(idle["gpu_hours"].to_list(), rel=0.1)
    steady = both.filter(pl.col("kind").is_in(["compute_bound", "tensor_training"]))
    lost_of_steady = steady.select(
        pl.sum_horizontal("gpu_hours_never_used", "gpu_hours_hung", "gpu_hours_idle")
    ).sum()
    assert float(lost_of_steady.item()) < 0.05 * float(steady["gpu_hours"].sum())


def test_no_cause_is_found_where_none_was_planted(demo: Path) -> None:
    truth = pl.read_parquet(demo / "cluster" / "truth" / "jobs.parquet").select(
        "job_id", "submit", "kind"
    )
    jobs = tachograph.open(str(demo / "lake")).jobs().join(truth, on=["job_id", "submit"])
    found = {
        cause: set(jobs.filter(pl.col(f"gpu_hours_{cause}") > 0.05 * pl.col("gpu_hours"))["kind"])
        for cause in ("never_used", "hung", "cold_start", "idle")
    }
    assert found["never_used"] <= {"idle", "cpu_only", "one_gpu_of_many", "half_used"}
    assert found["hung"] == {"hung", "deadlock", "stalled"}
    assert found["cold_start"] <= {"cold_start"}
    assert found["idle"] <= {"bursty", "cold_start", "stalled", "hung", "deadlock"}


def test_scores_are_in_the_report_of_a_job(demo: Path) -> None:
    shown = tachograph.open(str(demo / "lake")).job("1000316").json()
    assert 90 < shown["score_gpu"] <= 100
    assert [gpu["score_gpu"] for gpu in shown["per_gpu"]].count(100.0) == 7  # one of eight worked
    assert {"score_gpumem", "score_gpumem_normalized"} <= set(shown["per_gpu"][0])


def test_as_in_a_shell(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    priced = tmp_path / "priced.toml"
    priced.write_text('[waste]\nprices = { "*" = 2.0 }\n', encoding="utf-8")
    monkeypatch.setenv("TACHOGRAPH_CONFIG", str(priced))
    monkeypatch.setenv("TACHOGRAPH_LAKE", str(demo / "lake"))
    code, shown, err = run(
        demo, capsys, monkeypatch, "--by", "user", "--top", "3", "--jobs", "idle"
    )
    assert (code, err) == (0, "")
    assert shown.startswith("Jobs: held, idle\n")
    assert "others" in shown
    assert "EUR" in shown
    monkeypatch.delenv("TACHOGRAPH_CONFIG")
    monkeypatch.delenv("TACHOGRAPH_LAKE")
    rows = list(csv.DictReader(io.StringIO(run(demo, capsys, monkeypatch, "--csv")[1])))
    assert [row["cause"] for row in rows][:2] == ["never_used", "hung"]
    page = tmp_path / "ledger.html"
    _, out, err = run(demo, capsys, monkeypatch, "--html", str(page))
    assert (out, f"written to {page}" in err) == ("", True)
    assert page.read_text(encoding="utf-8").count('class="plot"') == 4
    code, _, err = run(demo, capsys, monkeypatch, "--by", "usr")
    assert (code, "did you mean user" in err) == (2, True)
    code, _, err = run(demo, capsys, monkeypatch, "--jobs", "wasted")
    assert (code, "one of all, never_used, hung" in err) == (2, True)


def test_jobs_that_wasted_most_of_the_demo(
    demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = json.loads(run(demo, capsys, monkeypatch, "--jobs", "all", "--json")[1])
    back = [row["recoverable"] for row in data["concerned"]]
    assert back == sorted(back, reverse=True)
    assert sum(back) == pytest.approx(data["recoverable"], rel=1e-9)
    assert sum(row["gpu_hours_lost"] for row in data["concerned"]) == pytest.approx(
        data["lost"], rel=1e-9
    )
    assert all(row["gpu_hours_lost"] <= row["gpu_hours"] * (1 + 1e-9) for row in data["concerned"])


def test_a_filter_leaves_what_it_says(demo: Path) -> None:
    def hours(**which: Any) -> float:
        return tachograph.open(str(demo / "lake")).waste(**which).report.gpu_hours

    whole, parts = hours(), [hours(partition=name) for name in ("gpu", "shared")]
    assert sum(parts) == pytest.approx(whole, rel=1e-9)
    assert min(parts) > 0


def test_a_price_that_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match=r"waste\.price_per_kwh is -0\.1"):
        load(None, {"TACHOGRAPH_WASTE_PRICE_PER_KWH": "-0.1"})
