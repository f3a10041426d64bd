"""The mapping of a table source: a small TOML file that says what the columns of a recording mean.

table = "gpu_samples"                 # or node_samples, devices, jobs, allocations
delimiter = ";"                       # of a CSV file; also: decimal, comment, names, encoding; records (JSON)
[time]
column = "ts"                         # format: auto, iso, epoch, epoch_s, _ms, _us, _ns, or "%d.%m.%Y %H:%M:%S"
zone = "Europe/Berlin"                # of times written without one; default: the site's
[node]
column = "host"                       # or constant = "n01"; pattern = a regular expression with one group
[gpu]
column = "device"
pattern = 'GPU-(\\d+)'
[columns]
"GPU Util [%]" = { to = "gpu_util", unit = "percent" }
"gpu{gpu}_power" = "power_w"          # wide: one column per GPU ({node} too), or gpu = 3 for a single one
[metric]                              # long: the names under [columns] are then the values of this column
column = "metric"
value = "value"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping as MappingOf
from pathlib import Path

import msgspec
import polars as pl

from tachograph.errors import ConfigError, InputError
from tachograph.schema import ALLOCATIONS, DEVICES, GPU_SAMPLES, JOBS, NODE_SAMPLES, Table
from tachograph.sources.frames import Layout
from tachograph.sources.times import AUTO
from tachograph.units import factor, zone

TABLES: MappingOf[str, Table] = {table.name: table for table in (GPU_SAMPLES, NODE_SAMPLES, DEVICES, JOBS, ALLOCATIONS)}
KEYS = ("t", "node", "gpu", "mig")  # these have sections of their own
DURATION = "duration"  # a unit: [days-]hours:minutes:seconds
_DO = "see `tachograph ingest table --suggest FILE`"


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one column of the file becomes. `unit`: what it is written in; `scale`: multiplied before that."""

    to: str
    unit: str = ""
    scale: float = 1.0
    gpu: int | None = None
    format: str = ""
    zone: str = ""


class Time(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The time of a sample; for jobs, how their times are written."""

    column: str = ""
    format: str = AUTO
    zone: str = ""


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Node or GPU: a column, of which `pattern` may cut out a part, or the same for all rows."""

    column: str = ""
    constant: str | int | None = None
    pattern: str = ""

    @property
    def given(self) -> bool:
        """Whether the mapping says anything."""
        return bool(self.column) or self.constant is not None


class Metric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A long file: the column with the names, the column with the values."""

    column: str
    value: str


class Mapping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the columns of a recording mean."""

    columns: dict[str, str | Target] = {}
    table: str = GPU_SAMPLES.name
    delimiter: str = ","
    decimal: str = "."
    comment: str = ""
    names: tuple[str, ...] = ()
    encoding: str = "utf-8"
    records: str = ""  # JSON: the key, or keys with dots between, under which the rows are
    time: Time = Time()
    node: Key = Key()
    gpu: Key = Key()
    mig: Key = Key()
    metric: Metric | None = None

    @property
    def layout(self) -> Layout:
        """How the CSV file is written."""
        return Layout(self.delimiter, self.comment, self.names, self.encoding)

    @property
    def targets(self) -> dict[str, Target]:
        """{column of the file: what it becomes}"""
        return {name: Target(to) if isinstance(to, str) else to for name, to in self.columns.items()}


def load(path: Path) -> Mapping:
    """Return the mapping of a file.

    Errors: ConfigError naming file and key.
    """
    try:
        return parse(path.read_text(encoding="utf-8"), where=str(path))
    except OSError as problem:
        raise ConfigError(problem.strerror or str(problem), where=str(path), do="name a readable file") from None
    except UnicodeDecodeError as problem:
        raise ConfigError(f"not UTF-8: {problem}", where=str(path), do="save it as UTF-8") from None


def parse(text: str, *, where: str = "mapping") -> Mapping:
    """Return the mapping written in `text`.

    >>> parse('time.column = "t"\\nnode.constant = "n"\\ngpu.constant = 0\\ncolumns.u = "gpu_util"').targets["u"].to
    'gpu_util'

    Errors: ConfigError naming `where` and the key.
    """
    try:
        mapping = msgspec.convert(tomllib.loads(text), Mapping)
    except RecursionError:
        raise ConfigError("it nests too deeply", where=where, do="mend the brackets") from None
    except msgspec.ValidationError as problem:
        raise ConfigError(str(problem).replace("`", "'"), where=where, do=_DO) from None
    except ValueError as problem:  # not TOML, or a number with too many digits
        raise ConfigError(f"not valid TOML: {problem}", where=where, do="mend the line") from None
    _check(mapping, where)
    return mapping


def placeholders(name: str) -> re.Pattern[str] | None:
    """Return what matches the columns meant by a name with `{gpu}` or `{node}`, or None for a plain name.

    >>> placeholders("gpu{gpu}_util").fullmatch("gpu3_util")["gpu"]
    '3'
    """
    if "{gpu}" not in name and "{node}" not in name:
        return None
    pattern = re.escape(name)
    pattern = pattern.replace(re.escape("{gpu}"), r"(?P<gpu>\d+)", 1).replace(re.escape("{node}"), r"(?P<node>.+?)", 1)
    return re.compile(pattern)


def _check(mapping: Mapping, where: str) -> None:
    table = TABLES.get(mapping.table)
    if table is None:
        raise ConfigError(f"table: no table {mapping.table!r}", where=where, do=f"use one of: {', '.join(TABLES)}")
    if len(mapping.delimiter) != 1 or mapping.delimiter in '"\r\n' or not mapping.delimiter.isascii():
        raise ConfigError("delimiter: must be one ASCII character", where=where, do="use for example ';' or '\\t'")
    if mapping.decimal not in (".", ",") or mapping.decimal == mapping.delimiter:
        raise ConfigError("decimal: must be '.' or ',' and not the delimiter", where=where, do="set both")
    if len(set(mapping.names)) != len(mapping.names):
        raise ConfigError("names: a column is named twice", where=where, do="name each column once")
    if not mapping.columns:
        raise ConfigError("columns: none is mapped", where=where, do=_DO)
    _check_zone("time.zone", mapping.time.zone, where)
    for section, key in (("node", mapping.node), ("gpu", mapping.gpu), ("mig", mapping.mig)):
        _check_key(section, key, where)
    for name, target in mapping.targets.items():
        _check_target(name, target, table, mapping, where)
    _check_sections(mapping, table, where)


def _check_zone(key: str, name: str, where: str) -> None:
    try:
        zone(name or "UTC")
    except ConfigError as problem:
        raise ConfigError(f"{key}: {problem.what}", where=where, do=problem.do) from None


def _check_key(section: str, key: Key, where: str) -> None:
    if key.column and key.constant is not None:
        raise ConfigError(f"{section}: has column and constant", where=where, do="keep one")
    if section != "node" and isinstance(key.constant, str):
        raise ConfigError(f"{section}.constant: must be a number", where=where, do=f"write {section}.constant = 0")
    if key.pattern:
        try:
            groups = re.compile(key.pattern).groups
            pl.Series([""]).str.extract(key.pattern)
        except (re.error, RecursionError, OverflowError, pl.exceptions.PolarsError) as problem:
            what = str(problem).splitlines()[0]
            raise ConfigError(f"{section}.pattern: {what}", where=where, do="mend the expression") from None
        if groups != 1:
            raise ConfigError(f"{section}.pattern: has {groups} groups", where=where, do="put () around the one part")


def _check_target(name: str, target: Target, table: Table, mapping: Mapping, where: str) -> None:
    key = f"columns.{name!r}"
    columns = {column.name: column for column in table.columns if column.name not in ("seq", *KEYS)}
    if target.to not in columns:
        do = f"table {table.name} has: {', '.join(columns)}; {', '.join(KEYS)} have sections of their own"
        raise ConfigError(f"{key}: no column {target.to!r}", where=where, do=do)
    _check_zone(f"{key}.zone", target.zone, where)
    numeric = columns[target.to].dtype.is_numeric()
    if (target.unit or target.scale != 1) and not numeric:
        raise ConfigError(f"{key}: {target.to} is no number, it has no unit", where=where, do="remove unit and scale")
    if target.unit and not (target.unit == DURATION and columns[target.to].unit == "s"):
        try:
            factor(target.unit, columns[target.to].unit)
        except InputError as problem:
            raise ConfigError(f"{key}.unit: {problem.what}", where=where, do=problem.do) from None
    if (target.gpu is not None or placeholders(name)) and mapping.metric:
        raise ConfigError(f"{key}: a long file has no column per GPU", where=where, do="remove gpu, or [metric]")


def _check_sections(mapping: Mapping, table: Table, where: str) -> None:
    """Each key of the table comes from somewhere, and from one place."""
    targets = mapping.targets
    per_gpu = [t.gpu is not None or "{gpu}" in name for name, t in targets.items()]
    per_node = ["{node}" in name for name in targets]
    names = {column.name for column in table.columns}
    if "t" in names and not mapping.time.column:
        raise ConfigError("time.column: missing", where=where, do="name the column of the times")
    if "node" in names and not (mapping.node.given or all(per_node)):
        raise ConfigError("node: missing", where=where, do='write [node] with column = "..." or constant = "..."')
    if table in (GPU_SAMPLES, DEVICES) and not (mapping.gpu.given or all(per_gpu)):
        raise ConfigError("gpu: missing", where=where, do="write [gpu] with column, or {gpu} in each column's name")
    for section, key, flags in (("gpu", mapping.gpu, per_gpu), ("node", mapping.node, per_node)):
        if key.given and section not in names:
            raise ConfigError(f"{section}: table {table.name} has none", where=where, do="remove the section")
        if any(flags) and (key.given or not all(flags)):
            raise ConfigError(f"{section}: is told twice, or not by each column", where=where, do="use one way")
    taken: dict[tuple[str, int | None], str] = {}
    for name, target in targets.items():
        other = taken.setdefault((target.to, target.gpu), name)
        if other != name:
            raise ConfigError(
                f"columns: {other!r} and {name!r} both become {target.to}", where=where, do="keep one of them"
            )
