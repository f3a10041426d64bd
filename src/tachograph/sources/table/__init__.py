"""Source `table`: CSV, Parquet and JSON records described by a small TOML file."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import polars as pl

from tachograph.catalog.chunks import Chunk, ChunkPart, Reject, chosen_cells, counted
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import InputError, UsageError
from tachograph.catalog.tables import ALLOCATIONS, DEVICES, GPU_SAMPLES, JOBS, LakeTable
from tachograph.catalog.units import factor
from tachograph.sources.columns import IGNORED, JOB_NAMES
from tachograph.sources.files import (
    BLOCK_BYTES,
    CHUNK_ROWS,
    SUFFIXES,
    FilePiece,
    add_files,
    expand,
    fingerprint,
    format_of,
    listed,
    parquet_columns,
    read_csv,
    read_json,
    read_parquet,
    records,
)
from tachograph.sources.ldms import refuse_odd_cells, short_nodes
from tachograph.sources.sample_allocations import sample_allocations
from tachograph.sources.slurm.exports import frame_of
from tachograph.sources.slurm.fields import BadRowError
from tachograph.sources.slurm.records import SlurmRow, allocation_rows
from tachograph.sources.table.mapping import (
    DURATION,
    HOLDERS,
    TABLES,
    MappingKey,
    MappingTarget,
    TableMapping,
    durations,
    load,
    numbers,
    placeholders,
    stripped,
    truths,
)
from tachograph.sources.table.names import counter_meaning, device_meaning
from tachograph.sources.times import TimeColumn, is_local, read_times

_MOST_NAMED = 20  # columns or metrics that are not mapped; the others are one number
# A job or allocation without its true span is worse than none.
_FATAL_TIMES = ("start", "end", "submit")


@dataclass(slots=True)
class _MappedColumns:
    """Mapped rows: the kept rows, their number in the file, the rejects."""

    keep: pl.Series
    rejects: list[Reject]
    units: dict[str, str] = field(default_factory=dict)
    used: int = 0

    def known(self, column: pl.Series) -> pl.Series:
        """Null in rows that are rejected already: each row is counted for one reason."""
        return column if self.keep.all() else chosen_cells(self.keep, column)

    def give_up(self, bad: pl.Series) -> None:
        self.keep = self.keep & ~bad


def mapped_parts(
    frame: FilePiece,
    mapping: TableMapping,
    *,
    site_zone: str = "UTC",
    cluster: str | None = None,
    origin: str,
) -> tuple[ChunkPart, ...]:
    """Return the rows of a file in the mapped table, and its other content.

    That is a part of `allocations` where a job is mapped, and one of `devices` where these are.

    Wide files give one row per GPU, none for a GPU that has no value in the row; long files one per
    time, node and GPU. A row whose time cannot be read, or whose node or GPU the pattern does not
    match, is rejected and counted, once. What is not mapped is counted under its name. Errors:
    InputError naming a mapped column that the file does not have, with those it has.
    """
    _check_columns(frame.rows, mapping, origin)
    mapped = _MappedColumns(
        pl.repeat(True, frame.rows.height, dtype=pl.Boolean, eager=True), list(frame.rejects)
    )
    if mapping.metric:
        rows = _long(frame.rows, mapping, site_zone, mapped)
    else:
        rows = _wide(frame.rows, mapping, site_zone, mapped)
    table = TABLES[mapping.table]
    completed = _completed(rows, table, mapping, cluster)
    rows_used = mapped.used if mapped.used != rows.height else None
    others: list[ChunkPart] = []
    if mapping.holders:
        others += _allocations(completed, cluster)
    if table is JOBS and {"start", "node_list"} <= set(completed.columns):
        others.append(_nodes_of_jobs(completed, mapped))
    if mapping.devices:
        others += device_parts(frame.rows, mapping, origin)
    samples = completed.drop(mapping.holders)
    part = ChunkPart(table.name, samples, mapped.units, tuple(mapped.rejects), rows_used=rows_used)
    return (part, *others)


def _allocations(rows: pl.DataFrame, cluster: str | None) -> Iterator[ChunkPart]:
    """Return the allocations that samples name, cluster by cluster."""
    if "cluster" not in rows.columns:
        yield from sample_allocations(rows, cluster=cluster)
        return
    for (named,), of_cluster in rows.group_by("cluster", maintain_order=True):
        name = named if isinstance(named, str) else cluster
        yield from sample_allocations(of_cluster, cluster=name)


def _nodes_of_jobs(jobs: pl.DataFrame, mapped: _MappedColumns) -> ChunkPart:
    """Return the nodes of jobs as allocations; count node lists that cannot be read."""
    rows: list[SlurmRow] = []
    unreadable: dict[str, list[str]] = {}
    for job in jobs.iter_rows(named=True):
        try:
            rows += allocation_rows(dict.fromkeys(JOBS.row_schema) | job)
        except BadRowError as problem:
            unreadable.setdefault(problem.reason, []).append(job["node_list"])
    for reason, texts in unreadable.items():
        mapped.rejects.append(Reject(reason, "node_list", len(texts), texts[0][:200]))
    return ChunkPart(ALLOCATIONS.name, frame_of(rows, ALLOCATIONS))


def device_parts(rows: pl.DataFrame, mapping: TableMapping, origin: str) -> Iterator[ChunkPart]:
    """Return one row per GPU with its last device facts; count unreadable rows."""
    of = mapping.of_devices
    facts = FilePiece(
        rows.select(_used(rows.columns, of)).unique(maintain_order=True), 0, rows.height
    )
    for part in mapped_parts(facts, of, origin=origin):
        keys = [name for name in DEVICES.key if name in part.frame.columns]
        filled = part.frame.drop_nulls(["node", "gpu"])
        once = filled.group_by(keys, maintain_order=True).agg(pl.all().drop_nulls().last())
        values = tuple(reject for reject in part.rejects if reject.column)
        yield replace(part, frame=once, rejects=values, rows_used=None)


def _check_columns(rows: pl.DataFrame, mapping: TableMapping, origin: str) -> None:
    has = rows.columns
    keys = (mapping.node, mapping.gpu, mapping.mig, *mapping.holders.values())
    required = [*filter(None, (mapping.time.column, *(key.column for key in keys)))]
    without_match: list[str] = []
    if mapping.metric:
        required += [mapping.metric.column, mapping.metric.value]
    else:
        for name in mapping.columns:
            pattern = placeholders(name)
            if pattern is None:
                required.append(name)
            elif not any(map(pattern.fullmatch, has)):
                without_match.append(name)
    missing = [name for name in required if name not in has] + without_match
    if missing:
        raise InputError(
            f"no column {listed(map(repr, missing))}",
            where=origin,
            do=f"it has: {listed(has)}; fix the mapping",
        )
    refuse_odd_cells(rows, required, time=mapping.time.column, origin=origin)


def _time(
    rows: pl.DataFrame,
    mapping: TableMapping,
    site_zone: str,
    order: pl.DataFrame,
    mapped: _MappedColumns,
) -> pl.Series:
    times = _times(mapped.known(rows[mapping.time.column]), mapping, site_zone, order=order)
    mapped.give_up(times.bad)
    mapped.rejects += times.rejects
    return times.values.alias("t")


def _times(
    column: pl.Series,
    mapping: TableMapping,
    site_zone: str,
    *,
    order: pl.DataFrame,
    of: MappingTarget | None = None,
) -> TimeColumn:
    form = (of.format if of else "") or mapping.time.format
    zone_name = (of.zone if of else "") or mapping.time.zone or site_zone
    if column.dtype == pl.String:
        column = stripped(column)
    return read_times(column, form=form, zone_name=zone_name, order=order)


def _key(
    rows: pl.DataFrame, key: MappingKey, name: str, mapped: _MappedColumns
) -> pl.Series | None:
    if key.constant is not None:
        named = name in ("node", *HOLDERS)
        constant = pl.lit(
            str(key.constant) if named else key.constant, dtype=pl.String if named else pl.Int16
        )
        return pl.select(pl.repeat(constant, rows.height)).to_series().alias(name)
    if not key.column:
        return None
    column = rows[key.column]
    if key.pattern:
        text = stripped(column)
        cut = text.str.extract(key.pattern)
        bad = cut.is_null() & text.is_not_null() & mapped.keep
        mapped.rejects += counted("no_match", None, bad, text)
        mapped.give_up(bad)
        column = cut
    elif column.dtype == pl.String or name == "node":
        column = stripped(column)
    return (short_nodes(column) if name == "node" else column).alias(name)


def _keys(rows: pl.DataFrame, mapping: TableMapping, mapped: _MappedColumns) -> list[pl.Series]:
    sections = (("node", mapping.node), ("gpu", mapping.gpu), ("mig", mapping.mig))
    keys = (_key(rows, section, name, mapped) for name, section in sections)
    return [key for key in keys if key is not None]


def _holders(rows: pl.DataFrame, mapping: TableMapping, mapped: _MappedColumns) -> list[pl.Series]:
    """Job and step of the samples, as they are written."""
    keys = (_key(rows, section, name, mapped) for name, section in mapping.holders.items())
    return [key for key in keys if key is not None]


def _order(rows: pl.DataFrame, keys: list[pl.Series]) -> pl.DataFrame:
    return (
        pl.DataFrame(keys) if keys else pl.DataFrame({"all": pl.repeat(0, rows.height, eager=True)})
    )


def _wide(
    rows: pl.DataFrame, mapping: TableMapping, site_zone: str, mapped: _MappedColumns
) -> pl.DataFrame:
    """One row per row of the file, or per row and GPU for columns by GPU."""
    keys = _keys(rows, mapping, mapped)
    if mapping.time.column:
        keys.insert(0, _time(rows, mapping, site_zone, _order(rows, keys), mapped))
    keys += _holders(rows, mapping, mapped)
    groups = _groups(rows.columns, mapping)
    pieces: list[pl.DataFrame] = []
    for (node, gpu), columns in groups.items():
        values = [
            _value(rows[name], target, mapping, site_zone, mapped) for name, target in columns
        ]
        piece = pl.DataFrame([*keys, *values])
        if node is not None:
            piece = piece.with_columns(pl.lit(node).alias("node"))
        if gpu is not None:
            piece = piece.with_columns(pl.lit(gpu, dtype=pl.Int16).alias("gpu"))
        pieces.append(piece)
    mapped.used = int(mapped.keep.sum())
    if len(pieces) == 1:
        return pieces[0].filter(mapped.keep)
    filtered: list[pl.DataFrame] = []
    for piece, columns in zip(pieces, groups.values(), strict=True):
        names = [target.to for _, target in columns]
        empty = piece.select(pl.all_horizontal(pl.col(names).is_null())).to_series()
        filtered.append(piece.filter(mapped.keep & ~empty))
    return pl.concat(filtered, how="diagonal_relaxed")


def _groups(
    has: Iterable[str], mapping: TableMapping
) -> dict[tuple[str | None, int | None], list[tuple[str, MappingTarget]]]:
    """{(node, GPU) in column names: [(column, target)]}; one group (None, None) without such
    names.
    """
    groups: dict[tuple[str | None, int | None], list[tuple[str, MappingTarget]]] = {}
    names = list(has)
    for name, target in mapping.targets.items():
        pattern = placeholders(name)
        if pattern is None:
            groups.setdefault((None, target.gpu), []).append((name, target))
            continue
        for match in filter(None, map(pattern.fullmatch, names)):
            parts = match.groupdict()
            gpu = int(parts["gpu"]) if parts.get("gpu") else target.gpu
            groups.setdefault((parts.get("node"), gpu), []).append((match[0], target))
    return groups


def _value(
    raw: pl.Series,
    target: MappingTarget,
    mapping: TableMapping,
    site_zone: str,
    mapped: _MappedColumns,
) -> pl.Series:
    """One column as its target; leaves units to `conform`."""
    column = next(column for column in TABLES[mapping.table].columns if column.name == target.to)
    raw = raw.alias(target.to)
    if isinstance(column.dtype, pl.Datetime):
        # Jobs do not follow each other in time.
        alone = pl.DataFrame({"row": pl.int_range(len(raw), eager=True)})
        fatal = target.to in _FATAL_TIMES
        times = _times(
            mapped.known(raw) if fatal else raw, mapping, site_zone, order=alone, of=target
        )
        column_name = None if fatal else target.to
        mapped.rejects += [replace(reject, column=column_name) for reject in times.rejects]
        if fatal:
            mapped.give_up(times.bad)
        return times.values.alias(target.to)
    if column.dtype == pl.String:
        return _text(raw).alias(target.to)
    if column.dtype == pl.Boolean:
        cells = truths(raw)
    elif target.unit == DURATION:
        cells = durations(raw)
    else:
        cells = numbers(
            raw, wanted=column.unit, unit=target.unit, scale=target.scale, decimal=mapping.decimal
        )
    mapped.rejects += cells.rejects
    values = cells.values.alias(target.to)
    if not column.dtype.is_numeric():
        return values
    # Of the column of the first GPU; the others follow it.
    unit = mapped.units.setdefault(target.to, cells.unit)
    if unit != cells.unit:
        values = (
            values.cast(pl.Float64) * factor(cells.unit, column.unit) / factor(unit, column.unit)
        )
    return values


def _text(column: pl.Series) -> pl.Series:
    """Text; a whole number that was stored as a fraction is written as a whole number again."""
    if column.dtype.is_float():
        whole = (column == column.round()) & column.is_finite()
        as_int = column.cast(pl.Int64, strict=False).cast(pl.String)
        return chosen_cells(whole, as_int, column.cast(pl.String))
    return stripped(column)


def _long(
    rows: pl.DataFrame, mapping: TableMapping, site_zone: str, mapped: _MappedColumns
) -> pl.DataFrame:
    """One row per (t, node, gpu, mig) of a file with one value per row.

    Of two values for one key the last is taken, the others are counted as `repeated_value`; rows of
    metrics that the mapping does not name as `unmapped_metric`, by name, those without a name as
    `no_metric`.
    """
    metric = mapping.metric
    if metric is None:
        return rows
    names = stripped(rows[metric.column]).alias("metric")
    is_mapped = names.is_in(list(mapping.columns)).fill_null(value=False)
    others = names.filter(~is_mapped).value_counts(sort=True)
    unnamed = int(others.filter(pl.col("metric").is_null())["count"].sum())
    mapped.rejects += [Reject("no_metric", None, unnamed)] if unnamed else []
    mapped.rejects += unmapped_rejects("unmapped_metric", dict(others.drop_nulls().iter_rows()))
    rows, names = rows.filter(is_mapped), names.filter(is_mapped)
    mapped.keep = mapped.keep.filter(is_mapped)
    keys = _keys(rows, mapping, mapped)
    if mapping.time.column:
        keys.insert(0, _time(rows, mapping, site_zone, _order(rows, [*keys, names]), mapped))
    keys += _holders(rows, mapping, mapped)
    frame = pl.DataFrame([*keys, names, rows[metric.value].alias("value")]).filter(mapped.keep)
    mapped.keep, mapped.used = mapped.keep.filter(mapped.keep), frame.height
    on = [key.name for key in keys]
    result: pl.DataFrame | None = None
    for name, target in mapping.targets.items():
        here = frame.filter(pl.col("metric") == name)
        value = _value(here["value"], target, mapping, site_zone, mapped)
        of_metric = here.select(on).with_columns(value)
        once = of_metric.unique(subset=on, keep="last", maintain_order=True)
        if once.height < of_metric.height:
            mapped.rejects.append(
                Reject("repeated_value", target.to, of_metric.height - once.height)
            )
            mapped.used -= of_metric.height - once.height
        joined = (
            result.join(once, on=on, how="full", coalesce=True, nulls_equal=True)
            if result is not None
            else once
        )
        result = joined
    return result.sort(on) if result is not None else frame.select(on)


def unmapped_rejects(reason: str, rows: Mapping[str, int]) -> list[Reject]:
    """Rejects: one for each of the first unmapped names, and one for the rest."""
    names = list(rows)
    rejects = [Reject(reason, name, rows[name], name) for name in names[:_MOST_NAMED]]
    rest = names[_MOST_NAMED:]
    return (
        [*rejects, Reject(reason, None, sum(rows[name] for name in rest), listed(rest))]
        if rest
        else rejects
    )


def _completed(
    rows: pl.DataFrame, table: LakeTable, mapping: TableMapping, cluster: str | None
) -> pl.DataFrame:
    """Add required values the file may lack: cluster, provenance, clean states."""
    targets = {target.to for target in mapping.targets.values()}
    if table in (JOBS, ALLOCATIONS) and cluster and "cluster" not in targets:
        rows = rows.with_columns(pl.lit(cluster).alias("cluster"))
    if table is ALLOCATIONS and "provenance" not in targets:
        rows = rows.with_columns(
            pl.lit("explicit" if mapping.gpu.given else "node_list").alias("provenance")
        )
    if table is JOBS and "state" in targets:
        # CANCELLED by 1234.
        rows = rows.with_columns(pl.col("state").str.to_uppercase().str.extract(r"^(\w+)"))
    return rows


NAME = "table"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare files, mapping, replaced keys, and the option to propose a mapping."""
    add_files(parser, may_lack=True)
    parser.add_argument("--mapping", metavar="FILE.toml", help="what the columns mean")
    parser.add_argument(
        "--suggest",
        metavar="FILE",
        nargs="?",
        const="",
        help="print a mapping proposed for FILE, and ingest nothing",
    )
    parser.add_argument(
        "--node", metavar="NAME", help="the node of a recording whose file names none"
    )
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[],
        help="override a key of the mapping: --set gpu.constant=1 (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--time-zone",
        metavar="ZONE",
        help="zone of times given without one (default: time.zone of the mapping)",
    )


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield the chunks of the files named.

    `now` is not needed: times are in the files. Printing a proposed mapping is the command's work
    (`suggest`). Errors: UsageError without a mapping or files, ConfigError for a wrong mapping,
    InputError for a wrong file.
    """
    if not options.mapping:
        raise UsageError(
            "no mapping", do="write one: tachograph ingest table --suggest FILE > mapping.toml"
        )
    if not options.files:
        raise UsageError("no file to read", do="name the files after the options")
    zones = [f"time.zone={json.dumps(options.time_zone)}"] if options.time_zone else []
    mapping = load(Path(options.mapping), node=options.node, settings=[*zones, *options.set])
    site = configuration.site
    for path in expand(options.files, SUFFIXES):
        yield from read_file(path, mapping, site_zone=site.time_zone, cluster=site.cluster or None)


def read_file(
    path: Path, mapping: TableMapping, *, site_zone: str = "UTC", cluster: str | None = None
) -> Iterator[Chunk]:
    """Yield chunks of a file: per 2 million rows of Parquet, per block of CSV, one for JSON.

    A file whose rows belong together (long files, wall-clock times of a zone that repeats an hour)
    is one chunk. Errors: InputError when it is damaged or lacks a mapped column.
    """
    text = [NAME, repr(mapping), site_zone, cluster or ""]
    if mapping.table == JOBS.name and "node_list" in {to.to for to in mapping.targets.values()}:
        text.append("nodes")  # a file that was read before its jobs had nodes is read again
    print_of = fingerprint(path, *text)
    stored = list(parquet_columns(path)) if format_of(path) == "parquet" else None
    for piece in _frames(path, mapping, site_zone):
        has = stored or piece.rows.columns
        read_columns = set(_used(has, mapping))
        passed_over = IGNORED - {*JOB_NAMES} if mapping.table == GPU_SAMPLES.name else IGNORED
        others = [
            name
            for name in has
            if name.lower().strip() not in passed_over and name not in read_columns
        ]
        alike = _of_same_meaning(others, mapping)
        named_alike = [
            Reject("same_meaning", name, piece.rows.height, to) for name, to in alike.items()
        ]
        unknown = {name: piece.rows.height for name in others if name not in alike}
        unmapped = unmapped_rejects("unmapped_column", unknown)
        frame = replace(piece, rejects=(*piece.rejects, *named_alike, *unmapped))
        chunk_parts = mapped_parts(
            frame, mapping, site_zone=site_zone, cluster=cluster, origin=str(path)
        )
        yield Chunk(f"{print_of}:{frame.first_row}", NAME, str(path), chunk_parts, frame.rows_read)


def _of_same_meaning(names: Sequence[str], mapping: TableMapping) -> dict[str, str]:
    """Return {column without a mapping: what it means} where the mapping has that from another."""
    if mapping.table != GPU_SAMPLES.name:
        return {}
    facts = mapping.of_devices.targets if mapping.devices else {}
    targets = {target.to for target in (*mapping.targets.values(), *facts.values())}
    meanings = {name: device_meaning(name) or counter_meaning(name) for name in names}
    return {
        name: meaning[0]
        for name, meaning in meanings.items()
        if meaning is not None and meaning[0] in targets
    }


def _frames(path: Path, mapping: TableMapping, site_zone: str) -> Iterator[FilePiece]:
    whole = mapping.metric is not None or is_local(
        mapping.time.format, mapping.time.zone or site_zone
    )
    match format_of(path):
        case "parquet":
            columns = list(parquet_columns(path))
            columns = _used(columns, mapping) or columns
            yield from read_parquet(path, columns, rows=None if whole else CHUNK_ROWS)
        case "csv":
            yield from read_csv(path, mapping.layout, block_bytes=None if whole else BLOCK_BYTES)
        case "json":
            content, rejects = read_json(path)
            rows = records(_inside(content, mapping.records, path), origin=str(path))
            yield FilePiece(rows, 0, rows.height + sum(reject.count for reject in rejects), rejects)


def _used(has: Sequence[str], mapping: TableMapping) -> list[str]:
    """The columns that the mapping uses, in the file's order."""
    sections = (mapping.node, mapping.gpu, mapping.mig, *mapping.holders.values())
    keys = (mapping.time.column, *(section.column for section in sections))
    named = {*filter(None, keys), *mapping.devices}
    if mapping.metric:
        named |= {mapping.metric.column, mapping.metric.value}
    else:
        named |= set(mapping.columns)
    patterns = [*filter(None, map(placeholders, named))]

    def is_used(name: str) -> bool:
        return name in named or any(pattern.fullmatch(name) for pattern in patterns)

    return [*filter(is_used, has)]


def _inside(content: object, keys: str, path: Path) -> object:
    """Objects under `records` in a JSON file."""
    for key in filter(None, keys.split(".")):
        if not isinstance(content, dict) or key not in content:
            has = listed(map(str, content)) if isinstance(content, dict) else "a list"
            raise InputError(
                f"no key {key!r} (records = {keys!r})", where=path, do=f"it has: {has}"
            )
        content = content[key]
    if isinstance(content, dict):
        raise InputError(
            f"not a list of records; its keys are: {listed(map(str, content))}",
            where=path, do="name the key of the rows in the mapping: records = '...'",
        )  # fmt: skip
    return content
