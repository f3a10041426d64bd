"""The table of jobs as text, JSON, CSV and Parquet."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tachograph.catalog.columns import (
    FINDINGS_COLUMN,
    INTERNAL,
    column_heading,
    column_text,
    joined_lists,
    must_exist,
    share_text,
)
from tachograph.catalog.tables import JOB_SUMMARIES
from tachograph.catalog.units import zone
from tachograph.lake.filters import sort_jobs, with_finding_codes
from tachograph.report.json_values import json_rows
from tachograph.report.lines import Line, bar, plain, to_text
from tachograph.report.tables import TextColumn, cut, fit_table

DEFAULT_COLUMNS = (
    *("display_id", "user", "partition", "state", "start", "gpus", "elapsed_s", "gpu_util_mean"),
    *("spatial_imbalance", "temporal_imbalance", "hbm_peak_fraction", "bound", "energy_j", FINDINGS_COLUMN),
)
DEFAULT_SORT = "-start"
KNOWN = (*(name for name in JOB_SUMMARIES.schema if name not in INTERNAL), FINDINGS_COLUMN)
# hidden first where the terminal is too narrow for all default columns
_EXPENDABLE = (
    "partition",
    "bound",
    "temporal_imbalance",
    "energy_j",
    "spatial_imbalance",
    "hbm_peak_fraction",
    "state",
    "start",
    "user",
)
_BAR_COLUMN, _BAR = "gpu_util_mean", 6
_IDS = ("display_id", "job_id", "job_key")  # never cut
_WIDEST = {"user": 12, "partition": 12, "state": 13, FINDINGS_COLUMN: 40}
_NARROWEST_FINDINGS = 18


@dataclass(frozen=True, slots=True)
class JobsTable:
    """Jobs in the requested order.

    `frame` has all columns of job_summaries and `findings` (list of codes, most urgent first; empty: none);
    `columns` are those to show; `matching` is how many jobs matched before `limit` cut them.
    """

    frame: pl.DataFrame
    columns: tuple[str, ...]
    matching: int
    zone_name: str = "UTC"
    chosen: bool = False  # the columns were chosen by name: none is hidden


def build_jobs_table(
    summaries: pl.DataFrame,
    findings: pl.DataFrame,
    *,
    columns: Sequence[str] = (),
    sort: str = DEFAULT_SORT,
    limit: int | None = None,
    zone_name: str = "UTC",
) -> JobsTable:
    """Return the table of jobs from (already filtered) rows of job_summaries and the rows of findings.

    `sort` is a column, `-` before it for descending; jobs without a value come last.
    Errors: NotFoundError for an unknown column, naming those close to it.
    """
    by = sort.removeprefix("-")
    must_exist([*columns, by], tuple(dict.fromkeys((*DEFAULT_COLUMNS, *KNOWN))), page="docs/tables.md")
    ordered = sort_jobs(with_finding_codes(summaries, findings), sort)
    kept = ordered if limit is None else ordered.head(limit)
    return JobsTable(kept, tuple(columns) or DEFAULT_COLUMNS, ordered.height, zone_name, chosen=bool(columns))


def jobs_json(table: JobsTable) -> list[dict[str, Any]]:
    """Return one object per job: all columns of job_summaries, and `findings` (list of codes)."""
    return json_rows(table.frame)


def jobs_csv(table: JobsTable) -> str:
    """Return the table as CSV with a header: chosen columns only where any were chosen; times in UTC, null empty.

    Lists are joined with `+`.
    """
    return joined_lists(_exported(table)).write_csv(datetime_format="%Y-%m-%dT%H:%M:%SZ")


def write_jobs_parquet(table: JobsTable, target: Path | io.BytesIO) -> None:
    """Write the table as Parquet: chosen columns only where any were chosen."""
    _exported(table).write_parquet(target)


def _exported(table: JobsTable) -> pl.DataFrame:
    return table.frame.select(table.columns) if table.chosen else table.frame.select(KNOWN)


def jobs_text(table: JobsTable, *, width: int = 80, ascii_only: bool = False) -> str:
    """Return the table as plain text, fitted to `width` characters as far as the columns allow."""
    return to_text(jobs_lines(table, width=width, ascii_only=ascii_only), ascii_only=ascii_only)


def jobs_lines(table: JobsTable, *, width: int = 80, ascii_only: bool = False) -> list[Line]:
    """Return the table as styled lines: titles, a line per job, and what was left out."""
    if table.frame.is_empty():
        return [plain("No job matches.")]
    columns = [_text_column(table, name, ascii_only=ascii_only) for name in table.columns]
    more = [f"{table.frame.height:,} of {table.matching:,} jobs"] if table.matching > table.frame.height else []
    return fit_table(columns, width).with_note(*more, width=width)


def _text_column(table: JobsTable, name: str, *, ascii_only: bool) -> TextColumn:
    """One column; of those that were chosen by name none gives way."""
    numeric = JOB_SUMMARIES.schema.get(name, pl.String()).is_numeric()
    return TextColumn(
        column_heading(name),
        _cells(table, name, ascii_only=ascii_only),
        right=numeric and name != _BAR_COLUMN,
        least=_NARROWEST_FINDINGS if name == FINDINGS_COLUMN and not table.chosen else None,
        hide=_EXPENDABLE.index(name) if name in _EXPENDABLE and not table.chosen else None,
    )


def _cells(table: JobsTable, name: str, *, ascii_only: bool) -> list[str]:
    values = [
        column_text(
            name, row[name] or (row["job_id"] if name == "display_id" else row[name]), zone_name=table.zone_name
        )
        for row in table.frame.iter_rows(named=True)
    ]
    if name == FINDINGS_COLUMN:
        return [" ".join(codes) for codes in table.frame[name]]
    if name == "gpus" and not table.chosen:
        return [share_text(row) or value for row, value in zip(table.frame.iter_rows(named=True), values, strict=True)]
    if name == "start" and not table.chosen:
        local = zone(table.zone_name)
        return [f"{moment.astimezone(local):%Y-%m-%d %H:%M}" for moment in table.frame[name]]
    if name == _BAR_COLUMN:
        bars = [bar(value, _BAR, ascii_only=ascii_only) for value in table.frame[name]]
        return [f"{drawn} {value:>5}" for drawn, value in zip(bars, values, strict=True)]
    return values if name in _IDS else [cut(value, _WIDEST.get(name, 60)) for value in values]
