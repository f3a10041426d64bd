"""Columns of a list of jobs: names give candidates, values decide."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import polars as pl

from tachograph.sources.table.mapping import DURATION, MappingTarget, durations, numbers, stripped
from tachograph.sources.times import AUTO, read_times

# {column of `jobs`: names without signs and case}
_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "job_id": ("jobid", "jobidraw", "slurmjobid"),
        "name": ("jobname", "name"),
        "user": ("user", "username", "owner"),
        "account": ("account", "project"),
        "partition": ("partition", "queue"),
        "qos": ("qos",),
        "state": ("state", "status"),
        "cluster": ("cluster",),
        "node_list": ("nodelist", "nodeslist", "hosts", "hostlist"),
        "submit": ("submit", "submittime", "submitted"),
        "start": ("start", "starttime", "started", "begin"),
        "end": ("end", "endtime", "ended", "finish", "finished", "finishtime"),
        "elapsed_s": ("elapsed", "elapsedraw", "duration", "runtime", "walltime"),
    }
)
_COUNTED: Mapping[str, str] = MappingProxyType({"gpu": "gpus", "node": "nodes", "cpu": "cpus"})
# words beside what is counted: gpu_num, Number of GPUs, ngpus
_COUNT_WORDS = frozenset({"n", "num", "no", "nb", "number", "count", "of", "allocated", "alloc"})
_WORDS_ALONE = ("partition", "qos", "state", "cluster", "node_list")  # never numbers
_MOST_COUNTED = 1_000_000
_SCALES = (1.0, 60.0, 3600.0, 0.001)  # a duration in seconds, minutes, hours, milliseconds
_TOLERANCE_S, _TOLERANCE = 2.0, 0.01  # of a duration against end - start: rounding
_AGREES = 0.9  # share of rows from which a column is what its name says
# each is tried where those before it do not fit
_FORMATS = (AUTO, "%d.%m.%Y %H:%M:%S%.f", "%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S")


@dataclass(slots=True)
class JobColumns:
    """{column of the file: its target in `jobs`}; `left`: {column without one: why}."""

    targets: dict[str, MappingTarget] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def time_format(column: pl.Series) -> str:
    """Return the format in which nearly all values are credible times; "" without one."""
    filled = column.drop_nulls()
    if not len(filled) or filled.dtype in (pl.Boolean, pl.List, pl.Struct):
        return ""
    for form in _FORMATS if filled.dtype == pl.String else (AUTO,):
        years = read_times(filled, form=form).values.dt.year()
        if (years.is_between(2006, 2100).sum() or 0) >= _AGREES * len(filled):
            return form
    return ""


def job_meaning(name: str) -> str | None:
    """Return the column of `jobs` that a column name may mean, or None.

    >>> [job_meaning(name) for name in ("JobIDRaw", "gpu_num", "No. of GPUs", "ngpus", "gpu_time")]
    ['job_id', 'gpus', 'gpus', 'gpus', None]
    """
    key = re.sub(r"[\W_]+", "", name.lower())
    for column, names in _NAMES.items():
        if key in names:
            return column
    words = [word for word in re.split(r"[\W_]+", name.lower()) if word not in _COUNT_WORDS]
    if len(words) != 1:
        return None
    counted = words[0].removesuffix("s")
    return _COUNTED.get(counted) or _COUNTED.get(counted.removeprefix("n"))


def job_columns(rows: pl.DataFrame, decimal: str = ".") -> JobColumns | None:
    """Return the columns of a list of jobs; None where ids or starts of jobs are missing."""
    columns = JobColumns()
    times: dict[str, pl.Series] = {}
    for name in rows.columns:
        to = job_meaning(name)
        if to == "nodes" and not len(_counts(rows[name], decimal)):
            to = "node_list"
        if to is None or to in {target.to for target in columns.targets.values()}:
            columns.left[name] = f"also {to}" if to else ""
            continue
        target = MappingTarget(to)
        if to in ("submit", "start", "end"):
            form = time_format(
                stripped(rows[name]) if rows[name].dtype == pl.String else rows[name]
            )
            times[to] = read_times(rows[name], form=form or AUTO).values
            why = "" if form else "no times"
            target = MappingTarget(to, format="" if form == AUTO else form)
        else:
            why = _objection(to, rows[name], decimal)
        if why:
            columns.left[name] = why
        else:
            columns.targets[name] = target
    _check_order(columns, times)
    _check_duration(columns, rows, times, decimal)
    meanings = {target.to for target in columns.targets.values()}
    return columns if {"job_id", "start"} <= meanings else None


def _objection(to: str, column: pl.Series, decimal: str) -> str:
    """Return why values cannot be text or a count; "" where they can."""
    filled = stripped(column).drop_nulls()
    values = _counts(column, decimal)
    are_numbers = bool(len(values)) and len(values) == len(filled)
    if to in _WORDS_ALONE and are_numbers:
        return f"numbers up to {max(values.to_list()):,.6g}: no {to}"
    if to in _COUNTED.values():
        is_count = ((values == values.round()) & values.is_between(0, _MOST_COUNTED)).all()
        return "" if are_numbers and is_count else f"no count of {to}"
    return ""


def _counts(column: pl.Series, decimal: str) -> pl.Series:
    """The numbers among values."""
    values = numbers(stripped(column), wanted="", decimal=decimal).values
    return values.cast(pl.Float64).drop_nulls()


def _leave(columns: JobColumns, to: str, why: str) -> None:
    for name, target in tuple(columns.targets.items()):
        if target.to == to:
            del columns.targets[name]
            columns.left[name] = why


def _check_order(columns: JobColumns, times: Mapping[str, pl.Series]) -> None:
    """Leave out ends before starts, and starts before submits."""
    for earlier, later in (("submit", "start"), ("start", "end")):
        if earlier in times and later in times:
            in_order = (times[earlier] <= times[later]).drop_nulls()
            if in_order.sum() < _AGREES * len(in_order):
                other = later if later == "end" else earlier
                _leave(columns, other, f"{later} is before {earlier}")


def _check_duration(
    columns: JobColumns, rows: pl.DataFrame, times: Mapping[str, pl.Series], decimal: str
) -> None:
    """Give a duration the unit in which it is end - start; leave it out where none is."""
    name = next((name for name, target in columns.targets.items() if target.to == "elapsed_s"), "")
    if not name:
        return
    if "start" not in times or "end" not in times:
        _leave(columns, "elapsed_s", "unit unknown: no end to compare it with")
        return
    span_s = (times["end"] - times["start"]).dt.total_seconds(fractional=True)
    cells = stripped(rows[name])
    has_clock = cells.str.contains(":").any()
    if has_clock:
        values = durations(cells).values
    else:
        values = numbers(cells, wanted="", decimal=decimal).values.cast(pl.Float64)
    for scale in (1.0,) if has_clock else _SCALES:
        difference_s = (values * scale - span_s).abs()
        agrees = (difference_s <= _TOLERANCE_S + _TOLERANCE * span_s).drop_nulls()
        if len(agrees) and agrees.sum() >= _AGREES * len(agrees):
            unit = DURATION if has_clock else ""
            columns.targets[name] = MappingTarget("elapsed_s", unit=unit, scale=scale)
            return
    _leave(columns, "elapsed_s", "is not end - start")
