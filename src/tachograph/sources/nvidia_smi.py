"""Source `nvidia-smi`: saved output of `--query-gpu ... --format=csv` and of `dmon`.

Formats: nvidia-smi's own help (`--help-query-gpu`, `dmon -h`). Query output has a header unless
`noheader`, and units unless `nounits`. dmon repeats two header lines, names and units; `-` is no
value; `-o D`, `-o T` and `-o DT` add date and time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType

import polars as pl

from tachograph.catalog.chunks import Chunk, Reject, chosen_cells
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import InputError
from tachograph.catalog.units import whole_number
from tachograph.sources.files import add_files, listed, read_unpacked
from tachograph.sources.gpu_tool_names import QUERY_FIELDS, SMI_DMON, SMI_QUERY, GpuTool
from tachograph.sources.gpu_tools import (
    GivenTimes,
    ToolText,
    add_time_options,
    given_times,
    split_lines,
    tool_chunk,
)
from tachograph.sources.table import unmapped_rejects

NAME = "nvidia-smi"
SUFFIXES = (".csv", ".txt", ".log", ".csv.gz", ".txt.gz", ".log.gz")
_PROCESS = "pid"  # a field of a process
_MIDNIGHT_S = 43_200  # a time of day that falls by more than half a day is of the next day
_CLOCK = "%H:%M:%S"

_KEYS: Mapping[str, str] = MappingProxyType(
    {
        "timestamp": "stamp",
        "index": "gpu",
        "gpu": "gpu",
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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare options for data missing in the text."""
    add_files(parser)
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


def read(
    options: argparse.Namespace, *, configuration: Configuration, now: datetime
) -> Iterator[Chunk]:
    """Yield one chunk per file.

    Errors: InputError for a file of another format, and where fields, host, GPU or times are
    unknown.
    """
    time_options = given_times(options, configuration, now)
    settings = (options.fields or "", options.node or "", str(options.gpu), str(time_options))
    for name in options.files:
        path = Path(name)
        content = read_unpacked(path).decode("utf-8", "replace").removeprefix("\ufeff")
        text, tool = _text(content, options.fields, name)
        text.rows = _with_keys(text, tool, options.gpu, time_options, name)
        yield tool_chunk(path, text, tool, time_options, options.node, (NAME, *settings))


def _text(content: str, fields: str | None, where: str) -> tuple[ToolText, GpuTool]:
    lines = pl.Series("line", content.split("\n")).str.strip_chars()
    lines = lines.filter(lines != "")
    is_dmon = any(line.startswith("#") for line in lines.head(50)) and not fields
    return _dmon(lines, where) if is_dmon else _query(lines, fields, where)


def _query(lines: pl.Series, fields: str | None, where: str) -> tuple[ToolText, GpuTool]:
    header = lines.item(0)
    names = field_names(header.split(","))
    if any(name in QUERY_FIELDS or name in _KEYS or name == _PROCESS for name in names):
        lines = lines.filter(lines != header)
    elif fields:
        header = fields
    else:
        what = "no header: the first line names no field of --query-gpu"
        raise InputError(
            what, where=where, do="give --fields timestamp,index,utilization.gpu,... in their order"
        )
    headers = pl.repeat(header, lines.len(), eager=True)
    return split_lines(lines, headers, header, ",", field_names), SMI_QUERY


def field_names(written: Sequence[str]) -> list[str]:
    """Return the names of fields, lower case and without units.

    >>> field_names(["utilization.gpu [%]", "Index"])
    ['utilization.gpu', 'index']
    """
    return [name.partition("[")[0].strip().lower() for name in written]


def _dmon(lines: pl.Series, where: str) -> tuple[ToolText, GpuTool]:
    spaced = lines.str.replace_all(r"[,\s]+", " ").str.replace(r"^# ", "#")
    is_comment = spaced.str.starts_with("#")
    names = is_comment & ~spaced.str.to_lowercase().str.contains(r"\bidx\b")
    if not names.any():
        raise InputError(
            "dmon's header is missing", where=where, do="keep the lines that begin with #"
        )
    headers = chosen_cells(names, spaced.str.strip_prefix("#")).forward_fill().fill_null("")
    first = str(headers.filter(names)[0])
    text = split_lines(
        spaced.filter(~is_comment), headers.filter(~is_comment), first, " ", field_names
    )
    return text, SMI_DMON


def _with_keys(
    text: ToolText, tool: GpuTool, gpu: int | None, time_options: GivenTimes, where: str
) -> pl.DataFrame:
    """Return rows with columns of the contract for index, host, facts and time of each GPU.

    Columns whose name or meaning another one takes are left out and counted.
    """
    rows = text.rows
    if _PROCESS in rows.columns:
        # Neither use nor memory of processes adds up to that of the GPU.
        what = "its rows are processes (`nvidia-smi pmon`), not GPUs"
        raise InputError(what, where=where, do="record GPUs: `nvidia-smi dmon -o DT`")
    if not any(name in rows.columns for name in tool.columns):
        columns = listed(rows.columns)
        raise InputError(f"no counter among: {columns}", where=where, do="see docs/ingest-table.md")
    by_key = {_KEYS[name]: name for name in reversed(rows.columns) if name in _KEYS}
    taken = [key for key, name in by_key.items() if key != name and key in rows.columns]
    unread = {name: rows[name].count() for name in taken if name not in _KEYS}
    text.rejects += unmapped_rejects("unmapped_column", unread)
    alike = [name for name in rows.columns if name in _KEYS and by_key[_KEYS[name]] != name]
    text.rejects += [
        Reject("same_meaning", name, rows[name].count(), _KEYS[name]) for name in alike
    ]
    rows = rows.drop([*{*taken, *alike}]).rename({name: key for key, name in by_key.items()})
    if "gpu" not in by_key and gpu is None:
        raise InputError(
            "no column `index` names the GPU", where=where, do="query index, too, or give --gpu 0"
        )
    if "gpu" not in by_key:
        for name in ("uuid", "pci"):
            if name in by_key and rows[name].n_unique() > 1:
                what = f"--gpu names one GPU, and {by_key[name]} several"
                raise InputError(what, where=where, do="query index, too")
        rows = rows.with_columns(gpu=pl.lit(str(gpu)))
    if "time" in rows.columns and "stamp" not in by_key:
        rows = rows.with_columns(stamp=_stamps(rows, time_options, where))
    return rows.drop("", "date", "time", strict=False)


def _stamps(rows: pl.DataFrame, time_options: GivenTimes, where: str) -> pl.Series:
    """Return dmon's times of day with their dates; from the first date on, where none is there."""
    if "date" in rows.columns:
        days = rows["date"].str.replace(r"^(\d{4})(\d{2})(\d{2})$", "${1}-${2}-${3}")
    elif time_options.day is not None:
        clock = rows["time"].str.to_time(_CLOCK, strict=False)
        seconds = clock.dt.hour().cast(pl.Int32) * 3600 + clock.dt.minute().cast(pl.Int32) * 60
        later = (seconds.forward_fill().diff().fill_null(0) < -_MIDNIGHT_S).cum_sum()
        date = pl.lit(time_options.day) + pl.lit(later.cast(pl.Int64)) * timedelta(days=1)
        days = pl.select(date.dt.strftime("%Y-%m-%d")).to_series()
    else:
        do = "give the first --date, or record with `nvidia-smi dmon -o DT`"
        raise InputError("the rows have times without a date", where=where, do=do)
    return days.fill_null("-") + " " + rows["time"].fill_null("-")
