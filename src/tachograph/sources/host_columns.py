"""Host counters in the columns and rows of LDMS samplers: which column is which, and what a node's come to.

A sampler writes a counter once (`MemTotal`), once per interface, file system or core in columns of their own
(`rx_bytes#hsn0`, `client.lstats.read_bytes#llite.scratch`, `per_core_user0`), or in a row each (`lustre_client`,
`procstat2`). Copies are added up; where the sum itself is written, it is taken. The loopback is left out, and so is
what Lustre's OSC and MDC count below the file system.

Sources: the samplers of ovis-hpc/ldms (procstat, procstat2, meminfo, loadavg, procnetdev, lustre_client,
lustre2_client, papi) and their manual pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import polars as pl

from tachograph.host_counters import HOST_COUNTERS

# what tells the rows of one node and time apart, in order of preference, lower case
INSTANCE_NAMES = ("llite", "fs_name", "iface", "interface", "cpu", "name", "instance", "instance_name")
_ALIASES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"procstat": ("procstat2",), "procnetdev": ("procnetdev2",), "papi": ("papi_sampler",)}
)
# words that mean other things elsewhere: understood where the file or the column names the sampler
_AMBIGUOUS = frozenset({"user", "nice", "sys", "system", "idle", "iowait", "read_bytes", "write_bytes"})
_PREFIXES = ("", "ldms_", "nersc_ldms_")
_LUSTRE2_PREFIX = "client.lstats."
_PER_CORE = re.compile(r"^(?:per_core_(?P<core>[a-z_]+?)|(?P<papi>papi_[a-z0-9]+_[a-z]+))[._\[#]?(?P<copy>\d+)\]?$")
_TOTALS = ("cpu",)  # procstat2's row of the sum, beside cpu0, cpu1, ...
_LEFT_OUT = re.compile(r"^(lo\d*|(osc|mdc)\..*)$")
_SECOND = "second"
_LOAD = "load_average"
UNITS: Mapping[str, str] = MappingProxyType({counter.name: counter.unit for counter in HOST_COUNTERS})


@dataclass(frozen=True, slots=True)
class HostColumns:
    """The columns of a file whose sum is one counter, and the unit they are written in."""

    columns: tuple[str, ...]
    unit: str


@dataclass(frozen=True, slots=True)
class Meaning:
    """What one column is: the counter, which copy of it ("": the node's own), its unit."""

    counter: str
    copy: str
    unit: str


def sampler_of(path: Path) -> str:
    """Return the sampler that a file's name, or its folder's, tells; "" where neither does.

    >>> sampler_of(Path("csv/procstat-1763700000")), sampler_of(Path("procnetdev2/n1.csv")), sampler_of(Path("a.csv"))
    ('procstat', 'procnetdev', '')
    """
    for text in (path.name.lower(), path.parent.name.lower()):
        words = set(re.split(r"[^a-z0-9_]+", text)) | set(re.split(r"[^a-z0-9]+", text))
        for sampler in _samplers():
            if words & {sampler, *_ALIASES.get(sampler, ())}:
                return sampler
    return ""


@cache
def _samplers() -> tuple[str, ...]:
    return tuple(dict.fromkeys(sampler for counter in HOST_COUNTERS for sampler, _ in counter.ldms))


def meaning(name: str, sampler: str = "") -> Meaning | None:
    """Return what a column of a sampler means, or None. `sampler`: the one that the file is known to hold.

    >>> meaning("rx_bytes#hsn0")
    Meaning(counter='network_rx_bytes', copy='hsn0', unit='B')
    >>> meaning("user"), meaning("user", "procstat")
    (None, Meaning(counter='cpu_user_s', copy='', unit='jiffy'))
    """
    lower = name.lower().strip()
    if lower in UNITS:
        return Meaning(lower, "", UNITS[lower])
    if found := _names().get(lower) or _bare_names().get((sampler, lower)):
        return Meaning(found[0], "", found[1])
    base, _, copy = lower.partition("#")
    if split := _PER_CORE.match(lower):
        base, copy = split["core"] or split["papi"], split["copy"]
    if not copy:
        return None
    found = _names().get(base) or next((what for (_, metric), what in _bare_names().items() if metric == base), None)
    return Meaning(found[0], copy, found[1]) if found else None


@cache
def _names() -> Mapping[str, tuple[str, str]]:
    """{name in lower case that needs no sampler beside it: (counter, unit)}"""
    names: dict[str, tuple[str, str]] = {}
    for counter in HOST_COUNTERS:
        for sampler, metric in counter.ldms:
            what = (counter.name, counter.ldms_unit or counter.unit)
            for spelled in {metric.lower(), metric.lower().replace(".", "_")}:
                for of in (sampler, *_ALIASES.get(sampler, ())):
                    names |= {f"{prefix}{of}{sign}{spelled}": what for prefix in _PREFIXES for sign in "_.:"}
                names[_LUSTRE2_PREFIX + spelled] = what
                if spelled not in _AMBIGUOUS:
                    names[spelled] = what
    return MappingProxyType(names)


@cache
def _bare_names() -> Mapping[tuple[str, str], tuple[str, str]]:
    """{(sampler, metric in lower case): (counter, unit)}"""
    names: dict[tuple[str, str], tuple[str, str]] = {}
    for counter in HOST_COUNTERS:
        for sampler, metric in counter.ldms:
            what = (counter.name, counter.ldms_unit or counter.unit)
            of = [sampler, *(known for known, others in _ALIASES.items() if sampler in others)]
            names |= {(known, metric.lower()): what for known in of}
    return MappingProxyType(names)


def gathered(found: Iterable[tuple[str, Meaning]]) -> tuple[dict[str, HostColumns], list[str]]:
    """Return {counter: its columns}, and the columns that repeat one.

    Where the node's own value is there, its copies (per core) are part of it and not taken.
    """
    copies: dict[str, dict[str, tuple[str, str]]] = {}
    repeated: list[str] = []
    for name, means in found:
        of_counter = copies.setdefault(means.counter, {})
        if means.copy in of_counter:
            repeated.append(name)
        else:
            of_counter[means.copy] = (name, means.unit)
    taken: dict[str, HostColumns] = {}
    for counter, of_counter in copies.items():
        kept = [of_counter[""]] if "" in of_counter else [of_counter[c] for c in of_counter if not _LEFT_OUT.match(c)]
        if kept:
            taken[counter] = HostColumns(tuple(name for name, _ in kept), kept[0][1])
    return taken, repeated


def host_values(rows: pl.DataFrame, host: Mapping[str, HostColumns], instance: pl.Series | None) -> pl.DataFrame:
    """Return the counters of nodes, one row per row of `rows`, or per node and second where rows are told apart.

    Grain: `rows` holds t, node and the columns of `host`. A copy that was not read at some time counts with its value
    before (at the begin, with its first): a sum that fell or jumped because one was missing would look like a reset,
    or like traffic. Null where no copy was ever read.
    """
    told_apart = instance is not None and _is_several(rows["node"], instance)
    alone = pl.repeat(None, rows.height, dtype=pl.String, eager=True)
    of = (instance.cast(pl.String) if instance is not None and told_apart else alone).alias("instance")
    keyed = rows.with_columns(of)
    values = [_added_up(keyed, found.columns).alias(counter) for counter, found in host.items()]
    made = keyed.select("t", "node", "instance").with_columns(_hundredths(v, host) for v in values)
    return _over_instances(made, list(host)) if told_apart else made.drop("instance")


def _is_several(nodes: pl.Series, instances: pl.Series) -> bool:
    """True when some node has rows of several instances."""
    pairs = pl.DataFrame([nodes.alias("node"), instances.alias("instance")]).drop_nulls()
    return pairs.n_unique() > pairs["node"].n_unique()


def _hundredths(values: pl.Series, host: Mapping[str, HostColumns]) -> pl.Series:
    """Loads as they are: `loadavg` writes hundredths, as whole numbers, unless told otherwise."""
    if values.name != _LOAD or host[_LOAD].columns == (_LOAD,):
        return values
    numbers = values.cast(pl.Float64, strict=False)
    whole = bool((numbers == numbers.round()).all())
    return numbers / 100 if whole else values


def _added_up(rows: pl.DataFrame, columns: Sequence[str]) -> pl.Series:
    """The sum of columns; one alone stays as it is written."""
    if len(columns) == 1:
        return rows.get_column(columns[0])
    filled = rows.select(
        _number(rows, name).forward_fill().backward_fill().over("node", "instance", order_by="t").alias(name)
        for name in columns
    )
    nothing = pl.all_horizontal(pl.col(columns).is_null())
    return filled.select(_sum(pl.sum_horizontal(columns), nothing).alias("sum")).to_series()


def _number(rows: pl.DataFrame, name: str) -> pl.Expr:
    text = rows.schema[name] == pl.String
    return (pl.col(name).str.strip_chars() if text else pl.col(name)).cast(pl.Float64, strict=False)


def _sum(total: pl.Expr, nothing: pl.Expr) -> pl.Expr:
    return pl.when(~nothing).then(total)


def _over_instances(rows: pl.DataFrame, counters: list[str]) -> pl.DataFrame:
    """One row per node and second: the sum over what the rows are told apart by."""
    name = pl.col("instance").cast(pl.String).str.to_lowercase()
    total = name.is_in(_TOTALS)
    kept = rows.with_columns(total.any().over("node").alias("summed"), name.alias("instance"))
    kept = kept.filter(pl.when("summed").then(total).otherwise(~name.str.contains(_LEFT_OUT.pattern)))
    numbers = [_number(kept, counter).alias(counter) for counter in counters]
    timed = kept.with_columns(numbers).with_columns(pl.col("t").dt.truncate("1s").alias(_SECOND))
    each = timed.group_by("node", _SECOND, "instance").agg(pl.col(counters).drop_nulls().last())
    times = timed.group_by("node", _SECOND).agg(pl.col("t").max())
    grid = times.join(timed.select("node", "instance").unique(), on="node")
    full = grid.join(each, on=["node", _SECOND, "instance"], how="left").with_columns(
        pl.col(counters).forward_fill().backward_fill().over("node", "instance", order_by="t")
    )
    sums = [_sum(pl.col(counter).sum(), pl.col(counter).is_null().all()).alias(counter) for counter in counters]
    return full.group_by("node", "t").agg(sums).sort("node", "t").select("t", "node", *counters)
