"""What must not change a number: order of rows and chunks, partitions, threads, compaction,
reading twice.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal
from random_cluster import random_cluster

from madelake import NOW, fill, make_lake, summarized
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import GPU_SAMPLES, JOB_MINUTES
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.partitions import partitions
from tachograph.lake.query import read_findings, read_gpus, read_summaries
from tachograph.pipeline.run import analyze


def results(lake: Lake) -> dict[str, pl.DataFrame]:
    """All computed tables, without the number of the analysis."""
    summaries = read_summaries(lake)
    minutes = lake.scan(JOB_MINUTES).join(
        summaries.lazy().select("job_key", "seq"), on=["job_key", "seq"], how="semi"
    )
    tables = {
        "summaries": summaries,
        "gpus": read_gpus(lake, summaries),
        "minutes": minutes.collect(),
        "findings": read_findings(lake, summaries).drop("evidence", "sentence"),
    }
    keys = {"summaries": ["job_key"], "findings": ["job_key", "code"]}
    unit = ["job_key", "node", "gpu", "mig"]
    return {
        name: frame.drop("seq").sort(
            keys.get(name, [*unit, "minute"] if name == "minutes" else unit)
        )
        for name, frame in tables.items()
    }


def assert_same(left: Lake, right: Lake, *, relative: float = 0.0) -> None:
    first, second = results(left), results(right)
    for name, frame in first.items():
        exactly = relative == 0 or name == "findings"
        assert_frame_equal(
            frame, second[name], check_exact=exactly, rel_tol=relative or 1e-12, abs_tol=1e-12
        )
        assert frame.height, name


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    return random_cluster(5).tables()


@pytest.fixture(scope="module")
def plain(tables: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = make_lake(tmp_path_factory.mktemp("plain"), **tables)
    summarized(lake)
    return lake


def test_order_of_rows_and_number_of_threads(
    tables: dict[str, Any], plain: Lake, tmp_path: Path
) -> None:
    shuffled = {name: random.Random(7).sample(rows, len(rows)) for name, rows in tables.items()}
    assert shuffled["gpu_samples"] != tables["gpu_samples"]
    lake = make_lake(tmp_path, **shuffled)
    analyze(lake, Configuration(), judge=JobJudge, now=NOW, threads=5)
    assert_same(plain, lake)


def test_order_of_chunks(tables: dict[str, Any], plain: Lake, tmp_path: Path) -> None:
    """Samples in five chunks of interleaved rows, accounting before, between and behind them."""
    lake = Lake.create(str(tmp_path))
    fill(lake, {"jobs": tables["jobs"]}, chunk="jobs")
    for part in range(5):
        fill(lake, {"gpu_samples": tables["gpu_samples"][part::5]}, chunk=f"samples {part}")
    fill(
        lake, {"devices": tables["devices"], "allocations": tables["allocations"]}, chunk="devices"
    )
    summarized(lake)
    assert_same(plain, lake)


def test_size_of_partitions(tables: dict[str, Any], plain: Lake, tmp_path: Path) -> None:
    """Files of one node each, which are partitions of their own; before, a day was one."""
    lake = Lake.create(str(tmp_path))
    fill(
        lake,
        {name: rows for name, rows in tables.items() if name != "gpu_samples"},
        chunk="accounting",
    )
    names = sorted({row["node"] for row in tables["gpu_samples"]})
    for name in names:
        fill(
            lake,
            {"gpu_samples": [row for row in tables["gpu_samples"] if row["node"] == name]},
            chunk=name,
        )
    assert len(list(partitions(plain, GPU_SAMPLES))) == 3
    assert len(list(partitions(lake, GPU_SAMPLES))) >= 2 * len(names)
    summarized(lake)
    assert_same(plain, lake, relative=1e-12)


def test_analyzing_again_writes_nothing(plain: Lake) -> None:
    before = read_summaries(plain)
    report, _ = summarized(plain)
    assert report.jobs == 0
    assert_frame_equal(read_summaries(plain), before)


def test_compaction(tables: dict[str, Any], plain: Lake, tmp_path: Path) -> None:
    """Chunks that overlap give the same numbers before and after they are rewritten as one file."""
    lake = Lake.create(str(tmp_path))
    for part in range(4):
        # The fourth repeats rows.
        fill(lake, {"gpu_samples": tables["gpu_samples"][part::3]}, chunk=f"samples {part}")
    fill(lake, {name: tables[name] for name in ("jobs", "allocations", "devices")}, chunk="rest")
    done = compact(lake, [GPU_SAMPLES])
    assert done[0].duplicates == len(tables["gpu_samples"][3::3])
    summarized(lake)
    assert_same(plain, lake)
