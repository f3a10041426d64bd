"""The accounting an analysis needs: all of it, or the part near new data in time.

Which GPUs are whose depends on the jobs that ran at the same time, on those beside these, and so on
for a few steps. So of a lake of many years only the jobs around the new ones are read, and the
result is that of reading all.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import polars as pl

from tachograph.catalog.tables import (
    ALLOCATIONS,
    JOB_SUMMARIES,
    JOBS,
    NODE_STATES,
    STEPS,
    TIME,
    LakeTable,
)
from tachograph.lake.delta import Lake
from tachograph.lake.problems import lake_errors
from tachograph.lake.query import read_where
from tachograph.pipeline.state import EVER, InputVersions, NewInput

# Steps in time from what is new to what decides its results: runs beside it are done too, and runs
# beside those whose GPUs are not sure (two); a node is a run's alone by what those beside it have
# (one); and who has a GPU depends on claims to it, on the GPUs that their runs share, and on what
# is named of the runs beside those (three).
HOPS = 6
# Around a step that is read with it: so steps of short jobs are one reading.
AHEAD = timedelta(days=1)
_SUMMARY = ("job_key", "job_id", "start", "as_of")
_TIMES = {"start": TIME, "until": TIME}


@dataclass(frozen=True, slots=True)
class Accounting:
    """Rows of the tables, unique by key.

    `summaries`: earlier _SUMMARY; `clusters`: all cluster names of the lake; `pods`: rows of STEPS
    that are pods, by whose names samples name their jobs.
    """

    jobs: pl.DataFrame
    allocations: pl.DataFrame
    summaries: pl.DataFrame
    clusters: pl.Series
    pods: pl.DataFrame


def read_accounting(
    lake: Lake, news: NewInput, last: InputVersions | None, *, now: datetime
) -> Accounting:
    """Return the accounting needed to attribute new data: all, or the part near it.

    Errors: LakeError.
    """
    names, is_new = _clusters(lake, last)
    if news.everything or is_new or bool((news.spans["last"] == EVER[1]).any()):
        return Accounting(
            lake.latest(JOBS),
            lake.latest(ALLOCATIONS),
            lake.latest(JOB_SUMMARIES, _SUMMARY),
            names,
            read_where(lake, STEPS, _IS_POD),
        )
    ids = _near(lake, news, now)
    pods = _pods_of(lake, ids)
    ids = pl.concat([ids, pods["job_id"], pods["step"]]).unique()
    jobs = read_where(lake, JOBS, _of_jobs(ids))
    shown = jobs.filter(pl.col("display_id") != pl.col("job_id"))["display_id"].unique()
    if shown.len():  # what a name means depends on all jobs that have it
        ids = pl.concat([ids, shown])
        jobs = read_where(lake, JOBS, _of_jobs(ids))
    ids = pl.concat([ids, jobs["job_id"]]).unique()
    of_ids = pl.col("job_id").is_in(ids.implode())
    return Accounting(
        jobs,
        read_where(lake, ALLOCATIONS, of_ids),
        lake.latest(JOB_SUMMARIES, _SUMMARY, where=of_ids),
        names,
        pods,
    )


# Steps of Slurm have a number or a word, pods are POD.NAMESPACE.
_IS_POD = pl.col("step").str.contains(r"\.", strict=True)


def _pods_of(lake: Lake, ids: pl.Series) -> pl.DataFrame:
    """Return the pods of these ids: those that they name, and those of the jobs that they name."""
    other = ids.filter(~ids.str.contains(r"^[0-9_+]+$"))  # not Slurm's
    if other.is_empty():
        return STEPS.empty()
    named = read_where(lake, STEPS, _IS_POD & pl.col("step").is_in(other.implode()))
    jobs = pl.concat([other, named["job_id"]]).unique()
    return read_where(lake, STEPS, _IS_POD & pl.col("job_id").is_in(jobs.implode()))


def read_node_shares(lake: Lake) -> pl.DataFrame:
    """Return (node, shards_of_gpu, mps_of_gpu) of nodes whose GPUs have shares, as last polled.

    Errors: LakeError.
    """
    polled = (pl.col("gpus") > 0) & pl.any_horizontal(pl.col("shards", "mps").is_not_null())
    last = pl.col("gpus", "shards", "mps").sort_by("start", "seq").last()
    with lake_errors(lake.uri(NODE_STATES)):
        rows = lake.scan(NODE_STATES).filter(polled).group_by("node").agg(last)
        newest = rows.collect(engine="streaming")
    return newest.select(
        "node",
        shards_of_gpu=pl.col("shards") / pl.col("gpus"),
        mps_of_gpu=pl.col("mps") / pl.col("gpus"),
    )


def read_steps(lake: Lake, runs: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of STEPS of the jobs of `runs`, each key once. Errors: LakeError."""
    return read_where(lake, STEPS, pl.col("job_id").is_in(runs["job_id"].unique().implode()))


def _of_jobs(ids: pl.Series) -> pl.Expr:
    return pl.col("job_id").is_in(ids.implode()) | pl.col("display_id").is_in(ids.implode())


def _clusters(lake: Lake, last: InputVersions | None) -> tuple[pl.Series, bool]:
    """Cluster names, and whether one is new; rows without one belong to the only cluster."""
    empty = pl.DataFrame(schema={"cluster": pl.String, "known": pl.Boolean})
    names = [empty]
    for table in (JOBS, ALLOCATIONS):
        was_there = (
            pl.lit(value=False)
            if last is None
            else pl.col("seq").min() <= last.versions[table.name]
        )
        with lake_errors(lake.uri(table)):
            rows = lake.scan(table).filter(pl.col("cluster").is_not_null())
            names.append(rows.group_by("cluster").agg(known=was_there).collect(engine="streaming"))
    by_name = pl.concat(names).group_by("cluster").agg(pl.col("known").any())
    return by_name["cluster"], not by_name["known"].all()


def _near(lake: Lake, news: NewInput, now: datetime) -> pl.Series:
    """Return ids of jobs that overlap new data in time, directly or through other jobs."""
    named = pl.Series("job_id", sorted(news.job_ids), dtype=pl.String)
    times = pl.concat(
        [news.spans.select(start="first", until="last"), *_times_of(lake, named, now)]
    )
    read = near = pl.DataFrame(schema={"job_id": pl.String, **_TIMES})
    known_from, known_to = datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC)
    for _ in range(HOPS):
        begin, end = times.select(pl.col("start").min(), pl.col("until").max()).row(0)
        if begin is None or end is None:
            break
        if begin < known_from or end > known_to:
            known_from, known_to = begin - AHEAD, end + AHEAD
            read = pl.concat(
                _within(lake, table, known_from, known_to, now) for table in (JOBS, ALLOCATIONS)
            )
        near = read.filter(
            pl.col("start") <= pl.lit(end, dtype=TIME), pl.col("until") >= pl.lit(begin, dtype=TIME)
        )
        times = pl.concat([times, near.select("start", "until")])
    return pl.concat([named, near["job_id"]]).unique()


def _times_of(lake: Lake, ids: pl.Series, now: datetime) -> list[pl.DataFrame]:
    """Return job times by any record, and where the last analysis placed them."""
    of_ids = pl.col("job_id").is_in(ids.implode())
    sources = (
        (JOBS, _of_jobs(ids), "end"),
        (ALLOCATIONS, of_ids, "end"),
        (JOB_SUMMARIES, of_ids, "as_of"),
    )
    times = []
    for table, where, end in sources:
        with lake_errors(lake.uri(table)):
            begun = lake.scan(table).filter(where & pl.col("start").is_not_null())
            times.append(
                begun.select(
                    "start", until=pl.col(end).fill_null(pl.lit(now, dtype=TIME))
                ).collect()
            )
    return times


def _within(
    lake: Lake, table: LakeTable, begin: datetime, end: datetime, now: datetime
) -> pl.DataFrame:
    """(job_id, start, until) of rows that overlap [begin, end]; open ones last until `now`.

    Of a row that was completed later the one without its end does not count.
    """
    is_open = pl.col("end").is_null()
    inside = (pl.col("start") <= pl.lit(end, dtype=TIME)) & (
        is_open | (pl.col("end") >= pl.lit(begin, dtype=TIME))
    )
    columns = list(dict.fromkeys((*table.key, "start", "end")))
    with lake_errors(lake.uri(table)):
        rows = lake.scan(table).filter(inside).select(columns).collect()
        begun = rows.filter(is_open)
        if begun.height:
            ids = begun["job_id"].unique().implode()
            ended = (
                lake.scan(table)
                .filter(pl.col("job_id").is_in(ids) & ~is_open)
                .select(table.key)
                .collect()
            )
            begun = begun.join(ended, on=table.key, how="anti", nulls_equal=True)
    overlapping = pl.concat([rows.filter(~is_open), begun])
    return overlapping.select(
        "job_id", "start", until=pl.col("end").fill_null(pl.lit(now, dtype=TIME))
    )
