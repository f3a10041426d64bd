"""The jobs that had the same GPUs as a job at the same time, and what those GPUs did in all."""

from __future__ import annotations

from collections.abc import Set
from datetime import timedelta
from typing import TYPE_CHECKING, cast

import polars as pl

from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, GPU_SAMPLES, TIME
from tachograph.judge.activity import gpu_label
from tachograph.judge.node_history import (
    HAD_ERRORS,
    NODE_GPU_COLUMNS,
    NODE_JOB_COLUMNS,
    HandoverRow,
    handovers,
    held_gpus,
)
from tachograph.lake.conform import resolve
from tachograph.lake.delta import Lake
from tachograph.lake.problems import lake_errors
from tachograph.lake.query import read_node, read_summaries
from tachograph.report.company import NO_COMPANY, GpuCompany, JobBeside

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


_GPU = ("node", "gpu")
_MOST_HANDOVERS = 4  # GPUs of which a report names the jobs before and after
_OF_JOBS = ("job_key", "job_id", "display_id", "user", "name", "start")


def read_company(lake: Lake, row: JobSummaryRow, configuration: Configuration) -> GpuCompany:
    """Return who else had GPUs of which the job had shares, or that several jobs claim.

    `row`: of job_summaries. Jobs that the lake does not show are counted, and use of GPUs that it
    does not show is not known.
    """
    claimed = row["attribution"] == "ambiguous" or row["shards"] or row["mps"]
    if not claimed or row["start"] is None or row["as_of"] is None:
        return NO_COMPANY
    held = _held(lake, row, configuration)
    if held.is_empty():
        return NO_COMPANY
    everyone = lake.of_all_jobs
    neighbours = _neighbours(everyone, row, held, configuration)
    if neighbours.is_empty():
        return NO_COMPANY
    shown = read_summaries(
        lake, _OF_JOBS, where=pl.col("job_key").is_in(neighbours.get_column("job_key").implode())
    ).sort("start", "job_key")
    return GpuCompany(
        jobs=tuple(
            JobBeside(
                neighbour["job_key"],
                neighbour["display_id"] or neighbour["job_id"],
                neighbour["user"],
                neighbour["name"],
            )
            for neighbour in cast("list[JobSummaryRow]", shown.to_dicts())
        ),
        others=neighbours.height - shown.height,
        gpus=held.select(_GPU).unique().height,
        activity=_activity(lake, held),
    )


def read_handovers(lake: Lake, row: JobSummaryRow, gpus: pl.DataFrame) -> tuple[str, ...]:
    """Return who had the GPUs with errors before and after a job, in sentences.

    `row`: of job_summaries; gpus: its rows of job_gpus. Jobs that the lake does not show are not
    named.
    """
    sentences: list[str] = []
    for node in gpus.filter(HAD_ERRORS).get_column("node").unique().sort():
        jobs, rows = read_node(
            lake.of_all_jobs, node, NODE_JOB_COLUMNS, NODE_GPU_COLUMNS, cluster=row["cluster"]
        )
        errors = handovers(held_gpus(jobs, rows)).filter(pl.col("job_key") == row["job_key"])
        keys = {*errors.get_column("job_key_before"), *errors.get_column("job_key_after")} - {None}
        shown = set(read_summaries(lake, ("job_key",), keys=sorted(keys)).get_column("job_key"))
        for error in cast("list[HandoverRow]", errors.to_dicts()):
            before = _beside_in_time(
                error["job_key_before"], error["job_before"], error["user_before"], shown
            )
            after = _beside_in_time(
                error["job_key_after"], error["job_after"], error["user_after"], shown
            )
            label = gpu_label({"node": node, "gpu": error["gpu"], "mig": error["mig"]})
            sentences.append(f"{label} had errors; it was held by {before} before, {after} after.")
        if len(sentences) >= _MOST_HANDOVERS:
            break
    return tuple(sentences[:_MOST_HANDOVERS])


def _beside_in_time(key: str | None, job: str | None, user: str | None, shown: Set[str]) -> str:
    if key is None or job is None:
        return "no recorded job"
    return JobBeside(key, job, user, None).label if key in shown else "a job of another user"


def _numbered(lake: Lake, rows: pl.DataFrame, configuration: Configuration) -> pl.DataFrame:
    from tachograph.pipeline.gpu_numbers import with_own_indices  # of few jobs

    devices = lake.latest(DEVICES)
    named = with_own_indices(rows, devices, slurm=configuration.slurm)
    return named.filter(pl.col("gpu").is_not_null())


def _held(lake: Lake, row: JobSummaryRow, configuration: Configuration) -> pl.DataFrame:
    """(node, gpu, start, end) of the GPUs that records name as those of the job."""
    ids = [name for name in (row["job_id"], row["display_id"]) if name]
    with lake_errors(lake.uri(ALLOCATIONS)):
        rows = lake.read_named(ALLOCATIONS, ids).filter(_of_cluster(row["cluster"])).collect()
    return _clipped(_numbered(lake, rows, configuration), row)


def _of_cluster(cluster: str | None) -> pl.Expr:
    return (pl.col("cluster") == pl.lit(cluster, dtype=pl.String)).fill_null(value=True)


def _clipped(rows: pl.DataFrame, row: JobSummaryRow) -> pl.DataFrame:
    first, last = (pl.lit(row[name], dtype=TIME) for name in ("start", "as_of"))
    clipped = rows.select(
        *_GPU,
        start=pl.max_horizontal(pl.col("start").fill_null(first), first),
        end=pl.min_horizontal(pl.col("end").fill_null(last), last),
    )
    return clipped.filter(pl.col("start") < pl.col("end")).unique()


def _neighbours(
    lake: Lake, row: JobSummaryRow, held: pl.DataFrame, configuration: Configuration
) -> pl.DataFrame:
    """(job_key) of other jobs that records name on these GPUs for longer than a hand-over."""
    from tachograph.pipeline.attribution import HANDOVER  # of few jobs

    nodes = held.get_column("node").unique().implode()
    first, last = row["start"], row["as_of"]
    there = (
        pl.col("node").is_in(nodes),
        _of_cluster(row["cluster"]),
        pl.col("start").is_null() | (pl.col("start") < last),
        pl.col("end").is_null() | (pl.col("end") > first),
    )
    with lake_errors(lake.uri(ALLOCATIONS)):
        named = _numbered(lake, lake.scan(ALLOCATIONS).filter(there).collect(), configuration)
    during = (pl.col("start") < last) & (pl.col("as_of") > first)
    ids = named.get_column("job_id").unique().implode()
    # Maps name tasks of arrays as people see them, the accounting by a number of their own.
    is_named = pl.col("job_id").is_in(ids) | pl.col("display_id").is_in(ids)
    others = read_summaries(
        lake,
        ("job_key", "cluster", "job_id", "display_id", "start", "as_of"),
        where=during
        & is_named
        & _of_cluster(row["cluster"])
        & (pl.col("job_key") != row["job_key"]),
    )
    by_name = [
        others.select("job_key", "as_of", name=name, run_start="start")
        for name in ("job_id", "display_id")
    ]
    theirs = named.select(*_GPU, name="job_id", begun="start", over="end").join(
        pl.concat(by_name).drop_nulls("name").unique(), on="name"
    )
    together = theirs.join(held, on=_GPU)
    begin = pl.max_horizontal("start", "run_start", "begun")
    end = pl.min_horizontal("end", "as_of", "over")
    return together.filter(end - begin > HANDOVER).select("job_key").unique()


def _activity(lake: Lake, held: pl.DataFrame) -> float | None:
    """Mean utilisation of the GPUs in the time that the job held them; None: not known."""
    first, last = held.select(pl.col("start").min(), pl.col("end").max()).row(0)
    days = [day for day in lake.days(GPU_SAMPLES) if first.date() <= day <= last.date()]
    held_gpus = held.select(pl.col("gpu").unique().implode(), pl.col("node").unique().implode())
    gpus, nodes = held_gpus.row(0)
    inside = pl.col("t").is_between(first, last - timedelta(microseconds=1))
    try:
        with lake_errors(lake.uri(GPU_SAMPLES)):
            rows = lake.scan(GPU_SAMPLES, days).filter(
                inside, pl.col("node").is_in(nodes), pl.col("gpu").is_in(gpus)
            )
            samples = resolve(rows.collect(), GPU_SAMPLES)[0]
    except NotFoundError:  # the viewer may not see samples of other jobs
        return None
    mine = samples.join(held, on=_GPU).filter(
        pl.col("t") >= pl.col("start"), pl.col("t") < pl.col("end")
    )
    mean: float | None = mine.select(pl.col("gpu_util").mean()).item()
    return mean
