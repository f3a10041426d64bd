"""Which GPUs are shown: `user=ana class=idle sm<20 nid00` holds where every term holds.

A word alone is looked for in name, job, user, class and health. Texts are compared whole, without regard to case; `*`
stands for anything. A class may also be named by its code, or by what limits it (`class=memory`). Fractions are percent
(`sm<20`), mem is in GiB. What is not told is `-` (`job=-`), and neither smaller nor larger than anything. `!` before a
word and `!=` turn it round.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType

import numpy as np

from tachograph.arrays import Flags, Floats
from tachograph.counters import BY_NAME as COUNTERS
from tachograph.errors import UsageError
from tachograph.tui.fleet_rows import SHORT, TEXTS, FleetRows, number_name
from tachograph.workload.classes import CLASSES, CODES, bottleneck

_COMPARE: Mapping[str, Callable[[Floats, float], Flags]] = MappingProxyType(
    {
        "=": operator.eq, "!=": lambda values, bound: (values != bound) & ~np.isnan(values),
        "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    }
)  # fmt: skip
_TERM = re.compile(r"^([A-Za-z_][\w]*)(!=|<=|>=|=|<|>)(.*)$")
_NUMBER = re.compile(r"^(-?\d+(?:\.\d*)?|\.\d+)\s*(%|[kMGTs]?|min|h)$")
_SIZES = MappingProxyType({"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "s": 1.0, "min": 60.0, "h": 3600.0})
_PERCENT = MappingProxyType({"": 0.01, "%": 0.01})
_GIB = MappingProxyType({"": 1.0, "G": 1.0, "M": 1 / 1024, "T": 1024.0})
_ANYWHERE = ("gpu", "job", "user", "class", "health")
MISSING = "-"


@dataclass(frozen=True, slots=True)
class Term:
    """One term. column: "" for a word that is looked for anywhere. bound: the number, NaN for texts and for missing."""

    column: str
    compare: str
    text: str
    bound: float = float("nan")


def parse(written: str) -> tuple[Term, ...]:
    """Return the terms of a filter.

    >>> parse("ana sm<20")
    (Term(column='', compare='=', text='ana', bound=nan), Term(column='sm', compare='<', text='20', bound=0.2))

    Errors: UsageError for a column that is none, or a number that is none.
    """
    try:
        words = shlex.split(written)
    except ValueError as error:
        raise UsageError(f"{written!r} is no filter: {error}", do="close the quotation mark") from None
    return tuple(_term(word) for word in words)


def matching(rows: FleetRows, terms: tuple[Term, ...]) -> Flags:
    """Return which rows every term holds of."""
    found: Flags = np.ones(len(rows), np.bool_)
    for term in terms:
        found &= _holds(rows, term)
    return found


def _term(word: str) -> Term:
    found = _TERM.match(word)
    if found is None:
        return Term("", "!=", word[1:]) if word.startswith("!") and len(word) > 1 else Term("", "=", word)
    column, compare, text = found[1].lower(), found[2], found[3]
    if column in TEXTS:
        if compare not in ("=", "!="):
            raise UsageError(f"{column} is text and has no {compare}", do=f"write {column}={text} or {column}!={text}")
        return Term(column, compare, text)
    number_name(column)
    return Term(column, compare, text) if text == MISSING else Term(column, compare, text, _bound(column, text))


def _bound(column: str, text: str) -> float:
    found = _NUMBER.match(text)
    if found is None:
        raise UsageError(f"{text!r} is no number", do=f"write {column}<20, or {column}=- for what is missing")
    counter = COUNTERS.get(SHORT.get(column, column))
    fraction = column == "real" or (counter is not None and counter.unit == "fraction")
    sizes = _PERCENT if fraction else _GIB if column == "mem" else _SIZES
    if found[2] not in sizes:
        raise UsageError(f"{column} is not told in {found[2]}", do=f"write {column}>{found[1]}")
    return float(found[1]) * sizes[found[2]]


def _holds(rows: FleetRows, term: Term) -> Flags:
    if term.column in TEXTS or not term.column:
        found = _of_text(rows, term)
        return ~found if term.compare == "!=" else found
    values = rows.number(term.column)
    if term.text == MISSING:
        return np.isnan(values) if term.compare == "=" else ~np.isnan(values)
    return _COMPARE[term.compare](values, term.bound)


def _of_text(rows: FleetRows, term: Term) -> Flags:
    wanted = term.text.lower()
    if not term.column:
        found: Flags = np.zeros(len(rows), np.bool_)
        for column in _ANYWHERE:
            found |= np.array([wanted in text for text in _lowered(rows, column)], np.bool_)
        return found
    if term.column == "class":
        named = [_is_class(name, code, wanted) for name, code in zip(CLASSES, CODES, strict=True)]
        return np.array(named, np.bool_)[rows.view.labels]
    texts = _lowered(rows, term.column)
    if wanted == MISSING:
        return np.array([not text for text in texts], np.bool_)
    if "*" in wanted:
        return np.array([fnmatchcase(text, wanted) for text in texts], np.bool_)
    return np.array([text == wanted or wanted in text.split(",") for text in texts], np.bool_)  # jobs that share a GPU


def _is_class(name: str, code: str, wanted: str) -> bool:
    return fnmatchcase(name.lower(), wanted) or wanted in (code, bottleneck(name))


def _lowered(rows: FleetRows, column: str) -> list[str]:
    return [text.lower() for text in rows.text(column)]
