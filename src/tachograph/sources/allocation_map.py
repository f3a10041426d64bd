"""Source `allocation-map`: which job held which GPU when, told by prolog and epilog, a table, or a live job record.

Explicit, the best there is (`explicit`):
- CSV `job_id,node,gpu[,mig][,start][,end][,cluster]`; gpu is an index, or several: `"0,1"`, `0-3`, `0;1`
- a log of prolog and epilog: `1795247442 prolog job=1 node=gpu02 gpus=0,1`, `1795247444 epilog job=1 node=gpu02`

Taken while the job runs (`live_index`): `scontrol show job -d`, `squeue --json`, slurmrestd's job answers.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tachograph.config import Configuration
from tachograph.errors import InputError
from tachograph.schema import ALLOCATIONS, Reject
from tachograph.sources import Chunk, Part
from tachograph.sources.files import expand, fingerprint, read_bytes
from tachograph.sources.slurm.detect import detect
from tachograph.sources.slurm.explicit import read_log, read_table
from tachograph.sources.slurm.fields import BadRowError
from tachograph.sources.slurm.live import (
    controller_allocations,
    read_controller,
    read_scontrol,
    scontrol_allocations,
)
from tachograph.sources.slurm.reading import frame_of
from tachograph.sources.slurm.records import Cluster, Entry, Row
from tachograph.sources.slurm.told import counted_rejects

NAME = "allocation-map"
SUFFIXES = (".csv", ".log", ".txt", ".json")


@dataclass(slots=True)
class MapReading:
    """What a file holds: rows for `allocations`, what was rejected (place, reason, text), how many records it had."""

    allocations: list[Row] = field(default_factory=list)
    rejected: list[tuple[int, str, str]] = field(default_factory=list)
    rows_read: int = 0
    document: object = None  # where it is JSON of the controller

    def rejects(self) -> tuple[Reject, ...]:
        """Rows given up, by reason."""
        return counted_rejects(self.rejected)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the source."""
    parser.add_argument(
        "files", nargs="+", metavar="FILE", help="CSV, prolog/epilog log, scontrol or squeue output, or a folder of it"
    )


def read(options: argparse.Namespace, *, configuration: Configuration, now: datetime) -> Iterator[Chunk]:
    """Yield one chunk per file with its rows of `allocations`.

    Errors: InputError for a file that is no map, naming what to do.
    """
    site = configuration.site
    for path in expand(options.files, SUFFIXES):
        mark = fingerprint(path, NAME, site.time_zone, site.cluster)
        reading = read_map(path, cluster=Cluster.of(configuration))
        part = Part("allocations", frame_of(reading.allocations, ALLOCATIONS), rejects=reading.rejects())
        yield Chunk(id=mark, source=NAME, origin=str(path), parts=(part,), rows_read=reading.rows_read)


def read_map(path: Path, *, cluster: Cluster) -> MapReading:
    """Return what a file holds.

    Errors: InputError for a file that is no map.
    """
    return read_map_content(read_bytes(path), where=str(path), cluster=cluster)


def read_map_content(content: bytes, *, where: str, cluster: Cluster) -> MapReading:
    """Return what a file, or an answer of Slurm, holds.

    Errors: InputError naming `where` for what is no map.
    """
    found = detect(content, where=where)
    text = content.decode("utf-8-sig", "replace")
    reading = MapReading()
    match found.kind:
        case "map":
            reading.allocations, reading.rejected, reading.rows_read = read_table(text, cluster=cluster)
        case "prolog":
            reading.allocations, reading.rejected, reading.rows_read = read_log(text, cluster=cluster)
        case "scontrol":
            for entry in read_scontrol(text):
                _take(entry, reading, cluster)
        case "controller":
            reading.document = found.document
            for entry in read_controller(found.document):
                _take(entry, reading, cluster)
        case _:
            raise InputError(
                "this does not tell which GPUs jobs held",
                where=where,
                do="read accounting with `tachograph ingest sacct`; a map needs the columns job_id,node,gpu",
            )
    return reading


def _take(entry: Entry, reading: MapReading, cluster: Cluster) -> None:
    reading.rows_read += 1
    if entry.reason is not None:
        reading.rejected.append((entry.place, entry.reason, entry.text))
        return
    fields = entry.fields or {}
    try:
        if "record" in fields:
            reading.allocations += scontrol_allocations(str(fields["record"]), cluster)
        else:
            reading.allocations += controller_allocations(fields, cluster)
    except BadRowError as problem:
        reading.rejected.append((entry.place, problem.reason, entry.text))


def rejected_rows(path: Path, *, configuration: Configuration) -> list[tuple[int, str, str]]:
    """Return (line or position in the list, reason, text) of every record that could not be read.

    Errors: InputError for a file that is no map.
    """
    return read_map(path, cluster=Cluster.of(configuration)).rejected


def rejected(options: argparse.Namespace, *, configuration: Configuration) -> Iterator[tuple[str, int, str, str]]:
    """Yield (file, line or position, reason, text) of every record of the files named that could not be read."""
    for path in expand(options.files, SUFFIXES):
        for row in rejected_rows(path, configuration=configuration):
            yield str(path), *row
