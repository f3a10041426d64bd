"""Writes the same simulated jobs twice: as the notebooks of the published study read them, and as
Tachograph does.

The notebooks (github.com/hpcgroup/ldms-analysis-scripts-ipdps26; they are not included here) read
samples that are already attributed to jobs and already filtered. Their data are restricted, so
these files make both run on one input:

    DIR/notebooks/ldms_set1.parquet   JobID, step, hostname, gpu_id, ts_ns; utilisation, pipes, memory (%, 0..1, MiB)
    DIR/notebooks/ldms_set2.parquet   the same keys; utilisation again, energy (mJ), power, links, temperatures
    DIR/notebooks/ldms.parquet        what two of them call the first set
    DIR/notebooks/slurm.csv           JobID, step, Start, End, NNodes, Account, Partition, SubmitLine; Pacific time
    DIR/notebooks/sacct.csv           JobID|Start|End|Constraints|SubmitLine
    DIR/notebooks/nodes_80gb.txt      nodes with the large memory, one per line
    DIR/tachograph/                   telemetry, accounting, GPU map, devices, tachograph.toml of the same jobs

Jobs are those a study keeps: ended, three minutes or more, mean utilisation of one percent or more,
one run each. Attribution is the simulator's truth, not Tachograph's. Prints one JSON object: what
was written.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import duckdb
import polars as pl

from sized_plan import sized_plan
from tachograph.annexes.lab.simulate.accounting import BETWEEN
from tachograph.annexes.lab.simulate.cluster import SimulatedCluster, simulate
from tachograph.annexes.lab.simulate.plan import RECORDED_COUNTERS, NodeGroup, SimulationPlan
from tachograph.annexes.lab.simulate.telemetry import column_name

ZONE = "America/Los_Angeles"  # the notebooks take the times of slurm.csv for Pacific ones
KEYS = ("JobID", "step", "hostname", "gpu_id", "ts_ns")
FIRST_SET = (
    *(
        "gpu_util",
        "sm_active",
        "sm_occupancy",
        "gr_engine_active",
        "fp16_active",
        "fp32_active",
        "fp64_active",
    ),
    *(
        "tensor_active",
        "tensor_hmma_active",
        "dram_active",
        "mem_copy_util",
        "hbm_used_mib",
        "hbm_free_mib",
    ),
)
SECOND_SET = ("gpu_util", *(name for name in RECORDED_COUNTERS if name not in FIRST_SET))
SLURM_FIELDS = ("JobID", "step", "Start", "End", "NNodes", "Account", "Partition", "SubmitLine")
# The last one may hold the delimiter.
SACCT_FIELDS = ("JobID", "Start", "End", "Constraints", "SubmitLine")
ROWS_PER_GROUP = 500_000
MIN_ELAPSED_S, MIN_UTIL = 180, 0.01
LARGE_MIB = 81_920


@dataclass(frozen=True, slots=True)
class Layout:
    """Where both forms lie, how many samples of how many jobs, and the truth of these jobs."""

    notebooks: Path
    cluster: SimulatedCluster
    samples: int
    jobs: pl.DataFrame

    @property
    def tachograph(self) -> Path:
        """Folder of Tachograph's input."""
        return self.cluster.folder


def plan_of(samples: int, *, seed: int, median_hours: float) -> SimulationPlan:
    """Return a cluster without defects in which every job's GPUs are known: both sides see the same
    samples.

    One node of seven, and at least one, has the large memory.
    """
    plan = sized_plan(samples, seed=seed)
    nodes = max(2, plan.gpus // 4)
    large = max(1, nodes // 7)
    return dataclasses.replace(
        plan,
        groups=(NodeGroup(nodes - large, 4, "A100 SXM 40GB"), NodeGroup(large, 4, "A100 SXM 80GB")),
        defects=False,
        unmapped=0.0,
        counters=RECORDED_COUNTERS,
        time_zone=ZONE,
        median_hours=median_hours,
    )


def write(samples: int, folder: Path, *, seed: int = 1, median_hours: float = 1.0) -> Layout:
    """Return what was written into `folder`: at least `samples` samples were simulated, those of
    jobs are kept.
    """
    cluster = simulate(
        plan_of(samples, seed=seed, median_hours=median_hours), folder / "tachograph"
    )
    jobs = studied(cluster)
    _keep_only(cluster, set(jobs.get_column("job_id")))
    notebooks = folder / "notebooks"
    notebooks.mkdir()
    rows = _write_samples(cluster, jobs, notebooks)
    records = [record for record in accounting(cluster) if "." not in record["JobIDRaw"]]
    _write_slurm(notebooks / "slurm.csv", records)
    _write_sacct(notebooks / "sacct.csv", records)
    large = [
        node.name
        for node in cluster.plan.nodes()
        if _capacity(cluster.plan, node.group) == LARGE_MIB
    ]
    (notebooks / "nodes_80gb.txt").write_text("".join(f"{name}\n" for name in large))
    return Layout(notebooks, cluster, rows, jobs)


def studied(cluster: SimulatedCluster) -> pl.DataFrame:
    """Return the truth of the jobs that a study keeps; the notebooks know no runs, so a job has
    one.
    """
    jobs = cluster.jobs.filter(pl.col("start").is_not_null())
    once = jobs.group_by("job_id").len().filter(pl.col("len") == 1)
    long = (pl.col("end") - pl.col("start")).dt.total_seconds() >= MIN_ELAPSED_S
    kept = long & (pl.col("gpu_util_mean") >= MIN_UTIL) & (pl.col("samples") > 0)
    return jobs.filter(kept).join(once, on="job_id", how="semi").sort("run")


def accounting(cluster: SimulatedCluster) -> Iterator[dict[str, str]]:
    """Yield the records of the accounting, steps included."""
    with cluster.accounting.open(encoding="utf-8") as lines:
        names = next(lines).rstrip("\n").split(BETWEEN)
        for line in lines:
            yield dict(zip(names, line.rstrip("\n").split(BETWEEN, len(names) - 1), strict=True))


def _capacity(plan: SimulationPlan, group: int) -> int:
    return plan.groups[group].driver.total_mib


def _keep_only(cluster: SimulatedCluster, jobs: set[str]) -> None:
    """Leave the other jobs out of accounting and GPU map."""
    kept = [
        record for record in accounting(cluster) if record["JobIDRaw"].partition(".")[0] in jobs
    ]
    with cluster.accounting.open("w", encoding="utf-8") as out:
        out.write(BETWEEN.join(kept[0]) + "\n")
        out.writelines(BETWEEN.join(record.values()) + "\n" for record in kept)
    header, *rows = cluster.gpu_map.read_text(encoding="utf-8").splitlines(keepends=True)
    mine = [row for row in rows if row.partition(",")[0] in jobs]
    cluster.gpu_map.write_text("".join([header, *mine]), encoding="utf-8")


def _write_samples(cluster: SimulatedCluster, jobs: pl.DataFrame, folder: Path) -> int:
    """Write both sets, in order of time on every GPU; return the rows of each."""
    held = cluster.gpus.join(jobs, on="run", how="semi").select(
        JobID="job_id", hostname="node", gpu_id="gpu", ts_ns=_ns("start"), end_ns=_ns("end")
    )
    held = held.sort("ts_ns")
    parts = folder / "parts"
    parts.mkdir()
    rows = 0
    for number, file in enumerate(cluster.telemetry):
        samples = pl.read_parquet(file).rename({"ProducerName": "hostname"}).sort("ts_ns")
        owned = samples.join_asof(
            held, on="ts_ns", by=["hostname", "gpu_id"], check_sortedness=False
        )
        mine = owned.filter(pl.col("ts_ns") < pl.col("end_ns")).sort("hostname", "gpu_id", "ts_ns")
        # Of the allocation, of no step.
        mine = mine.with_columns(step=pl.lit(None, dtype=pl.String))
        mine.drop("end_ns").write_parquet(parts / f"{number:05}.parquet", compression_level=1)
        rows += mine.height
    for name, counters in (("ldms_set1", FIRST_SET), ("ldms_set2", SECOND_SET)):
        _put_together(parts, folder / f"{name}.parquet", [*KEYS, *map(column_name, counters)])
    for part in parts.iterdir():
        part.unlink()
    parts.rmdir()
    os.link(folder / "ldms_set1.parquet", folder / "ldms.parquet")
    return rows


def _ns(name: str) -> pl.Expr:
    return pl.col(name).dt.timestamp("us") * 1000


def _put_together(parts: Path, file: Path, columns: list[str]) -> None:
    """One file of all parts, in their order; DuckDB writes text as the Arrow type that the
    notebooks compare with.
    """
    with duckdb.connect() as connection:
        connection.execute(
            f"COPY (SELECT {', '.join(columns)} FROM read_parquet('{parts}/*.parquet')) TO "
            f"'{file}' "
            f"(FORMAT parquet, COMPRESSION snappy, ROW_GROUP_SIZE {ROWS_PER_GROUP})"
        )


def _write_slurm(file: Path, records: list[dict[str, str]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, SLURM_FIELDS, extrasaction="ignore")
        writer.writeheader()
        for record in records:
            writer.writerow(record | {"JobID": record["JobIDRaw"], "step": ""})


def _write_sacct(file: Path, records: list[dict[str, str]]) -> None:
    with file.open("w", encoding="utf-8") as out:
        out.write("|".join(SACCT_FIELDS) + "\n")
        for record in records:
            named = record | {"JobID": record["JobIDRaw"]}
            out.write("|".join(named[name] for name in SACCT_FIELDS) + "\n")


def utc(written: str) -> datetime:
    """Return a time of slurm.csv, as the notebooks understand it."""
    return datetime.fromisoformat(written).replace(tzinfo=ZoneInfo(ZONE))


def described(layout: Layout) -> dict[str, object]:
    """Return what was written, for people."""
    sizes = {file.name: file.stat().st_size for file in sorted(layout.notebooks.iterdir())}
    return {
        "benchmark": "notebook_layout",
        "samples": layout.samples,
        "samples_simulated": layout.cluster.rows,
        "jobs": layout.jobs.height,
        "gpus": layout.cluster.plan.gpus,
        "bytes": sizes,
    }


def main() -> int:
    """Write the files; print what they hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=lambda text: int(float(text)), default=100_000)
    parser.add_argument("--folder", type=Path, help="where to keep them; default: nowhere")
    parser.add_argument(
        "--median-hours", type=float, default=1.0, help="of jobs: shorter ones are more"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = options.folder or Path(name)
        layout = write(
            options.samples, folder, seed=options.seed, median_hours=options.median_hours
        )
        json.dump(described(layout), sys.stdout, indent=2)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
