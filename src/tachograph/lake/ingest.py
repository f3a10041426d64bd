"""Ingest: conform each part of a chunk, commit it once, count rejects."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from itertools import product
from typing import TypeAlias

import polars as pl

from tachograph.catalog.chunks import (
    CLUSTER_MARK,
    Chunk,
    ChunkPart,
    PendingChunk,
    Reject,
    with_cluster_column,
)
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import (
    DEVICES,
    GPU_SAMPLES,
    JOB_NODE_SAMPLES,
    NODE_SAMPLES,
    REJECTS,
    TABLES,
    LakeTable,
)
from tachograph.catalog.units import EPOCH, microseconds
from tachograph.lake.compact import count_merged
from tachograph.lake.conform import Conformed, conform, resolve
from tachograph.lake.delta import AppendResult, Lake
from tachograph.lake.numbering import NearSamples, SampledTimes, renumbered
from tachograph.lake.places import NodePlaces, cluster_pairs
from tachograph.lake.problems import lake_errors

BATCH_ROWS = 4_000_000  # of chunks that are committed together
DAY_ROWS = 8_000_000  # the same, of one day: committed apart, compaction would have to rewrite it
_BATCHED = (GPU_SAMPLES, NODE_SAMPLES, JOB_NODE_SAMPLES)
_Ends: TypeAlias = tuple[date, date, str, str]
_THERE = "there"
# The mark in the rejects that counts how often lost files of sources were given up.
_LOSSES = "losses"


def new_rows(lake: Lake, table: LakeTable, frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `frame` that add to the lake: a key it does not have, or another value.

    Grain: `frame` is in the table's schema without `seq`. A null adds nothing.
    Errors: LakeError when the table cannot be read.
    """
    if frame.is_empty() or lake.delta(table) is None:
        return frame
    key = list(table.key)
    values = [name for name in frame.columns if name not in key]
    stored = _known_rows(lake, table, frame).select(*key, *values, pl.lit(value=True).alias(_THERE))
    joined = frame.join(
        stored, on=key, how="left", nulls_equal=True, maintain_order="left", suffix="_known"
    )
    added = [
        pl.col(name).is_not_null() & pl.col(name).ne_missing(pl.col(f"{name}_known"))
        for name in values
    ]
    return joined.filter(
        pl.col(_THERE).is_null() | pl.any_horizontal(pl.lit(value=False), *added)
    ).select(frame.columns)


def _known_rows(lake: Lake, table: LakeTable, frame: pl.DataFrame) -> pl.DataFrame:
    """One row per key that `frame` may share; for samples only its days and times."""
    if not table.by_day:
        return lake.latest(table)
    times = frame.select(first=pl.col("t").min(), last=pl.col("t").max()).row(0)
    first, last = times
    files = [
        file
        for file in lake.files(table, frame["t"].dt.date().unique())
        if file.first is None or file.last is None or (file.first <= last and file.last >= first)
    ]
    with lake_errors(lake.uri(table)):
        rows = lake.read_files(table, files).filter(pl.col("t").is_between(first, last)).collect()
    return resolve(rows, table)[0]


@dataclass(slots=True)
class IngestReport:
    """Result of one run of `ingest`.

    `rows` are without duplicates: rows read are these, `duplicates`, `completing` or rejected.
    `completing`: rows with other counters of the same samples. Those of `devices` are devices,
    which several parts of a run may describe.
    """

    chunks: int = 0
    chunks_known: int = 0
    rows_read: int = 0
    # {table: rows committed}, without duplicates.
    rows: dict[str, int] = field(default_factory=dict)
    rejects: dict[tuple[str, str, str | None], int] = field(default_factory=dict)
    examples: dict[tuple[str, str, str | None], str] = field(default_factory=dict)
    duplicates: int = 0
    completing: int = 0
    # {table: (rows read, rows made of them)}.
    reshaped: dict[str, tuple[int, int]] = field(default_factory=dict)
    rows_known: int = 0  # of chunks that were in the lake already
    # Rows that are not stored, by reason.
    passed: Counter[str] = field(default_factory=Counter)
    unmapped: Counter[str] = field(default_factory=Counter)  # lines that are not read, by metric
    unread: dict[str, str] = field(default_factory=dict)  # {file: why it could not be read}
    # Keys of `rows`, where they are devices.
    devices: set[tuple[object, ...]] = field(default_factory=set)

    @property
    def rejected(self) -> int:
        """Values and rows removed."""
        return sum(self.rejects.values())


def ingest(
    lake: Lake,
    chunks: Iterable[Chunk | PendingChunk],
    *,
    now: datetime,
    progress: Callable[[Chunk], None] | None = None,
    check: Callable[[Chunk], None] | None = None,
    report: IngestReport | None = None,
) -> IngestReport:
    """Commit chunks to the lake; a chunk already there changes nothing.

    Adds to `report` if one is given. `check` raises InputError for a chunk to refuse.

    Each table takes its part of a chunk in one transaction named after the chunk; what was removed
    is written last, so a chunk is complete once its rejects are there, and an interrupted one is
    finished by the next run. The transactions of a stream carry its watermark, so rows and
    watermark are one commit. Errors: SchemaError for a chunk with unknown columns, of which nothing
    is committed; LakeError when it cannot be written.
    """
    report = report or IngestReport()
    losses = lake.mark(REJECTS, _LOSSES) or 0
    with ThreadPoolExecutor(1, "commit") as worker:
        queue = _CommitQueue(lake, now, report, worker)

        def sampled(node: str, first: datetime, last: datetime) -> Mapping[int, NearSamples]:
            queue.commit_all()
            return _sampled(lake, node, first, last)

        try:
            for next_chunk in chunks:
                report.chunks += 1
                if isinstance(next_chunk, PendingChunk):
                    if lake.mark(REJECTS, _transaction(next_chunk.id, losses)) is not None:
                        report.chunks_known += 1
                        continue
                    chunk = next_chunk.fetch()
                else:
                    chunk = next_chunk
                if check:
                    check(chunk)
                if queue.decides(chunk):
                    queue.commit_all()
                ready = _ready(lake, chunk, now, report, losses, sampled)
                if ready is not None:
                    queue.add(ready)
                if progress:
                    progress(chunk)
        except InputError:  # of a file that cannot be read; those before it can
            queue.commit_all()
            raise
        queue.commit_all()
    return report


def accept_again(lake: Lake) -> None:
    """Allow every chunk to be ingested again after data loss; only missing rows are added.

    Parts of streams are excluded: data behind their watermark are read again by naming their time.
    """
    losses = (lake.mark(REJECTS, _LOSSES) or 0) + 1
    nothing = pl.DataFrame(schema=REJECTS.row_schema)
    lake.append(REJECTS, nothing, app_id=_LOSSES, mark=losses)


def _transaction(chunk: str, losses: int) -> str:
    """Name of the transactions of a chunk: another one after each loss of files."""
    return f"{chunk}@{losses}" if losses else chunk


def watermark(lake: Lake, stream: str) -> datetime | None:
    """Return how far a stream was read into the lake; None if not at all."""
    reached = lake.mark(REJECTS, stream)
    return None if reached is None else EPOCH + timedelta(microseconds=reached)


def _mark(chunk: Chunk) -> int:
    """Return a stream chunk's watermark as a mark; 1 for other chunks."""
    return 1 if chunk.watermark is None else microseconds(chunk.watermark)


@dataclass(frozen=True, slots=True, eq=False)
class _ReadyChunk:
    """A chunk whose parts conform, their own rows removed, with the names of their transactions.

    again: some of its rows may be there, as it was ingested before files of the lake were lost.
    """

    chunk: Chunk
    id: str
    again: bool
    names: tuple[str, ...]
    conformed: tuple[Conformed, ...]
    ends: tuple[_Ends | None, ...]  # of parts of samples
    mark: int
    since: int

    @property
    def may_wait(self) -> bool:
        """Return whether the chunk is not part of a stream, so it may be batched."""
        return self.chunk.watermark is None and not (
            self.again or any(part.overlaps for part in self.chunk.parts)
        )

    @property
    def names_gpus(self) -> bool:
        return any(part.table == DEVICES.name for part in self.chunk.parts)

    @property
    def rows(self) -> int:
        return sum(conformed.frame.height for conformed in self.conformed)

    def overlaps(self, other: _ReadyChunk) -> bool:
        """Whether both have samples of the same days and nodes."""
        pairs = product(self._ends_of_tables(), other._ends_of_tables())
        return any(
            table == other_table and _meet(ends, other_ends)
            for (table, ends), (other_table, other_ends) in pairs
        )

    def _ends_of_tables(self) -> list[tuple[str, _Ends]]:
        parts = zip(self.chunk.parts, self.ends, strict=True)
        return [(part.table, ends) for part, ends in parts if ends]

    def parts(self) -> Iterator[tuple[str, ChunkPart, Conformed]]:
        """Yield the name of the transaction, the part, and its rows."""
        return zip(self.names, self.chunk.parts, self.conformed, strict=True)


def _ends(frame: pl.DataFrame, table: LakeTable) -> _Ends | None:
    """First and last day and node of samples; None without any, and of other tables."""
    if table not in _BATCHED or frame.is_empty():
        return None
    t, node = pl.col("t"), pl.col("node")
    first, last, low, high = frame.select(
        first=t.min().dt.date(), last=t.max().dt.date(), low=node.min(), high=node.max()
    ).row(0)
    return first, last, low, high


def _meet(former: _Ends, latter: _Ends) -> bool:
    first, last, low, high = former
    other_first, other_last, other_low, other_high = latter
    return first <= other_last and other_first <= last and low <= other_high and other_low <= high


def _rows(chunks: Iterable[_ReadyChunk]) -> int:
    return sum(chunk.rows for chunk in chunks)


class _CommitQueue:
    """Chunks that wait to be committed together, and those that a thread commits meanwhile.

    worker: of one thread, so that chunks are committed in their order.
    """

    def __init__(
        self, lake: Lake, now: datetime, report: IngestReport, worker: ThreadPoolExecutor
    ) -> None:
        self._lake, self._now, self._report, self._worker = lake, now, report, worker
        self._waiting: list[_ReadyChunk] = []
        self._committing: Sequence[_ReadyChunk] = ()
        self._commit: Future[None] | None = None

    def decides(self, chunk: Chunk) -> bool:
        """Whether a chunk here may be the same content, or name the GPUs of this one."""
        return any(
            (undecided.chunk.id == chunk.id and undecided.may_wait) or undecided.names_gpus
            for undecided in (*self._committing, *self._waiting)
        )

    def add(self, new: _ReadyChunk) -> None:
        """Let a chunk wait; commit those before it that it need not be beside."""
        if not new.may_wait:
            self.commit_all()
            self._waiting.append(new)
            self.commit_all()
            return
        if _rows(self._waiting) + new.rows > BATCH_ROWS:
            overlapping = [chunk for chunk in self._waiting if chunk.overlaps(new)]
            if _rows(overlapping) + new.rows > DAY_ROWS:
                overlapping = []
            self._begin([chunk for chunk in self._waiting if chunk not in overlapping])
            self._waiting = overlapping
        self._waiting.append(new)

    def commit_all(self) -> None:
        """Commit what waits; return when it is committed."""
        self._end()
        waiting, self._waiting = self._waiting, []
        _commit(self._lake, waiting, self._now, self._report)

    def _begin(self, chunks: Sequence[_ReadyChunk]) -> None:
        self._end()
        if not chunks:
            return
        self._committing = chunks
        self._commit = self._worker.submit(_commit, self._lake, chunks, self._now, self._report)

    def _end(self) -> None:
        commit, self._commit, self._committing = self._commit, None, ()
        if commit:
            commit.result()


def _sampled(lake: Lake, place: str, first: datetime, last: datetime) -> Mapping[int, NearSamples]:
    """Samples of each index of a node in a time, and next to it."""
    node, _, cluster = place.partition(CLUSTER_MARK)
    t = pl.col("t")
    inside = t.filter(t.is_between(first, last))
    with lake_errors(lake.uri(GPU_SAMPLES)):
        rows = lake.read_files(
            GPU_SAMPLES, lake.files(GPU_SAMPLES), ["node", "cluster", "gpu", "t"]
        )
        mine = rows.filter(pl.col("node") == node)
        if cluster:
            mine = mine.filter(pl.col("cluster") == cluster)
        times = (
            mine.group_by("gpu")
            .agg(
                before=t.filter(t < first).max(),
                first=inside.min(),
                last=inside.max(),
                after=t.filter(t > last).min(),
            )
            .collect()
        )
    return {gpu: NearSamples(*row) for gpu, *row in times.iter_rows()}


def _ready(
    lake: Lake,
    chunk: Chunk,
    now: datetime,
    report: IngestReport,
    losses: int,
    sampled: SampledTimes,
) -> _ReadyChunk | None:
    """The chunk, or None if the lake has it."""
    report.rows_read += chunk.rows_read
    mark = _mark(chunk)
    name = _transaction(chunk.id, losses if chunk.watermark is None else 0)
    again = name != chunk.id and lake.mark(REJECTS, chunk.id) is not None
    reached = lake.mark(REJECTS, name)
    if reached is not None and reached >= mark:
        report.chunks_known += 1
        report.rows_known += chunk.rows_read
        return None
    report.passed.update(chunk.passed)
    report.unmapped.update(chunk.unread)
    since = (reached or 0) if chunk.since is None else microseconds(chunk.since)
    if any("gpu" in part.frame.columns for part in chunk.parts):
        chunk = replace(chunk, parts=_renumbered(chunk.parts, lake, sampled))
    conformed: list[Conformed] = []
    ends: list[_Ends | None] = []
    parts: list[ChunkPart] = []
    for part in chunk.parts:
        table = TABLES[part.table]
        conformed_part = conform(part.frame, table, now=now, units=part.units, origin=chunk.origin)
        conformed.append(conformed_part)
        ends.append(_ends(conformed_part.frame, table))
        parts.append(replace(part, frame=part.frame.clear()))
    for part in chunk.parts:
        if part.rows_used is not None:
            rows_used, rows = report.reshaped.get(part.table, (0, 0))
            report.reshaped[part.table] = (rows_used + part.rows_used, rows + part.frame.height)
    names = tuple(_names(chunk, name))
    chunk = replace(chunk, parts=tuple(parts))
    return _ReadyChunk(chunk, name, again, names, tuple(conformed), tuple(ends), mark, since)


def _renumbered(
    parts: Sequence[ChunkPart], lake: Lake, sampled: SampledTimes
) -> tuple[ChunkPart, ...]:
    """Return parts with the indices of the lake; those of a node by its cluster, too."""
    stored = lake.latest(DEVICES).sort("seq")
    pairs = cluster_pairs([stored, *(part.frame for part in parts)])
    if pairs.is_empty():
        return renumbered(parts, stored, sampled)
    node_places = NodePlaces.of(pairs)
    placed = renumbered(
        [node_places.part(part) for part in parts], node_places.devices(stored), sampled
    )
    # Of the only cluster that has a node, so that this stays so when another one has it, too.
    only = pairs.filter(~pl.col("node").is_duplicated()).rename({"cluster": "only"})
    return tuple(_of_only(with_cluster_column(part), only) for part in placed)


def _of_only(part: ChunkPart, only: pl.DataFrame) -> ChunkPart:
    """Return a part; its histories of GPUs with the only cluster of their nodes."""
    if "history" not in part.frame.columns:
        return part
    rows = part.frame.join(only, on="node", how="left", maintain_order="left")
    cluster = pl.coalesce(pl.col("^cluster$"), "only")
    return replace(part, frame=rows.with_columns(cluster=cluster).drop("only"))


def _commit(lake: Lake, chunks: Sequence[_ReadyChunk], now: datetime, report: IngestReport) -> None:
    """Commit chunks, the samples of all of them in one step where they may be."""
    merged: dict[str, int] = {}
    if all(chunk.may_wait for chunk in chunks):
        for table in _BATCHED:
            merged |= _commit_together(lake, table, chunks, report)
    for chunk in chunks:
        _commit_rest(lake, chunk, merged, now, report)


def _commit_together(
    lake: Lake, table: LakeTable, chunks: Sequence[_ReadyChunk], report: IngestReport
) -> dict[str, int]:
    """Commit the rows of all chunks in one table; return the duplicates within each part."""
    frames: dict[str, pl.DataFrame] = {}
    for chunk in chunks:
        for name, part, conformed in chunk.parts():
            if part.table == table.name:
                frames[name] = conformed.frame
    if not frames:
        return {}
    appended = lake.append_batch(table, frames)
    stored = [frame for name, frame in frames.items() if name not in appended.new]
    if table is GPU_SAMPLES:  # a killed run may have committed rows alone
        name = hashlib.sha256("\n".join(frames).encode()).hexdigest()[:32]
        _note_devices(lake, [*stored, *appended.days.values()], f"{name}:seen", 1)
    merged_days = {day for day, count in appended.across.items() if count}
    for frame in stored:
        merged_days.update(frame["t"].dt.date().unique())
    count_merged(lake, table, sorted(merged_days))
    across = sum(appended.across.values())
    report.duplicates += across
    report.rows[table.name] = report.rows.get(table.name, 0) + appended.rows
    merged = sum(frame.height for frame in frames.values()) - appended.rows
    report.completing += merged - across - sum(appended.within.values())
    return {f"{table.name}/{name}": appended.within[name] for name in frames}


def _commit_rest(
    lake: Lake, ready: _ReadyChunk, merged: Mapping[str, int], now: datetime, report: IngestReport
) -> None:
    """Commit the remaining parts, then the rejects; `merged`: duplicates in the other parts.

    Rows of these are counted already.
    """
    chunk = ready.chunk
    rejected: list[tuple[str, Reject]] = []
    for app_id, part, conformed in ready.parts():
        table = TABLES[part.table]
        key = f"{table.name}/{app_id}"
        duplicates = merged.get(key, 0)
        committed = 0
        if key not in merged:
            frame, appended = _append(lake, ready, part, conformed.frame, app_id)
            duplicates = appended.duplicates
            height = conformed.frame.height if _every_row_counts(ready, part) else frame.height
            committed = height - appended.merged
            report.completing += appended.merged - duplicates
            if ready.again:
                report.rows_known += conformed.frame.height - frame.height
            if table is DEVICES:
                report.devices.update(frame.select(table.key).unique().iter_rows())
                committed = len(report.devices) - report.rows.get(table.name, 0)
            if table is GPU_SAMPLES:
                _note_devices(lake, [conformed.frame], f"{app_id}:seen", ready.mark)
        report.rows[table.name] = report.rows.get(table.name, 0) + committed
        rejected += [(table.name, reject) for reject in part.rejects]
        rejected += [(table.name, reject) for reject in conformed.rejects if not part.counted]
        if duplicates:
            report.duplicates += duplicates
            rejected.append((table.name, Reject("duplicate", None, duplicates)))
    lake.append(
        REJECTS, _rejects_frame(chunk, rejected, now).frame, app_id=ready.id, mark=ready.mark
    )
    for target, reject in rejected:
        reason = (target, reject.reason, reject.column)
        report.rejects[reason] = report.rejects.get(reason, 0) + reject.count
        if reject.example is not None:
            report.examples.setdefault(reason, reject.example)


def _names(chunk: Chunk, name: str) -> Iterator[str]:
    """Yield the transaction name of each part, the same in every chunk of a stream."""
    counts: Counter[str] = Counter()
    for part in chunk.parts:
        yield f"{name}#{counts[part.table]}"
        counts[part.table] += 1


def _every_row_counts(ready: _ReadyChunk, part: ChunkPart) -> bool:
    """Whether rows of a part that exist already are duplicates in its file, not a second
    reading.
    """
    once = ready.chunk.watermark is None and not ready.again
    return part.rows_used is not None and once and not TABLES[part.table].by_day


def _append(
    lake: Lake, ready: _ReadyChunk, part: ChunkPart, frame: pl.DataFrame, app_id: str
) -> tuple[pl.DataFrame, AppendResult]:
    """Append the new rows of a part; return them, and the result.

    A stream may have got further in this table than recorded in the chunk: a process was killed
    between two tables, and the stream was read again from before; or another process reads the same
    stream. Then the chunk overlaps. Once the mark of the chunk is reached, what is there are its
    own rows.
    """
    table = TABLES[part.table]
    while True:
        there = lake.mark(table, app_id) or 0
        overlaps = there < ready.mark and (ready.again or part.overlaps or ready.since < there)
        fresh = new_rows(lake, table, frame) if overlaps else frame
        left_out = frame.height - fresh.height if _every_row_counts(ready, part) else 0
        appended = lake.append(
            table, fresh, app_id=app_id, mark=ready.mark, after=there, left_out=left_out
        )
        if not appended.overtaken:
            return fresh, appended


def _note_devices(lake: Lake, samples: Sequence[pl.DataFrame], app_id: str, mark: int) -> None:
    """Add GPUs that samples show for the first time, and capacities unknown so far.

    Capacity is memory used plus free: what is reserved is in neither, so it is a little below the
    nominal one.
    """
    if not samples:
        return
    capacity = (
        (pl.col("hbm_used_mib") + pl.col("hbm_free_mib")).max().cast(pl.Float64).alias("measured")
    )
    key = list(DEVICES.key)
    capacities = [frame.lazy().group_by(key).agg(capacity) for frame in samples]
    measured = pl.concat(capacities).group_by(key).agg(pl.col("measured").max()).collect()
    stored = lake.latest(DEVICES).select(*key, "usable_mib", there=pl.lit(value=True))
    joined = measured.join(stored, on=key, how="left", nulls_equal=True)
    fresh = joined.filter(
        pl.col("there").is_null()
        | (pl.col("usable_mib").is_null() & pl.col("measured").is_not_null())
    )
    if fresh.height:
        rows = fresh.select(*key, usable_mib="measured")
        conformed = conform(rows, DEVICES, now=datetime.now(UTC))
        lake.append(DEVICES, conformed.frame, app_id=app_id, mark=mark)


def _rejects_frame(chunk: Chunk, rejected: list[tuple[str, Reject]], now: datetime) -> Conformed:
    rows = [
        {
            "chunk": chunk.name,
            "source": chunk.source,
            "origin": chunk.origin,
            "target": target,
            "reason": reject.reason,
            "column": reject.column,
            "removed": reject.count,
            "example": reject.example,
        }
        for target, reject in rejected
    ]
    frame = pl.DataFrame(rows, schema=REJECTS.row_schema)
    return conform(frame, REJECTS, now=now)
