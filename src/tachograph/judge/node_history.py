"""History of one node: its jobs, and use and health of each GPU by week and day."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from tachograph.judge.health import worst
from tachograph.judge.usage import midnight

_GPU = ["gpu", "mig"]
_OF_JOB = (
    "display_id",
    "cluster",
    "name",
    "user",
    "account",
    "partition",
    "state",
    "start",
    "as_of",
    "interval_s",
)


_WORST = pl.col("states").map_elements(lambda states: worst(list(states)), return_dtype=pl.String())
# what of job_summaries and of job_gpus it is made of
NODE_JOB_COLUMNS = ("job_key", "job_id", *_OF_JOB)
NODE_GPU_COLUMNS = (
    *(
        "job_key",
        "node",
        *_GPU,
        "samples",
        "interval_s",
        "first_t",
        "last_t",
        "health",
        "gpu_util_mean",
        "throttle_reasons_mean",
    ),
    "gpu_temp_c_max",
    "xid_events",
    "xid_event_max",
    "pcie_replays_max",
    "remapped_rows_uncorrectable_last",
    "row_remap_failure_max",
)


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node, as far as its visible jobs show it.

    jobs: those that ran there, one row each, newest first: GPUs there, mean utilisation, worst
    health. gpus: one row per GPU: device, sums over all jobs. weeks: the same per GPU and week of
    the jobs' starts. days: per GPU and day, hours with samples of jobs, and mean utilisation in
    them. cluster: the one that was given. Null: not measured, or no job.
    """

    node: str
    cluster: str | None
    zone_name: str
    jobs: pl.DataFrame
    gpus: pl.DataFrame
    weeks: pl.DataFrame
    days: pl.DataFrame

    @property
    def sick(self) -> pl.DataFrame:
        """The GPUs that are not OK, or had errors."""
        return sick_rows(self.gpus)


def sick_rows(gpus: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `gpus` or `weeks` that are not OK, or had errors."""
    errors = pl.any_horizontal(
        pl.col("xid_events") > 0, pl.col("remapped_rows") > 0, pl.col("row_remap_failures") > 0
    )
    return gpus.filter(
        (pl.col("health").is_in(["CRIT", "WARN", "HOT"]) | errors).fill_null(value=False)
    )


def build_node_report(
    node: str,
    jobs: pl.DataFrame,
    gpus: pl.DataFrame,
    devices: pl.DataFrame,
    *,
    zone_name: str,
    cluster: str | None = None,
) -> NodeReport:
    """Return the report.

    `gpus`: NODE_GPU_COLUMNS of the rows of job_gpus of the node; `jobs`: NODE_JOB_COLUMNS of those
    that held them; `devices`: of the node, of one cluster.
    """
    mine = gpus.select(NODE_GPU_COLUMNS).rename({"interval_s": "gpu_interval_s"})
    held = mine.join(jobs.select(NODE_JOB_COLUMNS), on="job_key", how="inner").with_columns(
        week=pl.col("start").dt.convert_time_zone(zone_name).dt.truncate("1w").dt.date(),
        seconds=(pl.col("as_of") - pl.col("start")).dt.total_microseconds() / 1e6,
    )
    facts = pl.col("model", "uuid", "pci", "hbm_mib").drop_nulls().last()
    of_node = devices.group_by(_GPU, maintain_order=True).agg(facts)
    known = pl.concat([of_node.select(_GPU), mine.select(_GPU)]).unique()
    sums = known.join(_health(held, _GPU), on=_GPU, how="left", nulls_equal=True)
    listed = sums.join(of_node, on=_GPU, how="left", nulls_equal=True).sort(_GPU)
    return NodeReport(
        node, cluster, zone_name, _jobs(held), listed, _health(held, ["week", *_GPU]).sort("week", *_GPU),
        _days(held, zone_name),
    )  # fmt: skip


# A job of one sample has no interval.
_INTERVAL_S = pl.coalesce("gpu_interval_s", "interval_s")


def _weighted(column: str) -> pl.Expr:
    """Mean of a column over jobs by the time of their samples, of those in which it is known."""
    sampled_s = pl.col("samples") * _INTERVAL_S.fill_null(1.0)
    known_s = sampled_s.filter(pl.col(column).is_not_null()).sum()
    return pl.when(known_s > 0).then((pl.col(column) * sampled_s).sum() / known_s)


def _known_sum(column: str) -> pl.Expr:
    return pl.when(pl.col(column).count() > 0).then(pl.col(column).sum())


def _health(held: pl.DataFrame, by: list[str]) -> pl.DataFrame:
    """Sums and extremes over jobs: one row per group."""
    expected = (pl.col("seconds") / _INTERVAL_S).filter(_INTERVAL_S > 0)
    found = held.group_by(by).agg(
        jobs=pl.col("job_key").n_unique(),
        hours=pl.col("seconds").sum() / 3600,
        coverage=pl.when(expected.sum() > 0).then(
            (pl.col("samples").filter(_INTERVAL_S > 0).sum() / expected.sum()).clip(0, 1)
        ),
        gpu_util_mean=_weighted("gpu_util_mean"),
        throttled=_weighted("throttle_reasons_mean"),
        gpu_temp_c_max=pl.col("gpu_temp_c_max").max(),
        xid_events=_known_sum("xid_events"),
        xid=pl.col("xid_event_max").max(),
        pcie_replays=_known_sum("pcie_replays_max"),
        remapped_rows=pl.col("remapped_rows_uncorrectable_last").max(),
        row_remap_failures=pl.col("row_remap_failure_max").max(),
        states=pl.col("health").drop_nulls(),
    )
    return found.with_columns(health=_WORST).drop("states")


def _jobs(held: pl.DataFrame) -> pl.DataFrame:
    """One row per job, newest first."""
    found = held.group_by("job_key").agg(
        *(pl.col(name).first() for name in ("job_id", *_OF_JOB)),
        gpus_here=pl.len(),
        gpu_util_mean=_weighted("gpu_util_mean"),
        xid_events=_known_sum("xid_events"),
        states=pl.col("health").drop_nulls(),
    )
    return (
        found.with_columns(health=_WORST)
        .drop("states")
        .sort("start", "job_key", descending=[True, False])
    )


def _days(held: pl.DataFrame, zone_name: str) -> pl.DataFrame:
    """Hours between first and last sample of each job, divided among the days of the site."""
    local = held.filter(pl.col("first_t").is_not_null()).select(
        *_GPU, "gpu_util_mean",
        first=pl.col("first_t").dt.convert_time_zone(zone_name), last=pl.col("last_t").dt.convert_time_zone(zone_name),
    )  # fmt: skip
    days = local.with_columns(
        day=pl.date_ranges(pl.col("first").dt.date(), pl.col("last").dt.date(), "1d")
    ).explode("day")
    begins = midnight(pl.col("day"), zone_name)
    ends = midnight(pl.col("day") + pl.duration(days=1), zone_name)
    spent = pl.min_horizontal("last", ends) - pl.max_horizontal("first", begins)
    timed = days.with_columns(hours=spent.dt.total_microseconds() / 3.6e9)
    known = pl.col("gpu_util_mean").is_not_null()
    weight = pl.col("hours").filter(known).sum()
    return (
        timed.group_by("day", *_GPU)
        .agg(
            hours=pl.col("hours").sum(),
            gpu_util_mean=pl.when(weight > 0).then(
                (pl.col("gpu_util_mean") * pl.col("hours")).sum() / weight
            ),
        )
        .sort("day", *_GPU)
    )
