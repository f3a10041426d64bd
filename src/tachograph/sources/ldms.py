"""Source `ldms`: Parquet, the CSV store, and NERSC's JSON exports.

Samples are recognised by the names of their columns (`columns.recognise`); times without a zone are
UTC unless a zone is given. An export of one job names the nodes of the job, not its GPUs:
`allocations` gets rows of nodes without GPUs.

NERSC's mean over the GPUs of a job (`Floored Relative Time`, no node, no GPU) is the site's own
average. It is kept as one GPU, index 0 of a node called `job-<id>` that does not exist, held by the
job: its averages are valid, its spread over GPUs and its sums are not.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import polars as pl

from tachograph.catalog.chunks import Chunk, ChunkPart, Reject, chosen_cells
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import InputError
from tachograph.catalog.units import parse_time, zone
from tachograph.sources.columns import (
    GPU_NAMES,
    NODE_NAMES,
    TIME_NAMES,
    RecognisedColumns,
    host_values,
    recognise,
    sampler_of,
)
from tachograph.sources.files import (
    CHUNK_ROWS,
    SUFFIXES,
    FilePiece,
    TableLayout,
    add_files,
    expand,
    fingerprint,
    format_of,
    listed,
    parquet_columns,
    parquet_ends,
    read_csv,
    read_json,
    read_parquet,
    records,
)
from tachograph.sources.sample_allocations import sample_allocations
from tachograph.sources.times import days_of, is_local, read_times

NAME = "ldms"
_RELATIVE = "Floored Relative Time"
_LONGEST_US = 1e16  # of a job: three hundred years
_INSTANCE = "(instance)"
_JOB_COLUMNS = frozenset({"job id", "jobid", "jobidraw", "job_id"})
_RECORD_COLUMNS = frozenset(
    {"start time", "end time", "state", "qos", "partition", "elapsed", "nodelist", "output"}
)


class NotTelemetryError(InputError):
    """A readable file without samples, or not with these options; skipped in folders."""

    def __init__(self, reason: str, what: str, *, where: str | Path, do: str) -> None:
        super().__init__(what, where=where, do=do)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LdmsOptions:
    """Data missing in the files. `job_starts`: {job id, or "" for the only one: start}."""

    zone_name: str = "UTC"
    cluster: str | None = None
    job_starts: Mapping[str, datetime] = field(default_factory=dict)
    rows: int = CHUNK_ROWS

    @property
    def key_parts(self) -> tuple[str, ...]:
        """Options that change the rows read from a file."""
        starts = (f"{job}={start.isoformat()}" for job, start in sorted(self.job_starts.items()))
        return (NAME, self.zone_name, self.cluster or "", str(self.rows), *starts)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare files, time zone, and starts of jobs with relative times."""
    add_files(parser)
    parser.add_argument(
        "--time-zone", metavar="ZONE", help="zone of times written without one (default UTC)"
    )
    parser.add_argument(
        "--job-start",
        action="append",
        default=[],
        metavar="[JOB=]TIME",
        help="start of a job whose export counts seconds from it; in the site's zone",
    )


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield the chunks of files and folders; files without samples in folders are counted.

    Errors: InputError for a file that cannot be read, ConfigError for an unknown zone.
    """
    zone_name = options.time_zone or "UTC"
    zone(zone_name)
    setting = LdmsOptions(
        zone_name=zone_name,
        cluster=configuration.site.cluster or None,
        job_starts=_job_starts(options.job_start, now=now, zone_name=configuration.site.time_zone),
    )
    for file in options.files:
        in_folder = getattr(options, "in_folder", False) or Path(file).is_dir()
        for path in expand([file], SUFFIXES):
            try:
                yield from read_file(path, setting)
            except NotTelemetryError as problem:
                if not in_folder:
                    raise
                yield _passed_over(path, problem, setting)


def read_file(path: Path, setting: LdmsOptions | None = None) -> Iterator[Chunk]:
    """Yield chunks of a file: per 2 million rows of Parquet, per block of CSV, one for JSON.

    Errors: InputError when it is damaged or lacks a column; NotTelemetryError when it holds no
    samples.
    """
    setting = setting or LdmsOptions()
    print_of = _fingerprint(path, setting)
    match format_of(path):
        case "parquet":
            yield from _read_parquet(path, print_of, setting)
        case "csv":
            yield from _read_csv(path, print_of, setting)
        case "json":
            yield _read_json(path, print_of, setting)


def _fingerprint(path: Path, setting: LdmsOptions) -> str:
    """Fingerprint of a file with its sampler, which changes the meaning of columns."""
    sampler = sampler_of(path)
    return fingerprint(path, *setting.key_parts, *([sampler] if sampler else []))


def short_nodes(nodes: pl.Series) -> pl.Series:
    """Return host names without their domain; addresses stay whole.

    >>> short_nodes(pl.Series(["nid001.chn.example.org", "10.0.0.7", "nid002", None])).to_list()
    ['nid001', '10.0.0.7', 'nid002', None]
    """
    if nodes.dtype != pl.String:
        nodes = nodes.cast(pl.String)
    once = nodes.unique()
    short = once.str.strip_chars()
    address = short.str.contains(r"^\d+\.\d+\.\d+\.\d+$|:")
    short = chosen_cells(address | short.is_null(), short, short.str.extract(r"^([^.]*)"))
    if (short.eq_missing(once)).all():
        return nodes
    table = pl.DataFrame({"given": once, "short": short})
    frame = pl.DataFrame({"given": nodes})
    joined = frame.join(table, on="given", how="left", maintain_order="left", nulls_equal=True)
    return joined["short"].alias(nodes.name)


def parts(
    frame: FilePiece,
    recognised: RecognisedColumns,
    *,
    zone_name: str,
    origin: str,
    cluster: str | None = None,
) -> tuple[ChunkPart, ...]:
    """Return the parts of a frame that its columns give: samples, devices, allocations.

    A row whose time cannot be read is rejected and counted, once, in the first part.
    Errors: InputError naming the column that is missing.
    """
    time, node = _required(recognised, frame.rows.columns, origin)
    rows = frame.rows
    refuse_odd_cells(rows, recognised.used, time=time, origin=origin)
    keys = [short_nodes(rows[node]).alias("node")]
    for name, column in (("gpu", recognised.gpu), ("mig", recognised.mig)):
        if column is not None:
            keys.append(rows[column].alias(name))
    times = read_times(rows[time], zone_name=zone_name, order=pl.DataFrame(keys))
    keyed = pl.DataFrame([times.values.alias("t"), *keys])
    rejects = [*frame.rejects, *times.rejects]
    if rows.height:
        rejects += [Reject("unknown_column", name, rows.height) for name in recognised.unknown]
        rejects += [Reject("repeated_column", name, rows.height) for name in recognised.repeated]
    keep = ~times.bad if times.bad.any() else None
    chunk_parts: list[ChunkPart] = []
    if recognised.counters:
        columns = [rows[name].alias(counter) for name, (counter, _) in recognised.counters.items()]
        units = dict(recognised.counters.values())
        chunk_parts.append(
            ChunkPart(
                "gpu_samples", _kept(keyed.with_columns(columns), keep), units, tuple(rejects)
            )
        )
    if recognised.node_values or recognised.host:
        of_node, units = _of_nodes(rows, keyed, recognised, keep)
        chunk_parts.append(
            ChunkPart("node_samples", of_node, units, rejects=() if chunk_parts else tuple(rejects))
        )
    if recognised.device_values and recognised.gpu is not None:
        facts = [rows[name].alias(column) for name, column in recognised.device_values.items()]
        device = _kept(keyed.drop("t").with_columns(facts), keep)
        keys_of = [name for name in ("node", "gpu", "mig") if name in device.columns]
        chunk_parts.append(
            ChunkPart("devices", device.unique(subset=keys_of, keep="last", maintain_order=True))
        )
    if recognised.job is not None and recognised.counters:
        of_job = [rows[recognised.job].alias("job")]
        if recognised.step is not None:
            of_job.append(rows[recognised.step].alias("step"))
        chunk_parts += sample_allocations(_kept(keyed.with_columns(of_job), keep), cluster=cluster)
    return tuple(chunk_parts)


def _of_nodes(
    rows: pl.DataFrame, keyed: pl.DataFrame, recognised: RecognisedColumns, keep: pl.Series | None
) -> tuple[pl.DataFrame, dict[str, str]]:
    """Host values, one row per node and time, and the units of the samplers' counters."""
    times = keyed.select("t", "node")
    if not recognised.host:
        values = [rows[name].alias(column) for name, column in recognised.node_values.items()]
        of_node = _kept(times.with_columns(values), keep)
        if recognised.counters:  # each GPU of the node repeats it
            of_node = of_node.unique(subset=["t", "node"], keep="first", maintain_order=True)
        return of_node, {}
    columns = dict.fromkeys(name for of in recognised.host.values() for name in of.columns)
    measured = times.with_columns(rows[name] for name in columns)
    if recognised.instance is not None:
        measured = measured.with_columns(rows[recognised.instance].cast(pl.String).alias(_INSTANCE))
    measured = _kept(measured, keep)
    if recognised.counters:
        measured = measured.unique(subset=["t", "node"], keep="first", maintain_order=True)
    instance = measured[_INSTANCE] if recognised.instance is not None else None
    return host_values(measured, recognised.host, instance), {
        counter: of.unit for counter, of in recognised.host.items()
    }


def refuse_odd_cells(
    rows: pl.DataFrame, names: Iterable[str], *, time: str | None, origin: str
) -> None:
    """Reject columns whose cells are not single values, and times that are boolean.

    Errors: InputError naming the column.
    """
    for name in names:
        kind = rows.schema[name]
        if (
            kind.is_nested()
            or kind in (pl.Binary, pl.Object)
            or (name == time and kind == pl.Boolean)
        ):
            raise InputError(
                f"column {name} is {kind}", where=origin, do="export it as numbers or text"
            )


def _kept(frame: pl.DataFrame, keep: pl.Series | None) -> pl.DataFrame:
    return frame if keep is None else frame.filter(keep)


def _required(recognised: RecognisedColumns, names: Sequence[str], origin: str) -> tuple[str, str]:
    """The time and the node column."""
    column_names = listed(dict.fromkeys([*names, *recognised.unknown]))
    has = f"it has: {column_names}; other names are read by `tachograph ingest table`"
    if not recognised.counters and not recognised.node_values and not recognised.host:
        raise NotTelemetryError("no_counter", "no column is a counter", where=origin, do=has)
    if recognised.time is None:
        raise InputError(f"no time column ({', '.join(TIME_NAMES)})", where=origin, do=has)
    if recognised.node is None:
        raise InputError(f"no node column ({', '.join(NODE_NAMES)})", where=origin, do=has)
    if recognised.counters and recognised.gpu is None:
        raise InputError(f"no GPU column ({', '.join(GPU_NAMES)})", where=origin, do=has)
    return recognised.time, recognised.node


def _refuse_job_records(names: Sequence[str], origin: str) -> None:
    lower = {part.strip().lower() for name in names for part in name.split("|")}
    if (
        (lower & _JOB_COLUMNS and len(lower & _RECORD_COLUMNS) >= 2)
        or {"status", "output"} <= lower
        or "jobs" in lower
    ):
        raise NotTelemetryError(
            "job_records",
            "these are job records, not samples",
            where=origin,
            do="use `tachograph ingest sacct`",
        )


def _read_parquet(path: Path, print_of: str, setting: LdmsOptions) -> Iterator[Chunk]:
    schema = parquet_columns(path)
    _refuse_job_records(list(schema), str(path))
    recognised = recognise(schema, sampler_of(path))
    time, node = _required(recognised, list(schema), str(path))
    kind = schema[time]
    written_local = kind == pl.String or (isinstance(kind, pl.Datetime) and kind.time_zone is None)
    rows = None if written_local and is_local("auto", setting.zone_name) else setting.rows
    cut = partial(_whole_days, time=time, node=node)
    for frame in read_parquet(path, recognised.used, rows=rows, cut=cut if rows else None):
        yield _chunk(path, print_of, frame, _parts(frame, recognised, path, setting))


def _whole_days(rows: pl.DataFrame, *, time: str, node: str) -> int:
    """Return the number of rows that make up whole days (UTC), times or nodes.

    So what follows one another overlaps little: neither in time nor in nodes.
    """
    times = rows[time]
    if times.has_nulls() or not times.is_sorted():
        return _up_to_last_run(rows[node])
    days = days_of(times)
    return (0 if days is None else _up_to_last_run(days)) or _up_to_last_run(times)


def _up_to_last_run(values: pl.Series) -> int:
    """Number of values before the final run of equal ones; 0 if all are equal."""
    last = (values != values.last()).fill_null(value=True).arg_true().last()
    return last + 1 if isinstance(last, int) else 0


def recorded_together(files: Sequence[str]) -> list[list[str]]:
    """Group Parquet files with different counters of the same nodes and times.

    Only the first and the last row of each is looked at; a file that cannot be read is one of its
    own.
    """
    groups: list[tuple[list[str], list[_Extent]]] = []
    recognised = [_sample_columns(file) for file in files]
    several = len({_counters(columns) for columns in recognised if columns}) > 1
    for file, columns in zip(files, recognised, strict=True):
        extent = _extent(file, columns) if several and columns else None
        for names, extents in groups:
            if extent and extents and all(map(extent.meets, extents)):
                names.append(file)
                extents.append(extent)
                break
        else:
            groups.append(([file], [extent] if extent else []))
    return [names for names, _ in groups]


@dataclass(frozen=True, slots=True)
class _Extent:
    """Counters of a file, and time and node of its first and last row."""

    counters: frozenset[str]
    ends: pl.DataFrame

    def meets(self, other: _Extent) -> bool:
        """True for other counters between times and nodes that overlap."""
        if self.counters == other.counters or self.ends.dtypes != other.ends.dtypes:
            return False
        lowest, highest = self.ends.min().row(0), self.ends.max().row(0)
        ranges = zip(lowest, highest, other.ends.min().row(0), other.ends.max().row(0), strict=True)
        for low, high, other_low, other_high in ranges:
            if low is None or other_low is None:
                return False
            if not (low <= other_high and other_low <= high):  # NaN meets nothing
                return False
        return True


def _sample_columns(file: str) -> RecognisedColumns | None:
    """Meaning of the columns of a Parquet sample file; None for other files."""
    path = Path(file)
    try:
        if format_of(path) != "parquet":
            return None
        recognised = recognise(parquet_columns(path), sampler_of(path))
    except InputError:
        return None
    return recognised if recognised.time and recognised.node and recognised.counters else None


def _counters(recognised: RecognisedColumns) -> frozenset[str]:
    return frozenset(counter for counter, _ in recognised.counters.values())


def _extent(file: str, recognised: RecognisedColumns) -> _Extent | None:
    try:
        ends = parquet_ends(
            Path(file), [name for name in (recognised.time, recognised.node) if name]
        )
    except InputError:
        return None
    return _Extent(_counters(recognised), ends)


def _read_csv(path: Path, print_of: str, setting: LdmsOptions) -> Iterator[Chunk]:
    layout = TableLayout(delimiter="\t" if ".tsv" in path.suffixes else ",")
    local = is_local("auto", setting.zone_name)
    blocks = read_csv(path, layout, block_bytes=None) if local else read_csv(path, layout)
    for frame in blocks:
        _refuse_job_records(frame.rows.columns, str(path))
        recognised = recognise(frame.rows.columns, sampler_of(path))
        yield _chunk(path, print_of, frame, _parts(frame, recognised, path, setting))


def _read_json(path: Path, print_of: str, setting: LdmsOptions) -> Chunk:
    content, rejects = read_json(path)
    job_id: str | None = None
    if isinstance(content, dict):
        if isinstance(content.get("data"), list):
            job_id = str(content["job_id"]) if content.get("job_id") is not None else None
            content = content["data"]
        elif _are_means(content):
            return _chunk_of_means(path, print_of, content, setting)
        else:
            _refuse_job_records([str(key) for key in content], str(path))
            raise NotTelemetryError(
                "no_rows", f"no list of samples; its keys are: {listed(map(str, content))}",
                where=path, do="export the samples as a list of records",
            )  # fmt: skip
    rows = records(content, origin=str(path))
    frame = FilePiece(rows, 0, rows.height + sum(reject.count for reject in rejects), rejects)
    if not rows.width:
        return _chunk(path, print_of, frame, ())
    _refuse_job_records(rows.columns, str(path))
    chunk_parts = _parts(frame, recognise(rows.columns, sampler_of(path)), path, setting)
    return _chunk(path, print_of, frame, (*chunk_parts, *_held(chunk_parts, job_id, setting)))


def _parts(
    frame: FilePiece, recognised: RecognisedColumns, path: Path, setting: LdmsOptions
) -> tuple[ChunkPart, ...]:
    return parts(
        frame, recognised, zone_name=setting.zone_name, origin=str(path), cluster=setting.cluster
    )


def _held(
    chunk_parts: Sequence[ChunkPart], job_id: str | None, setting: LdmsOptions
) -> tuple[ChunkPart, ...]:
    """The nodes of the job an export belongs to; one row per node, GPU not reported."""
    if job_id is None or not chunk_parts:
        return ()
    nodes = chunk_parts[0].frame["node"].drop_nulls().unique().sort()
    return (
        ChunkPart(
            "allocations",
            _allocation(job_id, nodes, gpu=None, provenance="node_list", setting=setting),
        ),
    )


def _allocation(
    job_id: str, nodes: pl.Series, *, gpu: int | None, provenance: str, setting: LdmsOptions
) -> pl.DataFrame:
    return pl.DataFrame({"node": nodes}).with_columns(
        pl.lit(setting.cluster, dtype=pl.String).alias("cluster"),
        pl.lit(job_id).alias("job_id"),
        pl.lit(gpu, dtype=pl.Int16).alias("gpu"),
        pl.lit(provenance).alias("provenance"),
    )


def _are_means(content: Mapping[object, object]) -> bool:
    """{job id: rows that count seconds from the start of the job}"""
    return bool(content) and all(
        isinstance(rows, list) and rows and isinstance(rows[0], dict) and _RELATIVE in rows[0]
        for rows in content.values()
    )


def _chunk_of_means(
    path: Path, print_of: str, content: Mapping[object, object], setting: LdmsOptions
) -> Chunk:
    """Means over the GPUs of each job, as GPU 0 of a node `job-<id>` that the job holds."""
    chunk_parts: list[ChunkPart] = []
    total = 0
    for key, job_rows in content.items():
        job_id = str(key)
        rows = records(job_rows, origin=str(path))
        start = _start_of(job_id, len(content), setting, path)
        offset_us = rows[_RELATIVE].cast(pl.Float64, strict=False) * 1e6
        offset_us = chosen_cells(offset_us.abs() < _LONGEST_US, offset_us)
        first_us = int(start.timestamp() * 1e6)
        rows = rows.drop(_RELATIVE).with_columns(
            (offset_us.round().cast(pl.Int64) + first_us)
            .cast(pl.Datetime("us"))
            .dt.replace_time_zone("UTC")
            .alias("t"),
            pl.lit(f"job-{job_id}").alias("node"),
            pl.lit(0, dtype=pl.Int16).alias("gpu"),
        )
        recognised = replace(recognise(rows.columns, sampler_of(path)), job=None, step=None)
        chunk_parts += parts(
            FilePiece(rows, 0, rows.height), recognised, zone_name="UTC", origin=str(path)
        )
        nodes = pl.Series([f"job-{job_id}"])
        held = _allocation(job_id, nodes, gpu=0, provenance="explicit", setting=setting)
        chunk_parts.append(ChunkPart("allocations", held))
        total += rows.height
    return Chunk(f"{print_of}:0", NAME, str(path), tuple(chunk_parts), total)


def _start_of(job_id: str, jobs: int, setting: LdmsOptions, path: Path) -> datetime:
    start = setting.job_starts.get(job_id) or (setting.job_starts.get("") if jobs == 1 else None)
    if start is None:
        raise NotTelemetryError(
            "no_job_start",
            f"samples of job {job_id} count seconds from its start, which the file does not give",
            where=path, do=f"add --job-start {job_id}=TIME",
        )  # fmt: skip
    return start


def _job_starts(written: Sequence[str], *, now: datetime, zone_name: str) -> dict[str, datetime]:
    starts: dict[str, datetime] = {}
    for text in written:
        job_id, equals, time = text.partition("=")
        start = parse_time(time if equals else text, now=now, zone_name=zone_name)
        starts[job_id.strip() if equals else ""] = start.astimezone(UTC)
    return starts


def _chunk(
    path: Path, print_of: str, frame: FilePiece, chunk_parts: tuple[ChunkPart, ...]
) -> Chunk:
    chunk_parts = chunk_parts or (ChunkPart("gpu_samples", pl.DataFrame(), rejects=frame.rejects),)
    return Chunk(f"{print_of}:{frame.first_row}", NAME, str(path), chunk_parts, frame.rows_read)


def _passed_over(path: Path, problem: NotTelemetryError, setting: LdmsOptions) -> Chunk:
    """Reject for a file without samples in a folder."""
    part = ChunkPart(
        "gpu_samples",
        pl.DataFrame(),
        rejects=(Reject(problem.reason, None, 1, str(problem)[:200]),),
    )
    return Chunk(f"{_fingerprint(path, setting)}:0", NAME, str(path), (part,), 0)
