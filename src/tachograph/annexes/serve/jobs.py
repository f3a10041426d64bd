"""Lists of visible jobs: filtered, sorted, a page at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any

import polars as pl

from tachograph.annexes.serve.cursors import CursorValue, decode_cursor, encode_cursor, no_cursor
from tachograph.api.parameters import JobChoiceParameters, Word, says
from tachograph.catalog.columns import FINDINGS_COLUMN, SEVERITY_COLUMN
from tachograph.catalog.tables import JOB_GPUS, JOB_SUMMARIES
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JOB_NAMES, JobCondition, JobFilter, answers_to, lost_hours
from tachograph.lake.resident import REPORTED_COUNT, WORST, CodedVerdict, ResidentJobs
from tachograph.report.jobs import DEFAULT_SORT, JobsTable, build_jobs_table, check_jobs_columns

_KEY, _ROW, _VALUE = "job_key", "row", "value"
# Read whichever columns are shown.
_OF_EACH = frozenset((*JOB_NAMES, "seq", "as_of", *lost_hours().meta.root_names()))
_ANSWERS_ROWS = 5_000  # whose findings are looked up at a time


class JobListParameters(JobChoiceParameters, frozen=True, kw_only=True):
    """Which jobs a list has, and their order."""

    name: Annotated[Word, says("Part of the job's name, without regard to case.")] | None = None
    node: Annotated[Word, says("A node on which it held a GPU.")] | None = None
    gpu_model: Annotated[Word, says("Part of the model of its GPUs, such as A100.")] | None = None
    gpus: Annotated[int, says("Number of its GPUs.")] | None = None
    exit_code: Annotated[int, says("Exit code of its batch script.")] | None = None
    sort: Annotated[Word, says("A column; `-` before it: descending.")] = DEFAULT_SORT

    def job_filter(self, *, now: datetime, zone_name: str) -> JobFilter:
        """Return the filter, without the node. Errors: UsageError for an invalid one."""
        chosen = super().job_filter(now=now, zone_name=zone_name)
        conditions = [
            JobCondition(column, "~" if isinstance(value, str) else "=", value)
            for column in ("name", "gpu_model", "gpus", "exit_code")
            if (value := getattr(self, column)) is not None
        ]
        return replace(chosen, where=(*chosen.where, *conditions))


@dataclass(frozen=True, slots=True)
class JobsPage:
    """A page of jobs: rows, number of matches, cursor of the next page ("" at the end)."""

    table: JobsTable
    cursor: str


@dataclass(frozen=True, slots=True)
class AnswersPage:
    """A page of findings: columns SHORT_FINDING, the total, the cursor of the next page."""

    rows: pl.DataFrame
    matching: int
    cursor: str


class VisibleJobs:
    """Jobs visible to one viewer in one version of a lake.

    resident: all jobs; visible: which rows of its frame are visible, None: all that count.
    """

    def __init__(self, resident: ResidentJobs, visible: pl.Series | None = None) -> None:
        self._resident = resident
        self._visible = resident.counting if visible is None else visible
        self._names: pl.DataFrame | None = None
        self._newest: datetime | None = None

    def __len__(self) -> int:
        """Number of visible jobs."""
        return self._resident.frame.height if self._visible is None else int(self._visible.sum())

    @property
    def names(self) -> pl.DataFrame:
        """Columns job_key, job_id and cluster of the visible jobs."""
        if self._names is None:
            self._names = self.rows(("job_key", "job_id", "cluster"))
        return self._names

    def rows(
        self, columns: Sequence[str] | None = None, job_keys: Iterable[str] | None = None
    ) -> pl.DataFrame:
        """Return rows of job_summaries of visible jobs, of all or of these.

        `columns`: only these, which are not copied where all jobs count.
        """
        columns = tuple(JOB_SUMMARIES.schema) if columns is None else columns
        if job_keys is None and self._visible is None:
            return self._resident.frame.select(columns)
        rows = (
            self._chosen([])
            if job_keys is None
            else self._places(pl.Series(job_keys, dtype=pl.String))
        )
        return self._resident.take(rows, columns)

    @property
    def newest(self) -> datetime | None:
        """Until when any of them was analyzed: None without jobs."""
        if self._newest is None and len(self):
            self._newest = self.rows(["as_of"]).select(pl.col("as_of").max()).item()
        return self._newest

    def on_node(self, node: str | None, lake: Lake) -> VisibleJobs:
        """Return those that held a GPU of a node, by job_gpus of the lake; None: all."""
        if node is None:
            return self
        held = lake.scan(JOB_GPUS).filter(pl.col("node") == node).select(_KEY).unique()
        rows = self._places(held.collect().to_series())
        places = pl.int_range(self._resident.frame.height, dtype=pl.UInt32, eager=True)
        return VisibleJobs(self._resident, places.is_in(rows.implode()))

    def count(self, wanted: JobFilter) -> int:
        """Return how many jobs a filter selects. Errors: as filter_jobs."""
        return self._chosen(self._resident.conditions(wanted)).len()

    def matching(self, wanted: JobFilter, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return `columns` (None: all) of the jobs that a filter selects. Errors: as
        filter_jobs.
        """
        columns = tuple(JOB_SUMMARIES.schema) if columns is None else columns
        return self._resident.take(self._chosen(self._resident.conditions(wanted)), columns)

    def answers(self, wanted: JobFilter, *, limit: int, after: str = "") -> AnswersPage:
        """Return a page of findings of selected jobs: those the filter names, else all reported.

        They are in order of job_key and code, those after the cursor `after`. Errors: as `page`.
        """
        chosen = self._chosen(self._resident.conditions(wanted))
        matching = self._count_answers(chosen, wanted)
        begin, last = ("", "") if not after else _two_texts(decode_cursor(after))
        keys = (
            self._resident.take(chosen, (_KEY,))
            .with_columns(chosen)
            .filter(pl.col(_KEY) >= begin)
            .sort(_KEY)
        )
        found: list[pl.DataFrame] = []
        for at in range(0, keys.height, _ANSWERS_ROWS):
            of_rows = self._answers_of(keys.get_column(_ROW).slice(at, _ANSWERS_ROWS), wanted).sort(
                _KEY, "code"
            )
            found.append(of_rows.filter((pl.col(_KEY) > begin) | (pl.col("code") > last)))
            if sum(part.height for part in found) > limit:
                break
        answers = pl.concat(found) if found else self._answers_of(chosen.head(0), wanted)
        page = answers.head(limit)
        cursor = encode_cursor(*page.select(_KEY, "code").row(-1)) if answers.height > limit else ""
        return AnswersPage(page, matching, cursor)

    def kept_answers(
        self,
        job_keys: pl.Series,
        codes: Sequence[str] | None = (),
        *,
        reported: bool = False,
        only: Sequence[str] | None = None,
    ) -> pl.DataFrame:
        """Return SHORT_FINDING of the visible jobs among these: see `Lake.kept_answers`."""
        rows = self._places(job_keys) if job_keys.len() < len(self) else self._chosen([])
        least = CodedVerdict.HINT if reported else CodedVerdict.UNREPORTED
        return self._resident.answers_of(rows, least, codes, only=only)

    def verdict_counts(self, wanted: JobFilter) -> pl.DataFrame:
        """Return (code, verdict, jobs, reported) of selected jobs, one row per code and verdict."""
        return self._resident.verdict_counts(self._chosen(self._resident.conditions(wanted)))

    def page(
        self,
        wanted: JobFilter,
        *,
        columns: Sequence[str] = (),
        sort: str = DEFAULT_SORT,
        limit: int = 50,
        after: str = "",
        zone_name: str = "UTC",
    ) -> JobsPage:
        """Return `limit` jobs sorted by `sort`, after the cursor `after`.

        A cursor is a position in the order: new jobs move no other job to another page. The frame
        has all columns of job_summaries, or the jobs' names and the selected `columns`. Errors:
        UsageError for an invalid cursor; those of filter_jobs and build_jobs_table.
        """
        check_jobs_columns(columns, sort)
        chosen = self._chosen(self._resident.conditions(wanted))
        order, down = _sort_value(sort.removeprefix("-")).alias(_VALUE), sort.startswith("-")
        values = self._resident.take(chosen, (order,)).to_series()
        place = _place(values.dtype, decode_cursor(after)) if after else None
        first = self._first(chosen, values, place, limit + 1, down=down)
        page = first.head(limit)
        shown = page.get_column(_ROW)
        needed = (
            {*_OF_EACH, *columns, sort.removeprefix("-")} if columns else set(JOB_SUMMARIES.schema)
        )
        table = build_jobs_table(
            self._resident.take(shown, [name for name in JOB_SUMMARIES.schema if name in needed]),
            self._resident.answers_of(shown),
            columns=columns,
            sort=sort,
            zone_name=zone_name,
            wanted=wanted,
        )
        more = first.height > limit
        return JobsPage(
            replace(table, matching=chosen.len()),
            encode_cursor(*page.select(_VALUE, _KEY).row(-1)) if more else "",
        )

    def _chosen(self, conditions: Sequence[pl.Expr]) -> pl.Series:
        """Numbers of the visible rows that meet conditions."""
        frame = self._resident.frame
        visible = [] if self._visible is None else [pl.lit(self._visible)]
        if not (visible or conditions):
            return pl.int_range(frame.height, dtype=pl.UInt32, eager=True).alias(_ROW)
        both = pl.all_horizontal(*visible, *conditions)
        return frame.select(both.arg_true().alias(_ROW)).get_column(_ROW)

    def _first(
        self,
        chosen: pl.Series,
        values: pl.Series,
        place: tuple[Any, str] | None,
        count: int,
        *,
        down: bool,
    ) -> pl.DataFrame:
        """Value, key and number of the first rows after a position; missing values are last."""
        near = _near(values, place, count, down=down)
        if near is not None:  # keys are read and compared only of rows that may be first
            chosen, values = chosen.filter(near), values.filter(near)
        rows = self._resident.take(chosen, (_KEY,)).with_columns(values, chosen)
        if place is not None:
            rows = rows.filter(_behind(*place, down=down))
        first = rows.lazy().bottom_k(count, by=[_VALUE, _KEY], reverse=[down, False])
        return first.sort(_VALUE, _KEY, descending=[down, False], nulls_last=True).collect()

    def _places(self, job_keys: pl.Series) -> pl.Series:
        """Numbers of the rows of visible jobs among these."""
        found = self._resident.places(job_keys)
        return found if self._visible is None else found.filter(self._visible.gather(found))

    def _answers_of(self, rows: pl.Series, wanted: JobFilter) -> pl.DataFrame:
        least = CodedVerdict.NO if wanted.findings else CodedVerdict.HINT
        found = self._resident.answers_of(rows, least)
        if wanted.findings:
            found = found.join(answers_to(found, wanted), on=[_KEY, "code"], how="semi")
        return found

    def _count_answers(self, chosen: pl.Series, wanted: JobFilter) -> int:
        if not wanted.findings:
            return int(
                self._resident.take(chosen, (REPORTED_COUNT,)).get_column(REPORTED_COUNT).sum()
            )
        alone = (
            replace(JobFilter(), findings=(code,), verdict=wanted.verdict)
            for code in set(wanted.findings)
        )
        of_codes = [pl.all_horizontal(self._resident.conditions(one)) for one in alone]
        return int(
            self._resident.take(chosen, [pl.sum_horizontal(of_codes).alias(_VALUE)])
            .get_column(_VALUE)
            .sum()
        )


def _sort_value(by: str) -> pl.Expr:
    """Sort value of a list, as text or number for a cursor."""
    if by == FINDINGS_COLUMN:
        return pl.col(REPORTED_COUNT)
    if by == SEVERITY_COLUMN:
        return pl.col(WORST)  # in the order of the text
    dtype = JOB_SUMMARIES.schema.get(by, pl.Float64())
    column = pl.col(by)
    if isinstance(dtype, pl.List):
        return column.list.len()
    if dtype.is_float():
        return pl.when(column.is_finite()).then(column)
    return column.to_physical() if dtype.is_temporal() else column


def _place(dtype: pl.DataType, cursor: Sequence[CursorValue]) -> tuple[Any, str]:
    """Value and key that a cursor names, whether or not its job is still there."""
    if len(cursor) != 2 or not isinstance(cursor[1], str):
        raise no_cursor()
    try:
        return pl.Series([cursor[0]], dtype=dtype).item(), cursor[1]
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        raise no_cursor() from None


def _near(
    values: pl.Series, place: tuple[Any, str] | None, count: int, *, down: bool
) -> pl.Series | None:
    """Return which rows may be among the first after a position; None: any."""
    if not values.dtype.is_numeric():
        return None
    position = None if place is None else place[0]
    if place is None:
        later = values.drop_nulls()
    elif position is None:
        return None
    else:
        later = values.filter(values < position if down else values > position)
    if later.len() < count:
        return None
    near = values >= later.top_k(count).min() if down else values <= later.bottom_k(count).max()
    if place is None:
        return near
    return near & (values <= position if down else values >= position)


def _behind(at: Any, key: str, *, down: bool) -> pl.Expr:
    """Return which rows sort after a position."""
    value, later = pl.col(_VALUE), pl.col(_KEY) > key
    if at is None:
        return value.is_null() & later
    behind: pl.Expr = value < at if down else value > at
    same: pl.Expr = (value == at) & later
    return (behind | same).fill_null(value=True)


def _two_texts(cursor: Sequence[CursorValue]) -> tuple[str, str]:
    if len(cursor) != 2 or not all(isinstance(value, str) for value in cursor):
        raise no_cursor()
    return str(cursor[0]), str(cursor[1])
