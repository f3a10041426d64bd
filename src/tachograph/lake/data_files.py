"""The data files of a table and their statistics in the log: rows, size, minima, maxima."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import polars as pl
from deltalake import DeltaTable

from tachograph.lake.log_format import DAY

GREATEST = "\U0010ffff"  # not less than any name
_IDS = ("job_key", "job_id")  # by which files of a job are chosen


@dataclass(frozen=True, slots=True)
class DataFile:
    """One Parquet file of a table. `low`, `high`: first and last node (samples), if known.

    least_seq, keys: the least seq; the least and the greatest job_key, or job_id of a table without
    keys; None: not recorded.
    """

    path: str
    day: date | None
    rows: int
    size: int
    low: str | None
    high: str | None
    first: datetime | None
    last: datetime | None
    seq: int  # greatest in the file
    empty: frozenset[str] = frozenset()  # columns in which every value is null
    least_seq: int = 0
    keys: tuple[str, str] | None = None

    def may_name(self, job: str) -> bool:
        """Whether it may have rows of a job, by its job_key or id, as far as the log records it."""
        return self.keys is None or self.keys[0] <= job <= self.keys[1]

    def may_name_any(self, jobs: Iterable[str]) -> bool:
        """Whether it may have rows of one of these jobs, see `may_name`."""
        return any(map(self.may_name, jobs))


def data_files(delta: DeltaTable) -> list[DataFile]:
    """Return the files that a reader of a table sees now, ordered by day and first node."""
    files = map(_data_file, _add_actions(delta))
    return sorted(files, key=lambda file: (str(file.day), file.low or "", file.path))


def row_count(files: Iterable[DataFile]) -> int:
    """Return how many rows some files have."""
    return sum(file.rows for file in files)


def span_of(files: Iterable[DataFile]) -> tuple[datetime | None, datetime | None]:
    """Return the first and the last time in some files; None where none is recorded."""
    every = list(files)
    firsts = [file.first for file in every if file.first is not None]
    lasts = [file.last for file in every if file.last is not None]
    return min(firsts, default=None), max(lasts, default=None)


def touching(
    files: Iterable[DataFile], ends: Callable[[DataFile], tuple[str, str]]
) -> Iterator[list[DataFile]]:
    """Yield groups of files whose ranges of nodes or keys touch, in order."""
    group: list[DataFile] = []
    high = ""
    for file in sorted(files, key=ends):
        least, greatest = ends(file)
        if group and least > high:
            yield group
            group, high = [], ""
        group.append(file)
        high = max(high, greatest)
    if group:
        yield group


def paths_of(delta: DeltaTable) -> set[str]:
    """Return the paths of the files that a reader of a table sees now."""
    return {row["path"] for row in _add_actions(delta)}


def _add_actions(delta: DeltaTable) -> list[dict[str, Any]]:
    """The entries of the log for the files that a reader sees."""
    return pl.DataFrame(delta.get_add_actions(flatten=True)).to_dicts()


def _data_file(row: Mapping[str, Any]) -> DataFile:
    return DataFile(
        path=row["path"],
        day=row.get(f"partition.{DAY}"),
        rows=int(row["num_records"]),
        size=int(row["size_bytes"]),
        low=row.get("min.node"),
        high=row.get("max.node"),
        first=row.get("min.t"),
        last=row.get("max.t"),
        seq=int(row.get("max.seq") or 0),
        empty=_empty_columns(row),
        least_seq=int(row.get("min.seq") or 0),
        keys=next(
            ((row[f"min.{name}"], row[f"max.{name}"]) for name in _IDS if row.get(f"max.{name}")),
            None,
        ),
    )


def _empty_columns(row: Mapping[str, Any]) -> frozenset[str]:
    prefix, rows = "null_count.", row["num_records"]
    return frozenset(
        name.removeprefix(prefix) for name in row if name.startswith(prefix) and row[name] == rows
    )
