"""An export of accounting: detects its format, reads `jobs` and `allocations`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack

from tachograph.catalog.chunks import ChunkPart, Reject
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import ALLOCATIONS, JOBS, STEPS, LakeTable
from tachograph.sources.slurm import database, nersc, sacct_text
from tachograph.sources.slurm.allocations import header
from tachograph.sources.slurm.fields import (
    BadRowError,
    json_objects,
    json_text,
    json_value,
    parse_document,
)
from tachograph.sources.slurm.nersc import is_iris, is_superfacility
from tachograph.sources.slurm.recorded_use import AccountedRun, recorded_use
from tachograph.sources.slurm.records import (
    JobRecord,
    RejectedRecord,
    SlurmCluster,
    SlurmEntry,
    SlurmRow,
    allocation_rows,
    counted_rejects,
    from_fields,
    job_of_steps,
    job_row,
    step_row,
)
from tachograph.sources.slurm.usage import (
    EndedUsage,
    HostUsage,
    UnreadValue,
    gpu_use_of_run,
    usage_of_run,
)

if TYPE_CHECKING:
    import polars as pl

ExportKind = Literal[
    "text", "database", "superfacility", "iris", "controller", "scontrol", "map", "prolog"
]

NOTHING_FOUND = 9003  # ESLURM_REST_EMPTY_RESULT of slurm_errno.h: an answer, no failure
_HEAD = 65536  # bytes that are looked at
_PACKED = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"PK\x03\x04": "zip",
}
# {format: what it is, and the source that reads it}; a map may be samples with a job
_WRITTEN: Mapping[ExportKind, tuple[str, str]] = {
    "text": ("sacct output", "sacct"),
    "database": ("sacct output", "sacct"),
    "superfacility": ("sacct output", "sacct"),
    "iris": ("an export of Iris", "sacct"),
    "controller": ("output of squeue or scontrol", "allocation-map"),
    "scontrol": ("scontrol output", "allocation-map"),
    "prolog": ("a log of prologs", "allocation-map"),
}
_PROLOG = re.compile(r"^\S+ (?:prolog|epilog) \S*=", re.MULTILINE)
_EXPORTER = re.compile(r"^(?:# (?:HELP|TYPE) |(?:DCGM_FI_|nvidia_|node_)\w+[{ ])", re.MULTILINE)
_DMON = re.compile(r"^#\s*Entity\b", re.MULTILINE)


class TelemetryError(InputError):
    """A file of samples, not of accounting; `source` reads it, None: no source does."""

    def __init__(self, what: str, source: str | None, where: str) -> None:
        do = f"read it with `tachograph ingest {source}`" if source else "no source reads it yet"
        super().__init__(f"this is {what}, not accounting", where=where, do=do)
        self.source = source


@dataclass(frozen=True, slots=True)
class DetectedExport:
    """A format, the JSON document if any, and whether all text was UTF-8."""

    kind: ExportKind
    document: object = None
    clean: bool = True


def detect(content: bytes, *, where: str) -> DetectedExport:
    """Return the format of a file.

    Errors: InputError for packed files, telemetry (naming the source that reads it), other JSON,
    broken JSON.
    """
    for magic, name in _PACKED.items():
        if content.startswith(magic):
            raise InputError(f"the file is packed with {name}", where=where, do="unpack it first")
    if content.startswith(b"PAR1"):
        raise InputError(
            "this is Parquet, not Slurm accounting", where=where, do="name the export of sacct"
        )
    start = content.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if start in {b"{", b"["}:
        document, clean = parse_document(content, where=where)
        return DetectedExport(_document_kind(document, where), document, clean)
    return DetectedExport(_text_kind(content[:_HEAD].decode("utf-8", "replace"), where))


def slurm_output(content: bytes, meaning: Callable[[str], str | None]) -> tuple[str, str] | None:
    """Return what Slurm or NERSC wrote into a file, and the source that reads it; else None.

    content: all of JSON, the beginning of text. meaning: what a column of a list of jobs holds, or
    None; text with such a column that is no field of sacct was written by another program.
    """
    try:
        detected = detect(content, where="")
        if detected.kind == "text" and not _is_sacct_text(content, meaning):
            return None
    except InputError:
        return None
    if detected.kind == "database":  # also what any list of records called `jobs` is taken for
        jobs = json_objects(detected.document, "jobs")
        if not jobs or not isinstance(jobs[0].get("time"), dict):
            return None
    return _WRITTEN.get(detected.kind)


def _is_sacct_text(content: bytes, meaning: Callable[[str], str | None]) -> bool:
    """Whether sacct's fields are all that text has of jobs, and its records can be read."""
    header = content.decode("utf-8-sig", "replace").lstrip().partition("\n")[0]
    names = sacct_text.find_layout(header, fields=None, delimiter=None, where="").names
    if any(meaning(name) for name in names if name not in sacct_text.FIELD_NAMES):
        return False
    readings = read_content(
        content, where="", cluster=SlurmCluster(), rows_per_chunk=1, trusted=True
    )
    return bool(next(readings).jobs)


def _text_kind(head: str, where: str) -> ExportKind:
    first = next((line for line in head.split("\n") if line.strip()), "").lower()
    if not first:
        raise InputError("the file holds only blanks", where=where, do="export it again")
    columns = set(header(first)[1])
    if {"job_id", "node", "gpu"} <= columns:
        return "map"
    if head.lstrip().startswith("JobId="):
        return "scontrol"
    if _PROLOG.match(head.lstrip()):
        return "prolog"
    if _EXPORTER.match(head.lstrip()):
        raise TelemetryError("metrics of an exporter", "dcgm-exporter", where)
    if _DMON.search(head):
        raise TelemetryError("output of `dcgmi dmon`", "gpu-tools", where)
    if "gpu_id" in columns or any(name.startswith("nersc_ldms_dcgm_") for name in columns):
        raise TelemetryError("a telemetry export", "ldms", where)
    return "text"


def _document_kind(document: object, where: str) -> ExportKind:
    if isinstance(json_value(document, "jobs"), list):
        return _jobs_kind(document, where)
    if isinstance(json_value(document, "metrics"), list) and isinstance(
        json_value(document, "data"), list
    ):
        raise TelemetryError("a telemetry export", "ldms", where)
    if (
        json_value(document, "data", "resultType") is not None
        or json_value(document, "errorType") is not None
    ):
        raise TelemetryError("an answer of Prometheus", "prometheus", where)
    if is_iris(document):
        return "iris"
    if is_superfacility(document):
        return "superfacility"
    rows = json_objects(document) or (
        json_objects(next(iter(document.values()), None)) if isinstance(document, dict) else []
    )
    if rows and any(name.startswith("nersc_ldms") or name == "gpu_id" for name in rows[0]):
        raise TelemetryError("a telemetry export", "ldms", where)
    raise InputError(
        "this JSON is not a known answer of Slurm or NERSC",
        where=where,
        do="export with `sacct --json` or `sacct --parsable2`",
    )


def _jobs_kind(document: object, where: str) -> ExportKind:
    jobs = json_objects(document, "jobs")
    problems = [
        json_text(problem, "description") or json_text(problem, "error")
        for problem in json_objects(document, "errors")
        if json_value(problem, "error_number") != NOTHING_FOUND
    ]
    if not jobs and problems:
        raise InputError(
            f"Slurm answered with an error: {problems[0]}", where=where, do="request it again"
        )
    of_controller = jobs and not isinstance(jobs[0].get("time"), dict) and "job_state" in jobs[0]
    empty_controller = not jobs and (
        json_value(document, "last_update") is not None
        or "slurmctld" in str(json_value(document, "meta"))
    )
    return "controller" if of_controller or empty_controller else "database"


ROWS_PER_CHUNK = 100_000

_TRACKED = re.compile(r"gres/(?:gpu|shard|mps)(?::[^=,|]{1,64})?=\d")
_TRACKED_BYTES = re.compile(_TRACKED.pattern.encode())
_TEXTS = ("name", "user", "account", "submit_line")  # in which people write what they like
# Of sacct's fields; others are called the same.
_COLUMN = {"jobname": "name", "submitline": "submit_line"}


@dataclass(slots=True)
class AccountingReading:
    """Content of part of a file: rows of `jobs`, `steps`, `allocations`, and rejects.

    job_usages, step_usages: one for each row of `jobs`, of `steps`.
    """

    jobs: list[SlurmRow] = field(default_factory=list)
    allocations: list[SlurmRow] = field(default_factory=list)
    rejected: list[RejectedRecord] = field(default_factory=list)
    steps: list[SlurmRow] = field(default_factory=list)
    rows_read: int = 0
    replaced: Counter[str] = field(default_factory=Counter)
    no_raw_id: list[str] = field(default_factory=list)
    made_of_steps: list[str] = field(default_factory=list)
    names_gpus: bool = False
    job_usages: list[HostUsage] = field(default_factory=list)
    step_usages: list[HostUsage] = field(default_factory=list)
    unread: list[UnreadValue] = field(default_factory=list)
    # Names that belong to no job, or to two.
    rejected_texts: list[RejectedRecord] = field(default_factory=list)

    def add_job(self, job: JobRecord, row: SlurmRow) -> None:
        """Add a job and its row."""
        self.jobs.append(row)
        self.job_usages.append(job.usage)
        self.unread += job.unread
        if row["end"] is not None:
            gpus = row["gpus"] if isinstance(row["gpus"], int) else None
            nodes = row["node_list"] if isinstance(row["node_list"], str) else None
            recorded, unread = recorded_use(job.comment, AccountedRun(nodes, gpus))
            row.update(recorded)
            self.unread += unread

    def add_step(self, step: JobRecord) -> None:
        """Add a step. Errors: BadRowError when it has no row."""
        self.steps.append(step_row(step))
        self.step_usages.append(step.usage)
        self.unread += step.unread

    def add_usage(self) -> None:
        """Add usage from records and steps to ended jobs; a requeued job's steps go by start."""
        runs = Counter((row["cluster"], row["job_id"]) for row in self.jobs)
        steps: dict[tuple[object, object], list[tuple[object, EndedUsage]]] = {}
        for row, usage in zip(self.steps, self.step_usages, strict=True):
            ended = EndedUsage(usage, _state(row))
            steps.setdefault((row["cluster"], row["job_id"]), []).append((row["start"], ended))
        for row, usage in zip(self.jobs, self.job_usages, strict=True):
            if row["end"] is None:
                continue
            key = row["cluster"], row["job_id"]
            own_usages = [
                ended
                for start, ended in steps.get(key, ())
                if runs[key] == 1 or _in_run(start, row)
            ]
            row["cpu_time_s"], row["max_rss_mib"] = usage_of_run(
                EndedUsage(usage, _state(row)), own_usages
            )
            usages = (usage, *(ended.usage for ended in own_usages))
            busy, mem_mib, unread = gpu_use_of_run(usages, row["gpus"])
            row["task_gpu_util_max"], row["task_gpu_mem_mib_max"] = busy, mem_mib
            self.unread += unread

    def rejects(self) -> tuple[Reject, ...]:
        """Rejected rows by reason; texts not in UTF-8 by column; number of display-only job ids."""
        broken = [
            Reject("invalid_utf8", _COLUMN.get(name, name), n)
            for name, n in sorted(self.replaced.items())
        ]
        values: dict[tuple[str, str], list[str]] = {}
        for value in self.unread:
            values.setdefault((value.reason, value.column), []).append(value.text)
        unread = [Reject(*key, len(texts), texts[0][:200]) for key, texts in sorted(values.items())]
        ids = (
            [Reject("no_raw_job_id", "job_id", len(self.no_raw_id), self.no_raw_id[0])]
            if self.no_raw_id
            else []
        )
        from_steps = self.made_of_steps
        jobs = [Reject("job_of_steps", None, len(from_steps), from_steps[0])] if from_steps else []
        texts = counted_rejects(self.rejected_texts, "name")
        return (*counted_rejects(self.rejected), *texts, *unread, *broken, *ids, *jobs)


def _state(row: SlurmRow) -> str | None:
    return None if row["state"] is None else str(row["state"])


def _in_run(start: object, row: SlurmRow) -> bool:
    first, last = row["start"], row["end"]
    if not (
        isinstance(start, datetime) and isinstance(first, datetime) and isinstance(last, datetime)
    ):
        return False
    return first <= start <= last


@dataclass(frozen=True, slots=True)
class _ExportFormat:
    """Reader of one format: records, their job or step, an example, steps of a job."""

    entries: Iterator[SlurmEntry]
    record: Callable[[Mapping[str, Any], SlurmCluster], JobRecord]
    example: Callable[[Mapping[str, object]], str]
    steps: Callable[[Mapping[str, object]], Iterable[tuple[str, Mapping[str, object]]]] = (
        lambda fields: ()
    )


def read_content(
    content: bytes,
    *,
    where: str,
    cluster: SlurmCluster,
    rows_per_chunk: int = ROWS_PER_CHUNK,
    names_gpus: bool = False,
    **text_options: Unpack[sacct_text.TextOptions],
) -> Iterator[AccountingReading]:
    """Yield readings of an export, `rows_per_chunk` records each; one if it is empty.

    `names_gpus`: this accounting is known to name GPUs, even if this part does not.
    Errors: InputError naming `where` for invalid content.
    """
    detected = detect(content, where=where)
    replaced: Counter[str] = Counter()
    read_text = partial(
        sacct_text.read_text, content, where=where, replaced=replaced, **text_options
    )
    tracked = names_gpus or _names_gpus(detected, content, where, read_text)
    replaced.clear()  # what the look at the TRES has counted
    cluster = replace(cluster, tracks_gpus=tracked)
    how = _format(detected, where, read_text)
    reading = AccountingReading(names_gpus=cluster.tracks_gpus)
    jobs: set[str] = set()
    of_steps: dict[str, JobRecord] = {}
    for entry in how.entries:
        full = len(reading.jobs) + len(reading.rejected) + len(reading.steps) >= rows_per_chunk
        if full and not _is_step(entry.fields or {}):  # a job is read with its steps
            yield _closed(reading, replaced)
            reading = AccountingReading(names_gpus=cluster.tracks_gpus)
        job = _take(entry, how, reading, cluster)
        if job and not detected.clean:
            replaced.update(name for name in _TEXTS if "\ufffd" in (getattr(job, name) or ""))
        if job and "step" in (entry.fields or {}):
            if job.id.step is None:
                jobs.add(job.id.raw)
            else:
                earlier = of_steps.get(job.id.raw)
                of_steps[job.id.raw] = (
                    job_of_steps(earlier, job)
                    if earlier
                    else replace(job, id=replace(job.id, step=None))
                )
    _add_jobs_of_steps([job for raw, job in of_steps.items() if raw not in jobs], reading, cluster)
    yield _closed(reading, replaced)


ReadText: TypeAlias = Callable[[], Iterator[SlurmEntry]]


def _names_gpus(detected: DetectedExport, content: bytes, where: str, read_text: ReadText) -> bool:
    """Whether the TRES of any record name GPUs; users cannot write them."""
    if detected.kind == "database":
        return database.names_gpus(detected.document)
    if not _TRACKED_BYTES.search(content):  # a quick test; a match may be in a job name
        return False
    for entry in _format(detected, where, read_text).entries:
        resources = (
            value for name, value in (entry.fields or {}).items() if "tres" in name.lower()
        )
        if any(_TRACKED.search(str(value)) for value in resources):
            return True
    return False


def _is_step(fields: Mapping[str, object]) -> bool:
    return bool(fields["step"]) if "step" in fields else "." in str(fields.get("jobid", ""))


def _add_jobs_of_steps(
    jobs: Sequence[JobRecord], reading: AccountingReading, cluster: SlurmCluster
) -> None:
    """Add jobs that appear only through their steps."""
    for job in jobs:
        try:
            row = job_row(job, cluster)
            reading.allocations += allocation_rows(row)
        except BadRowError:
            continue  # counted with its steps
        reading.add_job(job, row)
        reading.made_of_steps.append(job.id.raw)


def _closed(reading: AccountingReading, replaced: Counter[str]) -> AccountingReading:
    """Return the finished reading with usage and its count of non-UTF-8 texts."""
    reading.add_usage()
    reading.replaced = Counter(replaced)
    replaced.clear()
    return reading


def _format(detected: DetectedExport, where: str, read_text: ReadText) -> _ExportFormat:
    match detected.kind:
        case "text":
            return _ExportFormat(read_text(), from_fields, str)
        case "database":
            entries = database.read_database(detected.document)
            return _ExportFormat(
                entries, database.from_database, database.database_example, database.steps
            )
        case "superfacility":
            entries = nersc.read_superfacility(detected.document, where=where)
            return _ExportFormat(entries, nersc.from_superfacility, nersc.nersc_example)
        case "iris":
            records = enumerate(json_objects(detected.document), start=1)
            entries = (SlurmEntry(position, "", record) for position, record in records)
            return _ExportFormat(entries, nersc.from_iris, nersc.nersc_example)
        case _:
            raise InputError(
                "this names the GPUs of jobs, it is not accounting",
                where=where,
                do="read it with `tachograph ingest allocation-map`",
            )


def _take(
    entry: SlurmEntry, how: _ExportFormat, reading: AccountingReading, cluster: SlurmCluster
) -> JobRecord | None:
    """Add one record to a reading as rows, step or reject; return its job."""
    fields = entry.fields or {}
    steps = list(how.steps(fields))
    reading.rows_read += 1 + len(steps)
    if entry.reason is not None:
        reading.rejected.append((entry.place, entry.reason, entry.text))
        return None
    try:
        job = how.record(fields, cluster)
        if job.id.step is not None:
            reading.add_step(job)
            return job
        row = job_row(job, cluster)
        allocations = list(allocation_rows(row))
    except BadRowError as problem:
        reading.rejected.append((entry.place, problem.reason, entry.text or how.example(fields)))
        reading.rejected += [(entry.place, "step_of_rejected_job", example) for example, _ in steps]
        return None
    for example, of_step in steps:
        try:
            reading.add_step(database.step_of(job, of_step))
        except BadRowError as problem:
            reading.rejected.append((entry.place, problem.reason, example))
    if not job.id.raw_known:
        reading.no_raw_id.append(job.id.raw)
    reading.add_job(job, row)
    reading.allocations += allocations
    return job


def latest_time(content: Callable[[], Iterable[AccountingReading]]) -> datetime | None:
    """Return the latest recorded time of jobs that have started, with their known run time."""
    times: list[datetime] = []
    for reading in content():
        for row in reading.jobs:
            start, end, elapsed_s = row["start"], row["end"], row["elapsed_s"]
            if isinstance(end, datetime):
                times.append(end)
            if isinstance(start, datetime):
                elapsed = timedelta(seconds=elapsed_s) if isinstance(elapsed_s, float) else None
                times.append(start if elapsed is None else start + elapsed)
        times = [max(times)] if times else []
    return max(times, default=None)


def polled_parts(
    reading: AccountingReading, rejects: tuple[Reject, ...], *, rows_used: int | None = None
) -> tuple[ChunkPart, ...]:
    """Return the rows of a poll; only rows new to the lake are committed.

    A running job has no elapsed time, which changes at each poll.
    """
    jobs: list[SlurmRow] = []
    for row in reading.jobs:
        elapsed_s = None if row["end"] is None else row["elapsed_s"]
        jobs.append({**row, "saved": False, "elapsed_s": elapsed_s})
    return _parts(reading, jobs, rejects, overlaps=True, rows_used=rows_used)


def saved_parts(
    reading: AccountingReading, latest: Callable[[], datetime | None]
) -> tuple[ChunkPart, ...]:
    """Return the rows of a file: running jobs have run at least to the latest time of the file."""
    jobs: list[SlurmRow] = []
    for row in reading.jobs:
        row = {**row, "saved": True}
        start = row["start"]
        if row["end"] is None and row["elapsed_s"] is None and isinstance(start, datetime):
            last = latest()
            if last is not None:
                row["elapsed_s"] = max(0.0, (last - start).total_seconds())
        jobs.append(row)
    return _parts(reading, jobs, reading.rejects())


def _parts(
    reading: AccountingReading,
    jobs: list[SlurmRow],
    rejects: tuple[Reject, ...],
    *,
    overlaps: bool = False,
    rows_used: int | None = None,
) -> tuple[ChunkPart, ...]:
    return (
        ChunkPart(
            JOBS.name,
            frame_of(jobs, JOBS),
            rejects=rejects,
            overlaps=overlaps,
            rows_used=rows_used,
        ),
        *(
            ChunkPart(table.name, frame_of(rows, table), overlaps=overlaps)
            for table, rows in ((STEPS, reading.steps), (ALLOCATIONS, reading.allocations))
        ),
    )


def frame_of(rows: list[SlurmRow], table: LakeTable) -> pl.DataFrame:
    """Return rows as a frame in the schema of `table`, without `seq`."""
    import polars as pl  # live views recognize formats, and load no table library

    schema = table.row_schema
    columns: dict[str, Any] = {}
    for name, dtype in schema.items():
        columns[name] = [row[name] for row in rows]
        if isinstance(dtype, pl.Datetime):
            times = [_microseconds(value) for value in columns[name]]
            columns[name] = pl.Series(name, times, pl.Int64).cast(dtype)
    return pl.DataFrame(columns, schema=schema)


def _microseconds(time: object) -> int | None:
    """Since 1970; many times faster than handing over datetimes with a zone."""
    return round(time.timestamp() * 1e6) if isinstance(time, datetime) else None
