"""The TOML mapping of a table source, and cells: numbers with units, durations, booleans."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tachograph.catalog.chunks import BLANK_FLOATS, TEXT_BLANKS, Reject, chosen_cells, counted
from tachograph.catalog.errors import ConfigError, InputError, UsageError
from tachograph.catalog.tables import (
    ALLOCATIONS,
    DEVICES,
    GPU_SAMPLES,
    JOBS,
    NODE_SAMPLES,
    LakeTable,
)
from tachograph.catalog.units import factor, slurm_duration_s, zone
from tachograph.sources.files import TableLayout
from tachograph.sources.table.names import unit_named
from tachograph.sources.times import AUTO

# marks of the catalogue, nvidia-smi, spreadsheets and databases
MARKS = (
    *TEXT_BLANKS, "[N/A]", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]", "[GPU requires reset]",
    "Not Supported", "n/a", "NA", "-", "null", "NULL", "None", "Unknown", "NaT", "ERR!",
)  # fmt: skip
_NUMBER = r"^([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\d\s.].*)?$"


@dataclass(frozen=True, slots=True)
class CellValues:
    """Numbers of a column in `unit`; null for empty cells and non-numbers, the latter counted."""

    values: pl.Series
    unit: str
    rejects: tuple[Reject, ...] = ()


def stripped(column: pl.Series) -> pl.Series:
    """Return a column as text without the blanks around it; marks for nothing are null.

    >>> stripped(pl.Series([" a", "[N/A]", None])).to_list()
    ['a', None, None]
    """
    if column.dtype != pl.String:
        return column.cast(pl.String)
    text = column.str.strip_chars()
    return chosen_cells(~text.is_in(MARKS), text)


def numbers(
    column: pl.Series, *, wanted: str, unit: str = "", scale: float = 1.0, decimal: str = "."
) -> CellValues:
    """Return a column as numbers.

    `wanted`: the contract's unit; `unit`: that of the column, where the cell itself gives none ("":
    the contract's). A unit behind the number wins. Rejects: `missing_mark`, `not_a_number`,
    `wrong_unit`, counting values.

    >>> numbers(pl.Series(["45 %", "0.5 %", "[N/A]"]), wanted="fraction").values.to_list()
    [0.45, 0.005, None]
    >>> numbers(pl.Series(["1.024,5"]), wanted="MiB", decimal=",").values.to_list()
    [1024.5]
    """
    unit = unit or wanted
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        plain = (
            column.cast(pl.Float64)
            if column.dtype.is_decimal() or column.dtype == pl.Boolean
            else column
        )
        return _scaled(plain, unit, scale)
    text = stripped(column)
    marks = text.is_null() & column.is_not_null() & (column.cast(pl.String).str.strip_chars() != "")
    rejects = counted("missing_mark", column.name, marks, column)
    if decimal == ",":
        comma = text.str.contains(",", literal=True)
        spelled = text.str.replace_all(".", "", literal=True).str.replace(",", ".", literal=True)
        text = chosen_cells(comma, spelled, text)
    values = text.cast(pl.Float64, strict=False)
    if values.null_count() > text.null_count():
        cells = _with_units(text, values, wanted=wanted, unit=unit, scale=scale)
    else:
        cells = _scaled(values, unit, scale)
    return CellValues(cells.values, cells.unit, (*rejects, *cells.rejects))


def durations(column: pl.Series) -> CellValues:
    """Return a column of `[days-][hours:]minutes:seconds` in seconds.

    >>> durations(pl.Series(["1-00:00:10", "UNLIMITED"])).values.to_list()
    [86410.0, None]
    """
    text = stripped(column)
    once = text.drop_nulls().unique()
    seconds = {written: slurm_duration_s(written) for written in once.to_list()}
    values = text.replace_strict(seconds, default=None, return_dtype=pl.Float64)
    bad = (
        values.is_null()
        & text.is_not_null()
        & ~text.is_in(("UNLIMITED", "Partition_Limit", "INVALID"))
    )
    return CellValues(values, "s", counted("not_a_number", column.name, bad, text))


_TRUTHS: Mapping[str, bool] = {
    **dict.fromkeys(("true", "yes", "y", "1", "1.0"), True),
    **dict.fromkeys(("false", "no", "n", "0", "0.0"), False),
}


def truths(column: pl.Series) -> CellValues:
    """Return a column of yes and no as booleans.

    >>> truths(pl.Series(["yes", "0", "maybe"])).values.to_list()
    [True, False, None]
    """
    if column.dtype == pl.Boolean:
        return CellValues(column, "")
    text = stripped(column).str.to_lowercase()
    values = text.replace_strict(_TRUTHS, default=None, return_dtype=pl.Boolean)
    bad = values.is_null() & text.is_not_null()
    return CellValues(values, "", counted("not_a_truth_value", column.name, bad, column))


def _scaled(values: pl.Series, unit: str, scale: float) -> CellValues:
    """Multiplied; marks are taken out before, because after it nothing would know them."""
    if scale == 1:
        return CellValues(values, unit)
    numbers_only = values.cast(pl.Float64)
    marks = numbers_only.is_in(BLANK_FLOATS).fill_null(value=False)
    scaled = chosen_cells(~marks, numbers_only * scale)
    return CellValues(scaled, unit, counted("missing_mark", values.name, marks, values))


def _with_units(
    text: pl.Series, plain: pl.Series, *, wanted: str, unit: str, scale: float
) -> CellValues:
    """Cells with units, hexadecimal bit masks, or text instead of a number."""
    number = text.str.extract(_NUMBER, 1).cast(pl.Float64, strict=False)
    suffix = text.str.extract(_NUMBER, 2)
    bare = _scaled(plain, unit, scale)
    values = bare.values.cast(pl.Float64) * factor(unit, wanted)
    wrong = pl.Series([False]).new_from_index(0, len(text))
    for written in suffix.drop_nulls().unique().to_list():
        here = (suffix == written).fill_null(value=False)
        try:
            of_cell = factor(unit_named(written) or "", wanted)
        except InputError:
            of_cell = None
        if of_cell is None:
            wrong = wrong | here
        else:
            values = chosen_cells(here, number * scale * of_cell, values)
    hexadecimal = text.str.starts_with("0x").fill_null(value=False)
    if hexadecimal.any():
        masks = text.str.slice(2).str.to_integer(base=16, strict=False).cast(pl.Float64)
        values = chosen_cells(hexadecimal, masks, values)
        wrong = wrong & ~hexadecimal
    values = values.alias(text.name)
    no_number = (
        values.is_null()
        & text.is_not_null()
        & ~wrong
        & ~(bare.values.is_null() & plain.is_not_null())
    )
    rejects = (
        *bare.rejects,
        *counted("wrong_unit", text.name, wrong, text),
        *counted("not_a_number", text.name, no_number, text),
    )
    return CellValues(values, wanted, rejects)


TABLES: Mapping[str, LakeTable] = {
    table.name: table for table in (GPU_SAMPLES, NODE_SAMPLES, DEVICES, JOBS, ALLOCATIONS)
}
KEYS = ("t", "node", "gpu", "mig")  # these have sections of their own
HOLDERS = ("job", "step")  # and these, of samples of GPUs: what held the GPU
DURATION = "duration"  # a unit: [days-]hours:minutes:seconds
_SEE_PAGE = "see `tachograph ingest table --suggest FILE`"


class MappingTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Target of a file's column. `unit`: as written; `scale`: factor applied before conversion."""

    to: str
    unit: str = ""
    scale: float = 1.0
    gpu: int | None = None
    format: str = ""
    zone: str = ""


class MappingTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The time of a sample; for jobs, how their times are written."""

    column: str = ""
    format: str = AUTO
    zone: str = ""


class MappingKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Node or GPU: a column, or a part of it by `pattern`, or a constant."""

    column: str = ""
    constant: str | int | None = None
    pattern: str = ""

    @property
    def given(self) -> bool:
        """Whether there is a column or a constant."""
        return bool(self.column) or self.constant is not None


class MappingMetric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A long file: the column with the names, the column with the values."""

    column: str
    value: str


class TableMapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Meaning of a recording's columns."""

    columns: dict[str, str | MappingTarget] = {}
    table: str = GPU_SAMPLES.name
    delimiter: str = ","
    decimal: str = "."
    comment: str = ""
    names: tuple[str, ...] = ()
    encoding: str = "utf-8"
    records: str = ""  # JSON: the key, or keys with dots between, under which the rows are
    time: MappingTime = MappingTime()
    node: MappingKey = MappingKey()
    gpu: MappingKey = MappingKey()
    mig: MappingKey = MappingKey()
    job: MappingKey = MappingKey()
    step: MappingKey = MappingKey()
    metric: MappingMetric | None = None
    devices: dict[str, str | MappingTarget] = {}  # columns of samples that are facts of their GPU

    @property
    def of_devices(self) -> TableMapping:
        """The mapping of the same file to `devices`."""
        none: dict[str, str | MappingTarget] = {}
        alone = msgspec.structs.replace(
            self, devices=none, time=MappingTime(), metric=None, job=MappingKey()
        )
        return msgspec.structs.replace(
            alone, table=DEVICES.name, columns=self.devices, step=MappingKey()
        )

    @property
    def holders(self) -> dict[str, MappingKey]:
        """Keys for job and step, if any."""
        return {name: key for name, key in (("job", self.job), ("step", self.step)) if key.given}

    @property
    def layout(self) -> TableLayout:
        """Format of the CSV file."""
        return TableLayout(self.delimiter, self.comment, self.names, self.encoding)

    @property
    def targets(self) -> dict[str, MappingTarget]:
        """{column of the file: its target}"""
        return {
            name: MappingTarget(to) if isinstance(to, str) else to
            for name, to in self.columns.items()
        }


def load(path: Path, *, node: str | None = None, settings: Iterable[str] = ()) -> TableMapping:
    """Return the mapping of a file, with keys replaced as `parse` does.

    Errors: ConfigError naming file and key.
    """
    try:
        return parse(
            path.read_text(encoding="utf-8"), where=str(path), node=node, settings=settings
        )
    except OSError as problem:
        raise ConfigError(
            problem.strerror or str(problem), where=path, do="name a readable file"
        ) from None
    except UnicodeDecodeError as problem:
        raise ConfigError(f"not UTF-8: {problem}", where=path, do="save it as UTF-8") from None


def parse(
    text: str, *, where: str = "mapping", node: str | None = None, settings: Iterable[str] = ()
) -> TableMapping:
    """Return the mapping written in `text`.

    `settings`: KEY=VALUE, each in place of what the text gives; `node`: of a recording whose file
    names no node.

    >>> parse('time.column = "t"\\ngpu.constant = 0\\ncolumns.u = "gpu_util"', node="n").targets["u"].to
    'gpu_util'

    Errors: ConfigError naming `where` and the key; UsageError for a setting that is none, or two
    nodes.
    """
    try:
        written = tomllib.loads(text)
        for setting in settings:
            _replace(written, _setting(setting))
        if node is not None:
            _check_node(written, where)
            _replace(written, {"node": {"constant": node}})
        mapping = msgspec.convert(written, TableMapping)
    except RecursionError:
        raise ConfigError("nested too deeply", where=where, do="fix the brackets") from None
    except msgspec.ValidationError as problem:
        raise ConfigError(str(problem).replace("`", "'"), where=where, do=_SEE_PAGE) from None
    except ValueError as problem:  # not TOML, or a number with too many digits
        raise ConfigError(f"not valid TOML: {problem}", where=where, do="fix the line") from None
    try:
        _check(mapping)
    except ConfigError as problem:
        raise ConfigError(problem.what, where=where, do=problem.do) from None
    return mapping


def _setting(written: str) -> dict[str, object]:
    """Return KEY=VALUE as TOML; invalid values become text.

    >>> _setting("gpu.constant=1"), _setting("node.column=Host name")
    ({'gpu': {'constant': 1}}, {'node': {'column': 'Host name'}})
    """
    key, equals, value = written.partition("=")
    for spelled in (value, json.dumps(value.strip(), ensure_ascii=False)):
        try:
            return tomllib.loads(f"{key} = {spelled}" if equals else "=")
        except ValueError:
            continue
    raise UsageError(
        f"--set {written!r} is not KEY=VALUE", do="write for example --set time.zone=Europe/Berlin"
    )


def _replace(written: dict[str, Any], by: Mapping[str, Any]) -> None:
    """Override written keys; a column replaces a constant, and vice versa."""
    for key, value in by.items():
        there = written.get(key)
        if isinstance(there, dict) and isinstance(value, dict) and "to" not in value:
            for other, instead in (("column", "constant"), ("constant", "column")):
                if key in (*KEYS, *HOLDERS) and other in value:
                    there.pop(instead, None)
            _replace(there, value)
        else:
            written[key] = value


def _check_node(written: Mapping[str, Any], where: str) -> None:
    section = written.get("node")
    if isinstance(section, dict) and section.get("column"):
        raise UsageError(
            f"--node: {where} reads the node from column {section['column']!r}",
            do=(
                "leave --node out, or write --set node.constant=NAME for one node in place of "
                "the column"
            ),
        )


def placeholders(name: str) -> re.Pattern[str] | None:
    """Return a pattern for a name with `{gpu}` or `{node}`; None for a plain name.

    >>> placeholders("gpu{gpu}_util").fullmatch("gpu3_util")["gpu"]
    '3'
    """
    if "{gpu}" not in name and "{node}" not in name:
        return None
    pattern = re.escape(name)
    pattern = pattern.replace(re.escape("{gpu}"), r"(?P<gpu>\d+)", 1).replace(
        re.escape("{node}"), r"(?P<node>.+?)", 1
    )
    return re.compile(pattern)


def _check(mapping: TableMapping) -> None:
    table = TABLES.get(mapping.table)
    if table is None:
        raise ConfigError(
            f"table: no table {mapping.table!r}", do=f"use one of: {', '.join(TABLES)}"
        )
    sign = mapping.delimiter
    if len(sign) != 1 or sign in '"\r\n' or not sign.isascii():
        raise ConfigError(
            "delimiter: must be one ASCII character", do="use for example ';' or '\\t'"
        )
    if mapping.decimal not in (".", ",") or mapping.decimal == sign:
        raise ConfigError("decimal: must be '.' or ',' and not the delimiter", do="set both")
    if len(set(mapping.names)) != len(mapping.names):
        raise ConfigError("names: a column is named twice", do="name each column once")
    if not mapping.columns:
        raise ConfigError("columns: none is mapped", do=_SEE_PAGE)
    if mapping.devices and table is not GPU_SAMPLES:
        raise ConfigError(
            f"devices: not with table {table.name}", do='write it with table = "gpu_samples"'
        )
    _check_zone("time.zone", mapping.time.zone)
    for name in ("node", "gpu", "mig", *HOLDERS):
        _check_key(name, getattr(mapping, name))
    if mapping.holders and table is not GPU_SAMPLES:
        raise ConfigError(
            f"{next(iter(mapping.holders))}: not with table {table.name}",
            do="map it in [columns]",
        )
    if mapping.step.given and not mapping.job.given:
        raise ConfigError("step: without job", do="write [job] with column")
    _check_columns(mapping, "columns")
    if mapping.devices:
        _check_columns(mapping.of_devices, "devices")


def _check_zone(key: str, name: str) -> None:
    try:
        zone(name or "UTC")
    except ConfigError as problem:
        raise ConfigError(f"{key}: {problem.what}", do=problem.do) from None


def _check_key(section: str, key: MappingKey) -> None:
    if key.column and key.constant is not None:
        raise ConfigError(f"{section}: has column and constant", do="keep one")
    if section not in ("node", *HOLDERS) and isinstance(key.constant, str):
        raise ConfigError(
            f"{section}.constant: must be a number", do=f"write {section}.constant = 0"
        )
    if key.pattern:
        try:
            groups = re.compile(key.pattern).groups
            pl.Series([""]).str.extract(key.pattern)
        except (re.error, RecursionError, OverflowError, pl.exceptions.PolarsError) as problem:
            what = str(problem).splitlines()[0]
            raise ConfigError(f"{section}.pattern: {what}", do="fix the expression") from None
        if groups != 1:
            raise ConfigError(
                f"{section}.pattern: has {groups} groups", do="put () around the one part"
            )


def _check_columns(mapping: TableMapping, section: str) -> None:
    """Check that targets fit, and each table key has exactly one origin."""
    table, targets = TABLES[mapping.table], mapping.targets
    for name, target in targets.items():
        _check_target(f"{section}.{name!r}", target, table)
        if mapping.metric and (target.gpu is not None or placeholders(name)):
            raise ConfigError(
                f"{section}.{name!r}: a long file has no column per GPU",
                do="remove gpu, or [metric]",
            )
    per_gpu = [t.gpu is not None or "{gpu}" in name for name, t in targets.items()]
    per_node = ["{node}" in name for name in targets]
    names = {column.name for column in table.columns}
    if "t" in names and not mapping.time.column:
        raise ConfigError("time.column: missing", do="name the column of the times")
    if "node" in names and not (mapping.node.given or all(per_node)):
        do = 'add --node NAME, or write [node] with column = "..." or constant = "..."'
        raise ConfigError("node: missing", do=do)
    if table in (GPU_SAMPLES, DEVICES) and not (mapping.gpu.given or all(per_gpu)):
        raise ConfigError(
            "gpu: missing", do="write [gpu] with column, or {gpu} in each column's name"
        )
    for name, key, flags in (("gpu", mapping.gpu, per_gpu), ("node", mapping.node, per_node)):
        if key.given and name not in names:
            raise ConfigError(f"{name}: table {table.name} has none", do="remove the section")
        if any(flags) and (key.given or not all(flags)):
            raise ConfigError(f"{name}: is given twice, or not by each column", do="use one way")
    taken: dict[tuple[str, int | None], str] = {}
    for name, target in targets.items():
        other = taken.setdefault((target.to, target.gpu), name)
        if other != name:
            raise ConfigError(
                f"{section}: {other!r} and {name!r} both become {target.to}",
                do="keep one of them",
            )


def _check_target(key: str, target: MappingTarget, table: LakeTable) -> None:
    columns = {column.name: column for column in table.columns if column.name not in ("seq", *KEYS)}
    column = columns.get(target.to)
    if column is None:
        do = (
            f"table {table.name} has: {', '.join(columns)}; {', '.join(KEYS)} have sections "
            "of their own"
        )
        raise ConfigError(f"{key}: no column {target.to!r}", do=do)
    _check_zone(f"{key}.zone", target.zone)
    if (target.unit or target.scale != 1) and not column.dtype.is_numeric():
        raise ConfigError(
            f"{key}: {target.to} is no number, it has no unit", do="remove unit and scale"
        )
    if target.unit and not (target.unit == DURATION and column.unit == "s"):
        try:
            factor(target.unit, column.unit)
        except InputError as problem:
            raise ConfigError(f"{key}.unit: {problem.what}", do=problem.do) from None
