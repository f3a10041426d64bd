"""Saved files of accounting, each read as one document; values that schedulers write alike."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from tachograph.catalog.chunks import Chunk
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import InputError
from tachograph.sources.files import expand, fingerprint, read_unpacked
from tachograph.sources.slurm.exports import (
    AccountingReading,
    latest_time,
    saved_parts,
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


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """A source of accounting whose files are each read as a whole, by `reader`."""

    name: str
    suffixes: tuple[str, ...]
    reader: DocumentReader

    def read(
        self, options: argparse.Namespace, *, configuration: Configuration, now: datetime
    ) -> Iterator[Chunk]:
        """Yield one chunk per file: rows of `jobs`, `steps` and `allocations`.

        Errors: InputError for a file that is none of the source.
        """
        site = configuration.site
        for path, reading in self._readings(options, configuration):
            mark = fingerprint(path, self.name, site.time_zone, site.cluster)
            reading.add_usage()
            parts = saved_parts(reading, partial(latest_time, lambda: [reading]))  # noqa: B023
            yield Chunk(mark, self.name, str(path), parts, reading.rows_read)

    def rejected(
        self, options: argparse.Namespace, *, configuration: Configuration
    ) -> Iterator[tuple[str, int, str, str]]:
        """Yield (file, place, reason, text) of every unreadable record."""
        for path, reading in self._readings(options, configuration):
            for row in reading.rejected:
                yield str(path), *row

    def _readings(
        self, options: argparse.Namespace, configuration: Configuration
    ) -> Iterator[tuple[Path, AccountingReading]]:
        for path in expand(options.files, self.suffixes):
            content = read_unpacked(path)
            yield path, self.reader(content, str(path), SlurmCluster.of(configuration))


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
