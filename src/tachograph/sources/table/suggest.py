"""A mapping proposed for a file, from the names of its columns and its first values; synonyms of counters and keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import polars as pl

from tachograph.catalog.counters import COUNTERS_BY_NAME, HOST_COUNTERS, HOST_UNITS, CounterKind
from tachograph.catalog.errors import InputError
from tachograph.sources.columns import (
    GPU_NAMES,
    IGNORED,
    NODE_NAMES,
    NODE_VALUES,
    TIME_NAMES,
    counter_names,
    host_column_meaning,
)
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
from tachograph.sources.table.mapping import CELL_UNITS, numbers, stripped
from tachograph.sources.times import AUTO, read_times

# names that tools and people use, lower case, without unit; {counter} of the catalogue
_COUNTER_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("util", "utilization", "utilisation", "gpu util", "gpu utilization", "usage"), "gpu_util"),
        **dict.fromkeys(("utilization.gpu", "gpu_usage", "gpu usage", "gpu load", "load"), "gpu_util"),
        **dict.fromkeys(("utilization.memory", "mem_util", "memory utilization"), "mem_copy_util"),
        **dict.fromkeys(("memory.used", "mem_used", "memory_used", "memory used"), "hbm_used_mib"),
        **dict.fromkeys(("mem", "memory", "fb_used"), "hbm_used_mib"),
        **dict.fromkeys(("memory.free", "mem_free", "memory_free", "memory free"), "hbm_free_mib"),
        **dict.fromkeys(("power.draw", "power.draw.instant", "power.draw.average", "power", "watts"), "power_w"),
        **dict.fromkeys(("power_draw", "power draw", "power usage"), "power_w"),
        **dict.fromkeys(("temperature.gpu", "temp", "temperature", "gpu temp", "gpu temperature"), "gpu_temp_c"),
        **dict.fromkeys(("temperature.memory", "mem_temp", "memory temp"), "mem_temp_c"),
        **dict.fromkeys(("clocks.sm", "clocks.current.sm", "sm_clock", "sm clock"), "sm_clock_mhz"),
        **dict.fromkeys(("clocks.mem", "clocks.current.memory", "mem_clock", "memory clock"), "mem_clock_mhz"),
        **dict.fromkeys(("clocks_throttle_reasons.active", "clocks_event_reasons.active"), "throttle_reasons"),
        **dict.fromkeys(("energy", "total_energy_consumption"), "energy_j"),
    }
)  # fmt: skip
TIME_SYNONYMS = (*TIME_NAMES, "date", "when", "epoch", "zeit", "zeitstempel", "uhrzeit")
NODE_SYNONYMS = (
    *NODE_NAMES,
    "nodename",
    "node_name",
    "node name",
    "host name",
    "instance",
    "server",
    "rechner",
    "knoten",
)
GPU_SYNONYMS = (*GPU_NAMES, "idx", "gpu id", "gpu index", "device", "device_id", "minor_number", "index")
GPU_IN_NAME = re.compile(r"(?i)gpu[ _.\-\[]?(\d+)\]?")
_UNIT_BEHIND = re.compile(r"^(.*?)[ _]*[\[(]([^\])]+)[\])]$")
_LONGEST = 200  # characters of a name that may mean something; the pattern's time grows with their square
_UNIT_ENDS = {
    "_pct": "percent", "_percent": "percent", "_mib": "MiB", "_gib": "GiB", "_gb": "GB", "_mb": "MB", "_mw": "mW",
    "_w": "W", "_mhz": "MHz", "_c": "C", "_bytes": "B", "_kib": "KiB", "_ms": "ms", "_jiffies": "jiffy",
}  # fmt: skip
JOB_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("jobid", "job id", "job_id", "jobidraw"), "job_id"),
        **dict.fromkeys(("jobname", "job name", "name"), "name"),
        **dict.fromkeys(("user", "username", "user name"), "user"),
        **dict.fromkeys(("account", "project"), "account"),
        **dict.fromkeys(("partition", "queue"), "partition"),
        **dict.fromkeys(("submit", "submit time", "submit_time"), "submit"),
        **dict.fromkeys(("start", "start time", "start_time"), "start"),
        **dict.fromkeys(("end", "end time", "end_time"), "end"),
        **dict.fromkeys(("elapsed", "elapsed secs", "elapsed_s"), "elapsed_s"),
        **dict.fromkeys(("nodelist", "node list", "node_list", "nodes list"), "node_list"),
        **dict.fromkeys(("no. of nodes allocated", "nnodes", "nodes"), "nodes"),
        **dict.fromkeys(("gpus", "ngpus", "no. of gpus"), "gpus"),
        "qos": "qos", "state": "state", "cluster": "cluster",
    }
)  # fmt: skip


def counter_meaning(name: str) -> tuple[str, str] | None:
    """Return (counter, unit) of a column name, or None. The unit is "" where neither name nor producer gives it.

    >>> counter_meaning("utilization.gpu [%]"), counter_meaning("DCGM_FI_DEV_GPU_UTIL"), counter_meaning("fan")
    (('gpu_util', 'percent'), ('gpu_util', 'percent'), None)
    """
    known = counter_names().get(name.lower().strip())
    if known:
        return known
    bare, unit = bare_name(name)
    if counter := _COUNTER_SYNONYMS.get(bare) or (bare if bare in COUNTERS_BY_NAME else None):
        return counter, unit
    if found := counter_names().get(bare):
        return found[0], unit or found[1]
    return None


def bare_name(name: str) -> tuple[str, str]:
    """A name in lower case without the unit in or behind it, and that unit ("": none).

    >>> bare_name("utilization.gpu [%]"), bare_name("mem_used_mib")
    (('utilization.gpu', 'percent'), ('mem_used', 'MiB'))
    """
    text = name.strip()
    if len(text) <= _LONGEST and (found := _UNIT_BEHIND.match(text)):
        return found[1].lower().strip(), CELL_UNITS.get(found[2].strip(), "")
    lower = text.lower()
    for end, unit in _UNIT_ENDS.items():
        if lower.endswith(end) and lower not in _COUNTER_SYNONYMS:
            return lower.removesuffix(end), unit
    return lower, ""


def wide_meaning(template: str) -> tuple[str, str] | None:
    """Return the (counter, unit) of a column name in which `{gpu}` stands for the index, or None.

    >>> wide_meaning("gpu{gpu}_power_w")
    ('power_w', 'W')
    """
    rest = re.sub(r"(?i)gpu[ _.\-\[]?\{gpu\}\]?", "", template).strip(" _.-:/")
    return counter_meaning(rest) or counter_meaning(f"gpu_{rest}")


# with blanks, dots and dashes as _, without unit
_HOST_SYNONYMS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("cpu_user", "user_cpu", "cpu_usr", "cpu_time_user"), "cpu_user_s"),
        **dict.fromkeys(("cpu_nice", "nice_cpu", "cpu_time_nice"), "cpu_nice_s"),
        **dict.fromkeys(("cpu_system", "cpu_sys", "system_cpu", "cpu_time_system"), "cpu_system_s"),
        **dict.fromkeys(("cpu_iowait", "cpu_wait", "cpu_time_iowait"), "cpu_iowait_s"),
        **dict.fromkeys(("cpu_idle", "idle_cpu", "cpu_time_idle"), "cpu_idle_s"),
        **dict.fromkeys(("load", "load1", "load_1", "load1m", "load_1m", "loadavg", "load_avg"), "load_average"),
        **dict.fromkeys(("memtotal", "mem_total", "memory_total", "total_memory"), "memory_total_mib"),
        **dict.fromkeys(("memavailable", "mem_available", "mem_avail", "memory_available"), "memory_available_mib"),
        **dict.fromkeys(("rx", "rx_bytes", "network_rx", "net_rx", "bytes_recv", "bytes_received"), "network_rx_bytes"),
        **dict.fromkeys(("tx", "tx_bytes", "network_tx", "net_tx", "bytes_sent"), "network_tx_bytes"),
        **dict.fromkeys(("rx_packets", "packets_recv", "packets_received"), "network_rx_packets"),
        **dict.fromkeys(("tx_packets", "packets_sent"), "network_tx_packets"),
        **dict.fromkeys(("lustre_read", "fs_read", "lustre_read_bytes"), "fs_read_bytes"),
        **dict.fromkeys(("lustre_write", "fs_write", "lustre_write_bytes"), "fs_write_bytes"),
    }
)
_FALLS = 0.02  # share of steps at which a counter may fall: restarts of nodes
_CUMULATIVE = frozenset(counter.name for counter in HOST_COUNTERS if counter.kind is CounterKind.CUMULATIVE)


def host_counter_meaning(name: str) -> tuple[str, str] | None:
    """Return the (host counter, unit) of a column name, or None. The unit is "" where the name does not give it.

    >>> [host_counter_meaning(name) for name in ("CPU user [jiffies]", "MemTotal", "rx_bytes#hsn0", "fan")]
    [('cpu_user_s', 'jiffy'), ('memory_total_mib', 'KiB'), None, None]
    """
    known = host_column_meaning(name)
    if known is not None:
        return None if known.copy else (known.counter, known.unit)
    if column := NODE_VALUES.get(name.lower().strip()):
        return column, ""
    bare, unit = bare_name(name)
    counter = _HOST_SYNONYMS.get(re.sub(r"[ .\-]+", "_", bare))
    return (counter, unit) if counter else None


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


_ROWS = 500
_COLUMNS = 200  # among which a time is looked for
_BYTES = 1 << 18
_DELIMITERS = (",", ";", "\t", "|")
_FORMATS = (
    AUTO, "%d.%m.%Y %H:%M:%S%.f", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p",
    "%Y%m%d %H:%M:%S", "%Y%m%dT%H%M%S", "%a %b %d %H:%M:%S %Y",
)  # fmt: skip

_EXPECTED = {"fraction": "percent"}  # what people write where the project has a fraction


@dataclass(slots=True)
class _Proposal:
    """A mapping in the making."""

    top: list[str] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def text(self, path: Path) -> str:
        lines = [f"# proposed for {json.dumps(path.name)}: check it before use", *self.top, "", *self.sections]
        lines += ["[columns]", *self.columns]
        if self.left:
            lines.append(f"# not recognised: {_comment(listed(self.left, most=40))}")
        return "\n".join(lines) + "\n"


def suggest(path: Path) -> str:
    """Return a commented mapping (TOML) for a file.

    Errors: InputError when the file cannot be read, or none of its columns looks like a time or a counter.
    """
    proposal = _Proposal()
    rows = _sample(path, proposal)
    if not rows.height:
        raise InputError("the file has no rows to judge by", where=str(path), do="name a file with some")
    names = {name: name.lower().strip() for name in rows.columns}
    jobs = {name: JOB_SYNONYMS[low] for name, low in names.items() if low in JOB_SYNONYMS}
    if "job_id" in jobs.values() and "start" in jobs.values():
        _propose_jobs(rows, jobs, proposal)
        return proposal.text(path)
    _propose_samples(rows, proposal, path)
    return proposal.text(path)


def _propose_samples(rows: pl.DataFrame, proposal: _Proposal, path: Path) -> None:
    taken: list[str] = []
    time = _propose_time(rows, proposal, path)
    taken.append(time)
    long = _long_columns(rows, taken)
    wide = {} if long else _wide_columns(rows.columns, taken)
    node_only = not long and not wide and _is_of_nodes(rows.columns)
    proposal.top.append(f'table = "{"node_samples" if node_only else "gpu_samples"}"')
    node = _first_named(rows.columns, NODE_SYNONYMS, taken)
    if node:
        proposal.sections += ["[node]", f"column = {_quoted(node)}", ""]
        taken.append(node)
    else:
        proposal.sections += ["[node]", 'constant = "node"  # the file does not name the node: write its name', ""]
    if not wide and not node_only:
        gpu = _propose_gpu(rows, proposal, taken)
        taken += [gpu] if gpu else []
    if long:
        _propose_long(rows, long, proposal)
    elif wide:
        _propose_wide(rows, wide, proposal)
        taken += [name for names in wide.values() for name in names]
        proposal.left = [name for name in rows.columns if name not in taken and name.lower() not in IGNORED]
    else:
        _propose_columns(rows, proposal, taken, node=node if node_only else None, node_only=node_only)
    if not proposal.columns:
        raise InputError(
            "no column looks like a counter", where=str(path), do=f"it has: {listed(rows.columns)}; write the mapping"
        )


def _is_of_nodes(names: list[str]) -> bool:
    """True where no column is a GPU's number, and more of them count for nodes than for GPUs."""
    if _first_named(names, GPU_NAMES, []):
        return False
    hosts = [name for name in names if host_counter_meaning(name)]
    return len(hosts) > len([name for name in names if counter_meaning(name) and name not in hosts])


def _sample(path: Path, proposal: _Proposal) -> pl.DataFrame:
    """The first rows, and what had to be known to read them, written to the proposal."""
    match format_of(path):
        case "parquet":
            return next(read_parquet(path, list(parquet_columns(path)), rows=_ROWS)).rows
        case "json":
            content, _ = read_json(path)
            keys: list[str] = []
            while isinstance(content, dict):
                lists = [
                    key
                    for key, value in content.items()
                    if isinstance(value, list) and value and isinstance(value[0], dict)
                ]
                inner = lists[:1] or [key for key, value in content.items() if isinstance(value, dict)][:1]
                if not inner:
                    raise InputError("no list of records", where=str(path), do=f"it has: {listed(map(str, content))}")
                keys.append(str(inner[0]))
                content = content[inner[0]]
            if keys:
                proposal.top.append(f"records = {_quoted('.'.join(keys))}")
            rows = content[:_ROWS] if isinstance(content, list) else content
            return records(rows, origin=str(path))
        case "csv":
            layout = _layout(path, proposal)
            rows_of_csv = next(iter(read_csv(path, layout, block_bytes=_BYTES))).rows
            return rows_of_csv.head(_ROWS)


def _layout(path: Path, proposal: _Proposal) -> TableLayout:
    """Encoding, comment, delimiter, header and decimal sign of a CSV file."""
    with open_file(path) as file:
        start = file.read(_BYTES)
    encoding = "utf-8"
    try:
        text = start.decode("utf-8")
    except UnicodeDecodeError as problem:
        if start[:2] in (b"\xff\xfe", b"\xfe\xff"):
            encoding = "utf-16"
        elif problem.start < len(start) - 4:
            encoding = "latin-1"
        text = start.decode(encoding, errors="ignore")
    if encoding != "utf-8":
        proposal.top.append(f'encoding = "{encoding}"')
    lines = [line for line in text.removeprefix("\ufeff").splitlines() if line.strip()]
    comment = "#" if len(lines) > 1 and lines[0].startswith("# ") and not _same_fields(lines[0], lines[1]) else ""
    if comment:
        proposal.top.append('comment = "#"')
        lines = [line for line in lines if not line.startswith("#")]
    if not lines:
        raise InputError("the file holds no line", where=str(path), do="export it again")
    delimiter = _delimiter(lines[:20])
    if delimiter != ",":
        proposal.top.append(f"delimiter = {_quoted(delimiter)}")
    first = [cell.strip().strip('"') for cell in lines[0].split(delimiter)]
    names: tuple[str, ...] = ()
    if any(re.fullmatch(r"[-+]?\d+([.,]\d+)?", cell) for cell in first):
        names = tuple(f"c{number}" for number in range(1, len(first) + 1))
        proposal.top.append(f"names = {json.dumps(list(names))}  # the file has no header line: name its columns")
    if delimiter != "," and any(re.search(rf"(^|{re.escape(delimiter)})\d+,\d+", line) for line in lines[1:20]):
        proposal.top.append('decimal = ","')
    return TableLayout(delimiter, comment, names, encoding)


def _same_fields(one: str, other: str) -> bool:
    """Whether two lines are divided alike: then the first is a header, whatever it starts with."""
    return any(one.count(sign) == other.count(sign) > 0 for sign in _DELIMITERS)


def _delimiter(lines: list[str]) -> str:
    """The sign that divides each of the lines into the same number of fields, most fields first."""
    counts = {sign: {line.count(sign) for line in lines} for sign in _DELIMITERS}
    steady = {sign: min(seen) for sign, seen in counts.items() if len(seen) == 1 and min(seen) > 0}
    if steady:
        return max(steady, key=lambda sign: steady[sign])
    return max(_DELIMITERS, key=lines[0].count)


def _propose_time(rows: pl.DataFrame, proposal: _Proposal, path: Path) -> str:
    """The time column and its format, written as a section."""
    named = [name for word in TIME_SYNONYMS for name in rows.columns if name.lower().strip() == word]
    others = [name for name in rows.columns if name not in named and not GPU_IN_NAME.search(name)]
    for name in (*named, *others)[:_COLUMNS]:
        form = _time_format(rows.get_column(name))
        if form is None:
            continue
        proposal.sections += ["[time]", f"column = {_quoted(name)}"]
        if form != AUTO:
            proposal.sections.append(f"format = {_quoted(form)}" + _either_way(rows.get_column(name), form))
        proposal.sections += ['# zone = "Europe/Berlin"  # of times written without one; default: the site\'s', ""]
        return name
    raise InputError("no column looks like a time", where=str(path), do=f"it has: {listed(rows.columns)}")


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


def _propose_gpu(rows: pl.DataFrame, proposal: _Proposal, taken: list[str]) -> str | None:
    name = _first_named(rows.columns, GPU_SYNONYMS, taken)
    if name is None:
        proposal.sections += ["[gpu]", "constant = 0  # the file does not name the GPU", ""]
        return None
    proposal.sections += ["[gpu]", f"column = {_quoted(name)}"]
    text = stripped(rows.get_column(name)).drop_nulls()
    if len(text) and not text.str.contains(r"^\d+$").all():
        proposal.sections.append(r"pattern = '(\d+)$'")
    proposal.sections.append("")
    return name


def _first_named(names: Iterable[str], words: Iterable[str], taken: list[str]) -> str | None:
    lower = {name.lower().strip(): name for name in reversed(list(names)) if name not in taken}
    return next((lower[word] for word in words if word in lower), None)


def _propose_columns(
    rows: pl.DataFrame, proposal: _Proposal, taken: list[str], *, node: str | None, node_only: bool
) -> None:
    done: set[str] = set()
    for name in rows.columns:
        if name in taken:
            continue
        known = host_counter_meaning(name) if node_only else counter_meaning(name)
        values = rows.get_column(name)
        if known and node_only and not only_grows(known[0], values, rows.get_column(node) if node else None):
            proposal.left.append(f"{name} (it falls: no counter)")
        elif known is None or known[0] in done:
            if name.lower().strip() not in IGNORED:
                proposal.left.append(name)
        else:
            proposal.columns.append(_host_line(name, *known) if node_only else _line(name, known, values))
            done.add(known[0])


def _host_line(name: str, counter: str, unit: str) -> str:
    """One line under [columns] of node_samples."""
    if not unit or unit == HOST_UNITS[counter]:
        return f'{_quoted(name)} = "{counter}"'
    return f'{_quoted(name)} = {{ to = "{counter}", unit = "{unit}" }}'


def _line(name: str, known: tuple[str, str], values: pl.Series) -> str:
    """One line under [columns]."""
    counter, unit = known
    remark = ""
    wanted = COUNTERS_BY_NAME[counter].unit
    if not unit and wanted in _EXPECTED:
        peak = numbers(values.rename("v"), wanted=_EXPECTED[wanted]).values.cast(pl.Float64).max()
        if isinstance(peak, float) and peak <= 1:
            unit, remark = wanted, "  # no value is above 1: a fraction, or percent of a GPU that was idle?"
        else:
            unit = _EXPECTED[wanted]
    if not unit and counter == "energy_j":
        unit, remark = "J", "  # or mJ, Wh: not given by the name"
    written = f', unit = "{unit}"' if unit and unit != wanted else ""
    return f'{_quoted(name)} = {{ to = "{counter}"{written} }}{remark}'


def _wide_columns(names: Iterable[str], taken: list[str]) -> dict[str, list[str]]:
    """{name with {gpu}: the columns it stands for}, of those that are counters."""
    found: dict[str, list[str]] = {}
    for name in names:
        match = GPU_IN_NAME.search(name)
        if name in taken or match is None:
            continue
        template = name[: match.start(1)] + "{gpu}" + name[match.end(1) :]
        if wide_meaning(template) and "{" not in name:
            found.setdefault(template, []).append(name)
    return found


def _propose_wide(rows: pl.DataFrame, wide: Mapping[str, list[str]], proposal: _Proposal) -> None:
    done: set[str] = set()
    for template, names in wide.items():
        known = wide_meaning(template)
        if known is None or known[0] in done:
            proposal.left += names
            continue
        done.add(known[0])
        values = pl.concat([stripped(rows.get_column(name)).alias("v") for name in names])
        proposal.columns.append(_line(template, known, values))


def _long_columns(rows: pl.DataFrame, taken: list[str]) -> tuple[str, str] | None:
    """(column with the names of counters, column with the values) of a long file, or None."""
    metric = _first_named(rows.columns, ("metric", "__name__", "counter", "metric_name", "field", "name"), taken)
    value = _first_named(rows.columns, ("value", "values", "val"), taken)
    if metric is None or value is None or rows.schema[metric] != pl.String:
        return None
    known = [
        name for name in stripped(rows.get_column(metric)).drop_nulls().unique().to_list() if counter_meaning(name)
    ]
    return (metric, value) if known else None


def _propose_long(rows: pl.DataFrame, long: tuple[str, str], proposal: _Proposal) -> None:
    metric, value = long
    proposal.sections += ["[metric]", f"column = {_quoted(metric)}", f"value = {_quoted(value)}", ""]
    text = stripped(rows.get_column(metric))
    for name in text.drop_nulls().unique(maintain_order=True).to_list():
        known, here = counter_meaning(name), (text == name).fill_null(value=False)
        if known is None:
            proposal.left.append(name)
        else:
            proposal.columns.append(_line(name, known, rows.get_column(value).filter(here)))


def _propose_jobs(rows: pl.DataFrame, jobs: Mapping[str, str], proposal: _Proposal) -> None:
    proposal.top.append('table = "jobs"')
    start = next(name for name, to in jobs.items() if to == "start")
    form = _time_format(rows.get_column(start))
    proposal.sections.append("[time]")
    if form not in (AUTO, None):
        proposal.sections.append(f"format = {_quoted(str(form))}" + _either_way(rows.get_column(start), str(form)))
    proposal.sections += ['# zone = "Europe/Berlin"  # of times written without one; default: the site\'s', ""]
    done: set[str] = set()
    for name, to in jobs.items():
        if to in done:
            proposal.left.append(name)
            continue
        done.add(to)
        clock = to == "elapsed_s" and bool(stripped(rows.get_column(name)).str.contains(":").any())
        unit = ', unit = "duration"' if clock else ""
        proposal.columns.append(f'{_quoted(name)} = {{ to = "{to}"{unit} }}')
    proposal.left += [name for name in rows.columns if name not in jobs and name.lower() not in IGNORED]


def _quoted(text: str) -> str:
    """A TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _comment(text: str) -> str:
    return re.sub(r"[\x00-\x1f\x7f]", "?", text)
