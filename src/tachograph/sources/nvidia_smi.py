"""Source `nvidia-smi`: saved output of `--query-gpu ... --format=csv` and of `dmon`.

Formats: nvidia-smi's own help (`--help-query-gpu`, `dmon -h`). Query output has a header unless
`noheader`, and units unless `nounits`. dmon repeats two header lines, names and units; `-` is no
value; `-o D`, `-o T` and `-o DT` add date and time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType

import polars as pl

from tachograph.catalog.chunks import Chunk, ChunkPart, Reject, chosen_cells, counted
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import InputError
from tachograph.catalog.tables import TIME
from tachograph.catalog.units import parse_time, real_number, whole_number
from tachograph.sources.files import FilePiece, fingerprint, listed, read_unpacked
from tachograph.sources.metrics import short_node
from tachograph.sources.table import mapped_parts
from tachograph.sources.table.mapping import (
    MappingKey,
    MappingTarget,
    MappingTime,
    TableMapping,
    stripped,
)
from tachograph.sources.times import local_to_utc, read_times

NAME = "nvidia-smi"
SUFFIXES = (".csv", ".txt", ".log", ".csv.gz", ".txt.gz", ".log.gz")
_QUERY_TIME = "%Y/%m/%d %H:%M:%S%.f"
_ROW = "number of the row"
_TIME = "time of the row"
_PROCESS = "pid"  # a field of a process
_WITH_TIMES = "record times (--query-gpu=timestamp,..., `dmon -o DT`)"
_MIDNIGHT_S = 43_200  # a time of day that falls by more than half a day is of the next day

# {field: (column, unit without a header)}; of two fields for one column the first here counts
QUERY_FIELDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "utilization.gpu": ("gpu_util", "percent"),
        "utilization.memory": ("mem_copy_util", "percent"),
        "memory.used": ("hbm_used_mib", "MiB"),
        "memory.free": ("hbm_free_mib", "MiB"),
        "power.draw": ("power_w", "W"),
        "power.draw.instant": ("power_w", "W"),
        "power.draw.average": ("power_w", "W"),
        "temperature.gpu": ("gpu_temp_c", "C"),
        "temperature.memory": ("mem_temp_c", "C"),
        "clocks.current.sm": ("sm_clock_mhz", "MHz"),
        "clocks.sm": ("sm_clock_mhz", "MHz"),
        "clocks.current.memory": ("mem_clock_mhz", "MHz"),
        "clocks.mem": ("mem_clock_mhz", "MHz"),
        "clocks_event_reasons.active": ("throttle_reasons", "bitmask"),
        "clocks_throttle_reasons.active": ("throttle_reasons", "bitmask"),
        "remapped_rows.uncorrectable": ("remapped_rows_uncorrectable", "count"),
        "remapped_rows.correctable": ("remapped_rows_correctable", "count"),
        "retired_pages.double_bit.count": ("remapped_rows_uncorrectable", "count"),
        "retired_pages.single_bit_ecc.count": ("remapped_rows_correctable", "count"),
        "ecc.errors.corrected.volatile.total": ("ecc_sbe", "count"),
        "ecc.errors.uncorrected.volatile.total": ("ecc_dbe", "count"),
    }
)
DMON_COLUMNS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "sm": ("gpu_util", "percent"),
        "mem": ("mem_copy_util", "percent"),
        "fb": ("hbm_used_mib", "MiB"),
        "pwr": ("power_w", "W"),
        "gtemp": ("gpu_temp_c", "C"),
        "temp": ("gpu_temp_c", "C"),
        "mtemp": ("mem_temp_c", "C"),
        "pclk": ("sm_clock_mhz", "MHz"),
        "mclk": ("mem_clock_mhz", "MHz"),
        "rxpci": ("pcie_rx_bytes_per_s", "MB/s"),
        "txpci": ("pcie_tx_bytes_per_s", "MB/s"),
        "pci": ("pcie_replays", "count"),
    }
)
_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "timestamp": "t",
        "index": "gpu",
        "gpu": "gpu",
        "date": "date",
        "time": "time",
        "uuid": "uuid",
        "gpu_uuid": "uuid",
        "name": "model",
        "gpu_name": "model",
        "memory.total": "hbm_mib",
        "pci.bus_id": "pci",
        "gpu_bus_id": "pci",
        "hostname": "node",
        "host": "node",
        "node": "node",
    }
)
_FACTS = ("uuid", "pci", "model", "hbm_mib")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare options for data missing in the text."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="files or folders")
    parser.add_argument(
        "--fields", help="fields of --query-gpu in order, for output printed with noheader"
    )
    parser.add_argument("--node", help="host of the GPUs")
    parser.add_argument(
        "--gpu",
        type=whole_number(0, 32767),
        metavar="N",
        help="index of the GPU, where no column names it",
    )
    parser.add_argument(
        "--date", metavar="DATE", help="first day of dmon output that has only times: 2026-03-01"
    )
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


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield one chunk per file.

    Errors: InputError for a file of another format, and where fields, host, GPU or times are
    unknown.
    """
    given = given_times(options, configuration, now)
    settings = (options.fields or "", options.node or "", str(options.gpu), str(given))
    for name in options.files:
        path = Path(name)
        text = read_unpacked(path).decode("utf-8", "replace").removeprefix("\ufeff")
        table = _table(text, options.fields, str(path))
        mapping = _mapping(table, options, str(path))
        times, rejects = _times(table, mapping, given, str(path))
        rows = table.rows.with_columns(times.alias(_TIME)).filter(times.is_not_null())
        piece = FilePiece(rows, 0, table.lines, (*table.rejects, *rejects))
        parts = tuple(map(without_marks, mapped_parts(piece, mapping, origin=str(path))))
        chunk_id = f"{fingerprint(path, NAME, *settings)}:0"
        yield Chunk(chunk_id, NAME, str(path), parts, table.lines)


@dataclass(frozen=True, slots=True)
class _SmiTable:
    """Text cells, one column per known field. `meanings`: {field: (column, unit)}; `places`: the
    number of the line of each row, counted without headers; `lines`: how many there are.
    """

    rows: pl.DataFrame
    meanings: Mapping[str, tuple[str, str]]
    rejects: Sequence[Reject]
    places: pl.Series
    lines: int


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


def _day(written: str | None) -> datetime | None:
    if written is None:
        return None
    try:
        return datetime.strptime(written.replace("-", "").replace("/", ""), "%Y%m%d")  # noqa: DTZ007
    except ValueError:
        raise InputError(
            f"invalid date: {written!r}", where="--date", do="write 2026-03-01"
        ) from None


def _table(text: str, fields: str | None, where: str) -> _SmiTable:
    lines = pl.Series("line", text.split("\n")).str.strip_chars()
    lines = lines.filter(lines != "")
    head = [line for line in lines.head(50).to_list() if line.startswith("#")]
    return _dmon(lines, where) if head and not fields else _query(lines, fields, where)


def _query(lines: pl.Series, fields: str | None, where: str) -> _SmiTable:
    first = field_names(lines.item(0).split(","))
    headed = any(name in QUERY_FIELDS or name in _KEYS or name == _PROCESS for name in first)
    if not headed and not fields:
        what = "no header: the first line names no field of --query-gpu"
        raise InputError(
            what, where=where, do="give --fields timestamp,index,utilization.gpu,... in their order"
        )
    names = first if headed else field_names((fields or "").split(","))
    body = lines.filter(lines != lines.item(0)) if headed else lines
    return _split(
        body, ((names, pl.repeat(True, body.len(), eager=True)),), ",", QUERY_FIELDS, where
    )


def field_names(written: Sequence[str]) -> list[str]:
    """Return the names of fields, lower case and without units.

    >>> field_names(["utilization.gpu [%]", "Index"])
    ['utilization.gpu', 'index']
    """
    return [name.partition("[")[0].strip().lower() for name in written]


def _dmon(lines: pl.Series, where: str) -> _SmiTable:
    spaced = lines.str.replace_all(r"[,\s]+", " ")
    names = spaced.str.starts_with("#") & ~spaced.str.to_lowercase().str.contains(r"\bidx\b")
    header = chosen_cells(names, spaced).forward_fill()
    body = ~spaced.str.starts_with("#")
    kept, of_row = spaced.filter(body), header.filter(body).fill_null("")
    if not names.any():
        raise InputError(
            "dmon's header is missing", where=where, do="keep the lines that begin with #"
        )
    every = pl.concat([spaced.filter(names), of_row]).unique(maintain_order=True)
    layouts = [(field_names(one.lstrip("# ").split(" ")), of_row == one) for one in every]
    return _split(kept, layouts, " ", DMON_COLUMNS, where)


def _split(
    body: pl.Series,
    layouts: Sequence[tuple[Sequence[str], pl.Series]],
    delimiter: str,
    known: Mapping[str, tuple[str, str]],
    where: str,
) -> _SmiTable:
    """The cells of lines, by the layout of each; lines with another number of cells are counted."""
    frames: list[pl.DataFrame] = []
    rejects: list[Reject] = []
    unread: dict[str, int] = {}
    numbers = pl.int_range(body.len(), eager=True)
    for names, mask in layouts:
        if _PROCESS in names:
            # Neither use nor memory of processes adds up to that of the GPU.
            what = "its rows are processes (`nvidia-smi pmon`), not GPUs"
            raise InputError(what, where=where, do="record GPUs: `nvidia-smi dmon -o DT`")
        lines = body.filter(mask)
        cells = lines.str.split(delimiter)
        whole = cells.list.len() == len(names)
        rejects += counted("unreadable_line", None, ~whole, lines)
        cells = cells.filter(whole)
        wanted: dict[str, int] = {}
        for place, name in enumerate(names):
            if name in known or name in _KEYS:
                wanted.setdefault(name, place)
            elif name:
                unread[name] = unread.get(name, 0) + cells.len()
        columns = {_ROW: numbers.filter(mask).filter(whole)}
        for name, place in wanted.items():
            columns[name] = cells.list.get(place).str.strip_chars().str.replace(r"^\[.*", "")
        frames.append(pl.DataFrame(columns))
    rows = pl.concat(frames, how="diagonal").sort(_ROW)
    meanings: dict[str, tuple[str, str]] = {}
    for name, (column, unit) in known.items():
        if name in rows.columns and column not in {of for of, _ in meanings.values()}:
            meanings[name] = (column, unit)
    if not meanings:
        found = listed([name for names, _ in layouts for name in names])
        raise InputError(f"no counter among: {found}", where=where, do="see docs/ingest-table.md")
    rejects += [Reject("unmapped_column", name, count) for name, count in unread.items() if count]
    return _SmiTable(rows.drop(_ROW), meanings, rejects, rows[_ROW], body.len())


def _mapping(table: _SmiTable, options: argparse.Namespace, where: str) -> TableMapping:
    """Meaning of the columns: counters in units of nvidia-smi, host, GPU index, GPU facts."""
    by_key = {_KEYS[name]: name for name in reversed(table.rows.columns) if name in _KEYS}
    if "node" not in by_key and not options.node:
        raise InputError("the host of these GPUs is unknown", where=where, do="name it with --node")
    if "gpu" not in by_key and options.gpu is None:
        raise InputError(
            "no column `index` names the GPU", where=where, do="query index, too, or give --gpu 0"
        )
    for name in ("uuid", "pci"):
        if "gpu" not in by_key and name in by_key and table.rows[by_key[name]].n_unique() > 1:
            raise InputError(
                f"--gpu names one GPU, and {by_key[name]} several",
                where=where,
                do="query index, too",
            )
    node = (
        MappingKey(column=by_key["node"])
        if "node" in by_key
        else MappingKey(constant=short_node(options.node))
    )
    gpu = MappingKey(column=by_key["gpu"]) if "gpu" in by_key else MappingKey(constant=options.gpu)
    return TableMapping(
        columns={
            name: MappingTarget(column, unit) for name, (column, unit) in table.meanings.items()
        },
        time=MappingTime(column=_TIME),
        node=node,
        gpu=gpu,
        devices={by_key[name]: name for name in _FACTS if name in by_key},
    )


def without_marks(part: ChunkPart) -> ChunkPart:
    """A field that a GPU does not have is marked on every row: nothing to report."""
    return replace(
        part, rejects=tuple(reject for reject in part.rejects if reject.reason != "missing_mark")
    )


def _times(
    table: _SmiTable,
    mapping: TableMapping,
    given: GivenTimes,
    where: str,
) -> tuple[pl.Series, tuple[Reject, ...]]:
    """Return the times of rows: `timestamp`, dmon's date and time, or counted from the given."""
    rows = table.rows
    order = rows.select(
        [key.column for key in (mapping.node, mapping.gpu) if key.column]
        or pl.int_range(pl.len()) * 0
    )
    written = {_KEYS[name]: stripped(rows[name]) for name in rows.columns if name in _KEYS}
    if "t" in written:
        stamps = written["t"]
        form = _QUERY_TIME if stamps.str.contains(r"^\d{4}/").any() else "auto"
        read_as = read_times(stamps, form=form, zone_name=given.zone_name, order=order)
        return read_as.values, read_as.rejects
    if "time" in written:
        clock = written["time"].str.to_time("%H:%M:%S", strict=False)
        if "date" in written:
            days = written["date"].str.to_datetime("%Y%m%d", strict=False)
        elif given.day is not None:
            seconds = clock.dt.hour().cast(pl.Int32) * 3600 + clock.dt.minute().cast(pl.Int32) * 60
            later = (seconds.forward_fill().diff().fill_null(0) < -_MIDNIGHT_S).cum_sum()
            days = pl.select(
                pl.lit(given.day) + later.cast(pl.Int64) * timedelta(days=1)
            ).to_series()
        else:
            do = "give the first --date, or record with `nvidia-smi dmon -o DT`"
            raise InputError("the rows have times without a date", where=where, do=do)
        both = pl.DataFrame({"day": days, "clock": clock})
        naive = both.select(pl.col("day").dt.combine(pl.col("clock"))).to_series()
        unread = counted("unreadable_time", None, naive.is_null(), written["time"])
        local = local_to_utc(naive.alias("t"), given.zone_name, order)
        return local.values, (*unread, *local.rejects)
    return times_from_start(given, order, table.places, where, _WITH_TIMES), ()


def times_from_start(
    given: GivenTimes, order: pl.DataFrame, places: pl.Series, where: str, with_times: str
) -> pl.Series:
    """Return the times of rows that have none, counted from that of the first reading.

    order: the GPU of each row; places: the number of its line; with_times: how to record times.
    Errors: InputError where the options leave a time open, or readings cannot be counted.
    """
    if given.start is None:
        raise InputError("the rows have no time", where=where, do=f"{with_times}, or give --time")
    if not given.is_of_file:
        what = "the rows have no time, and --time cannot be that of several files"
        raise InputError(what, where=where, do="ingest each file alone, with its own --time")
    readings = _readings(order, places, where, with_times)
    if given.interval_s is None and readings.n_unique() > 1:
        raise InputError(
            f"{readings.n_unique()} readings of the GPUs, and --time is that of the first",
            where=where,
            do=f"give --interval, the seconds between two, or {with_times}",
        )
    steps = pl.lit(timedelta(seconds=given.interval_s or 0)) * pl.lit(readings)
    return pl.select((pl.lit(given.start) + steps).cast(TIME)).to_series()


def _readings(gpus: pl.DataFrame, places: pl.Series, where: str, with_times: str) -> pl.Series:
    """Return the number of the reading that each row is of: 0 for the first.

    A reading has a line per GPU, in the same order each time; a line that could not be read keeps
    its place. `gpus`: the GPU of each row; `places`: the number of its line.
    Errors: InputError where lines are missing, so that the order does not repeat.
    """
    width = max(1, gpus.unique().height)
    in_reading = gpus.with_columns((places % width).alias(_ROW))
    if in_reading.unique().height > width:
        what = "lines of GPUs are missing or out of order: readings cannot be counted"
        raise InputError(what, where=where, do=with_times)
    return places // width
