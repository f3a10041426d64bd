"""Target `parquet`: a Parquet file per table, with the types of the lake."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import polars as pl

from tachograph.export.content import ExportContent, ExportResult
from tachograph.export.registry import Progress
from tachograph.export.tables import add_table_options, export_tables

SUFFIX = ".parquet"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare `--to` and `--table`."""
    add_table_options(parser, SUFFIX)


def export(
    content: ExportContent, options: argparse.Namespace, progress: Progress
) -> Sequence[ExportResult]:
    """Write the tables; return one result per table."""
    return export_tables(content, options, SUFFIX, _write)


def _write(frame: pl.DataFrame, target: Path) -> None:
    frame.write_parquet(target, compression="zstd")
