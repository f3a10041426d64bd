"""Notebooks beside Tachograph: they run where their data lie, are timed, and what they leave is
compared.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import nbformat
import polars as pl
import pytest
from neighbours import neighbour

layouts = neighbour("../benchmarks", "notebook_layout")
side_by_side = neighbour("../benchmarks", "side_by_side")
P = "nersc_ldms_dcgm_"
# what a notebook may do: import a module beside it, read the samples, leave a table with one row
# per job
MEANS = f"""
import duckdb
from beside import THRESHOLD
duckdb.sql('''
    COPY (SELECT JobID, avg(mean) AS mean_utilization FROM (
        SELECT JobID, hostname, gpu_id, avg({P}gpu_utilization) AS mean FROM 'ldms_set1.parquet' GROUP BY ALL
    ) GROUP BY JobID HAVING avg(mean) > THRESHOLD) TO 'job_metrics.parquet' (FORMAT parquet)
'''.replace("THRESHOLD", str(THRESHOLD)))
"""


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return layouts.write(30_000, tmp_path_factory.mktemp("beside"), seed=2, median_hours=0.5)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    (tmp_path / "beside.py").write_text("THRESHOLD = 0\n")
    return tmp_path


def options(**given: Any) -> argparse.Namespace:
    return argparse.Namespace(
        **({"python": sys.executable, "replace": [], "timeout_s": 120.0} | given)
    )


def notebook(folder: Path, source: str) -> Path:
    file = folder / "1_means.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), file)  # type: ignore[no-untyped-call]
    return file


def truth(layout: Any) -> pl.DataFrame:
    jobs: pl.DataFrame = layout.jobs.select("job_id", "gpu_util_mean", bound=pl.lit("memory"))
    return jobs


@pytest.mark.slow
def test_a_notebook_runs_is_timed_and_compared(layout: Any, clone: Path, tmp_path: Path) -> None:
    out = tmp_path / "times"
    times = side_by_side.run_notebook(notebook(clone, MEANS), layout, out, options())
    assert set(times) == {"wall_s", "cpu_s", "mib"}
    assert 0 < times["cpu_s"] < 60 < times["mib"]
    found = side_by_side.tables(out, layout)
    assert not (layout.notebooks / "job_metrics.parquet").exists()
    same = side_by_side.compared(found, truth(layout))["job_metrics.mean_utilization"]
    assert same["jobs"] == layout.jobs.height > 5
    assert same["largest_relative_difference"] < 1e-9
    other = side_by_side.compared(found, truth(layout).with_columns(pl.col("gpu_util_mean") + 0.01))
    assert other["job_metrics.mean_utilization"]["largest_difference"] == pytest.approx(
        1.0, abs=1e-6
    )


@pytest.mark.slow
def test_duckdb_finds_the_means_of_the_simulation(layout: Any, tmp_path: Path) -> None:
    held, out = tmp_path / "held.parquet", tmp_path / "jobs.parquet"
    layout.cluster.gpus.join(layout.jobs, on="job_id", how="semi").write_parquet(held)
    script = str(Path(side_by_side.duckdb_queries.__file__))
    telemetry = str(layout.tachograph / "telemetry" / "*.parquet")
    times = side_by_side.timed_python([script, telemetry, str(held), str(out)], tmp_path)
    assert 0 < times["cpu_s"] < 60 < times["mib"]
    found = pl.read_parquet(out).join(layout.jobs, on="job_id", suffix="_planted")
    assert found.height == layout.jobs.height
    for counter, size in (("gpu_util", 100.0), ("fp64_active", 1.0), ("power_w", 1.0)):
        planted = found.get_column(f"{counter}_mean_planted") * size
        assert found.get_column(f"{counter}_mean").to_list() == pytest.approx(planted.to_list())
    spatial = found.get_column("spatial_imbalance")
    assert (spatial.is_null() == (found.get_column("gpus") == 1)).all()
