"""Any table with a mapping: CSV, Parquet and JSON records whose columns a small TOML file explains."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from tachograph.config import Configuration
from tachograph.errors import InputError, UsageError
from tachograph.sources import Chunk
from tachograph.sources.files import expand, fingerprint
from tachograph.sources.frames import (
    BLOCK_BYTES,
    CHUNK_ROWS,
    SUFFIXES,
    Frame,
    format_of,
    listed,
    parquet_columns,
    read_csv,
    read_json,
    read_parquet,
    records,
)
from tachograph.sources.table.apply import part
from tachograph.sources.table.mapping import Mapping, load, placeholders
from tachograph.sources.table.suggest import suggest
from tachograph.sources.times import is_local

NAME = "table"
__all__ = ["NAME", "add_options", "read", "read_file", "suggest"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the files, the mapping, and the wish for a proposed one."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="CSV, Parquet or JSON, or folders of them")
    parser.add_argument("--mapping", metavar="FILE.toml", help="what the columns mean")
    parser.add_argument("--suggest", metavar="FILE", help="print a mapping proposed for FILE, and read nothing")


def read(options: argparse.Namespace, *, configuration: Configuration, now: datetime) -> Iterator[Chunk]:
    """Yield the chunks of the files named.

    `now` is not needed: times are told by the files. Printing a proposed mapping is the command's work (`suggest`).
    Errors: UsageError without a mapping or files, ConfigError for a wrong mapping, InputError for a wrong file.
    """
    if not options.mapping:
        raise UsageError("no mapping", do="write one: tachograph ingest table --suggest FILE > mapping.toml")
    if not options.files:
        raise UsageError("no file to read", do="name the files behind the options")
    mapping = load(Path(options.mapping))
    site = configuration.site
    for path in expand(options.files, SUFFIXES):
        yield from read_file(path, mapping, site_zone=site.time_zone, cluster=site.cluster or None)


def read_file(path: Path, mapping: Mapping, *, site_zone: str = "UTC", cluster: str | None = None) -> Iterator[Chunk]:
    """Yield the chunks of one file: one per 2 million rows of Parquet, per block of CSV, one of JSON.

    A file whose rows belong together (long files, wall-clock times of a zone that repeats an hour) is one chunk.
    Errors: InputError when it is damaged or lacks a mapped column.
    """
    said = (NAME, repr(mapping), site_zone, cluster or "")
    print_of = fingerprint(path, *said)
    for frame in _frames(path, mapping, site_zone):
        made = part(frame, mapping, site_zone=site_zone, cluster=cluster, origin=str(path))
        yield Chunk(f"{print_of}:{frame.first_row}", NAME, str(path), (made,), frame.rows_read)


def _frames(path: Path, mapping: Mapping, site_zone: str) -> Iterator[Frame]:
    whole = mapping.metric is not None or is_local(mapping.time.format, mapping.time.zone or site_zone)
    match format_of(path):
        case "parquet":
            yield from read_parquet(path, _wanted(path, mapping), rows=None if whole else CHUNK_ROWS)
        case "csv":
            yield from read_csv(path, mapping.layout, block_bytes=None if whole else BLOCK_BYTES)
        case "json":
            content, rejects = read_json(path)
            rows = records(_inside(content, mapping.records, path), origin=str(path))
            yield Frame(rows, 0, rows.height + sum(reject.count for reject in rejects), rejects)


def _wanted(path: Path, mapping: Mapping) -> list[str]:
    """The columns of a Parquet file that the mapping uses, in the file's order; all where one is missing."""
    has = list(parquet_columns(path))
    sections = (mapping.time, mapping.node, mapping.gpu, mapping.mig)
    plain = {section.column for section in sections if section.column}
    plain |= {mapping.metric.column, mapping.metric.value} if mapping.metric else set(mapping.columns)
    patterns = [pattern for name in mapping.columns if (pattern := placeholders(name))]
    used = [name for name in has if name in plain or any(pattern.fullmatch(name) for pattern in patterns)]
    return used or has


def _inside(content: object, keys: str, path: Path) -> object:
    """What is under `records` in a JSON file."""
    for key in filter(None, keys.split(".")):
        if not isinstance(content, dict) or key not in content:
            has = listed(map(str, content)) if isinstance(content, dict) else "a list"
            raise InputError(f"no key {key!r} (records = {keys!r})", where=str(path), do=f"it has: {has}")
        content = content[key]
    if isinstance(content, dict):
        raise InputError(
            f"not a list of records; its keys are: {listed(map(str, content))}",
            where=str(path), do="name the key of the rows in the mapping: records = '...'",
        )  # fmt: skip
    return content
