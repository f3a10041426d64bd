"""The runs of jobs, from accounting and the maps of its GPUs."""

from __future__ import annotations

from datetime import datetime, timedelta

import polars as pl

from tachograph.catalog.config import SlurmOptions
from tachograph.catalog.tables import GPU_KEY, TIME
from tachograph.lake.conform import later_record
from tachograph.lake.filters import FINAL_STATES
from tachograph.lake.places import may_be_of
from tachograph.sources.slurm.partitions import gives_whole_nodes, read_partitions

COARSE_S = 60.0
_POD_CLOCKS = timedelta(seconds=60)  # a scraper may see a pod so much before or after its times


def build_runs(
    jobs: pl.DataFrame,
    allocations: pl.DataFrame,
    *,
    slurm: SlurmOptions,
    now: datetime,
    clusters: pl.Series | None = None,
    described: str = "",
) -> pl.DataFrame:
    """Return one row per started run of a job: columns of `jobs`, `run`, `job_key`, `accounted`.

    `until` is the end of the analyzed part of a run: `end`, or `now` if that is null (`end` stays
    null). If the run is over by its state, `until` is its start plus `elapsed_s`, or its start if
    that is null. A waiting job is no run, even if its record has a start. A null `cluster` is that
    of the job's other rows, or the only one there is; `clusters`: all names, if the rows are only a
    part; `described`: the one whose partitions Slurm's record describes. Runs that began and ended
    at the same instant are kept: they own no samples. Jobs that only a map or samples name get a
    row with null accounting columns, `accounted` false.
    """
    names = _clusters(jobs, allocations, clusters)
    merged = _merge(_named(jobs, names)).drop("seq")
    allocations = _named(allocations, names)
    waiting = (pl.col("state") == "PENDING").fill_null(value=False) & pl.col("end").is_null()
    started = merged.filter(pl.col("start").is_not_null() & ~waiting).with_columns(
        accounted=pl.lit(value=True)
    )
    mapped = _from_maps(allocations, merged).with_columns(accounted=pl.lit(value=False))
    runs = pl.concat([started, mapped], how="diagonal").select(*started.columns)
    runs = runs.with_columns(
        until=pl.coalesce("end", _looked_at(now)),
        exclusive=_exclusive(runs, slurm, described),
        display_id=pl.coalesce("display_id", "job_id"),
        job_key=pl.concat_str(
            pl.col("cluster").fill_null(""),
            pl.col("job_id"),
            pl.coalesce("submit", "start").dt.epoch("s"),
            separator=":",
        ),
    )
    return runs.sort("job_key").with_row_index("run").with_columns(pl.col("run").cast(pl.Int32))


def with_clusters(
    allocations: pl.DataFrame, jobs: pl.DataFrame, clusters: pl.Series
) -> pl.DataFrame:
    """Return allocations with the cluster of their jobs, as `build_runs` decides it."""
    return _named(allocations, _clusters(jobs, allocations, clusters))


def _looked_at(now: datetime) -> pl.Expr:
    """Up to when a run without end is analyzed."""
    recorded_end = pl.col("start") + pl.duration(
        microseconds=(pl.col("elapsed_s").fill_null(0) * 1e6).cast(pl.Int64)
    )
    still = pl.max_horizontal(pl.lit(now, dtype=TIME), "start")
    over = pl.col("state").is_in(FINAL_STATES)
    saved = pl.col("saved").fill_null(value=False)
    return (
        pl.when(over)
        .then(recorded_end.cast(TIME))
        .when(saved)
        .then(pl.min_horizontal(recorded_end.cast(TIME), still))
        .otherwise(still)
    )


def _clusters(
    jobs: pl.DataFrame, allocations: pl.DataFrame, known: pl.Series | None
) -> pl.DataFrame:
    """Cluster of the rows that name none, per job id (`job_id`, `of_job`), where it is known."""
    pairs = pl.concat([frame.select("job_id", "cluster") for frame in (jobs, allocations)]).unique()
    everywhere = pairs["cluster"].drop_nulls().unique() if known is None else known
    only = everywhere.item() if everywhere.len() == 1 else None
    named = pl.col("cluster").drop_nulls()
    of_job = (
        pl.when(named.len() == 1)
        .then(named.first())
        .when(named.len() == 0)
        .then(pl.lit(only, dtype=pl.String))
    )
    return pairs.group_by("job_id").agg(of_job=of_job).drop_nulls()


def _named(rows: pl.DataFrame, clusters: pl.DataFrame) -> pl.DataFrame:
    joined = rows.join(clusters, on="job_id", how="left", maintain_order="left")
    return joined.with_columns(cluster=pl.coalesce("cluster", "of_job")).drop("of_job")


def _merge(jobs: pl.DataFrame) -> pl.DataFrame:
    """Merged records of one run: with and without cluster, or with times rounded to minutes.

    An export to the minute and the accounting to the second differ in `submit`; they are one run
    when they agree to the minute. A record that has an end counts before one that has none, then
    the finer one.
    """
    job = ["cluster", "job_id"]
    coarse = (pl.col("time_precision_s") >= COARSE_S).fill_null(value=False).any().over(job)
    moment = pl.coalesce("submit", "start")
    keyed = jobs.with_columns(
        moment=pl.when(coarse).then(moment.dt.truncate("1m")).otherwise(moment)
    )
    repeated = keyed.select(pl.struct(*job, "moment").is_duplicated()).to_series()
    if not repeated.any():
        return jobs
    rest = [name for name in jobs.columns if name not in job]
    merged = (
        keyed.filter(repeated)
        .sort(
            *later_record(),
            -pl.col("time_precision_s").fill_null(0),
            "seq",
            "submit",
            maintain_order=True,
        )
        .group_by(*job, "moment", maintain_order=True)
        .agg(pl.col(name).drop_nulls().last() for name in rest)
    )
    return pl.concat([jobs.filter(~repeated), merged.select(*jobs.columns)])


def _from_maps(allocations: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Runs of jobs that only maps know, from the first to the last instant a map gives.

    The last row of a GPU decides whether it is still held: the process that wrote the one before
    may have been killed.
    """
    maps = allocations.filter(pl.col("start").is_not_null()).with_row_index("row")
    accounted = maps.join(
        jobs.select("job_id", theirs="cluster").unique(), on="job_id", how="inner"
    )
    accounted = accounted.filter((pl.col("cluster") == pl.col("theirs")).fill_null(value=True))
    unknown = maps.join(accounted, on="row", how="anti")
    last = unknown.sort("start", "end", nulls_last=False).with_columns(
        held=pl.col("end").is_null()
        & (pl.int_range(pl.len()).reverse() == 0).over("cluster", "job_id", *GPU_KEY)
    )
    return (
        last.group_by("cluster", "job_id")
        .agg(
            start=pl.col("start").min(),
            end=pl.when(pl.col("held").any()).then(None).otherwise(pl.col("end").max()),
            nodes=pl.col("node").n_unique().cast(pl.Int64),
            gpus=pl.when(
                pl.col("gpu").is_not_null().all() & ~pl.col("shared").fill_null(value=False).any()
            )
            .then(pl.struct("node", "gpu", "mig").n_unique())
            .cast(pl.Int64),
        )
        .with_columns(elapsed_s=(pl.col("end") - pl.col("start")).dt.total_milliseconds() / 1000)
    )


def misplaced(runs: pl.DataFrame, allocations: pl.DataFrame) -> int:
    """Return how many jobs with accounted times are in maps or samples only at other times."""
    named = allocations.filter(pl.col("start").is_not_null(), pl.col("end").is_not_null())
    ours = runs.filter("accounted").select("job_id", "until", first="start")
    joined = named.select("job_id", "start", "end").join(ours, on="job_id", how="inner")
    # Ends count: a run that was over in less than a second has no time between them.
    inside = (pl.col("start") <= pl.col("until")) & (pl.col("end") >= pl.col("first"))
    return joined.group_by("job_id").agg(inside=inside.any()).filter(~pl.col("inside")).height


def with_pod_jobs(allocations: pl.DataFrame, pods: pl.DataFrame) -> pl.DataFrame:
    """Return `allocations` with pods (POD.NAMESPACE) replaced by their jobs, as steps of them.

    `pods`: rows of STEPS. Of several pods that had the name one after the other it is the latest
    that had begun by then; a name on several clusters needs the cluster.
    """
    if pods.is_empty():
        return allocations
    numbered = allocations.with_row_index("row")
    theirs = pods.select(
        job_id="step", raw="job_id", theirs="cluster", first="start", last="end"
    ).with_columns(first=pl.col("first") - _POD_CLOCKS, last=pl.col("last") + _POD_CLOCKS)
    # One scrape does not show since when a pod holds its GPU: such rows have an end alone.
    moment = pl.coalesce("start", "end").alias("moment")
    joined = numbered.select("row", "job_id", "cluster", moment).join(theirs, on="job_id")
    same_cluster = (pl.col("cluster") == pl.col("theirs")).fill_null(value=True)
    begun = (pl.col("first") <= pl.col("moment")).fill_null(value=True)
    going = (pl.col("last") >= pl.col("moment")).fill_null(value=True)
    fitting = joined.filter(same_cluster & begun & going)
    single = fitting.filter(pl.col("theirs").n_unique().over("row") == 1)
    latest = single.sort("row", "first").unique("row", keep="last", maintain_order=True)
    named = numbered.join(latest.select("row", "raw"), on="row", how="left", maintain_order="left")
    is_pod = pl.col("raw").is_not_null()
    return named.with_columns(
        step=pl.when(is_pod).then("job_id").otherwise("step"),
        job_id=pl.coalesce("raw", "job_id"),
    ).drop("row", "raw")


def with_raw_ids(allocations: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Return `allocations` with displayed job ids (123_4, 123+1) replaced by raw ids."""
    shown = (
        jobs.filter(pl.col("display_id") != pl.col("job_id"))
        .select(job_id="display_id", raw="job_id")
        .unique()
    )
    single = shown.filter(pl.col("job_id").is_unique()).join(jobs, on="job_id", how="anti")
    if single.is_empty():
        return allocations
    joined = allocations.join(single, on="job_id", how="left", maintain_order="left")
    return joined.with_columns(job_id=pl.coalesce("raw", "job_id")).drop("raw")


def under_raw_ids(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return `jobs` with records that have only a displayed id under the raw id of the same run.

    `sacct -X` without JobIDRaw writes array tasks and het components as 3_0 and 11+1. They are
    runs of other records only if these have the same displayed id and were submitted in the same
    second: ids are used again after a restart of the accounting.
    """
    moment = pl.coalesce("submit", "start")
    is_displayed = pl.col("job_id").str.contains(r"^\d+[_+]\d+$")
    if not jobs.select(is_displayed.any()).item():
        return jobs
    raw = (
        jobs.filter(~is_displayed & (pl.col("display_id") != pl.col("job_id")))
        .select(job_id="display_id", moment=moment, raw="job_id", of_raw="cluster")
        .unique()
        .filter(pl.struct("job_id", "moment").is_unique())
    )
    joined = jobs.with_columns(moment=moment).join(
        raw, on=["job_id", "moment"], how="left", maintain_order="left"
    )
    raw_id = pl.when(may_be_of("of_raw")).then("raw")
    return joined.with_columns(job_id=pl.coalesce(raw_id, "job_id")).drop("raw", "of_raw", "moment")


def _exclusive(runs: pl.DataFrame, slurm: SlurmOptions, described: str) -> pl.Series:
    """Whether a run had its nodes to itself: by its own request first, else by its partition.

    `described`: cluster of the recorded partitions: others may have some of the same names. Empty:
    the only cluster there is.
    """
    recorded = read_partitions(slurm.partitions_file)
    queues = runs.select("cluster", "partition", "qos").unique()
    answers = []
    for cluster, partition, qos in queues.iter_rows():
        partitions = recorded if not described or cluster in (None, described) else {}
        answers.append(gives_whole_nodes(slurm, partitions, partition=partition, qos=qos))
    answered = queues.with_columns(given=pl.Series(answers, dtype=pl.Boolean))
    rows = runs.join(
        answered,
        on=["cluster", "partition", "qos"],
        how="left",
        maintain_order="left",
        nulls_equal=True,
    )
    requested = pl.when("exclusive").then(pl.lit(value=True))
    return rows.select(pl.coalesce(requested, "given", "exclusive")).to_series()
