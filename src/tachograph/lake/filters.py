"""Jobs by filter and by id: which rows of job_summaries a person means."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import polars as pl

from tachograph.catalog.codes import REPORTED, VERDICTS, check_codes, known_codes
from tachograph.catalog.columns import (
    COLUMN_UNITS,
    FINDINGS_COLUMN,
    LOST_COLUMN,
    SEVERITY_COLUMN,
    must_exist,
)
from tachograph.catalog.errors import InputError, NotFoundError, SeveralJobsError, UsageError
from tachograph.catalog.job_states import OTHER_STATES, SLURM_STATES
from tachograph.catalog.suggestions import did_you_mean
from tachograph.catalog.tables import JOB_SUMMARIES, WASTE
from tachograph.catalog.units import plural, refuse_unclear_fraction, span_s
from tachograph.sources.job_ids import job_and_step, plain_job_id

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


# the last time of data is the present for this long; how long a job runs on that was not seen since
CURRENT_FOR = timedelta(days=1)
_CONDITION = re.compile(r"^\s*([A-Za-z_][\w -]*?)\s*(<=|>=|!=|==|=|<|>|~)\s*(.*?)\s*$")
_COMPARE: Mapping[str, Callable[[pl.Expr, Any], pl.Expr]] = {
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
    "=": lambda column, value: column == value,
    "!=": lambda column, value: column != value,
    "~": lambda column, value: column.str.contains(f"(?i){re.escape(value)}"),
}
# base states of jobs in Slurm's accounting
ATTRIBUTIONS = ("explicit", "live_index", "whole_node", "ambiguous")
_OPEN_STATES = (
    "PENDING",
    "RUNNING",
    "SUSPENDED",
    "COMPLETING",
    "RESIZING",
    "CONFIGURING",
    "STOPPED",
)
FINAL_STATES = (  # which a run does not leave
    "COMPLETED",
    "FAILED",
    "CANCELLED",
    "TIMEOUT",
    "OUT_OF_MEMORY",
    "NODE_FAIL",
    "PREEMPTED",
    "BOOT_FAIL",
    "DEADLINE",
    "REQUEUED",
    "REVOKED",
)
JOB_STATES = (*_OPEN_STATES, *FINAL_STATES)
_KNOWN_STATES = frozenset((*JOB_STATES, *SLURM_STATES, *OTHER_STATES))
# what a person restricts by names: {option: field of JobFilter}
FILTER_KINDS: Mapping[str, str] = {
    "user": "users",
    "account": "accounts",
    "partition": "partitions",
    "state": "states",
    "attribution": "attributions",
    "finding": "findings",
}
_PIPE_NAMES = ("fp64", "fp32", "fp16", "tensor")
_BOUNDS = ("compute", "memory")
_TRUE, _FALSE = "true", "false"
# Columns of job_summaries that take few values. What decides them lies in rooms above this one,
# and tests compare the names.
FIXED_VALUES: Mapping[str, tuple[str, ...]] = {
    "attribution": ATTRIBUTIONS,
    "ambiguous_because": (
        "contradicted",
        "other_clusters",
        "other_names",
        "other_slices",
        "too_many_samples",
        "shared_gpus",
        "unknown_numbers",
        "other_jobs",
        "part_of_nodes",
        "unplaced",
    ),
    "recorded_by": ("jobstats", "tachograph"),
    "share_by": ("count", "time"),
    "exclusive": (_TRUE, _FALSE),
    "node_energy_source": ("samples", "accounting"),
    "energy_source": ("counter", "power", "counter+power"),
    "bound": _BOUNDS,
    "bound_fp32": _BOUNDS,
    "bound_fp16": _BOUNDS,
    "bound_tensor": _BOUNDS,
    "main_pipe": _PIPE_NAMES,
    "pipes": _PIPE_NAMES,
    "limiter": ("compute", "memory", "nvlink", "pcie", "neither"),
    "workload": (
        "idle",
        "tensor-heavy compute",
        "tensor compute",
        "FP64 / HPC compute",
        "I/O or data-loading",
        "memory-bound",
        "compute-heavy",
        "compute-active",
        "memory-active",
        "busy, low SM use",
        "low utilization",
        "mixed / moderate",
        "unknown",
    ),
    "health": ("CRIT", "WARN", "HOT", "OK", "unknown"),
}
_SHARES = ("fraction", "ratio")  # units of columns that run from 0 to 1
_MAY_BE_NEGATIVE = ("C", "code", "")
_OF_FINDINGS = (FINDINGS_COLUMN, SEVERITY_COLUMN)
_EXAMPLE = "write it like 'gpu_util_mean<0.1', 'elapsed_s>2h' or 'bound=memory'"


@dataclass(frozen=True, slots=True)
class JobCondition:
    """`name op value`: op is one of < <= > >= = != ~ (contains, without regard to case)."""

    name: str
    op: str
    value: float | str

    def __str__(self) -> str:
        """Return it as a person writes it."""
        if isinstance(self.value, str):
            return f"{self.name}{self.op}{self.value}"
        # A bare number above 1 would be refused: of CPU use 1.5 is written as 150%.
        if self.value > 1 and COLUMN_UNITS[self.name] in _SHARES:
            return f"{self.name}{self.op}{self.value * 100:.10g}%"
        return f"{self.name}{self.op}{self.value:g}"

    @property
    def expression(self) -> pl.Expr:
        """True for the rows that meet it; a null never does."""
        column = lost_hours() if self.name == LOST_COLUMN else pl.col(self.name)
        if isinstance(_type_of(self.name), pl.List):
            inside = column.list.contains(self.value)
            return (inside if self.op in ("=", "~") else ~inside).fill_null(value=False)
        if isinstance(_type_of(self.name), pl.Boolean):
            # polars compares no text with a flag
            return _COMPARE[self.op](column, self.value == _TRUE).fill_null(value=False)
        return _COMPARE[self.op](column, self.value).fill_null(value=False)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs are selected; empty or None does not restrict; several values: any of them.

    `since` and `until`: the job ran at some time between them. `findings`: codes; `verdict` was
    given on any of them. `excluded`: True for jobs left out of studies only, False for those in
    studies only.
    """

    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    attributions: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    verdict: str = "yes"
    since: datetime | None = None
    until: datetime | None = None
    excluded: bool | None = None
    where: tuple[JobCondition, ...] = ()


def filter_parts(selection: JobFilter) -> Iterator[tuple[str, JobFilter]]:
    """Yield a filter's restrictions one by one: (as written, as a filter).

    >>> [written for written, _ in filter_parts(JobFilter(users=("ann", "bob"), where=(parse_condition("gpus>4"),)))]
    ['user ann or bob', 'where gpus>4']
    """
    for name, field_name in FILTER_KINDS.items():
        names: tuple[str, ...] = getattr(selection, field_name)
        if names:
            alone: dict[str, Any] = {
                field_name: names,
                "verdict": selection.verdict if name == "finding" else "yes",
            }
            yield f"{name} {' or '.join(names)}", replace(JobFilter(), **alone)
    if selection.since is not None:
        yield "since", JobFilter(since=selection.since)
    if selection.until is not None:
        yield "until", JobFilter(until=selection.until)
    for condition in selection.where:
        yield f"where {condition}", JobFilter(where=(condition,))


def parse_condition(written: str) -> JobCondition:
    """Parse a condition `name op value`; percentages and time spans are understood.

    >>> parse_condition("gpu_util_mean < 10%")
    JobCondition(name='gpu_util_mean', op='<', value=0.1)
    >>> parse_condition("elapsed_s>2h").value, parse_condition("bound = memory").value
    (7200.0, 'memory')

    Errors: UsageError when it is no condition, or the value does not fit, as a bare number above 1
    for a fraction does not, or is none of FIXED_VALUES; NotFoundError for an unknown column.
    """
    parts = _CONDITION.match(written)
    if not parts or not parts[3]:
        raise UsageError(f"invalid condition: {written!r}", do=_EXAMPLE)
    name, op, value = parts[1], "=" if parts[2] == "==" else parts[2], parts[3].strip("'\"")
    must_exist([name], (*JOB_SUMMARIES.schema, LOST_COLUMN, *_OF_FINDINGS))
    if name in _OF_FINDINGS:
        raise UsageError(f"{name} cannot be compared here", do="use finding, with the code of one")
    dtype = _type_of(name)
    if isinstance(dtype, pl.Datetime):
        raise UsageError(f"{name} is a time and cannot be compared here", do="use since and until")
    if dtype.is_numeric():
        if op == "~":
            raise UsageError(f"{name} is a number: '~' is for text", do=_EXAMPLE)
        return JobCondition(name, op, _number(name, value))
    if isinstance(dtype, pl.List) and (dtype.inner != pl.String() or op not in ("=", "!=", "~")):
        raise UsageError(f"{name} cannot be compared with {op!r}", do="for example 'pipes=tensor'")
    if op not in ("=", "!=", "~"):
        raise UsageError(
            f"{name} is text and cannot be compared with {op!r}", do="use =, != or ~ (contains)"
        )
    if op == "~" and isinstance(dtype, pl.Boolean):
        raise UsageError(f"{name} is {_TRUE} or {_FALSE}: '~' is for text", do="use = or !=")
    if name in FIXED_VALUES:
        # A list contains a whole value, a text any part of one.
        part = op == "~" and not isinstance(dtype, pl.List)
        value = _fixed_value(name, value, part=part)
    if name == "state":  # of any workload manager, which all are stored in capitals
        value = value.upper()
    return JobCondition(name, op, value)


def _fixed_value(name: str, written: str, *, part: bool) -> str:
    """Return a value of a column as it is recorded, or `written` where it is a part of one.

    Errors: UsageError naming the closest values, and all.
    """
    values = FIXED_VALUES[name]
    folded = written.casefold()
    if part and any(folded in value.casefold() for value in values):
        return written
    for value in values:
        if value.casefold() == folded:
            return value
    suggestion = did_you_mean(written, values, most=2)
    listed = f"use one of: {'; '.join(values)}"
    raise UsageError(f"{name} is never {written!r}", do=f"{suggestion} {listed}".lstrip())


def _type_of(name: str) -> pl.DataType:
    """Return the type of a column that conditions may name."""
    return JOB_SUMMARIES.schema.get(name, pl.Float64())


def _number(name: str, written: str) -> float:
    unit = COLUMN_UNITS[name]
    try:
        if written.endswith("%") and unit in _SHARES:
            value = float(written[:-1]) / 100
        elif unit == "s" and written[-1].isalpha() and written[0].isdigit():
            value = span_s(written)
        else:
            value = float(written)
    except (ValueError, InputError):
        value = math.nan
    if not math.isfinite(value) or (value < 0 and unit not in _MAY_BE_NEGATIVE):
        what = f"invalid value for {name} ({unit or 'number'}): {written!r}"
        raise UsageError(what, do=f"it is 0 or more: {_EXAMPLE}" if value < 0 else _EXAMPLE)
    if unit in _SHARES and not written.endswith("%"):
        refuse_unclear_fraction(value, name=name, error=UsageError)
    return value


def job_conditions(
    selection: JobFilter, recorded_states: Callable[[], Iterable[str]] = tuple
) -> list[pl.Expr]:
    """Return the conditions on columns of job_summaries, without those on findings.

    `recorded_states`: those of the jobs, called where the filter has one of no workload manager: a
    table may have any word. Errors: UsageError for a verdict, state or attribution that does not
    exist, naming those close to it; UsageError for a verdict without a finding that it is about.
    """
    must_exist([selection.verdict], VERDICTS, what="verdict", error=UsageError)
    if selection.verdict != "yes" and not selection.findings:
        raise UsageError(f"verdict {selection.verdict!r} is given without a finding", do="name one")
    must_exist(selection.attributions, ATTRIBUTIONS, what="attribution", error=UsageError)
    states = [state.upper() for state in selection.states]
    other = [state for state in states if state not in _KNOWN_STATES]
    if other:
        recorded = sorted(set(recorded_states()).difference(JOB_STATES))
        must_exist(other, (*recorded, *JOB_STATES), what="state", error=UsageError)
    conditions = [condition.expression for condition in selection.where]
    for name, values in (
        ("user", selection.users),
        ("account", selection.accounts),
        ("partition", selection.partitions),
        ("state", states),
        ("attribution", selection.attributions),
    ):
        if values:
            conditions.append(pl.col(name).is_in(values))
    if selection.since is not None:
        # running jobs have no end: they may run on for a while after they were last summarized
        latest = pl.coalesce("end", pl.col("as_of") + CURRENT_FOR)
        conditions.append((latest > selection.since).fill_null(value=True))
    if selection.until is not None:
        conditions.append(pl.col("start") < selection.until)
    if selection.excluded is not None:
        conditions.append(pl.col("excluded").is_not_null() == selection.excluded)
    return conditions


def filter_jobs(
    summaries: pl.DataFrame, findings: pl.DataFrame, selection: JobFilter
) -> pl.DataFrame:
    """Return the selected rows of job_summaries in their order; `findings`: rows of findings.

    Errors: NotFoundError for a finding that does
    not exist, naming those close to it; those of `job_conditions`.
    """
    check_codes(selection.findings, findings["code"].unique())
    conditions = job_conditions(
        selection, lambda: summaries.get_column("state").drop_nulls().unique()
    )
    if selection.findings:
        keys = answers_to(findings, selection)["job_key"].unique()
        conditions.append(pl.col("job_key").is_in(keys.to_list()))
    return summaries.filter(*conditions) if conditions else summaries


# what `choose_job` reads
JOB_NAMES = (
    *("job_key", "job_id", "display_id", "array_job_id", "het_job_id"),
    *("cluster", "submit", "start"),
)
_LISTED = 8


@dataclass(frozen=True, slots=True)
class ChosenJob:
    """The selected row of job_summaries, and other runs of the job, latest first.

    They have the columns of the rows that it was chosen from.
    """

    row: JobSummaryRow
    other_runs: tuple[JobSummaryRow, ...] = ()


def called(job: str) -> pl.Expr:
    """Return the condition on rows of job_summaries that `choose_job` may choose."""
    name = _without_step(job.strip())
    columns = ("job_key", "job_id", "display_id", "array_job_id", "het_job_id")
    return pl.any_horizontal(pl.col(column) == name for column in columns)


def choose_job(
    summaries: pl.DataFrame, job: str, *, cluster: str | None = None, run: int | None = None
) -> ChosenJob:
    """Return the job for a raw id, a displayed id (123_4, 123+1, 123.server), or a job_key.

    `summaries` has the columns JOB_NAMES at least. A step (123.0, 123.batch) means its job. Of
    several runs the latest, or the `run`-th (1 is the first). Errors: NotFoundError for an unknown
    id, and for an array or heterogeneous job as a whole, naming its parts; SeveralJobsError when
    the id exists on several clusters; UsageError when there are not so many runs.
    """
    name = _without_step(job.strip())
    rows = summaries if cluster is None else summaries.filter(pl.col("cluster") == cluster)
    exact = rows.filter((pl.col("display_id") == name) | (pl.col("job_key") == name))
    parts = rows.filter((pl.col("array_job_id") == name) | (pl.col("het_job_id") == name))
    matches = exact if exact.height else rows.filter(pl.col("job_id") == name)
    if not exact.height and (_names(parts) - _names(matches)):
        raise _whole(name, parts)
    if matches.is_empty():
        of = "" if cluster is None else f" of cluster {cluster!r}"
        raise NotFoundError(f"no job {job!r}{of}", do="`tachograph jobs` lists the analyzed jobs")
    clusters = sorted({str(value) for value in matches["cluster"].drop_nulls()})
    if len(clusters) > 1:
        latest = matches.drop_nulls("cluster").sort("cluster", "submit", "start", nulls_last=False)
        of_clusters = (
            latest.unique("cluster", keep="last", maintain_order=True)
            .select("cluster", "job_key")
            .rows()
        )
        raise SeveralJobsError(
            f"job {name} exists on clusters {', '.join(clusters)}", candidates=of_clusters
        )
    ordered = matches.sort("submit", "start", nulls_last=False)
    runs = cast("list[JobSummaryRow]", ordered.to_dicts())
    if run is not None and not 1 <= run <= len(runs):
        raise UsageError(
            f"job {name} has {plural(len(runs), 'run')}, not {run}", do=f"use 1 to {len(runs)}"
        )
    row = runs.pop(-1 if run is None else run - 1)
    return ChosenJob(row, tuple(reversed(runs)))


def _without_step(name: str) -> str:
    job, step = job_and_step(name) or (name, None)
    return job if step is not None else plain_job_id(name)


def _names(rows: pl.DataFrame) -> set[str]:
    return set(rows.select(pl.coalesce("display_id", "job_id")).to_series())


def _whole(name: str, parts: pl.DataFrame) -> NotFoundError:
    ids: Sequence[str] = sorted(_names(parts), key=lambda part: (len(part), part))
    listed = ", ".join(ids[:_LISTED]) + (
        f" and {len(ids) - _LISTED} more" if len(ids) > _LISTED else ""
    )
    array = parts["array_job_id"].drop_nulls().len() > 0
    return NotFoundError(
        f"{name} is {'an array' if array else 'a heterogeneous job'}",
        do=f"name one of its {'tasks' if array else 'components'}: {listed}",
    )


def with_findings(summaries: pl.DataFrame, findings: pl.DataFrame) -> pl.DataFrame:
    """Return job_summaries with aggregates of findings and waste.

    Those of `with_reported`, and gpu_hours_lost: the sum over all causes of waste; null where none
    is known.
    """
    return with_reported(summaries, findings).with_columns(lost_hours().alias(LOST_COLUMN))


def with_reported(jobs: pl.DataFrame, findings: pl.DataFrame) -> pl.DataFrame:
    """Add the reported findings of each job to rows with a job_key.

    findings: codes of reported ones, most urgent first. worst_severity: of these; null without any.
    """
    codes = known_codes()
    urgency = pl.col("severity").replace_strict({"problem": 0, "hint": 1}, return_dtype=pl.Int8)
    ranks = pl.col("code").replace_strict(
        dict(zip(codes, range(len(codes)), strict=True)), default=len(codes)
    )
    of_jobs = (
        findings.filter(REPORTED)
        .sort(urgency, ranks, "code", maintain_order=True)
        .group_by("job_key", maintain_order=True)
        .agg(
            pl.col("code").alias(FINDINGS_COLUMN), pl.col("severity").first().alias(SEVERITY_COLUMN)
        )
    )
    joined = jobs.join(of_jobs, on="job_key", how="left", maintain_order="left")
    return joined.with_columns(
        pl.col(FINDINGS_COLUMN).fill_null(pl.lit([], dtype=pl.List(pl.String)))
    )


def lost_hours() -> pl.Expr:
    """GPU-hours lost to any cause, from a job_summaries row; null if unknown.

    A running job that has lost none so far may still: most causes are decided at its end.
    """
    causes = [pl.col(f"gpu_hours_{cause}") for cause in WASTE]
    lost = pl.sum_horizontal(causes)
    is_known = pl.any_horizontal(cause.is_not_null() for cause in causes)
    return pl.when(is_known & (pl.col("end").is_not_null() | (lost > 0))).then(lost)


def answers_to(findings: pl.DataFrame, selection: JobFilter) -> pl.DataFrame:
    """Return (job_key, code, verdict) of the findings by which the filter selects jobs."""
    verdict = pl.col("verdict").fill_null("yes")
    order = pl.col("code").replace_strict(
        dict(zip(selection.findings, range(len(selection.findings)), strict=True)),
        default=None,
        return_dtype=pl.Int64,
    )
    return (
        findings.filter(pl.col("code").is_in(selection.findings) & (verdict == selection.verdict))
        .sort(order, maintain_order=True)
        .select("job_key", "code", verdict=verdict)
        .unique(maintain_order=True)
    )


@dataclass(frozen=True, slots=True)
class FirstJobs:
    """The first `limit` jobs in the order of `sort_jobs`."""

    sort: str
    limit: int
    first_user: str = ""

    @property
    def by(self) -> str:
        """The column by which they are sorted."""
        return self.sort.removeprefix("-")


def sort_jobs(
    jobs: pl.DataFrame | pl.LazyFrame, sort: str, limit: int | None = None, *, first_user: str = ""
) -> pl.DataFrame:
    """Return jobs sorted by a column (`-` for descending), jobs without a value last.

    `limit`: only the first of them, for which no copy of all rows is made; of a lazy frame only
    these are kept in memory. `first_user`: the jobs of this user come before all others.
    """
    by = sort.removeprefix("-")
    key = pl.col(by).list.len() if isinstance(jobs.collect_schema()[by], pl.List) else pl.col(by)
    keys, descending = [key, pl.col("job_key")], [sort.startswith("-"), False]
    if first_user:
        keys.insert(0, pl.col("user").eq_missing(pl.lit(first_user)))
        descending.insert(0, True)
    ordered = jobs.lazy().sort(keys, descending=descending, nulls_last=True)
    first = ordered if limit is None else ordered.head(limit)
    return first.collect(engine="streaming" if isinstance(jobs, pl.LazyFrame) else "auto")
