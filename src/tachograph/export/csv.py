"""Target `csv`: one file per table. Times in UTC, null is empty, lists joined with `+`.

Texts are harmless to spreadsheets and terminals, unless `--raw` is given.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import polars as pl

from tachograph.catalog.columns import joined_lists
from tachograph.catalog.spreadsheets import harmless_cells
from tachograph.export.content import ExportContent, ExportResult
from tachograph.export.registry import Progress
from tachograph.export.tables import add_table_options, export_tables

SUFFIX = ".csv"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare `--to`, `--table` and `--raw`."""
    add_table_options(parser, SUFFIX)
    parser.add_argument(
        "--raw", action="store_true", help="texts as recorded: formulas, control characters"
    )


def export(
    content: ExportContent, options: argparse.Namespace, progress: Progress
) -> Sequence[ExportResult]:
    """Write the tables; return one result per table."""
    return export_tables(content, options, SUFFIX, partial(_write, raw=options.raw))


def _write(frame: pl.DataFrame, target: Path, *, raw: bool) -> None:
    rows = joined_lists(frame)
    (rows if raw else harmless_cells(rows)).write_csv(
        target, datetime_format="%Y-%m-%dT%H:%M:%S%.fZ"
    )
