"""Source `recording`: a folder of tables or a spool that `tachograph record` wrote.

A spool is a stream with the id in its head: reread while it grows, only new data are committed; a
truncated one ends with its last sample. Tables are read file by file; rows already in the lake are
not committed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tachograph.catalog.chunks import Chunk, ChunkPart, NumberedGpu
from tachograph.catalog.config import Configuration, lake_location
from tachograph.catalog.errors import InputError
from tachograph.catalog.spool import SPOOL_SUFFIX, SpoolDocument, SpoolRows, read_spool
from tachograph.catalog.tables import (
    ALLOCATIONS,
    DEVICES,
    GPU_SAMPLES,
    GPU_SCORES,
    JOBS,
    NODE_SAMPLES,
    TIME,
    LakeTable,
)
from tachograph.catalog.units import EPOCH
from tachograph.sources.files import filled_columns
from tachograph.sources.score_sums import PmSums, sums_of, warps_of

if TYPE_CHECKING:
    from tachograph.catalog.rows import GpuScoreRow

NAME = "recording"
SUFFIXES: tuple[str, ...] = ()  # a folder is read as a whole
CHUNK_ROWS = 500_000
_OF_GPUS = frozenset({table.name for table in (GPU_SAMPLES, GPU_SCORES, DEVICES, ALLOCATIONS)})
_TABLES = (GPU_SAMPLES, NODE_SAMPLES, GPU_SCORES, DEVICES, ALLOCATIONS, JOBS)
_REPORTED_BY_ACCOUNTING = (JOBS.name,)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the source."""
    parser.add_argument("files", nargs="+", metavar="DIR", help="folders or spools")
    parser.add_argument(
        "--without-jobs",
        action="store_true",
        help="samples and allocations alone: jobs come from the accounting",
    )


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield the chunks of recordings. Errors: InputError for other files."""
    target = lake_location(getattr(options, "lake", None), configuration)
    left_out = _REPORTED_BY_ACCOUNTING if options.without_jobs else ()
    for name in options.files:
        path = Path(name)
        if not path.exists():
            raise InputError(
                "no such recording", where=name, do="name the folder that `tachograph record` wrote"
            )
        for chunk in _chunks(path, configuration.site.cluster, target):
            yield _without(chunk, left_out)


def _chunks(path: Path, cluster: str, target: str) -> Iterator[Chunk]:
    if path.is_file():
        yield from read_chunks(path, cluster=cluster)
        return
    spools = sorted(path.rglob(f"*{SPOOL_SUFFIX}"))
    tables = [table for table in _TABLES if (path / table.name / "_delta_log").is_dir()]
    if not spools and not tables:
        raise InputError(
            "no recording in this folder",
            where=path,
            do="name a folder that `tachograph record` wrote",
        )
    for spool in spools:
        yield from read_chunks(spool, cluster=cluster)
    if path.resolve() == Path(target).resolve():  # its tables are where they should be
        return
    for table in tables:
        yield from _table_chunks(path / table.name, table)


def _without(chunk: Chunk, tables: Sequence[str]) -> Chunk:
    if not tables:
        return chunk
    parts = tuple(part for part in chunk.parts if part.table not in tables)
    return replace(chunk, id=f"{chunk.id}:without-jobs", parts=parts)


def _table_chunks(folder: Path, table: LakeTable) -> Iterator[Chunk]:
    """One chunk per data file, in order of writing."""
    try:
        actions = pl.DataFrame(DeltaTable(str(folder)).get_add_actions(flatten=True))
    except (DeltaError, TableNotFoundError, OSError) as problem:
        raise InputError(
            f"the table is damaged: {problem}", where=folder, do="copy it again"
        ) from None
    for name in actions.sort("modification_time", "path")["path"]:
        try:
            rows = pl.read_parquet(folder / name, hive_partitioning=False)
        except (OSError, pl.exceptions.PolarsError) as problem:
            raise InputError(
                f"unreadable: {problem}", where=folder / name, do="copy it again"
            ) from None
        wanted = [column for column in table.schema if column in rows.columns and column != "seq"]
        part = ChunkPart(table.name, rows.select(wanted), overlaps=True)
        yield Chunk(f"{NAME}:{table.name}/{name}", NAME, str(folder / name), (part,), rows.height)


@dataclass(slots=True)
class SpooledRecording:
    """State of a spool so far. gpus: {index: last report}.

    scores: {(place, minute): sums of PM samples}.
    """

    head: SpoolDocument
    gpus: dict[int, dict[str, Any]] = field(default_factory=dict)
    end: SpoolDocument | None = None
    problems: list[str] = field(default_factory=list)
    about: SpoolDocument | None = None
    scores: dict[tuple[int, int], PmSums] = field(default_factory=dict)
    cut: dict[int, str] = field(default_factory=dict)

    def take(self, document: SpoolDocument) -> None:
        """Learn from a document."""
        match document["kind"]:
            case "gpus":
                self.gpus |= {gpu["place"]: gpu for gpu in document["gpus"]}
            case "end":
                self.end = document
            case "source":
                self.about = document
            case "problem":
                self.problems.append(document["text"])
            case "pm":
                self._take_pm(document)

    def _take_pm(self, document: SpoolDocument) -> None:
        position = document["place"]
        self.cut[position] = document["cut"]
        for sums in map(sums_of, document["sums"]):
            minute_sums = self.scores.setdefault((position, sums.minute), sums)
            if minute_sums is not sums:
                minute_sums.add(sums)

    def pm_parts(self) -> list[ChunkPart]:
        """Return what PM sampling counted as rows of `gpu_scores`."""
        minutes = [self._pm_row(position, sums) for (position, _), sums in self.scores.items()]
        if not minutes:
            return []
        return [ChunkPart(GPU_SCORES.name, filled_columns(GPU_SCORES, minutes), overlaps=True)]

    def _pm_row(self, position: int, sums: PmSums) -> GpuScoreRow:
        gpu = self.gpus[position]
        warps = warps_of(gpu.get("model"))
        return sums.row(
            node=gpu["node"],
            gpu=gpu["gpu"],
            mig=gpu["mig"],
            max_warps=warps,
            cut=self.cut.get(position),
        )

    def samples(self, parts: Sequence[SpoolRows]) -> pl.DataFrame:
        """Return rows as columns of `gpu_samples`, NaN as null."""
        positions = np.concatenate([rows.gpu for rows in parts])
        nodes = pl.Series(
            [self.gpus.get(position, {}).get("node") for position in range(self._count)],
            dtype=pl.String,
        )
        keys = {
            "t": pl.Series(np.concatenate([rows.t for rows in parts])).cast(TIME),
            "node": nodes.gather(positions),
            "gpu": self._ints("gpu").gather(positions),
            "mig": self._ints("mig").gather(positions),
        }
        singles = np.concatenate([rows.singles for rows in parts], axis=1)
        doubles = np.concatenate([rows.doubles for rows in parts], axis=1)
        values = {name: singles[row] for row, name in enumerate(self.head["singles"])}
        values |= {name: doubles[row] for row, name in enumerate(self.head["doubles"])}
        counters = {name: value for name, value in values.items() if name in GPU_SAMPLES.schema}
        return pl.DataFrame(
            keys | {name: pl.Series(value, nan_to_null=True) for name, value in counters.items()}
        )

    @property
    def _count(self) -> int:
        return max(self.gpus, default=-1) + 1

    def _ints(self, name: str) -> pl.Series:
        return pl.Series(
            [self.gpus.get(position, {}).get(name) for position in range(self._count)],
            dtype=pl.Int16,
        )


def read_chunks(path: Path, *, cluster: str = "") -> Iterator[Chunk]:
    """Yield the chunks of a spool: samples; the last one adds GPUs, job and allocations.

    Errors: InputError for a file that is no spool.
    """
    records = read_spool(path)
    head = next(records)
    if isinstance(head, SpoolRows) or head.get("kind") != "head":
        raise InputError("the recording has no header", where=path, do="copy it again")
    spooled = SpooledRecording(head)
    waiting: list[SpoolRows] = []
    last = int(head["start"] * 1e6)
    for record in records:
        if not isinstance(record, SpoolRows):
            spooled.take(record)
            continue
        waiting.append(record)
        last = max(last, int(record.t.max()))
        if sum(len(rows.t) for rows in waiting) >= CHUNK_ROWS:
            yield _chunk(path, spooled, waiting, _moment(last), with_job=False, cluster=cluster)
            waiting = []
    end = (
        _moment(last)
        if spooled.end is None
        else _moment(max(last, int(spooled.end["end"] * 1e6)) + 1)
    )
    yield _chunk(path, spooled, waiting, end, with_job=True, cluster=cluster)


def _chunk(
    path: Path,
    spooled: SpooledRecording,
    waiting: list[SpoolRows],
    mark: datetime,
    *,
    with_job: bool,
    cluster: str,
) -> Chunk:
    parts: list[ChunkPart] = []
    if waiting:
        parts.append(ChunkPart(GPU_SAMPLES.name, spooled.samples(waiting), overlaps=True))
    if with_job:
        parts += [*spooled.pm_parts(), *_reported_parts(spooled, mark, cluster)]
    count = sum(len(rows.t) for rows in waiting)
    gpus = tuple(
        NumberedGpu(gpu["node"], gpu["gpu"], gpu["mig"], gpu.get("uuid"), gpu.get("pci"), None)
        for gpu in spooled.gpus.values()
    )
    parts = [replace(part, gpus=gpus) if part.table in _OF_GPUS else part for part in parts]
    return Chunk(
        f"{NAME}:{spooled.head['id']}", NAME, str(path), tuple(parts), count, watermark=mark
    )


def _reported_parts(spooled: SpooledRecording, mark: datetime, cluster: str) -> list[ChunkPart]:
    """What is known of GPUs, the job, and which GPUs it had."""
    gpus = sorted(spooled.gpus.values(), key=itemgetter("place"))
    start = _moment(int(spooled.head["start"] * 1e6))
    end = mark if spooled.end is None else _moment(int(spooled.end["end"] * 1e6))
    job = _job(spooled, [gpu["node"] for gpu in gpus], start, max(start, end), cluster)
    held = {
        "cluster": job["cluster"],
        "job_id": job["job_id"],
        "start": start,
        "end": job["end"],
        "provenance": "explicit",
    }
    described = ("node", "gpu", "mig", "uuid", "pci", "minor_number", "model", "hbm_mib")
    devices = []
    allocations = []
    for gpu in gpus:
        devices.append({name: gpu.get(name) for name in described})
        allocations.append({"node": gpu["node"], "gpu": gpu["gpu"], "mig": gpu["mig"], **held})
    tables = ((DEVICES, devices), (JOBS, [job]), (ALLOCATIONS, allocations))
    return [
        ChunkPart(table.name, filled_columns(table, rows), overlaps=True) for table, rows in tables
    ]


def _job(
    spooled: SpooledRecording, nodes: list[str], start: datetime, end: datetime, cluster: str
) -> dict[str, Any]:
    """A row of `jobs`; GPUs and node list are null if only part of the nodes was recorded."""
    job = spooled.head["job"]
    names = sorted(set(nodes))
    whole = job["nodes"] in (None, len(names))
    ending = spooled.end or {}
    code, number = ending.get("exit_code"), ending.get("exit_signal")
    state = None
    if code is not None or number is not None:
        state = "COMPLETED" if code == 0 else "FAILED"
    return {
        **job,
        "cluster": job["cluster"] or cluster or None,
        "start": start,
        "end": end,
        "elapsed_s": (end - start).total_seconds(),
        "state": state,
        "exit_code": code,
        "exit_signal": number,
        "nodes": job["nodes"] or len(names) or None,
        "gpus": len(nodes) if whole else None,
        "node_list": ",".join(names) if whole and names else None,
        "time_precision_s": 0.0,
    }


def _moment(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)
