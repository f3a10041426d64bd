"""Proposes a mapping for a file: column names give candidates, values decide."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from tachograph.catalog.counters import COUNTERS_BY_NAME, HOST_UNITS
from tachograph.catalog.devices import DEVICE_CATALOGUE, match_device
from tachograph.catalog.errors import InputError
from tachograph.catalog.units import factor, is_convertible, printable
from tachograph.sources.exporter_mapping import column_unit
from tachograph.sources.files import (
    TableLayout,
    format_of,
    listed,
    open_file,
    parquet_columns,
    read_csv,
    read_json,
    read_parquet,
    records,
)
from tachograph.sources.slurm.exports import slurm_output
from tachograph.sources.table.job_columns import JobColumns, job_columns, job_meaning, time_format
from tachograph.sources.table.mapping import numbers, stripped
from tachograph.sources.table.names import (
    CUMULATIVE,
    counter_meaning,
    device_meaning,
    host_counter_meaning,
    is_passed_over,
    named,
    wide_template,
)
from tachograph.sources.times import AUTO, read_times

_ROWS, _BYTES = 100_000, 8 << 20  # that are looked at, at most
_HEAD_BYTES = 65536  # of text, in which records of sacct are looked for
_DELIMITERS = (",", ";", "\t", "|")
_MOST_LEFT = 40  # names that are not recognised
_ROUNDED = 1.01  # a value may be above its range by rounding
_FALLS = 0.02  # share of steps at which a counter may fall: restarts of nodes
# {unit: highest value of a counter that every GPU exceeds}: below it the unit is another one, such
# as kW, GHz or a share
_EXCEEDED: Mapping[str, float] = {"W": 2.0, "C": 5.0, "MHz": 100.0}
_SMALLEST_CAPACITY_MIB = 1024.0  # of a GPU; a smaller number may be in GiB
_ALL = "one GPU"  # a key of rows that name none
_HIGHEST_GPU = 63  # index on a node; larger numbers count rows or jobs
_LARGEST_MIB = max(device.hbm_mib for device in DEVICE_CATALOGUE)
_MOST_W = COUNTERS_BY_NAME["power_w"].high
_LEAST_W = 5.0  # of a GPU, idle; no growth of energy is plausible both in J and in mJ


@dataclass(frozen=True, slots=True)
class SuggestedMapping:
    """A mapping as TOML. `missing`: open points, each a commented line."""

    text: str
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class _Proposal:
    """A mapping in the making, of a file with these first rows.

    top, sections, columns, devices: its lines. left: {column or metric that is not recognised:
    why}. taken: columns that have their place. time, gpus: names of the columns of times, and of
    those that tell GPUs apart. capacity_mib: of the largest GPU, where it is known.
    """

    rows: pl.DataFrame
    decimal: str = "."
    top: list[str] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    time: str = ""
    gpus: list[str] = field(default_factory=list)
    capacity_mib: float | None = None

    @property
    def keys(self) -> list[str]:
        """Columns of `_in_order` that tell GPUs, or nodes, apart."""
        return self.gpus or [_ALL]

    def free(self, key: str) -> list[str]:
        """Return unused columns named like a key, best first."""
        return [name for name in named(self.rows.columns, key) if name not in self.taken]

    def others(self) -> list[str]:
        """Return unused columns that may have a meaning."""
        return [
            name
            for name in self.rows.columns
            if name not in self.taken and not is_passed_over(name)
        ]

    def values(self, name: str) -> pl.Series:
        """Return the cells of a column that are not empty, as text."""
        return stripped(self.rows[name]).drop_nulls().cast(pl.String)

    def section(self, key: str, *lines: str) -> None:
        """Add a section of the mapping."""
        self.sections += [f"[{key}]", *lines, ""]

    def key(self, key: str, name: str, *more: str) -> None:
        """Add the section of a key with values in a column."""
        self.taken.add(name)
        self.section(key, f"column = {quoted(name)}", *more)

    def lack(self, key: str, what: str) -> None:
        """Note that the column of a key is missing, with a line for a person to complete."""
        self.missing.append(what)
        self.section(key, f'# column = "..."  # {what}')

    def finished(self, file: str) -> SuggestedMapping:
        """Return the mapping as text."""
        if not self.columns:
            self.missing.append(
                f"no column looks like a counter; it has: {listed(self.rows.columns)}"
            )
            self.columns = [f'# {quoted(name)} = "..."' for name in self.left]
            self.left = {}
        head = f"# proposed for {json.dumps(file)}: check it before use"
        lines = [head, *self.top, "", *self.sections, "[columns]", *self.columns]
        lines += ["", "[devices]", *self.devices] if self.devices else []
        if self.left:
            shown = [
                f"{listed([name])} ({why})" if why else listed([name])
                for name, why in self.left.items()
            ]
            others = f" and {len(shown) - _MOST_LEFT} more" if len(shown) > _MOST_LEFT else ""
            unmapped = re.sub(r"[\x00-\x1f\x7f]", "?", ", ".join(shown[:_MOST_LEFT]) + others)
            lines.append(f"# not recognised: {unmapped}")
        return SuggestedMapping("\n".join(lines) + "\n", tuple(self.missing))


def suggest(
    path: Path, *, node: str | None = None, zone_name: str | None = None
) -> SuggestedMapping:
    """Return a commented mapping (TOML) for a file of samples or of jobs, as far as it is known.

    `node`: of a file that names none; `zone_name`: of times written without a zone.
    Errors: InputError when the file cannot be read, or has no rows.
    """
    _refuse_accounting(path)
    proposal = _read(path)
    rows = proposal.rows
    if not rows.height:
        raise InputError(
            "the file has no rows to propose a mapping from",
            where=path,
            do="name a file with rows",
        )
    time = next((name for name in proposal.free("time") if time_format(rows[name])), "")
    jobs = job_columns(rows, proposal.decimal) if not time else None
    if jobs is not None:
        _propose_jobs(proposal, jobs, zone_name)
        return proposal.finished(path.name)
    metric = [name for name in named(rows.columns, "metric") if rows.schema[name] == pl.String]
    long = tuple(name[0] for name in (metric, proposal.free("value")) if name and metric)
    proposal.taken.update((time, *(long if len(long) > 1 else ())))
    proposal.time = time
    columns = (
        _metrics(rows, *long) if len(long) > 1 else {name: rows[name] for name in proposal.others()}
    )
    of_nodes = _is_of_nodes(rows.columns, list(columns))
    proposal.top.append(f'table = "{"node" if of_nodes else "gpu"}_samples"')
    _propose_time(proposal, time, zone_name)
    nodes = proposal.free("node")[:1]
    proposal.gpus = [*nodes, *([] if of_nodes else proposal.free("gpu")[:1])]
    if nodes:
        proposal.key("node", nodes[0])
    elif node is not None:
        proposal.section("node", f"constant = {quoted(node)}")
    else:
        proposal.sections += [
            "# no column names the node: ingest with --node NAME, or write node.constant here",
            "",
        ]
    if of_nodes:
        _propose_host(proposal, columns)
    else:
        wide = any("{gpu}" in name for name in _templates(columns))
        _propose_devices(proposal)
        if not wide:
            _propose_gpu(proposal, [name for name in (time, *nodes, *long[:1]) if name])
        _propose_counters(
            proposal, {name: rows for name, rows in columns.items() if name not in proposal.taken}
        )
    if len(long) > 1:
        proposal.section("metric", f"column = {quoted(long[0])}", f"value = {quoted(long[1])}")
    return proposal.finished(path.name)


def _refuse_accounting(path: Path) -> None:
    """Check that no other source reads the file. Errors: InputError naming the source."""
    form = format_of(path)
    if form == "parquet":
        return
    with open_file(path) as file:
        content = file.read() if form == "json" else file.read(_HEAD_BYTES)
    output = slurm_output(content, job_meaning)
    if output is not None:
        what, source = output
        do = f"tachograph ingest {source} {path}"
        raise InputError(f"this is {what}", where=path, do=do)


def _read(path: Path) -> _Proposal:
    """A proposal, the first rows of the file, and the facts needed to read them."""
    match format_of(path):
        case "parquet":
            return _Proposal(next(read_parquet(path, list(parquet_columns(path)), rows=_ROWS)).rows)
        case "json":
            keys, content = _list_of_records(path)
            top = [f"records = {quoted('.'.join(keys))}"] if keys else []
            return _Proposal(records(content[:_ROWS], origin=str(path)), top=top)
        case "csv":
            proposal = _Proposal(pl.DataFrame())
            layout = _layout(path, proposal)
            proposal.rows = next(iter(read_csv(path, layout, block_bytes=_BYTES))).rows.head(_ROWS)
            return proposal


def _list_of_records(path: Path) -> tuple[list[str], list[object]]:
    """The keys under which the rows of a JSON file are, and the rows."""
    content, _ = read_json(path)
    keys: list[str] = []
    while isinstance(content, dict):
        rows = [
            name
            for name, value in content.items()
            if isinstance(value, list) and value and isinstance(value[0], dict)
        ]
        objects = [name for name, value in content.items() if isinstance(value, dict) and value]
        inner = next(iter([*rows, *objects]), None)
        if inner is None:
            raise InputError(
                "no list of records", where=path, do=f"it has: {listed(map(str, content))}"
            )
        keys.append(str(inner))
        content = content[inner]
    return keys, content if isinstance(content, list) else []


def _layout(path: Path, proposal: _Proposal) -> TableLayout:
    """Delimiter and decimal sign of a CSV file."""
    with open_file(path) as file:
        text = file.read(1 << 18).decode("utf-8-sig", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise InputError("the file holds no line", where=path, do="export it again")
    delimiter = max(
        _DELIMITERS,
        key=lambda sign: (min(line.count(sign) for line in lines[:20]), lines[0].count(sign)),
    )
    if delimiter != ",":
        proposal.top.append(f"delimiter = {quoted(delimiter)}")
        if any(re.search(rf"(^|{re.escape(delimiter)})\d+,\d+", line) for line in lines[1:20]):
            proposal.decimal = ","
            proposal.top.append('decimal = ","')
    return TableLayout(delimiter)


def _metrics(rows: pl.DataFrame, metric: str, value: str) -> dict[str, pl.Series]:
    """{name of a metric: its values} of a file with a row per value."""
    parts = rows.group_by(stripped(rows[metric]).alias("name"), maintain_order=True)
    return {str(name): part[value] for (name,), part in parts if name is not None}


def _is_of_nodes(columns: Sequence[str], counters: Sequence[str]) -> bool:
    """True if no column numbers a GPU, and more counters are of nodes than of GPUs."""
    if any(gpu.lower() != "index" for gpu in named(columns, "gpu")):
        return False
    hosts = [name for name in counters if host_counter_meaning(name)]
    return len(hosts) > len(
        [name for name in counters if counter_meaning(name) and name not in hosts]
    )


def _propose_jobs(proposal: _Proposal, jobs: JobColumns, zone_name: str | None) -> None:
    """Columns of a list of jobs, and how its times are written."""
    proposal.top.append('table = "jobs"')
    proposal.section("time", _zone_line(zone_name))
    for name, target in jobs.targets.items():
        more = [("unit", target.unit), ("format", target.format)]
        written = "".join(f', {key} = "{value}"' for key, value in more if value)
        written += f", scale = {target.scale}" if target.scale != 1 else ""
        plain = f'{quoted(name)} = "{target.to}"'
        proposal.columns.append(
            f'{quoted(name)} = {{ to = "{target.to}"{written} }}' if written else plain
        )
    if "node_list" not in {target.to for target in jobs.targets.values()}:
        remark = "no column names the nodes of a job: its samples cannot be found by it"
        proposal.columns.append(f'# "..." = "node_list"  # {remark}')
    proposal.left = dict(jobs.left)


def _zone_line(zone_name: str | None) -> str:
    if zone_name:
        return f"zone = {quoted(zone_name)}"
    return '# zone = "Europe/Berlin"  # of times written without one; default: the site\'s'


def _propose_time(proposal: _Proposal, name: str, zone_name: str | None) -> None:
    zone = _zone_line(zone_name)
    if not name:
        proposal.lack("time", "no column looks like a time")
        return
    form = time_format(proposal.rows[name])
    proposal.key("time", name, *(() if form == AUTO else (f"format = {quoted(form)}",)), zone)


def _propose_gpu(proposal: _Proposal, alike: Sequence[str]) -> None:
    """Key columns of a GPU. `alike`: columns equal in two rows only if their GPUs differ."""
    numbered = [name for name in proposal.free("gpu") if _are_indices(proposal.values(name))]
    if numbered:
        is_number = proposal.values(numbered[0]).str.contains(r"^\d+$").all()
        proposal.key("gpu", numbered[0], *(() if is_number else (r"pattern = '(\d+)$'",)))
    elif alike and not proposal.rows.select(alike).is_duplicated().any():
        proposal.section("gpu", "constant = 0  # the file does not name the GPU")
    else:
        proposal.lack("gpu", "no column is the number of a GPU, and rows are of several")
    for key in ("mig", "job", "step"):
        for name in proposal.free(key)[:1]:
            if key != "step" or "[job]" in proposal.sections:
                proposal.key(key, name)


def _are_indices(names: pl.Series) -> bool:
    """Return whether names of GPUs have an index of a node: 3, 3.0, GPU-3."""
    indices = names.str.extract(r"^\D{0,9}(\d{1,4})(?:\.0)?$").cast(pl.Int64)
    return indices.null_count() == 0 and bool((indices <= _HIGHEST_GPU).all())


def _propose_devices(proposal: _Proposal) -> None:
    """Facts of GPUs; column `name` if its values are models."""
    facts: dict[str, str] = {}
    for name in proposal.others():
        to = (device_meaning(name) or ("", ""))[0]
        if name.strip().lower() == "name" and all(
            match_device(model) for model in proposal.values(name).unique()
        ):
            to = "model"
        if to == "hbm_mib":
            high = _highest(
                proposal, proposal.rows[name], (device_meaning(name) or ("", ""))[1] or "MiB"
            )
            if not _SMALLEST_CAPACITY_MIB <= high <= COUNTERS_BY_NAME["hbm_used_mib"].high:
                proposal.left[name] = f"values up to {high:,.4g}: no capacity in MiB"
                proposal.taken.add(name)
                continue
            proposal.capacity_mib = high
        if to and to not in facts.values():
            facts[name] = to
        elif to:
            proposal.left[name] = f"also {to}"
            proposal.taken.add(name)
    if proposal.capacity_mib is None and "model" in facts.values():
        proposal.capacity_mib = _known_capacity(proposal, facts)
    if not (facts.keys() - {"hbm_mib"} or named(proposal.rows.columns, "gpu")):
        return
    proposal.taken.update(facts)
    for name, to in facts.items():
        unit = (device_meaning(name) or ("", ""))[1]
        proposal.devices.append(
            _as_table(name, to, unit) if unit not in ("", "MiB") else f'{quoted(name)} = "{to}"'
        )


def _templates(columns: Mapping[str, pl.Series]) -> dict[str, list[str]]:
    """{name with `{gpu}` for an index: its columns}; other columns unchanged."""
    templates: dict[str, list[str]] = {}
    for name in columns:
        templates.setdefault(wide_template(name) or name, []).append(name)
    return templates


def _propose_counters(proposal: _Proposal, columns: Mapping[str, pl.Series]) -> None:
    """Columns or metrics of gpu_samples; of several that mean one counter the first that can be it.

    Those that vary come before constant ones, which may be a limit or a capacity.
    """
    meanings: dict[str, tuple[str, str]] = {}
    values: dict[str, pl.Series] = {}
    for template, names in _templates(columns).items():
        meaning = counter_meaning(template.replace("{gpu}", ""))
        if meaning is None:
            proposal.left[template] = ""
            continue
        meanings[template] = meaning
        values[template] = pl.concat([stripped(columns[name]).alias("v") for name in names])
    lines: dict[str, str] = {}
    counters: set[str] = set()
    for template in sorted(meanings, key=lambda name: _constant_value(proposal, values[name])):
        meaning = meanings[template]
        if meaning[0] in counters:
            proposal.left[template] = f"also {meaning[0]}"
        elif line := _line(proposal, template, meaning, values[template]):
            lines[template] = line
            counters.add(meaning[0])
    proposal.columns += [lines[template] for template in meanings if template in lines]


def _constant_value(proposal: _Proposal, values: pl.Series) -> float:
    """Return the value of a column that has one only; below all others where it varies."""
    if values.drop_nulls().n_unique() != 1:
        return -math.inf
    return _highest(proposal, values, "")


def _propose_host(proposal: _Proposal, columns: Mapping[str, pl.Series]) -> None:
    """Columns or metrics for node_samples; counters are columns that only grow."""
    counters: set[str] = set()
    for name, values in columns.items():
        if name in proposal.taken:
            continue
        meaning = host_counter_meaning(name)
        if meaning is None or meaning[0] in counters:
            proposal.left[name] = ""
        elif not is_convertible(meaning[1] or HOST_UNITS[meaning[0]], HOST_UNITS[meaning[0]]):
            proposal.left[name] = f"{meaning[1]} cannot be {HOST_UNITS[meaning[0]]}"
        elif _decreases(proposal, meaning[0], values):
            proposal.left[name] = "it decreases, so it is not a counter"
        else:
            to, unit = meaning
            plain = not unit or unit == HOST_UNITS[to]
            proposal.columns.append(
                f'{quoted(name)} = "{to}"' if plain else _as_table(name, to, unit)
            )
            counters.add(to)


def _decreases(proposal: _Proposal, counter: str, values: pl.Series) -> bool:
    """Return whether a counter that only grows has values that fall, so that it is none.

    Percentages of CPU time are called like the times themselves, and fall. Long and wide files are
    not looked at.
    """
    if counter not in CUMULATIVE or len(values) != proposal.rows.height:
        return False
    rows = _in_order(proposal, values, column_unit(counter) or "")
    steps = rows.select(pl.col("v").diff().over(proposal.keys)).to_series()
    return int((steps < 0).sum() or 0) > _FALLS * steps.count()


def _in_order(proposal: _Proposal, values: pl.Series, unit: str) -> pl.DataFrame:
    """Return the rows of a wide file with times `t`, numbers `v` and the keys, in order of time."""
    cells = numbers(values.alias("v"), wanted=unit, decimal=proposal.decimal).values
    rows = proposal.rows.select(cells.cast(pl.Float64), pl.lit(0).alias(_ALL), *proposal.gpus)
    if not proposal.time:
        return rows
    written = proposal.rows[proposal.time]
    times = read_times(written, form=time_format(written)).values
    return rows.with_columns(times.alias("t")).sort("t", maintain_order=True)


def _line(
    proposal: _Proposal, name: str, meaning: tuple[str, str], values: pl.Series
) -> str | None:
    """One line of [columns]; None, noted as unknown, if the unit does not fit.

    A share is a fraction where neither its name says percent nor a value is above 1.
    """
    to, unit = meaning
    target_unit = column_unit(to) or ""
    if unit and not is_convertible(unit, target_unit):
        proposal.left[name] = f"{unit} cannot be {target_unit}"
        return None
    high = _highest(proposal, values, unit or target_unit)
    remark = ""
    if target_unit == "fraction" and (not unit or (unit == "fraction" and high > _ROUNDED)):
        if high <= 1 and _are_whole(proposal, values):
            values_are = "0 or 1" if high == 1 else "0"
            proposal.missing.append(f"{name} is {values_are} throughout: percent, or a fraction?")
            return f"# {_as_table(name, to, '...')}  # {proposal.missing[-1]}"
        unit = "percent" if high > _ROUNDED else "fraction"
        remark = f"  # by its values: up to {high:.4g}"
    if to == "energy_j":
        unit, remark, why = _energy_unit(proposal, values, unit)
    else:
        why = _objection(proposal, to, unit or target_unit, values)
        if not why and not unit and target_unit == "MiB":
            why = _gib_or_mib(proposal, values)
    if not why and _decreases(proposal, to, values):
        why = "it decreases, so it is not a counter"
    if why:
        proposal.left[name] = why
        return None
    return _as_table(name, to, "" if unit == target_unit else unit) + remark


def _objection(proposal: _Proposal, to: str, unit: str, values: pl.Series) -> str:
    """Return why values cannot be a counter; "" where they can."""
    target_unit = column_unit(to) or ""
    high = _highest(proposal, values, unit)
    highest = high * factor(unit, target_unit)
    if highest > COUNTERS_BY_NAME[to].high * _ROUNDED:
        return f"values up to {high:,.4g}: too large for {unit}"
    if 0 < highest < _EXCEEDED.get(target_unit, 0.0):
        return f"values up to {high:,.4g}: too small for {unit}"
    if to not in ("hbm_used_mib", "hbm_free_mib"):
        return ""
    capacity = proposal.capacity_mib or _LARGEST_MIB
    if highest > capacity * _ROUNDED:
        of = "the capacity" if proposal.capacity_mib else "the largest GPU has"
        return f"values up to {high:,.6g}: more than {of}, {capacity:,.6g} MiB"
    return ""


def _gib_or_mib(proposal: _Proposal, values: pl.Series) -> str:
    """Return the doubt about memory without a unit: drivers count whole MiB."""
    high = _highest(proposal, values, "MiB")
    if high >= _SMALLEST_CAPACITY_MIB or _are_whole(proposal, values):
        return ""
    return f"values up to {high:,.4g} with fractions: GiB, or MiB?"


def _energy_unit(proposal: _Proposal, values: pl.Series, unit: str) -> tuple[str, str, str]:
    """Return unit, remark, and why it is no energy of a GPU: by the power that its growth means."""
    if not proposal.time or len(values) != proposal.rows.height:
        return unit, "", ""
    rows = _in_order(proposal, values, unit or "J").drop_nulls("v")
    ends = rows.group_by(proposal.keys).agg(
        rise=pl.col("v").last() - pl.col("v").first(),
        seconds=(pl.col("t").last() - pl.col("t").first()).dt.total_seconds(fractional=True),
    )
    measured = ends.filter(pl.col("seconds") > 0)
    watts = measured.select(pl.col("rise") / pl.col("seconds")).to_series().median()
    if not isinstance(watts, float) or watts <= 0:
        return unit, "", ""
    for candidate in (unit,) if unit else ("J", "mJ"):
        power = watts * factor(candidate, "J")
        if _LEAST_W <= power <= _MOST_W:
            remark = "" if unit else f"  # by its values: grows by {power:,.4g} W"
            return candidate, remark, ""
    power = watts * factor(unit or "J", "J")
    return unit, "", f"it grows by {power:,.4g} W: no energy of a GPU in {unit or 'J'}"


def _known_capacity(proposal: _Proposal, facts: Mapping[str, str]) -> float | None:
    """Return the memory of the largest GPU by the names of the models; None: not all are known."""
    column = next(name for name, to in facts.items() if to == "model")
    devices = [match_device(model) for model in proposal.values(column).unique()]
    capacities = [device.hbm_mib for device in devices if device is not None]
    return max(capacities) if capacities and len(capacities) == len(devices) else None


def _highest(proposal: _Proposal, values: pl.Series, unit: str) -> float:
    """Return the largest finite number in a unit; 0 without one."""
    plain = numbers(stripped(values), wanted=unit, decimal=proposal.decimal).values.cast(pl.Float64)
    highest = plain.filter(plain.is_finite().fill_null(value=False)).max()
    return highest if isinstance(highest, float) else 0.0


def _are_whole(proposal: _Proposal, values: pl.Series) -> bool:
    plain = numbers(values, wanted="", decimal=proposal.decimal).values.cast(pl.Float64)
    return bool((plain == plain.round()).all())


def _as_table(name: str, to: str, unit: str) -> str:
    written = f', unit = "{unit}"' if unit else ""
    return f'{quoted(name)} = {{ to = "{to}"{written} }}'


def quoted(text: str) -> str:
    """Return a TOML string with control and direction characters escaped."""
    return "".join(
        letter if printable(letter) == letter else f"\\U{ord(letter):08x}"
        for letter in json.dumps(text, ensure_ascii=False)
    )
