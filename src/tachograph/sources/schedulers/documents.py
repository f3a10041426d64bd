"""Saved files of accounting, each read as one document; values that schedulers write alike."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

from tachograph.catalog.chunks import Chunk, ChunkPart
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import ALLOCATIONS, JOBS, STEPS
from tachograph.sources.files import expand, fingerprint, read_unpacked
from tachograph.sources.slurm.exports import (
    AccountingReading,
    frame_of,
    latest_time,
    saved_rows,
)
from tachograph.sources.slurm.fields import BadRowError, instants, parse_document, settle
from tachograph.sources.slurm.records import (
    JobRecord,
    SlurmCluster,
    SlurmRow,
    allocation_rows,
    job_row,
)

# (content, where, cluster) -> rows
DocumentReader = Callable[[bytes, str, SlurmCluster], AccountingReading]


def add_files(parser: argparse.ArgumentParser) -> None:
    """Declare the files of a source."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="files or folders")


def document_chunks(
    options: argparse.Namespace,
    configuration: Configuration,
    *,
    source: str,
    suffixes: tuple[str, ...],
    reader: DocumentReader,
) -> Iterator[Chunk]:
    """Yield one chunk per file: rows of `jobs`, `steps` and `allocations`.

    Errors: InputError for a file that is none of the source.
    """
    site = configuration.site
    for path in expand(options.files, suffixes):
        mark = fingerprint(path, source, site.time_zone, site.cluster)
        reading = reader(read_unpacked(path), str(path), SlurmCluster.of(configuration))
        reading.add_usage()
        jobs = saved_rows(reading.jobs, partial(latest_time, partial(_only, reading)))
        yield Chunk(
            mark,
            source,
            str(path),
            (
                ChunkPart("jobs", frame_of(jobs, JOBS), rejects=reading.rejects()),
                ChunkPart("steps", frame_of(reading.steps, STEPS)),
                ChunkPart("allocations", frame_of(reading.allocations, ALLOCATIONS)),
            ),
            reading.rows_read,
        )


def _only(reading: AccountingReading) -> list[AccountingReading]:
    return [reading]


def document_rejects(
    options: argparse.Namespace,
    configuration: Configuration,
    *,
    suffixes: tuple[str, ...],
    reader: DocumentReader,
) -> Iterator[tuple[str, int, str, str]]:
    """Yield (file, place, reason, text) of every unreadable record."""
    for path in expand(options.files, suffixes):
        reading = reader(read_unpacked(path), str(path), SlurmCluster.of(configuration))
        for row in reading.rejected:
            yield str(path), *row


def json_document(content: bytes, where: str) -> object:
    """Return a document of JSON. Errors: InputError naming line and column."""
    return parse_document(content, where=where)[0]


def not_of(what: str, where: str, command: str) -> InputError:
    """Return the error of a file that the source did not write."""
    return InputError(f"this is not {what}", where=where, do=f"save it with `{command}`")


def take_job(
    reading: AccountingReading,
    place: int,
    example: str,
    make: Callable[[], tuple[JobRecord, list[SlurmRow]]],
    cluster: SlurmCluster,
) -> None:
    """Add a job to a reading, or count it as a reject.

    make: returns the job, and its rows of `allocations` where the record names GPUs; of others
    only the nodes are known.
    """
    reading.rows_read += 1
    try:
        job, named = make()
        row = job_row(job, cluster)
        held = named or list(allocation_rows(row))
    except BadRowError as problem:
        reading.rejected.append((place, problem.reason, example[:2000]))
        return
    reading.add_job(job, row)
    reading.allocations += held


def settled_times(
    written: tuple[str, str, str, str], zone: str, *, run_s: float | None = None
) -> list[datetime | None]:
    """Return UTC times (submit, eligible, start, end) of local or epoch times as texts.

    Errors: BadRowError for what is no time.
    """
    return settle([instants(text, zone) for text in written], run_s)


_SIZE = re.compile(r"(\d{1,15})([kmgtp]?)b?", re.ASCII | re.IGNORECASE)
_MIB = {"": 2.0**-20, "k": 2.0**-10, "m": 1.0, "g": 2.0**10, "t": 2.0**20, "p": 2.0**30}


def size_mib(written: str) -> float | None:
    """Return a size of PBS in MiB; None without one.

    >>> size_mib("8gb"), size_mib("5008kb"), size_mib("")
    (8192.0, 4.890625, None)
    """
    found = _SIZE.fullmatch(written)
    return None if found is None else int(found[1]) * _MIB[found[2].lower()]


def host_list(names: list[str]) -> str | None:
    """Return hosts, each once, as a node list; None without any."""
    return ",".join(dict.fromkeys(names)) or None


def shell_status(code: int) -> tuple[int, int | None]:
    """Return (exit code, signal) of a status of the shell: 128 and a signal.

    >>> shell_status(3), shell_status(137)
    ((3, None), (0, 9))
    """
    return (0, code - 128) if 128 < code <= 192 else (code, None)


def file_suffixes(*names: str) -> tuple[str, ...]:
    """Return suffixes of files, plain and packed."""
    return tuple(f"{name}{packed}" for name in names for packed in ("", ".gz"))
