"""A mapping proposed for a file, from the names of its columns and the values of its first rows."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from tachograph.catalog.counters import COUNTERS_BY_NAME, HOST_COUNTERS, HOST_UNITS, CounterKind
from tachograph.catalog.devices import match_device
from tachograph.catalog.errors import InputError
from tachograph.catalog.units import factor, is_convertible, printable
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
from tachograph.sources.table.mapping import numbers, stripped
from tachograph.sources.table.names import (
    MAYBE_MODELS,
    column_unit,
    counter_meaning,
    device_meaning,
    host_counter_meaning,
    is_passed_over,
    job_meaning,
    named,
    wide_meaning,
    wide_template,
)
from tachograph.sources.times import AUTO, read_times

_ROWS, _BYTES = 100_000, 8 << 20  # that are looked at, at most
_DELIMITERS = (",", ";", "\t", "|")
# each is tried where those before it do not fit; day before month, with a remark where both fit
_FORMATS = (AUTO, "%d.%m.%Y %H:%M:%S%.f", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%a %b %d %H:%M:%S %Y")
# units that values without one may have, the usual one first
_UNITS_BY_VALUE: Mapping[str, tuple[str, ...]] = {
    "fraction": ("fraction", "percent"),
    "W": ("W", "mW"),
    "MiB": ("MiB", "B"),
    "MHz": ("MHz", "kHz", "Hz"),
}
_MOST_LEFT = 40  # names that are not recognised
_JOB_COLUMNS = 3  # that make a list of jobs, if none is the start
_ROUNDED = 1.01  # a value may be above its range by rounding
_FALLS = 0.02  # share of steps at which a counter may fall: restarts of nodes
_CUMULATIVE = frozenset(counter.name for counter in HOST_COUNTERS if counter.kind is CounterKind.CUMULATIVE)


@dataclass(frozen=True, slots=True)
class SuggestedMapping:
    """A mapping as TOML. `missing`: what it lacks to be one; the text has a commented line for each."""

    text: str
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class _Proposal:
    """A mapping in the making, of a file with these first rows.

    top, sections, columns, devices: its lines. left: {column or metric that is not recognised: why}. taken: columns
    that have their place.
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

    def others(self) -> list[str]:
        """Return the columns that have no place yet and may mean something."""
        return [name for name in self.rows.columns if name not in self.taken and not is_passed_over(name)]

    def free(self, key: str) -> list[str]:
        """Return the columns that are named like a key and have no place yet, the best first."""
        return [name for name in named(self.rows.columns, key) if name not in self.taken]

    def values(self, name: str) -> pl.Series:
        """Return the cells of a column that are not empty."""
        return stripped(self.rows.get_column(name)).drop_nulls()

    def lack(self, what: str, line: str) -> None:
        """Note what is missing, with a line of the mapping for a person to complete."""
        self.missing.append(what)
        self.sections.append(f"# {line}  # {_comment(what)}")

    def key(self, key: str, name: str, *more: str) -> None:
        """Add the section of a key whose values are in a column."""
        self.taken.add(name)
        self.sections += [f"[{key}]", f"column = {quoted(name)}", *more, ""]

    def finished(self, file: str) -> SuggestedMapping:
        """Return the mapping as text."""
        lines = [f"# proposed for {json.dumps(file)}: check it before use", *self.top, "", *self.sections]
        if not self.columns:
            self.missing.append(f"no column looks like a counter; it has: {listed(self.rows.columns)}")
            for name, why in {wide_template(name) or name: why for name, why in self.left.items()}.items():
                remark = f"  # {why}" if why else ""
                self.columns.append(f'# {quoted(name)} = "..."{remark}')
            self.left = {}
        lines += ["[columns]", *self.columns]
        lines += ["", "[devices]", *self.devices] if self.devices else []
        if self.left:
            shown = [f"{listed([name])} ({why})" if why else listed([name]) for name, why in self.left.items()]
            others = f" and {len(shown) - _MOST_LEFT} more" if len(shown) > _MOST_LEFT else ""
            lines.append(f"# not recognised: {_comment(', '.join(shown[:_MOST_LEFT]) + others)}")
        return SuggestedMapping("\n".join(lines) + "\n", tuple(self.missing))


def suggest(path: Path, *, node: str | None = None, zone_name: str | None = None) -> SuggestedMapping:
    """Return a commented mapping (TOML) for a file, as far as names and values give one.

    `node`: of a file that names none; `zone_name`: of times written without a zone.
    Errors: InputError when the file cannot be read, or has no rows.
    """
    proposal = _read(path)
    if not proposal.rows.height:
        raise InputError("the file has no rows to judge by", where=str(path), do="name a file with some")
    jobs = {name: to for name in proposal.rows.columns if (to := job_meaning(name))}
    samples = any(map(counter_meaning, proposal.rows.columns)) or named(proposal.rows.columns, "value")
    is_list = "start" in jobs.values() or (len(jobs) >= _JOB_COLUMNS and not samples)
    if "job_id" in jobs.values() and is_list:
        _propose_jobs(proposal, jobs, zone_name)
    else:
        _propose_samples(proposal, node, zone_name)
    return proposal.finished(path.name)


# ------------------------------------------------------------------------------------------------------ first rows


def _read(path: Path) -> _Proposal:
    """A proposal with the first rows of the file and what had to be known to read them."""
    match format_of(path):
        case "parquet":
            return _Proposal(next(read_parquet(path, list(parquet_columns(path)), rows=_ROWS)).rows)
        case "json":
            keys, content = _list_of_records(path)
            top = [f"records = {quoted('.'.join(keys))}"] if keys else []
            return _Proposal(records(content[:_ROWS], origin=str(path)), top=top)
        case "csv":
            found = _Proposal(pl.DataFrame())
            layout = _layout(path, found)
            found.rows = next(iter(read_csv(path, layout, block_bytes=_BYTES))).rows.head(_ROWS)
            return found


def _list_of_records(path: Path) -> tuple[list[str], list[object]]:
    """The keys under which the rows of a JSON file are, and the rows."""
    content, _ = read_json(path)
    keys: list[str] = []
    while isinstance(content, dict):
        lists = [
            name for name, rows in content.items() if isinstance(rows, list) and rows and isinstance(rows[0], dict)
        ]
        inner = lists[:1] or [name for name, value in content.items() if isinstance(value, dict)][:1]
        if not inner:
            raise InputError("no list of records", where=str(path), do=f"it has: {listed(map(str, content))}")
        keys.append(str(inner[0]))
        content = content[inner[0]]
    return keys, content if isinstance(content, list) else []


def _layout(path: Path, proposal: _Proposal) -> TableLayout:
    """Encoding, delimiter, header and decimal sign of a CSV file."""
    with open_file(path) as file:
        start = file.read(1 << 18)
    encoding = "utf-16" if start[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"
    try:
        text = start.decode(encoding)
    except UnicodeDecodeError as problem:
        if encoding == "utf-8" and problem.start < len(start) - 4:  # else a character is cut off at the end
            encoding = "latin-1"
        text = start.decode(encoding, errors="ignore")
    if encoding != "utf-8":
        proposal.top.append(f'encoding = "{encoding}"')
    lines = [line for line in text.removeprefix("\ufeff").splitlines() if line.strip()]
    if not lines:
        raise InputError("the file holds no line", where=str(path), do="export it again")
    delimiter = max(_DELIMITERS, key=lambda sign: (min(line.count(sign) for line in lines[:20]), lines[0].count(sign)))
    if delimiter != ",":
        proposal.top.append(f"delimiter = {quoted(delimiter)}")
    first = [cell.strip().strip('"') for cell in lines[0].split(delimiter)]
    names: tuple[str, ...] = ()
    if any(re.fullmatch(r"[-+]?\d+([.,]\d+)?", cell) for cell in first):
        names = tuple(f"c{number}" for number in range(1, len(first) + 1))
        remark = "the file has no header line: name its columns"
        proposal.top.append(f"names = {json.dumps(list(names))}  # {remark}")
    if delimiter != "," and any(re.search(rf"(^|{re.escape(delimiter)})\d+,\d+", line) for line in lines[1:20]):
        proposal.decimal = ","
        proposal.top.append('decimal = ","')
    return TableLayout(delimiter, names=names, encoding=encoding)


def _highest(values: pl.Series, unit: str, decimal: str) -> float | None:
    """The largest number of a column; cells with a unit of their own are converted to `unit`."""
    plain = numbers(stripped(values), wanted=unit, decimal=decimal).values.cast(pl.Float64)
    high = plain.filter(plain.is_finite().fill_null(value=False)).max()
    return high if isinstance(high, float) else None


# --------------------------------------------------------------------------------------------------- samples, GPUs


def _propose_samples(proposal: _Proposal, node: str | None, zone_name: str | None) -> None:
    rows = proposal.rows
    time, form = next(((name, form) for name in proposal.free("time") if (form := _time_format(rows[name]))), ("", ""))
    proposal.taken |= {time} if time else set()
    metric = [name for name in named(rows.columns, "metric") if rows.schema[name] == pl.String]
    value = proposal.free("value")
    long = (metric[0], value[0]) if metric and value else None
    proposal.taken.update(long or ())
    names_of_counters = _metrics(proposal, *long) if long else {name: rows[name] for name in proposal.others()}
    wide = {} if long else _wide_columns(proposal)
    facts = _device_columns(proposal)
    counters = [name for name in names_of_counters if name not in facts]
    node_only = not wide and _is_of_nodes(rows.columns, counters)
    inventory = facts and not wide and not (time and any(map(counter_meaning, counters)))
    table = "devices" if inventory else "node_samples" if node_only else "gpu_samples"
    proposal.top.append(f'table = "{table}"')
    if not inventory:
        _propose_time(proposal, time, form, zone_name)
    nodes = proposal.free("node")
    if nodes:
        proposal.key("node", nodes[0])
    elif node is not None:
        proposal.sections += ["[node]", f"constant = {quoted(node)}", ""]
    else:
        proposal.sections += ["# no column names the node: ingest with --node NAME, or write node.constant here", ""]
    if not (wide or node_only or any(_names_a_gpu(name) for name in rows.columns)):
        _propose_gpu(proposal, [name for name in (time, *nodes[:1], *(long or ())[:1]) if name])
    if inventory:
        proposal.columns = _fact_lines(proposal, facts)
    else:
        proposal.devices = [] if node_only else _fact_lines(proposal, facts)
        if wide:
            _propose_wide(proposal, wide)
        else:
            free = {name: values for name, values in names_of_counters.items() if name not in proposal.taken}
            (_propose_host if node_only else _propose_counters)(proposal, free, nodes)
    if not long:
        proposal.left |= {name: proposal.left.get(name, "") for name in proposal.others()}
    else:
        proposal.sections += ["[metric]", f"column = {quoted(long[0])}", f"value = {quoted(long[1])}", ""]


def _metrics(proposal: _Proposal, metric: str, value: str) -> dict[str, pl.Series]:
    """{name of a metric: its values} of a file with a row per value."""
    parts = proposal.rows.group_by(stripped(proposal.rows[metric]).alias("name"), maintain_order=True)
    return {str(name): part[value] for (name,), part in parts if name is not None}


def _is_of_nodes(columns: Sequence[str], counters: Sequence[str]) -> bool:
    """True where no column is a GPU's number, and more of the counters count for nodes than for GPUs."""
    if any(gpu.lower() != "index" for gpu in named(columns, "gpu")):
        return False
    hosts = [name for name in counters if host_counter_meaning(name)]
    return len(hosts) > len([name for name in counters if counter_meaning(name) and name not in hosts])


def _propose_time(proposal: _Proposal, name: str, form: str, zone_name: str | None) -> None:
    proposal.sections.append("[time]")
    if name:
        proposal.sections.append(f"column = {quoted(name)}")
    else:
        likely = (named(proposal.rows.columns, "time") or ["..."])[0]
        proposal.lack("no column looks like a time", f"column = {quoted(likely)}")
    _propose_format(proposal, name, form, zone_name)


def _propose_format(proposal: _Proposal, name: str, form: str, zone_name: str | None) -> None:
    """How times are written, and their zone."""
    if form and form != AUTO:
        remark = ""
        if form.startswith("%d/%m"):
            other = read_times(proposal.rows[name].drop_nulls(), form=form.replace("%d/%m", "%m/%d", 1))
            remark = "" if other.bad.any() else "  # or '%m/%d/...': undetermined by the values"
        proposal.sections.append(f"format = {quoted(form)}{remark}")
    if zone_name:
        proposal.sections += [f"zone = {quoted(zone_name)}", ""]
    else:
        proposal.sections += ['# zone = "Europe/Berlin"  # of times written without one; default: the site\'s', ""]


def _time_format(given: pl.Series) -> str:
    """The format in which nearly all values are credible times; "" for none."""
    known = given.drop_nulls()
    if not len(known) or known.dtype in (pl.Boolean, pl.List, pl.Struct):
        return ""
    for form in _FORMATS if known.dtype == pl.String else (AUTO,):
        years = read_times(known, form=form).values.dt.year()
        if (years.is_between(2006, 2100).sum() or 0) >= 0.9 * len(known):
            return form
    return ""


def _propose_gpu(proposal: _Proposal, alike: Sequence[str]) -> None:
    """The keys of a GPU. `alike`: columns that are the same in two rows only where these are of two GPUs."""
    numbered = [name for name in proposal.free("gpu") if _ends_in_number(proposal.values(name))]
    if numbered:
        is_number = proposal.values(numbered[0]).cast(pl.String).str.contains(r"^\d+$").all()
        proposal.key("gpu", numbered[0], *(() if is_number else (r"pattern = '(\d+)$'",)))
    else:
        proposal.sections.append("[gpu]")
        if alike and not proposal.rows.select(alike).is_duplicated().any():
            proposal.sections.append("constant = 0  # the file does not name the GPU")
        else:
            proposal.lack("no column is the number of a GPU, and rows are of several", 'column = "..."')
        proposal.sections.append("")
    for name in proposal.free("mig")[:1]:
        if len(proposal.values(name)) and _ends_in_number(proposal.values(name)):
            proposal.key("mig", name)
    for key in ("job", "step") if proposal.free("job") else ():
        for name in proposal.free(key)[:1]:
            proposal.key(key, name)


def _ends_in_number(values: pl.Series) -> bool:
    """Whether values are short numbers, or names that end in one: `GPU-3`, not a UUID nor a model."""
    text = values.cast(pl.String)
    return bool(text.str.contains(r"^([A-Za-z]{0,8}[ _\-:/]*)?\d{1,4}(\.0)?$").all())


def _device_columns(proposal: _Proposal) -> dict[str, tuple[str, str]]:
    """{column: (column of `devices`, unit)}; a column that may be a model is one where its values are."""
    found: dict[str, tuple[str, str]] = {}
    for name in proposal.others():
        known = device_meaning(name)
        if known is None and name.lower().strip() in MAYBE_MODELS:
            models = proposal.values(name).unique().to_list()
            known = ("model", "") if models and all(map(_is_model, models)) else None
        if known and known not in found.values():
            found[name] = known
    identified = {to for to, _ in found.values()} & {"model", "uuid", "pci"}
    return found if identified or named(proposal.rows.columns, "gpu") else {}


def _is_model(name: object) -> bool:
    """Whether the catalogue knows a GPU of this name, or a vendor's word is in it."""
    text = str(name)
    return match_device(text) is not None or bool(re.search(r"(?i)\b(nvidia|tesla|amd|instinct|geforce)\b", text))


def _fact_lines(proposal: _Proposal, facts: Mapping[str, tuple[str, str]]) -> list[str]:
    proposal.taken.update(facts)
    lines: list[str] = []
    for name, (to, unit) in facts.items():
        if to != "hbm_mib":
            lines.append(f'{quoted(name)} = "{to}"')
        elif line := _line(proposal, name, (to, unit), proposal.rows[name]):
            lines.append(line)
    return lines


def _propose_counters(proposal: _Proposal, columns: Mapping[str, pl.Series], _nodes: Sequence[str]) -> None:
    """Columns or metrics of gpu_samples; the first of several that mean one counter."""
    counters: set[str] = set()
    for name, values in columns.items():
        known = counter_meaning(name)
        if known is None or known[0] in counters:
            proposal.left[name] = f"also {known[0]}" if known else ""
        elif line := _line(proposal, name, known, values):
            proposal.columns.append(line)
            proposal.taken.add(name)
            counters.add(known[0])


def _propose_host(proposal: _Proposal, columns: Mapping[str, pl.Series], nodes: Sequence[str]) -> None:
    """Columns or metrics of node_samples; counters that count are those whose values grow."""
    of_rows = proposal.rows[nodes[0]] if nodes else None
    counters: set[str] = set()
    for name, values in columns.items():
        known = host_counter_meaning(name)
        if known is None or known[0] in counters:
            proposal.left[name] = ""
        elif not is_convertible(known[1] or HOST_UNITS[known[0]], HOST_UNITS[known[0]]):
            proposal.left[name] = f"{known[1]} cannot be {HOST_UNITS[known[0]]}"
        elif len(values) == proposal.rows.height and not _only_grows(known[0], values, of_rows):
            proposal.left[name] = "it falls: no counter"
        else:
            to, unit = known
            plain = not unit or unit == HOST_UNITS[to]
            proposal.columns.append(f'{quoted(name)} = "{to}"' if plain else _as_table(name, to, unit))
            proposal.taken.add(name)
            counters.add(to)


def _only_grows(counter: str, values: pl.Series, nodes: pl.Series | None) -> bool:
    """Whether values may be those of a counter that counts; of one that need not grow, True.

    Percentages of CPU time are called like the times themselves, and fall.
    """
    if counter not in _CUMULATIVE:
        return True
    given = numbers(values.alias("v"), wanted=HOST_UNITS[counter]).values.cast(pl.Float64)
    of = nodes if nodes is not None else pl.repeat(None, len(given), dtype=pl.String, eager=True)
    steps = pl.DataFrame([given, of.alias("n")]).select(pl.col("v").diff().over("n")).to_series()
    return int((steps < 0).sum() or 0) <= _FALLS * steps.count()


def _wide_columns(proposal: _Proposal) -> dict[str, list[str]]:
    """{name with {gpu}: the columns it stands for}, of those that are counters and numbered from 0 or several."""
    found: dict[str, list[str]] = {}
    for name in proposal.others():
        template = wide_template(name)
        if template and wide_meaning(template):
            found.setdefault(template, []).append(name)
    return {template: names for template, names in found.items() if len(names) > 1 or _names_a_gpu(names[0])}


def _names_a_gpu(column: str) -> bool:
    """Whether a column is of one GPU by its name: `gpu0_util`, not `util_0`."""
    return bool(re.search(r"(?i)(gpu|card|device)[ _.\-\[]?\{gpu\}", wide_template(column) or ""))


def _propose_wide(proposal: _Proposal, wide: Mapping[str, list[str]]) -> None:
    counters: set[str] = set()
    for template, names in wide.items():
        known = wide_meaning(template)
        values = pl.concat([stripped(proposal.rows[name]).alias("v") for name in names])
        if known and known[0] not in counters and (line := _line(proposal, template, known, values)):
            counters.add(known[0])
            proposal.columns.append(line)
            proposal.taken.update(names)


# ----------------------------------------------------------------------------------------------------------- units


def _line(proposal: _Proposal, name: str, known: tuple[str, str], values: pl.Series) -> str | None:
    """One line under [columns], with what its unit rests on; None where no unit fits, noted as not recognised.

    A unit in the name counts unless values contradict it; else values decide between the units that are usual.
    """
    to, unit = known
    wanted = column_unit(to)
    if unit and not is_convertible(unit, wanted):
        proposal.left[name] = f"{unit} cannot be {wanted}"
        return None
    high = _highest(values, unit or ("percent" if wanted == "fraction" else wanted), proposal.decimal)
    counter = COUNTERS_BY_NAME.get(to)
    highest = counter.high * _ROUNDED if counter else float("inf")
    usual = _UNITS_BY_VALUE.get(wanted, (wanted,))
    fitting = [each for each in usual if high is None or high * factor(each, wanted) <= highest]
    seen = "" if high is None else f"values up to {high:{',.0f' if high >= 1000 else '.4g'}}"
    remark = ""
    if unit:
        if high is not None and high * factor(unit, wanted) > highest:
            if not fitting:
                proposal.left[name] = f"{seen}: too large for {unit}"
                return None
            unit, remark = fitting[0], f"not {unit}, as the name says: {seen}"
        elif unit == "percent" and high is not None and 0 < high <= 1:
            remark = f"no value is above 1: {seen}; a fraction?"
    elif not fitting:
        proposal.left[name] = f"{seen}: no unit fits"
        return None
    elif wanted == "fraction":
        unit = "percent" if high is None else fitting[0]
        if unit == "fraction":
            remark = f"no value is above 1: {seen}; a fraction, or percent of a GPU that was idle?"
        elif seen:
            remark = f"by its values: {seen}"
    elif wanted == "MiB" and high is not None and 0 < high <= 100:
        proposal.left[name] = f"{seen}: MiB, GiB or percent?"
        return None
    elif fitting[0] != usual[0]:
        unit, remark = fitting[0], f"by its values: {seen}"
    elif wanted in ("J", "B/s"):
        unit, remark = wanted, "the name does not give its unit"
    return _as_table(name, to, "" if unit == wanted else unit) + (f"  # {remark}" if remark else "")


def _as_table(name: str, to: str, unit: str) -> str:
    written = f', unit = "{unit}"' if unit else ""
    return f'{quoted(name)} = {{ to = "{to}"{written} }}'


# ------------------------------------------------------------------------------------------------------------ jobs


def _propose_jobs(proposal: _Proposal, jobs: Mapping[str, str], zone_name: str | None) -> None:
    proposal.top.append('table = "jobs"')
    proposal.sections.append("[time]")
    starts = [name for name, to in jobs.items() if to == "start"]
    form = _time_format(proposal.rows[starts[0]]) if starts else ""
    _propose_format(proposal, starts[0] if starts else "", form, zone_name)
    columns: set[str] = set()
    for name, to in jobs.items():
        if to in columns:
            continue
        columns.add(to)
        proposal.taken.add(name)
        clock = to == "elapsed_s" and bool(proposal.values(name).cast(pl.String).str.contains(":").any())
        proposal.columns.append(_as_table(name, to, "duration" if clock else ""))
    if not starts:
        proposal.missing.append("no column is the start of a job")
        proposal.columns.append('# "..." = { to = "start" }  # no column is the start of a job')
    proposal.left |= dict.fromkeys(proposal.others(), "")


def quoted(text: str) -> str:
    """Return a TOML string that can be shown: escapes for what steers terminals or the direction of writing."""
    return "".join(
        letter if printable(letter) == letter else f"\\U{ord(letter):08x}"
        for letter in json.dumps(text, ensure_ascii=False)
    )


def _comment(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f]", "?", text)
