"""Answers of Prometheus and of what speaks like it, taken apart: one `Run` of points per series.

The shapes are those of the Prometheus HTTP API (matrix, vector) and of VictoriaMetrics' /api/v1/export. Labels stay
JSON until somebody asks: the same ones come with every answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from tachograph.arrays import Floats, Longs
from tachograph.sources.http import Answer, read_json
from tachograph.sources.http_problems import AskError
from tachograph.sources.prometheus.numbers import numbers

EXPECTED = "an answer of Prometheus"
_BARE = re.compile(rb"(?<=[\[,])([+-]?Inf|NaN)(?=[,\]])")  # written by Go, unknown to JSON
_VALUES = b'"values":'  # never inside a label: there its quotes are escaped


@dataclass(frozen=True, slots=True)
class Run:
    """Points of one series. `t`: milliseconds since 1970, rising; `labels`: a JSON object."""

    labels: bytes
    t: Longs
    values: Floats


@dataclass(slots=True)
class Runs:
    """What one answer, or several, came to. `instant`: the times are when it was asked, not those of scrapes."""

    runs: list[Run] = field(default_factory=list)
    instant: bool = False
    warnings: list[str] = field(default_factory=list)

    @property
    def points(self) -> int:
        """How many values there are."""
        return sum(run.t.size for run in self.runs)

    def add(self, others: Runs) -> None:
        """Take in what another answer came to."""
        self.runs += others.runs
        self.warnings += others.warnings


class _Series(msgspec.Struct, frozen=True):
    metric: msgspec.Raw
    values: msgspec.Raw = msgspec.Raw(b"[]")  # of a matrix
    value: msgspec.Raw = msgspec.Raw(b"[]")  # of a vector


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    result_type: str = ""
    result: list[_Series] = msgspec.field(default_factory=list)


class _Envelope(msgspec.Struct, frozen=True, rename="camel"):
    status: str
    data: _Data | msgspec.UnsetType | None = msgspec.UNSET
    error_type: str = ""
    error: str = ""
    warnings: list[str] | None = None
    is_partial: bool = False  # VictoriaMetrics cluster: a storage node did not answer


class _Exported(msgspec.Struct, frozen=True):
    metric: msgspec.Raw
    values: msgspec.Raw
    timestamps: msgspec.Raw


def own_words(body: bytes) -> str:
    """Return what a server says about an error in its answer; "" where it says nothing that can be read.

    >>> own_words(b'{"status":"error","errorType":"bad_data","error":"no such thing"}')
    'bad_data: no such thing'
    >>> own_words(b"<html>")
    ''
    """
    try:
        said = msgspec.json.decode(body, type=_Envelope)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    kind = said.error_type
    return f"{kind}: {said.error}" if kind and not kind.isdigit() else said.error


def read_result(answer: Answer) -> Runs:
    """Return the series of a matrix or a vector.

    Errors: AskError for an error, a partial answer, another shape, or a result that holds no series.
    """
    said = read_json(answer, _Envelope, expected=EXPECTED)
    if said.status != "success" or not isinstance(said.data, _Data):
        told = own_words(answer.content) or "the answer says neither success nor why not"
        raise AskError(told, where=answer.where, do="mend what is asked")
    if said.is_partial:
        what = "the answer is partial: a part of its storage did not answer"
        raise AskError(what, where=answer.where, do="mend its storage", refused=False)
    if said.data.result_type not in ("matrix", "vector"):
        what = f"the result is a {said.data.result_type or 'thing without a type'}, not series"
        raise AskError(what, where=answer.where, do=f"is this {EXPECTED}?")
    try:
        runs = [_run(one.metric, numbers(bytes(one.values) + bytes(one.value))) for one in said.data.result]
    except ValueError as problem:
        raise AskError(f"a point is no number: {problem}", where=answer.where, do=f"is this {EXPECTED}?") from None
    instant = said.data.result_type == "vector"
    return Runs([run for run in runs if run.t.size], instant, list(said.warnings or ()))


def read_export(lines: Iterable[bytes], where: str) -> Runs:
    """Return the series of an export; a value that is null, or a bare NaN, is a stale mark, and absent.

    VictoriaMetrics 1.79 writes the first value of a block as Go does (NaN, +Inf), the later stale marks as null.

    Errors: AskError naming the line that is none of an export.
    """
    found = Runs()
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                one = msgspec.json.decode(_as_json(line), type=_Exported)
                t, values = numbers(bytes(one.timestamps)), numbers(bytes(one.values))
            except (ValueError, RecursionError) as problem:  # msgspec's errors are ValueErrors, too
                what = f"line {number} is none of an export: {str(problem).replace('`', chr(39))}"
                raise AskError(what, where=where, do=f"is this {EXPECTED}?") from None
            if t.size != values.size:
                what = f"line {number} has {t.size} times and {values.size} values"
                raise AskError(what, where=where, do=f"is this {EXPECTED}?")
            run = Run(bytes(one.metric), t.astype(np.int64), values)
            if b"null" in bytes(one.values):
                run = keep(run, ~np.isnan(values))
            if run.t.size:
                found.runs.append(run)
    return found


def _as_json(line: bytes) -> bytes:
    """The line with what Go writes for numbers that JSON has not: NaN as null, infinities in quotes."""
    if b"NaN" not in line and b"Inf" not in line:
        return line
    labels, values, points = line.rpartition(_VALUES)
    return labels + values + _BARE.sub(lambda found: b"null" if found[1] == b"NaN" else b'"%b"' % found[1], points)


def keep(run: Run, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Run:
    """Return the points under the mask."""
    return Run(run.labels, run.t[mask], run.values[mask])


def _run(labels: msgspec.Raw, flat: Floats) -> Run:
    """Points written as time, value, time, value."""
    if flat.size % 2:
        raise ValueError("a time without a value")
    return Run(bytes(labels), np.rint(flat[0::2] * 1000).astype(np.int64), flat[1::2])
