"""Content of the lake: clusters, rows, spans, bytes, gaps per node, rejects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl

from tachograph.catalog.tables import (
    DEVICES,
    GPU_SAMPLES,
    JOB_SUMMARIES,
    JOBS,
    REJECTS,
    TIME,
    LakeTable,
)
from tachograph.lake.data_files import DataFile, row_count, span_of
from tachograph.lake.delta import Lake
from tachograph.lake.log_files import files_below
from tachograph.lake.partitions import partitions, read_partition
from tachograph.lake.places import in_accounting, read_same_clusters
from tachograph.lake.retention import EXPIRING, kept_days
from tachograph.lake.store import is_remote

# Days, from which a rate is computed: the last sample of a day is an interval before midnight.
WHOLE_DAY = 0.99
GAP_INTERVALS = 3.0  # more sampling intervals without a sample are a gap


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Rows and files of a table that readers see, their bytes, first and last time.

    Each row of `devices` counts once.
    """

    table: str
    rows: int
    files: int
    bytes: int
    first: datetime | None
    last: datetime | None

    @property
    def bytes_per_row(self) -> float | None:
        """Bytes per row; None for an empty table."""
        return self.bytes / self.rows if self.rows else None


def describe_tables(lake: Lake, tables: Iterable[LakeTable]) -> list[TableFacts]:
    """Return the facts of each table from its log alone; of `devices`, count devices, not rows."""
    facts = []
    for table in tables:
        if lake.delta(table) is None:
            continue
        files = lake.files(table)
        first, last = span_of(files)
        # A device is noted again and again.
        rows = lake.latest(table).height if table is DEVICES else row_count(files)
        facts.append(
            TableFacts(
                table.name,
                rows,
                len(files),
                sum(file.size for file in files),
                first,
                last,
            )
        )
    return facts


@dataclass(frozen=True, slots=True)
class TableSpace:
    """Space of a table, and its expected growth at the current rate.

    rows, bytes: that a reader sees. other_bytes: of replaced files until the vacuum, and of the
    log; null: the lake is no folder. days: with rows, no more than between the first and the last;
    of a table without days those of its jobs. Expected: in a year if nothing were removed, and of
    what [retention] keeps; null: less than a day, or for ever.
    """

    table: str
    rows: int
    bytes: int
    other_bytes: int | None
    days: float | None
    bytes_per_day: float | None
    expected_year_bytes: float | None
    retention_days: int | None
    expected_kept_bytes: float | None


def describe_space(
    lake: Lake, tables: Iterable[LakeTable], keep: Mapping[str, int]
) -> list[TableSpace]:
    """Return the space of each table; `keep`: {key of [retention]: days}.

    Devices do not grow by day.
    """
    spans = {table.name: _days_of_jobs(lake, [table]) for table in (JOBS, JOB_SUMMARIES)}
    accounted = _days_of_jobs(lake, [JOBS, JOB_SUMMARIES])
    spaces = []
    for table in tables:
        if lake.delta(table) is None:
            continue
        files = lake.files(table)
        current_bytes = sum(file.size for file in files)
        if table is DEVICES:
            days = None
        elif table.by_day:
            days = _days_of(files)
        elif table in EXPIRING[JOBS.name]:
            days = spans[JOBS.name]
        elif "job_key" in table.schema:
            days = spans[JOB_SUMMARIES.name]
        else:
            days = accounted
        a_day = current_bytes / days if days is not None and days >= WHOLE_DAY else None
        retention_days = kept_days(table, keep)
        a_year = expected_kept = None
        if a_day is not None:
            a_year = a_day * 365
            expected_kept = None if retention_days is None else a_day * retention_days
        spaces.append(
            TableSpace(
                table.name,
                row_count(files),
                current_bytes,
                _other_bytes(lake, table, current_bytes),
                days,
                a_day,
                a_year,
                retention_days,
                expected_kept,
            )
        )
    return spaces


def _days_of(files: Sequence[DataFile]) -> float | None:
    """Number of days with rows, at most the days from first to last row."""
    first, last = span_of(files)
    if first is None or last is None:
        return None
    span = (last - first).total_seconds() / 86400
    return min(span, float(len({file.day for file in files if file.day is not None})))


def _days_of_jobs(lake: Lake, tables: Iterable[LakeTable]) -> float | None:
    """Days from the first start to the last start or end of jobs in some tables."""
    jobs = pl.concat([lake.latest(table, ("start", "end")) for table in tables])
    first, last = jobs.select(
        first=pl.col("start").min(), last=pl.max_horizontal(pl.col("start", "end").max())
    ).row(0)
    if first is None or last is None:
        return None
    return float((last - first).total_seconds()) / 86400


def _other_bytes(lake: Lake, table: LakeTable, current_bytes: int) -> int | None:
    """Return bytes in a table's folder besides current files; files may vanish."""
    if is_remote(lake.location):
        return None
    total = 0
    for path in files_below(Path(lake.uri(table))):
        with suppress(OSError):
            total += path.stat().st_size
    return max(0, total - current_bytes)


def describe_nodes(
    lake: Lake,
    progress: Callable[[str, int, int], None] | None = None,
    *,
    within: timedelta | None = None,
) -> pl.DataFrame:
    """Return one row per node: GPUs, samples, span, sampling interval (s), gaps, longest gap.

    A gap is more than three sampling intervals without a sample of a GPU; a node's are those of its
    GPU with the most time in gaps. One partition is in memory at a time. `within`: only the days so
    long before the last one.
    """
    parts = list(partitions(lake, GPU_SAMPLES))
    if within is not None and parts:
        before = max(part.day for part in parts) - within
        parts = [part for part in parts if part.day > before]
    pieces = []
    for count, part in enumerate(parts):
        frame, _ = read_partition(lake, GPU_SAMPLES, part, [*_GPU, "t"])
        distance = (pl.col("t").diff().dt.total_microseconds() / 1e6).over(_GPU)
        timed = frame.with_columns(d=distance).with_columns(typical=pl.col("d").median().over(_GPU))
        is_gap = pl.col("d") > GAP_INTERVALS * pl.col("typical")
        pieces.append(
            timed.group_by(_GPU).agg(
                pl.len().alias("samples"),
                pl.col("t").min().alias("first"),
                pl.col("t").max().alias("last"),
                pl.col("typical").first(),
                is_gap.sum().alias("gaps"),
                pl.col("d").filter(is_gap).max().alias("longest"),
                pl.col("d").filter(is_gap).sum().alias("silence"),
            )
        )
        if progress:
            progress("find gaps", count + 1, len(parts))
    return _by_node(pl.concat(pieces)) if pieces else pl.DataFrame(schema=_NODES)


_GPU = DEVICES.key
_NODES = {
    "node": pl.String(), "cluster": pl.String(), "gpus": pl.Int64(), "samples": pl.Int64(), "first": TIME, "last": TIME,
    "interval_s": pl.Float64(), "gaps": pl.Int64(), "longest_gap_s": pl.Float64(), "silence_s": pl.Float64(),
}  # fmt: skip


def _by_node(pieces: pl.DataFrame) -> pl.DataFrame:
    """Days of a GPU put together, gaps across midnight included; then GPUs of a node."""
    ordered = pieces.sort(*_GPU, "first")
    across = ((pl.col("first") - pl.col("last").shift(1)).dt.total_microseconds() / 1e6).over(_GPU)
    ordered = ordered.with_columns(across=across, usual=pl.col("typical").median().over(_GPU))
    is_gap = pl.col("across") > GAP_INTERVALS * pl.col("usual")
    gpus = ordered.group_by(_GPU).agg(
        pl.col("samples").sum(), pl.col("first").min(), pl.col("last").max(), pl.col("usual").first(),
        (pl.col("gaps").sum() + is_gap.sum()).alias("gaps"),
        pl.max_horizontal(pl.col("longest").max(), pl.col("across").filter(is_gap).max()).alias("longest"),
        (pl.col("silence").sum() + pl.col("across").filter(is_gap).sum()).alias("silence"),
    )  # fmt: skip
    return (
        gpus.group_by("node", "cluster")
        .agg(
            gpus=pl.len(),
            samples=pl.col("samples").sum(),
            first=pl.col("first").min(),
            last=pl.col("last").max(),
            interval_s=pl.col("usual").median(),
            gaps=pl.col("gaps").max(),
            longest_gap_s=pl.col("longest").max(),
            silence_s=pl.col("silence").max(),
        )
        .select(pl.col(name).cast(dtype) for name, dtype in _NODES.items())
        .sort("node", "cluster")
    )


def describe_clusters(lake: Lake) -> pl.DataFrame:
    """Return one row per cluster, null: not recorded: `jobs`, `nodes` and `gpus` known of it.

    No rows unless several clusters are recorded.
    """
    jobs = lake.latest(JOBS, ("cluster", "end")).group_by("cluster").agg(jobs=pl.len())
    gpus = pl.struct("node", "gpu").n_unique()
    devices = in_accounting(lake.latest(DEVICES), read_same_clusters(lake))
    units = devices.group_by("cluster").agg(nodes=pl.col("node").n_unique(), gpus=gpus)
    rows = jobs.join(units, on="cluster", how="full", coalesce=True, nulls_equal=True)
    return rows.sort("cluster") if rows["cluster"].drop_nulls().len() > 1 else rows.clear()


def describe_rejects(lake: Lake) -> pl.DataFrame:
    """Return one row per (target, reason, column): number of rejected rows or values, an
    example.
    """
    rows = lake.latest(REJECTS)
    return (
        rows.group_by("target", "reason", "column")
        .agg(
            pl.col("removed").sum(),
            pl.col("example").drop_nulls().first(),
            origins=pl.col("origin").n_unique(),
        )
        .sort("removed", "target", "reason", descending=[True, False, False])
    )
