"""Where all installed GPU-hours went, read for a time: see judge/capacity.py."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import polars as pl

from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.tables import (
    ANALYSES,
    DEVICES,
    JOB_GPUS,
    JOBS,
    NODE_STATES,
    STATE_HOLDS_S,
    WAITING_JOBS,
)
from tachograph.judge.capacity import ACCOUNTED_COLUMNS, CapacityReport, build_capacity
from tachograph.judge.ledger import LEDGER_COLUMNS, in_ledger
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.problems import lake_errors
from tachograph.lake.query import read_consistently, read_rows, read_summaries, read_where
from tachograph.pipeline.gpu_inventory import gpu_facts, inventory
from tachograph.sources.slurm.fields import expand_nodes

INSTALLED_FOR_S = 30 * 86_400.0  # a node that no poll saw for longer is not installed any more


def read_capacity(
    lake: Lake, configuration: Configuration, selection: JobFilter
) -> CapacityReport | None:
    """Return where all installed GPU-hours went in the time of a filter.

    None where the filter chooses jobs by anything else, and where no node was polled.
    """
    if (
        selection != JobFilter(since=selection.since, until=selection.until)
        or lake.version(NODE_STATES) < 0
    ):
        return None

    def read() -> CapacityReport | None:
        analyzed = lake.latest(ANALYSES).get_column("as_of").max()
        if not isinstance(analyzed, datetime):
            return None
        until = (
            analyzed if selection.until is None else min(analyzed, selection.until.astimezone(UTC))
        )
        since = None if selection.since is None else selection.since.astimezone(UTC)
        columns = tuple(dict.fromkeys((*LEDGER_COLUMNS, "gpu_share", "seq")))
        states = _states(lake, since, until)
        jobs = read_summaries(lake, columns, where=_held_since(since, until, states))
        jobs = jobs.with_columns(in_ledger=in_ledger())
        waited = pl.lit(value=True) if since is None else pl.col("start") > since
        accounted = _accounted(lake, waited & (pl.col("eligible") < until))
        units = gpu_facts(inventory(lake.latest(DEVICES), configuration.nodes))[0]
        named = units.drop_nulls("gpu_model").unique("node", keep="first")
        return build_capacity(
            states,
            read_where(lake, WAITING_JOBS, _overlaps(since, until)),
            accounted,
            jobs,
            _held(lake, jobs),
            models=dict(named.select("node", "gpu_model").iter_rows()),
            since=since,
            until=until,
            zone_name=configuration.site.time_zone,
        )

    return read_consistently(lake, read)


def require_capacity(
    lake: Lake, configuration: Configuration, selection: JobFilter
) -> CapacityReport:
    """Return what `read_capacity` does.

    Errors: NotFoundError with the reason where that is None.
    """
    report = read_capacity(lake, configuration, selection)
    if report is not None:
        return report
    if selection != JobFilter(since=selection.since, until=selection.until):
        what = "installed GPU-hours are of all jobs, not of some"
        raise NotFoundError(what, do="choose by --since and --until alone")
    if lake.version(NODE_STATES) < 0:
        what = "no states of nodes are recorded, so that installed GPUs are not known"
        do = "add [[sources]] slurm-nodes and run `tachograph collect` (docs/capacity.md)"
        raise NotFoundError(what, where=lake.location, do=do)
    if lake.latest(ANALYSES).is_empty():
        what = "states of nodes are recorded, but nothing is analyzed yet"
        raise NotFoundError(what, where=lake.location, do="run `tachograph analyze`")
    what = "no state of a node with GPUs is recorded in this time"
    raise NotFoundError(what, where=lake.location, do="choose another --since or --until")


def _overlaps(since: datetime | None, until: datetime, *, before_s: float = 0.0) -> pl.Expr:
    """Return whether a row was so in a time, or ended less than `before_s` before it."""
    begun = pl.col("start") <= until
    if since is None:
        return begun
    first = since - timedelta(seconds=before_s)
    return begun & (pl.col("end").is_null() | (pl.col("end") >= first))


def _states(lake: Lake, since: datetime | None, until: datetime) -> pl.DataFrame:
    """Return states of nodes in a time, and the last poll of each before it: it was installed."""
    rows = read_where(lake, NODE_STATES, _overlaps(since, until, before_s=INSTALLED_FOR_S))
    if since is None:
        return rows
    is_past = (pl.col("end") < since - timedelta(seconds=STATE_HOLDS_S)).fill_null(value=False)
    past = rows.filter(is_past, provenance="poll").sort("end")
    return pl.concat([past.unique(["node", "cluster"], keep="last"), rows.filter(~is_past)])


def _held_since(since: datetime | None, until: datetime, states: pl.DataFrame) -> pl.Expr:
    """Return which jobs held GPUs in a time, or when a poll began that still held then."""
    if since is None:
        return _overlaps(None, until)
    holding = states.filter(
        pl.col("gpus_held") > 0, _overlaps(since, until, before_s=STATE_HOLDS_S)
    )
    earliest = holding.get_column("start").min()
    first = min(since, earliest) if isinstance(earliest, datetime) else since
    return _overlaps(first, until)


def _accounted(lake: Lake, waited: pl.Expr) -> pl.DataFrame:
    """Return ACCOUNTED_COLUMNS of jobs that waited then."""
    columns = lake.scan(JOBS).filter(waited, pl.col("gpus") > 0).select("job_id")
    with lake_errors(lake.uri(JOBS)):
        ids = columns.unique().collect(engine="streaming").to_series()
    rows = read_where(lake, JOBS, pl.col("job_id").is_in(ids.implode()))
    return rows.select(ACCOUNTED_COLUMNS)


def _held(lake: Lake, jobs: pl.DataFrame) -> pl.DataFrame:
    """Return (job_key, node, node_gpus, last_t): GPUs that jobs held on their nodes.

    Of jobs with shares of GPUs it is the share. Of jobs whose GPUs are not known they are spread
    over the nodes that were accounted.
    """
    columns = ("job_key", "node", "gpu", "last_t")
    gpus_of_jobs = read_rows(lake, JOB_GPUS, jobs, columns)
    gpus = pl.col("node_gpus")
    of_share = pl.col("gpu_share") * gpus / gpus.sum().over("job_key")
    by_node = (
        gpus_of_jobs.group_by("job_key", "node")
        .agg(node_gpus=pl.col("gpu").n_unique().cast(pl.Float64), last_t=pl.col("last_t").max())
        .join(jobs.select("job_key", "gpu_share"), on="job_key", how="left")
        .with_columns(node_gpus=pl.coalesce(of_share, gpus))
        .drop("gpu_share")
    )
    others = jobs.filter(pl.col("gpus") > 0).join(by_node, on="job_key", how="anti")
    of_ids = pl.col("job_id").is_in(others.get_column("job_id").unique().implode())
    accounted = read_where(lake, JOBS, of_ids)
    begun = pl.col("submit").dt.epoch("s")
    key = pl.concat_str(pl.col("cluster").fill_null(""), "job_id", begun, separator=":")
    lists = accounted.select("node_list", job_key=key).drop_nulls()
    rows: list[tuple[object, ...]] = []
    for job_key, requested, written in (
        others.join(lists, on="job_key").select("job_key", "gpus", "node_list").iter_rows()
    ):
        nodes = expand_nodes(written)
        rows += [(job_key, node, requested / len(nodes), None) for node in nodes]
    spread = pl.DataFrame(rows, schema=by_node.schema, orient="row")
    return pl.concat([by_node, spread])
