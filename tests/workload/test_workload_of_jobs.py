"""Jobs: samples counted per class while they are reduced, shares, health, findings; wherever
they were reduced.
"""

from __future__ import annotations

import json
import math
import pickle
import random
from collections import defaultdict
from concurrent.futures import Future
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from madelake import NOW, held, job, make_lake, utc
from tachograph.catalog.config import Configuration, WorkloadOptions
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.tables import JOB_MINUTES
from tachograph.judge.job_judge import JobJudge
from tachograph.judge.workload.classes import UNKNOWN, WORKLOAD_CLASSES, WORKLOAD_CODES
from tachograph.judge.workload.jobs import OF_JOB, Shares
from tachograph.judge.workload.rules import GpuReading, classify
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_gpus, read_summaries, read_verdicts
from tachograph.pipeline.run import analyze

START = utc(23, 22, 10, 20)
ONE = "NVIDIA A100-SXM4-40GB"
COUNTED = (
    "sm_active", "tensor_active", "dram_active", "gr_engine_active", "fp64_active",
    "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s", "tensor_dfma_active",
)  # fmt: skip
LEVELS: tuple[tuple[float, ...], ...] = (
    (0.9, 0.7, 0.4, 0.9, 0.0, 0, 0, 0), (0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0), (0.1, 0.0, 0.1, 0.2, 0.0, 3e9, 0, 0),
    (0.9, 0.5, 0.3, 0.9, 0.0, 0, 0, 0.5), (0.3, 0.0, 0.7, 0.9, 0.0, 0, 0, 0),
)  # fmt: skip


def samples_of(node: str, gpu: int, seed: int, hours: float, **more: Any) -> list[dict[str, Any]]:
    """Samples every 20 s whose level changes about every five minutes; some counters are missing
    now and then.
    """
    draw, rows, level = random.Random(seed), [], LEVELS[0]
    for step in range(int(hours * 180)):
        if draw.random() < 1 / 15:
            level = draw.choice(LEVELS)
        row = {
            name: value for name, value in zip(COUNTED, level, strict=True) if draw.random() > 0.02
        }
        if 90 < step < 110:
            del row[draw.choice(list(row))]
            row.pop("sm_active", None)
        rows.append(
            {"t": START + timedelta(seconds=20 * step), "node": node, "gpu": gpu, **row, **more}
        )
    return rows


HEALTHY = {"row_remap_failure": 0, "remapped_rows_uncorrectable": 0, "remapped_rows_correctable": 0,
           "gpu_temp_c": 60.0, "mem_temp_c": 70.0}  # fmt: skip


def replays(rows: list[dict[str, Any]], each: int) -> list[dict[str, Any]]:
    return [row | {"pcie_replays": 4 + place // 300 * each} for place, row in enumerate(rows)]


def lake_of(folder: Path) -> Lake:
    rows = [
        *replays(samples_of("n1", 0, 1, 4, **HEALTHY), 0), *replays(samples_of("n1", 1, 2, 4, **HEALTHY), 0),
        *replays(samples_of("n2", 0, 3, 4, **HEALTHY), 1), *replays(samples_of("n2", 1, 4, 4, **HEALTHY), 0),
        *replays(samples_of("n3", 0, 5, 4, **(HEALTHY | {"remapped_rows_uncorrectable": 1})), 0),
        *replays(samples_of("n4", 0, 6, 4, **(HEALTHY | {"gpu_temp_c": 94.0})), 0),
        *samples_of("n5", 0, 7, 4),
    ]  # fmt: skip
    end = START + timedelta(hours=3, minutes=59, seconds=11)
    jobs = [
        job("1", START + timedelta(seconds=17), end, gpus=2), job("2", START, end, gpus=2),
        *(job(name, START, end, gpus=1) for name in ("3", "4", "5", "6")),
    ]  # fmt: skip
    places = (
        ("1", "n1", (0, 1)),
        ("2", "n2", (0, 1)),
        ("3", "n3", (0,)),
        ("4", "n4", (0,)),
        ("5", "n5", (0,)),
    )
    allocations = [
        row for name, node, gpus in (*places, ("6", "n9", (0,))) for row in held(name, node, gpus)
    ]
    models = [
        {"node": f"n{node}", "gpu": gpu, "model": ONE} for node in (1, 2, 3, 4, 5) for gpu in (0, 1)
    ]
    return make_lake(folder, gpu_samples=rows, jobs=jobs, allocations=allocations, devices=models)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    made = lake_of(tmp_path_factory.mktemp("workload"))
    analyze(made, Configuration(), judge=JobJudge, now=NOW)
    return made


def summaries(lake: Lake) -> dict[str, dict[str, Any]]:
    return {row["job_id"]: row for row in read_summaries(lake).iter_rows(named=True)}


def gpus(lake: Lake) -> list[dict[str, Any]]:
    return list(read_gpus(lake, read_summaries(lake)).iter_rows(named=True))


def findings(lake: Lake, name: str, column: str = "kind") -> dict[str, dict[str, Any]]:
    rows = read_verdicts(lake, read_summaries(lake)).filter(pl.col(column) == name)
    return {row["job_id"]: row for row in rows.iter_rows(named=True)}


def counted(rows: list[dict[str, Any]], start: datetime, end: datetime) -> list[int]:
    """Samples per class, of plain means over the minutes of the job; midnight cuts a minute."""
    minutes: dict[tuple[Any, int], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if start <= row["t"] < end:
            minutes[row["t"].date(), (row["t"] - start) // timedelta(minutes=1)].append(row)
    found = [0] * len(WORKLOAD_CLASSES)
    for inside in minutes.values():
        means = {
            name: math.fsum(known) / len(known)
            for name in COUNTED
            if (known := [row[name] for row in inside if name in row])
        }
        found[WORKLOAD_CLASSES.index(classify(GpuReading(**means)).name)] += len(inside)
    return found


def test_samples_are_counted_by_the_class_of_their_minute(lake: Lake) -> None:
    rows = {(row["job_id"], row["gpu"]): row for row in gpus(lake)}
    start, end = summaries(lake)["1"]["start"], summaries(lake)["1"]["end"]
    assert start.date() < end.date()  # midnight, and with it the border of a partition, lies within
    for gpu, seed in ((0, 1), (1, 2)):
        expected = counted(samples_of("n1", gpu, seed, 4), start, end)
        assert rows["1", gpu]["workload_samples"] == expected
        assert sum(count > 0 for count in expected) >= 5
        assert expected[-1] > 0


def test_counts_add_up_to_samples(lake: Lake) -> None:
    for row in gpus(lake):
        if row["samples"]:
            assert sum(row["workload_samples"]) == row["samples"]
        else:
            assert (row["workload_samples"], row["health"]) == (None, None)


def test_shares_of_a_job_are_the_mean_of_its_gpus(lake: Lake) -> None:
    mine = [row["workload_samples"] for row in gpus(lake) if row["job_id"] == "1"]
    shares = [
        math.fsum(row[place] / sum(row) for row in mine) / len(mine)
        for place in range(len(WORKLOAD_CLASSES))
    ]
    summary = summaries(lake)["1"]
    assert summary["workload_fractions"] == pytest.approx(shares)
    assert math.fsum(summary["workload_fractions"]) == pytest.approx(1)
    assert summary["workload"] == WORKLOAD_CLASSES[shares.index(max(shares))]


def test_the_finding_says_what_the_shares_are(lake: Lake) -> None:
    for name, row in findings(lake, "workload").items():
        evidence, shares = json.loads(row["evidence"]), summaries(lake)[name]["workload_fractions"]
        if shares is None:
            assert (row["verdict"], evidence) == ("unknown", {})
            assert row["needs"]
            continue
        assert (row["verdict"], row["severity"], row["code"]) == ("yes", "fact", "workload")
        for code, share in zip(WORKLOAD_CODES, shares, strict=True):
            assert evidence.get(f"workload_{code}", 0) == pytest.approx(share, abs=1e-6)
        assert f"{summaries(lake)[name]['workload']}" in row["sentence"]


def test_health_of_gpus_and_the_worst_of_a_job(lake: Lake) -> None:
    states = {(row["job_id"], row["gpu"]): row["health"] for row in gpus(lake)}
    assert states == {
        ("1", 0): "OK", ("1", 1): "OK", ("2", 0): "WARN", ("2", 1): "OK", ("3", 0): "CRIT", ("4", 0): "HOT",
        ("5", 0): "unknown", ("6", 0): None,
    }  # fmt: skip
    of_job = {name: row["health"] for name, row in summaries(lake).items()}
    assert of_job == {"1": "OK", "2": "WARN", "3": "CRIT", "4": "HOT", "5": "unknown", "6": None}


def test_health_is_told(lake: Lake) -> None:
    rows = findings(lake, "health")
    assert {row["severity"] for row in rows.values()} == {"fact"}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "1": "no", "2": "yes", "3": "yes", "4": "yes", "5": "unknown", "6": "unknown",
    }  # fmt: skip
    replays, faults, hot = (
        findings(lake, code, "code")
        for code in ("pcie_replays", "gpu_memory_fault", "gpu_overheated")
    )
    assert [{n for n, row in of.items() if row["verdict"] == "yes"} for of in (replays, faults, hot)] == [
        {"2"}, {"3"}, {"4"},
    ]  # fmt: skip
    assert "2 PCIe replays" in replays["2"]["sentence"]
    assert "1 memory row" in faults["3"]["sentence"]
    assert "94 °C, limit 93 °C" in hot["4"]["sentence"]
    assert "field 395" in rows["5"]["sentence"]
    assert rows["5"]["needs"] == list(OF_JOB)[:5]  # the errors behind these few sites record


def test_what_advice_tells_is_not_told_twice(tmp_path: Path) -> None:
    """A row remapped during the job is more specific than a GPU with faulty memory."""
    rows = samples_of("n1", 0, 1, 1, **HEALTHY)
    for place, row in enumerate(rows):
        row["remapped_rows_uncorrectable"] = int(place > 20)
    lake = make_lake(tmp_path, gpu_samples=rows, jobs=[job("1", START, START + timedelta(hours=1), gpus=1)],
                     allocations=held("1", "n1", (0,)))  # fmt: skip
    analyze(lake, Configuration(), judge=JobJudge, now=NOW)
    found = read_verdicts(lake, read_summaries(lake))
    by = {
        row["code"]: row["covered_by"]
        for row in found.iter_rows(named=True)
        if row["verdict"] == "yes"
    }
    assert (by["remapped_rows"], by["gpu_memory_fault"]) == (None, "remapped_rows")
    assert summaries(lake)["1"]["health"] == "CRIT"


def test_reference_and_weights_change_what_is_counted(lake: Lake, tmp_path: Path) -> None:
    other = lake_of(tmp_path / "reference")
    analyze(
        other,
        Configuration(workload=WorkloadOptions(classifier="reference")),
        judge=JobJudge,
        now=NOW,
    )
    for row in gpus(other):
        if row["samples"]:
            assert row["workload_samples"][-1] == 0
            assert sum(row["workload_samples"]) == row["samples"]
    assert summaries(other)["1"]["workload_fractions"] != summaries(lake)["1"]["workload_fractions"]


def test_a_wrong_setting_is_told_before_anything_is_written(tmp_path: Path) -> None:
    lake = lake_of(tmp_path / "wrong")
    with pytest.raises(ConfigError, match=r"workload\.preset"):
        analyze(
            lake, Configuration(workload=WorkloadOptions(preset="nothing")), judge=JobJudge, now=NOW
        )
    assert not lake.days(JOB_MINUTES)


class Travelling:
    """A pool whose tasks travel as to another machine: nothing is shared but what can be
    pickled.
    """

    width = 2
    has_processes = True

    def share(self, value: Any) -> bytes:
        return pickle.dumps(value)

    def submit(self, function: Any, /, *arguments: Any) -> Any:
        shared, *others = arguments
        task, rest = pickle.loads(pickle.dumps((function, others)))
        done: Future[Any] = Future()
        done.set_result(pickle.loads(pickle.dumps(task(pickle.loads(shared), *rest))))
        return done


@pytest.mark.slow
def test_other_machines_count_alike(lake: Lake, tmp_path: Path) -> None:
    there = lake_of(tmp_path / "there")
    analyze(there, Configuration(), judge=JobJudge, now=NOW, pool=Travelling())
    assert [row["workload_samples"] for row in gpus(there)] == [
        row["workload_samples"] for row in gpus(lake)
    ]


def test_the_largest_class_is_that_which_no_unmeasured_time_could_change() -> None:
    """By a quarter of the measured time: of a fifth without samples that is just enough."""
    fractions = np.zeros((5, len(WORKLOAD_CLASSES)))
    fractions[:, 2], fractions[:, 4] = 0.375, 0.625
    fractions[3], fractions[4] = np.nan, 0.0
    fractions[4, 3] = fractions[4, 1] = 0.5
    shares = Shares(fractions, np.array([1, 2, 1, 0, 1]))
    largest = shares.largest(np.array([0.2, 0.21, 0.0, 0.0, 0.0]))
    name = WORKLOAD_CLASSES[4]
    assert largest == [name, UNKNOWN, name, None, WORKLOAD_CLASSES[1]]
