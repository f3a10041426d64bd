"""What each step of a job did with its GPUs: hand-checked, and the identities between steps and
their job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from madelake import fill, held, job, make_lake, summarized, utc
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_steps, read_summaries

T = utc(23, 12)
EVERY_S = 10
TOTAL_S = 3600
HALF, END = T + timedelta(seconds=1800), T + timedelta(seconds=TOTAL_S)
ALL_SAMPLES = 4 * TOTAL_S // EVERY_S
Rows = list[dict[str, Any]]


def level(node: str, gpu: int, second: int) -> float:
    """Utilisation: none for ten minutes, 0.8 for 20, 0.2 on one node of two for 20, then none."""
    if second < 600 or second >= 3000:
        return 0.0
    if second < 1800:
        return 0.8
    return 0.2 if node == "a" and gpu == 0 else 0.0


def samples(name: str) -> Rows:
    return [
        {
            "t": T + timedelta(seconds=second), "node": f"{node}{name}", "gpu": gpu,
            "gpu_util": level(node, gpu, second), "power_w": 100.0 + 200.0 * level(node, gpu, second),
            "hbm_used_mib": 1000.0 + second,
        }
        for node in "ab"
        for gpu in (0, 1)
        for second in range(0, TOTAL_S, EVERY_S)
    ]  # fmt: skip


def step(name: str, begin: int, end: int | None, nodes: str = "ab", **given: Any) -> dict[str, Any]:
    """A step on two GPUs of each of its nodes, a and b."""
    row: dict[str, Any] = {"step": name, "name": name, "state": "COMPLETED", "node_list": nodes}
    row |= {
        "start": T + timedelta(seconds=begin),
        "end": None if end is None else T + timedelta(seconds=end),
    }
    return row | {"nodes": len(nodes), "tasks": 4, "gpus": 2 * len(nodes)} | given


@dataclass(frozen=True, slots=True)
class Scenario:
    """The steps of a job on nodes of its own; `jobs`, `held`: its accounting and allocations,
    where not of one run.
    """

    steps: Rows
    jobs: Rows = field(default_factory=lambda: [job("", T, END, nodes=2, gpus=4)])
    held: Rows = field(
        default_factory=lambda: [row for node in "ab" for row in held("", node, (0, 1), T, END)]
    )

    def tables(self, name: str) -> dict[str, Rows]:
        """The rows of job `name`, and of jobs whose names begin so."""
        steps = [row | {"job_id": name} for row in self.steps]
        for row in steps:
            row["node_list"] = ",".join(f"{node}{name}" for node in row["node_list"])
        jobs = [
            row | {"job_id": name + row["job_id"], "node_list": f"a{name},b{name}"}
            for row in self.jobs
        ]
        rows = [
            row | {"job_id": name + row["job_id"], "node": row["node"] + name} for row in self.held
        ]
        return {"steps": steps, "jobs": jobs, "allocations": rows, "gpu_samples": samples(name)}


BATCH = step("batch", 0, TOTAL_S, "a", tasks=1)
TWO_STEPS = [step("0", 600, 1800), step("1", 1800, 3000)]
NAMED = [
    {**row, "step": name}
    for name, gpu, end in (("0", 0, HALF), ("1", 1, END))
    for node in "ab"
    for row in held("", node, (gpu,), T, end, provenance="samples")
]
SCENARIOS: Mapping[str, Scenario] = {
    "10": Scenario([BATCH, step("extern", 0, TOTAL_S), *TWO_STEPS]),
    "11": Scenario([step("0", 0, 605), step("1", 605, 2400), step("2", 2400, TOTAL_S)]),
    "12": Scenario([]),
    "13": Scenario([BATCH, step("0", 600, 1800), step("1", 1700, 3000)]),
    "20": Scenario([BATCH, step("0", 600, 1800), step("1", 900, 1500)]),  # at the same time
    "21": Scenario([BATCH, step("0", 600, 1800), step("1", 900, 1500, "b")]),  # on one of its nodes
    "22": Scenario([BATCH, step("0", 600, 1800), step("1", 900, 1500, gpus=None)]),
    "30": Scenario(
        [step("0", 600, 1800, "a"), step("1", 600, 1800, "b"), step("2", 700, 800, gpus=0)]
    ),
    "31": Scenario([step("0", 600, 1800, gpus=1)]),
    "32": Scenario([step("0", 600, 1800, gpus=0)], jobs=[job("", T, END, nodes=2, gpus=None)]),
    "33": Scenario([step("0", 601, 603)]),
    "34": Scenario([step("0", 0, TOTAL_S)], held=NAMED),
    "35": Scenario(  # beside job 358 on both nodes
        [step("0", 600, 1800)],
        jobs=[job(name, T, END, nodes=2, gpus=2) for name in ("", "8")],
        held=[
            row for name in ("", "8") for node in "ab" for row in held(name, node, start=T, end=END)
        ],
    ),
    "36": Scenario(  # requeued
        [step("0", 600, 1700), step("0", 1900, 3000)],
        jobs=[job("", T, HALF, nodes=2, gpus=4), job("", HALF, END, nodes=2, gpus=4)],
    ),
    "37": Scenario([step(str(number), number * 3, number * 3 + 3) for number in range(1200)]),
}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """All scenarios, analyzed."""
    tables: dict[str, Rows] = {}
    for name, scenario in SCENARIOS.items():
        for table, rows in scenario.tables(name).items():
            tables.setdefault(table, []).extend(rows)
    made = make_lake(tmp_path_factory.mktemp("steps"), **tables)
    summarized(made)
    return made


def summary(lake: Lake, name: str) -> pl.DataFrame:
    return read_summaries(lake).filter(job_id=name)


def steps(lake: Lake, name: str) -> dict[str, dict[str, Any]]:
    """{step: its row} of a job."""
    return {row["step"]: row for row in read_steps(lake, summary(lake, name)).iter_rows(named=True)}


def by_hand(nodes: str, spans: Sequence[tuple[int, int]]) -> tuple[int, float, float]:
    """(samples, mean over GPUs of the mean utilisation, largest memory) of some nodes within
    some seconds.
    """
    means, count, most = [], 0, 0.0
    for node in nodes:
        for gpu in (0, 1):
            seconds = [
                at for low, high in spans for at in range(0, TOTAL_S, EVERY_S) if low <= at < high
            ]
            means.append(sum(level(node, gpu, at) for at in seconds) / len(seconds))
            count, most = count + len(seconds), max(most, 1000.0 + max(seconds))
    return count, sum(means) / len(means), most


def test_each_step_has_the_samples_of_its_time(lake: Lake) -> None:
    rows = steps(lake, "10")
    cases = {
        "0": ("ab", [(600, 1800)]),
        "1": ("ab", [(1800, 3000)]),
        "batch": ("a", [(0, 600), (3000, 3600)]),
    }
    for name, (nodes, spans) in cases.items():
        count, mean, most = by_hand(nodes, spans)
        row = rows[name]
        assert (row["attribution"], row["samples"], row["hbm_used_mib_max"]) == (
            "time",
            count,
            most,
        )
        assert row["gpu_util_mean"] == pytest.approx(mean, abs=1e-7)
        assert (row["gpus"], row["coverage"]) == (2 * len(nodes), 1.0)
    assert rows["0"]["energy_j_estimated"] == pytest.approx(4 * 1200 * 260.0, rel=1e-6)
    assert (rows["0"]["elapsed_s"], rows["0"]["measured_s"]) == (1200.0, 4800.0)
    assert (rows["extern"]["gpus"], rows["extern"]["samples"], rows["extern"]["gpu_util_mean"]) == (
        0,
        0,
        None,
    )


def test_steps_that_divide_a_job_add_up_to_it(lake: Lake) -> None:
    rows = steps(lake, "11")
    whole = summary(lake, "11").row(0, named=True)
    assert sum(row["samples"] for row in rows.values()) == whole["samples"] == ALL_SAMPLES
    weighted = (
        sum(row["gpu_util_mean"] * row["samples"] for row in rows.values()) / whole["samples"]
    )
    assert weighted == pytest.approx(whole["gpu_util_mean"], abs=1e-7)
    assert max(row["gpu_util_max"] for row in rows.values()) == whole["gpu_util_max"]
    assert sum(row["energy_j"] for row in rows.values()) == pytest.approx(
        whole["energy_j"], rel=0.01
    )


def test_a_job_is_summarized_the_same_with_and_without_steps(lake: Lake) -> None:
    names = ["job_key", "job_id", "display_id", "node_list"]
    without, with_steps = (
        summary(lake, name).drop(names, strict=False).row(0) for name in ("12", "13")
    )
    assert without == with_steps


@pytest.mark.parametrize("name", ["20", "21", "22"])
def test_steps_beside_each_other_are_ambiguous(lake: Lake, name: str) -> None:
    rows = steps(lake, name)
    for row in (rows["0"], rows["1"]):
        assert (row["attribution"], row["samples"], row["gpu_util_mean"]) == (
            "ambiguous",
            None,
            None,
        )
    assert rows["batch"]["samples"] == by_hand("a", [(0, 600), (1800, 3600)])[0]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # On other nodes, or without GPUs.
        ("30", [("0", "time", 240), ("1", "time", 240), ("2", "time", 0)]),
        ("31", [("0", "ambiguous", None)]),  # some of the GPUs
        ("32", [("0", "time", 480)]),  # GPUs are not accounted: steps had those of the job
        ("33", [("0", "time", 0)]),  # shorter than the sampling
        ("34", [("0", "explicit", 2 * 180), ("1", "explicit", 2 * 360)]),  # samples name their step
        ("35", [("0", "ambiguous", None)]),  # of an ambiguous job
    ],
)
def test_samples_of_steps(
    lake: Lake, name: str, expected: list[tuple[str, str, int | None]]
) -> None:
    rows = steps(lake, name)
    assert [
        (step, row["attribution"], row["samples"]) for step, row in sorted(rows.items())
    ] == expected
    if name == "33":
        row = rows["0"]
        assert (row["gpus"], row["gpu_util_mean"], row["energy_j"], row["coverage"]) == (
            4,
            None,
            None,
            0.0,
        )
    if name == "34":
        assert rows["1"]["state"] is None  # the accounting has no such step
    if name == "35":
        assert rows["0"]["gpus"] is None


def test_a_requeued_job_keeps_the_steps_of_its_runs_apart(lake: Lake) -> None:
    runs = summary(lake, "36")
    both = (
        read_steps(lake, runs)
        .join(runs.select("job_key", run_start="start"), on="job_key")
        .sort("start")
    )
    assert both.get_column("run_start").to_list() == [T, HALF]
    assert both.get_column("gpu_util_mean").round(4).to_list() == [0.8, 0.05]


def test_many_steps_are_summarized_together(lake: Lake) -> None:
    rows = read_steps(lake, summary(lake, "37"))
    assert (rows.height, rows.get_column("samples").sum()) == (1200, ALL_SAMPLES)
    assert (
        rows.filter(pl.col("samples") == 0).get_column("gpu_util_mean").null_count() == 1200 - 360
    )


def test_a_running_step_grows_and_is_analyzed_again(tmp_path: Path) -> None:
    running = Scenario(
        [step("0", 600, None, state="RUNNING")], jobs=[job("", T, None, nodes=2, gpus=4)]
    )
    lake = make_lake(tmp_path, **running.tables("7"))
    now = T + timedelta(seconds=1200)
    summarized(lake, now=now)
    first = steps(lake, "7")["0"]
    assert (first["end"], first["elapsed_s"]) == (None, 600.0)
    fill(lake, {"steps": Scenario([step("0", 600, 900)]).tables("7")["steps"]}, chunk="later")
    summarized(lake, now=now)
    assert steps(lake, "7")["0"]["elapsed_s"] == 300.0
