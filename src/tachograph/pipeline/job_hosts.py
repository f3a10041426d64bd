"""What jobs used of their nodes: CPU time and memory of their cgroups, energy of whole nodes.

Samples of cgroups name the job, so they count on shared nodes, too. Power of a node is that of a
job while the job has the node to itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

import polars as pl

from tachograph.catalog.chunks import CLUSTER_MARK
from tachograph.catalog.tables import JOB_NODE_SAMPLES, JOB_NODES, NODE_SAMPLES
from tachograph.lake.delta import Lake
from tachograph.lake.places import NodePlaces
from tachograph.lake.problems import lake_errors
from tachograph.pipeline.statistics import seconds_between

POWER = "node_power_w"
ENOUGH_POWER = 0.9  # of the time on all nodes; with less the energy of a job is unknown
# between two samples of power: a longer one is a gap, whatever is usual in a job with few samples
LONGEST_INTERVAL_S = 300.0
_KEY = ("run", "node", "step")


def read_job_nodes(
    lake: Lake, runs: pl.DataFrame, same_clusters: Mapping[str, str]
) -> pl.DataFrame:
    """Return rows of job_nodes, without `seq`, with `run`: from samples while each run was there.

    `runs`: run, job_key, job_id, cluster, start, until. The CPU time of a cgroup begins at 0 with
    the job. Errors: LakeError.
    """
    days = _days(lake, runs)
    if not days:
        return JOB_NODES.empty().drop("seq").with_columns(run=pl.lit(None, runs.schema["run"]))
    keys = runs.select("run", "job_key", "job_id", "start", "until", run_cluster="cluster")
    cluster = pl.col("cluster").replace(dict(same_clusters))
    same_cluster = (cluster == pl.col("run_cluster")).fill_null(value=True)
    with lake_errors(lake.uri(JOB_NODE_SAMPLES)):
        samples = lake.scan(JOB_NODE_SAMPLES, days).filter(
            pl.col("job_id").is_in(keys["job_id"].unique().implode())
        )
        during = samples.join(keys.lazy(), on="job_id").filter(
            same_cluster, pl.col("t").is_between("start", "until")
        )
        rows = during.group_by(_KEY).agg(
            pl.col("job_key", "job_id").first(),
            cluster=pl.col("run_cluster").first(),
            samples=pl.col("t").n_unique(),  # files may repeat rows of each other
            last_t=pl.col("t").max(),
            cpu_time_s=pl.col("job_cpu_s").max(),
            memory_mib_max=pl.col("job_memory_mib").max(),
            memory_limit_mib=pl.col("job_memory_limit_mib").max(),
            cpus=pl.col("job_cpus").max(),
        )
        nodes = rows.collect(engine="streaming")  # of all samples in these days
    schema = {name: dtype for name, dtype in JOB_NODES.schema.items() if name != "seq"}
    typed = [pl.col(name).cast(dtype) for name, dtype in schema.items()]
    return nodes.select("run", *typed).sort("job_key", "node", "step")


def host_sums(job_nodes: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Return one row per run with samples of its cgroups: columns of job_summaries.

    A sum is null where a node lacks a part of it. `job_nodes`: of `read_job_nodes`. CPUs that no
    sample names are those of the accounting, evenly spread.
    """
    whole_jobs = job_nodes.filter(pl.col("step").is_null())
    facts = runs.select("run", "start", of_node=pl.col("cpus") / pl.col("nodes"))
    joined = whole_jobs.join(facts, on="run")
    cpus = pl.coalesce("cpus", "of_node")
    available = joined.with_columns(available_s=seconds_between("start", "last_t") * cpus)
    used_s, available_s = (
        pl.when(pl.col(name).is_not_null().all()).then(pl.col(name).sum())
        for name in ("cpu_time_s", "available_s")
    )
    return available.group_by("run").agg(
        host_nodes=pl.len(),
        cpu_time_s_sampled=used_s,
        cpu_efficiency_sampled=pl.when(available_s > 0).then(used_s / available_s),
        memory_mib_max=pl.col("memory_mib_max").max(),
    )


def node_energy(
    lake: Lake,
    runs: pl.DataFrame,
    stretches: pl.DataFrame,
    places: NodePlaces,
    *,
    max_gap_intervals: float,
) -> pl.DataFrame:
    """Return (run, power_j, power_s): energy by samples of power, and the node-seconds of it.

    `stretches`: run, node, start, end in which a run had a node to itself. Between two samples the
    power is their mean; time in longer gaps and before the first sample is not measured.
    """
    mine = stretches.join(runs, on="run", how="semi").select("run", "node", "start", "end")
    files = [
        file for file in lake.files(NODE_SAMPLES, _days(lake, runs)) if POWER not in file.empty
    ]
    if not files or mine.is_empty():
        return pl.DataFrame(schema={"run": pl.Int32, "power_j": pl.Float64, "power_s": pl.Float64})
    names = mine["node"].str.split(CLUSTER_MARK).list.first().unique()
    inside = pl.col("t").is_between(mine["start"].min(), mine["end"].max())
    columns = ["node", "cluster", "t", POWER]
    with lake_errors(lake.uri(NODE_SAMPLES)):
        rows = lake.read_files(NODE_SAMPLES, files, columns).drop_nulls(POWER)
        samples = rows.filter(pl.col("node").is_in(names.implode()), inside).collect()
    samples = places.named(samples).unique(["node", "t"]).select("node", "t", POWER)
    stay = ("run", "node", "start")
    before = (
        _during(samples, mine)
        .sort(*stay, "t")
        .with_columns(
            apart_s=pl.col("t").diff().over(stay).dt.total_microseconds() / 1e6,
            mean_w=(pl.col(POWER) + pl.col(POWER).shift(1).over(stay)) / 2,
        )
    )
    usual_s = pl.min_horizontal(pl.col("apart_s").median().over(stay), LONGEST_INTERVAL_S)
    close = before.filter(pl.col("apart_s") <= max_gap_intervals * usual_s)
    return close.group_by("run").agg(
        power_j=(pl.col("mean_w") * pl.col("apart_s")).sum(), power_s=pl.col("apart_s").sum()
    )


def _during(samples: pl.DataFrame, stretches: pl.DataFrame) -> pl.DataFrame:
    """Return samples with the stretch in which they were taken, from its start to its end.

    Stretches of a node do not overlap, so that the last one to begin is the only one; a sample at
    the moment when one ends and the next begins is of both.
    """
    ordered = stretches.sort("start").with_columns(begun="start")
    taken = samples.sort("t")
    both = [
        taken.join_asof(
            ordered,
            left_on="t",
            right_on="begun",
            by="node",
            allow_exact_matches=at_once,
            check_sortedness=False,  # polars cannot check it by node, and warns
        )
        for at_once in (True, False)
    ]
    return (
        pl.concat(both).filter(pl.col("t") <= pl.col("end")).unique(["run", "node", "start", "t"])
    )


def energy_of_nodes(measured: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """Return per run node_energy_j, node_energy_source and node_energy_measured, null: unknown.

    `measured`: of `node_energy`. Samples come before the accounting, whose energy is that of all
    jobs on a node: it counts where the job had its nodes to itself.
    """
    node_s = seconds_between("start", "until") * pl.col("nodes")
    joined = runs.join(measured, on="run", how="left").with_columns(
        part=(pl.col("power_s") / node_s).clip(upper_bound=1.0)
    )
    alone = pl.col("exclusive").fill_null(value=False) | (pl.col("attribution") == "whole_node")
    sampled = pl.col("part") >= ENOUGH_POWER
    accounted = alone & (pl.col("consumed_energy_j") > 0)
    source = pl.when(sampled).then(pl.lit("samples")).when(accounted).then(pl.lit("accounting"))
    joules = pl.when(sampled).then(pl.col("power_j") / pl.col("part"))
    return joined.select(
        "run",
        node_energy_j=joules.when(accounted).then("consumed_energy_j"),
        node_energy_source=source,
        node_energy_measured=pl.when(sampled).then("part"),
    )


def _days(lake: Lake, runs: pl.DataFrame) -> list[date]:
    """Days in which runs were there, or nothing for none."""
    if runs.is_empty():
        return []
    first, last = runs.select(pl.col("start").min().dt.date(), pl.col("until").max().dt.date()).row(
        0
    )
    tables = (JOB_NODE_SAMPLES, NODE_SAMPLES)
    every = sorted({day for table in tables for day in lake.days(table)})
    return [day for day in every if first <= day <= last]
