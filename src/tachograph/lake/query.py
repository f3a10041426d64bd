"""Reads the computed tables: summaries, GPUs, minutes and findings of each job's latest
analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar, cast

import polars as pl

from tachograph.catalog.codes import REPORTED, check_codes, known_codes
from tachograph.catalog.columns import FINDINGS_COLUMN, LOST_COLUMN, SEVERITY_COLUMN
from tachograph.catalog.errors import LakeError, NotAnalyzedError, NotFoundError
from tachograph.catalog.tables import (
    ALLOCATIONS,
    ANALYSES,
    FINDINGS,
    GPU_KEY,
    GPU_SAMPLES,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_NODE_MINUTES,
    JOB_SUMMARIES,
    JOBS,
    NODE_SAMPLES,
    STEP_SUMMARIES,
    TIME,
    LakeTable,
)
from tachograph.lake.conform import resolve
from tachograph.lake.current import FEW_KEYS, files_between, scan_current
from tachograph.lake.data_files import DataFile, span_of
from tachograph.lake.delta import Lake
from tachograph.lake.filters import (
    CURRENT_FOR,
    JOB_NAMES,
    ChosenJob,
    FirstJobs,
    JobFilter,
    answers_to,
    called,
    choose_job,
    job_conditions,
    lost_hours,
    sort_jobs,
    with_reported,
)
from tachograph.lake.places import in_accounting, may_be_of, read_same_clusters
from tachograph.lake.problems import lake_errors

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobRow, JobSummaryRow


MANY_JOBS = 50_000  # whose findings are read a part at a time
READ_ATTEMPTS = 5  # at results that change while they are read
# An analysis that began longer ago and wrote no summaries was killed.
UNFINISHED = timedelta(days=1)

T = TypeVar("T")


def lake_now(lake: Lake, clock: datetime) -> datetime:
    """Return `clock`; of a lake whose data end more than a day earlier, when they end.

    That is the latest sample, or the latest time of a job that started. Of a damaged lake it is
    `clock`: who reads the damaged table reports it.
    """
    try:
        latest = _latest_time(lake, clock)
    except LakeError:
        return clock
    return clock if latest is None or clock - latest <= CURRENT_FOR else latest


def _latest_time(lake: Lake, clock: datetime) -> datetime | None:
    """When the data end; jobs are read only where samples do not show that the lake is current."""
    files = [*lake.files(GPU_SAMPLES), *lake.files(NODE_SAMPLES)]
    latest = span_of(files)[1]
    if latest is None or clock - latest > CURRENT_FOR:
        newest = [latest, *(_latest_of(lake, table, lake.version(table)) for table in _TIMED)]
        latest = max((time for time in newest if time is not None), default=None)
        if latest is not None and clock - latest <= _POLLED_FOR:
            return clock if _holds_polled_jobs(lake, lake.version(JOBS)) else latest
    return latest


_TIMED = (JOBS, ALLOCATIONS)
# While jobs run for long, polls of a scheduler may show no start and no end.
_POLLED_FOR = timedelta(days=30)


@lru_cache(maxsize=8)
def _holds_polled_jobs(lake: Lake, version: int) -> bool:
    """Whether a version of the jobs holds one that ran when its scheduler was asked."""
    if version < 0:
        return False
    polled = (pl.col("state") == "RUNNING") & ~pl.col("saved")
    with lake_errors(lake.uri(JOBS)):
        return bool(lake.scan(JOBS).select(polled.any()).collect().item())


@lru_cache(maxsize=8)
def _latest_of(lake: Lake, table: LakeTable, version: int) -> datetime | None:
    """The latest start or end of a job in a version of a table."""
    files = sorted(lake.files(table), key=lambda file: file.seq)
    latest = _latest_in(lake, table, files[-1:])
    later = _latest_in(lake, table, files[:-1], after=latest)
    return latest if later is None else later


def _latest_in(
    lake: Lake, table: LakeTable, files: Sequence[DataFile], *, after: datetime | None = None
) -> datetime | None:
    """The latest start or end of a job in some files, if it is later than `after`.

    Row groups whose statistics show that all is earlier are not decoded.
    """
    times = [pl.col("start"), pl.col("end")]
    started = lake.read_files(table, files)
    if table is JOBS:
        started = started.filter(pl.col("state").ne_missing("PENDING"))
        ran = pl.col("start") + pl.duration(microseconds=pl.col("elapsed_s") * 1e6)
        times.append(pl.when(pl.col("end").is_null()).then(ran))
    if after is not None:
        later = [pl.col("start") > after, pl.col("end") > after]
        started = started.filter(pl.any_horizontal(*later, pl.col("end").is_null()))
    with lake_errors(lake.uri(table)):
        latest = started.select(pl.max_horizontal(time.max() for time in times)).collect().item()
    return latest if isinstance(latest, datetime) and (after is None or latest > after) else None


def read_consistently(lake: Lake, read: Callable[[], T]) -> T:
    """Return the result of `read` (summaries and related rows) from one analysis.

    A compaction drops rows that a later analysis superseded. If both happen between reading the
    summaries and the related rows, these are missing; so if the summaries changed meanwhile, `read`
    is called again.
    """
    for _ in range(READ_ATTEMPTS - 1):
        with lake.one_moment():
            before = lake.version(JOB_SUMMARIES)
            result = read()
        if lake.version(JOB_SUMMARIES) == before:
            return result
    return read()


def read_summaries(
    lake: Lake,
    columns: Sequence[str] | None = None,
    *,
    keys: Sequence[str] | None = None,
    where: pl.Expr | None = None,
) -> pl.DataFrame:
    """Return job_summaries, one row per run, of each job's latest analysis.

    `columns`: read only these, which is much less for many jobs. `keys`: only jobs with these
    job_keys. `where`: only jobs that meet it. Errors: LakeError before the first analysis.
    """
    _check_analyzed(lake)
    return lake.latest(JOB_SUMMARIES, columns, keys, where)


def _check_analyzed(lake: Lake) -> None:
    if lake.version(JOB_SUMMARIES) < 0 and lake.version(ANALYSES) < 0:
        raise LakeError(
            "nothing was analyzed yet", where=lake.location, do="run `tachograph analyze`"
        )


def read_job_row(
    lake: Lake, job: str, *, cluster: str | None = None, run: int | None = None
) -> ChosenJob:
    """Return the row of a job, and its other runs.

    Errors: those of `read_summaries` and `choose_job`; NotAnalyzedError for a job that only the
    accounting has.
    """
    if ":" in job and run is None:  # a job_key: one row
        of_key = read_summaries(lake, keys=[job])
        if of_key.height:
            return choose_job(of_key, job, cluster=cluster)
    names = read_summaries(lake, JOB_NAMES, where=called(job))
    try:
        run_names = choose_job(names, job, cluster=cluster, run=run)
    except NotFoundError:
        # Slurm gives the last task of an array the raw id of the whole: that one was analyzed.
        in_cluster = names if cluster is None else names.filter(cluster=cluster)
        row = None if run or in_cluster.height else _accounted(lake, job.strip(), cluster)
        if row is None:
            raise
        name = row["display_id"] or row["job_id"]
        raise NotAnalyzedError(
            f"job {name} is in the accounting but not analyzed yet", row=row
        ) from None
    keys = [row["job_key"] for row in (run_names.row, *run_names.other_runs)]
    summaries = cast("list[JobSummaryRow]", read_summaries(lake, keys=keys).to_dicts())
    rows = {row["job_key"]: row for row in summaries}
    if keys[0] not in rows:  # an analysis gave the run another key meanwhile
        raise NotFoundError(f"job {job!r} is being updated", do="try again")
    return ChosenJob(rows[keys[0]], tuple(rows[key] for key in keys[1:] if key in rows))


def _accounted(lake: Lake, job: str, cluster: str | None) -> JobRow | None:
    """Last accounting row of a job id, or None."""
    files = [file for file in lake.files(JOBS) if file.may_name(job) or "_" in job or "+" in job]
    named = (pl.col("job_id") == job) | (pl.col("display_id") == job)
    of_cluster = [] if cluster is None else [pl.col("cluster") == cluster]
    with lake_errors(lake.uri(JOBS)):
        rows = lake.read_files(JOBS, files).filter(named, *of_cluster).collect()
    if rows.is_empty():
        return None
    return cast("JobRow", rows.sort("submit", "seq").row(-1, named=True))


def read_jobs_not_analyzed(lake: Lake) -> pl.DataFrame:
    """Return accounting rows of jobs without results, newer than the last analysis, newest
    first.
    """
    analyses = lake.latest(ANALYSES).sort("seq")
    analyzed = -1 if analyses.is_empty() else analyses["jobs_version"][-1]
    files = [file for file in lake.files(JOBS) if file.seq > analyzed]
    version = lake.version(JOBS) if files else -1
    with lake_errors(lake.uri(JOBS)):  # a number above the version's has no commit
        fresh = lake.read_files(JOBS, files).filter(
            pl.col("seq").is_between(analyzed, version, closed="right")
        )
        rows, _ = resolve(fresh.collect(), JOBS)
    if rows.is_empty():
        return rows
    analyzed_jobs = (
        read_summaries(lake, ("job_id",))
        if lake.version(JOB_SUMMARIES) >= 0
        else JOB_SUMMARIES.empty()
    )
    return rows.join(analyzed_jobs, on="job_id", how="anti").sort(
        "submit", "job_id", descending=True, nulls_last=True
    )


def read_latest(lake: Lake, table: LakeTable) -> pl.DataFrame:
    """Return the last row per key of a source table: jobs, allocations, devices."""
    return lake.latest(table)


def read_evidence(lake: Lake, row: JobSummaryRow) -> str:
    """Return how a run was placed: samples, map, live_index, node_list, elsewhere, nothing.

    `row`: of job_summaries. elsewhere: what names the job does so at other times.
    """
    ids = [name for name in (row["job_id"], row["display_id"]) if name]
    with lake_errors(lake.uri(ALLOCATIONS)):
        named = lake.read_named(ALLOCATIONS, ids).select("start", "end", "provenance").collect()
    before, after = pl.col("end") <= row["start"], pl.col("start") >= row["as_of"]
    inside = named.filter(~(before | after).fill_null(value=False))["provenance"].unique().to_list()
    best = next(
        (name for name in ("samples", "explicit", "live_index", "node_list") if name in inside),
        None,
    )
    return best or ("elsewhere" if named.height else "nothing")


def scan_rows(lake: Lake, table: LakeTable, jobs: pl.DataFrame) -> pl.LazyFrame:
    """Return the rows of a computed table for `jobs` as a lazy frame, of their summary's analysis.

    `jobs`: rows of job_summaries. Of a table by day only the days of the jobs are read; of few jobs
    only the files that may have rows of them. Errors: LakeError when collected inside
    `lake_errors`.
    """
    if jobs.is_empty():
        return table.empty().lazy()
    files = lake.files(table, _days(lake, table, jobs) if table.by_day else None)
    keys = jobs["job_key"]
    if jobs.height > FEW_KEYS:
        least, greatest = str(keys.min()), str(keys.max())
        candidates = files_between(files, least, greatest)
        rows = lake.read_files(table, candidates).filter(
            pl.col("job_key").is_between(pl.lit(least), pl.lit(greatest))
        )
    else:
        runs = jobs.select("job_key", "seq").rows()
        rows = lake.read_files(table, [file for file in files if _may_hold(file, runs)])
        if len(runs) == 1:
            return rows.filter(pl.col("job_key") == runs[0][0], pl.col("seq") == runs[0][1])
        # Other row groups are not decoded.
        rows = rows.filter(pl.col("job_key").is_in([key for key, _ in runs]))
    return rows.join(jobs.lazy().select("job_key", "seq"), on=["job_key", "seq"], how="semi")


def _may_hold(file: DataFile, runs: Iterable[tuple[str, int]]) -> bool:
    """Whether a file may have rows of one of these (job_key, seq), by its log entry."""
    return any(
        file.may_name(job_key) and file.least_seq <= seq <= (file.seq or seq)
        for job_key, seq in runs
    )


def read_where(lake: Lake, table: LakeTable, where: pl.Expr) -> pl.DataFrame:
    """Return the rows of a table that meet a condition, each key once.

    Of rows with one key, only those that meet it complete each other. Errors: LakeError.
    """
    with lake_errors(lake.uri(table)):
        return resolve(lake.scan(table).filter(where).collect(), table)[0]


def read_rows(
    lake: Lake, table: LakeTable, jobs: pl.DataFrame, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """Return the rows of a computed table for `jobs`, rows of job_summaries, in table order.

    `columns`: only these are read; None: all.
    """
    names = tuple(table.schema) if columns is None else columns
    with lake_errors(lake.uri(table)):
        rows = scan_rows(lake, table, jobs).select(list(dict.fromkeys((*table.sort, *names))))
        return rows.collect().sort(*table.sort).select(names)


def read_gpus(lake: Lake, jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of job_gpus of these jobs."""
    return read_rows(lake, JOB_GPUS, jobs)


def read_of_gpus(
    lake: Lake, table: LakeTable, gpus: pl.DataFrame, *, begin: datetime, end: datetime
) -> pl.DataFrame:
    """Return rows of a table of GPUs that start between `begin` and `end`, for these GPUs."""
    requested = gpus.select(*GPU_KEY, of_job="cluster").unique()
    days = [day for day in lake.days(table) if begin.date() <= day <= end.date()]
    with lake_errors(lake.uri(table)):
        inside = lake.scan(table, days).filter(pl.col("t").is_between(begin, end)).collect()
    rows = in_accounting(inside, read_same_clusters(lake)).join(
        requested, on=GPU_KEY, nulls_equal=True
    )
    rows = rows.filter(may_be_of("of_job"))
    return resolve(rows.drop("of_job"), table)[0]


def read_node(
    lake: Lake,
    node: str,
    of_jobs: Sequence[str],
    of_gpus: Sequence[str],
    *,
    cluster: str | None = None,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return a node's jobs and their rows of job_gpus there, with keys and chosen columns.

    cluster: only of this one, or of none. Errors: those of `read_summaries`.
    """
    keys = ("job_key", "seq")
    files = [
        file for file in lake.files(JOB_GPUS) if (file.low or node) <= node <= (file.high or node)
    ]
    with lake_errors(lake.uri(JOB_GPUS)):
        rows = lake.read_files(JOB_GPUS, files).filter(
            pl.col("node") == node, may_be_of(pl.lit(cluster, pl.String))
        )
        gpus = rows.select(list(dict.fromkeys((*keys, *of_gpus)))).collect()
    job_keys = gpus["job_key"].unique().to_list()
    columns = list(dict.fromkeys((*keys, "cluster", *of_jobs)))
    jobs = read_summaries(lake, columns, keys=job_keys)
    # Rows of GPUs of earlier versions name no cluster.
    jobs = jobs.filter(may_be_of(pl.lit(cluster, pl.String)))
    return jobs, gpus.join(jobs, on=keys, how="semi", maintain_order="left").sort(*JOB_GPUS.sort)


def read_steps(
    lake: Lake, jobs: pl.DataFrame, columns: Sequence[str] | None = None
) -> pl.DataFrame:
    """Return rows of step_summaries of these jobs; empty without steps in the accounting."""
    return read_rows(lake, STEP_SUMMARIES, jobs, columns)


def read_minutes(lake: Lake, jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of job_minutes of these jobs."""
    return read_rows(lake, JOB_MINUTES, jobs)


def read_node_minutes(lake: Lake, jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of job_node_minutes of these jobs; empty if no host counter was recorded."""
    return read_rows(lake, JOB_NODE_MINUTES, jobs)


def _days(lake: Lake, table: LakeTable, jobs: pl.DataFrame) -> list[date]:
    first, last = jobs.select(pl.col("start").dt.date().min(), pl.col("as_of").dt.date().max()).row(
        0
    )
    return [day for day in lake.days(table) if first <= day <= last]


# ---------------------------------------------------------------------------------------------------------- findings

# For filters, tables and counts.
SHORT_FINDING = ("job_key", "code", "kind", "verdict", "severity", "covered_by")
FINDING_INTERVAL = (*SHORT_FINDING, "confidence", "begin", "end")


# As it lies in files of any version.
_MAY_HOLD = pl.col("verdict").is_null() | (pl.col("verdict") == "yes")


def read_verdicts(
    lake: Lake,
    jobs: pl.DataFrame,
    where: pl.Expr | None = None,
    columns: Sequence[str] = tuple(FINDINGS.schema),
    *,
    holding: bool = False,
) -> pl.DataFrame:
    """Return `columns` of the findings of these jobs; optionally only those `where` applies.

    `holding`: `where` is met by none but findings that hold, so that no others are read.
    """
    with lake_errors(lake.uri(FINDINGS)):
        there = scan_rows(lake, FINDINGS, jobs)
        rows = as_of_now(there.filter(_MAY_HOLD) if holding else there)
        if where is not None:
            rows = rows.filter(where)
        requested = rows.select(list(dict.fromkeys((*FINDINGS.sort, *columns))))
        if jobs.height > MANY_JOBS:  # rows of jobs are few beside those that are read
            return requested.collect(engine="streaming").sort(*FINDINGS.sort).select(columns)
        return requested.collect().sort(*FINDINGS.sort).select(columns)


def read_findings(lake: Lake, jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the reported findings of these jobs."""
    return read_verdicts(lake, jobs, REPORTED, holding=True)


def with_advice(lake: Lake, findings: pl.DataFrame, jobs: pl.DataFrame) -> pl.DataFrame:
    """Add the column `advice` to findings by `job_key` and `code`: what the job's report says.

    The advice of a check is not always that of its findings: it depends on the job.
    """
    keys = ["job_key", "code"]
    concerned = jobs.join(findings, on="job_key", how="semi")
    advice = read_verdicts(lake, concerned, REPORTED, (*keys, "advice"), holding=True)
    advice = advice.unique(keys, keep="first", maintain_order=True)
    return findings.join(advice, on=keys, how="left", maintain_order="left")


def read_answers(
    lake: Lake,
    jobs: pl.DataFrame,
    codes: Sequence[str] = (),
    *,
    every: bool = False,
    reported: bool = False,
) -> pl.DataFrame:
    """Return SHORT_FINDING columns of triggered findings of these jobs; any verdict for `codes`.

    `every`: all with any verdict; `reported`: none that is a mere fact or covered by another.
    Errors: NotFoundError for a code that is neither in the program nor in the lake.
    """
    _check_stored(lake, codes)
    resident = lake.kept_answers(jobs["job_key"], None if every else codes, reported=reported)
    if resident is not None:
        return resident.sort(*FINDINGS.sort).select(SHORT_FINDING)
    holds = (REPORTED if reported else pl.col("verdict") == "yes") | pl.col("code").is_in(
        list(codes)
    )
    return read_verdicts(
        lake, jobs, None if every else holds, SHORT_FINDING, holding=not (every or codes)
    )


def read_intervals(
    lake: Lake, jobs: pl.DataFrame, codes: Sequence[str], *, holding: bool = False
) -> pl.DataFrame:
    """Return columns FINDING_INTERVAL of the findings `codes` of these jobs, with any verdict.

    `holding`: only findings that hold.
    """
    where = pl.col("code").is_in(list(codes))
    if not holding:
        return read_verdicts(lake, jobs, where, FINDING_INTERVAL)
    resident = lake.kept_answers(jobs["job_key"], only=codes)
    if resident is not None:
        jobs = jobs.join(resident, on="job_key", how="semi")
    return read_verdicts(
        lake, jobs, where & (pl.col("verdict") == "yes"), FINDING_INTERVAL, holding=True
    )


def as_of_now(rows: pl.LazyFrame) -> pl.LazyFrame:
    """Rows of findings of any version: without kind and verdict they are checks that hold."""
    return rows.with_columns(
        pl.col("kind")
        .fill_null("check")
        .replace(dict.fromkeys(("advice", "class", "rule"), "check")),
        pl.col("verdict").fill_null("yes").replace("insufficient", "unknown"),
        pl.col("severity").replace("note", "hint"),
        pl.col("checks").fill_null("[]"),
        pl.col("needs").fill_null(pl.lit([], dtype=pl.List(pl.String))),
    )


def _check_stored(lake: Lake, codes: Sequence[str]) -> None:
    """Errors: NotFoundError for a code that is neither in the program nor in the lake."""
    if not set(known_codes()).issuperset(codes):
        check_codes(codes, sorted(_values_of(lake, FINDINGS, "code")))


# -------------------------------------------------------------------------------------------------- jobs by filter


@dataclass(frozen=True, slots=True)
class SelectedJobs:
    """The jobs that a filter selects, of one moment of the lake.

    jobs: rows of job_summaries, in the order of the table; or only the first ones in another order.
    matching: how many are selected in all. answers: what `read_answers` returns of `jobs`, where it
    was read.
    """

    jobs: pl.DataFrame
    matching: int
    answers: pl.DataFrame


def select_jobs(
    lake: Lake,
    selection: JobFilter,
    columns: Sequence[str] | None = None,
    *,
    answers: bool = False,
    first: FirstJobs | None = None,
) -> SelectedJobs:
    """Return the jobs that are selected. `answers`: read them even if the filter names no finding.

    `columns`: of the selected jobs; None: all of job_summaries. `first`: only these of them.
    Errors: LakeError where nothing was analyzed yet; those of `read_answers` and `job_conditions`.
    """

    def read() -> SelectedJobs:
        conditions = job_conditions(selection, lambda: _values_of(lake, JOB_SUMMARIES, "state"))
        where = pl.all_horizontal(conditions) if conditions else None
        if first is None and not selection.findings:
            needed = None if columns is None else tuple(dict.fromkeys((*columns, "job_key", "seq")))
            jobs = read_summaries(lake, needed, where=where)
            findings = read_answers(lake, jobs if answers else jobs.clear())
            return SelectedJobs(
                jobs if columns is None else jobs.select(columns), jobs.height, findings
            )
        every = False
        if first is None or selection.findings or first.by in _OF_FINDINGS:
            sorted_by = () if first is None else _sorted_by(first)
            names = read_summaries(lake, _with_keys(sorted_by), where=where)
            before = names.height
            if selection.findings:
                names = _answered(lake, names, selection)
            selected = names if first is None else _first(lake, names, first)
            matching = names.height
            every = where is None and first is None and matching == before
        else:
            selected, matching = _first_scanned(lake, where, first)
        findings = read_answers(
            lake,
            selected if answers or selection.findings else selected.clear(),
            selection.findings,
        )
        jobs = read_summaries(lake, columns, keys=None if every else selected["job_key"].to_list())
        return SelectedJobs(jobs, matching, findings)

    return read_consistently(lake, read)


def _values_of(lake: Lake, table: LakeTable, column: str) -> list[str]:
    """Return the values of a column of text that rows of a table have, or had."""
    with lake_errors(lake.uri(table)):
        rows = lake.scan(table).select(pl.col(column).drop_nulls().unique())
        return rows.collect(engine="streaming").get_column(column).to_list()


def _answered(lake: Lake, jobs: pl.DataFrame, selection: JobFilter) -> pl.DataFrame:
    """Jobs whose findings meet the filter."""
    _check_stored(lake, selection.findings)
    resident = lake.kept_answers(jobs["job_key"], selection.findings, only=selection.findings)
    meets = pl.col("code").is_in(list(selection.findings)) & (
        pl.col("verdict") == selection.verdict
    )
    needed = ("job_key", "code", "verdict")
    stored = (
        read_verdicts(lake, jobs, meets, needed, holding=selection.verdict == "yes")
        if resident is None
        else resident
    )
    return jobs.join(answers_to(stored, selection), on="job_key", how="semi", maintain_order="left")


_OF_FINDINGS = (FINDINGS_COLUMN, SEVERITY_COLUMN)


def _with_keys(columns: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("job_key", "seq", *columns)))


def _sorted_by(first: FirstJobs) -> list[str]:
    """Columns of job_summaries that an order reads."""
    users = ["user"] if first.first_user else []
    if first.by == LOST_COLUMN:
        return [*users, *sorted(set(lost_hours().meta.root_names()))]
    return users if first.by in _OF_FINDINGS else [*users, first.by]


def _first_scanned(lake: Lake, where: pl.Expr | None, first: FirstJobs) -> tuple[pl.DataFrame, int]:
    """The first jobs that meet a condition, and how many meet it; no others are kept in memory."""
    _check_analyzed(lake)
    files = lake.files(JOB_SUMMARIES)
    with lake_errors(lake.uri(JOB_SUMMARIES)):
        rows = scan_current(lake, JOB_SUMMARIES, files, pl.lit(True) if where is None else where)
        matching: int = rows.select(pl.len()).collect(engine="streaming").item()
        return _ordered(rows.select(_with_keys(_sorted_by(first))), first), matching


def _first(lake: Lake, names: pl.DataFrame, first: FirstJobs) -> pl.DataFrame:
    """The first of some jobs; those sorted by their findings need the findings of all."""
    if first.by in _OF_FINDINGS:
        names = with_reported(names, read_answers(lake, names, reported=True))
    return _ordered(names, first)


def _ordered(rows: pl.DataFrame | pl.LazyFrame, first: FirstJobs) -> pl.DataFrame:
    if first.by == LOST_COLUMN:
        rows = rows.with_columns(lost_hours().alias(LOST_COLUMN))
    ordered = sort_jobs(rows, first.sort, first.limit, first_user=first.first_user)
    return ordered.select("job_key", "seq")


def jobs_and_intervals(
    lake: Lake,
    selection: JobFilter,
    codes: Sequence[str],
    columns: Sequence[str] | None = None,
    *,
    holding: bool = False,
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the selected jobs and their `read_intervals`, consistently of one version.

    `columns`: of the jobs; None: all of job_summaries. Errors: those of `select_jobs`.
    """

    def read() -> tuple[pl.DataFrame, pl.DataFrame]:
        read_of = None if columns is None else tuple(dict.fromkeys((*columns, "job_key", "seq")))
        jobs = select_jobs(lake, selection, read_of).jobs
        return jobs, read_intervals(lake, jobs, codes, holding=holding)

    return read_consistently(lake, read)


# ------------------------------------------------------------------------------------------------- samples by time


class SampleReader:
    """Reads GPU samples by time from one version of the lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._files = [
            file for file in lake.files(GPU_SAMPLES) if file.rows and file.first and file.last
        ]

    @property
    def rows(self) -> int:
        """Number of samples."""
        return sum(file.rows for file in self._files)

    @property
    def span(self) -> tuple[datetime, datetime] | None:
        """First and last sample time; None without samples."""
        first, last = span_of(self._files)
        return (first, last) if first and last else None

    def read(self, first: datetime, end: datetime) -> pl.DataFrame:
        """Return the samples of [first, end), one row per key. Errors: LakeError."""
        files = [
            file
            for file in self._files
            if file.first and file.last and file.first < end and file.last >= first
        ]
        inside = (pl.col("t") >= pl.lit(first, dtype=TIME)) & (
            pl.col("t") < pl.lit(end, dtype=TIME)
        )
        with lake_errors(self._lake.uri(GPU_SAMPLES)):
            return resolve(
                self._lake.read_files(GPU_SAMPLES, files).filter(inside).collect(), GPU_SAMPLES
            )[0]

    def read_columns(self, first: datetime, columns: Sequence[str]) -> pl.DataFrame:
        """Return keys and some counters of samples since `first`, duplicates included.

        Much less than `read` of many GPUs. Errors: LakeError.
        """
        files = [file for file in self._files if file.last and file.last >= first]
        with lake_errors(self._lake.uri(GPU_SAMPLES)):
            rows = self._lake.read_files(GPU_SAMPLES, files, [*GPU_SAMPLES.key, *columns])
            return rows.filter(pl.col("t") >= pl.lit(first, dtype=TIME)).collect(engine="streaming")
