"""A mapping proposed for a file, from the names of its columns and its values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from tachograph.catalog.counters import COUNTERS_BY_NAME, HOST_COUNTERS, HOST_UNITS, CounterKind
from tachograph.catalog.devices import match_device
from tachograph.catalog.units import factor, is_convertible
from tachograph.sources.files import listed
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
from tachograph.sources.table.sample import (
    TableSample,
    ValueRange,
    metric_ranges,
    quoted,
    range_in_all,
    range_in_head,
    sample,
)
from tachograph.sources.times import AUTO, read_times

_COLUMNS = 200  # among which a time is looked for
_FORMATS = (
    AUTO, "%d.%m.%Y %H:%M:%S%.f", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p",
    "%Y%m%d %H:%M:%S", "%Y%m%dT%H%M%S", "%a %b %d %H:%M:%S %Y",
)  # fmt: skip
# units that values without one may have, the usual one first where values decide
_UNITS_BY_VALUE: Mapping[str, tuple[str, ...]] = {
    "fraction": ("fraction", "percent"), "W": ("W", "mW"), "MiB": ("MiB", "B"), "MHz": ("MHz", "kHz", "Hz"),
}  # fmt: skip
_MOST_LEFT = 40  # names that are not recognised
_PERCENT = 100
_JOB_COLUMNS = 3  # that make a list of jobs, if none is the start
_ROUNDED = 1.01  # a value may be above its range by rounding


@dataclass(frozen=True, slots=True)
class SuggestedMapping:
    """A mapping as TOML. `missing`: what it lacks to be one; the text has a commented line for each."""

    text: str
    missing: tuple[str, ...] = ()


@dataclass(slots=True)
class _Proposal:
    """A mapping in the making."""

    sample: TableSample
    top: list[str] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)  # {column or metric that is not recognised: why}
    missing: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    @property
    def rows(self) -> pl.DataFrame:
        """The first rows of the file."""
        return self.sample.rows

    def lack(self, what: str, line: str) -> None:
        """Note what is missing, with a line of the mapping for a person to complete."""
        self.missing.append(what)
        self.sections.append(f"# {line}  # {_comment(what)}")

    def finished(self) -> SuggestedMapping:
        lines = [
            f"# proposed for {json.dumps(self.sample.path.name)}: check it before use",
            *self.top,
            "",
            *self.sections,
        ]
        if not self.columns:
            has = listed(self.rows.columns)
            self.missing.append(f"no column looks like a counter; it has: {has}")
            open_names = {wide_template(name) or name: why for name, why in self.left.items()}
            self.columns += [f'# {quoted(name)} = "..."' + (why and f"  # {why}") for name, why in open_names.items()]
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
    found = sample(path)
    proposal = _Proposal(found, top=list(found.lines))
    jobs = {name: to for name in proposal.rows.columns if (to := job_meaning(name))}
    samples = any(map(counter_meaning, proposal.rows.columns)) or named(proposal.rows.columns, "value")
    is_list = "start" in jobs.values() or (len(jobs) >= _JOB_COLUMNS and not samples)
    if "job_id" in jobs.values() and is_list:
        _propose_jobs(proposal, jobs, zone_name)
    else:
        _propose_samples(proposal, node, zone_name)
    return proposal.finished()


def _propose_samples(proposal: _Proposal, node: str | None, zone_name: str | None) -> None:
    names = proposal.rows.columns
    time, form = _time_column(proposal.rows)
    proposal.taken.update({time} if time else ())
    long = _long_columns(proposal)
    metrics = metric_ranges(proposal.sample, *long) if long else {}
    proposal.taken.update(long or ())
    wide = {} if long else _wide_columns(proposal)
    facts = _device_columns(proposal)
    counters = list(metrics) if long else [name for name in names if name not in proposal.taken and name not in facts]
    node_only = not wide and _is_of_nodes(names, counters)
    inventory = facts and not wide and not (time and any(map(counter_meaning, counters)))
    table = "devices" if inventory else "node_samples" if node_only else "gpu_samples"
    proposal.top.append(f'table = "{table}"')
    if not inventory:
        _propose_time(proposal, time, form, zone_name)
    _propose_node(proposal, node)
    if not (wide or node_only or any(_names_a_gpu(name) for name in names)):
        _propose_gpu(proposal, time, long)
    if inventory:
        proposal.columns = _fact_lines(proposal, facts)
        proposal.left = dict.fromkeys(_others(proposal), "")
    elif node_only:
        of_node = proposal.rows.get_column(nodes[0]) if (nodes := named(names, "node")) else None
        _propose_host(proposal, metrics, of_node)
    else:
        proposal.devices = _fact_lines(proposal, facts)
        if long:
            _propose_long(proposal, metrics)
        elif wide:
            _propose_wide(proposal, wide)
        else:
            _propose_columns(proposal)
    if long:
        metric, value = long
        proposal.sections += ["[metric]", f"column = {quoted(metric)}", f"value = {quoted(value)}", ""]


def _is_of_nodes(columns: list[str], counters: list[str]) -> bool:
    """True where no column is a GPU's number, and more of the counters count for nodes than for GPUs."""
    if any(gpu.lower() != "index" for gpu in named(columns, "gpu")):
        return False
    hosts = [name for name in counters if host_counter_meaning(name)]
    return len(hosts) > len([name for name in counters if counter_meaning(name) and name not in hosts])


def _others(proposal: _Proposal) -> list[str]:
    """Columns that the mapping does not name and that mean something."""
    return [name for name in proposal.rows.columns if name not in proposal.taken and not is_passed_over(name)]


def _time_column(rows: pl.DataFrame) -> tuple[str, str]:
    """The time column and its format; ("", "") where no column looks like a time.

    A column of a counter or a key is none, whatever its values look like: bytes may be seconds since 1970.
    """
    first = named(rows.columns, "time")
    others = [
        name
        for name in rows.columns
        if name not in first and not (counter_meaning(name) or host_counter_meaning(name) or wide_template(name))
    ]
    for name in (*first, *others)[:_COLUMNS]:
        form = _time_format(rows.get_column(name))
        if form is not None:
            return name, form
    return "", ""


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
        either = _either_way(proposal.rows.get_column(name), form)
        proposal.sections.append(f"format = {quoted(form)}{either}")
    if zone_name:
        proposal.sections += [f"zone = {quoted(zone_name)}", ""]
    else:
        proposal.sections += ['# zone = "Europe/Berlin"  # of times written without one; default: the site\'s', ""]


def _time_format(given: pl.Series) -> str | None:
    """The format in which nearly all values are credible times, or None."""
    known = given.drop_nulls()
    if not len(known) or known.dtype in (pl.Boolean, pl.List, pl.Struct):
        return None
    if known.dtype == pl.String and (known.str.contains(r"\d").sum() or 0) < 0.9 * len(known):
        return None
    for form in _FORMATS if known.dtype == pl.String else (AUTO,):
        times = read_times(known, form=form)
        years = times.values.dt.year()
        if (years.is_between(2006, 2100).sum() or 0) >= 0.9 * len(known):
            return form
    return None


def _either_way(given: pl.Series, form: str) -> str:
    """A warning where day and month could be the other way round."""
    if form.startswith("%d/%m") and _fits(given, form.replace("%d/%m", "%m/%d", 1)):
        return "  # or '%m/%d/...': undetermined by the values"
    return ""


def _fits(given: pl.Series, form: str) -> bool:
    return not read_times(given.drop_nulls(), form=form).bad.any()


def _propose_node(proposal: _Proposal, node: str | None) -> None:
    found = [name for name in named(proposal.rows.columns, "node") if name not in proposal.taken]
    if found:
        proposal.sections += ["[node]", f"column = {quoted(found[0])}", ""]
        proposal.taken.add(found[0])
    elif node is not None:
        proposal.sections += ["[node]", f"constant = {quoted(node)}", ""]
    else:
        proposal.sections += ["# no column names the node: ingest with --node NAME, or write node.constant here", ""]


def _propose_gpu(proposal: _Proposal, time: str, long: tuple[str, str] | None) -> None:
    rows = proposal.rows
    found = [name for name in named(rows.columns, "gpu") if name not in proposal.taken]
    numbered = [name for name in found if _ends_in_number(rows.get_column(name))]
    if numbered:
        name = numbered[0]
        proposal.taken.add(name)
        proposal.sections += ["[gpu]", f"column = {quoted(name)}"]
        if not stripped(rows.get_column(name)).drop_nulls().str.contains(r"^\d+$").all():
            proposal.sections.append(r"pattern = '(\d+)$'")
    else:
        alike = [name for name in (time, *named(rows.columns, "node")[:1], *(long or ())[:1]) if name]
        proposal.sections.append("[gpu]")
        if alike and not rows.select(alike).is_duplicated().any():
            proposal.sections.append("constant = 0  # the file does not name the GPU")
        else:
            proposal.lack("no column is the number of a GPU, and rows are of several", 'column = "..."')
    proposal.sections.append("")
    for name in named(rows.columns, "mig")[:1]:
        if len(stripped(rows.get_column(name)).drop_nulls()) and _ends_in_number(rows.get_column(name)):
            proposal.taken.add(name)
            proposal.sections += ["[mig]", f"column = {quoted(name)}", ""]
    for key in ("job", "step") if named(rows.columns, "job") else ():
        for name in [name for name in named(rows.columns, key) if name not in proposal.taken][:1]:
            proposal.taken.add(name)
            proposal.sections += [f"[{key}]", f"column = {quoted(name)}", ""]


def _ends_in_number(values: pl.Series) -> bool:
    """Whether values are short numbers, or names that end in one: `GPU-3`, not a UUID nor a model."""
    text = stripped(values).drop_nulls()
    return bool(text.str.contains(r"^([A-Za-z]{0,8}[ _\-:/]*)?\d{1,4}(\.0)?$").all())


def _device_columns(proposal: _Proposal) -> dict[str, tuple[str, str]]:
    """{column: (column of `devices`, unit)}; a column that may be a model is one where its values are."""
    found: dict[str, tuple[str, str]] = {}
    done: set[str] = set()
    for name in proposal.rows.columns:
        known = None if name in proposal.taken else device_meaning(name)
        if known is None and name.lower().strip() in MAYBE_MODELS and name not in proposal.taken:
            values = stripped(proposal.rows.get_column(name)).drop_nulls().unique().to_list()
            known = ("model", "") if values and all(map(_is_model, values)) else None
        if known and known[0] not in done:
            found[name] = known
            done.add(known[0])
    return found if done & {"model", "uuid", "pci"} or named(proposal.rows.columns, "gpu") else {}


def _is_model(name: str) -> bool:
    """Whether the catalogue knows a GPU of this name, in any of its capacities, or a vendor's word is in it."""
    return match_device(name) is not None or bool(re.search(r"(?i)\b(nvidia|tesla|amd|instinct|geforce)\b", name))


def _fact_lines(proposal: _Proposal, facts: Mapping[str, tuple[str, str]]) -> list[str]:
    proposal.taken.update(facts)
    lines: list[str] = []
    for name, (to, unit) in facts.items():
        if to != "hbm_mib":
            lines.append(f'{quoted(name)} = "{to}"')
        elif line := _line(name, (to, unit), range_in_head(proposal.sample, [name], unit), proposal):
            lines.append(line)
    return lines


def _propose_columns(proposal: _Proposal) -> None:
    done: set[str] = set()
    for name in _others(proposal):
        known = counter_meaning(name)
        line = None
        if known and known[0] not in done:
            line = _line(name, known, _range(proposal, [name], known), proposal)
        elif known is None:
            proposal.left[name] = ""
        else:
            proposal.left[name] = f"also {known[0]}"
        if line and known:
            proposal.columns.append(line)
            done.add(known[0])


def _propose_host(proposal: _Proposal, metrics: Mapping[str, ValueRange], nodes: pl.Series | None) -> None:
    """Columns or metrics of node_samples; counters that count are those whose values grow."""
    done: set[str] = set()
    for name in metrics or _others(proposal):
        known = host_counter_meaning(name)
        if known is None or known[0] in done:
            proposal.left[name] = ""
        elif not is_convertible(known[1] or HOST_UNITS[known[0]], HOST_UNITS[known[0]]):
            proposal.left[name] = f"{known[1]} cannot be {HOST_UNITS[known[0]]}"
        elif not metrics and not only_grows(known[0], proposal.rows.get_column(name), nodes):
            proposal.left[name] = "it falls: no counter"
        else:
            proposal.columns.append(_host_line(name, *known))
            done.add(known[0])


def _host_line(name: str, counter: str, unit: str) -> str:
    """One line under [columns] of node_samples."""
    if not unit or unit == HOST_UNITS[counter]:
        return f'{quoted(name)} = "{counter}"'
    return f'{quoted(name)} = {{ to = "{counter}", unit = "{unit}" }}'


_FALLS = 0.02  # share of steps at which a counter may fall: restarts of nodes
_CUMULATIVE = frozenset(counter.name for counter in HOST_COUNTERS if counter.kind is CounterKind.CUMULATIVE)


def only_grows(counter: str, values: pl.Series, nodes: pl.Series | None) -> bool:
    """Return whether values may be those of a counter that counts; of one that need not grow, True.

    Percentages of CPU time are called like the times themselves, and fall.
    """
    if counter not in _CUMULATIVE:
        return True
    given = numbers(values.rename("v"), wanted=HOST_UNITS[counter]).values.cast(pl.Float64)
    of = nodes if nodes is not None else pl.repeat(None, len(given), dtype=pl.String, eager=True)
    steps = pl.DataFrame([given.alias("v"), of.alias("n")]).select(pl.col("v").diff().over("n")).to_series()
    return int((steps < 0).sum() or 0) <= _FALLS * steps.count()


def _range(proposal: _Proposal, names: list[str], known: tuple[str, str]) -> ValueRange:
    """The range of columns: of the first rows, and of all where those leave open whether it is a fraction."""
    wanted = column_unit(known[0])
    usual = "percent" if wanted == "fraction" else wanted
    head = range_in_head(proposal.sample, names, known[1] or usual)
    if head.whole or wanted != "fraction" or known[1] == "percent" or head.high is None or head.high > _ROUNDED:
        return head
    return range_in_all(proposal.sample, names)


def _line(name: str, known: tuple[str, str], values: ValueRange, proposal: _Proposal) -> str | None:
    """One line under [columns], with what its unit rests on; None where no unit fits, noted as not recognised."""
    to, unit = known
    wanted = column_unit(to)
    counter = COUNTERS_BY_NAME.get(to)
    if unit and not is_convertible(unit, wanted):
        proposal.left[name] = f"{unit} cannot be {wanted}"
        return None
    highest = counter.high * _ROUNDED if counter else float("inf")
    by_value = _UNITS_BY_VALUE.get(wanted, (wanted,))
    fitting = [u for u in by_value if values.high is None or values.high * factor(u, wanted) <= highest]
    remark = ""
    if unit and values.high is not None and values.high * factor(unit, wanted) > highest:
        if not fitting:
            proposal.left[name] = f"{values}: too large for {unit}"
            return None
        unit, remark = fitting[0], f"  # not {unit}, as the name says: {values}"
    elif unit == "percent" and values.high is not None and 0 < values.high <= 1:
        remark = f"  # no value is above 1: {values}; a fraction?"
    elif not unit and not fitting:
        proposal.left[name] = f"{values}: no unit fits"
        return None
    elif not unit and wanted == "fraction":
        if values.high is None:
            unit = "percent"
        elif fitting[0] == "fraction":
            unit, remark = (
                "fraction",
                (f"  # no value is above 1: {values}; a fraction, or percent of a GPU that was idle?"),
            )
        else:
            unit, remark = "percent", f"  # by its values: {values}"
    elif not unit and wanted == "MiB" and values.high is not None and 0 < values.high <= _PERCENT:
        proposal.left[name] = f"{values}: MiB, GiB or percent?"
        return None
    elif not unit and len(by_value) > 1 and fitting[0] != by_value[0]:
        unit, remark = fitting[0], f"  # by its values: {values}"
    elif not unit and to == "energy_j":
        unit, remark = "J", "  # or mJ, Wh: not given by the name"
    elif not unit and wanted == "B/s":
        remark = "  # or KiB/s, MB/s: not given by the name"
    written = f', unit = "{unit}"' if unit and unit != wanted else ""
    return f'{quoted(name)} = {{ to = "{to}"{written} }}{remark}'


def _wide_columns(proposal: _Proposal) -> dict[str, list[str]]:
    """{name with {gpu}: the columns it stands for}, of those that are counters and numbered from 0 or several."""
    found: dict[str, list[str]] = {}
    for name in proposal.rows.columns:
        template = None if name in proposal.taken else wide_template(name)
        if template and wide_meaning(template):
            found.setdefault(template, []).append(name)
    return {template: names for template, names in found.items() if len(names) > 1 or _names_a_gpu(names[0])}


def _names_a_gpu(column: str) -> bool:
    """Whether a column is of one GPU by its name: `gpu0_util`, not `util_0`."""
    return bool(re.search(r"(?i)(gpu|card|device)[ _.\-\[]?\{gpu\}", wide_template(column) or ""))


def _propose_wide(proposal: _Proposal, wide: Mapping[str, list[str]]) -> None:
    done: set[str] = set()
    for template, names in wide.items():
        known = wide_meaning(template)
        proposal.taken.update(names)
        if known is None or known[0] in done:
            proposal.left |= dict.fromkeys(names, "")
        elif line := _line(template, known, _range(proposal, names, known), proposal):
            done.add(known[0])
            proposal.columns.append(line)
    proposal.left |= dict.fromkeys(_others(proposal), "")


def _long_columns(proposal: _Proposal) -> tuple[str, str] | None:
    """(column with the names of counters, column with the values) of a long file, or None."""
    rows = proposal.rows
    metric = [name for name in named(rows.columns, "metric") if rows.schema[name] in (pl.String, pl.Categorical)]
    value = [name for name in named(rows.columns, "value") if name not in proposal.taken]
    return (metric[0], value[0]) if metric and value else None


def _propose_long(proposal: _Proposal, metrics: Mapping[str, ValueRange]) -> None:
    done: set[str] = set()
    for name, values in metrics.items():
        known = counter_meaning(name)
        if known is None:
            proposal.left[name] = ""
        elif known[0] in done:
            proposal.left[name] = f"also {known[0]}"
        elif line := _line(name, known, values, proposal):
            proposal.columns.append(line)
            done.add(known[0])


def _propose_jobs(proposal: _Proposal, jobs: Mapping[str, str], zone_name: str | None) -> None:
    rows = proposal.rows
    proposal.top.append('table = "jobs"')
    proposal.sections.append("[time]")
    starts = [name for name, to in jobs.items() if to == "start"]
    form = _time_format(rows.get_column(starts[0])) if starts else None
    _propose_format(proposal, starts[0] if starts else "", form or "", zone_name)
    done: set[str] = set()
    for name, to in jobs.items():
        if to in done:
            proposal.left[name] = ""
            continue
        done.add(to)
        clock = to == "elapsed_s" and bool(stripped(rows.get_column(name)).str.contains(":").any())
        unit = ', unit = "duration"' if clock else ""
        proposal.columns.append(f'{quoted(name)} = {{ to = "{to}"{unit} }}')
    if not starts:
        proposal.missing.append("no column is the start of a job")
        proposal.columns.append('# "..." = { to = "start" }  # no column is the start of a job')
    proposal.taken.update(jobs)
    proposal.left |= dict.fromkeys(_others(proposal), "")


def _comment(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f]", "?", text)
