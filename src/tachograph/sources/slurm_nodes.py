"""Feed and source `slurm-nodes`: nodes with GPUs, why some cannot be used, what jobs wait for.

[[sources]] source = "slurm-nodes" every_s = 300 command = ["ssh", "login", "scontrol"]
# default: scontrol; sinfo, squeue and sacctmgr are searched beside it

Rows of `node_states` and `waiting_jobs`. A poll shows one moment: what two polls in a row show the
same is one row from the first to the last of them. What lies between two rows, and how far that is
known, is decided where capacity is added up.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import PurePosixPath

import msgspec

from tachograph.catalog.chunks import Chunk, ChunkPart, next_watermark
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError, InputError
from tachograph.catalog.tables import NODE_STATES, STATE_HOLDS_S, WAITING_JOBS
from tachograph.catalog.units import parse_time
from tachograph.sources.files import add_files, expand, fingerprint, read_bytes
from tachograph.sources.registry import (
    FeedSettings,
    PollOutcome,
    Watermark,
    entry_errors,
    start_time,
)
from tachograph.sources.slurm.commands import IN_SECONDS, SiteProgram, check_how
from tachograph.sources.slurm.exports import frame_of
from tachograph.sources.slurm.fields import parse_document
from tachograph.sources.slurm.nodes import (
    EVENT_FIELDS,
    NodeReading,
    read_document,
    read_events,
    read_nodes,
)
from tachograph.sources.slurm.records import (
    RejectedBefore,
    SlurmCluster,
    SlurmRow,
    counted_rejects,
)

SLURM_NODES = "slurm-nodes"
SUFFIXES = (".txt", ".json", ".log")
# Not by what rows differ: it is what they tell.
_TIMES = ("start", "end")


class SlurmNodesSettings(FeedSettings, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Keys of `[[sources]]` of nodes."""

    every_s: float = 300.0
    command: tuple[str, ...] = ("scontrol",)
    timeout_s: float = 60.0
    events: bool = True  # of the accounting, too
    # From when on events are read where nothing is in the lake yet.
    from_: str = msgspec.field(name="from", default="30d")


SETTINGS = SlurmNodesSettings


def connect(settings: SlurmNodesSettings, *, configuration: Configuration) -> NodesFeed:
    """Return the feed; nothing is requested yet. Errors: ConfigError naming the key."""
    with entry_errors(settings.title):
        check_how("command", url="", command=settings.command)
        if settings.every_s > STATE_HOLDS_S:
            raise ConfigError(
                f"every_s is {settings.every_s:g}: states are known for {STATE_HOLDS_S} s",
                do="use 300",
            )
    return NodesFeed(settings, configuration)


class NodesFeed:
    """States of nodes and waiting jobs as a stream: a chunk per poll."""

    def __init__(self, settings: SlurmNodesSettings, configuration: Configuration) -> None:
        self.outcome = PollOutcome()
        self._settings = settings
        self._cluster = SlurmCluster.of(configuration)
        # Seconds since 1970 are printed for us, whatever the zone of the site is.
        *before, scontrol = settings.command
        names = ("sinfo", "squeue", "sacctmgr")
        siblings = {name: str(PurePosixPath(scontrol).with_name(name)) for name in names}
        self._programs = {
            name: SiteProgram(
                (*before, program), timeout_s=settings.timeout_s, environment=IN_SECONDS
            )
            for name, program in {"scontrol": scontrol, **siblings}.items()
        }
        self._has_json = True  # scontrol prints JSON; up to Slurm 22.05 only sinfo does
        self._open: dict[object, SlurmRow] = {}
        self._rejected_before = RejectedBefore()

    def poll(self, watermark: Watermark, *, now: datetime) -> Iterator[Chunk]:
        """Yield what is so now, and new events. Errors: InputError if nodes cannot be read."""
        self.outcome = PollOutcome()
        stream = self._settings.stream
        before = watermark(stream)
        reading = NodeReading()
        self._add(reading, *self._nodes(), now)
        for name, words in (
            ("scontrol", ("-o", "show", "reservation")),
            ("squeue", ("--all", "--states=PENDING", "--json")),
        ):
            self._try(reading, name, words, now)
        if self._settings.events:
            self._add_events(reading, before, now)
        parts = parts_of(
            reading,
            [self._extended(row, now) for row in reading.states],
            [self._extended(row, now) for row in reading.waiting],
            rejected=self._rejected_before.new(reading.rejected),
        )
        self._open = {
            key: row for key, row in self._open.items() if row["end"] == now
        }  # of what is gone a new row begins
        yield Chunk(
            stream,
            SLURM_NODES,
            self._programs["scontrol"].name,
            parts,
            reading.rows_read,
            watermark=next_watermark(now, before=before),
            passed=reading.passed,
        )

    def close(self) -> None:
        """Nothing is kept open."""

    def _nodes(self) -> tuple[str, bytes]:
        """The answer about nodes in JSON, and its command."""
        scontrol, sinfo = self._programs["scontrol"], self._programs["sinfo"]
        if self._has_json:
            try:
                return scontrol.name, scontrol.output("--all", "show", "nodes", "--json")
            except InputError as problem:
                if "unrecognized option" not in problem.what:
                    raise
                self._has_json = False
        return sinfo.name, sinfo.output("--all", "--json")

    def _add(self, reading: NodeReading, where: str, answer: bytes, now: datetime) -> None:
        if answer[:1] in (b"{", b"["):
            document, _ = parse_document(answer, where=where)
            read_document(document, reading, where=where, cluster=self._cluster, at=now)
        elif b"ReservationName=" in answer:
            zone_free = replace(self._cluster, time_zone="UTC")
            held = read_nodes(answer, where=where, cluster=zone_free, at=now, trusted=True)
            # A comment may imitate a node, but not a node in JSON.
            reading.states += [row for row in held.states if row["provenance"] == "reservation"]

    def _try(self, reading: NodeReading, name: str, words: Sequence[str], now: datetime) -> None:
        """Add an answer that may be missing."""
        try:
            self._add(reading, self._programs[name].name, self._programs[name].output(*words), now)
        except InputError as problem:
            self.outcome.unreachable[self._programs[name].name] = problem.what

    def _add_events(self, reading: NodeReading, before: datetime | None, now: datetime) -> None:
        """Add events since the last poll; open ones are always among them."""
        begin = before or start_time(self._settings.from_, now=now, zone_name="UTC")
        program = self._programs["sacctmgr"]
        words = ("--parsable2", "show", "event", f"format={EVENT_FIELDS}")
        try:
            since = f"start=uts{int(begin.timestamp())}"
            text = program.output(*words, since).decode("utf-8", "replace")
            read_events(text, reading, cluster=self._cluster)
        except InputError as problem:
            self.outcome.unreachable[program.name] = problem.what

    def _extended(self, row: SlurmRow, now: datetime) -> SlurmRow:
        """Return a row that begins where a poll first saw the same; events have their own times."""
        if row["start"] != now:
            return row
        key = row.get("node"), row.get("job_id"), row.get("provenance")
        last = self._open.get(key)
        if last is not None and _holds(last, row, now):
            row = {**row, "start": last["start"]}
        self._open[key] = row
        return row


def _holds(last: SlurmRow, row: SlurmRow, now: datetime) -> bool:
    """Whether a row shows what the poll before it did, not too long ago."""
    ended = last["end"]
    is_near = isinstance(ended, datetime) and now - ended <= timedelta(seconds=STATE_HOLDS_S)
    return is_near and all(last[name] == row[name] for name in row if name not in _TIMES)


def parts_of(
    reading: NodeReading,
    states: list[SlurmRow],
    waiting: list[SlurmRow],
    *,
    rejected: Sequence[tuple[int, str, str]],
) -> tuple[ChunkPart, ...]:
    """Return the parts of a chunk; its rejects are those of nodes."""
    return (
        ChunkPart(
            NODE_STATES.name,
            frame_of(states, NODE_STATES),
            rejects=counted_rejects(rejected),
            overlaps=True,
            rows_used=reading.rows_read
            - len(reading.rejected)
            - reading.passed.total()
            - len(waiting),
        ),
        ChunkPart(WAITING_JOBS.name, frame_of(waiting, WAITING_JOBS), overlaps=True),
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the source."""
    add_files(
        parser,
        "answers of scontrol show node(s) and reservation, sinfo --json, squeue --json, "
        "sacctmgr show event, or a folder of them",
    )
    parser.add_argument(
        "--at",
        metavar="TIME",
        help="when they were saved, where they do not say so: a time, or seconds since 1970",
    )
    parser.add_argument(
        "--trusted",
        action="store_true",
        help="trust text of scontrol: no reason or comment in it imitates a record",
    )


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield one chunk per file. Errors: InputError for a file that holds no answer about nodes."""
    site = configuration.site
    written = getattr(options, "at", None)
    at = parse_time(written, now=now, zone_name=site.time_zone) if written else None
    for path in expand(options.files, SUFFIXES):
        reading = read_nodes(
            read_bytes(path),
            where=str(path),
            cluster=SlurmCluster.of(configuration),
            at=at,
            trusted=getattr(options, "trusted", False),
        )
        parts = parts_of(reading, reading.states, reading.waiting, rejected=reading.rejected)
        mark = fingerprint(path, SLURM_NODES, site.time_zone, site.cluster, written or "")
        yield Chunk(mark, SLURM_NODES, str(path), parts, reading.rows_read, passed=reading.passed)
