"""Runs the notebooks of the published study and Tachograph on the same simulated jobs; prints
times, ratios, numbers.

    python benchmarks/side_by_side.py --notebooks CLONE --samples 1e6

CLONE is a clone of github.com/hpcgroup/ldms-analysis-scripts-ipdps26, which is not included. Its
notebooks run unchanged, one after the other, in the folder that notebook_layout.py writes, with
CLONE on their path; `--python` is an interpreter that has what they import (duckdb, pandas before
3, pyarrow, seaborn, upsetplot, matplotlib before 3.11) and nbclient, ipykernel. Constants that fit
the size of their month are replaced with `--replace OLD NEW`.

What is timed: of a notebook its cells, imports included, start of the kernel not; of Tachograph the
commands, start and imports included, from a lake that holds the samples. Ingest stands beside. Both
draw the eleven published figures as PNG. Compiled modules are kept, as an installer does. Peak
memory is that of the process. The first analysis after an installation compiles, which takes half a
minute: run it twice. Without --notebooks only Tachograph runs, and DuckDB over the raw Parquet for
the means and imbalances alone (`duckdb_queries.py`). Prints one JSON object; `--markdown` prints
the table of times instead.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

import duckdb_queries
import notebook_layout
from notebook_layout import Layout
from tachograph.annexes.lab.figures.registry import FIGURES
from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.counters import COUNTERS
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.pipeline.summaries import as_in_notebooks

Times = dict[str, float]
P = "nersc_ldms_dcgm_"
PERCENT = 100.0
NOTEBOOKS = "[0-9]*.ipynb"
# the figures that the notebooks draw, with their metrics
PUBLISHED = (
    "--variant=notebooks",
    *(f"--figure={entry.name}" for entry in FIGURES if entry.number <= 11),
)
# Run by the other interpreter: cells in a kernel of its own. Begin and end are taken inside of it,
# and tables that stand in its variables are kept.
EXECUTE = """
import json, sys, nbclient, nbformat
notebook, folder, out, replace = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
read = nbformat.read(notebook, as_version=4)
for cell in read.cells:
    for old, new in replace:
        cell.source = cell.source.replace(old, new)
first = "import time as _time; _begin = (_time.perf_counter(), _time.process_time())"
last = '''
import json as _json, re as _re
_used = {"wall_s": _time.perf_counter() - _begin[0], "cpu_s": _time.process_time() - _begin[1],
         "mib": int(_re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024}
for _name in ("job_df", "corr", "_OCC_TABLE", "counts_ordered"):
    _value = globals().get(_name)
    if _value is not None:
        _value = _value.to_pandas() if hasattr(_value, "to_pandas") else _value
        _value = _value.reset_index() if _name in ("corr", "counts_ordered") else _value
        _value.to_json(OUT + "." + _name + ".json", orient="records", date_format="iso")
open(OUT, "w").write(_json.dumps(_used))
'''.replace("OUT", repr(out))
read.cells = [nbformat.v4.new_code_cell(first), *read.cells, nbformat.v4.new_code_cell(last)]
try:
    nbclient.NotebookClient(read, timeout=None, resources={"metadata": {"path": folder}}).execute()
except nbclient.exceptions.CellExecutionError as problem:
    sys.exit(f"{problem.ename}: {problem.evalue}")
"""
# Run by this interpreter: one command. Its peak memory is asked for inside of it: what the system
# tells of a process that has ended begins with the memory of the one that started it.
COMMAND = """
import re, sys
from tachograph.cli import main
code = main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
sys.exit(code)
"""


def timed(command: Sequence[str], folder: Path) -> Times:
    """Return wall and CPU seconds and peak memory (MiB) of one `tachograph` command."""
    return timed_python(["-c", COMMAND, *command], folder)


def timed_python(arguments: Sequence[str], folder: Path) -> Times:
    """Return the same of Python with these arguments, which last prints its peak memory (KiB).

    Errors: RuntimeError when it fails.
    """
    begin, before = time.perf_counter(), os.times()
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={name: os.environ[name] for name in os.environ if name != "PYTHONDONTWRITEBYTECODE"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{arguments} failed: {done.stderr}")
    after = os.times()
    cpu_s = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return {
        "wall_s": time.perf_counter() - begin,
        "cpu_s": cpu_s,
        "mib": int(done.stderr.split()[-1]) / 1024,
    }


def run_ours(layout: Layout, lake: Path, study: Path) -> dict[str, Times]:
    """Return what ingest (all four sources together), analyze and figures take."""
    common = ["--lake", str(lake), "--config", "tachograph.toml", "--quiet"]
    inputs = (
        ["ldms", "telemetry"],
        ["sacct", "accounting/sacct.txt"],
        ["allocation-map", "allocations/gpu_map.csv"],
    )
    asked = [*inputs, ["table", "devices.csv", "--mapping", "devices.toml"]]
    if layout.cluster.gpu_map.read_text().count("\n") < 2:  # no job of the study shared a node
        asked.pop(2)
    folder = layout.tachograph
    ingests = [timed(["ingest", *source, *common], folder) for source in asked]
    as_of = ["--as-of", layout.cluster.plan.end.isoformat()]
    return {
        "ingest": _together(ingests),
        "analyze": timed(["analyze", *as_of, *common], folder),
        "figures": timed(
            ["study", "-o", str(study), *PUBLISHED, "--format", "png", *common],
            folder,
        ),
    }


def run_duckdb(layout: Layout, jobs: pl.DataFrame, folder: Path) -> tuple[Times, dict[str, float]]:
    """Return what means and imbalances take in DuckDB over the raw files, and how far apart they
    are from ours, relative to the larger one.
    """
    held, out = folder / "held.parquet", folder / "duckdb.parquet"
    layout.cluster.gpus.join(jobs, on="job_id", how="semi").write_parquet(held)
    script = Path(duckdb_queries.__file__)
    telemetry = layout.tachograph / "telemetry" / "*.parquet"
    times = timed_python([str(script), str(telemetry), str(held), str(out)], folder)
    # power_w_mean of the notebooks is energy over time
    names = [f"{name}_mean" for name in duckdb_queries.MEASURED if name != "power_w"]
    names += ["spatial_imbalance", "temporal_imbalance"]
    percent = pl.col("gpu_util_mean", "mem_copy_util_mean") / PERCENT
    theirs = pl.read_parquet(out).with_columns(percent).unpivot(names, index="job_id")
    both = theirs.join(
        jobs.unpivot(names, index="job_id", value_name="ours"), on=["job_id", "variable"]
    ).drop_nulls()
    size = pl.max_horizontal(pl.col("value", "ours").abs())
    apart = ((pl.col("value") - pl.col("ours")).abs() / size).fill_nan(0)
    found = both.select(
        jobs=pl.col("job_id").n_unique(),
        numbers=pl.len(),
        equal_to_1e6=(apart < 1e-6).sum(),
        largest_relative_difference=apart.max(),
    )
    return times, found.row(0, named=True)


def _together(runs: Iterable[Times]) -> Times:
    """One after the other: seconds add up, the largest memory counts."""
    rows = list(runs)
    return {
        "wall_s": sum(row["wall_s"] for row in rows),
        "cpu_s": sum(row["cpu_s"] for row in rows),
        "mib": max((row["mib"] for row in rows), default=0.0),
    }


def run_notebook(
    notebook: Path, layout: Layout, out: Path, options: argparse.Namespace
) -> Times | str:
    """Return the times of one notebook, or why it did not end."""
    environment = os.environ | {
        "PYTHONPATH": str(notebook.parent),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
    }
    replaced = json.dumps(options.replace)
    command = [
        options.python,
        "-c",
        EXECUTE,
        str(notebook),
        str(layout.notebooks),
        str(out),
        replaced,
    ]
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            text=True,
            timeout=options.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {options.timeout_s:.0f} s"
    if done.returncode:
        return (done.stderr.strip() or "failed").splitlines()[-1]
    return {name: float(value) for name, value in json.loads(out.read_text()).items()}


def tables(out: Path, layout: Layout) -> dict[str, pl.DataFrame]:
    """Return what a notebook left: variables that were kept, and its Parquet files with one row
    per job.
    """
    found = {}
    for file in out.parent.glob(f"{out.name}.*.json"):
        found[file.name.removeprefix(f"{out.name}.").removesuffix(".json")] = pl.DataFrame(
            json.loads(file.read_text())
        )
    for file in layout.notebooks.rglob("*.parquet"):
        if not file.name.startswith("ldms"):
            found[str(file.relative_to(layout.notebooks).with_suffix(""))] = pl.read_parquet(file)
            # The next notebook may read what an earlier one wrote under the same name.
            file.unlink()
    return found


# (table, its column) -> (ours, how many times ours): metrics that both compute job by job
SAME: Mapping[tuple[str, str], tuple[str, float]] = {
    ("job_df", "mean_utilization"): ("gpu_util_mean", PERCENT),
    ("job_df", "ngpus"): ("gpus", 1),
    ("job_df", "gpu_hours"): ("gpu_hours", 1),
    ("job_metrics", "mean_utilization"): ("gpu_util_mean", PERCENT),
    ("job_metrics", "gpu_hours"): ("gpu_hours", 1),
    ("job_metrics_ti_all", f"ti__{P}gpu_utilization"): ("temporal_imbalance", 1),
    (f"si_jobs_set1_ldms_parts/{P}gpu_utilization", "SI_mean"): ("spatial_imbalance", 1),
    ("energy_per_job", "total_energy_joules"): ("energy_j", 1000),
    ("_OCC_TABLE", "max_occ_nom"): ("hbm_peak_fraction", 1),
    **{
        ("job_means_all", f"{P}{name}"): (f"{name}_mean", 1)
        for name in ("fp64_active", "fp32_active", "dram_active")
    },
    ("job_means_all", f"{P}tensor_active"): ("tensor_active_mean", 1),
}


def compared(found: Mapping[str, pl.DataFrame], jobs: pl.DataFrame) -> dict[str, dict[str, float]]:
    """Return, for each metric that a notebook left, over how many jobs, and how far apart the
    two are at most.
    """
    result = {}
    for (table, column), (ours, factor) in SAME.items():
        if table in found and column in found[table].columns:
            theirs = found[table].select(
                job_id=pl.col("JobID").cast(pl.String), theirs=pl.col(column).cast(pl.Float64)
            )
            both = theirs.join(
                jobs.select("job_id", ours=pl.col(ours) * factor), on="job_id"
            ).drop_nulls()
            apart = (pl.col("theirs") - pl.col("ours")).abs()
            size = pl.max_horizontal(pl.col("theirs").abs(), pl.col("ours").abs())
            row = both.select(
                apart.max().alias("largest_difference"),
                apart.mean().alias("mean_difference"),
                (apart / size).fill_nan(0).max().alias("largest_relative_difference"),
            ).row(0, named=True)
            result[f"{table}.{column}"] = {"jobs": both.height, **row}
    labels = "job_label_fractions_fp64only"
    if labels in found:
        result[labels] = _same_type(found[labels], jobs)
    return result


# what notebook 11 calls counters; others keep the producer's name
PRETTY: Mapping[str, str] = {
    "GPU_UTIL": "gpu_util",
    "GPU_POWER": "power_w",
    "GPU_TEMP": "gpu_temp_c",
    "SM_ACTV": "sm_active",
    "DRAM_ACTV": "dram_active",
    "FP16_ACTV": "fp16_active",
    "FP32_ACTV": "fp32_active",
    "FP64_ACTV": "fp64_active",
    "TNSR_ACTV": "tensor_active",
    "HBM_USED": "hbm_used_mib",
    **{
        f"{link}_{end}": f"{link}_{end}_bytes_per_s".lower()
        for link in ("PCIE", "NVLINK")
        for end in ("TX", "RX")
    },
    **{str(counter.ldms_name): counter.name for counter in COUNTERS if counter.ldms_name},
}


def compared_figures(found: Mapping[str, pl.DataFrame], study: Path) -> dict[str, dict[str, float]]:
    """Return how far what a notebook draws is from what the figures of `study` show:
    correlations, combinations.
    """
    result: dict[str, dict[str, float]] = {}
    if "corr" in found:
        corr = found["corr"].unpivot(index="index", variable_name="other", value_name="theirs")
        both = corr.with_columns(
            pl.col("index", "other").replace_strict(PRETTY, default=None)
        ).drop_nulls()
        ours = pl.read_csv(study / "11_correlation.pairs.csv").select(
            index="counter", other="other", ours="rho"
        )
        joined = both.join(ours, on=["index", "other"]).drop_nulls()
        apart = joined.select((pl.col("theirs") - pl.col("ours")).abs().max()).item()
        result["corr"] = {"pairs": joined.height, "largest_difference": apart or 0.0}
    if "counts_ordered" in found:
        pipes = {
            "FP64_ACTV": "fp64",
            "FP32_ACTV": "fp32",
            "FP16_ACTV": "fp16",
            "TNSR_ACTV": "tensor",
        }
        theirs = found["counts_ordered"].rename(pipes)
        theirs = theirs.rename(
            {name: "theirs" for name in theirs.columns if name not in pipes.values()}
        )
        ours = pl.read_csv(study / "02_pipe_combinations.combinations.csv").filter(
            pl.col("combination") != "none"
        )
        joined = theirs.join(
            ours.select(*pipes.values(), ours="jobs"), on=list(pipes.values()), how="full"
        )
        counts = joined.select(pl.col("theirs", "ours").fill_null(0))
        apart = counts.select((pl.col("theirs") - pl.col("ours")).abs().max()).item()
        result["counts_ordered"] = {
            "combinations": counts.height,
            "largest_difference_jobs": apart or 0,
        }
    return result


def _same_type(labels: pl.DataFrame, jobs: pl.DataFrame) -> dict[str, float]:
    """How many jobs both call compute-bound or memory-bound, and how many of them alike."""
    compute, memory = (pl.col(f"frac_time_{name}_fp64only") for name in ("compute", "memory"))
    kind = (
        pl.when(compute > memory)
        .then(pl.lit("compute"))
        .when(memory > compute)
        .then(pl.lit("memory"))
    )
    both = labels.select(job_id=pl.col("JobID").cast(pl.String), kind=kind).join(
        jobs.select("job_id", "bound"), on="job_id"
    )
    both = both.drop_nulls()
    return {"jobs": both.height, "same_type": both.filter(pl.col("kind") == pl.col("bound")).height}


def rounded(value: Any) -> Any:
    """Return the numbers of a structure with four digits."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {name: rounded(each) for name, each in value.items()}
    return value


def ratios(ours: Mapping[str, Times], theirs: Mapping[str, Times | str]) -> dict[str, float]:
    """Return how many times longer and larger the notebooks are together, against analyze and
    figures.
    """
    done = [times for times in theirs.values() if not isinstance(times, str)]
    both = _together([ours["analyze"], ours["figures"]])
    return {name: value / both[name] for name, value in _together(done).items()} if done else {}


def markdown(report: Mapping[str, Any]) -> str:
    """Return the table of times, for a page."""
    lines = ["| | wall s | CPU s | peak MiB |", "| --- | ---: | ---: | ---: |"]
    rows = {f"`{name}`": times for name, times in report.get("notebooks", {}).items()}
    done = [times for times in rows.values() if not isinstance(times, str)]
    if done:
        rows["**notebooks together**"] = _together(done)
    ours: dict[str, Times] = report["tachograph"]
    rows |= {f"`tachograph {name}`": times for name, times in ours.items()}
    rows["`duckdb_queries.py`"] = report["duckdb"]
    rows["**analyze and figures**"] = _together([ours["analyze"], ours["figures"]])
    for name, times in rows.items():
        cells = f"{times} | |" if isinstance(times, str) else " | ".join(
            [f"{times['wall_s']:.1f}", f"{times['cpu_s']:.1f}", f"{times['mib']:,.0f}"]
        )  # fmt: skip
        lines.append(f"| {name} | {cells} |")
    if report.get("ratios"):
        lines.append(
            "| **ratio** | "
            + " | ".join(f"**{value:.1f} x**" for value in report["ratios"].values())
            + " |"
        )
    return "\n".join(lines) + "\n"


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return the report of one comparison in an empty folder."""
    layout = notebook_layout.write(
        options.samples, folder / "data", median_hours=options.median_hours
    )
    ours = run_ours(layout, folder / "lake", folder / "study")
    jobs = as_in_notebooks(read_summaries(Lake.open(str(folder / "lake"))), AnalysisOptions())
    duckdb_times, duckdb_numbers = run_duckdb(layout, jobs, folder)
    report: dict[str, Any] = {
        "benchmark": "side_by_side",
        "samples": layout.samples,
        "jobs": layout.jobs.height,
        "cores": os.cpu_count(),
        "tachograph": ours,
        "duckdb": duckdb_times | {"compared": duckdb_numbers},
    }
    if options.notebooks is None:
        return report
    theirs: dict[str, Times | str] = {}
    numbers = {}
    for notebook in sorted(
        options.notebooks.resolve().glob(NOTEBOOKS), key=lambda file: int(file.stem.split("_")[0])
    ):
        out = folder / f"{notebook.stem}.times"
        theirs[notebook.name] = run_notebook(notebook, layout, out, options)
        found = tables(out, layout)
        numbers[notebook.name] = compared(found, jobs) | compared_figures(found, folder / "study")
    return report | {"notebooks": theirs, "ratios": ratios(ours, theirs), "compared": numbers}


def main() -> int:
    """Print the numbers; 1 when a notebook did not run to its end."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--notebooks", type=Path, metavar="CLONE", help="folder of the notebooks")
    parser.add_argument("--samples", type=lambda text: int(float(text)), default=100_000)
    parser.add_argument(
        "--median-hours", type=float, default=1.0, help="of jobs: shorter ones are more"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="interpreter that has what the notebooks import"
    )
    parser.add_argument("--replace", nargs=2, action="append", default=[], metavar=("OLD", "NEW"))
    parser.add_argument("--timeout-s", type=float, default=3600.0, help="for each notebook")
    parser.add_argument("--markdown", action="store_true", help="print the table of times")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        report = measure(options, Path(name))
    sys.stdout.write(
        markdown(report) if options.markdown else json.dumps(rounded(report), indent=2) + "\n"
    )
    return int(any(isinstance(times, str) for times in report.get("notebooks", {}).values()))


if __name__ == "__main__":
    sys.exit(main())
