"""What the data say about a site: the time zone of its accounting, partitions of whole nodes.

Both are proposals: nothing is changed by them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import polars as pl

from tachograph.catalog.config import SlurmOptions
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, GPU_SAMPLES, JOBS
from tachograph.catalog.units import plural
from tachograph.lake.delta import Lake
from tachograph.lake.problems import lake_errors
from tachograph.lake.query import SampleReader
from tachograph.sources.slurm.partitions import gives_whole_nodes

# One name per set of clock rules in common use; of equal ones the first is proposed.
ZONES: Final = (
    "UTC", "Europe/Berlin", "Europe/London", "Europe/Helsinki", "Europe/Istanbul",
    "America/New_York", "America/Chicago", "America/Denver", "America/Los_Angeles",
    "America/Phoenix", "America/Anchorage", "America/Halifax", "America/St_Johns",
    "America/Sao_Paulo", "Pacific/Honolulu", "Asia/Dubai", "Asia/Tehran", "Asia/Karachi",
    "Asia/Kolkata", "Asia/Kathmandu", "Asia/Dhaka", "Asia/Bangkok", "Asia/Shanghai",
    "Asia/Tokyo", "Australia/Adelaide", "Australia/Brisbane", "Australia/Sydney",
    "Pacific/Auckland", "Africa/Johannesburg",
)  # fmt: skip
LEAST_JOBS: Final = 5  # fewer are no evidence
MOST_JOBS: Final = 1000  # the latest ones of MOST_NODES nodes: no more of a lake is read
MOST_NODES: Final = 32
FARTHEST: Final = timedelta(hours=14)  # of a zone from UTC
SILENCE: Final = timedelta(minutes=10)  # longer than an interval of samples
BUSY: Final = 0.05  # of a utilisation: above what an idle GPU reports
_UTILISATIONS = ("gpu_util", "gr_engine_active", "sm_active")
_RUN, _MOMENTS = ["cluster", "job_id"], ["submit", "start", "end"]
QUARTER: Final = timedelta(minutes=15)  # clocks of two zones differ by whole ones
_BEFORE, _AFTER = timedelta(minutes=1), timedelta(minutes=5)  # of work around the start of its job
_HANDOVER = timedelta(minutes=1)  # two jobs on a node for longer share it
_NAME = re.compile(r"[\w.+-]{1,64}")  # others could be patterns, or more than a name


@dataclass(frozen=True, slots=True)
class ZoneEvidence:
    """A zone in which `fitting` of `jobs` jobs start with GPU work, `now_fitting` in the present
    one.
    """

    zone_name: str
    fitting: int
    now_fitting: int
    jobs: int
    present: str

    @property
    def sentence(self) -> str:
        """How many jobs fit, in both zones."""
        return (
            f"{self.fitting} of {plural(self.jobs, 'job')} start with GPU work if their times are "
            f"of {self.zone_name}, {self.now_fitting} if of {self.present}"
        )


@dataclass(frozen=True, slots=True)
class WholeNodeEvidence:
    """A partition or QOS: `whole` of its `jobs` jobs had whole nodes, none had a part of one."""

    name: str
    whole: int
    jobs: int


@dataclass(frozen=True, slots=True)
class EarlierZone:
    """The zone in which a lake has `jobs` of `known` jobs of a file; zone_name None: not known."""

    zone_name: str | None
    later_s: float  # the times of the first of these jobs in the lake
    jobs: int
    known: int


def earlier_zone_in(lake: Lake, jobs: pl.DataFrame, zone_name: str) -> EarlierZone | None:
    """Return the `earlier_zone` of rows of `jobs` that a lake has; None where columns are absent.

    Errors: LakeError.
    """
    if not {*_RUN, *_MOMENTS} <= set(jobs.columns):
        return None  # of a recording, or a table of a site: not what sacct prints
    with lake_errors(lake.uri(JOBS)):
        named = lake.read_named(JOBS, jobs["job_id"].drop_nulls().unique().to_list())
        recorded = named.select(*_RUN, *_MOMENTS).collect()
    return earlier_zone(jobs, recorded, zone_name)


def earlier_zone(read: pl.DataFrame, recorded: pl.DataFrame, zone_name: str) -> EarlierZone | None:
    """Return in which other zone than `zone_name` recorded jobs were read before, if they were.

    read, recorded: cluster, job_id, submit, start, end. A job was if no record of it has the submit
    time of a recorded one, and all times of one are shifted by the same quarters of hours; more
    than a tenth of the recorded jobs are needed: a run that is requeued may be shifted so by
    chance.
    """
    pairs = read.select(*_RUN, *_MOMENTS).join(recorded, on=_RUN, nulls_equal=True, suffix="_known")
    submit, start, end = (pl.col(f"{name}_known") - pl.col(name) for name in _MOMENTS)
    seconds = start.dt.total_seconds()
    pairs = pairs.with_columns(
        seconds=seconds,
        is_same=submit == timedelta(0),
        is_shifted=(submit == start)
        & (end == start).fill_null(value=True)
        & (seconds % int(QUARTER.total_seconds()) == 0)
        & (seconds.abs() <= 2 * FARTHEST.total_seconds()),
    )
    jobs_in_both = pairs.group_by(_RUN).agg(pl.col("is_same", "is_shifted").any())
    shifted = jobs_in_both.filter(pl.col("is_shifted") & ~pl.col("is_same"))
    if 10 * shifted.height <= jobs_in_both.height:
        return None
    rows = pairs.filter("is_shifted").join(shifted, on=_RUN, how="semi", nulls_equal=True)
    written = rows.sort("start").with_columns(_on_clocks(zone_name))
    fits = {
        name: (_read_in(written, name)["start"] == written["start_known"]).sum() for name in ZONES
    }
    best = max(ZONES, key=lambda name: fits[name])
    later_s = written.item(0, "seconds")
    return EarlierZone(best if fits[best] else None, later_s, shifted.height, jobs_in_both.height)


def zone_evidence(lake: Lake, zone_name: str) -> ZoneEvidence | None:
    """Return another zone than `zone_name` that fits the jobs of a lake much better, or None.

    Errors: LakeError.
    """
    nodes = lake.latest(ALLOCATIONS, ("job_id", "node")).unique()
    jobs = lake.latest(JOBS, ("cluster", "job_id", "submit", "start")).drop_nulls("start")
    span = SampleReader(lake).span
    if nodes.is_empty() or jobs.is_empty() or span is None:
        return None
    first, last = span
    near = pl.col("start").is_between(first - FARTHEST, last + FARTHEST)
    stays = jobs.filter(near).with_row_index("run").join(nodes, on="job_id")
    nodes_read = stays["node"].unique().sort().head(MOST_NODES)
    of_nodes = stays.filter(pl.col("node").is_in(nodes_read.implode()))
    latest = of_nodes.sort("start").tail(MOST_JOBS)
    if latest.is_empty():
        return None
    onsets = pl.concat([_onsets_of_node(lake, rows) for rows in latest.partition_by("node")])
    sampled = latest.select("run", "node", "start").join(onsets, on="node", how="semi")
    return None if sampled.is_empty() else best_zone(sampled, onsets, zone_name)


def _onsets_of_node(lake: Lake, stays: pl.DataFrame) -> pl.DataFrame:
    """Return the `work_onsets` of the node of these stays, around them."""
    begin, end = stays.select(first=pl.col("start").min(), last=pl.col("start").max()).row(0)
    with lake_errors(lake.uri(GPU_SAMPLES)):
        samples = (
            lake.scan(GPU_SAMPLES)
            .filter(
                pl.col("node") == stays["node"][0],
                pl.col("t").is_between(begin - FARTHEST, end + FARTHEST),
            )
            .select("node", "gpu", "t", util=pl.max_horizontal(*_UTILISATIONS))
            .collect()
        )
    return work_onsets(samples)


def work_onsets(samples: pl.DataFrame) -> pl.DataFrame:
    """Return when GPUs began to work, one row per (node, t), sorted by t.

    samples: node, gpu, t, util (null: not measured). A GPU begins to work with its first sample
    after SILENCE, as in an export of one job, and with the first busy sample after an idle one.
    """
    of_gpu = samples.sort("node", "gpu", "t").with_columns(
        busy=(pl.col("util") >= BUSY).fill_null(value=False)
    )
    before = pl.col("t").shift(1).over("node", "gpu")
    was_busy = pl.col("busy").shift(1).over("node", "gpu")
    begins = before.is_null() | (pl.col("t") - before > SILENCE) | (pl.col("busy") & ~was_busy)
    return of_gpu.filter(begins).select("node", "t").unique().sort("t")


def best_zone(
    starts: pl.DataFrame, onsets: pl.DataFrame, zone_name: str, zones: Sequence[str] = ZONES
) -> ZoneEvidence | None:
    """Return the zone in which most jobs start with GPU work, or None if that is not clear.

    starts: run, node, start as read in `zone_name`. It is clear if at least LEAST_JOBS and half of
    all jobs fit, and no zone of another offset, the present one included, fits half as many.
    """
    written = starts.with_columns(_on_clocks(zone_name))
    read_as = {name: _read_in(written, name) for name in dict.fromkeys((zone_name, *zones))}
    fits = {name: _fitting(rows, onsets) for name, rows in read_as.items()}
    best = max(fits, key=lambda name: fits[name].len())  # the first of equal ones
    mine = pl.col("run").is_in(fits[best].implode())
    expected = read_as[best].filter(mine)["start"]
    others = [
        fits[name].len()
        for name, rows in read_as.items()
        if not rows.filter(mine)["start"].equals(expected)
    ]
    count, jobs = fits[best].len(), starts["run"].n_unique()
    is_clear = 2 * max(others, default=0) < count and 2 * fits[zone_name].len() < count
    if count < max(LEAST_JOBS, jobs / 2) or not is_clear:
        return None
    return ZoneEvidence(best, count, fits[zone_name].len(), jobs, zone_name)


def _on_clocks(zone_name: str) -> pl.Expr:
    """Starts as clocks of a zone show them."""
    return pl.col("start").dt.convert_time_zone(zone_name).dt.replace_time_zone(None)


def _read_in(written: pl.DataFrame, zone_name: str) -> pl.DataFrame:
    """Return the starts as they are if clocks showed them in a zone, in UTC."""
    local = pl.col("start").dt.replace_time_zone(
        zone_name, ambiguous="earliest", non_existent="null"
    )
    return written.with_columns(start=local.dt.convert_time_zone("UTC"))


def _fitting(starts: pl.DataFrame, onsets: pl.DataFrame) -> pl.Series:
    """Runs with an onset on one of their nodes close to their start."""
    from_start = starts.drop_nulls("start").with_columns(t=pl.col("start") - _BEFORE).sort("t")
    matched = from_start.join_asof(
        onsets.with_columns(onset="t"), on="t", by="node", strategy="forward",
        tolerance=_BEFORE + _AFTER, check_sortedness=False,
    )  # fmt: skip
    return matched.drop_nulls("onset")["run"].unique()


def whole_node_evidence(lake: Lake, slurm: SlurmOptions) -> list[WholeNodeEvidence]:
    """Return partitions and QOS whose jobs had whole nodes, where the configuration has none.

    Errors: LakeError.
    """
    columns = (
        "cluster",
        "job_id",
        "submit",
        "start",
        "end",
        "partition",
        "qos",
        "gpus",
        "nodes",
        "cpus",
    )
    jobs = lake.latest(JOBS, columns).drop_nulls(("start", "end"))
    nodes = lake.latest(ALLOCATIONS, ("job_id", "node")).unique()
    gpus = lake.latest(DEVICES, ("node", "gpu")).unique()
    gpus_of_nodes = gpus.group_by("node").agg(node_gpus=pl.len())
    stays = jobs.with_row_index("run").join(nodes, on="job_id")
    return whole_node_names(stays.join(gpus_of_nodes, on="node", how="left"), slurm)


def whole_node_names(stays: pl.DataFrame, slurm: SlurmOptions) -> list[WholeNodeEvidence]:
    """Return the names whose jobs had whole nodes.

    stays: one row per run and node. A run had whole nodes if it was alone on them and had all
    their GPUs; where its GPUs are not known, if it had as many CPUs per node as any, and others
    had less. A single run with a part of a node refutes its partition and its QOS.
    """
    runs = _run_verdicts(stays)
    decided = [
        gives_whole_nodes(slurm, {}, partition=partition, qos=qos) is not None
        for partition, qos in runs.select("partition", "qos").iter_rows()
    ]
    runs = runs.filter(~pl.Series("known", decided, dtype=pl.Boolean))
    proposals: list[WholeNodeEvidence] = []
    for column in ("partition", "qos"):
        of_names = (
            runs.drop_nulls(column)
            .group_by(column, maintain_order=True)
            .agg(pl.col("whole").sum(), pl.col("part").sum(), pl.len())
        )
        for name, whole, part, jobs in of_names.iter_rows():
            if whole >= LEAST_JOBS and not part and _NAME.fullmatch(name):
                proposals.append(WholeNodeEvidence(name, whole, jobs))
                runs = runs.filter(pl.col(column).ne_missing(name))
    return proposals


def _run_verdicts(stays: pl.DataFrame) -> pl.DataFrame:
    """One row per run: partition, qos, whole, part."""
    by_node = stays.sort("node", "start").with_columns(
        shares=(
            (pl.col("end").cum_max().shift(1) - pl.col("start") > _HANDOVER)
            | (pl.col("end") - pl.col("start").shift(-1) > _HANDOVER)
        )
        .over("node")
        .fill_null(value=False),
        cpus_per_node=pl.col("cpus") / pl.col("nodes"),
    )
    runs = by_node.group_by("run").agg(
        pl.col("partition", "qos", "gpus", "cpus_per_node", "cluster").first(),
        pl.col("shares").any(),
        all_gpus=pl.when(pl.col("node_gpus").is_not_null().all()).then(pl.col("node_gpus").sum()),
    )
    most_cpus = pl.col("cpus_per_node").max().over("cluster")
    fewest_cpus = pl.col("cpus_per_node").min().over("cluster")
    has_all_cpus = (pl.col("cpus_per_node") == most_cpus) & (fewest_cpus < most_cpus)
    has_less = (
        pl.when(pl.col("gpus").is_null())
        .then(pl.col("cpus_per_node") < most_cpus)
        .otherwise(pl.col("gpus") < pl.col("all_gpus"))
    )
    has_all = (
        pl.when(pl.col("gpus").is_null())
        .then(has_all_cpus)
        .otherwise(pl.col("gpus") == pl.col("all_gpus"))
    )
    return runs.sort("run").select(
        "partition",
        "qos",
        whole=(has_all & ~pl.col("shares")).fill_null(value=False),
        part=(has_less.fill_null(value=False) | pl.col("shares")),
    )
