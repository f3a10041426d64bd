"""Chunks: rows from a source, and the rows and values that were removed from them.

A source never guesses a value. It is added by one file and one line in `sources.registry.SOURCES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    import polars as pl


# DCGM's marks for "no value" (dcgm_structs.h): blank, not found, not supported, not permitted
INT32_BLANKS = tuple(range(0x7FFFFFF0, 0x7FFFFFF4))
INT64_BLANKS = (
    *range(0x7FFFFFFFFFFFFFF0, 0x7FFFFFFFFFFFFFF4),
    9223372036854775794,
    9223372036854775795,
)
FP64_BLANKS = tuple(140737488355328.0 + code for code in range(4))
TEXT_BLANKS = (
    "",
    "N/A",
    "<<<NULL>>>",
    "<<<NOT_FOUND>>>",
    "<<<NOT_SUPPORTED>>>",
    "<<<NOT_PERM>>>",
    "ERROR - FAILED TO CONVERT TO STRING",
)
BLANK_FLOATS = tuple(sorted({*map(float, INT32_BLANKS), *map(float, INT64_BLANKS), *FP64_BLANKS}))


CLAMPED: Final = "clamped"  # the reason of values that were set to the end of their range
SLICE_ABOVE_ONE: Final = "slice_above_one"  # of ratios of MIG slices that are kept above 1
# reasons that remove nothing
NOT_REMOVED: Final = frozenset(
    {
        CLAMPED,
        SLICE_ABOVE_ONE,
        "index_contradicts_uuid",
        "contradicting_numbers",
        "job_of_steps",
        "server_warning",
    }
)

# What a mapping does not name; `column` is its name. Of the last one another column is read, which
# has the same meaning: the example names that.
UNMAPPED: Final = ("unmapped_metric", "unmapped_column", "same_meaning")


@dataclass(frozen=True, slots=True)
class Reject:
    """Rows or values removed for one reason, or counted (NOT_REMOVED). `column` None: rows."""

    reason: str
    column: str | None
    count: int
    example: str | None = None


# sentences: rows that were read and neither stored nor rejected
PASSED: Mapping[str, str] = MappingProxyType(
    {"no_gpus": "jobs that hold no GPUs", "facts": "values that describe devices or name jobs"}
)

GpuNumbering = Literal["nvml_index", "minor_number"]  # columns of `devices`

# Between a node and its cluster, where one name stands for both. It is less than any character of a
# name, so names with clusters have the order of (node, cluster); no name has two of them together.
CLUSTER_MARK: Final = "\0\0"


class NumberedGpu(NamedTuple):
    """A GPU with its number in a part's rows. `numbering`: the scheme; None: the site's own.

    `node`: with its cluster behind CLUSTER_MARK, if labels name one. `times`: when labels named it
    first and last; None: when there are rows.
    """

    node: str
    gpu: int
    mig: int | None
    uuid: str | None
    pci: str | None
    numbering: GpuNumbering | None
    times: tuple[datetime, datetime] | None = None


@dataclass(frozen=True, slots=True)
class ChunkPart:
    """Rows of one table: contract column names, in the given units or the contract's.

    `rejects` are rows that the reader itself rejects (a line that does not parse, a time that does
    not exist). `overlaps`: some of the rows may have been read before; only those that add to the
    lake are committed. `counted`: all were read before, and what is removed from them was counted
    then. `rows_used`: rows of the input that these rows were made of, where one row is not one row.
    `gpus`: the GPUs of labels; a row of one that the lake has by its UUID at another index gets
    that index.
    """

    table: str
    frame: pl.DataFrame
    units: Mapping[str, str] = field(default_factory=dict)
    rejects: tuple[Reject, ...] = ()
    overlaps: bool = False
    counted: bool = False
    rows_used: int | None = None
    gpus: tuple[NumberedGpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Atomic unit of a commit; the same input always has the same `id`.

    A chunk with a `watermark` is a part of a stream that never ends: `id` is the stream's,
    everything up to the watermark has been read, and the chunk is committed only where the stream
    has not got that far yet. `since`: the watermark from which it was read on, where known; of a
    chunk whose stream has got further meanwhile only what is new is committed. `passed`: rows of
    PASSED by reason; with them `rows_read` is the sum of the rows committed, merged and rejected.
    `unread`: lines that are not among them, of metrics that no mapping names, by metric.
    """

    id: str
    source: str
    origin: str
    parts: tuple[ChunkPart, ...]
    rows_read: int
    watermark: datetime | None = None
    since: datetime | None = None
    passed: Mapping[str, int] = field(default_factory=dict)
    unread: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The id; of a stream with the watermark."""
        return self.id if self.watermark is None else f"{self.id}@{self.watermark.isoformat()}"


def next_watermark(now: datetime, *, before: datetime | None) -> datetime:
    """Return a watermark for what is read `now` that is later than the one `before`.

    A clock that was set back must not make new rows look committed already.
    """
    return now if before is None else max(now, before + timedelta(microseconds=1))


@dataclass(frozen=True, slots=True)
class PendingChunk:
    """A chunk to fetch only if the lake lacks it: `fetch` returns the chunk `id`."""

    id: str
    source: str
    origin: str
    fetch: Callable[[], Chunk]


def with_cluster_column(part: ChunkPart) -> ChunkPart:
    """Return a part with the clusters that CLUSTER_MARK names in a column of their own."""
    import polars as pl

    rejects = tuple(
        replace(reject, example=(reject.example or "").replace(CLUSTER_MARK, " of ") or None)
        for reject in part.rejects
    )
    if "node" not in part.frame.columns:
        return replace(part, rejects=rejects)
    names = pl.col("node").str.split_exact(CLUSTER_MARK, 1).struct
    cluster = pl.coalesce(names.field("field_1"), pl.col("^cluster$"))
    frame = part.frame.with_columns(node=names.field("field_0"), cluster=cluster)
    return replace(part, frame=frame, rejects=rejects)


AnyChunk = TypeVar("AnyChunk", Chunk, PendingChunk)


def of_cluster(chunk: AnyChunk, cluster: str) -> AnyChunk:
    """Return a chunk whose rows are of `cluster`, where they name none; "" changes nothing.

    A file of another cluster with the same content is another chunk.
    """
    if not cluster:
        return chunk
    name = f"{chunk.id}@{cluster}"
    if isinstance(chunk, PendingChunk):
        return replace(chunk, id=name, fetch=lambda: of_cluster(chunk.fetch(), cluster))
    if chunk.watermark is not None:
        name = chunk.id
    return replace(
        chunk, id=name, parts=tuple(_part_of_cluster(part, cluster) for part in chunk.parts)
    )


def _part_of_cluster(part: ChunkPart, cluster: str) -> ChunkPart:
    import polars as pl

    if not {"node", "job_id"} & {*part.frame.columns}:  # no rows, or what ingest removed
        return part
    named = pl.lit(cluster)
    if "cluster" in part.frame.columns:
        named = pl.coalesce(pl.col("cluster").cast(pl.String), named)
    gpus = tuple(
        gpu if CLUSTER_MARK in gpu.node else gpu._replace(node=f"{gpu.node}{CLUSTER_MARK}{cluster}")
        for gpu in part.gpus
    )
    return replace(part, frame=part.frame.with_columns(cluster=named), gpus=gpus)


def rename_nodes(chunk: AnyChunk, aliases: Mapping[str, str]) -> AnyChunk:
    """Return a chunk with other names of nodes: {name that its source writes: ours}."""
    if not aliases:
        return chunk
    if isinstance(chunk, PendingChunk):
        return replace(chunk, fetch=lambda: rename_nodes(chunk.fetch(), aliases))
    return replace(chunk, parts=tuple(_part_of_nodes(part, aliases) for part in chunk.parts))


def _part_of_nodes(part: ChunkPart, aliases: Mapping[str, str]) -> ChunkPart:
    import polars as pl

    if "node" not in part.frame.columns:
        return part
    gpus = []
    for gpu in part.gpus:
        name, mark, cluster = gpu.node.partition(CLUSTER_MARK)
        gpus.append(gpu._replace(node=f"{aliases.get(name, name)}{mark}{cluster}"))
    renamed = pl.col("node").cast(pl.String).replace(dict(aliases))
    return replace(part, frame=part.frame.with_columns(renamed), gpus=tuple(gpus))


def counted(
    reason: str, column: str | None, mask: pl.Series, values: pl.Series
) -> tuple[Reject, ...]:
    """Return a reject that counts the rows in `mask`, with an example; none if there are no rows.

    >>> import polars as pl
    >>> counted("unreadable_time", None, pl.Series([True, False]), pl.Series(["x", "2026-01-01"]))
    (Reject(reason='unreadable_time', column=None, count=1, example='x'),)
    """
    count = int(mask.sum() or 0)
    return (Reject(reason, column, count, first_as_text(values.filter(mask))),) if count else ()


def chosen_cells(
    mask: pl.Series, values: pl.Series, otherwise: pl.Series | float | None = None
) -> pl.Series:
    """Return `values` where `mask` holds, elsewhere `otherwise`: null, a value, or a column.

    >>> import polars as pl
    >>> chosen_cells(pl.Series([True, False, None]), pl.Series([1, 2, 3])).to_list()
    [1, None, None]
    """
    import polars as pl

    cells = pl.select(pl.when(mask).then(values).otherwise(otherwise)).to_series()
    return cells.alias(values.name)


def first_as_text(values: pl.Series) -> str | None:
    """Return the first value as Python writes it, 200 characters at most; None for null.

    A time outside Python's years is written as Polars does.
    """
    try:
        value = values[0]
    except (ValueError, OverflowError):
        import polars as pl  # `nsight` and `live` load this module without it

        value = values.head(1).cast(pl.String)[0]
    return None if value is None else str(value)[:200]
