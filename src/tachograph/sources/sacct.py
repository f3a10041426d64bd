"""Source and feed `sacct`: jobs from Slurm accounting as text, JSON, or NERSC's exports."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from pathlib import Path
from typing import Literal, Unpack, cast

import msgspec

from tachograph.catalog.chunks import Chunk, Reject
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError, InputError, UsageError
from tachograph.catalog.units import parse_time
from tachograph.sources.files import add_files, expand, fingerprint, read_bytes
from tachograph.sources.registry import (
    PollOutcome,
    Watermark,
    entry_errors,
    settings_in,
    start_time,
)
from tachograph.sources.slurm.commands import (
    AccountingAccess,
    AccountingSpan,
    SacctCommand,
    check_how,
)
from tachograph.sources.slurm.exports import (
    ROWS_PER_CHUNK,
    AccountingReading,
    latest_time,
    polled_parts,
    read_content,
    saved_parts,
)
from tachograph.sources.slurm.records import RejectedBefore, SlurmCluster
from tachograph.sources.slurm.restd import Slurmrestd, SlurmrestdAccess
from tachograph.sources.slurm.sacct_text import TextOptions, read_texts

SACCT = "sacct"
RECHECK_EVERY = timedelta(hours=6)
_WHOLE = 1 << 60  # records of one reading: a span is committed whole, or not at all


class SacctSettings(SlurmrestdAccess, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys of `[[sources]]` of accounting."""

    every_s: float = 300.0
    how: Literal["command", "rest"] = "command"
    command: tuple[str, ...] = ("sacct",)
    # Of several under one slurmdbd; default: the one sacct is configured for.
    clusters: tuple[str, ...] = ()
    # Where a feed begins that has read nothing yet.
    from_: str = msgspec.field(name="from", default="1d")
    timeout_s: float = 300.0
    overlap_s: float = 3600.0
    recheck_s: float = 86400.0
    step_s: float = 86400.0  # the longest span requested at a time
    steps: bool = True  # request the steps of jobs, too

    @property
    def begins_at(self) -> str:
        """Time from which a lake without rows of the source is filled."""
        return self.from_


SETTINGS = SacctSettings


def connect(settings: SacctSettings, *, configuration: Configuration) -> AccountingFeed:
    """Return the feed; nothing is requested yet. Errors: ConfigError naming the key."""
    with entry_errors(settings.title):
        check_how(settings.how, url=settings.url, command=settings.command)
        for key, least in (("overlap_s", 0), ("recheck_s", 0), ("step_s", 60)):
            if getattr(settings, key) < least:
                raise ConfigError(f"{key} is too small", do=f"use {least} or more")
        start_time(settings.from_, now=datetime.now(UTC), zone_name=configuration.site.time_zone)
        return AccountingFeed(_accounting_of(settings), settings, SlurmCluster.of(configuration))


def _accounting_of(settings: SacctSettings) -> AccountingAccess:
    """Return the server or command to request from. Errors: ConfigError naming the key."""
    if settings.how == "rest":
        return Slurmrestd(settings, clusters=settings.clusters, steps=settings.steps)
    return SacctCommand.of(
        settings.command,
        timeout_s=settings.timeout_s,
        clusters=settings.clusters,
        steps=settings.steps,
    )


class AccountingFeed:
    """Accounting as a stream: a chunk per span, its watermark the end of the span.

    State until it is closed: when it last read further back, whether this accounting names GPUs,
    and which records it rejected, so that each is counted once.
    """

    def __init__(
        self, accounting: AccountingAccess, settings: SacctSettings, cluster: SlurmCluster
    ) -> None:
        self.outcome = PollOutcome()
        self._accounting = accounting
        self._settings = settings
        self._cluster = cluster
        self._rechecked: datetime | None = None
        self._names_gpus = False
        self._rejected_before = RejectedBefore()

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield changes since the watermark, span by span.

        Errors: InputError naming the address and the reason; the watermark stays where it was.
        """
        self.outcome = PollOutcome()
        for span in self._spans(watermark(self._settings.stream), now.replace(microsecond=0)):
            reading = self._read(span)
            yield Chunk(
                id=self._settings.stream,
                source=SACCT,
                origin=self._accounting.where,
                parts=polled_parts(reading, self._new_rejects(reading)),
                rows_read=reading.rows_read,
                watermark=span.last,
            )

    def close(self) -> None:
        """Close connections."""
        self._accounting.close()

    def between(self, first: datetime, last: datetime) -> Iterator[Chunk]:
        """Yield all records of a time span, independent of the feed's stream.

        What is known already is not committed again. Errors: as `poll`.
        """
        for span in steps(first, first, last, timedelta(seconds=self._settings.step_s)):
            reading = self._read(span)
            name = f"{SACCT}-run:{span.first.isoformat()}/{span.last.isoformat()}:{datetime.now(UTC).isoformat()}"
            parts = polled_parts(reading, self._new_rejects(reading))
            yield Chunk(name, SACCT, self._accounting.where, parts, reading.rows_read)

    def _spans(self, mark: datetime | None, now: datetime) -> Iterator[AccountingSpan]:
        """Return the spans to request; the first overlaps the last reading."""
        step = timedelta(seconds=self._settings.step_s)
        if mark is None:
            begin = start_time(self._settings.from_, now=now, zone_name=self._cluster.time_zone)
            yield from steps(begin, begin, now, step)
            self._rechecked = now
            return
        if now <= mark:
            what = f"accounting was read up to {mark.isoformat()}, which is in the future"
            raise InputError(what, where=self._settings.stream, do="check this host's clock")
        recheck = self._rechecked is None or now - self._rechecked >= RECHECK_EVERY
        back = max(self._settings.overlap_s, self._settings.recheck_s if recheck else 0.0)
        yield from steps(mark - timedelta(seconds=back), mark, now, step)
        if recheck:
            self._rechecked = now

    def _read(self, span: AccountingSpan) -> AccountingReading:
        answer, where = self._accounting.fetch(span), self._accounting.where
        texts = None
        if answer.texts:
            texts = read_texts(answer.texts, delimiter=answer.texts_delimiter, where=where)
        (reading,) = read_content(
            answer.content,
            where=where,
            cluster=self._cluster,
            delimiter=answer.delimiter or None,
            rows_per_chunk=_WHOLE,
            names_gpus=self._names_gpus,
            texts=texts,
        )
        if texts is not None:
            reading.rejected_texts = texts.rejected()
        self._names_gpus |= reading.names_gpus
        return reading

    def _new_rejects(self, reading: AccountingReading) -> tuple[Reject, ...]:
        """Return rejects not counted before: overlapping spans repeat records."""
        fresh = AccountingReading(
            rejected=self._rejected_before.new(reading.rejected), no_raw_id=reading.no_raw_id
        )
        fresh.rejected_texts = self._rejected_before.new(reading.rejected_texts)
        for job in reading.jobs:
            key = (job["cluster"], job["job_id"], job["submit"])
            for name in ("name", "user", "account", "submit_line"):
                is_broken = "\ufffd" in str(job[name] or "")
                if is_broken and self._rejected_before.first_time("invalid_utf8", *key, name):
                    fresh.replaced[name] += 1
        fresh.unread = [
            value for value in reading.unread if self._rejected_before.first_time(value)
        ]
        return fresh.rejects()


def steps(
    first: datetime, mark: datetime, last: datetime, step: timedelta
) -> Iterator[AccountingSpan]:
    """Yield spans from `first` to `last`, each ending after `mark`, cut every `step` from there on.

    >>> hour = timedelta(hours=1)
    >>> at = [datetime(2026, 7, 1, hour, tzinfo=UTC) for hour in range(4)]
    >>> [(span.first.hour, span.last.hour) for span in steps(at[0], at[1], at[3], hour)]
    [(0, 2), (2, 3)]
    """
    while mark < last:
        mark = min(mark + step, last)
        yield AccountingSpan(first, mark)
        first = mark


NAME = "sacct"
_EDITION = "5"  # of what is read of a file: those read by an earlier one are read again
SUFFIXES = (".txt", ".log", ".json", ".csv", ".psv", ".sacct")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the source."""
    add_files(parser, may_lack=True)
    parser.add_argument(
        "--run", action="store_true", help="run sacct now, or query the server of [[sources]]"
    )
    parser.add_argument(
        "--from",
        dest="since",
        metavar="TIME",
        help="with --run: start of the time span (default: a day ago)",
    )
    parser.add_argument(
        "--to", dest="until", metavar="TIME", help="with --run: end of the time span (default: now)"
    )
    parser.add_argument(
        "--fields", metavar="LIST", help="fields of text without a header: jobid,jobidraw,..."
    )
    parser.add_argument(
        "--delimiter", metavar="TEXT", help="delimiter between fields (default: detected)"
    )
    parser.add_argument(
        "--trusted",
        action="store_true",
        help=("trust the text: no job name or submit line in it imitates a record"),
    )


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield chunks of at most 100,000 records, each with its rows of `jobs` and `allocations`.

    Errors: InputError for a file that is no accounting, naming what to do.
    """
    if getattr(options, "run", False) or not options.files:
        yield from _run(options, configuration, now)
    text_options = _text_options(options)
    site, layout = configuration.site, (text_options["fields"], text_options["delimiter"])
    settings = (site.time_zone, site.cluster, *(part or "" for part in layout))
    cluster = SlurmCluster.of(configuration)
    for path in expand(options.files, SUFFIXES):
        mark = fingerprint(path, NAME, _EDITION, *settings)
        content = partial(read_file, path, cluster=cluster, **text_options)
        latest = cache(partial(latest_time, content))
        for number, reading in enumerate(content()):
            yield Chunk(
                f"{mark}-{number}",
                NAME,
                str(path),
                saved_parts(reading, latest),
                reading.rows_read,
            )


def _run(
    options: argparse.Namespace, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield jobs from the server in `[[sources]]`, else from `sacct`."""
    if not options.run or options.files:
        raise UsageError(
            "name files, or run sacct with --run", do="see `tachograph ingest sacct --help`"
        )
    zone = configuration.site.time_zone
    last = min(_instant(options.until, "--to", zone=zone, now=now) or now, now).replace(
        microsecond=0
    )
    first = _instant(options.since, "--from", zone=zone, now=now) or last - timedelta(days=1)
    if first >= last:
        raise UsageError("--from is not before --to", do="swap them")
    for settings in settings_in(configuration, NAME):
        with closing(connect(cast("SacctSettings", settings), configuration=configuration)) as feed:
            yield from feed.between(first, last)


def _instant(written: str | None, option: str, *, zone: str, now: datetime) -> datetime | None:
    """The time an option means. Errors: UsageError naming the option."""
    if written is None:
        return None
    try:
        return parse_time(written, now=now, zone_name=zone)
    except UsageError as problem:
        raise UsageError(f"{option} {problem.what}", do=problem.do) from None


def read_file(
    path: Path,
    *,
    cluster: SlurmCluster,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    **text_options: Unpack[TextOptions],
) -> Iterator[AccountingReading]:
    """Yield the content of a file, `rows_per_chunk` records each.

    A file without records yields one empty reading.

    Errors: InputError for a file that is no accounting.
    """
    return read_content(
        read_bytes(path),
        where=str(path),
        cluster=cluster,
        rows_per_chunk=rows_per_chunk,
        **text_options,
    )


def _text_options(options: argparse.Namespace) -> TextOptions:
    return TextOptions(
        fields=getattr(options, "fields", None),
        delimiter=getattr(options, "delimiter", None),
        trusted=getattr(options, "trusted", False),
    )


def rejected(
    options: argparse.Namespace, *, configuration: Configuration
) -> Iterator[tuple[str, int, str, str]]:
    """Yield (file, place, reason, text) of every unreadable record."""
    for path in expand(options.files, SUFFIXES):
        cluster = SlurmCluster.of(configuration)
        for reading in read_file(path, cluster=cluster, **_text_options(options)):
            for row in reading.rejected:
                yield str(path), *row
