"""History of one node: its jobs, and use and health of each GPU by week and day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from math import comb
from typing import TypedDict

import polars as pl

from tachograph.catalog.columns import midnight
from tachograph.judge.finding import Verdict
from tachograph.judge.health import worst
from tachograph.lake.filters import FINAL_STATES
from tachograph.lake.numbering import unsure_times

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
    "ecc_dbe_max",
    "ecc_sbe_max",
    "nvlink_errors_max",
)
# rows of job_gpus with errors that occurred while the job held the GPU
HAD_ERRORS = pl.any_horizontal(
    pl.col("xid_events", "ecc_dbe_max", "nvlink_errors_max") > 0
).fill_null(value=False)
_FAILED = ("FAILED", "NODE_FAIL")
LEAST_USERS = 3  # whose jobs failed on a lemon: fewer may be their programs
LEAST_COMPARED = 10  # users of a GPU from which on it is denied to be one
_CHANCE = 0.001  # at most, of as many failures by accident: nodes have many GPUs


class NodeGpuRow(TypedDict, total=False):
    """A GPU of a node, with what jobs show of it: a row of `gpus`, `weeks` or `days`.

    week, day: of the latter two. lemon, users, users_failed: of the first.
    """

    gpu: int
    mig: int | None
    week: date
    day: date
    hours: float
    gpu_util_mean: float | None
    health: str | None
    xid_events: int | None
    xid: float | None
    users: int
    users_failed: int
    lemon: str | None


class HandoverRow(TypedDict, total=False):
    """A GPU with errors during a job, and the jobs that held it before and after."""

    gpu: int
    mig: int | None
    job_key_before: str | None
    job_before: str | None
    user_before: str | None
    job_key_after: str | None
    job_after: str | None
    user_after: str | None


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node, as far as its visible jobs show it.

    jobs: those that ran there, one row each, newest first: GPUs there, mean utilisation, worst
    health. gpus: one row per GPU: device, sums over all jobs. weeks: the same per GPU and week of
    the jobs' starts. days: per GPU and day, hours with samples of jobs, and mean utilisation in
    them. errors: see `handovers`. cluster: the one that was given. Null: not measured, or no job.

    `users` of a GPU, since it was put there: of jobs that ended; `users_failed`: those with a job
    that failed there, or had an XID; `lemon`: verdict.
    """

    node: str
    cluster: str | None
    zone_name: str
    jobs: pl.DataFrame
    gpus: pl.DataFrame
    weeks: pl.DataFrame
    days: pl.DataFrame
    errors: pl.DataFrame

    @property
    def sick(self) -> pl.DataFrame:
        """The GPUs that are not OK, or had errors."""
        return sick_rows(self.gpus)


def sick_rows(gpus: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `gpus` or `weeks` that are not OK, or had errors."""
    counts = ("xid_events", "remapped_rows", "row_remap_failures", "ecc_dbe")
    errors = pl.any_horizontal(pl.col(counts) > 0)
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
    held = held_gpus(jobs, gpus).with_columns(
        week=pl.col("start").dt.convert_time_zone(zone_name).dt.truncate("1w").dt.date(),
        seconds=(pl.col("as_of") - pl.col("start")).dt.total_microseconds() / 1e6,
    )
    facts = pl.col("model", "uuid", "pci", "hbm_mib").drop_nulls().last()
    of_node = devices.group_by(_GPU, maintain_order=True).agg(facts)
    known = pl.concat([of_node.select(_GPU), gpus.select(_GPU)]).unique()
    listed = known.sort(_GPU)
    for facts_of_gpus in (_health(held, _GPU), _lemons(held, devices), of_node):
        listed = listed.join(
            facts_of_gpus, on=_GPU, how="left", nulls_equal=True, maintain_order="left"
        )
    return NodeReport(
        node, cluster, zone_name, _jobs(held), listed, _health(held, ["week", *_GPU]).sort("week", *_GPU),
        _days(held, zone_name), handovers(held),
    )  # fmt: skip


def held_gpus(jobs: pl.DataFrame, gpus: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of job_gpus of a node with the columns of their jobs."""
    mine = gpus.select(NODE_GPU_COLUMNS).rename({"interval_s": "gpu_interval_s"})
    return mine.join(jobs.select(NODE_JOB_COLUMNS), on="job_key", how="inner")


def handovers(held: pl.DataFrame) -> pl.DataFrame:
    """Return which jobs had a GPU before and after each job with errors, newest first.

    Grain: one row per (job_key, gpu, mig). held: as of `held_gpus`.
    """
    named = (
        held.drop_nulls("first_t")
        .sort("first_t", "job_key")
        .with_columns(job=pl.coalesce("display_id", "job_id"))
    )
    sides = {
        f"{name}_{side}": pl.col(name).shift(step).over(_GPU)
        for side, step in (("before", 1), ("after", -1))
        for name in ("job_key", "job", "user")
    }
    return named.with_columns(**sides).filter(HAD_ERRORS).reverse().select(
        *_GPU, "job_key", "job", "user", "first_t", "last_t", "ecc_dbe_max", "nvlink_errors_max",
        "xid_events", pl.col("xid_event_max").alias("xid"), *sides,
    )  # fmt: skip


def _lemons(held: pl.DataFrame, devices: pl.DataFrame) -> pl.DataFrame:
    """Per GPU: users since it was put there, those whose jobs failed on it, and the verdict.

    A job with an XID failed on the GPUs that had one, another job on all of its GPUs.
    """
    changes = unsure_times(devices).filter("changed")
    since = changes.group_by("gpu").agg(replaced=pl.col("until").max())
    had_xid = (pl.col("xid_events") > 0).fill_null(value=False)
    failed = pl.when(had_xid.any().over("job_key")).then(had_xid)
    rows = (
        held.with_columns(failed=failed.otherwise(pl.col("state").is_in(_FAILED)))
        .join(since, on="gpu", how="left")
        .filter(
            pl.col("user").is_not_null(),
            pl.col("state").is_in(FINAL_STATES) | had_xid,
            (pl.col("first_t") >= pl.col("replaced")) | pl.col("replaced").is_null(),
        )
    )
    users = rows.group_by(*_GPU, "user").agg(pl.col("failed").any())
    counts = users.group_by(_GPU).agg(users=pl.len(), users_failed=pl.col("failed").sum())
    totals = counts.select(pl.col("users", "users_failed").sum()).row(0)

    lemons = [
        lemon_verdict(failed_users, all_users, totals[1], totals[0])
        for all_users, failed_users in counts.select("users", "users_failed").iter_rows()
    ]
    return counts.with_columns(lemon=pl.Series(lemons, dtype=pl.String))


def lemon_verdict(failed: int, users: int, all_failed: int, all_users: int) -> Verdict:
    """Return whether jobs of more users fail on a GPU than chance explains, of all of its node.

    all_users, all_failed: sums over the GPUs of the node, so of one user on two GPUs two. The
    probability is that of Fisher's exact test, one-sided.

    >>> lemon_verdict(3, 3, 3, 24), lemon_verdict(3, 10, 24, 80), lemon_verdict(2, 2, 2, 24)
    ('yes', 'no', 'unknown')
    """
    if all_users == users:
        return "unknown"
    as_many = sum(
        comb(all_failed, k) * comb(all_users - all_failed, users - k)
        for k in range(failed, min(users, all_failed) + 1)
    )
    if failed >= LEAST_USERS and as_many < _CHANCE * comb(all_users, users):
        return "yes"
    is_above = failed * all_users > all_failed * users
    return "no" if users >= LEAST_COMPARED and not is_above else "unknown"


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
        **{name: _known_sum(f"{name}_max") for name in ("ecc_dbe", "ecc_sbe", "nvlink_errors")},
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
