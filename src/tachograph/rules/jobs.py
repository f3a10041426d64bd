"""Jobs as rules see them: the metrics that rules name, computed at once for many jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tachograph.reduce.timelines import ACTIVITY
from tachograph.rules.metrics import ACTIVITY_MAX, ACTIVITY_MEAN, ELAPSED, LEVELS, OFFERED
from tachograph.rules.model import Kind
from tachograph.summarize.schema import HOST_CHARACTERISTICS

Scalar = float | str | None
_LABEL = "_label"
ENOUGH = 0.5  # of a job's samples: with fewer a mean times the run time is made up rather than measured


@dataclass(frozen=True, slots=True)
class Measured:
    """Metrics of some jobs, in their order: one value per job, and one for each of its GPUs and nodes."""

    of_jobs: Mapping[str, Sequence[Scalar]]
    of_ranks: Mapping[str, Sequence[Sequence[Scalar]]]
    labels: Mapping[str, Sequence[Sequence[str]]]

    def job(self, place: int) -> OneJob:
        """Return the job at `place`."""
        return OneJob(self, place)


@dataclass(frozen=True, slots=True)
class OneJob:
    """One job, as the language asks for its metrics (`model.Ranks`)."""

    measured: Measured
    place: int

    def labels(self, kind: Kind) -> Sequence[str]:
        """Return the names of its GPUs or nodes; of processes nobody told."""
        of_kind = self.measured.labels.get(kind)
        return () if of_kind is None else of_kind[self.place]

    def of_ranks(self, metric: str) -> Sequence[Scalar] | None:
        """Return a metric of its GPUs or nodes, in the order of `labels`; None where it has none of them."""
        values = self.measured.of_ranks.get(metric)
        return (values[self.place] or None) if values is not None else None

    def of_job(self, metric: str) -> Scalar:
        """Return a metric of the job; None: not known."""
        values = self.measured.of_jobs.get(metric)
        return None if values is None else values[self.place]


def measure(jobs: pl.DataFrame, gpus: pl.DataFrame, node_minutes: pl.DataFrame, names: Collection[str]) -> Measured:
    """Return the metrics called `names` of `jobs`, in their order.

    `jobs`: rows of job_summaries. `gpus`, `node_minutes`: their rows of job_gpus and job_node_minutes.
    A GPU or node of which nothing was recorded is there, with nulls.
    """
    wanted = {level: [name for name in sorted(names) if OFFERED[name].level == level] for level in LEVELS}
    rows = jobs.with_columns(_activity("mean").alias(ACTIVITY_MEAN), _activity("max").alias(ACTIVITY_MAX))
    of_jobs = rows.select(OFFERED[name].of.alias(name) for name in wanted["job"]).to_dict(as_series=False)
    if not wanted["gpu"] and not wanted["node"]:
        return Measured(of_jobs, {}, {})
    devices = _devices(jobs, gpus)
    of_ranks: dict[str, list[list[Scalar]]] = {}
    labels: dict[str, list[list[str]]] = {}
    for level, frame in (
        ("gpu", devices.select("job_key", _LABEL, *(OFFERED[name].of.alias(name) for name in wanted["gpu"]))),
        ("node", _nodes(devices, node_minutes, wanted["node"])),
    ):
        lists = frame.group_by("job_key", maintain_order=True).agg(pl.all())
        in_order = jobs.select("job_key").join(lists, on="job_key", how="left", maintain_order="left").drop("job_key")
        columns = {name: [row or [] for row in values] for name, values in in_order.to_dict(as_series=False).items()}
        labels[level] = columns.pop(_LABEL)
        of_ranks |= columns
    return Measured(of_jobs, of_ranks, labels)


def _activity(statistic: str, of: str = "") -> pl.Expr:
    """The statistic of the counter that tells of the whole job whether its GPUs worked: ACTIVITY, best known first."""
    choice = pl.lit(None, dtype=pl.Float64())
    for counter in reversed(ACTIVITY):
        told = pl.col(f"{counter}_mean{of}").is_not_null()
        choice = pl.when(told).then(pl.col(f"{counter}_{statistic}")).otherwise(choice)
    return choice


def _devices(jobs: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """Rows of job_gpus with activity, run time, and their names for people: with the node where there are several.

    The run time is null where not ENOUGH was measured.
    """
    told = [pl.col(f"{counter}_mean").alias(f"{counter}_mean_of_job") for counter in ACTIVITY]
    hardly = (pl.col("coverage") < ENOUGH).fill_null(value=False)
    run_time = pl.when(~hardly).then("elapsed_s").alias(ELAPSED)
    of_job = jobs.select("job_key", run_time, *told)
    rows = gpus.join(of_job, on="job_key", how="inner").sort("job_key", "node", "gpu", "mig")
    one_node = (pl.col("node").first() == pl.col("node").last()).over("job_key")
    piece = pl.concat_str(pl.lit("/"), pl.col("mig")).fill_null("")
    name = pl.concat_str(pl.lit("GPU "), pl.col("gpu"), piece)
    return rows.with_columns(
        _activity("mean", "_of_job").alias(ACTIVITY_MEAN),
        _activity("max", "_of_job").alias(ACTIVITY_MAX),
        pl.when(one_node).then(name).otherwise(pl.concat_str(pl.col("node"), pl.lit(" "), name)).alias(_LABEL),
    )


def _nodes(devices: pl.DataFrame, minutes: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """One row per (job_key, node): its name and metrics of nodes."""
    host = minutes.group_by("job_key", "node").agg(pl.col(name).mean() for name in HOST_CHARACTERISTICS)
    of_host = {name for name in names if name.removeprefix("node_") in HOST_CHARACTERISTICS}
    of_gpus = [OFFERED[name].of.alias(name) for name in names if name not in of_host]
    nodes = devices.group_by("job_key", "node", maintain_order=True).agg(*of_gpus)
    joined = nodes.join(host, on=["job_key", "node"], how="left", maintain_order="left")
    own = [name if name not in of_host else OFFERED[name].of.alias(name) for name in names]
    return joined.select("job_key", pl.col("node").alias(_LABEL), *own)
