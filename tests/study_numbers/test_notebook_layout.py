"""The notebooks' files: names, columns, types as they are read, and the same samples as in the lake."""

from __future__ import annotations

import csv
import math
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from neighbours import neighbour
from simulated_lake import lake_of, sample_rows

from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries

pytestmark = pytest.mark.slow

layouts = neighbour("../benchmarks", "notebook_layout")
P = "nersc_ldms_dcgm_"
# what the notebooks name, file by file
READ_OF_FIRST = {
    *("JobID", "step", "hostname", "gpu_id", "ts_ns"),
    *(P + name for name in ("gpu_utilization", "fp16_active", "fp32_active", "fp64_active", "tensor_active")),
    *(P + name for name in ("dram_active", "fb_used")),
}
READ_OF_SECOND = {"JobID", "hostname", "gpu_id", "ts_ns", P + "gpu_utilization", P + "total_energy_consumption"}
OF_BOTH = {
    *("dram_active", "fb_used", "fp16_active", "fp32_active", "fp64_active", "sm_active", "gpu_utilization"),
    *("nvlink_rx_bytes", "nvlink_tx_bytes", "pcie_rx_bytes", "pcie_tx_bytes", "gpu_temp", "tensor_active"),
}


@dataclass(frozen=True, slots=True)
class Both:
    """The layout and the lake made of its other half."""

    layout: Any
    lake: Lake


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    folder = tmp_path_factory.mktemp("layout")
    layout = layouts.write(60_000, folder, seed=5, median_hours=0.5)
    return Both(layout, lake_of(layout.tachograph, folder / "lake", layout.cluster.plan.end))


def types(file: Path) -> dict[str, str]:
    with duckdb.connect() as connection:
        rows = connection.execute(f"DESCRIBE SELECT * FROM '{file}'").fetchall()
    return {row[0]: row[1] for row in rows}


def test_files_are_those_the_notebooks_open(both: Both) -> None:
    names = {file.name for file in both.layout.notebooks.iterdir()}
    sets = {"ldms_set1.parquet", "ldms_set2.parquet", "ldms.parquet"}
    assert names == sets | {"slurm.csv", "sacct.csv", "nodes_80gb.txt"}


def test_columns_and_types(both: Both) -> None:
    first, second = (types(both.layout.notebooks / f"ldms_{name}.parquet") for name in ("set1", "set2"))
    assert set(first) >= READ_OF_FIRST
    assert set(second) >= READ_OF_SECOND
    assert {name.removeprefix(P) for name in (*first, *second) if name.startswith(P)} >= OF_BOTH
    assert types(both.layout.notebooks / "ldms.parquet") == first
    for found in (first, second):
        assert {found[name] for name in ("JobID", "step", "hostname")} == {"VARCHAR"}
        assert found["ts_ns"] == "BIGINT"
        assert "INT" in found["gpu_id"]
        assert all(re.fullmatch("FLOAT|DOUBLE|U?INTEGER|U?BIGINT", found[name]) for name in found if P in name)


def test_text_is_the_arrow_type_the_notebooks_compare_with(both: Both) -> None:
    """A file that carried Polars' own schema would be read as large strings, which do not compare with strings."""
    raw = (both.layout.notebooks / "ldms_set1.parquet").read_bytes()
    assert b"ARROW:schema" not in raw


def test_rows_are_whole_and_in_order_of_time_on_each_gpu(both: Both) -> None:
    for name in ("ldms_set1", "ldms_set2"):
        frame = pl.read_parquet(both.layout.notebooks / f"{name}.parquet")
        assert frame.height == both.layout.samples > 10_000
        assert frame.drop("step").null_count().row(0) == (0,) * (frame.width - 1)
        assert frame.get_column("step").null_count() == frame.height
        for part in frame.partition_by("hostname", "gpu_id", maintain_order=True):
            assert part.get_column("ts_ns").is_sorted()
        assert not frame.select("hostname", "gpu_id", "ts_ns").is_duplicated().any()


def test_sums_equal_the_lakes(both: Both) -> None:
    """Every counter over all samples of all jobs: percent and mJ there, fractions and J here."""
    first = pl.read_parquet(both.layout.notebooks / "ldms_set1.parquet")
    second = pl.read_parquet(both.layout.notebooks / "ldms_set2.parquet")
    mine = {(row["hostname"], row["gpu_id"], row["ts_ns"] // 1000) for row in first.iter_rows(named=True)}
    sums: dict[str, list[float]] = defaultdict(list)
    for row in sample_rows(both.lake):
        if (row["node"], row["gpu"], math.floor(row["t"].timestamp() * 1e6 + 0.5)) in mine:
            for name in ("gpu_util", "fp64_active", "dram_active", "hbm_used_mib", "energy_j", "pcie_rx_bytes_per_s"):
                sums[name].append(row[name])
    assert len(sums["gpu_util"]) == both.layout.samples

    def of(frame: pl.DataFrame, name: str, factor: float = 1.0) -> Any:
        return pytest.approx(math.fsum(value * factor for value in frame.get_column(P + name)), rel=1e-6)

    assert math.fsum(sums["gpu_util"]) == of(first, "gpu_utilization", 0.01)
    assert math.fsum(sums["gpu_util"]) == of(second, "gpu_utilization", 0.01)
    assert math.fsum(sums["fp64_active"]) == of(first, "fp64_active")
    assert math.fsum(sums["dram_active"]) == of(first, "dram_active")
    assert math.fsum(sums["hbm_used_mib"]) == of(first, "fb_used")
    assert math.fsum(sums["energy_j"]) == of(second, "total_energy_consumption", 1e-3)
    assert math.fsum(sums["pcie_rx_bytes_per_s"]) == of(second, "pcie_rx_bytes")


def test_same_jobs_with_the_same_samples(both: Both) -> None:
    """Attribution from accounting gives each job what the truth gave it; no filter removes one."""
    frame = pl.read_parquet(both.layout.notebooks / "ldms_set1.parquet", columns=["JobID"])
    truth = dict(frame.group_by("JobID").len().iter_rows())
    summaries = read_summaries(both.lake)
    assert dict(summaries.select("job_id", "samples").iter_rows()) == truth
    assert summaries.get_column("excluded").null_count() == summaries.height > 15
    assert set(truth) == set(both.layout.jobs.get_column("job_id"))


def test_slurm_tables(both: Both) -> None:
    """Times are Pacific ones; requests are in the constraints, also where a line holds the delimiter."""
    jobs = {row["job_id"]: row for row in both.layout.jobs.iter_rows(named=True)}
    with (both.layout.notebooks / "slurm.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert {row["JobID"] for row in rows} == set(jobs)
    assert len(rows) == len(jobs)
    for row in rows:
        job = jobs[row["JobID"]]
        assert (layouts.utc(row["Start"]), layouts.utc(row["End"])) == (job["start"], job["end"])
        assert int(row["NNodes"]) == len(job["nodes"])
        assert row["step"] == ""
        assert row["Account"] == job["account"]
    lines = (both.layout.notebooks / "sacct.csv").read_text().splitlines()
    assert lines[0] == "JobID|Start|End|Constraints|SubmitLine"
    large = set((both.layout.notebooks / "nodes_80gb.txt").read_text().split())
    assert large
    requested = {line.split("|")[0] for line in lines[1:] if "hbm80g" in line.split("|")[3].split("&")}
    assert requested == {name for name, job in jobs.items() if set(job["nodes"]) <= large} != set()
    assert any(line.count("|") > 4 for line in lines)
