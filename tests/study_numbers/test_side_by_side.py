"""Notebooks beside Tachograph: they run where their data lie, are timed, and what they leave is compared."""

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
# what a notebook may do: import a module beside it, read the samples, leave a table with one row per job
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
    return argparse.Namespace(**({"python": sys.executable, "replace": [], "timeout_s": 120.0} | given))


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
    assert other["job_metrics.mean_utilization"]["largest_difference"] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.slow
def test_constants_are_replaced_and_failures_told(layout: Any, clone: Path, tmp_path: Path) -> None:
    file = notebook(clone, "raise ValueError('too few: least 1000')")
    assert side_by_side.run_notebook(file, layout, tmp_path / "a", options()) == "ValueError: too few: least 1000"
    fixed = options(replace=[["raise ValueError", "print"]])
    assert not isinstance(side_by_side.run_notebook(file, layout, tmp_path / "b", fixed), str)


def test_a_notebook_that_hangs_is_given_up(layout: Any, clone: Path, tmp_path: Path) -> None:
    file = notebook(clone, "import time; time.sleep(60)")
    assert side_by_side.run_notebook(file, layout, tmp_path / "a", options(timeout_s=0.5)) == "not done after 0 s"


def test_job_types_are_counted() -> None:
    kinds = [("1", 0.9, 0.1), ("2", 0.1, 0.9), ("3", 0.5, 0.5), ("4", 0.2, 0.3)]
    names = ["JobID", "frac_time_compute_fp64only", "frac_time_memory_fp64only"]
    labels = pl.DataFrame(kinds, schema=names, orient="row")
    jobs = pl.DataFrame({"job_id": ["1", "2", "3", "4"], "bound": ["compute", "compute", "memory", "memory"]})
    found = side_by_side.compared({"job_label_fractions_fp64only": labels}, jobs)
    assert found == {"job_label_fractions_fp64only": {"jobs": 3, "same_type": 2}}


def test_figures_are_compared(tmp_path: Path) -> None:
    """Correlations by their names there, combinations by the pipes that are in use; what one side lacks counts."""
    pairs = pl.DataFrame({"counter": ["gpu_util", "gpu_util"], "other": ["power_w", "sm_active"], "rho": [0.8, 0.5]})
    pairs.write_csv(tmp_path / "11_correlation.pairs.csv")
    names = ["GPU_UTIL", "GPU_POWER", "sm_active", "unknown"]
    rho = [[1.0, 0.8, 0.4, 0.1], [0.8, 1.0, 0.3, 0.2], [0.4, 0.3, 1.0, 0.3], [0.1, 0.2, 0.3, 1.0]]
    corr = pl.DataFrame({"index": names, **dict(zip(names, rho, strict=True))})
    found = side_by_side.compared_figures({"corr": corr}, tmp_path)
    assert found == {"corr": {"pairs": 2, "largest_difference": pytest.approx(0.1)}}
    ours = {"combination": ["FP64", "none", "FP64 + FP32"], "fp64": [True, False, True], "fp32": [False, False, True]}
    both = pl.DataFrame(ours | {"fp16": [False] * 3, "tensor": [False] * 3, "jobs": [7, 3, 2]})
    both.write_csv(tmp_path / "02_pipe_combinations.combinations.csv")
    used = {"TNSR_ACTV": [False, True], "FP64_ACTV": [True, False], "FP32_ACTV": [False] * 2, "FP16_ACTV": [False] * 2}
    counted = pl.DataFrame(used | {"0": [6, 5]})
    found = side_by_side.compared_figures({"counts_ordered": counted}, tmp_path)
    assert found == {"counts_ordered": {"combinations": 3, "largest_difference_jobs": 5}}


def test_ratios_and_table() -> None:
    ours = {name: {"wall_s": 1.0, "cpu_s": 2.0, "mib": 100.0} for name in ("ingest", "analyze", "figures")}
    theirs = {"1_a": {"wall_s": 30.0, "cpu_s": 20.0, "mib": 400.0}, "2_b": "ValueError: no",
              "3_c": {"wall_s": 10.0, "cpu_s": 20.0, "mib": 300.0}}  # fmt: skip
    ratios = side_by_side.ratios(ours, theirs)
    assert ratios == {"wall_s": 20.0, "cpu_s": 10.0, "mib": 4.0}
    table = side_by_side.markdown({"tachograph": ours, "notebooks": theirs, "ratios": ratios})
    assert "| `2_b` | ValueError: no | | |" in table
    assert "| **notebooks together** | 40.0 | 40.0 | 400 |" in table
    assert table.endswith("| **ratio** | **20.0 x** | **10.0 x** | **4.0 x** |\n")
    assert side_by_side.ratios(ours, {"2_b": "ValueError: no"}) == {}
