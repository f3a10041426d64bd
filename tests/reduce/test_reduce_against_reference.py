"""Every number of job_summaries, job_gpus and job_minutes of random clusters, against
dictionaries and loops.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from plain_reference import Run, Telemetry, Unit, job_reference, minute_reference
from random_cluster import Cluster, random_cluster

from in_memory import outcome
from madelake import configured, make_lake, summarized, utc
from tachograph.catalog.config import AnalysisOptions
from tachograph.catalog.counters import COUNTER_NAMES
from tachograph.catalog.table_columns import HOST_USE
from tachograph.catalog.tables import JOB_GPUS, JOB_SUMMARIES, JUDGED
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_gpus, read_minutes, read_summaries

VARIANTS = {
    "defaults": AnalysisOptions(),
    "windows of five minutes": AnalysisOptions(
        window_s=300, imbalance_counters=("gpu_util", "sm_active", "dram_active")
    ),
    "as the notebooks": AnalysisOptions(
        window_s=900,
        count_zero_windows=True,
        zero_temporal_imbalance=True,
        imbalance_counters=("gpu_util",),
    ),
    "long gaps": AnalysisOptions(window_s=1800, max_gap_intervals=6.0),
}
# what other tests are about, or what is the same by construction
ELSEWHERE = {
    "pipes",
    "excluded",
    "seq",
    "as_of",
    "job_key",
    "attribution",
    "gpu_model",
    "hbm_mib",
    "time_precision_s",
}
ELSEWHERE |= {"ambiguous_because", "telemetry_cluster"}
IDENTITY = {"job_id", "display_id", "state", "submit", "start", "end", "nodes", "shards", "mps"}


@cache
def cluster_of(seed: int, coarser: float = 1.0) -> tuple[Cluster, Telemetry]:
    cluster = random_cluster(seed, coarser)
    return cluster, Telemetry.of(cluster.samples)


def same(found: Any, wanted: Any, *, relative: float = 1e-9) -> bool:
    """Equal; numbers nearly, where 1 - x lost digits too."""
    if isinstance(found, float) and isinstance(wanted, int | float):
        return math.isclose(found, wanted, rel_tol=relative, abs_tol=1e-11)
    return bool(found == wanted)


def differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], names: set[str], relative: float
) -> list[str]:
    return [
        f"{name}: {found[name]!r}, not {wanted[name]!r}"
        for name in sorted(names)
        if not same(found[name], wanted[name], relative=relative)
    ]


PerGpu = Mapping[tuple[str, str, int, int | None], Mapping[str, Any]]


def compare_jobs(
    summaries: Mapping[str, Mapping[str, Any]],
    per_gpu: PerGpu,
    cluster: Cluster,
    telemetry: Telemetry,
    analysis: AnalysisOptions,
) -> None:
    assert set(summaries) == {run.job_id for run in cluster.runs}
    names = set(JOB_SUMMARIES.schema) - ELSEWHERE - IDENTITY - JUDGED
    gpu_names = (
        set(JOB_GPUS.schema)
        - {"job_key", "job_id", "cluster", "node", "gpu", "mig", "gpu_model", "hbm_mib", "seq"}
        - JUDGED
    )
    relative = 1e-9
    count = 0
    for run in cluster.runs:
        wanted, gpus = job_reference(run, telemetry, cluster.capacities, cluster.ridges, analysis)
        assert differences(summaries[run.job_id], complete(wanted, names), names, relative) == [], (
            run
        )
        for unit, row in gpus.items():
            row["temporal_imbalance"] = row["ti_gpu_util"]
            row["zero_util_fraction"] = row["zeros"] / row["utils"] if row["utils"] else None
            assert differences(per_gpu[run.job_id, *unit], row, gpu_names, relative) == [], (
                run,
                unit,
            )
            count += 1
    assert count == len(per_gpu)


# use that others recorded, of hosts, and energy of nodes: none is in these lakes
OF_OTHERS = (
    *("recorded_", "task_gpu_", "node_energy_", "host_nodes", "consumed_"),
    *("cpu_time_s_sampled", "cpu_efficiency_sampled", "memory_mib_max"),
)


def complete(wanted: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    """The wanted row; what no accounting here tells is null."""
    never = {"cluster", "array_job_id", "het_job_id", "name", "user", "account", "partition", "qos"}
    never |= {"timelimit_s", "hbm_request", *HOST_USE, "cpu_efficiency"}
    never |= {"exit_code", "exit_signal", "exclusive", "gpu_share", "share_by"}
    never |= {name for name in names if name.startswith(OF_OTHERS)}
    assert names == set(wanted) & names | never
    return {**dict.fromkeys(never), **wanted}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_number_of_every_job_and_gpu(variant: str) -> None:
    cluster, telemetry = cluster_of(2, 12.0)
    configuration = configured(analysis=VARIANTS[variant])
    tables = (cluster.samples, cluster.jobs, cluster.allocations)
    made = outcome(*tables, devices=cluster.devices, configuration=configuration)
    compare_jobs(made.jobs, made.gpus, cluster, telemetry, VARIANTS[variant])


def test_every_number_of_a_lake(tmp_path: Path) -> None:
    cluster, telemetry = cluster_of(2)
    lake = make_lake(tmp_path, **cluster.tables())
    summarized(lake)
    jobs = read_summaries(lake)
    summaries = {row["job_id"]: row for row in jobs.iter_rows(named=True)}
    gpus = read_gpus(lake, jobs).iter_rows(named=True)
    per_gpu = {(row["job_id"], row["node"], row["gpu"], row["mig"]): row for row in gpus}
    compare_jobs(summaries, per_gpu, cluster, telemetry, AnalysisOptions())
    compare_minutes(lake, cluster, telemetry)


def compare_minutes(lake: Lake, cluster: Cluster, telemetry: Telemetry) -> None:
    summaries = read_summaries(lake)
    for run in cluster.runs:
        _, gpus = job_reference(
            run, telemetry, cluster.capacities, cluster.ridges, AnalysisOptions()
        )
        wanted = minute_reference(run, gpus)
        rows = list(
            read_minutes(lake, summaries.filter(pl.col("job_id") == run.job_id)).iter_rows(
                named=True
            )
        )
        found = {((row["node"], row["gpu"], row["mig"]), row["minute"]): row for row in rows}
        assert set(found) == set(wanted), run
        assert len(rows) == len(found)
        for key, values in wanted.items():
            wrong = [
                name
                for name, value in values.items()
                if not same(found[key][name], value, relative=1e-6)
            ]
            assert wrong == [], (run, key, wrong)
            assert (found[key]["t"] - run.start).total_seconds() == 60 * key[1]


def test_the_clusters_have_what_they_are_for() -> None:
    """Guards the comparison: jobs over midnight and two of them, single GPUs, silent GPUs, every
    null and bound.
    """
    cluster, telemetry = cluster_of(1)
    days = [(run.end.date() - run.start.date()).days for run in cluster.runs]
    assert {0, 1, 2} <= set(days)
    rows = [
        job_reference(run, telemetry, cluster.capacities, cluster.ridges, AnalysisOptions())[0]
        for run in cluster.runs
    ]
    assert {row["bound"] for row in rows} >= {"compute", "memory", None}
    assert {row["energy_source"] for row in rows} >= {"counter", "power"}
    assert any(row["xid_events"] for row in rows)
    assert any(row["intensity_histogram"] for row in rows)
    assert any(run.units[0][2] is not None for run in cluster.runs)
    assert {len(run.units) for run in cluster.runs} >= {1, 2, 3}


def test_reference_is_a_reference() -> None:
    """The reference itself, on a job small enough to do in the head."""
    start = utc(23, 12)
    units: tuple[Unit, ...] = (("n", 0, None), ("n", 1, None))
    run = Run("1", start, start + timedelta(seconds=40), units)
    samples = [
        {
            **dict.fromkeys(COUNTER_NAMES),
            "t": start + timedelta(seconds=10 * i),
            "node": "n",
            "gpu": gpu,
            "mig": None,
        }
        | {
            "gpu_util": [1.0, 0.5][gpu],
            "energy_j": 5.0 + 100 * i if gpu == 0 else [7.0, 9.0, 2.0, 4.0][i],
        }
        for gpu in range(2)
        for i in range(4)
    ]
    row, gpus = job_reference(run, Telemetry.of(samples), {}, {}, AnalysisOptions())
    assert row["spatial_imbalance"] == 1 - (1 + 0.5) / (2 * 1)
    assert row["temporal_imbalance"] == 0
    assert row["gpu_util_mean"] == 0.75
    assert (gpus[units[0]]["energy_j"], gpus[units[0]]["energy_j_estimated"]) == (
        300,
        300 * 40 / 30,
    )
    assert gpus[units[1]]["energy_j_mean"] == 2 + 2
    assert row["coverage"] == 1
