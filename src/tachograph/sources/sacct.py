"""Source `sacct`: finished and running jobs from Slurm accounting, as text, JSON, or NERSC's exports.

    sacct --allusers --duplicates --parsable2 --format=JobID,JobIDRaw,Cluster,Partition,QOS,Account,User,Submit,\
Eligible,Start,End,Elapsed,State,ExitCode,NNodes,NodeList,AllocTRES,ReqTRES,Constraints,Timelimit,JobName,SubmitLine

One row of `jobs` per run of a job; one row of `allocations` per node of a job that held, or may have held, GPUs
(`node_list`: which GPUs, the accounting does not tell). Job steps are read over.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from tachograph.config import Configuration
from tachograph.errors import InputError, UsageError
from tachograph.schema import ALLOCATIONS, JOBS
from tachograph.sources import Chunk, Part, slurm_accounting
from tachograph.sources.feeds import settings_in
from tachograph.sources.files import expand, fingerprint, read_bytes
from tachograph.sources.slurm.reading import ROWS_PER_CHUNK, Reading, frame_of, read_content
from tachograph.sources.slurm.records import Cluster
from tachograph.units import parse_time

NAME = "sacct"
SUFFIXES = (".txt", ".log", ".json", ".csv", ".psv", ".sacct")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the source."""
    parser.add_argument("files", nargs="*", metavar="FILE", help="output of sacct (text or JSON), or a folder of it")
    parser.add_argument("--run", action="store_true", help="run sacct now, or ask whom [[sources]] names")
    parser.add_argument("--from", dest="since", metavar="TIME", help="with --run: from when on (default: a day ago)")
    parser.add_argument("--to", dest="until", metavar="TIME", help="with --run: until when (default: now)")
    parser.add_argument("--fields", metavar="LIST", help="fields of text without a header: jobid,jobidraw,...")
    parser.add_argument("--delimiter", metavar="TEXT", help="what stands between fields (default: found out)")


def read(options: argparse.Namespace, *, configuration: Configuration, now: datetime) -> Iterator[Chunk]:
    """Yield chunks of at most 100,000 records, each with its rows of `jobs` and `allocations`.

    Errors: InputError for a file that is no accounting, naming what to do.
    """
    if getattr(options, "run", False) or not options.files:
        yield from _run(options, configuration, now)
    fields, delimiter = getattr(options, "fields", None), getattr(options, "delimiter", None)
    for path in expand(options.files, SUFFIXES):
        mark = fingerprint(path, NAME, *_settings(configuration), fields or "", delimiter or "")
        cluster = Cluster.of(configuration)
        readings = read_file(path, cluster=cluster, fields=fields, delimiter=delimiter)
        for number, reading in enumerate(readings):
            yield Chunk(
                id=f"{mark}-{number}",
                source=NAME,
                origin=str(path),
                parts=(
                    Part("jobs", frame_of(reading.jobs, JOBS), rejects=reading.rejects()),
                    Part("allocations", frame_of(reading.allocations, ALLOCATIONS)),
                ),
                rows_read=reading.rows_read,
            )


def _run(options: argparse.Namespace, configuration: Configuration, now: datetime) -> Iterator[Chunk]:
    """Yield what whom `[[sources]]` names tells now, else `sacct`."""
    if not options.run or options.files:
        raise UsageError("name files, or run sacct with --run", do="see `tachograph ingest sacct --help`")
    zone = configuration.site.time_zone
    last = min(_instant(options.until, "--to", zone=zone, now=now) or now, now).replace(microsecond=0)
    first = _instant(options.since, "--from", zone=zone, now=now) or last - timedelta(days=1)
    if first >= last:
        raise UsageError("--from is not before --to", do="swap them")
    for settings in settings_in(configuration, NAME):
        feed = slurm_accounting.connect(settings, configuration=configuration)
        try:
            yield from feed.between(first, last)
        finally:
            feed.close()


def _instant(written: str | None, option: str, *, zone: str, now: datetime) -> datetime | None:
    """The time an option means. Errors: UsageError naming the option."""
    if written is None:
        return None
    try:
        return parse_time(written, now=now, zone_name=zone)
    except InputError as problem:
        raise UsageError(f"{option} {problem.what}", do=problem.do) from None


def _settings(configuration: Configuration) -> tuple[str, ...]:
    """What in the configuration changes the rows."""
    site, slurm = configuration.site, configuration.slurm
    return (site.time_zone, site.cluster, *slurm.shared, "/", *slurm.exclusive)


def read_file(
    path: Path,
    *,
    cluster: Cluster,
    fields: str | None = None,
    delimiter: str | None = None,
    rows_per_chunk: int = ROWS_PER_CHUNK,
) -> Iterator[Reading]:
    """Yield what a file holds, `rows_per_chunk` records at a time; one empty reading for a file without records.

    Errors: InputError for a file that is no accounting.
    """
    return read_content(
        read_bytes(path),
        where=str(path),
        cluster=cluster,
        fields=fields,
        delimiter=delimiter,
        rows_per_chunk=rows_per_chunk,
    )


def rejected_rows(
    path: Path, *, configuration: Configuration, fields: str | None = None, delimiter: str | None = None
) -> list[tuple[int, str, str]]:
    """Return (line or position in the list, reason, text) of every record that could not be read.

    Errors: InputError for a file that is no accounting.
    """
    readings = read_file(path, cluster=Cluster.of(configuration), fields=fields, delimiter=delimiter)
    return [row for reading in readings for row in reading.rejected]


def rejected(options: argparse.Namespace, *, configuration: Configuration) -> Iterator[tuple[str, int, str, str]]:
    """Yield (file, line or position, reason, text) of every record of the files named that could not be read."""
    for path in expand(options.files, SUFFIXES):
        for row in rejected_rows(path, configuration=configuration, fields=options.fields, delimiter=options.delimiter):
            yield str(path), *row
