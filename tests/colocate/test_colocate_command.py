"""`tachograph share colocate` on the lake of the demo, with the estimator of the project."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import tachograph
from in_process import clean_environment, run_here

SAMPLE = Path(__file__).resolve().parents[2] / "docs/samples/qmc-a100.csv"
PAIR = ("--pair", "user001/qmc", "user009/qmc", "--json")
PROFILES = [
    word for user in ("user001", "user009") for word in ("--profile", f"{user}/qmc={SAMPLE}")
]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What becomes of `tachograph share colocate` in a folder."""
    environment = clean_environment(NO_COLOR="1", COLUMNS="110")
    return run_here(["share", "colocate", *words], folder, environment)


def chosen(folder: Path, *words: str) -> dict[str, Any]:
    """What the command says about the pair of QMC jobs."""
    data: dict[str, Any] = json.loads(run(folder, *words, *PAIR).stdout)["chosen"][0]
    return data


@pytest.fixture(scope="module")
def pairs(demo: Path) -> dict[str, Any]:
    """All pairs of the demo, as the command prints them."""
    done = run(demo, "--runs", "1", "--all", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_proposals_keep_what_they_promise(demo: Path, pairs: dict[str, Any]) -> None:
    assert pairs["trials"]
    seen: set[tuple[str, str, int]] = set()
    jobs = tachograph.open(str(demo / "lake")).jobs()
    memory = {row["display_id"]: row for row in jobs.iter_rows(named=True)}
    for pair in pairs["proposals"] + pairs["trials"]:
        one, other = pair["one"], pair["other"]
        assert (one["gpu_model"], one["gpus"]) == (other["gpu_model"], other["gpus"])
        assert (pair["verdict"], pair["safe"]) == (
            "share" if max(pair["high"]) <= 1.1 + 1e-9 else "try",
            False,  # no kernels are known
        )
        assert max(pair["low"]) <= 1.1
        assert pair["high"] == pytest.approx([1 + other["busy"], 1 + one["busy"]])
        hours = min(one["gpu_hours"], other["gpu_hours"]) / (2 if one == other else 1)
        assert pair["saved_h"] == pytest.approx(hours * (2 - max(pair["high"])))
        assert pair["setup"]
        assert pair["probation"]
        for kind in (one,) if one == other else (one, other):
            key = (kind["label"], kind["gpu_model"], kind["gpus"])
            assert key not in seen
            seen.add(key)
        rows = [[memory[name] for name in pair[side]["jobs"]] for side in ("one", "other")]
        used = sum(max(row["hbm_used_mib_max"] for row in side) for side in rows)
        assert used + 512 <= 0.9 * rows[0][0]["hbm_mib"]
    assert pairs["jobs"] == jobs.height
    assert sum(row["jobs"] for row in pairs["left_out"]) < jobs.height


def test_a_pair_is_explained(demo: Path, pairs: dict[str, Any]) -> None:
    best = pairs["trials"][0]
    done = run(demo, "--pair", best["one"]["jobs"][0], best["other"]["jobs"][0])
    assert done.returncode == 0
    assert done.stdout.startswith(f"{best['one']['label']} with {best['other']['label']}")
    printed = " ".join(done.stdout.split())
    for text in ("try MPS", "Without profiles of both", "nvidia-cuda-mps-control -d", "Undo if"):
        assert text in printed
    data = json.loads(
        run(demo, "--pair", best["one"]["jobs"][0], best["other"]["jobs"][0], "--json").stdout
    )
    (pair,) = data["chosen"]
    assert pair["high"] == pytest.approx(best["high"])
    assert {option["mode"] for option in pair["options"]} >= {"mps", "time_slicing"}


def test_filters_and_errors(demo: Path, tmp_path: Path) -> None:
    done = run(demo, "--user", "nobody")
    assert (done.returncode, done.stderr) == (0, "")
    assert "No jobs." in done.stdout
    wrong = run(demo, "--pair", "user000/nope", "user001/train")
    assert (wrong.returncode, "did you mean" in wrong.stderr) == (6, True)
    assert run(demo, "--top", "0").returncode == 2
    assert run(demo, "--runs", "0").returncode == 2
    assert run(tmp_path).returncode == 5


def test_profiles_at_the_command_and_in_the_configuration(demo: Path, tmp_path: Path) -> None:
    at_command = chosen(demo, *PROFILES)
    assert at_command["worst_kernels"][2] >= max(at_command["high"])
    assert all(at_command[side]["profile"] for side in ("one", "other"))
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/qmc.csv").write_bytes(SAMPLE.read_bytes())
    kept = f'lake = "{demo / "lake"}"\n[interference.profiles]\n"user00?/qmc" = "reports"\n'
    (tmp_path / "site.toml").write_text(kept, encoding="utf-8")
    done = run(demo, *PAIR, "--config", str(tmp_path / "site.toml"))
    (configured,) = json.loads(done.stdout)["chosen"]
    assert configured["slowdowns"] == at_command["slowdowns"]
    assert "not on H100 SXM 80GB, 132 SMs" in done.stderr  # the third that the pattern fits


def test_reports_attached_to_a_job_stand_for_its_group(demo: Path, tmp_path: Path) -> None:
    shutil.copytree(demo, tmp_path / "demo")
    folder = tmp_path / "demo"
    at_command, before = chosen(folder, *PROFILES), chosen(folder)
    for side in ("one", "other"):
        words = ["share", "kernels", str(SAMPLE), "--job", before[side]["jobs"][-1]]
        assert run_here(words, folder, clean_environment()).returncode == 0
    attached = chosen(folder)
    assert not any(before[side]["profile"] for side in ("one", "other"))
    assert attached["slowdowns"] == at_command["slowdowns"]
    assert attached["one"]["profile"]["reports"] == [f"reports of job {before['one']['jobs'][-1]}"]


def test_what_is_no_profile_ends_the_command(demo: Path) -> None:
    assert run(demo, "--profile", "user001/qmc").returncode == 2
    assert run(demo, "--profile", "=x.csv").returncode == 2
    missing = run(demo, "--runs", "1", "--profile", "user001/qmc=missing.csv")
    assert (missing.returncode, "missing.csv" in missing.stderr) == (4, True)
    typo = run(demo, "--runs", "1", "--profile", "user001/qmx=tachograph.toml")
    assert (typo.returncode, "did you mean" in typo.stderr) == (6, True)
