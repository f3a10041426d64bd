"""`colocate --accuracy` on a lake of the simulated cluster whose jobs share GPUs."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from subprocess import CompletedProcess
from typing import Any

import pytest
from planted_runs import PLANTED, held_runs

from in_process import clean_environment, run_here
from madelake import held, job, make_lake, summarized, utc
from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.annexes.lab.simulate.shared_gpus import sharing_runs
from tachograph.annexes.share.shared_runs import (
    PairKey,
    RunGroup,
    SlowdownInterval,
    shared_runs,
    slowdown_by_time,
)
from tachograph.annexes.share.sharing_accuracy import (
    AccuracyReport,
    PairAccuracy,
    accuracy_headline,
    accuracy_json,
    accuracy_lines,
    read_held_runs,
)
from tachograph.catalog.config import Configuration
from tachograph.lake.delta import Lake
from tachograph.report.lines import to_text

PLAN = SimulationPlan.sharing(seed=7)
AS_OF = "2025-03-04T00:00:00Z"


def run(folder: Path, *words: str) -> CompletedProcess[str]:
    """What becomes of a command in the folder of the site, on its lake."""
    done = run_here(words, folder, clean_environment(NO_COLOR="1", COLUMNS="120"))
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the analyzed lake of the simulated cluster."""
    folder = tmp_path_factory.mktemp("site")
    run(folder, "lab", "simulate", "cluster", "--shared-gpus", "--no-defects", "--lake", "lake")
    (folder / "tachograph.toml").write_text(
        'lake = "lake"\n' + (folder / "cluster/tachograph.toml").read_text(encoding="utf-8"),
        encoding="utf-8",
    )
    run(folder, "analyze", "--as-of", AS_OF)
    return folder


@pytest.fixture(scope="module")
def answer(site: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        run(site, "share", "colocate", "--accuracy", "--json").stdout
    )
    return found


def name_of(pair: dict[str, Any]) -> tuple[str, str]:
    return pair["group"]["name"], pair["partner"]["name"]


def test_slowdowns_by_run_time_are_those_of_the_simulated_runs(answer: dict[str, Any]) -> None:
    """From accounting and maps the same follows as from the runs themselves."""
    expected = {
        pair.key: slowdown_by_time(pair)
        for pair in shared_runs(held_runs(PLAN, sharing_runs(PLAN))).pairs
    }
    assert len(answer["pairs"]) == len(expected) > 12
    for pair in answer["pairs"]:
        key = PairKey(
            RunGroup(**pair["group"]),
            RunGroup(**pair["partner"]),
            pair["mps"],
            pair["partner_mps"],
        )
        measured = expected[key]
        if measured is None:
            assert (pair["by_time"], pair["result"]) == (None, "too few runs")
        else:
            numbers = (measured.slowdown, measured.low, measured.high)
            assert tuple(pair["by_time"].values()) == pytest.approx(numbers)


def test_slowdowns_by_a_counter_are_the_planted_ones(answer: dict[str, Any]) -> None:
    counters = {}
    for pair in answer["pairs"]:
        if pair["by_counter"] is not None:
            counters[name_of(pair)] = pair["counter"]
            planted = PLANTED[name_of(pair)]
            assert pair["by_counter"]["slowdown"] == pytest.approx(planted, rel=0.01)
    # plot moves no counter that sweep does not move, too
    assert counters == {
        ("dock", "embed"): "fp32_active",
        ("embed", "dock"): "tensor_active",
        ("lattice", "stencil"): "fp64_active",
        ("stencil", "lattice"): "fp32_active",
        ("finetune", "score"): "tensor_active",
        ("score", "finetune"): "fp32_active",
        ("ensemble", "ensemble"): "fp64_active",
        ("parse", "sweep"): "fp64_active",
    }


def test_who_never_shared_or_with_changing_partners_is_unknown(answer: dict[str, Any]) -> None:
    assert not [pair for pair in answer["pairs"] if "solo" in name_of(pair)]
    assert not [pair for pair in answer["pairs"] if pair["group"]["name"] == "sweep"]
    several = {row["group"]["name"] for row in answer["left_out"] if row["reason"] == "several"}
    assert "sweep" in several
    rare = [pair for pair in answer["pairs"] if pair["group"]["name"] == "rare"]
    assert [(pair["beside"], pair["by_time"], pair["by_counter"]) for pair in rare] == [
        (2, None, None)
    ] * len(rare)


def test_sums_are_those_of_the_pairs(answer: dict[str, Any]) -> None:
    both = [pair for pair in answer["pairs"] if pair["by_time"] and pair["predicted"]]
    errors = [pair["predicted"]["slowdown"] - pair["by_time"]["slowdown"] for pair in both]
    within = [
        pair["predicted"]["low"] <= pair["by_time"]["slowdown"] <= pair["predicted"]["high"]
        for pair in both
    ]
    assert answer["predicted"] == len(both) == answer["measured"]
    assert answer["within"] == sum(within)
    assert answer["error_mean"] == pytest.approx(fmean(map(abs, errors)))
    assert answer["bias_mean"] == pytest.approx(fmean(errors))
    assert [pair["result"] == "within" for pair in both] == within


def test_predictions_are_those_of_the_matrix(site: Path, answer: dict[str, Any]) -> None:
    words = ("share", "colocate", "--matrix", "--runs", "1", "--json")
    cells = {}
    for matrix in json.loads(run(site, *words).stdout)["matrices"]:
        for i, one in enumerate(matrix["kinds"]):
            for j, other in enumerate(matrix["kinds"]):
                ends = tuple(matrix[name][i][j] for name in ("slowdown", "low", "high"))
                cells[matrix["gpu_model"], one, other] = ends
    for pair in answer["pairs"]:
        one, other = (f"{pair[side]['user']}/{pair[side]['name']}" for side in ("group", "partner"))
        assert tuple(pair["predicted"].values()) == pytest.approx(
            cells[pair["group"]["gpu_model"], one, other]
        )


def test_the_text_has_the_numbers_of_the_json(site: Path, answer: dict[str, Any]) -> None:
    text = run(site, "share", "colocate", "--accuracy").stdout
    first = text.splitlines()[0]
    assert first.startswith(f"{answer['within']} of {answer['predicted']} measured slowdowns")
    assert f"{answer['error_mean']:.2f} off on average" in first
    rows = [line for line in text.splitlines() if re.match(r"user\d+/.*(x \(|unknown)", line)]
    assert len(rows) == len(answer["pairs"])
    for pair in answer["pairs"]:
        for name in ("by_time", "by_counter", "predicted"):
            if pair[name]:
                values = pair[name]
                cell = f"{values['slowdown']:.2f}x ({values['low']:.2f}-{values['high']:.2f})"
                assert any(cell in row for row in rows)
    assert "unknown" in next(row for row in rows if "/rare" in row)
    top = run(site, "share", "colocate", "--accuracy", "--top", "3").stdout
    assert f"3 of {len(answer['pairs'])} pairs" in top


def test_a_user_sees_own_groups_beside_all_others(site: Path, answer: dict[str, Any]) -> None:
    words = ("share", "colocate", "--accuracy", "--user", "user070", "--json")
    own = json.loads(run(site, *words).stdout)
    assert own["pairs"] == [pair for pair in answer["pairs"] if pair["group"]["user"] == "user070"]
    assert own["pairs"]
    assert own["shared_runs"] < answer["shared_runs"]


def test_a_lake_without_shared_gpus_says_so(demo: Path) -> None:
    done = run(demo, "share", "colocate", "--accuracy")
    assert done.stdout == "No run shared a GPU with others: nothing is measured.\n"
    refused = run_here(["share", "colocate", "--accuracy", "--csv"], demo, clean_environment())
    assert (refused.returncode, "use --json" in refused.stderr) == (2, True)


def small_lake(
    folder: Path,
    *,
    beside: str | None = None,
    job_id: str = "e",
    cluster: str = "c",
    gpu: int | None = None,
    runs_on: bool = False,
    unnamed: str | None = None,
) -> Lake:
    """Ann's job three times alone, three times beside bob's; eve's once, beside one of ann's.

    job_id, cluster, gpu: of eve's job; GPU None: not named. runs_on: it has not ended. unnamed: the
    run of bob whose GPU is not named.
    """
    jobs, rows, samples = [], [], []
    for number in range(6):
        name, start, end = f"a{number}", utc(1 + number), utc(1 + number, 1)
        shares = {"gpus": None, "shards": 4} if number > 2 else {"gpus": 1}
        jobs.append(job(name, start, end, user="ann", name="train", cluster="c", **shares))
        rows += held(name, "n1", [0])
        if number > 2:
            jobs.append(
                job(f"b{number}", start, end, user="bob", name="eval", cluster="c", **shares)
            )
            rows += held(f"b{number}", "n1", [None if f"b{number}" == unnamed else 0])
        if name == beside:
            until = None if runs_on else end
            jobs.append(job(job_id, start, until, user="eve", name="x", cluster=cluster, **shares))
            rows += held(job_id, "n1", [gpu], cluster=cluster)
        samples += [
            {"t": start + timedelta(minutes=minute), "node": "n1", "gpu": 0, "gpu_util": 0.5}
            for minute in range(60)
        ]
    rows += held("a4", "n1", [1], utc(20), utc(21))  # another job of this id
    devices = [{"node": "n1", "gpu": gpu, "model": "NVIDIA A40"} for gpu in (0, 1)]
    lake = make_lake(folder, jobs=jobs, allocations=rows, gpu_samples=samples, devices=devices)
    summarized(lake)
    return lake


@pytest.mark.parametrize(
    ("given", "beside"),
    [
        ({}, 3),
        ({"beside": "a4"}, 2),  # it may have been on the same GPU
        ({"beside": "a4", "cluster": "other"}, 3),  # it was on another node of this name
        ({"beside": "a4", "cluster": "other", "job_id": "b4", "gpu": 1}, 3),
        ({"beside": "a4", "gpu": 1}, 3),
        ({"unnamed": "b4"}, 2),
        ({"beside": "a5", "gpu": 0, "runs_on": True}, 2),
    ],
)
def test_who_else_was_on_the_gpu(tmp_path: Path, given: dict[str, Any], beside: int) -> None:
    lake = small_lake(tmp_path / "lake", **given)
    found = shared_runs(read_held_runs(lake, Configuration()))
    (pair,) = [pair for pair in found.pairs if pair.key.group.user == "ann"]
    assert pair.key.partner == RunGroup("bob", "eval", "A40", 1)
    assert (len(pair.alone), len(pair.beside)) == (3, beside)
    left_out = {(group.user, reason): runs for (group, reason), runs in found.left_out.items()}
    assert left_out.get(("ann", "several"), 0) == 3 - beside


TIME = SlowdownInterval(1.3, 1.2, 1.4)


@pytest.mark.parametrize(
    ("measured", "predicted", "result"),
    [
        (TIME, SlowdownInterval(1.3, 1.3, 1.3), "within"),
        (TIME, SlowdownInterval(1.1, 1.0, 1.25), "above"),
        (TIME, SlowdownInterval(1.1, 1.0, 1.19), "above*"),
        (TIME, SlowdownInterval(1.5, 1.35, 1.6), "below"),
        (TIME, SlowdownInterval(1.5, 1.41, 1.6), "below*"),
        (TIME, None, "not predicted"),
        (None, SlowdownInterval(1.5, 1.41, 1.6), "too few runs"),
        (None, None, "too few runs"),
    ],
)
def test_results(
    measured: SlowdownInterval | None, predicted: SlowdownInterval | None, result: str
) -> None:
    """With a star where the intervals do not overlap."""
    report = report_of((measured, predicted))
    (pair,) = accuracy_json(report)["pairs"]
    assert (pair["result"], pair["certain"]) == (result.rstrip("*"), result.endswith("*"))
    assert report.within == (result == "within")
    row = next(line for line in to_text(accuracy_lines(report)).splitlines() if "3 + 4" in line)
    assert row.endswith(f"  {result}")


def report_of(
    *slowdowns: tuple[SlowdownInterval | None, SlowdownInterval | None],
) -> AccuracyReport:
    group, partner = (RunGroup(user, "train", "A40", 1) for user in ("ann", "bob"))
    key = PairKey(group, partner, 0.5, 0.25)
    pairs = [
        PairAccuracy(key, 3, 4, measured, None, None, predicted, ("16 CPUs alone, 8 beside it",))
        for measured, predicted in slowdowns
    ]
    return AccuracyReport(tuple(pairs), {(group, "partly"): 2}, 9)


def test_the_first_line_has_the_answer() -> None:
    low, high = SlowdownInterval(1.1, 1.0, 1.35), SlowdownInterval(1.6, 1.5, 1.7)
    assert accuracy_headline(report_of((TIME, low), (TIME, high), (None, low))) == (
        "1 of 2 measured slowdowns on shared GPUs within what was predicted; predictions are 0.25 "
        "off on average, 0.05 too high."
    )
    assert accuracy_headline(report_of((TIME, None))) == (
        "9 runs on shared GPUs: 1 slowdown measured, none predicted."
    )
    assert accuracy_headline(report_of((None, low))) == (
        "9 runs on shared GPUs: no slowdown measured, none predicted."
    )


def test_caveats_shares_and_left_out_runs_are_printed() -> None:
    text = to_text(accuracy_lines(report_of((TIME, None)), width=150))
    assert "MPS 50 % / 25 %" in text
    assert "! ann/train beside bob/train: 16 CPUs alone, 8 beside it." in text
    assert "Left out: 2 runs beside another for less than 80 % of their time: ann/train 2." in text
