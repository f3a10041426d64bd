"""Values of an expression of many jobs at once, in flat arrays.

Each job has one value, a value for each of its ranks, or a list; a column holds them one job behind
the other, whatever they are, so that an operation works on all of them together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tachograph.catalog.arrays import Bytes, Flags, Floats, Longs
from tachograph.judge.rules.model import RulePair

# What the value of a job is: a single one, one for each rank, or a list, a value of all ranks.
SINGLE, RANKS, LIST = 0, 1, 2


class RankValues(list[Any]):
    """One value per rank; a plain list is one value, of all ranks together."""


@dataclass(frozen=True, eq=False)
class ColumnShape:
    """What the value of each job is, and how many slots it takes: 1 of a single value."""

    forms: Bytes
    counts: Longs

    @cached_property
    def starts(self) -> Longs:
        """The first slot of each job, and behind the last their number."""
        return np.concatenate(([0], np.cumsum(self.counts)))

    @cached_property
    def owners(self) -> Longs:
        """The index of the job of each slot."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    @cached_property
    def is_single(self) -> bool:
        """Whether no job has several values."""
        return not self.forms.any()

    @cached_property
    def as_list(self) -> ColumnShape:
        """The same with lists in place of values for each rank."""
        return ColumnShape(np.where(self.forms == RANKS, LIST, self.forms), self.counts)

    def jobs_of(self, slots: Flags) -> Flags:
        """Return which jobs have one of the slots."""
        if self.is_single:
            return slots
        jobs = np.zeros(len(self.counts), bool)
        jobs[self.owners[slots]] = True
        return jobs

    def slots_for(self, counts: Longs, many: Flags) -> Longs:
        """Return the slots that give each job `counts` values: its own ones, or its first again.

        `many`: jobs whose own ones count.
        """
        owners = np.repeat(np.arange(len(counts)), counts)
        position = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.starts[owners] + np.where(many[owners], position, 0)


@dataclass(frozen=True, slots=True, eq=False)
class RuleColumn:
    """Values of all jobs. `kind`: float, bool, str or RulePair; None: all are unknown.

    values: by slot, anything where one is not `known`. parts: both columns of pairs.
    """

    shape: ColumnShape
    kind: type | None
    known: Flags
    values: Any
    parts: tuple[RuleColumn, ...] = ()

    def take(self, slots: Longs, shape: ColumnShape) -> RuleColumn:
        """Return the values of some slots; those that do not exist are unknown."""
        exists = slots < len(self.known)
        if not exists.all():
            slots = np.where(exists, slots, -1)
        if not len(self.known):
            return unknown_column(shape)
        return RuleColumn(
            shape,
            self.kind,
            self.known[slots] & exists,
            self.values[slots],
            tuple([part.take(slots, shape) for part in self.parts]),
        )

    def only(self, jobs: Flags) -> RuleColumn:
        """Return the column with one unknown value for all but these jobs."""
        if jobs.all():
            return self
        counts = np.where(jobs, self.shape.counts, 1)
        shape = ColumnShape(np.where(jobs, self.shape.forms, SINGLE), counts)
        column = self.take(self.shape.slots_for(counts, jobs), shape)
        return replace(column, known=column.known & jobs[shape.owners])

    def of_job(self, index: int) -> Any:
        """Return the value of one job; None: unknown."""
        first, last = self.shape.starts[index : index + 2]
        values = [self._item(slot) for slot in range(first, last)]
        form = self.shape.forms[index]
        if form == SINGLE:
            return values[0]
        return RankValues(values) if form == RANKS else values

    def part(self, name: str) -> RuleColumn:
        """Return the `first` or `second` of pairs; all unknown if there are none."""
        if not self.parts:
            return unknown_column(self.shape)
        column = self.parts[("first", "second").index(name)]
        return replace(column, shape=self.shape, known=column.known & self.known)

    def extremes(self, *, highest: bool) -> list[float | None]:
        """Return the number of each job, the largest or smallest of several; None: unknown."""
        shape, jobs = self.shape, len(self.shape.counts)
        if self.kind is not float:
            return [None] * jobs
        values, known = self.values, self.known
        if not shape.is_single:
            filled = shape.counts > 0
            first = shape.starts[:-1][filled]
            known, values = ~shape.jobs_of(~known) & filled, np.zeros(jobs)
            if first.size:
                reduced = np.maximum if highest else np.minimum
                values[filled] = reduced.reduceat(self.values, first)
        pairs = zip(known.tolist(), values.tolist(), strict=True)
        return [value if is_known else None for is_known, value in pairs]

    def _item(self, slot: int) -> Any:
        if not self.known[slot]:
            return None
        if self.parts:
            first, second = self.parts
            return RulePair(first._item(slot), second._item(slot))
        value = self.values[slot]
        return value if self.kind is str else value.item()


def single_shape(jobs: int) -> ColumnShape:
    """Return the shape of one value for each job."""
    return ColumnShape(np.zeros(jobs, np.uint8), np.ones(jobs, np.int64))


def constant_column(shape: ColumnShape, value: float | bool | str | None) -> RuleColumn:
    """Return the same value in all slots; None: unknown."""
    size = len(shape.owners)
    if value is None:
        return unknown_column(shape)
    dtype = object if isinstance(value, str) else type(value)
    return RuleColumn(shape, type(value), np.ones(size, bool), np.full(size, value, dtype))


def unknown_column(shape: ColumnShape) -> RuleColumn:
    """Return unknown values in all slots."""
    size = len(shape.owners)
    return RuleColumn(shape, None, np.zeros(size, bool), np.zeros(size, bool))


def pair_column(first: RuleColumn, second: RuleColumn) -> RuleColumn:
    """Return pairs of the values of two columns of one shape."""
    size = len(first.known)
    known = np.ones(size, bool)
    return RuleColumn(first.shape, RulePair, known, np.zeros(size, bool), (first, second))


@dataclass(frozen=True, slots=True)
class AlignedColumns:
    """Columns in one shape. mixed, unequal: jobs whose lists do not fit, with one unknown value."""

    shape: ColumnShape
    columns: Sequence[RuleColumn]
    mixed: Flags | None = None
    unequal: Flags | None = None


def align(columns: Sequence[RuleColumn]) -> AlignedColumns:
    """Return the columns in one shape: where one has several values, single ones are repeated."""
    shapes = list({id(column.shape): column.shape for column in columns}.values())
    if len(shapes) == 1:
        return AlignedColumns(shapes[0], columns)
    several = [shape for shape in shapes if not shape.is_single]
    if len(several) <= 1:
        shape = several[0] if several else shapes[0]
        return AlignedColumns(shape, [_repeated(column, shape) for column in columns])
    forms = np.stack([shape.forms for shape in several])
    counts = np.stack([shape.counts for shape in several])
    first = np.argmax(forms > 0, axis=0)
    every_job = np.arange(forms.shape[1])
    form, count = forms[first, every_job], counts[first, every_job]
    mixed = (forms == RANKS).any(axis=0) & (forms == LIST).any(axis=0)
    unequal = ((forms > 0) & (counts != count)).any(axis=0) & ~mixed
    fits = ~(mixed | unequal)
    shape = ColumnShape(np.where(fits, form, SINGLE), np.where(fits, count, 1))
    aligned = []
    for column in columns:
        fitting = column.only(fits)
        slots = fitting.shape.slots_for(shape.counts, fitting.shape.forms > 0)
        aligned.append(fitting.take(slots, shape))
    return AlignedColumns(shape, aligned, mixed, unequal)


def _repeated(column: RuleColumn, shape: ColumnShape) -> RuleColumn:
    """Return a column in a shape; it has one value for each job, or that shape."""
    return column if column.shape is shape else column.take(shape.owners, shape)


def quantiles(values: Floats, share: float) -> Floats:
    """Return the quantile of each row, linearly interpolated (type 7, as in numpy).

    >>> rows = np.array([[4.0, 1.0, 2.0, 3.0]])
    >>> [quantiles(rows, share)[0].item() for share in (0.25, 0.5, 0.75)]
    [1.75, 2.5, 3.25]
    """
    ordered = np.sort(values, axis=1)
    last = ordered.shape[1] - 1
    position = last * share
    below = int(position)
    above = min(below + 1, last)
    part = position - below
    quantile: Floats = ordered[:, below] * (1 - part) + ordered[:, above] * part
    return quantile


def chosen(holds: Flags, then: RuleColumn, otherwise: RuleColumn) -> RuleColumn:
    """Return the values of one column where a condition holds, else of the other one."""
    known = np.where(holds, then.known, otherwise.known)
    if not (then.parts or otherwise.parts):
        kind = then.kind or otherwise.kind
        values = np.where(holds, then.values, otherwise.values)
        return RuleColumn(then.shape, kind, known, values)
    pairs = then if then.parts else otherwise
    parts = zip(then.parts or pairs.parts, otherwise.parts or pairs.parts, strict=True)
    return replace(
        pairs, known=known, parts=tuple(chosen(holds, first, second) for first, second in parts)
    )


def _computed(kind: type, work: Callable[..., Any]) -> Callable[..., RuleColumn]:
    """Return an operator that is known where all its operands are."""

    def computed(*columns: RuleColumn) -> RuleColumn:
        first = columns[0]
        known = first.known
        for column in columns[1:]:
            known = known & column.known
        if any(column.kind is None for column in columns):
            return unknown_column(first.shape)
        return RuleColumn(first.shape, kind, known, work(*(column.values for column in columns)))

    return computed


def _same(first: Any, second: Any) -> Any:
    return np.equal(first, second).astype(bool)


def _logical(decisive: bool) -> Callable[..., RuleColumn]:
    """Return an operator that one value decides; unknown where none does and some are unknown."""

    def logical(*columns: RuleColumn) -> RuleColumn:
        known = np.stack([column.known for column in columns], axis=1)
        values = np.stack([column.values for column in columns], axis=1)
        return RuleColumn(columns[0].shape, bool, *_logic(decisive, known, values))

    return logical


def _logic(decisive: bool, known: Flags, values: Flags) -> tuple[Flags, Flags]:
    """Return which rows are decided, and how.

    >>> known = np.array([[True, False], [True, False]])
    >>> values = np.array([[False, False], [True, False]])
    >>> _logic(True, known, values)
    (array([False,  True]), array([False,  True]))
    """
    decided = (known & (values == decisive)).any(axis=1)
    return decided | known.all(axis=1), decided == decisive


def _statistic(work: Callable[[Floats], Floats]) -> Callable[..., tuple[Any, Any]]:
    return lambda known, values: (known.all(axis=1), work(values))


def _sums(values: Floats) -> Floats:
    """Return the sum of each row, added up one after the other: in pairs, digits differ."""
    total = np.zeros(len(values))
    for column in values.T:
        total += column
    return total


NUMBER = frozenset({float})
TRUTH: frozenset[type] = frozenset({bool})
LOGICAL = (bool, None)
PAIR: frozenset[type] = frozenset({RulePair})
SCALAR: frozenset[type] = NUMBER | TRUTH | {str}
NEEDED = {NUMBER: "numbers", TRUTH: "true or false", PAIR: "a tuple"}
# {operator or function: (types of its values, what it makes of them)}
OPERATORS: Mapping[str, tuple[frozenset[type], Callable[..., RuleColumn]]] = {
    "+": (NUMBER, _computed(float, np.add)),
    "-": (NUMBER, _computed(float, np.subtract)),
    "*": (NUMBER, _computed(float, np.multiply)),
    "/": (NUMBER, _computed(float, np.divide)),
    "max": (NUMBER, _computed(float, lambda x, y: np.where(y > x, y, x))),
    "min": (NUMBER, _computed(float, lambda x, y: np.where(y < x, y, x))),
    "<": (NUMBER, _computed(bool, np.less)),
    "<=": (NUMBER, _computed(bool, np.less_equal)),
    ">": (NUMBER, _computed(bool, np.greater)),
    ">=": (NUMBER, _computed(bool, np.greater_equal)),
    "==": (SCALAR, _computed(bool, _same)),
    "!=": (SCALAR, _computed(bool, lambda x, y: ~_same(x, y))),
    "and": (TRUTH, _logical(decisive=False)),
    "or": (TRUTH, _logical(decisive=True)),
    "not": (TRUTH, _computed(bool, np.logical_not)),
    "+ before": (NUMBER, _computed(float, np.positive)),
    "- before": (NUMBER, _computed(float, np.negative)),
    "abs": (NUMBER, _computed(float, np.abs)),
    "make_tuple": (SCALAR, pair_column),
    "first": (PAIR, lambda pairs: pairs.part("first")),
    "second": (PAIR, lambda pairs: pairs.part("second")),
}
# {function: (types of the values of a list, type of what it makes of them, how, of rows)}
REDUCTIONS: Mapping[str, tuple[frozenset[type], type, Callable[..., tuple[Any, Any]]]] = {
    "max": (NUMBER, float, _statistic(lambda values: values.max(axis=1))),
    "min": (NUMBER, float, _statistic(lambda values: values.min(axis=1))),
    "sum": (NUMBER, float, _statistic(_sums)),
    "mean": (NUMBER, float, _statistic(lambda values: _sums(values) / values.shape[1])),
    "median": (NUMBER, float, _statistic(lambda values: quantiles(values, 0.5))),
    "lower_quartile": (NUMBER, float, _statistic(lambda values: quantiles(values, 0.25))),
    "upper_quartile": (NUMBER, float, _statistic(lambda values: quantiles(values, 0.75))),
    "any": (TRUTH, bool, lambda known, values: _logic(True, known, values)),
    "all": (TRUTH, bool, lambda known, values: _logic(False, known, values)),
    "cardinality": (SCALAR | PAIR, float, lambda known, values: (True, values.shape[1])),
}
