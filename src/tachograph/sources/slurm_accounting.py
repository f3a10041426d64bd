"""Feed `sacct`: accounting asked again and again, from `sacct` or from slurmrestd.

[[sources]]
source = "sacct"
every_s = 300
from = "30d"                            # where to begin: a time, or a span before now; default: 1d
command = ["ssh", "login", "sacct"]     # default: sacct
# or:  how = "rest"; url = "http://slurm:6820"; user = "tachograph"; token_file = "/etc/tachograph/slurm.token"

Each asking reaches back over what was read before (`overlap_s`; with the first of a process and four times a day
`recheck_s`): accounting arrives late when slurmdbd was away. What is known already does not land again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from tachograph.errors import ConfigError, InputError
from tachograph.schema import ALLOCATIONS, JOBS, Reject
from tachograph.sources import Chunk, Part
from tachograph.sources.feeds import Asked, FeedSettings, Watermark, beginning, named
from tachograph.sources.slurm.asking import Accounting, Sacct, Span
from tachograph.sources.slurm.entries import check_how
from tachograph.sources.slurm.reading import Reading, frame_of, read_content
from tachograph.sources.slurm.records import Cluster, Row
from tachograph.sources.slurm.restd import RestAccess, Slurmrestd
from tachograph.sources.slurm.told import Told

if TYPE_CHECKING:
    from tachograph.config import Configuration

NAME = "sacct"
RECHECK_EVERY = timedelta(hours=6)
_WHOLE = 1 << 60  # records of one reading: a span lands whole, or not at all


class Settings(RestAccess, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys of `[[sources]]` of accounting."""

    every_s: float = 300.0
    how: Literal["command", "rest"] = "command"
    command: tuple[str, ...] = ("sacct",)
    clusters: tuple[str, ...] = ()  # of several under one slurmdbd; default: the one sacct is configured for
    from_: str = msgspec.field(name="from", default="1d")  # where a feed begins that has read nothing yet
    timeout_s: float = 300.0
    overlap_s: float = 3600.0
    recheck_s: float = 86400.0
    step_s: float = 86400.0  # the longest span asked at a time


def connect(settings: FeedSettings, *, configuration: Configuration) -> AccountingFeed:
    """Return the feed; nothing is asked yet. Errors: ConfigError naming the key."""
    if not isinstance(settings, Settings):
        raise ConfigError("these are no settings of accounting", where=settings.source, do="see docs/accounting.md")
    with named(settings.title):
        check_how(settings.how, url=settings.url, command=settings.command)
        for key, least in (("overlap_s", 0), ("recheck_s", 0), ("step_s", 60)):
            if getattr(settings, key) < least:
                raise ConfigError(f"{key} is too small", do=f"use {least} or more")
        beginning(settings.from_, now=datetime.now(UTC), zone_name=configuration.site.time_zone)
        return AccountingFeed(_accounting_of(settings), settings, Cluster.of(configuration))


def _accounting_of(settings: Settings) -> Accounting:
    """Return who is asked. Errors: ConfigError naming the key."""
    if settings.how == "rest":
        return Slurmrestd(settings, clusters=settings.clusters)
    return Sacct.of(settings.command, timeout_s=settings.timeout_s, clusters=settings.clusters)


class AccountingFeed:
    """Accounting as a stream: a chunk per span, its watermark the end of the span.

    What it keeps while it lives: when it last looked further back, whether this accounting names GPUs, and which
    records it rejected, so that each is counted once.
    """

    def __init__(self, accounting: Accounting, settings: Settings, cluster: Cluster) -> None:
        self.asked = Asked()
        self._accounting = accounting
        self._settings = settings
        self._cluster = cluster
        self._rechecked: datetime | None = None
        self._names_gpus = False
        self._told = Told()

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield what changed since the watermark, span by span.

        Errors: InputError naming who was asked and why nothing came; the watermark stays where it was.
        """
        self.asked = Asked()
        for span in self._spans(watermark(self._settings.stream), now.replace(microsecond=0)):
            reading = self._read(span)
            yield Chunk(
                id=self._settings.stream,
                source=NAME,
                origin=self._accounting.where,
                parts=_parts_of(reading, self._untold(reading)),
                rows_read=reading.rows_read,
                watermark=span.last,
            )

    def close(self) -> None:
        """Let go of connections."""
        self._accounting.close()

    def between(self, first: datetime, last: datetime) -> Iterator[Chunk]:
        """Yield everything of a span, in no stream: what is known already does not land again. Errors: as `poll`."""
        for span in steps(first, first, last, timedelta(seconds=self._settings.step_s)):
            reading = self._read(span)
            name = f"{NAME}-run:{span.first.isoformat()}/{span.last.isoformat()}:{datetime.now(UTC).isoformat()}"
            parts = _parts_of(reading, self._untold(reading))
            yield Chunk(name, NAME, self._accounting.where, parts, reading.rows_read)

    def _spans(self, mark: datetime | None, now: datetime) -> Iterator[Span]:
        """The spans to ask for; the first reaches back over what was read before."""
        step = timedelta(seconds=self._settings.step_s)
        if mark is None:
            begin = beginning(self._settings.from_, now=now, zone_name=self._cluster.time_zone)
            yield from steps(begin, begin, now, step)
            self._rechecked = now
            return
        if now <= mark:
            what = f"accounting was read up to {mark.isoformat()}, which is not before now"
            raise InputError(what, where=self._settings.stream, do="check this host's clock")
        recheck = self._rechecked is None or now - self._rechecked >= RECHECK_EVERY
        back = max(self._settings.overlap_s, self._settings.recheck_s if recheck else 0.0)
        yield from steps(mark - timedelta(seconds=back), mark, now, step)
        if recheck:
            self._rechecked = now

    def _read(self, span: Span) -> Reading:
        content = self._accounting.ask(span)
        (reading,) = read_content(
            content,
            where=self._accounting.where,
            cluster=self._cluster,
            delimiter=self._accounting.delimiter,
            rows_per_chunk=_WHOLE,
            names_gpus=self._names_gpus,
        )
        self._names_gpus |= reading.names_gpus
        return reading

    def _untold(self, reading: Reading) -> tuple[Reject, ...]:
        """What was removed for the first time: the same record is read again as long as spans overlap."""
        fresh = Reading(rejected=self._told.new(reading.rejected), no_raw_id=reading.no_raw_id)
        for job in reading.jobs:
            for name in _broken(job):
                if self._told.first_time("invalid_utf8", job["cluster"], job["job_id"], job["submit"], name):
                    fresh.replaced[name] += 1
        return fresh.rejects()


def _broken(row: Row) -> list[str]:
    """Texts that were not UTF-8."""
    return [name for name in ("name", "user", "account", "submit_line") if "\ufffd" in str(row[name] or "")]


def _parts_of(reading: Reading, rejects: tuple[Reject, ...]) -> tuple[Part, ...]:
    """Return the rows of a reading, of which only those land that tell more than the lake."""
    return (
        Part("jobs", frame_of([_asked_while_running(row) for row in reading.jobs], JOBS), {}, rejects, overlaps=True),
        Part("allocations", frame_of(reading.allocations, ALLOCATIONS), overlaps=True),
    )


def _asked_while_running(row: Row) -> Row:
    """A job that has not ended has run until it was asked for: that is no news each time."""
    return row if row["end"] is not None else {**row, "elapsed_s": None}


def steps(first: datetime, mark: datetime, last: datetime, step: timedelta) -> Iterator[Span]:
    """Yield spans from `first` to `last`, each ending after `mark`, cut every `step` from there on.

    >>> hour = timedelta(hours=1)
    >>> at = [datetime(2026, 7, 1, hour, tzinfo=UTC) for hour in range(4)]
    >>> [(span.first.hour, span.last.hour) for span in steps(at[0], at[1], at[3], hour)]
    [(0, 2), (2, 3)]
    """
    while mark < last:
        mark = min(mark + step, last)
        yield Span(first, mark)
        first = mark
