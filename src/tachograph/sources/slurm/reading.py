"""What an export of accounting holds: rows of `jobs` and `allocations`, and what could not be read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime

import polars as pl

from tachograph.errors import InputError
from tachograph.schema import Reject, Table
from tachograph.sources.slurm import database, nersc, text
from tachograph.sources.slurm.detect import Found, detect
from tachograph.sources.slurm.fields import BadRowError
from tachograph.sources.slurm.records import Cluster, Entry, JobRecord, Row, allocation_rows, from_fields, job_row
from tachograph.sources.slurm.told import Rejected, counted_rejects

ROWS_PER_CHUNK = 100_000

_TRACKED = re.compile(rb"gres/gpu(?::[^=,|]{1,64})?=\d")
_TEXTS = ("name", "user", "account", "submit_line")  # in which people write what they like
_COLUMN = {"jobname": "name", "submitline": "submit_line"}  # of sacct's fields; others are called the same


@dataclass(slots=True)
class Reading:
    """What a part of a file holds: rows for `jobs` and `allocations`, what was rejected, how many steps were passed."""

    jobs: list[Row] = field(default_factory=list)
    allocations: list[Row] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    steps: int = 0
    rows_read: int = 0
    replaced: Counter[str] = field(default_factory=Counter)
    no_raw_id: list[str] = field(default_factory=list)
    names_gpus: bool = False

    def rejects(self) -> tuple[Reject, ...]:
        """Rows given up, by reason; texts that were not UTF-8, by column; ids that only people know."""
        broken = [Reject("invalid_utf8", _COLUMN.get(name, name), n) for name, n in sorted(self.replaced.items())]
        ids = [Reject("no_raw_job_id", "job_id", len(self.no_raw_id), self.no_raw_id[0])] if self.no_raw_id else []
        return (*counted_rejects(self.rejected), *broken, *ids)


@dataclass(frozen=True, slots=True)
class _Format:
    """How one format is read: its records, a record's job (None: a step), what is shown of one, its steps."""

    entries: Iterator[Entry]
    record: Callable[[Entry], JobRecord | None]
    shown: Callable[[Entry], str]
    steps: Callable[[Entry], int]


def read_content(
    content: bytes,
    *,
    where: str,
    cluster: Cluster,
    fields: str | None = None,
    delimiter: str | None = None,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    names_gpus: bool = False,
) -> Iterator[Reading]:
    """Yield what an export holds, `rows_per_chunk` records at a time; one empty reading where it has no records.

    `names_gpus`: this accounting is known to name GPUs, also where this part of it has none.
    Errors: InputError naming `where` for what is no accounting.
    """
    found = detect(content, where=where)
    replaced: Counter[str] = Counter()
    tracked = database.names_gpus(found.document) if found.kind == "database" else bool(_TRACKED.search(content))
    cluster = replace(cluster, tracks_gpus=tracked or names_gpus)
    how = _format(found, content, cluster, where, replaced, fields=fields, delimiter=delimiter)
    del content
    reading = Reading(names_gpus=cluster.tracks_gpus)
    for entry in how.entries:
        if len(reading.jobs) + len(reading.rejected) + reading.steps >= rows_per_chunk:
            yield _closed(reading, replaced)
            reading = Reading(names_gpus=cluster.tracks_gpus)
        job = _take(entry, how, reading, cluster)
        if job and not found.clean:
            replaced.update(name for name in _TEXTS if "\ufffd" in (getattr(job, name) or ""))
    yield _closed(reading, replaced)


def _closed(reading: Reading, replaced: Counter[str]) -> Reading:
    """The reading with the count of texts that were not UTF-8 so far, which starts again."""
    reading.replaced = Counter(replaced)
    replaced.clear()
    return reading


def _format(
    found: Found,
    content: bytes,
    cluster: Cluster,
    where: str,
    replaced: Counter[str],
    *,
    fields: str | None,
    delimiter: str | None,
) -> _Format:
    match found.kind:
        case "text":
            return _Format(
                text.read_text(content, fields=fields, delimiter=delimiter, where=where, replaced=replaced),
                lambda entry: from_fields(entry.fields or {}, cluster),
                lambda entry: entry.text,
                lambda entry: 0,
            )
        case "database":
            return _Format(
                database.read_database(found.document),
                lambda entry: database.from_database(entry.fields or {}, cluster),
                lambda entry: entry.text or database.shown(entry.fields or {}),
                lambda entry: database.steps(entry.fields or {}),
            )
        case "superfacility":
            return _Format(
                nersc.read_superfacility(found.document, where=where),
                lambda entry: nersc.from_superfacility(entry.fields or {}, cluster),
                lambda entry: entry.text or nersc.shown(entry.fields or {}),
                lambda entry: 0,
            )
        case "iris":
            return _Format(
                nersc.read_iris(found.document),
                lambda entry: nersc.from_iris(entry.fields or {}, cluster),
                lambda entry: entry.text or nersc.shown(entry.fields or {}),
                lambda entry: 0,
            )
        case _:
            raise InputError(
                "this says which GPUs jobs hold, it is no accounting",
                where=where,
                do="read it with `tachograph ingest allocation-map`",
            )


def _take(entry: Entry, how: _Format, reading: Reading, cluster: Cluster) -> JobRecord | None:
    """Add one record to a reading: as rows, as a step, or as rejected; return the job whose rows were added."""
    steps = how.steps(entry)
    reading.steps += steps
    reading.rows_read += 1 + steps
    if entry.reason is not None:
        reading.rejected.append((entry.place, entry.reason, how.shown(entry)))
        return None
    try:
        job = how.record(entry)
        if job is None:
            reading.steps += 1
            return None
        row = job_row(job, cluster)
        allocations = list(allocation_rows(row))
    except BadRowError as problem:
        reading.rejected.append((entry.place, problem.reason, how.shown(entry)))
        return None
    if not job.id.raw_told:
        reading.no_raw_id.append(job.id.raw)
    reading.jobs.append(row)
    reading.allocations += allocations
    return job


def frame_of(rows: list[Row], table: Table) -> pl.DataFrame:
    """Return rows as a frame in the schema of `table`, without `seq`."""
    schema = {name: dtype for name, dtype in table.schema.items() if name != "seq"}
    columns = {name: [row[name] for row in rows] for name in schema}
    times = {
        name: pl.Series(name, [_microseconds(value) for value in columns.pop(name)], pl.Int64).cast(dtype)
        for name, dtype in schema.items()
        if isinstance(dtype, pl.Datetime)
    }
    return pl.DataFrame({name: times[name] if name in times else columns[name] for name in schema}, schema=schema)


def _microseconds(time: object) -> int | None:
    """Since 1970; many times faster than handing over datetimes with a zone."""
    return round(time.timestamp() * 1e6) if isinstance(time, datetime) else None
