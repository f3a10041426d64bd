"""The table of jobs as text, JSON, CSV and Parquet."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import polars as pl

from tachograph.catalog.columns import (
    COLUMN_UNITS,
    FINDINGS_COLUMN,
    INTERNAL,
    LOST_COLUMN,
    SEVERITY_COLUMN,
    column_heading,
    column_text,
    must_exist,
    share_text,
)
from tachograph.catalog.spreadsheets import table_csv
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.catalog.units import column_texts, printable, zone
from tachograph.lake.filters import JobFilter, answers_to, sort_jobs, with_findings
from tachograph.report.json_values import json_rows
from tachograph.report.lines import Line, bar, plain, wrapped
from tachograph.report.tables import TextColumn, cut, fit_table

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


DEFAULT_COLUMNS = (
    *(
        "display_id",
        "name",
        "user",
        "partition",
        "state",
        "start",
        "gpus",
        "elapsed_s",
        "gpu_util_mean",
    ),
    *("spatial_imbalance", "temporal_imbalance", "hbm_peak_fraction", "limiter", "energy_j"),
    *(SEVERITY_COLUMN, FINDINGS_COLUMN),
)
WORST_COLUMNS = tuple(LOST_COLUMN if name == "energy_j" else name for name in DEFAULT_COLUMNS)
DEFAULT_SORT, WORST_SORT = "-start", f"-{LOST_COLUMN}"
_DERIVED = (LOST_COLUMN, SEVERITY_COLUMN, FINDINGS_COLUMN)
KNOWN = (*(name for name in JOB_SUMMARIES.schema if name not in INTERNAL), *_DERIVED)
# hidden first where the terminal is too narrow for all default columns
_EXPENDABLE = (
    "partition",
    "limiter",
    "temporal_imbalance",
    "energy_j",
    "spatial_imbalance",
    "hbm_peak_fraction",
    "start",
    SEVERITY_COLUMN,
    "state",
    "name",
    "user",
)
_BAR_COLUMN, _BAR = "gpu_util_mean", 6
# Where a job has no samples: what others recorded of it, and the mark of such a number.
_RECORDED = {
    "gpu_util_mean": "recorded_gpu_util_mean",
    "hbm_peak_fraction": "recorded_hbm_peak_fraction",
}
_RECORDED_MARK = "*"
_IDS = ("display_id", "job_id", "job_key")  # never cut
_WIDEST = {"name": 20, "user": 12, "partition": 12, "state": 13, FINDINGS_COLUMN: 40}
_NARROWEST_FINDINGS = 18
# Characters to which texts may be cut on a narrow terminal: enough to recognize most of them.
_NARROWEST = {"name": 8, "user": 7, FINDINGS_COLUMN: 12}
# as in the column ST of `squeue`, for narrow terminals
_STATE_CODES = {
    "BOOT_FAIL": "BF",
    "CANCELLED": "CA",
    "COMPLETED": "CD",
    "CONFIGURING": "CF",
    "COMPLETING": "CG",
    "DEADLINE": "DL",
    "FAILED": "F",
    "NODE_FAIL": "NF",
    "OUT_OF_MEMORY": "OOM",
    "PENDING": "PD",
    "PREEMPTED": "PR",
    "REQUEUED": "RQ",
    "RESIZING": "RS",
    "REVOKED": "RV",
    "RUNNING": "R",
    "STOPPED": "ST",
    "SUSPENDED": "S",
    "TIMEOUT": "TO",
}
_LEGEND = {
    "spatial_imbalance": "SI: imbalance across GPUs",
    "temporal_imbalance": "TI: imbalance over time",
}


@dataclass(frozen=True, slots=True)
class JobsTable:
    """Jobs in the requested order.

    `frame` has the columns of job_summaries and those of `with_findings`; `columns` are those to
    show; `matching` is how many jobs matched before `limit` cut them; `answers`: {job_key: answers
    for which the filter selected it}; `first_user`: whose jobs come first, "" if nobody's do.
    """

    frame: pl.DataFrame
    columns: tuple[str, ...]
    matching: int
    zone_name: str = "UTC"
    chosen: bool = False  # explicitly chosen columns are never hidden
    answers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    first_user: str = ""


def build_jobs_table(
    summaries: pl.DataFrame,
    findings: pl.DataFrame,
    *,
    columns: Sequence[str] = (),
    sort: str = DEFAULT_SORT,
    limit: int | None = None,
    matching: int | None = None,
    zone_name: str = "UTC",
    wanted: JobFilter | None = None,
    first_user: str = "",
) -> JobsTable:
    """Return the table of jobs from filtered rows of job_summaries and their findings.

    `sort` is a column, `-` before it for descending; jobs without a value are last. Sorted by lost
    GPU-hours, the table has that column. `matching`: number of matching jobs, if `summaries` are
    only the first of them. `wanted`: the filter, whose findings are shown even if not reported.
    `first_user`: the jobs of this user come first. Errors: NotFoundError for an unknown column,
    naming similar ones.
    """
    check_jobs_columns(columns, sort)
    kept = sort_jobs(with_findings(summaries, findings), sort, limit, first_user=first_user)
    shown = tuple(columns) or (WORST_COLUMNS if sort == WORST_SORT else DEFAULT_COLUMNS)
    answers = {} if wanted is None or not wanted.findings else _answers(kept, findings, wanted)
    count = summaries.height if matching is None else matching
    leads = bool(first_user) and kept["user"].head(1).to_list() == [first_user]
    return JobsTable(
        kept,
        shown,
        count,
        zone_name,
        chosen=bool(columns),
        answers=answers,
        first_user=first_user if leads else "",
    )


def check_jobs_columns(columns: Sequence[str], sort: str) -> None:
    """Check names of columns.

    Errors: NotFoundError that suggests similar names.
    """
    known = tuple(dict.fromkeys((*DEFAULT_COLUMNS, *KNOWN)))
    must_exist([*columns, sort.removeprefix("-")], known, page="docs/tables.md")


def _answers(jobs: pl.DataFrame, findings: pl.DataFrame, wanted: JobFilter) -> dict[str, list[str]]:
    """Codes that selected the jobs, with verdicts other than `yes`."""
    of_jobs: dict[str, list[str]] = {}
    found = answers_to(findings, wanted).join(
        jobs.select("job_key"), on="job_key", how="semi", maintain_order="left"
    )
    for job_key, code, verdict in found.iter_rows():
        of_jobs.setdefault(job_key, []).append(code if verdict == "yes" else f"{code}: {verdict}")
    return of_jobs


def jobs_json(table: JobsTable) -> list[dict[str, Any]]:
    """Return one object per job: all columns of job_summaries and `with_findings`."""
    return json_rows(table.frame)


def jobs_csv(table: JobsTable, *, raw: bool = False) -> str:
    """Return the table as CSV with a header, all columns unless some are chosen.

    Times are UTC, null is empty.

    Lists are joined with `+`; texts are harmless to spreadsheets and terminals unless `raw`.
    """
    return table_csv(_exported(table), raw=raw, datetime_format="%Y-%m-%dT%H:%M:%SZ")


def write_jobs_parquet(table: JobsTable, target: Path | io.BytesIO) -> None:
    """Write the table as Parquet, with all columns unless some are chosen."""
    _exported(table).write_parquet(target)


def _exported(table: JobsTable) -> pl.DataFrame:
    return table.frame.select(table.columns) if table.chosen else table.frame.select(KNOWN)


def jobs_lines(
    table: JobsTable, *, width: int, ascii_only: bool, rows: int | None = None
) -> list[Line]:
    """Return the table as styled lines: titles, one line per job, hidden columns, a legend.

    They fit into `width` characters as far as the columns allow. `rows`: the lines of a terminal;
    the first jobs that fit are there, and the last line says how to see more.
    """
    if table.frame.is_empty():
        return [plain("No job matches.")]
    while True:
        lines = _table_lines(table, width, ascii_only=ascii_only, in_terminal=rows is not None)
        jobs = table.frame.height
        if rows is None or len(lines) <= rows or jobs == 1:
            return lines
        # With fewer jobs other columns may fit, with lines of their own.
        table = replace(table, frame=table.frame.head(max(1, jobs + rows - len(lines))))


def _table_lines(
    table: JobsTable, width: int, *, ascii_only: bool, in_terminal: bool
) -> list[Line]:
    columns = [_text_column(table, name, ascii_only=ascii_only) for name in table.columns]
    fitted = fit_table(columns, width)
    state = column_heading("state")
    has_codes = not table.chosen and state in fitted.hidden
    if has_codes:
        fitted = fit_table([*map(_shortened, table.columns, columns)], width)
    notes: list[str] = []
    count = f"{table.frame.height:,} of {table.matching:,} jobs"
    if table.matching > table.frame.height and not in_terminal:
        notes.append(count)
    if table.first_user:
        notes.append(f"jobs of {table.first_user} first, newest first")
    legend = [
        meaning
        for name, meaning in _LEGEND.items()
        if name in table.columns and column_heading(name) not in fitted.hidden
    ]
    legend += ["0: even"] if legend else []
    if any(_recorded(table, name) for name in table.columns):
        legend.append("*: recorded by others, without samples (recorded_by)")
    if has_codes and fitted.narrow and state not in fitted.hidden:
        states = table.frame["state"].drop_nulls().unique(maintain_order=True)
        codes = [
            f"{_STATE_CODES[name]} {name.lower().replace('_', ' ')}"
            for name in states
            if name in _STATE_CODES
        ]
        legend += [f"ST: {', '.join(codes)}"] if codes else []
    lines = [*fitted.with_note(*notes, width=width)]
    if legend:
        lines += wrapped("; ".join(legend), width, style="dim")
    if table.matching > table.frame.height and in_terminal:
        lines.append(plain(f"{count}; --limit N shows more; --columns LIST shows others", "dim"))
    return lines


def _text_column(table: JobsTable, name: str, *, ascii_only: bool) -> TextColumn:
    """One column; explicitly chosen ones never shrink."""
    numeric = table.frame.schema[name].is_numeric()
    unit, cells = _cells(table, name, ascii_only=ascii_only)
    heading = column_heading(name)
    return TextColumn(
        f"{heading} ({unit})" if unit and not heading.endswith(f"-{unit}") else heading,
        cells,
        right=numeric and name != _BAR_COLUMN,
        least=_NARROWEST_FINDINGS if name == FINDINGS_COLUMN and not table.chosen else None,
        hide=_EXPENDABLE.index(name) if name in _EXPENDABLE and not table.chosen else None,
    )


def _shortened(name: str, column: TextColumn) -> TextColumn:
    """A column of a terminal on which the state would not fit: codes, no bars, names cut."""
    if name == _BAR_COLUMN:
        return replace(column, bare=[cell[_BAR + 1 :] for cell in column.cells])
    if name == "state":
        codes = [_STATE_CODES.get(cell, cell) for cell in column.cells]
        return replace(column, short="ST", bare=codes)
    return replace(column, least=_NARROWEST.get(name, column.least))


def _cells(table: JobsTable, name: str, *, ascii_only: bool) -> tuple[str, list[str]]:
    """Unit for the title, and one text per job; numbers share the unit."""
    column = table.frame[name]
    if name == FINDINGS_COLUMN:
        return "", _findings_texts(table)
    if name == "display_id":
        return "", table.frame.select(pl.coalesce("display_id", "job_id")).to_series().to_list()
    if name == "start" and not table.chosen:
        local = zone(table.zone_name)
        return "", [f"{moment.astimezone(local):%Y-%m-%d %H:%M}" for moment in column]
    if column.dtype.is_numeric():
        recorded = _recorded(table, name)
        values = column.to_list()
        if recorded:
            values = [recorded.get(place, value) for place, value in enumerate(values)]
        unit, cells = column_texts(values, COLUMN_UNITS.get(name, ""))
        cells = [
            f"{cell}{_RECORDED_MARK if place in recorded else ''}"
            for place, cell in enumerate(cells)
        ]
        if name == "gpus" and not table.chosen:
            rows = cast("Iterator[JobSummaryRow]", table.frame.iter_rows(named=True))
            cells = [share_text(row) or cell for row, cell in zip(rows, cells, strict=True)]
        if name == _BAR_COLUMN:
            bars = [bar(value, _BAR, ascii_only=ascii_only) for value in column]
            cells = [f"{drawn} {cell:>5}" for drawn, cell in zip(bars, cells, strict=True)]
        return unit, cells
    texts = [
        printable(column_text(name, value, zone_name=table.zone_name)) for value in column.to_list()
    ]
    if name not in _IDS:
        texts = [cut(value, _WIDEST.get(name, 60)) for value in texts]
    return "", texts


def _recorded(table: JobsTable, name: str) -> dict[int, float]:
    """Return {row: recorded value} of jobs that have no value of their own."""
    source = _RECORDED.get(name)
    if source is None or source not in table.frame.columns:
        return {}
    pairs = zip(table.frame[name], table.frame[source], strict=True)
    return {
        place: value
        for place, (own, value) in enumerate(pairs)
        if own is None and value is not None
    }


def _findings_texts(table: JobsTable) -> list[str]:
    """Return codes of reported findings, and other findings that selected the job.

    What selected it without being reported is apart: "stall: unknown; also low_coverage". It comes
    first unless a reported finding selected the job, too.
    """
    texts = []
    for key, codes in zip(table.frame["job_key"], table.frame[FINDINGS_COLUMN], strict=True):
        selecting = table.answers.get(key, ())
        answers = ", ".join(answer for answer in selecting if answer not in codes)
        reported = " ".join(codes)
        parts = [part for part in (answers, reported) if part]
        if any(answer in codes for answer in selecting):
            parts.reverse()
        texts.append("; also ".join(parts))
    return texts
