"""Targets `csv`, `parquet` and `jsonl`: each table into a file of its own.

Times are UTC. CSV: null is empty, lists are joined with `+`, texts are harmless to spreadsheets and
terminals unless `--raw` is given. Parquet: the types of the lake. JSON lines: times are ISO 8601;
`evidence` and `checks` are JSON.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec
import polars as pl

from tachograph.catalog.columns import INTERNAL, joined_lists
from tachograph.catalog.errors import UsageError
from tachograph.catalog.spreadsheets import harmless_cells
from tachograph.catalog.tables import (
    COMPUTED,
    FINDINGS,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_NODE_MINUTES,
    JOB_SUMMARIES,
    LakeTable,
)
from tachograph.export.content import ExportContent, ExportResult, whole_file
from tachograph.export.registry import Progress

_ROWS: Mapping[str, Callable[[ExportContent], pl.DataFrame]] = MappingProxyType(
    {
        JOB_SUMMARIES.name: lambda content: content.summaries,
        JOB_GPUS.name: ExportContent.gpus,
        FINDINGS.name: ExportContent.findings,
        JOB_MINUTES.name: ExportContent.minutes,
        JOB_NODE_MINUTES.name: ExportContent.node_minutes,
        "capacity": ExportContent.capacity,  # is added up for it: no table of the lake
    }
)
DEFAULT = (JOB_SUMMARIES.name, JOB_GPUS.name, FINDINGS.name)  # minutes are many: only on demand


_JSON = ("evidence", "checks")  # columns that hold JSON already


@dataclass(frozen=True, slots=True)
class FileFormat:
    """A target that writes tables into files. may_be_raw: texts may be written as recorded."""

    suffix: str
    write: Callable[[pl.DataFrame, Path, argparse.Namespace], None]
    may_be_raw: bool = False

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare `--to`, `--table` and, where texts may be raw, `--raw`."""
        parser.add_argument(
            "--to",
            required=True,
            metavar="PLACE",
            help=f"a folder, or for one table a {self.suffix} file",
        )
        parser.add_argument(
            "--table",
            action="append",
            default=[],
            choices=[*_ROWS],
            help=f"repeatable (default: {', '.join(DEFAULT)})",
        )
        if self.may_be_raw:
            parser.add_argument(
                "--raw", action="store_true", help="texts as recorded: formulas, control characters"
            )

    def export(
        self, content: ExportContent, options: argparse.Namespace, progress: Progress
    ) -> Sequence[ExportResult]:
        """Write the chosen tables; return one result per table.

        Errors: UsageError for several tables and one file; ExportError when a file cannot be
        written.
        """
        results = []
        names = tuple(dict.fromkeys(options.table)) or DEFAULT
        for name in names:
            target = _file(options.to, name, names, self.suffix)
            frame = _ROWS[name](content)
            if name in COMPUTED:
                frame = outside(frame, COMPUTED[name])
            with whole_file(target) as beside:
                self.write(frame, beside, options)
            results.append(ExportResult(name, str(target), frame.height))
        return results


def _write_csv(frame: pl.DataFrame, target: Path, options: argparse.Namespace) -> None:
    rows = joined_lists(frame)
    shown = rows if options.raw else harmless_cells(rows)
    shown.write_csv(target, datetime_format="%Y-%m-%dT%H:%M:%S%.fZ")


def _write_parquet(frame: pl.DataFrame, target: Path, options: argparse.Namespace) -> None:
    frame.write_parquet(target, compression="zstd")


def _write_json_lines(frame: pl.DataFrame, target: Path, options: argparse.Namespace) -> None:
    with target.open("wb") as stream:
        stream.writelines(json_lines(frame))


def json_lines(frame: pl.DataFrame) -> Iterator[bytes]:
    """Yield each row as a JSON object on a line."""
    encoder = msgspec.json.Encoder()
    for row in frame.iter_rows(named=True):
        row |= {name: msgspec.Raw(row[name].encode()) for name in _JSON if row.get(name)}
        yield encoder.encode(row) + b"\n"


CSV = FileFormat(".csv", _write_csv, may_be_raw=True)
PARQUET = FileFormat(".parquet", _write_parquet)
JSON_LINES = FileFormat(".jsonl", _write_json_lines)


def _file(to: str, name: str, names: Sequence[str], suffix: str) -> Path:
    place = Path(to)
    if place.suffix != suffix or place.is_dir():
        return place / f"{name}{suffix}"
    if len(names) > 1:
        raise UsageError(
            f"{len(names)} tables do not go into one file",
            where=to,
            do="name a folder, or one --table",
        )
    return place


def outside(frame: pl.DataFrame, table: LakeTable) -> pl.DataFrame:
    """Return rows of a table for other programs: without internal columns, NaN as null."""
    columns = {name: dtype for name, dtype in table.schema.items() if name not in INTERNAL}
    return frame.select(_finite(name, dtype) for name, dtype in columns.items())


def _finite(name: str, dtype: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    return pl.when(column.is_finite()).then(column) if dtype.is_float() else column
