"""The ledger as lines of text, as JSON, and as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal

import polars as pl

from tachograph.catalog.columns import COLUMN_HEADINGS, local_time
from tachograph.catalog.tables import WASTE
from tachograph.catalog.units import plural, text
from tachograph.judge.ledger import ALL_CAUSES, WASTE_BUCKETS, WASTE_LABELS, WASTE_LEFT_OUT, WasteReport
from tachograph.report.json_values import row_json
from tachograph.report.lines import Line, bar, plain, wrapped

SHORT = {"never_used": "unused", "idle": "idle"}  # in tables with many columns
_SHORTEST = {**SHORT, "cold_start": "cold", "imbalance": "uneven", ALL_CAUSES: "lost"}  # in narrow ones
_BAR = 8
TableForm = Literal["full", "bare", "short"]  # of a table: with units, without, with short headings and fewer columns
_FORMS: tuple[TableForm, ...] = ("full", "bare", "short")
_WIDEST = 16  # characters of a name


def waste_lines(report: WasteReport, *, width: int = 100, ascii_only: bool = False) -> list[Line]:
    """Return the ledger as styled lines (see lines.to_rich)."""
    if not report.jobs:
        return [plain("No job of which this could be said."), *_left_out(report, width)]
    lines = [*wrapped(waste_headline(report), width, style="bold"), plain("")]
    tables = (_aligned(*_causes(report, ascii_only=ascii_only, form=form)) for form in _FORMS)
    lines += _fitting(tables, width)
    lines += [plain(""), plain("Recoverable, if", "bold")]
    for said in report.assumptions:
        cause = f"  {WASTE_LABELS[said.cause]}: "
        lines += wrapped(f"{said.words} ({said.key}, {said.source})", width, first=cause, indent="    ")
    if report.unpriced_jobs and report.priced:
        lines += wrapped(unpriced(report), width)
    lines += _left_out(report, width)
    if report.groups is not None:
        tables = (_aligned(*_groups(report, report.groups, form=form)) for form in _FORMS)
        lines += [plain(""), *_fitting(tables, width)]
    if report.concerned is not None:
        lines += [plain(""), *_concerned(report, report.concerned, width)]
    return lines


def _fitting(tables: Iterable[list[Line]], width: int) -> list[Line]:
    """The first table that is no wider than `width`, else the last."""
    table: list[Line] = []
    for table in tables:
        if max(len(words) for ((words, _),) in table) <= width:
            break
    return table


def waste_headline(report: WasteReport) -> str:
    """Return the ledger in a sentence."""
    if report.first is None or report.last is None or not report.gpu_hours:
        return "No GPU time."
    begin, end = (local_time(moment, report.zone_name)[:10] for moment in (report.first, report.last))
    share = text(report.lost / report.gpu_hours, "fraction")
    return (
        f"{begin} to {end}: {plural(report.jobs, 'job')} held {text(report.gpu_hours, 'h')} of GPU time; "
        f"{text(report.lost, 'h')} ({share}) did no work, {text(report.recoverable, 'h')} of them recoverable."
    )


def money(value: float | None, currency: str) -> str:
    """Return an amount as people read it.

    >>> money(1234.5, "EUR"), money(3.456, "EUR"), money(None, "EUR")
    ('1,234 EUR', '3.46 EUR', '–')
    """
    if value is None:
        return text(None)
    return f"{value:,.0f} {currency}" if value >= 100 else f"{value:,.2f} {currency}"


def unpriced(report: WasteReport) -> str:
    """Return the sentence that tells whose hours have no price."""
    return f"No price is known for {plural(report.unpriced_jobs, 'job')}: they cost nothing above."


def cause_label(bucket: str) -> str:
    """Return what a cause is called."""
    return WASTE_LABELS[bucket]


def group_name(report: WasteReport, row: Mapping[str, Any]) -> str:
    """Return the name of a group; of the row of all others how many these are."""
    if row["others"]:
        return plural(row["others"], "other")
    return str(row[report.by]) if row[report.by] is not None else "not known"


def _causes(report: WasteReport, *, ascii_only: bool, form: TableForm) -> tuple[list[str], list[list[str]]]:
    bars = form == "full"
    headings = ["", "GPU-hours", *([" " * _BAR] if bars else []), "share", "jobs", "energy", "recoverable"]
    if report.priced:
        headings += ["cost", "recoverable"]
    headings += ["of energy"] if report.energy_priced else []
    rows = []
    for row in report.causes.iter_rows(named=True):
        lost = row["cause"] in WASTE
        cells = [cause_label(row["cause"]), text(row["gpu_hours"], "h")]
        cells += [bar(row["share"], _BAR, ascii_only=ascii_only)] if bars else []
        cells += [text(row["share"], "fraction"), text(row["jobs"], "count"), text(row["energy_j"], "J")]
        cells.append(text(row["recoverable"], "h") if lost else "")
        if report.priced:
            cells += [money(row["money"], report.currency)]
            cells += [money(row["recoverable_money"], report.currency) if lost else ""]
        cells += [money(row["energy_money"], report.currency)] if report.energy_priced else []
        rows.append(cells)
    total = ["total", text(report.gpu_hours, "h"), *([""] if bars else []), "100 %", text(report.jobs, "count"), ""]
    total.append(text(report.recoverable, "h"))
    if report.priced:
        total += [money(report.total(amount), report.currency) for amount in ("money", "recoverable_money")]
    if report.energy_priced:
        total.append(money(report.total("energy_money"), report.currency))
    return headings, [*rows, total]


def _groups(report: WasteReport, groups: pl.DataFrame, *, form: TableForm) -> tuple[list[str], list[list[str]]]:
    short = form == "short"
    names = _SHORTEST if short else SHORT
    headings = [COLUMN_HEADINGS.get(report.by, report.by), "jobs", "GPU-h" if short else "GPU-hours", "lost"]
    headings += [*([] if short else ["share"]), *(names.get(cause, cause_label(cause)) for cause in WASTE)]
    headings += ["recov." if short else "recoverable", *(["lost"] if report.priced else [])]
    hours = partial(_hours, form=form)
    rows = []
    for row in groups.iter_rows(named=True):
        cells = [_cut(group_name(report, row)), text(row["jobs"], "count"), hours(row["gpu_hours"])]
        cells += [hours(row["lost"]), *([] if short else [text(row["lost_share"], "fraction")])]
        cells += [hours(row[cause]) for cause in WASTE]
        cells += [hours(row["recoverable"])]
        cells += [money(row["lost_money"], report.currency)] if report.priced else []
        rows.append(cells)
    return headings, rows


def _concerned(report: WasteReport, jobs: pl.DataFrame, width: int) -> Iterator[Line]:
    cause = report.chosen or ""
    yield plain(f"Jobs: {cause_label(cause)}", "bold")
    if jobs.is_empty():
        yield plain("  none")
        return
    yield from _fitting((_aligned(*_jobs(report, jobs, cause, form=form), left=4) for form in _FORMS), width)
    if report.concerned_jobs > jobs.height:
        yield plain(f"{jobs.height:,} of {report.concerned_jobs:,} jobs", "dim")


def _jobs(report: WasteReport, jobs: pl.DataFrame, cause: str, *, form: TableForm) -> tuple[list[str], list[list[str]]]:
    short = form == "short"
    timed = not (short and cause == ALL_CAUSES)  # no room for it beside the cause
    headings = ["job", "user", "account", "partition", "GPUs", *(["elapsed"] if timed else []), "GPU-h"]
    headings += [_SHORTEST.get(cause, cause_label(cause))]
    headings += ["recov." if short else "recoverable", *(["cost"] if report.priced else [])]
    headings += ["mostly"] if cause == ALL_CAUSES else []
    hours = partial(_hours, form=form)
    rows = []
    for row in jobs.iter_rows(named=True):
        names = [row["display_id"] or row["job_id"], row["user"], row["account"], row["partition"]]
        cells = [_cut(str(name)) if name is not None else text(None) for name in names]
        cells += [text(row["gpus"], "count"), *([text(row["elapsed_s"], "s")] if timed else [])]
        cells += [hours(row["gpu_hours"])]
        cells += [hours(row[report.concerned_hours]), hours(row["recoverable"])]
        cells += [money(row["money"], report.currency)] if report.priced else []
        if cause == ALL_CAUSES:
            cells.append(_SHORTEST.get(row["cause"], row["cause"]) if short else cause_label(row["cause"]))
        rows.append(cells)
    return headings, rows


def _hours(value: float | None, *, form: TableForm) -> str:
    """Hours; where there is little room without the unit, which the headings tell."""
    return text(value, "h") if form == "full" else text(value, "h").removesuffix(" h")


def _left_out(report: WasteReport, width: int) -> list[Line]:
    told = [
        f"{plural(row['jobs'], 'job')} ({text(row['gpu_hours'], 'h')}): {WASTE_LEFT_OUT[row['reason']]}"
        for row in report.left_out.drop_nulls("jobs").iter_rows(named=True)
    ]
    return wrapped(f"Left out: {'; '.join(told)}.", width, style="dim") if told else []


def _aligned(headings: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[Line]:
    """A heading and rows, the first `left` columns to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        placed = zip(cells, widths, range(len(widths)), strict=True)
        return "  ".join(f"{cell:<{wide}}" if n < left else f"{cell:>{wide}}" for cell, wide, n in placed).rstrip()

    return [plain(line(headings), "bold"), *(plain(line(row)) for row in rows)]


def _cut(name: str) -> str:
    return name if len(name) <= _WIDEST else f"{name[: _WIDEST - 1]}…"


def waste_json(report: WasteReport) -> dict[str, Any]:
    """Return everything the ledger says, as JSON values: GPU-hours, J, money in `currency`; null where not known."""
    return {
        "jobs": report.jobs,
        "gpu_hours": report.gpu_hours,
        "first": None if report.first is None else report.first.isoformat(),
        "last": None if report.last is None else report.last.isoformat(),
        "currency": report.currency if report.priced else None,
        "unpriced_jobs": report.unpriced_jobs,
        "lost": report.lost,
        "recoverable": report.recoverable,
        "causes": _objects(report.causes),
        "assumptions": [asdict(said) for said in report.assumptions],
        "left_out": _objects(report.left_out.drop_nulls("jobs")),
        "by": report.by,
        "groups": None if report.groups is None else _objects(report.groups),
        "jobs_of": report.chosen,
        "concerned": None if report.concerned is None else _objects(report.concerned),
    }


def waste_csv(report: WasteReport) -> str:
    """Return the table that was asked for as CSV: the jobs of a cause, else the groups, else the causes."""
    shown = report.concerned if report.concerned is not None else report.groups
    return (report.causes if shown is None else shown).write_csv()


def _objects(frame: pl.DataFrame) -> list[dict[str, Any]]:
    return [row_json(row) for row in frame.iter_rows(named=True)]


__all__ = [
    "WASTE_BUCKETS",
    "cause_label",
    "group_name",
    "money",
    "unpriced",
    "waste_csv",
    "waste_headline",
    "waste_json",
    "waste_lines",
]
