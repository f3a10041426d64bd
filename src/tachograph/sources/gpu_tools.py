"""Source `gpu-tools`: what programs that show GPUs wrote into files.

Read are `dcgmi dmon`, amd-smi and rocm-smi (JSON, CSV), `gpustat --json`, the CSV of KempnerPulse,
system metrics of wandb and Telegraf's nvidia_smi in line protocol. Each becomes a table of text, one
row per GPU and reading, with the program's own names in lower case; what these mean stands in
`gpu_tool_names`. A file may hold one reading or, from a loop, many behind each other.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, islice
from pathlib import Path

import msgspec
import polars as pl

from tachograph.catalog.chunks import Chunk, Reject, chosen_cells, counted
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import TIME
from tachograph.catalog.units import parse_time, real_number
from tachograph.sources.dcgmi import DmonStream, split_time
from tachograph.sources.files import (
    FilePiece,
    add_files,
    fingerprint,
    format_of,
    listed,
    open_file,
    read_json,
    read_unpacked,
)
from tachograph.sources.gpu_tool_names import GPU_TOOLS, GpuTool, ToolColumns, find_tool
from tachograph.sources.line_protocol import read_point
from tachograph.sources.metrics import short_node
from tachograph.sources.table import device_parts, mapped_parts, unmapped_rejects
from tachograph.sources.table.mapping import (
    MARKS,
    MappingKey,
    MappingTarget,
    MappingTime,
    TableMapping,
)
from tachograph.sources.times import read_times

NAME = "gpu-tools"
SUFFIXES = (".json", ".jsonl", ".csv", ".txt", ".log", ".lp", ".json.gz", ".csv.gz", ".txt.gz")
_TIME, _NODE, _GPU = "time of the row", "host of the row", "index of the row"
_PLACE = "line of the row"
_INDEX = r"^(?:card)?(\d{1,4})$"
_GPU_LISTS = ("gpus", "gpu_data")  # keys of gpustat and amd-smi under which the GPUs are
_CARD = re.compile(r"card\d{1,4}", re.ASCII)  # key of rocm-smi
_WANDB = re.compile(r"system\.gpu\.(\d{1,4})\.(\w+)", re.ASCII)
_DEEPEST = 6  # keys within each other; no tool nests them deeper
_HEAD_BYTES = 65536  # of text, by which its program is recognised
_LOOKED_AT = 8  # rows of a document by which its program is recognised
_MIB = {"MB": "MiB"}  # AMD's tools count 1024 * 1024 bytes as an MB
_DMON_HEADER = re.compile(r"^[^\n#]{0,80}#\s*Entity\b", re.MULTILINE)
_TELEGRAF = "nvidia_smi"  # measurement of GPUs; others of the plugin are MIG slices and processes
_LINE_PROTOCOL = re.compile(rf"^{_TELEGRAF}(?:_\w+)?,\S", re.MULTILINE)
_NUMBER_CELL = r'(?:^|,)\s*"?[-+]?[0-9][0-9.]*(?:[eE][-+]?[0-9]+)?"?\s*(?:,|$)'

_ADDED = ("entity", "measurement")  # columns that tell a program, made here
ToolRow = dict[str, str]


@dataclass(slots=True)
class ToolText:
    """Rows of text as a program wrote them, and what could not be read.

    places: the number of the line of each row; None: that of the row.
    """

    rows: pl.DataFrame
    rejects: list[Reject] = field(default_factory=list)
    places: pl.Series | None = None


@dataclass(frozen=True, slots=True)
class GivenTimes:
    """What the options give of times: of the first reading, seconds from one to the next, the
    first day; the zone of written times; and whether they are of one file.
    """

    start: datetime | None
    interval_s: float | None
    day: datetime | None
    zone_name: str
    is_of_file: bool = field(repr=False)  # no part of the fingerprint


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare options for data missing in the files."""
    names = ", ".join(f"{t.name}{' (untested)' if t.is_untested else ''}" for t in GPU_TOOLS)
    add_files(parser, f"output of {names}; or folders")
    parser.add_argument("--node", help="host of the GPUs, where the file does not name it")
    add_time_options(parser)


def add_time_options(parser: argparse.ArgumentParser) -> None:
    """Declare the times of rows that have none."""
    parser.add_argument(
        "--time", metavar="TIME", help="time of the first reading, where rows have no time"
    )
    parser.add_argument(
        "--interval",
        type=real_number(0.001, 86400),
        metavar="S",
        help="seconds between readings without times, as of `dmon -d` or `-l`",
    )


def given_times(
    options: argparse.Namespace, configuration: Configuration, now: datetime
) -> GivenTimes:
    """Return what the options give of times. Errors: UsageError, InputError for invalid ones."""
    zone_name = configuration.site.time_zone
    return GivenTimes(
        parse_time(options.time, now=now, zone_name=zone_name) if options.time else None,
        options.interval,
        _day(getattr(options, "date", None)),
        zone_name,
        getattr(options, "alone", True),
    )


def _day(written: str | None) -> datetime | None:
    if written is None:
        return None
    try:
        return datetime.strptime(written.replace("-", "").replace("/", ""), "%Y%m%d")  # noqa: DTZ007
    except ValueError:
        raise InputError(
            f"invalid date: {written!r}", where="--date", do="write 2026-03-01"
        ) from None


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield one chunk per file.

    Errors: InputError for a file of another program, and where host or times are unknown.
    """
    time_options = given_times(options, configuration, now)
    for name in options.files:
        path = Path(name)
        text = tool_text(path)
        tool = find_tool(text.rows.columns)
        if tool is None:
            raise InputError(
                f"no counter of a known GPU tool among: {listed(text.rows.columns)}",
                where=path,
                do="map its columns: tachograph ingest table --suggest FILE",
            )
        settings = (NAME, options.node or "", str(time_options))
        yield tool_chunk(path, text, tool, time_options, options.node, settings)


def tool_chunk(
    path: Path,
    text: ToolText,
    tool: GpuTool,
    time_options: GivenTimes,
    node: str | None,
    settings: Sequence[str],
) -> Chunk:
    """Return the rows of a file; `settings`: name of the source, and options that change them.

    Errors: InputError where host or times are unknown.
    """
    piece, timed, mapping = _mapped(text, tool, time_options, node, str(path))
    samples = msgspec.structs.replace(mapping, devices={})
    parts = mapped_parts(piece, samples, origin=str(path))
    if mapping.devices:
        parts += tuple(device_parts(timed, mapping, str(path)))
    chunk_id = f"{fingerprint(path, *settings)}:0"
    return Chunk(chunk_id, settings[0], str(path), parts, piece.rows_read)


def tool_of(head: str, document: object = None) -> GpuTool | None:
    """Return the program that wrote a JSON document, or the beginning of a text; None if unknown."""
    if document is None:
        return find_tool(_text_rows(head).rows.columns)
    return find_tool(document_columns(document))


def document_columns(document: object) -> list[str]:
    """Return the names of values in the first objects of a JSON document."""
    first = islice(_json_rows(document, {}), _LOOKED_AT)
    return list(dict.fromkeys(name for row in first for name in row))


def refuse_output(path: Path) -> None:
    """Check that no known tool wrote a file. Errors: InputError naming tool and source."""
    tool = None
    match format_of(path):
        case "json":
            tool = tool_of("", read_json(path)[0])
        case "csv":
            with open_file(path) as file:
                tool = tool_of(file.read(_HEAD_BYTES).decode("utf-8-sig", "replace"))
    if tool is not None:
        do = f"tachograph ingest {NAME} {path}"
        raise InputError(f"this is output of {tool.name}", where=path, do=do)


def tool_text(path: Path) -> ToolText:
    """Return the rows of a file. Errors: InputError when it cannot be read."""
    if format_of(path) == "json":
        document, rejects = read_json(path)
        return ToolText(_frame(_json_rows(document, {})), list(rejects))
    return _text_rows(read_unpacked(path).decode("utf-8-sig", "replace"))


def _text_rows(text: str) -> ToolText:
    if _DMON_HEADER.search(text):
        return _dmon_rows(text.split("\n"))
    if _LINE_PROTOCOL.search(text):
        return _line_protocol_rows(text.split("\n"))
    return _csv_rows(text)


def _frame(rows: Iterable[ToolRow]) -> pl.DataFrame:
    """Return rows as columns of text; a missing key is null."""
    listed_rows = list(rows)
    names = dict.fromkeys(name for row in listed_rows for name in row)
    return pl.DataFrame(listed_rows, schema=dict.fromkeys(names, pl.String))


def _json_rows(document: object, around: ToolRow) -> Iterator[ToolRow]:
    """Yield one row per GPU: its keys, and the plain values around it."""
    if isinstance(document, list):
        for part in document:
            yield from _json_rows(part, around)
        return
    if not isinstance(document, dict):
        return
    gpus = [document[key] for key in _GPU_LISTS if isinstance(document.get(key), list)]
    cards = {key: value for key, value in document.items() if _CARD.fullmatch(key)}
    if gpus:
        plain = {key: value for key, value in document.items() if key not in _GPU_LISTS}
        yield from _json_rows(gpus[0], around | _flat(plain))
    elif cards:
        for key, value in cards.items():
            yield _flat({**value, "device": key} if isinstance(value, dict) else {})
    else:
        yield from _split_by_gpu(around | _flat(document))


def _split_by_gpu(row: ToolRow) -> Iterator[ToolRow]:
    """Yield a row, or one per GPU where wandb's names number these."""
    by_gpu: dict[str, ToolRow] = {}
    for name in row:
        if numbered := _WANDB.fullmatch(name):
            by_gpu.setdefault(numbered[1], {})[f"system.gpu.{numbered[2]}"] = row[name]
    plain = {name: value for name, value in row.items() if not name.startswith("system.")}
    if not by_gpu:
        yield row
    for gpu, values in by_gpu.items():
        yield {**plain, "gpu": gpu, **values}


def _flat(document: Mapping[str, object], before: str = "", depth: int = 0) -> ToolRow:
    """Return the plain values of an object as text, nested keys joined with dots."""
    row: ToolRow = {}
    for key, value in document.items():
        name = f"{before}{key}".lower()
        if isinstance(value, dict) and set(value) == {"value", "unit"}:
            unit = str(value["unit"])
            row[name] = f"{value['value']} {_MIB.get(unit, unit)}"
        elif isinstance(value, dict):
            row |= _flat(value, f"{name}.", depth + 1) if depth < _DEEPEST else {}
        elif not isinstance(value, list) and value is not None:
            row[name] = str(value).strip("()")  # rocm-smi puts clocks into parentheses
    return row


def _csv_rows(text: str) -> ToolText:
    """Return the rows of CSV, in which headers may be repeated or change, as loops write them."""
    lines = pl.Series("line", text.split("\n")).str.strip_chars()
    lines = lines.filter(lines.str.contains(",", literal=True))
    if not lines.len():
        return ToolText(pl.DataFrame())
    first = str(lines[0])
    # Without a header the first cells may all be the same: numbers tell such lines from headers.
    begins_alike = lines.str.starts_with(f"{first.partition(',')[0]},")
    is_header = begins_alike & ((lines == first) | ~lines.str.contains(_NUMBER_CELL))
    headers = chosen_cells(is_header, lines).forward_fill().filter(~is_header)
    cells = split_lines(lines.filter(~is_header), headers, first, ",", _csv_names)
    if any(map(_WANDB.fullmatch, cells.rows.columns)):
        # wandb's names number the GPUs
        filled = ({k: v for k, v in row.items() if v} for row in cells.rows.iter_rows(named=True))
        return ToolText(_frame(chain.from_iterable(map(_split_by_gpu, filled))), cells.rejects)
    return cells


def _csv_names(written: Sequence[str]) -> list[str]:
    return [name.strip().strip('"').lower() for name in written]


def split_lines(
    lines: pl.Series,
    headers: pl.Series,
    first: str,
    delimiter: str,
    names_of: Callable[[Sequence[str]], Sequence[str]],
) -> ToolText:
    """Return the cells of lines by the header of each; lines with another number are counted.

    Headers without rows count for nothing, but for the first one, which tells the program.
    """
    table = pl.DataFrame({"header": headers, "line": lines}).with_row_index(_PLACE)
    by_header = {first: table.clear()}
    for (header,), group in table.partition_by("header", as_dict=True).items():
        by_header[str(header)] = group
    frames: list[pl.DataFrame] = []
    rejects: list[Reject] = []
    for header, group in by_header.items():
        names = names_of(header.split(delimiter))
        cells = group["line"].str.split(delimiter)
        whole = cells.list.len() == len(names)
        rejects += counted("unreadable_line", None, ~whole, group["line"])
        whole_cells, columns = cells.filter(whole), {_PLACE: group[_PLACE].filter(whole)}
        for position, name in enumerate(names):
            column = whole_cells.list.get(position)
            columns.setdefault(name, column if delimiter == " " else column.str.strip_chars('" '))
        frames.append(pl.DataFrame(columns))
    rows = pl.concat(frames, how="diagonal").sort(_PLACE)
    return ToolText(rows.drop(_PLACE), rejects, rows[_PLACE].cast(pl.Int64))


def _dmon_rows(lines: Iterable[str]) -> ToolText:
    """Return the rows of GPUs; those of other entities, and lines of no table, are counted."""
    stream = DmonStream()
    rows: list[ToolRow] = []
    others: Counter[str] = Counter()
    for text in lines:
        stamp, line = split_time(text.rstrip("\r"))
        complaints = stream.complaints
        row = stream.line(line)
        if row is not None and row.entity.kind == "GPU":
            values = {name.lower(): repr(value) for name, value in row.values.items()}
            at = {"stamp": stamp} if stamp else {}
            rows.append({"entity": "GPU", "gpu": str(row.entity.number), **at, **values})
        elif row is not None:
            others[row.entity.kind] += 1
        elif stream.complaints is not complaints:
            others[""] += 1
    rejects = [
        Reject("not_a_gpu" if kind else "unreadable_line", None, count, kind or None)
        for kind, count in others.items()
    ]
    names = {name.lower(): pl.String for name in stream.columns}
    gpus = _frame(rows)
    missing = [pl.lit(None, pl.String).alias(name) for name in names if name not in gpus.columns]
    return ToolText(gpus.with_columns(missing), rejects)


def _line_protocol_rows(lines: Iterable[str]) -> ToolText:
    """Return the points of GPUs in InfluxDB's line protocol; other measurements are counted."""
    rows: list[ToolRow] = []
    others: Counter[str] = Counter()
    unreadable: list[str] = []
    for line in filter(None, map(str.strip, lines)):
        point = read_point(line)
        if point is None:
            unreadable.append(line)
            continue
        if point.measurement != _TELEGRAF:
            others[point.measurement] += 1
            continue
        row = {"measurement": point.measurement}
        for name, value in (*point.tags.items(), *point.fields.items()):
            row[name.lower()] = value
        rows.append(row | ({"stamp": point.stamp} if point.stamp else {}))
    rejects = unmapped_rejects("unmapped_metric", others)
    if unreadable:
        rejects.append(Reject("unreadable_line", None, len(unreadable), unreadable[0][:200]))
    return ToolText(_frame(rows), rejects)


def _mapped(
    text: ToolText, tool: GpuTool, time_options: GivenTimes, node: str | None, where: str
) -> tuple[FilePiece, pl.DataFrame, TableMapping]:
    """Return the samples under contract names, all rows with a time, and the mapping of both.

    Rows without a value are no samples and counted, unless the tool keeps them.

    Errors: InputError where host or times are unknown.
    """
    rows = text.rows
    if tool.node not in rows.columns and not node:
        raise InputError(
            f"{tool.name} does not name the host of its GPUs", where=where, do="name it with --node"
        )
    counters, facts = _contract(rows, tool.columns, tool), _contract(rows, tool.facts, tool)
    named = tool.node in rows.columns
    hosts = pl.col(tool.node) if named else pl.lit(short_node(node or ""))
    keys = rows.select(pl.col(tool.gpu).alias(_GPU), hosts.alias(_NODE))
    times, rejects = _times(text, tool, keys, time_options, where)
    table = keys.with_columns(times, *counters.values(), *facts.values())
    has_value = table.select(pl.any_horizontal(c.is_not_null() for c in counters.values()))
    without = ~has_value.to_series() & (not tool.keeps_empty)
    lost = counted("no_counter", None, without & times.is_not_null(), keys[_GPU])
    read_names = {*tool.columns, *tool.facts, tool.gpu, tool.time, tool.node, *_ADDED}
    others = {name: rows[name].count() for name in rows.columns if name not in read_names}
    rejected = [*text.rejects, *rejects, *lost, *unmapped_rejects("unmapped_column", others)]
    of_columns = ("unmapped_column", "same_meaning")
    of_lines = (reject.count for reject in text.rejects if reject.reason not in of_columns)
    lines = rows.height + sum(of_lines)
    timed = table.filter(times.is_not_null())
    filled = table.filter(times.is_not_null() & ~without) if without.any() else timed
    mapping = TableMapping(
        columns={to: MappingTarget(to, _units(tool.columns)[to]) for to in counters},
        time=MappingTime(column=_TIME),
        node=MappingKey(column=_NODE),
        gpu=MappingKey(column=_GPU, pattern=_INDEX),
        devices={name: MappingTarget(name, _units(tool.facts)[name]) for name in facts},
    )
    return FilePiece(filled, 0, lines, tuple(rejected)), timed, mapping


def _units(columns: ToolColumns) -> Mapping[str, str]:
    return dict(columns.values())


def _contract(rows: pl.DataFrame, columns: ToolColumns, tool: GpuTool) -> dict[str, pl.Series]:
    """{counter or fact: its text}, in each row of the first column that has a value."""
    sources: dict[str, list[pl.Series]] = {}
    for name, (to, _) in columns.items():
        if name in rows.columns:
            # "N/A (Secondary die)": the first die of the module has the power of both.
            cells = rows[name]
            is_mark = cells.is_in(MARKS) | cells.str.starts_with("N/A") | cells.str.starts_with("[")
            cells = chosen_cells(~is_mark, cells)
            if name in tool.ratios:
                cells = cells.str.replace(r"^(\d\.\d{4})$", "${1} fraction")
            sources.setdefault(to, []).append(cells)
    return {
        to: (cells[0] if len(cells) == 1 else pl.select(pl.coalesce(cells)).to_series()).alias(to)
        for to, cells in sources.items()
    }


def _times(
    text: ToolText, tool: GpuTool, keys: pl.DataFrame, time_options: GivenTimes, where: str
) -> tuple[pl.Series, tuple[Reject, ...]]:
    """Return the times of rows, written, or counted from the first; null where unreadable."""
    rows, positions = text.rows, text.places
    if tool.time not in rows.columns:
        if positions is None:
            positions = pl.int_range(rows.height, eager=True)
        counted_times = times_from_start(
            time_options, keys.select(_GPU), positions, where, tool.times
        )
        return counted_times.alias(_TIME), ()
    written = read_times(rows[tool.time], zone_name=time_options.zone_name, order=keys)
    is_unread = rows.height and written.values.null_count() == rows.height
    if is_unread and not tool.keeps_empty:
        what = f"no time can be read, such as {rows[tool.time].drop_nulls().head(1).to_list()}"
        raise InputError(what, where=where, do=tool.times)
    return written.values.alias(_TIME), written.rejects


def times_from_start(
    time_options: GivenTimes, order: pl.DataFrame, positions: pl.Series, where: str, with_times: str
) -> pl.Series:
    """Return the times of rows that have none, counted from that of the first reading.

    order: the GPU of each row; positions: the number of its line; with_times: how to record times.
    Errors: InputError where the options leave a time open, or readings cannot be counted.
    """
    if time_options.start is None:
        raise InputError("the rows have no time", where=where, do=f"{with_times}, or give --time")
    if not time_options.is_of_file:
        what = "the rows have no time, and --time cannot be that of several files"
        raise InputError(what, where=where, do="ingest each file alone, with its own --time")
    readings = _readings(order, positions, where, with_times)
    if time_options.interval_s is None and readings.n_unique() > 1:
        raise InputError(
            f"{readings.n_unique()} readings of the GPUs, and --time is that of the first",
            where=where,
            do=f"give --interval, the seconds between two, or {with_times}",
        )
    steps = pl.lit(timedelta(seconds=time_options.interval_s or 0)) * pl.lit(readings)
    return pl.select((pl.lit(time_options.start) + steps).cast(TIME)).to_series()


def _readings(gpus: pl.DataFrame, positions: pl.Series, where: str, with_times: str) -> pl.Series:
    """Return the number of the reading that each row is of: 0 for the first.

    A reading has a line per GPU, in the same order each time; a line that could not be read keeps
    its place. `gpus`: the GPU of each row; `positions`: the number of its line.
    Errors: InputError where lines are missing, so that the order does not repeat.
    """
    width = max(1, gpus.unique().height)
    in_reading = gpus.with_columns((positions % width).alias("place"))
    if in_reading.unique().height > width:
        what = "lines of GPUs are missing or out of order: readings cannot be counted"
        raise InputError(what, where=where, do=with_times)
    return positions // width
