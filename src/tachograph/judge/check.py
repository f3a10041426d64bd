"""Checks: each detects one problem or one fact in a job.

One code, title, severity, advice text, family and file per check.

A check is decided in one of three ways, which is a detail of it: by a function that sees one job at
a time, by a class over minute series of many jobs at a time (`judge.classes`), or by a rule of the
language (`judge.rules`). All stand in one ordered tuple, `judge.checks.CHECKS`, rules of the
catalogue and of the site behind it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import polars as pl
from numpy.typing import NDArray

from tachograph.catalog.config import Thresholds
from tachograph.catalog.tables import JOB_GPUS, JOB_SUMMARIES
from tachograph.judge.activity import (
    Activity,
    GpuRows,
    activity_over_time,
    gpu_labels,
    number,
    so_far,
)
from tachograph.judge.finding import FindingConfidence, Severity
from tachograph.pipeline.timelines import ACTIVITY

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobGpuRow, JobSummaryRow
    from tachograph.judge.classes.inputs import JobClass

THRESHOLD = "thresholds."  # begins the names of columns that conditions read thresholds from
ANY_ACTIVITY = "|".join(ACTIVITY)  # of `needs`: any of these counters suffices

# family -> the wider families around it: what is found in the narrower one explains what is found
# in a wider one
FAMILIES: Mapping[str, tuple[str, ...]] = {
    "idle job": ("idle GPUs", "requested memory"),
    "idle GPUs": ("imbalance",),
    "imbalance": ("low use",),
    "hang": ("input",),
    "startup": ("input",),
    "input": ("low use",),
    "run time": ("telemetry",),
    "data quality": ("telemetry",),
}


@dataclass(frozen=True, slots=True)
class Found:
    """A check that holds for a job, with its numbers; begin, end None: the whole job.

    advice: where that of the check does not fit. confidence: where it is not that of the check.
    """

    sentence: str
    evidence: Mapping[str, float] = field(default_factory=dict)
    begin: datetime | None = None
    end: datetime | None = None
    advice: str | None = None
    confidence: FindingConfidence | None = None


class JobRows:
    """Rows of many jobs, grouped by job. Columns are converted on first use, for all jobs.

    `same`: {key of a job: that of the job whose rows are its own, too}.
    """

    def __init__(self, frame: pl.DataFrame, same: Mapping[str, str] = MappingProxyType({})) -> None:
        self._same = same
        keys = frame.get_column("job_key").rle().struct.unnest()
        lengths = keys.get_column("len").cast(pl.Int64)
        begins = lengths.cum_sum() - lengths
        self.frame = frame
        self.lists: dict[str, list[Any]] = {}
        self.arrays: dict[str, NDArray[Any]] = {}
        self._spans = dict(
            zip(keys.get_column("value"), zip(begins, begins + lengths, strict=True), strict=True)
        )

    def of(self, job_key: str) -> RowsOfJob:
        """Return the rows of a job."""
        return RowsOfJob(self, *self._spans.get(self._same.get(job_key, job_key), (0, 0)))


class RowsOfJob(NamedTuple):
    """The rows `begin` to `end` (exclusive) of one job."""

    rows: JobRows
    begin: int
    end: int

    @property
    def height(self) -> int:
        """Number of rows."""
        return self.end - self.begin

    def frame(self) -> pl.DataFrame:
        """Return the rows as a frame."""
        return self.rows.frame.slice(self.begin, self.height)

    def values(self, column: str) -> list[Any]:
        """Return the values of a column, None where null."""
        found = self.rows.lists.get(column)
        if found is None:
            found = self.rows.lists[column] = self.rows.frame.get_column(column).to_list()
        return found[self.begin : self.end]

    def array(self, column: str) -> NDArray[Any]:
        """Return the numbers of a column, NaN where null."""
        found = self.rows.arrays.get(column)
        if found is None:
            found = self.rows.arrays[column] = self.rows.frame.get_column(column).to_numpy()
        return found[self.begin : self.end]


@dataclass(frozen=True)
class CheckedJob:
    """One job as a check sees it.

    `summary` is its row of job_summaries, `of_gpus` its rows of job_gpus in the order of node, GPU
    and slice, `of_minutes` one row for each of its minutes, the GPUs put together
    (`pipeline.timelines.timelines_of`). Both give columns as lists and arrays without a frame being
    made: most checks hold for few jobs.
    """

    summary: JobSummaryRow
    of_gpus: RowsOfJob
    of_minutes: RowsOfJob
    thresholds: Thresholds

    @cached_property
    def gpus(self) -> pl.DataFrame:
        """Its rows of job_gpus."""
        return self.of_gpus.frame()

    @cached_property
    def minutes(self) -> pl.DataFrame:
        """Its minutes."""
        return self.of_minutes.frame()

    def number(self, column: str) -> float | None:
        """Return a number of its summary; None where it was not measured."""
        return number(self.summary, column)

    def measured(self, column: str) -> float:
        """Return a number of its summary that the condition of the check requires."""
        return float(cast("float", self.summary.get(column)))

    @property
    def counter(self) -> str:
        """The counter that shows whether its GPUs work, which the condition requires."""
        return next(name for name in ACTIVITY if self.number(f"{name}_mean") is not None)

    def evidence(self, *columns: str, **computed: float | None) -> dict[str, float]:
        """Return the known evidence: values of the summary's `columns`, and computed ones."""
        known = {column: self.number(column) for column in columns} | computed
        return {name: value for name, value in known.items() if value is not None}

    @property
    def so_far(self) -> str:
        """The words " so far" for a job that still runs, else nothing."""
        return so_far(self.summary)

    @property
    def ran_s(self) -> float:
        """How long it ran, in seconds: its last minute is seldom whole. Infinite: not known."""
        start, as_of = self.summary.get("start"), self.summary.get("as_of")
        if start is not None and as_of is not None:
            return float((as_of - start).total_seconds())
        elapsed_s = self.number("elapsed_s")
        return math.inf if elapsed_s is None else elapsed_s

    def length_s(self, begin_s: float, end_s: float) -> float:
        """Return the seconds of an interval of minutes after the start that lie in the job."""
        return max(0.0, min(end_s, self.ran_s) - begin_s)

    def time(self, after_s: float) -> datetime | None:
        """Return the time this many seconds after the start, at most the end of the job.

        None if the start is unknown.
        """
        start: datetime | None = self.summary.get("start")
        return None if start is None else start + timedelta(seconds=min(after_s, self.ran_s))

    def stop(self, sentence: str, begin_s: float, length_s: float) -> Found:
        """Return that all GPUs stopped at this time after the start, and for how long."""
        return Found(
            sentence,
            self.evidence(interval_begin_s=begin_s, interval_s=length_s),
            begin=self.time(begin_s),
            end=self.time(begin_s + length_s),
        )

    def holds(self, condition: pl.Expr) -> bool:
        """Return whether a condition over columns of its summary holds; not where it is null."""
        names = condition.meta.root_names()
        row = {name: [self.summary.get(name)] for name in names if not name.startswith(THRESHOLD)}
        return bool(next(flags_of(pl.DataFrame(row), [condition], self.thresholds)).item())

    def gpu_flags(self, condition: pl.Expr) -> pl.Series:
        """Return whether a condition over columns of job_gpus holds for each of its GPUs."""
        return next(flags_of(self.gpus, [condition], self.thresholds))

    def gpus_that(self, condition: pl.Expr) -> list[JobGpuRow]:
        """Return the rows of its GPUs for which a condition over their columns holds, in order."""
        rows = self.gpus.filter(self.gpu_flags(condition)).to_dicts()
        return cast("list[JobGpuRow]", rows)

    def labels(self, gpus: GpuRows) -> str:
        """Return some of its GPUs as a short list."""
        return gpu_labels(gpus, of=[{"node": node} for node in self.of_gpus.values("node")])

    def gpu_total(self, column: str) -> float:
        """Return the sum of the known values of its GPUs."""
        return float(sum(value for value in self.of_gpus.values(column) if value is not None))

    @cached_property  # shared by several checks; needs a class without slots
    def activity(self) -> Activity | None:
        """Its activity over time; None where none was measured, or no minute is busy."""
        return activity_over_time(
            self.of_minutes.array, self.of_minutes.height, self.thresholds.idle_util
        )


def threshold(name: str) -> pl.Expr:
    """Return one of the thresholds, in a condition."""
    return pl.col(f"{THRESHOLD}{name}")


def flags_of(
    rows: pl.DataFrame, conditions: Sequence[pl.Expr], thresholds: Thresholds
) -> Iterator[pl.Series]:
    """Yield for which rows each condition holds. Of columns that do not exist all is null."""
    columns = _known_columns(rows, conditions, thresholds)
    flags = columns.select(
        condition.fill_null(value=False).alias(str(number))
        for number, condition in enumerate(conditions)
    )
    yield from flags.iter_columns()


def _known_columns(
    rows: pl.DataFrame, conditions: Sequence[pl.Expr], thresholds: Thresholds
) -> pl.DataFrame:
    """Return the columns that conditions read; null: not known."""
    read: set[str] = set()
    for condition in conditions:
        read.update(condition.meta.root_names())
    columns, dtypes = [], rows.schema
    for name in sorted(read):
        column = pl.col(name)
        if name not in dtypes:
            is_threshold = name.startswith(THRESHOLD)
            option = name.removeprefix(THRESHOLD)
            column = pl.lit(getattr(thresholds, option) if is_threshold else None).alias(name)
        elif dtypes[name].is_float():
            column = column.cast(pl.Float64).fill_nan(None)
        columns.append(column)
    # thresholds alone would be one row
    return rows.select(pl.int_range(pl.len()).alias("_row"), *columns)


def condition_problem(check: Check) -> str | None:
    """Return what is wrong with a condition of a check; None: both can be used."""
    tables = {"condition": JOB_SUMMARIES, "gpu_condition": JOB_GPUS}
    for name, table in tables.items():
        condition = getattr(check, name)
        if condition is None:
            continue
        whose = f"{name} of check {check.code}"
        if not isinstance(condition, pl.Expr):
            return f"{whose} is of type {type(condition).__name__}, and no expression of polars"
        rows = table.empty().clear(2)  # rows of which nothing is known
        try:
            columns = _known_columns(rows, [condition], Thresholds())
            values = columns.select(condition.alias("value")).to_series()
        except (pl.exceptions.PolarsError, AttributeError) as problem:
            return f"{whose} cannot be computed: {str(problem).splitlines()[0]}"
        if values.dtype not in (pl.Boolean, pl.Null):
            return f"{whose} is of type {values.dtype}, not Boolean"
        if len(values) != rows.height:
            return f"{whose} gives one value for all rows, not one for each"
    return None


def may_idle(idle_s: pl.Expr | float) -> pl.Expr:
    """Whether samples at zero leave room for so much idle time; true where none are known.

    Half of it is enough: minutes at the edges are coarse, and idle is a little above zero.
    """
    at_zero_s = pl.col("zero_util_fraction") * pl.col("elapsed_s")
    return (at_zero_s >= idle_s / 2).fill_null(value=True)


Decide = Callable[[CheckedJob], Found | None]


@dataclass(frozen=True, slots=True)
class Check:
    """One entry of CHECKS, in the order of reports and, within a family, most specific first.

    family: of those that hold in a family, and in the wider ones around it, the most specific is
    reported and covers the others. brief: what it found in a few words, for headlines, with names
    of its evidence in braces; empty: the title. Behind a `;` are the hours, left out where the
    ledger has none. causes: of the ledger, whose hours it is about. needs: counters without which
    nothing is denied, of alternatives (`a|b`) one. of_samples: False for what accounting alone
    decides. decide: returns what was found; None where the check does not hold, and where a counter
    it needs was not measured. condition: over columns of job_summaries, gpu_condition: over those
    of job_gpus, with `threshold(...)`, and null for what was not measured. `decide` is called for
    jobs for which the one holds, and for one of whose GPUs the other holds, and need not compare
    again. None: for all. A check with a class has one too where it knows a second definition, which
    is less certain.
    deciders: further classes and rules, by their names, which decide the same; it holds where one
    of them does.
    """

    code: str
    family: str
    severity: Severity
    title: str
    advice: str | None = None
    brief: str = ""
    causes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    of_samples: bool = True
    decide: Decide | None = None
    condition: pl.Expr | None = field(default=None, compare=False)
    gpu_condition: pl.Expr | None = field(default=None, compare=False)
    job_class: JobClass | None = None
    deciders: tuple[str, ...] = ()

    @property
    def several(self) -> bool:
        """Whether a job has several results of this check, of which one is kept."""
        return bool(self.deciders) or (self.decide is not None and self.job_class is not None)

    @property
    def codes(self) -> tuple[str, ...]:
        """Its codes: a class that is also judged from host characteristics has a second one."""
        if self.job_class is None or self.job_class.code != self.code:
            return (self.code,)
        return self.job_class.codes


def class_check(
    job_class: JobClass,
    *,
    family: str,
    advice: str | None,
    brief: str = "",
    causes: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    decide: Decide | None = None,
    condition: pl.Expr | None = None,
) -> Check:
    """Return the check that a class decides, with its code, severity and title.

    needs, decide, condition: of its second definition, from the activity of GPUs.
    """
    return Check(
        job_class.code,
        family=family,
        severity=job_class.severity,
        title=job_class.title,
        advice=advice,
        brief=brief,
        causes=causes,
        needs=needs,
        decide=decide,
        condition=condition,
        job_class=job_class,
    )


def families_around(family: str) -> tuple[str, ...]:
    """Return a family and the wider ones around it, the narrowest first.

    >>> families_around("hang"), families_around("kernels")
    (('hang', 'input', 'low use'), ('kernels',))
    """
    wider = (each for name in FAMILIES.get(family, ()) for each in families_around(name))
    return tuple(dict.fromkeys((family, *wider)))
