"""Target `jsonl`: one file per table. Times ISO 8601 in UTC; `evidence`, `checks` are JSON."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import polars as pl

from tachograph.export.content import ExportContent, ExportResult
from tachograph.export.registry import Progress
from tachograph.export.tables import add_table_options, export_tables

SUFFIX = ".jsonl"
_JSON = ("evidence", "checks")  # JSON already


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare `--to` and `--table`."""
    add_table_options(parser, SUFFIX)


def export(
    content: ExportContent, options: argparse.Namespace, progress: Progress
) -> Sequence[ExportResult]:
    """Write the tables; return one result per table."""
    return export_tables(content, options, SUFFIX, _write)


def _write(frame: pl.DataFrame, target: Path) -> None:
    with target.open("wb") as stream:
        stream.writelines(_lines(frame))


def _lines(frame: pl.DataFrame) -> Iterator[bytes]:
    encoder = msgspec.json.Encoder()
    for row in frame.iter_rows(named=True):
        row |= {name: msgspec.Raw(row[name].encode()) for name in _JSON if row.get(name)}
        yield encoder.encode(row) + b"\n"
