"""What each step of a job did with its GPUs: hand-checked, and the identities between steps and their job."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from madelake import NOW, fill, held, job, make_lake, summarized, utc
from tachograph.catalog.config import Configuration
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_steps, read_summaries
from tachograph.pipeline.run import analyze

T = utc(23, 12)
EVERY_S = 10
TOTAL_S = 3600
NODES = ("n1", "n2")


def level(node: str, gpu: int, second: int) -> float:
    """Utilisation: none for ten minutes, 0.8 for 20, 0.2 on one node of two for 20, then none."""
    if second < 600 or second >= 3000:
        return 0.0
    if second < 1800:
        return 0.8
    return 0.2 if node == "n1" and gpu == 0 else 0.0


def samples() -> list[dict[str, Any]]:
    return [
        {
            "t": T + timedelta(seconds=second), "node": node, "gpu": gpu, "gpu_util": level(node, gpu, second),
            "power_w": 100.0 + 200.0 * level(node, gpu, second), "hbm_used_mib": 1000.0 + second,
        }
        for node in NODES
        for gpu in (0, 1)
        for second in range(0, TOTAL_S, EVERY_S)
    ]  # fmt: skip


def step(name: str, begin: int, end: int | None, **given: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"job_id": "7", "step": name, "name": name, "state": "COMPLETED", "node_list": "n[1-2]"}
    row |= {"start": T + timedelta(seconds=begin), "end": None if end is None else T + timedelta(seconds=end)}
    return row | {"nodes": 2, "tasks": 4, "gpus": 4} | given


BATCH = step("batch", 0, TOTAL_S, node_list="n1", nodes=1, tasks=1, gpus=2)
EXTERN = step("extern", 0, TOTAL_S)


def lake_of(folder: Path, steps: Sequence[dict[str, Any]], **more: Any) -> Lake:
    end = T + timedelta(seconds=TOTAL_S)
    rows = {
        "gpu_samples": samples(),
        "jobs": [job("7", T, end, nodes=2, gpus=4, node_list="n[1-2]")],
        "allocations": [row for node in NODES for row in held("7", node, (0, 1), T, end)],
        "steps": steps,
    }
    return make_lake(folder, **(rows | more))


def analyzed(lake: Lake) -> dict[str, dict[str, Any]]:
    """{step: its row} of the only job, analyzed now."""
    analyze(lake, Configuration(), judge=JobJudge, now=NOW)
    return {row["step"]: row for row in read_steps(lake, read_summaries(lake)).iter_rows(named=True)}


def by_hand(nodes: Sequence[str], spans: Sequence[tuple[int, int]]) -> tuple[int, float, float]:
    """(samples, mean over GPUs of the mean utilisation, largest memory) of some nodes within some seconds."""
    means, count, most = [], 0, 0.0
    for node in nodes:
        for gpu in (0, 1):
            seconds = [at for low, high in spans for at in range(0, TOTAL_S, EVERY_S) if low <= at < high]
            means.append(sum(level(node, gpu, at) for at in seconds) / len(seconds))
            count, most = count + len(seconds), max(most, 1000.0 + max(seconds))
    return count, sum(means) / len(means), most


def test_each_step_has_the_samples_of_its_time(tmp_path: Path) -> None:
    found = analyzed(lake_of(tmp_path, [BATCH, EXTERN, step("0", 600, 1800), step("1", 1800, 3000)]))
    cases = {"0": (NODES, [(600, 1800)]), "1": (NODES, [(1800, 3000)]), "batch": (("n1",), [(0, 600), (3000, 3600)])}
    for name, (nodes, spans) in cases.items():
        count, mean, most = by_hand(nodes, spans)
        row = found[name]
        assert (row["attribution"], row["samples"], row["hbm_used_mib_max"]) == ("time", count, most)
        assert row["gpu_util_mean"] == pytest.approx(mean, abs=1e-7)
        assert (row["gpus"], row["coverage"]) == (2 * len(nodes), 1.0)
    assert found["0"]["energy_j_estimated"] == pytest.approx(4 * 1200 * 260.0, rel=1e-6)
    assert (found["0"]["elapsed_s"], found["0"]["measured_s"]) == (1200.0, 4800.0)
    assert (found["extern"]["gpus"], found["extern"]["samples"], found["extern"]["gpu_util_mean"]) == (0, 0, None)


def test_steps_that_divide_a_job_add_up_to_it(tmp_path: Path) -> None:
    lake = lake_of(tmp_path, [step("0", 0, 605), step("1", 605, 2400), step("2", 2400, TOTAL_S)])
    found = analyzed(lake)
    whole = read_summaries(lake).row(0, named=True)
    assert sum(row["samples"] for row in found.values()) == whole["samples"] == 4 * TOTAL_S // EVERY_S
    weighted = sum(row["gpu_util_mean"] * row["samples"] for row in found.values()) / whole["samples"]
    assert weighted == pytest.approx(whole["gpu_util_mean"], abs=1e-7)
    assert max(row["gpu_util_max"] for row in found.values()) == whole["gpu_util_max"]
    assert sum(row["energy_j"] for row in found.values()) == pytest.approx(whole["energy_j"], rel=0.01)


def test_a_job_is_summarized_the_same_with_and_without_steps(tmp_path: Path) -> None:
    lakes = [lake_of(tmp_path / "a", []), lake_of(tmp_path / "b", [BATCH, step("0", 600, 1800), step("1", 1700, 3000)])]
    rows = []
    for lake in lakes:
        analyzed(lake)
        rows.append(read_summaries(lake).drop("seq").row(0))
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    "beside",
    [
        step("1", 900, 1500),  # at the same time
        step("1", 900, 1500, node_list="n2", nodes=1, gpus=2),  # on one of its nodes
        step("1", 900, 1500, gpus=None),
    ],
)
def test_steps_beside_each_other_are_ambiguous(tmp_path: Path, beside: dict[str, Any]) -> None:
    found = analyzed(lake_of(tmp_path, [BATCH, step("0", 600, 1800), beside]))
    for name in ("0", "1"):
        assert (found[name]["attribution"], found[name]["samples"], found[name]["gpu_util_mean"]) == (
            "ambiguous",
            None,
            None,
        )
    assert found["batch"]["samples"] == by_hand(("n1",), [(0, 600), (1800, 3600)])[0]


def test_steps_on_other_nodes_or_without_gpus_do_not_disturb(tmp_path: Path) -> None:
    apart = [
        step("0", 600, 1800, node_list="n1", nodes=1, gpus=2),
        step("1", 600, 1800, node_list="n2", nodes=1, gpus=2),
        step("2", 700, 800, gpus=0),
    ]
    found = analyzed(lake_of(tmp_path, apart))
    assert [found[name]["attribution"] for name in ("0", "1", "2")] == ["time"] * 3
    assert [found[name]["samples"] for name in ("0", "1", "2")] == [240, 240, 0]
    assert found["2"]["gpu_util_mean"] is None


def test_a_step_with_some_of_the_gpus_is_ambiguous(tmp_path: Path) -> None:
    assert analyzed(lake_of(tmp_path, [step("0", 600, 1800, gpus=1)]))["0"]["attribution"] == "ambiguous"


def test_where_gpus_are_not_accounted_steps_had_those_of_the_job(tmp_path: Path) -> None:
    end = T + timedelta(seconds=TOTAL_S)
    jobs = [job("7", T, end, nodes=2, gpus=None, node_list="n[1-2]")]
    assert analyzed(lake_of(tmp_path, [step("0", 600, 1800, gpus=0)], jobs=jobs))["0"]["samples"] == 480


def test_a_step_shorter_than_the_sampling_is_not_measured(tmp_path: Path) -> None:
    row = analyzed(lake_of(tmp_path, [step("0", 601, 603)]))["0"]
    assert (row["attribution"], row["gpus"], row["samples"], row["gpu_util_mean"]) == ("time", 4, 0, None)
    assert (row["energy_j"], row["coverage"]) == (None, 0.0)


def test_samples_that_name_their_step_decide(tmp_path: Path) -> None:
    end = T + timedelta(seconds=TOTAL_S)
    half = T + timedelta(seconds=1800)
    named = [
        {**row, "step": name}
        for name, gpu in (("0", 0), ("1", 1))
        for node in NODES
        for row in held("7", node, (gpu,), T, half if name == "0" else end, provenance="samples")
    ]
    found = analyzed(lake_of(tmp_path, [step("0", 0, TOTAL_S)], allocations=named))
    assert {name: (row["attribution"], row["samples"]) for name, row in found.items()} == {
        "0": ("explicit", 2 * 180),
        "1": ("explicit", 2 * 360),
    }
    assert found["1"]["state"] is None  # the accounting has no such step


def test_steps_of_an_ambiguous_job_are_ambiguous(tmp_path: Path) -> None:
    end = T + timedelta(seconds=TOTAL_S)
    beside = [job("8", T, end, nodes=2, gpus=2, node_list="n[1-2]"), job("7", T, end, nodes=2, gpus=2)]
    unnamed = [row for name in ("7", "8") for node in NODES for row in held(name, node, start=T, end=end)]
    found = analyzed(lake_of(tmp_path, [step("0", 600, 1800)], jobs=beside, allocations=unnamed))
    assert (found["0"]["attribution"], found["0"]["gpus"]) == ("ambiguous", None)


def test_a_requeued_job_keeps_the_steps_of_its_runs_apart(tmp_path: Path) -> None:
    half, end = T + timedelta(seconds=1800), T + timedelta(seconds=TOTAL_S)
    jobs = [job("7", T, half, nodes=2, gpus=4), job("7", half, end, nodes=2, gpus=4)]
    lake = lake_of(tmp_path, [step("0", 600, 1700), step("0", 1900, 3000)], jobs=jobs)
    analyzed(lake)
    summaries = read_summaries(lake)
    both = read_steps(lake, summaries).join(summaries.select("job_key", run_start="start"), on="job_key").sort("start")
    assert both.get_column("run_start").to_list() == [T, half]
    assert both.get_column("gpu_util_mean").round(4).to_list() == [0.8, 0.05]


def test_a_running_step_grows_and_is_analyzed_again(tmp_path: Path) -> None:
    running = [job("7", T, None, nodes=2, gpus=4, node_list="n[1-2]")]
    lake = lake_of(tmp_path, [step("0", 600, None, state="RUNNING")], jobs=running)
    now = T + timedelta(seconds=1200)
    summarized(lake, now=now)
    first = read_steps(lake, read_summaries(lake)).row(0, named=True)
    assert (first["end"], first["elapsed_s"]) == (None, 600.0)
    fill(lake, {"steps": [step("0", 600, 900)]}, chunk="later")
    summarized(lake, now=now)
    assert read_steps(lake, read_summaries(lake)).row(0, named=True)["elapsed_s"] == 300.0


def test_many_steps_are_summarized_together(tmp_path: Path) -> None:
    steps = [step(str(place), place * 3, place * 3 + 3) for place in range(1200)]
    found = pl.DataFrame(list(analyzed(lake_of(tmp_path, steps)).values()))
    assert found.height == 1200
    assert found.get_column("samples").sum() == 4 * TOTAL_S // EVERY_S
    assert found.filter(pl.col("samples") == 0).get_column("gpu_util_mean").null_count() == 1200 - 360
