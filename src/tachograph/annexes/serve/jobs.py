"""Jobs in server memory: summaries and verdicts of one version in one frame, and lists of them.

A row per run of a job, with all columns of job_summaries and one per code of a finding: what its
verdict is, as a number of 8 bits. So filters and orders read a column or two, and rows are gathered
only for what is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import IntEnum
from functools import reduce
from operator import or_
from typing import Annotated, Any

import numpy as np
import polars as pl

from tachograph.api.answers import CursorValue, decode_cursor, encode_cursor, no_cursor
from tachograph.api.parameters import JobChoiceParameters, Word, says
from tachograph.api.viewer import Viewer
from tachograph.catalog.codes import check_codes
from tachograph.catalog.columns import FINDINGS_COLUMN, SEVERITY_COLUMN
from tachograph.catalog.tables import JOB_GPUS, JOB_SUMMARIES
from tachograph.lake.delta import Lake
from tachograph.lake.filters import (
    JOB_NAMES,
    JobCondition,
    JobFilter,
    answers_to,
    job_conditions,
    lost_hours,
)
from tachograph.report.jobs import DEFAULT_SORT, JobsTable, build_jobs_table, check_jobs_columns

_KEY, _ROW, _VALUE = "job_key", "row", "value"
# Read whichever columns are shown.
_OF_EACH = frozenset((*JOB_NAMES, "seq", "as_of", *lost_hours().meta.root_names()))
_ANSWERS_ROWS = 5_000  # whose findings are looked up at a time
REPORTED_COUNT, WORST = "reported_findings", "worst_finding"
VERDICT_OF = "verdict of "  # before a code: the column of its verdicts
_MOST_SEARCHED = 10_000  # jobs: more are compared with all
_MOST_GATHERED = 50  # of more rows than this share, whole columns are filtered


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
        selection = super().job_filter(now=now, zone_name=zone_name)
        conditions = [
            JobCondition(column, "~" if isinstance(value, str) else "=", value)
            for column in ("name", "gpu_model", "gpus", "exit_code")
            if (value := getattr(self, column)) is not None
        ]
        return replace(selection, where=(*selection.where, *conditions))


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


class CodedVerdict(IntEnum):
    """The verdict of a code in a job; from HINT on it is reported, the number is its severity."""

    NONE = 0  # it was not judged
    NO = 1
    UNKNOWN = 2
    UNREPORTED = 3  # it holds, and is a mere fact, or covered by another
    HINT = 4
    PROBLEM = 5


_OF_VERDICT: Mapping[str, tuple[int, int]] = {  # {verdict: least and greatest number}
    "no": (CodedVerdict.NO, CodedVerdict.NO),
    "unknown": (CodedVerdict.UNKNOWN, CodedVerdict.UNKNOWN),
    "yes": (CodedVerdict.UNREPORTED, CodedVerdict.PROBLEM),
}
SEVERITIES = {"hint": CodedVerdict.HINT, "problem": CodedVerdict.PROBLEM}
# columns of findings by the number of a verdict
_BY_NUMBER = (
    pl.Series("verdict", [None, "no", "unknown", *["yes"] * 3], dtype=pl.String),
    pl.Series("severity", [*[None] * 4, *SEVERITIES], dtype=pl.String),
    pl.Series("covered_by", [*[None] * 3, "", *[None] * 2], dtype=pl.String),
)


@dataclass(slots=True, eq=False)
class ResidentJobs:
    """Summaries and verdicts of the jobs of one version, of all or of those that a viewer sees.

    frame: columns of job_summaries, those of verdicts, and what they come to; in order of job_key,
    added ones behind. mapped: how many of its rows lie in files. counting: which rows count: they
    are current, and visible; None: all. files: data files of job_summaries that it is made of.
    """

    frame: pl.DataFrame
    mapped: int
    counting: pl.Series | None
    files: frozenset[str]
    # Of these jobs alone: others must never get them.
    _names: pl.DataFrame | None = field(default=None, init=False)
    _newest: datetime | None = field(default=None, init=False)

    def __len__(self) -> int:
        """Number of jobs that count."""
        return self.frame.height if self.counting is None else int(self.counting.sum())

    @property
    def added(self) -> int:
        """Number of rows in memory."""
        return self.frame.height - self.mapped

    @property
    def codes(self) -> list[str]:
        """Codes of findings with any verdict in any job."""
        return [
            name.removeprefix(VERDICT_OF)
            for name in self.frame.columns
            if name.startswith(VERDICT_OF)
        ]

    def visible_to(self, viewer: Viewer) -> ResidentJobs:
        """Return the jobs that a viewer sees."""
        if viewer.sees_all:
            return self
        visible = self.frame.select(viewer.visible().alias("visible"))["visible"]
        if visible.len() != self.frame.height:  # of a condition without columns
            visible = visible.new_from_index(0, self.frame.height)
        return self._narrowed(visible)

    def _narrowed(self, rows: pl.Series) -> ResidentJobs:
        """Return those whose rows are true in a mask."""
        counting = rows if self.counting is None else rows & self.counting
        return ResidentJobs(self.frame, self.mapped, counting, self.files)

    def _current_rows(self, job_keys: pl.Series) -> pl.Series:
        """Return the numbers of the rows of these jobs that count, ascending."""
        rows = self._rows_of(job_keys)
        return rows if self.counting is None else rows.filter(self.counting.gather(rows))

    def _rows_of(self, job_keys: pl.Series) -> pl.Series:
        """Return the numbers of the rows of these jobs, whether they count or not, ascending."""
        column = self.frame[_KEY]
        keys = job_keys.drop_nulls().unique()
        if not self.mapped or keys.len() > _MOST_SEARCHED:
            return column.is_in(keys.implode()).arg_true()
        last = self.mapped - 1
        nearest = column.head(self.mapped).search_sorted(keys).clip(upper_bound=last)
        candidates = nearest.unique().sort()
        is_row = self.take(candidates, [_KEY]).to_series().is_in(keys.implode())
        rows = candidates.filter(is_row)
        added = column.slice(self.mapped).is_in(keys.implode()).arg_true() + self.mapped
        return pl.concat([rows, added.cast(rows.dtype)])

    def take(self, rows: pl.Series, columns: Sequence[str | pl.Expr]) -> pl.DataFrame:
        """Return columns of the rows with these numbers, in order.

        A column of several chunks would be copied whole to gather some of its rows, so chunks are
        taken one by one.
        """
        height = self.frame.height
        ascending = rows.is_sorted()
        if ascending and rows.len() == height:
            return self.frame.select(columns)
        if ascending and rows.len() > height // _MOST_GATHERED:
            mask = np.zeros(height, np.bool_)
            mask[rows.to_numpy()] = True
            return self.frame.select(columns).filter(pl.Series(mask))
        computed = False
        names: list[str] = []
        for column in columns:
            if isinstance(column, str):
                names.append(column)
            else:
                names += column.meta.root_names()
                computed = True
        # Copies nothing.
        frame = self.frame[list(dict.fromkeys(names))]
        lengths = self.frame["job_key"].chunk_lengths()
        begins = np.cumsum([0, *lengths])
        numbers = rows.to_numpy()
        chunks = np.searchsorted(begins, numbers, side="right") - 1
        parts = [frame.head(0).select(columns)]
        for chunk in np.unique(chunks):
            chunk_rows = frame.slice(begins[chunk], lengths[chunk])
            if computed:
                chunk_rows = chunk_rows.select(columns)
            parts.append(chunk_rows[numbers[chunks == chunk] - begins[chunk]])
        taken = pl.concat(parts)
        return taken if ascending else taken[np.argsort(np.argsort(chunks, kind="stable"))]

    def _conditions(self, selection: JobFilter) -> list[pl.Expr]:
        """Return the filter as a condition on current rows of `frame`.

        Errors: those of `filter_jobs`.
        """
        codes = self.codes
        check_codes(selection.findings, codes)
        conditions = job_conditions(selection, self._states)
        if selection.findings:
            lowest, highest = _OF_VERDICT[selection.verdict]
            met = [
                pl.col(VERDICT_OF + code).is_between(lowest, highest)
                for code in selection.findings
                if code in codes
            ] or [pl.lit(value=False)]
            conditions.append(reduce(or_, met).fill_null(value=False))
        return conditions

    def _states(self) -> list[str]:
        """Return the states of the jobs that this viewer sees."""
        return self.rows(("state",)).get_column("state").drop_nulls().unique().to_list()

    def answers_of(
        self,
        rows: pl.Series,
        least: CodedVerdict = CodedVerdict.NO,
        codes: Sequence[str] | None = (),
        *,
        only: Sequence[str] | None = None,
    ) -> pl.DataFrame:
        """Return SHORT_FINDING of rows given by number, sorted by code, then by row.

        least: which verdicts; of `codes` any (None: of all). only: findings of these codes; None:
        of all. `kind` is null; `covered_by` of what is not reported has no code.
        """
        codes_of_lake = sorted(self.codes if only is None else {*self.codes}.intersection(only))
        taken = self.take(rows, ["job_key", *(VERDICT_OF + code for code in codes_of_lake)])
        filled = taken.select(pl.exclude("job_key").fill_null(int(CodedVerdict.NONE)))
        verdicts = filled.to_numpy().T  # codes x rows
        every = [codes is None or code in codes for code in codes_of_lake]
        lowest = np.where(every, CodedVerdict.NO, least).astype(np.int8)
        code_numbers, row_numbers = np.nonzero(verdicts >= lowest[:, np.newaxis])
        value = pl.Series(verdicts[code_numbers, row_numbers], dtype=pl.Int8)
        return pl.DataFrame(
            [
                taken["job_key"].gather(row_numbers),
                pl.Series("code", codes_of_lake, dtype=pl.String).gather(code_numbers),
                pl.repeat(None, value.len(), dtype=pl.String, eager=True).alias("kind"),
                *(texts.gather(value) for texts in _BY_NUMBER),
            ]
        )

    def verdict_counts(self, which: JobFilter) -> pl.DataFrame:
        """Return (code, verdict, jobs, reported) of selected jobs, one row per code and verdict."""
        rows = self._matching_rows(which)
        counts = []
        for code in sorted(self.codes):
            column = self.take(rows, [VERDICT_OF + code]).to_series()
            of_code = np.bincount(
                column.fill_null(CodedVerdict.NONE).to_numpy(), minlength=len(CodedVerdict)
            )
            for verdict, (lowest, highest) in sorted(_OF_VERDICT.items()):
                reported_count = int(of_code[CodedVerdict.HINT : highest + 1].sum())
                counts.append(
                    (code, verdict, int(of_code[lowest : highest + 1].sum()), reported_count)
                )
        schema = {"code": pl.String, "verdict": pl.String, "jobs": pl.Int64, "reported": pl.Int64}
        return pl.DataFrame(counts, schema, orient="row").filter(pl.col("jobs") > 0)

    @property
    def names(self) -> pl.DataFrame:
        """Columns job_key, job_id and cluster of the jobs."""
        if self._names is None:
            self._names = self.rows(("job_key", "job_id", "cluster"))
        return self._names

    def rows(
        self, columns: Sequence[str] | None = None, job_keys: Iterable[str] | None = None
    ) -> pl.DataFrame:
        """Return rows of job_summaries, of all jobs or of these.

        `columns`: only these, which are not copied where all jobs count.
        """
        columns = tuple(JOB_SUMMARIES.schema) if columns is None else columns
        if job_keys is None and self.counting is None:
            return self.frame.select(columns)
        if job_keys is None:
            return self.take(self._selected([]), columns)
        return self.take(self._current_rows(pl.Series(job_keys, dtype=pl.String)), columns)

    @property
    def newest(self) -> datetime | None:
        """Until when any of them was analyzed: None without jobs."""
        if self._newest is None and len(self):
            self._newest = self.rows(["as_of"]).select(pl.col("as_of").max()).item()
        return self._newest

    def on_node(self, node: str | None, lake: Lake) -> ResidentJobs:
        """Return those that held a GPU of a node, by job_gpus of the lake; None: all."""
        if node is None:
            return self
        held = lake.scan(JOB_GPUS).filter(pl.col("node") == node).select(_KEY).unique()
        rows = self._current_rows(held.collect().to_series())
        numbers = pl.int_range(self.frame.height, dtype=pl.UInt32, eager=True)
        return self._narrowed(numbers.is_in(rows.implode()))

    def _matching_rows(self, which: JobFilter) -> pl.Series:
        return self._selected(self._conditions(which))

    def count(self, selection: JobFilter) -> int:
        """Return how many jobs a filter selects. Errors: as filter_jobs."""
        return self._matching_rows(selection).len()

    def matching(self, selection: JobFilter, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return `columns` (None: all) of the jobs that a filter selects. Errors: as
        filter_jobs.
        """
        columns = tuple(JOB_SUMMARIES.schema) if columns is None else columns
        return self.take(self._matching_rows(selection), columns)

    def answers(self, selection: JobFilter, *, limit: int, after: str = "") -> AnswersPage:
        """Return a page of findings of selected jobs: those the filter names, else all reported.

        They are in order of job_key and code, those after the cursor `after`. Errors: as `page`.
        """
        rows = self._matching_rows(selection)
        matching = self._count_answers(rows, selection)
        begin, last = ("", "") if not after else _two_texts(decode_cursor(after))
        keys = self.take(rows, (_KEY,)).with_columns(rows).filter(pl.col(_KEY) >= begin).sort(_KEY)
        parts: list[pl.DataFrame] = []
        for at in range(0, keys.height, _ANSWERS_ROWS):
            of_rows = self._answers_of(
                keys.get_column(_ROW).slice(at, _ANSWERS_ROWS), selection
            ).sort(_KEY, "code")
            parts.append(of_rows.filter((pl.col(_KEY) > begin) | (pl.col("code") > last)))
            if sum(part.height for part in parts) > limit:
                break
        answers = pl.concat(parts) if parts else self._answers_of(rows.head(0), selection)
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
        """Return SHORT_FINDING of the jobs among these: see `Lake.kept_answers`."""
        are_few = job_keys.len() < len(self)
        rows = self._current_rows(job_keys) if are_few else self._selected([])
        least = CodedVerdict.HINT if reported else CodedVerdict.UNREPORTED
        return self.answers_of(rows, least, codes, only=only)

    def page(
        self,
        selection: JobFilter,
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
        rows = self._matching_rows(selection)
        order, down = _sort_value(sort.removeprefix("-")).alias(_VALUE), sort.startswith("-")
        values = self.take(rows, (order,)).to_series()
        position = _position(values.dtype, decode_cursor(after)) if after else None
        first = self._first(rows, values, position, limit + 1, down=down)
        page = first.head(limit)
        shown = page.get_column(_ROW)
        needed = (
            {*_OF_EACH, *columns, sort.removeprefix("-")} if columns else set(JOB_SUMMARIES.schema)
        )
        table = build_jobs_table(
            self.take(shown, [name for name in JOB_SUMMARIES.schema if name in needed]),
            self.answers_of(shown),
            columns=columns,
            sort=sort,
            zone_name=zone_name,
            wanted=selection,
        )
        more = first.height > limit
        return JobsPage(
            replace(table, matching=rows.len()),
            encode_cursor(*page.select(_VALUE, _KEY).row(-1)) if more else "",
        )

    def _selected(self, conditions: Sequence[pl.Expr]) -> pl.Series:
        """Numbers of the rows that count and meet conditions."""
        frame = self.frame
        counting = [] if self.counting is None else [pl.lit(self.counting)]
        if not (counting or conditions):
            return pl.int_range(frame.height, dtype=pl.UInt32, eager=True).alias(_ROW)
        all_hold = pl.all_horizontal(*counting, *conditions)
        return frame.select(all_hold.arg_true().alias(_ROW)).get_column(_ROW)

    def _first(
        self,
        numbers: pl.Series,
        values: pl.Series,
        position: tuple[Any, str] | None,
        count: int,
        *,
        down: bool,
    ) -> pl.DataFrame:
        """Value, key and number of the first rows after a position; missing values are last."""
        near = _near(values, position, count, down=down)
        if near is not None:  # keys are read and compared only of rows that may be first
            numbers, values = numbers.filter(near), values.filter(near)
        rows = self.take(numbers, (_KEY,)).with_columns(values, numbers)
        if position is not None:
            rows = rows.filter(_behind(*position, down=down))
        first = rows.lazy().bottom_k(count, by=[_VALUE, _KEY], reverse=[down, False])
        return first.sort(_VALUE, _KEY, descending=[down, False], nulls_last=True).collect()

    def _answers_of(self, rows: pl.Series, selection: JobFilter) -> pl.DataFrame:
        least = CodedVerdict.NO if selection.findings else CodedVerdict.HINT
        findings = self.answers_of(rows, least)
        if selection.findings:
            findings = findings.join(answers_to(findings, selection), on=[_KEY, "code"], how="semi")
        return findings

    def _count_answers(self, rows: pl.Series, selection: JobFilter) -> int:
        if not selection.findings:
            return int(self.take(rows, (REPORTED_COUNT,)).get_column(REPORTED_COUNT).sum())
        alone = (
            replace(JobFilter(), findings=(code,), verdict=selection.verdict)
            for code in set(selection.findings)
        )
        of_codes = [pl.all_horizontal(self._conditions(code_alone)) for code_alone in alone]
        return int(
            self.take(rows, [pl.sum_horizontal(of_codes).alias(_VALUE)]).get_column(_VALUE).sum()
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


def _position(dtype: pl.DataType, cursor: Sequence[CursorValue]) -> tuple[Any, str]:
    """Value and key that a cursor names, whether or not its job is still there."""
    if len(cursor) != 2 or not isinstance(cursor[1], str):
        raise no_cursor()
    try:
        return pl.Series([cursor[0]], dtype=dtype).item(), cursor[1]
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        raise no_cursor() from None


def _near(
    values: pl.Series, position: tuple[Any, str] | None, count: int, *, down: bool
) -> pl.Series | None:
    """Return which rows may be among the first after a position; None: any."""
    if not values.dtype.is_numeric():
        return None
    at = None if position is None else position[0]
    if position is None:
        later = values.drop_nulls()
    elif at is None:
        return None
    else:
        later = values.filter(values < at if down else values > at)
    if later.len() < count:
        return None
    near = values >= later.top_k(count).min() if down else values <= later.bottom_k(count).max()
    if position is None:
        return near
    return near & (values <= at if down else values >= at)


def _behind(at: Any, key: str, *, down: bool) -> pl.Expr:
    """Return which rows sort after a position."""
    value, later = pl.col(_VALUE), pl.col(_KEY) > key
    if at is None:
        return value.is_null() & later
    behind: pl.Expr = value < at if down else value > at
    is_tied: pl.Expr = (value == at) & later
    return (behind | is_tied).fill_null(value=True)


def _two_texts(cursor: Sequence[CursorValue]) -> tuple[str, str]:
    if len(cursor) != 2 or not all(isinstance(value, str) for value in cursor):
        raise no_cursor()
    return str(cursor[0]), str(cursor[1])
