"""Summaries for Open XDMoD: their fields are those that SUPReMM documents and XDMoD's module reads,
their numbers those of the lake.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from exported_lake import END, START, busy, export
from hypothesis import given
from hypothesis import strategies as st

from madelake import held, job, make_lake, summarized
from tachograph.export.supremm import describe
from tachograph.lake.query import read_gpus, read_summaries

# ubccr/xdmod-supremm, dataset_maps/supremm.js: `ref` of accounting; * is required
READ = {
    "acct.id", "acct.jobname", "acct.account", "acct.user", "acct.exit_status", "acct.ncpus*",
    "acct.partition", "acct.nodes*", "acct.host_list*", "acct.submit*", "acct.start_time*",
    "acct.end_time*", "acct.timelimit", "acct.gpus", "summarization.complete",
    "summarization.datasource",
}  # fmt: skip
# ubccr/supremm, statistics.calculate_stats, GpuUsage.results, GpuPower.results
STATISTIC = {"avg", "cnt", "min", "max", "med"}
USAGE, POWER = {"gpuactive", "gpuactivemax", "memused", "memusedmax"}, {"power", "energy"}


@pytest.fixture
def documents(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Job 1 on two nodes, one of its GPUs without power; 2 runs; 3 is not measured; 4 is; 5 on a slice."""
    facts = {"cluster": "c/..", "user": "ada", "account": "a", "cpus": 16, "nodes": 1, "gpus": 1}
    facts |= {"submit": START, "timelimit_s": 3600.0, "partition": "gpu", "name": "train"}
    lake = make_lake(
        tmp_path / "lake",
        gpu_samples=[
            *busy("n1", 0, 0.8), *busy("n1", 1, 0.2, power_w=None), *busy("n2", 0, 0.4),
            *busy("n4", 0, 0.6), *busy("n5", 0, 0.6, mig=7),
        ],
        jobs=[
            job("1", START, END, **{**facts, "nodes": 2, "gpus": 3}),
            job("2", START, None, **facts),
            job("3", START, END, **facts),
            job("4", START, END, **facts),
            job("5", START, END, **facts),
        ],
        allocations=[
            *held("1", "n1", (0, 1), START, END, cluster="c/.."), *held("1", "n2", (0,), START, END, cluster="c/.."),
            *held("3", "n3", (0,), START, END, cluster="c/.."),
            *held("4", "n4", (0,), START, END, cluster="c/.."),
            *held("5", "n5", (0,), START, END, cluster="c/..", mig=7),
        ],
    )  # fmt: skip
    summarized(lake)
    [written] = export(lake, "supremm", "--to", tmp_path / "out")
    assert (written["written"], written["left_out"]) == (4, 1)
    files = list((tmp_path / "out").rglob("*.json"))
    assert {file.parent.parent for file in files} == {tmp_path / "out"}
    found = {file.stem.partition("-")[0]: json.loads(file.read_bytes()) for file in files}
    assert {file.stem for file in files} == {document["_id"] for document in found.values()}
    found["lake"] = {"gpus": read_gpus(lake, read_summaries(lake))}
    return found


def test_fields_are_those_that_are_read(documents: dict[str, dict[str, Any]]) -> None:
    for name in ("1", "3", "4"):
        document = documents[name]
        assert set(document) == {"_id", "acct", "gpu", "gpupower", "summarization"}
        fields = {f"{part}.{key}" for part in ("acct", "summarization") for key in document[part]}
        assert fields == {path.strip("*") for path in READ}
        for usage in document["gpu"].values():
            assert set(usage) in (USAGE, set())
            assert all({"avg", "cnt"} <= set(value) <= STATISTIC for value in usage.values())
        for power in document["gpupower"].values():
            assert set(power) in (POWER, set())


def test_numbers_are_those_of_the_lake_in_their_units(
    documents: dict[str, dict[str, Any]],
) -> None:
    first, gpus = documents["1"], documents["lake"]["gpus"]
    end = int(END.timestamp())
    assert first["_id"] == f"1-{end}"
    account: dict[str, object] = {
        "id": "1",
        "jobname": "train",
        "user": "ada",
        "account": "a",
        "partition": "gpu",
    }
    account |= {"nodes": 2, "gpus": 3, "host_list": ["n1", "n2"], "ncpus": 16, "timelimit": 3600}
    account |= {"exit_status": "COMPLETED", "submit": int(START.timestamp())}
    assert first["acct"] == account | {"start_time": int(START.timestamp()), "end_time": end}
    active = first["gpu"]["gpu0"]["gpuactive"]
    assert active == pytest.approx({"avg": 60, "cnt": 2, "min": 40, "max": 80, "med": 60}, rel=1e-6)
    assert first["gpu"]["gpu1"]["gpuactive"] == pytest.approx({"avg": 20, "cnt": 1}, rel=1e-6)
    assert first["gpu"]["gpu0"]["memused"] == {"avg": 1000 * 2**20, "cnt": 2}
    # as XDMoD's module computes gpu_usage: the mean over the names of GPUs
    usage = [gpu["gpuactive"]["avg"] / 100 for gpu in first["gpu"].values()]
    assert statistics.fmean(usage) == pytest.approx((0.6 + 0.2) / 2, rel=1e-6)
    # power of one GPU is not known: no sum without it
    assert set(first["gpupower"]) == {"gpu0", "gpu1"}
    assert not any(first["gpupower"].values())
    fourth, row = documents["4"], gpus.filter(pl.col("node") == "n4").row(0, named=True)
    power = fourth["gpupower"]["gpu0"]
    assert power["power"]["mean"] == {"avg": pytest.approx(row["power_w_mean"]), "cnt": 1}
    joules = row["energy_j"] if row["energy_j"] is not None else row["energy_j_estimated"]
    assert power["energy"] == {"avg": pytest.approx(joules), "cnt": 1}


def test_what_is_not_measured_is_no_number(documents: dict[str, dict[str, Any]]) -> None:
    third = documents["3"]
    assert third["gpu"] == third["gpupower"] == {"gpu0": {}}
    complete = {name: documents[name]["summarization"]["complete"] for name in ("1", "3", "4")}
    assert complete == {"1": True, "3": False, "4": True}


def test_power_of_a_slice_is_not_that_of_its_gpu(documents: dict[str, dict[str, Any]]) -> None:
    fifth = documents["5"]
    assert set(fifth["gpu"]["gpu0:7"]) == USAGE
    assert fifth["gpupower"] == {"gpu0:7": {}}


@given(st.lists(st.floats(0, 1e12), min_size=1, max_size=20))
def test_statistics_are_those_of_the_values(values: list[float]) -> None:
    result = describe(pl.Series(values, dtype=pl.Float64))
    assert result["cnt"] == len(values)
    assert result["avg"] == pytest.approx(sum(values) / len(values))
    spread = (min(values), max(values), statistics.median(values))
    stated = (result.get("min"), result.get("max"), result.get("med"))
    assert stated == ((None, None, None) if len(set(values)) == 1 else spread)
