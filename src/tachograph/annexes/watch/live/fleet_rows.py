"""GPUs of the fleet as rows: values by column, filter terms, order and groups."""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from types import MappingProxyType

import numpy as np

from tachograph.annexes.watch.live.looks import HELD, LOOKS, MISSING, count_marks, looks
from tachograph.annexes.watch.live.snapshot import GpuAllocation, GpuId
from tachograph.annexes.watch.live.unsupported import absent_counters
from tachograph.annexes.watch.live.view import FleetView
from tachograph.catalog.arrays import Bytes, Flags, Floats, Ints, Longs
from tachograph.catalog.counters import COUNTERS_BY_NAME as COUNTERS
from tachograph.catalog.errors import UsageError
from tachograph.catalog.suggestions import did_you_mean
from tachograph.catalog.units import printable
from tachograph.judge.health import STATES, WORST_FIRST
from tachograph.judge.workload.classes import WORKLOAD_CLASSES, WORKLOAD_CODES, bottleneck

# short name of a number -> counter; `real`, `mem` and `age` are not counters
COLUMN_ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "util": "gpu_util",
        "sm": "sm_active",
        "occ": "sm_occupancy",
        "tensor": "tensor_active",
        "dram": "dram_active",
        "fp64": "fp64_active",
        "fp32": "fp32_active",
        "fp16": "fp16_active",
        "power": "power_w",
        "temp": "gpu_temp_c",
        "memtemp": "mem_temp_c",
        "clock": "sm_clock_mhz",
        "rx": "pcie_rx_bytes_per_s",
        "tx": "pcie_tx_bytes_per_s",
    }
)
NUMBERS = ("real", *COLUMN_ALIASES, "mem", "nvlink", "held", "age")
TEXTS = ("gpu", "node", "job", "user", "class", "health", "model")
# groupings of the screen, in the order of the key
GROUPS = ("node", "job", "user", "class")
GIB = 1024.0  # MiB
NVLINK = ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s")
NO_JOB = "free"  # in place of a job: it is reported that none holds the GPU
_HEALTH_RANK = np.array([len(STATES) - WORST_FIRST.index(state) for state in STATES], np.float64)


def absent_columns(view: FleetView) -> frozenset[str]:
    """Return the columns of numbers that the exporter has no metric for."""
    absent = absent_counters(view.about)
    columns = {name for name, counter in COLUMN_ALIASES.items() if counter in absent}
    return frozenset({*columns, *(["nvlink"] if absent.issuperset(NVLINK) else [])})


class FleetRows:
    """One row per GPU of a view; missing: "" or NaN. Columns are computed on demand.

    before: the rows of an earlier view, whose unchanged values are reused.
    """

    def __init__(self, view: FleetView, before: FleetRows | None = None) -> None:
        self.view = view
        self.gpus = view.snapshot.gpus
        has_same_gpus = before is not None and before.gpus == self.gpus
        self._roster: _Roster = (
            before._roster if before is not None and has_same_gpus else _Roster(self.gpus)
        )
        self._held = [view.snapshot.allocations.get(gpu) for gpu in self.gpus]
        self._numbers: dict[str, Floats] = {}
        self._listed: dict[str, list[float]] = {}
        self._texts: dict[str, Sequence[str]] = {}
        if before is not None and has_same_gpus:
            self._texts = self._unchanged_texts(before)

    def __len__(self) -> int:
        """Number of GPUs."""
        return len(self.gpus)

    def number(self, name: str) -> Floats:
        """Return one of NUMBERS or a counter, in its unit (mem in GiB, held and age in s).

        Errors: UsageError naming the closest.
        """
        column = self._numbers.get(name)
        if column is None:
            column = self._numbers[name] = self._number(number_name(name))
        return column

    def value(self, name: str, row: int) -> float:
        """Return a number of one GPU, as `number`."""
        listed = self._listed.get(name)
        if listed is None:
            listed = self._listed[name] = self.number(name).tolist()
        return listed[row]

    def text(self, name: str) -> Sequence[str]:
        """Return a column of texts, one of TEXTS."""
        column = self._texts.get(name)
        if column is None:
            column = self._texts[name] = self._text(name)
        return column

    @cached_property
    def health_rank(self) -> Floats:
        """Severity of health; the worst is the highest."""
        return _HEALTH_RANK[self.view.health]

    def _unchanged_texts(self, before: FleetRows) -> dict[str, Sequence[str]]:
        """Return columns of an earlier view of the same GPUs that are the same now.

        Jobs, users and models rarely change, and to write them out is most of the work of a view.
        """
        snapshot, earlier = self.view.snapshot, before.view.snapshot
        unchanged: list[str] = []
        if self._held == before._held and _is_same(snapshot.free, earlier.free):
            unchanged += ("job", "user")
        if _is_same(snapshot.devices, earlier.devices):
            unchanged.append("model")
        return {name: before._texts[name] for name in unchanged if name in before._texts}

    @cached_property
    def memory_gib(self) -> Floats:
        """Total memory, as far as reported."""
        snapshot = self.view.snapshot
        capacity = np.array(
            [snapshot.device(row).hbm_mib for row in range(len(self.gpus))], np.float64
        )
        both = snapshot.column("hbm_used_mib") + snapshot.column("hbm_free_mib")
        return np.where(np.isnan(capacity), both, capacity) / GIB

    @cached_property
    def looks(self) -> Bytes:
        """Index of each GPU in LOOKS: its class, or idle by its allocation."""
        return looks(self.view)

    def worst_health(self, rows: Longs) -> str:
        """Return the worst state of health of some rows."""
        return self.text("health")[int(rows[np.argmax(self.health_rank[rows])])]

    def marks(self, rows: Longs) -> dict[str, int]:
        """Return {letter: number of some rows}, those that occur."""
        counts = count_marks(self.looks[rows])
        return {mark: count for mark, count in counts.items() if count}

    @property
    def rank(self) -> Ints:
        """Rank of each GPU by name, numbers in names compared as numbers."""
        return self._roster.ranks

    def _number(self, name: str) -> Floats:
        snapshot = self.view.snapshot
        match name:
            case "real":
                return self.view.real
            case "age":
                return self.view.stale_s
            case "mem":
                return snapshot.column("hbm_used_mib") / GIB
            case "nvlink":
                return snapshot.column("nvlink_tx_bytes_per_s") + snapshot.column(
                    "nvlink_rx_bytes_per_s"
                )
            case "held":
                since = [None if held is None else held.since for held in self._held]
                return snapshot.t - np.array(since, np.float64)
            case _:
                return snapshot.column(COLUMN_ALIASES.get(name, name))

    def _text(self, name: str) -> Sequence[str]:
        snapshot = self.view.snapshot
        match name:
            case "gpu":
                return self._roster.names
            case "node":
                return self._roster.nodes
            case "job":
                return [
                    self._job_text(gpu, held)
                    for gpu, held in zip(self.gpus, self._held, strict=True)
                ]
            case "user":
                return [printable((held.user if held else None) or "") for held in self._held]
            case "class":
                return [WORKLOAD_CLASSES[label] for label in self.view.labels.tolist()]
            case "health":
                return [STATES[state] for state in self.view.health.tolist()]
            case "model":
                models = [snapshot.device(row).model for row in range(len(self.gpus))]
                return [printable(model or "") for model in models]
            case _:
                raise no_column(name)

    def _job_text(self, gpu: GpuId, held: GpuAllocation | None) -> str:
        name = held.name_on(gpu) if held is not None else ""
        return printable(name or (NO_JOB if gpu in self.view.snapshot.free else ""))


def _is_same(facts: object, before: object) -> bool:
    """Return whether facts are equal; sources that did not read them again give the same object."""
    return facts is before or facts == before


def number_name(name: str) -> str:
    """Return the column name of numbers for a written name.

    Errors: UsageError for an unknown name, suggesting the closest.
    """
    if name in NUMBERS or name in COUNTERS:
        return name
    raise no_column(name)


def no_column(name: str) -> UsageError:
    """Return the error for an unknown column."""
    do = did_you_mean(name, [*TEXTS, *NUMBERS, *COUNTERS], otherwise="Tab lists them")
    return UsageError(f"unknown column {name!r}", do=do)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Return the sort key of names, so that nid9 is before nid10.

    >>> sorted(["nid10", "nid9", "x"], key=natural)
    ['nid9', 'nid10', 'x']
    """
    parts = ((part, part.lstrip("0")) for part in re.findall(r"[0-9]+|[^0-9]+", name))
    # digits as text, the longer number the larger: `int` rejects thousands of them
    return tuple(
        (0, len(digits), digits) if "0" <= part[0] <= "9" else (1, 0, part)
        for part, digits in parts
    )


class _Roster:
    """Values that rarely change: names of GPUs and their ranks."""

    def __init__(self, gpus: tuple[GpuId, ...]) -> None:
        self.gpus = gpus
        self.names = tuple(printable(gpu.name) for gpu in gpus)
        self.nodes = tuple(printable(gpu.host) for gpu in gpus)
        order = {node: index for index, node in enumerate(sorted(set(self.nodes), key=natural))}
        # a whole GPU is before its slices
        keys = [(order[node], *gpu.order()[2:]) for node, gpu in zip(self.nodes, gpus, strict=True)]
        self.ranks: Ints = np.empty(len(gpus), np.int32)
        self.ranks[sorted(range(len(gpus)), key=keys.__getitem__)] = range(len(gpus))


_COMPARE: Mapping[str, Callable[[Floats, float], Flags]] = MappingProxyType(
    {
        "=": operator.eq,
        "!=": lambda values, bound: (values != bound) & ~np.isnan(values),
        "<": operator.lt,
        "<=": operator.le,
        ">": operator.gt,
        ">=": operator.ge,
    }
)
_TERM = re.compile(r"^([A-Za-z_][\w]*)(!=|<=|>=|=|<|>)(.*)$")
_NUMBER = re.compile(r"^(-?\d+(?:\.\d*)?|\.\d+)\s*(%|[kMGTs]?|min|h)$")
_SIZES = MappingProxyType(
    {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "s": 1.0, "min": 60.0, "h": 3600.0}
)
_PERCENT = MappingProxyType({"": 0.01, "%": 0.01})
_GIB = MappingProxyType({"": 1.0, "G": 1.0, "M": 1 / 1024, "T": 1024.0})
# columns in which a word without a column is searched
_ANYWHERE = ("gpu", "job", "user", "class", "health")


@dataclass(frozen=True, slots=True)
class FilterTerm:
    """One term. column: "" for a word in any column. bound: number, NaN for text or missing."""

    column: str
    compare: str
    text: str
    bound: float = float("nan")


def parse_filter(written: str) -> tuple[FilterTerm, ...]:
    """Return the terms of a filter.

    >>> [(term.column, term.compare, term.text, term.bound) for term in parse_filter("ana sm<20")]
    [('', '=', 'ana', nan), ('sm', '<', '20', 0.2)]

    Errors: UsageError for an unknown column, or an invalid number.
    """
    try:
        words = shlex.split(written)
    except ValueError as error:
        raise UsageError(
            f"invalid filter {written!r}: {error}", do="close the quotation mark"
        ) from None
    return tuple(_term(word) for word in words)


def matching(rows: FleetRows, terms: tuple[FilterTerm, ...]) -> Flags:
    """Return which rows match every term."""
    matches: Flags = np.ones(len(rows), np.bool_)
    for term in terms:
        matches &= _holds(rows, term)
    return matches


def _term(word: str) -> FilterTerm:
    match = _TERM.match(word)
    if match is None:
        return (
            FilterTerm("", "!=", word[1:])
            if word.startswith("!") and len(word) > 1
            else FilterTerm("", "=", word)
        )
    column, compare, text = match[1].lower(), match[2], match[3]
    if column in TEXTS:
        if compare not in ("=", "!="):
            raise UsageError(
                f"{column} is text and has no {compare}",
                do=f"write {column}={text} or {column}!={text}",
            )
        return FilterTerm(column, compare, text)
    number_name(column)
    return (
        FilterTerm(column, compare, text)
        if text == MISSING
        else FilterTerm(column, compare, text, _bound(column, text))
    )


def _bound(column: str, text: str) -> float:
    match = _NUMBER.match(text)
    if match is None:
        raise UsageError(
            f"invalid number {text!r}", do=f"write {column}<20, or {column}=- for what is missing"
        )
    counter = COUNTERS.get(COLUMN_ALIASES.get(column, column))
    fraction = column == "real" or (counter is not None and counter.unit == "fraction")
    sizes = _GIB if column == "mem" else _SIZES
    if fraction:
        sizes = _PERCENT
    if match[2] not in sizes:
        raise UsageError(f"{column} has no unit {match[2]}", do=f"write {column}>{match[1]}")
    return float(match[1]) * sizes[match[2]]


def _holds(rows: FleetRows, term: FilterTerm) -> Flags:
    if term.column in TEXTS or not term.column:
        matches = _of_text(rows, term)
        return ~matches if term.compare == "!=" else matches
    values = rows.number(term.column)
    if term.text == MISSING:
        return np.isnan(values) if term.compare == "=" else ~np.isnan(values)
    return _COMPARE[term.compare](values, term.bound)


def _of_text(rows: FleetRows, term: FilterTerm) -> Flags:
    searched = term.text.lower()
    if not term.column:
        matches: Flags = np.zeros(len(rows), np.bool_)
        for column in _ANYWHERE:
            matches |= np.array([searched in text for text in _lowered(rows, column)], np.bool_)
        return matches
    if term.column == "class":
        named = [
            _is_class(name, code, searched)
            for name, code in zip(WORKLOAD_CLASSES, WORKLOAD_CODES, strict=True)
        ]
        idle = named[WORKLOAD_CLASSES.index("idle")]
        of_allocations = [
            idle or searched in (look.name, look.name.split()[0]) for look in LOOKS[HELD:]
        ]
        return np.array([*named, *of_allocations], np.bool_)[rows.looks]
    texts = _lowered(rows, term.column)
    if searched == MISSING:
        return np.array([text in ("", NO_JOB) for text in texts], np.bool_)
    if "*" in searched:
        return np.array([fnmatchcase(text, searched) for text in texts], np.bool_)
    # Jobs that share a GPU.
    return np.array([text == searched or searched in text.split(",") for text in texts], np.bool_)


def _is_class(name: str, code: str, searched: str) -> bool:
    return fnmatchcase(name.lower(), searched) or searched in (code, bottleneck(name))


def _lowered(rows: FleetRows, column: str) -> list[str]:
    return [text.lower() for text in rows.text(column)]


@dataclass(frozen=True, slots=True)
class FleetGroup:
    """A group of GPUs. name: "" if not reported. rows: in order."""

    name: str
    rows: Longs
    folded: bool = False


Line = int | FleetGroup  # the row of a GPU, or a heading


def sort_name(name: str) -> str:
    """Return the name of a column that can be sorted by.

    Errors: UsageError for an unknown column.
    """
    return name if name in TEXTS else number_name(name)


def direction(by: str, *, reverse: bool) -> str:
    """Return which GPUs are first in the order by a column.

    >>> direction("power", reverse=True), direction("health", reverse=False), direction("user", reverse=True)
    ('smallest first', 'worst first', 'Z to A')
    """
    if by in TEXTS:
        forward, backward = (
            ("worst first", "best first") if by == "health" else ("A to Z", "Z to A")
        )
    else:
        forward, backward = "largest first", "smallest first"
    return backward if reverse else forward


def sorted_rows(rows: FleetRows, by: str, *, reverse: bool = False) -> Longs:
    """Return all rows sorted: names ascending, numbers descending, worst health first.

    What is missing is last either way. Errors: UsageError for an unknown column.
    """
    keys = _sort_keys(rows, by)
    return np.lexsort((rows.rank, -keys if reverse else keys))


def _sort_keys(rows: FleetRows, by: str) -> Floats:
    """Ascending keys, NaN for missing values, which `lexsort` puts last."""
    if by in ("gpu", "node"):
        return rows.rank.astype(np.float64)
    if by == "health":
        return -rows.health_rank
    if by not in TEXTS:
        return -rows.number(sort_name(by))
    texts = rows.text(by)
    names = sorted({*texts} - {""}, key=natural)
    ranks = {name: float(rank) for rank, name in enumerate(names)}
    return np.array([ranks.get(text, np.nan) for text in texts], np.float64)


def groups_of(texts: Sequence[str], ordered: Longs) -> list[FleetGroup]:
    """Return rows with the same text, in the order of their first; those without one are last."""
    members: dict[str, list[int]] = {}
    for row in ordered.tolist():
        members.setdefault(texts[row], []).append(row)
    names = [name for name in members if name] + [name for name in members if not name]
    return [FleetGroup(name, np.array(members[name], np.int64)) for name in names]


def fleet_lines(
    rows: FleetRows,
    *,
    by: str = "gpu",
    reverse: bool = False,
    shown: Flags | None = None,
    group: str = "",
    folded: Collection[str] = (),
) -> list[Line]:
    """Return the lines. shown: rows that pass the filter; group: "" for none; folded: groups."""
    ordered = sorted_rows(rows, by, reverse=reverse)
    if shown is not None:
        ordered = ordered[shown[ordered]]
    if not group:
        return list(ordered.tolist())
    lines: list[Line] = []
    for members in groups_of(rows.text(group), ordered):
        if members.name in folded:
            lines.append(replace(members, folded=True))
        else:
            lines += (members, *members.rows.tolist())
    return lines
