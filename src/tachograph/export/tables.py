"""Exports of whole tables into files: which tables, file names, shared options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import polars as pl

from tachograph.catalog.columns import INTERNAL
from tachograph.catalog.errors import UsageError
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

_ROWS: Mapping[str, Callable[[ExportContent], pl.DataFrame]] = MappingProxyType(
    {
        JOB_SUMMARIES.name: lambda content: content.summaries,
        JOB_GPUS.name: ExportContent.gpus,
        FINDINGS.name: ExportContent.findings,
        JOB_MINUTES.name: ExportContent.minutes,
        JOB_NODE_MINUTES.name: ExportContent.node_minutes,
    }
)
DEFAULT = (JOB_SUMMARIES.name, JOB_GPUS.name, FINDINGS.name)  # minutes are many: only on demand


def add_table_options(parser: argparse.ArgumentParser, suffix: str) -> None:
    """Declare `--to` and `--table`."""
    parser.add_argument(
        "--to", required=True, metavar="PLACE", help=f"a folder, or for one table a {suffix} file"
    )
    parser.add_argument(
        "--table",
        action="append",
        default=[],
        choices=[*_ROWS],
        help=f"repeatable (default: {', '.join(DEFAULT)})",
    )


def export_tables(
    content: ExportContent,
    options: argparse.Namespace,
    suffix: str,
    write: Callable[[pl.DataFrame, Path], None],
) -> Sequence[ExportResult]:
    """Write the chosen tables, each into its file, by `write`.

    Errors: UsageError for several tables and one file; ExportError when a file cannot be written.
    """
    names = tuple(dict.fromkeys(options.table)) or DEFAULT
    return [
        _export_table(content, name, _file(options.to, name, names, suffix), write)
        for name in names
    ]


def _export_table(
    content: ExportContent, name: str, target: Path, write: Callable[[pl.DataFrame, Path], None]
) -> ExportResult:
    frame = outside(_ROWS[name](content), COMPUTED[name])
    with whole_file(target) as beside:
        write(frame, beside)
    return ExportResult(name, str(target), frame.height)


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
