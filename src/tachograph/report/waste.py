"""The ledger as lines of text, as JSON, and as CSV."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from tachograph.catalog.columns import COLUMN_HEADINGS, local_time
from tachograph.catalog.spreadsheets import table_csv
from tachograph.catalog.tables import IN_USE, WASTE
from tachograph.catalog.units import gpu_hours_text, plural, text
from tachograph.judge.ledger import ALL_CAUSES, WASTE_LABELS, WASTE_LEFT_OUT, WasteReport
from tachograph.report.capacity import capacity_json, capacity_lines
from tachograph.report.json_values import json_values
from tachograph.report.lines import Line, bar, plain, wrapped
from tachograph.report.tables import TextColumn, cut, fit_table

# of WasteReport: what headings and tables need, and no reader of the numbers
OF_HEADINGS = ("users", "zone_name", "concerned_jobs", "since", "until", "capacity")

WASTE_HELD = "Only GPU time that jobs held is counted; time in which GPUs were free is in no line."
WASTE_WHOLE_JOBS = (
    "Jobs that ran in this time count with all of their hours; installed hours are of this time."
)
WASTE_BESIDE_CAPACITY = "This is GPU time that jobs held; all that is installed is counted below."
WASTE_ALL_CAUSES = (
    "All causes, and under which assumptions hours are recoverable: `tachograph waste`."
)
WASTE_NO_PRICE = "No price is set: add waste.prices to tachograph.toml to show the cost."
# Labels of narrow tables: a word of the full ones, or its beginning.
_SHORT = {
    "never_used": "never",
    "cold_start": "cold",
    "idle": "idle",
    "imbalance": "imbal.",
    ALL_CAUSES: "lost",
}
_RECOVERABLE_HOURS, _RECOVERABLE_COST = "recoverable hours", "recoverable cost"
_NO_JOB = "No job in the ledger."
_BAR = 8
_WIDEST = 16  # characters of a name


def waste_lines(
    report: WasteReport, *, width: int = 100, ascii_only: bool = False, by_group: bool = False
) -> list[Line]:
    """Return the ledger as styled lines (see lines.to_rich).

    Where groups or the jobs of a cause were requested, these tables come first, and of the rest
    the headline alone. by_group: the capacity was requested, by partition.
    """
    capacity: list[Line] = []
    requested = _requested_tables(report, width)
    if report.capacity is not None and (by_group or not requested):
        capacity = capacity_lines(
            report.capacity, width=width, ascii_only=ascii_only, by_group=by_group
        )
    if not report.jobs:
        return [plain(_NO_JOB), *_left_out(report, width), *capacity]
    if requested:
        lines = [*requested, plain(""), *wrapped(waste_headline(report), width, style="bold")]
        if report.unpriced_jobs and report.priced:
            lines += wrapped(unpriced(report), width)
        lines += wrapped(WASTE_ALL_CAUSES, width, style="dim")
        if capacity:
            lines += wrapped(held_note(report), width, style="dim")
        return [*lines, *_left_out(report, width), *capacity]
    lines = [*wrapped(waste_headline(report), width, style="bold"), plain("")]
    lines += fit_table(_cause_columns(report, ascii_only=ascii_only), width).with_note(width=width)
    lines += [plain(""), plain("Recoverable, if", "bold")]
    for message in report.assumptions:
        cause = f"  {WASTE_LABELS[message.cause]}: "
        lines += wrapped(f"{message.words} ({message.source})", width, first=cause, indent="    ")
    if report.unpriced_jobs and report.priced:
        lines += wrapped(unpriced(report), width)
    if not report.priced:
        lines += wrapped(WASTE_NO_PRICE, width)
    lines += wrapped(held_note(report), width, style="dim")
    return [*lines, *_left_out(report, width), *capacity]


def _requested_tables(report: WasteReport, width: int) -> list[Line]:
    """Return the jobs of a cause and the groups, as far as the report has them."""
    tables: list[list[Line]] = []
    if report.concerned is not None:
        tables.append(list(_concerned(report, report.concerned, width)))
    if report.groups is not None:
        columns = _group_columns(report, report.groups)
        tables.append(fit_table(columns, width).with_note(width=width))
    return [line for table in tables for line in (plain(""), *table)][1:]


def held_note(report: WasteReport) -> str:
    """Return what the ledger is about, in one or two sentences."""
    if report.capacity is None:
        return WASTE_HELD
    is_part = report.since is not None or report.until is not None
    return f"{WASTE_BESIDE_CAPACITY} {WASTE_WHOLE_JOBS}" if is_part else WASTE_BESIDE_CAPACITY


def waste_headline(report: WasteReport) -> str:
    """Return the ledger in a sentence."""
    if report.first is None or report.last is None or not report.gpu_hours:
        return _NO_JOB
    begin = local_time(report.since or report.first, report.zone_name)[:10]
    end = local_time(report.until or report.last, report.zone_name)[:10]
    share = text(report.lost / report.gpu_hours, "fraction")
    back = text(report.recoverable, "h")
    if report.priced:
        share = f"{share}, {money(report.lost_money, report.currency)}"
        back = f"{back} ({money(report.total('recoverable_money'), report.currency)})"
    in_use, not_known, unmeasured = (
        text(report.hours(bucket), "h") for bucket in (*IN_USE, "unmeasured")
    )
    return (
        f"{begin} to {end}: {plural(report.jobs, 'job')} held {gpu_hours_text(report.gpu_hours)}: "
        f"{in_use} in use, {not_known} in use but work not known, {text(report.lost, 'h')} "
        f"({share}) without work, {unmeasured} not measured. {back} are recoverable."
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
    """Return how many jobs have no price, in a sentence."""
    return f"No price for {plural(report.unpriced_jobs, 'job')}: not part of the cost."


def cause_label(bucket: str) -> str:
    """Return the label of a cause."""
    return WASTE_LABELS[bucket]


def group_name(report: WasteReport, row: Mapping[str, Any]) -> str:
    """Return the name of a group; for the row of others, their number."""
    if row["others"]:
        return plural(row["others"], "other")
    return str(row[report.by]) if row[report.by] is not None else "not known"


def _cause_columns(report: WasteReport, *, ascii_only: bool) -> list[TextColumn]:
    """The table of causes, the total below them."""
    rows = report.causes.to_dicts()

    def amounts(title: str, name: str, unit: str, total: str, **how: Any) -> TextColumn:
        return TextColumn(
            title, [*(text(row[name], unit) for row in rows), total], right=True, **how
        )

    def prices(
        title: str, name: str, *, short: str | None = None, of_lost: bool = False
    ) -> TextColumn:
        cells = [money(row[name], report.currency) for row in rows]
        if of_lost:
            cells = [_if_lost(row, cell) for row, cell in zip(rows, cells, strict=True)]
        total = money(report.total(name), report.currency)
        return TextColumn(title, [*cells, total], right=True, short=short)

    back = [_if_lost(row, text(row["recoverable"], "h")) for row in rows]
    columns = [
        TextColumn("", [*(cause_label(row["cause"]) for row in rows), "total"]),
        amounts("GPU-hours", "gpu_hours", "h", text(report.gpu_hours, "h")),
        TextColumn(
            "",
            [*(bar(row["share"], _BAR, ascii_only=ascii_only) for row in rows), " " * _BAR],
            bar=True,
        ),
        amounts("share", "share", "fraction", "100 %"),
        amounts("jobs", "jobs", "count", text(report.jobs, "count")),
        amounts("energy", "energy_j", "J", "", hide=1),
        TextColumn(
            _RECOVERABLE_HOURS if report.priced else "recoverable",
            [*back, text(report.recoverable, "h")],
            right=True,
            short="recov.",
        ),
    ]
    if report.co2_known:
        co2 = text(report.total("co2_g"), "gCO2")
        columns.insert(-1, amounts("est. CO2", "co2_g", "gCO2", co2))
    if report.priced:
        columns += [
            prices("cost", "money"),
            prices(_RECOVERABLE_COST, "recoverable_money", short="recov. cost", of_lost=True),
        ]
    if report.energy_priced:
        columns.append(prices("cost of energy", "energy_money", short="of energy"))
    return columns


def _if_lost(row: Mapping[str, Any], cell: str) -> str:
    """A cell of the table of causes; empty for GPU time that is not lost."""
    return cell if row["cause"] in WASTE else ""


def _group_columns(report: WasteReport, groups: pl.DataFrame) -> list[TextColumn]:
    """The table of users, accounts, ..."""
    rows = groups.to_dicts()
    columns = [
        TextColumn(
            COLUMN_HEADINGS.get(report.by, report.by),
            [cut(group_name(report, row), _WIDEST) for row in rows],
        ),
        _amounts("jobs", rows, "jobs", "count"),
        _hours("GPU-hours", rows, "gpu_hours", short="GPU-h"),
        _hours("lost", rows, "lost"),
        _amounts("share", rows, "lost_share", "fraction", hide=1),
        *(_hours(cause_label(cause), rows, cause, short=_SHORT.get(cause)) for cause in WASTE),
        _hours("recoverable", rows, "recoverable", short="recov."),
    ]
    if report.priced:
        columns.append(_costs("cost of lost", rows, "lost_money", report.currency))
    return columns


def _concerned(report: WasteReport, jobs: pl.DataFrame, width: int) -> Iterator[Line]:
    yield plain(f"Jobs: {cause_label(report.jobs_of or '')}", "bold")
    if jobs.is_empty():
        yield from wrapped(_no_job_of_cause(report), width)
        return
    notes: list[str] = []
    if report.concerned_jobs > jobs.height:
        notes.append(f"{jobs.height:,} of {report.concerned_jobs:,} jobs")
    yield from fit_table(_job_columns(report, jobs), width).with_note(*notes, width=width)


def _no_job_of_cause(report: WasteReport) -> str:
    """Return that no job has hours of the cause, and for which causes there are jobs."""
    others = report.causes.filter(pl.col("cause").is_in([*WASTE, "unmeasured"]), pl.col("jobs") > 0)
    if others.is_empty():
        return "No job lost GPU-hours."
    named = ", ".join(others.get_column("cause"))
    return f"No job has GPU-hours of this cause; `--jobs` finds jobs of: {named}."


def _job_columns(report: WasteReport, jobs: pl.DataFrame) -> list[TextColumn]:
    """Return the table of the jobs of a cause."""
    rows, cause = jobs.to_dicts(), report.jobs_of or ""
    columns = [
        _names("job", [row["display_id"] or row["job_id"] for row in rows]),
        *(_names(name, jobs[name].to_list()) for name in ("user", "account", "partition")),
        _amounts("GPUs", rows, "gpus", "count"),
        _amounts("elapsed", rows, "elapsed_s", "s", hide=1),
        _hours("GPU-h", rows, "gpu_hours"),
        _hours(_SHORT.get(cause, cause_label(cause)), rows, report.concerned_hours),
        _hours("recoverable", rows, "recoverable", short="recov."),
    ]
    if report.priced:
        columns.append(_costs("cost", rows, "money", report.currency))
    if cause == ALL_CAUSES:
        causes = jobs["cause"].to_list()
        labels = [cause_label(name) for name in causes]
        bare = [_SHORT.get(name, name) for name in causes]
        columns.append(TextColumn("main cause", labels, right=True, bare=bare))
    return columns


def _names(title: str, names: Sequence[str | None]) -> TextColumn:
    """A column of names; long ones are cut."""
    cells = [text(None) if name is None else cut(name, _WIDEST) for name in names]
    return TextColumn(title, cells)


def _amounts(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    name: str,
    unit: str,
    *,
    hide: int | None = None,
) -> TextColumn:
    """A column of quantities."""
    return TextColumn(title, [text(row[name], unit) for row in rows], right=True, hide=hide)


def _costs(title: str, rows: Sequence[Mapping[str, Any]], name: str, currency: str) -> TextColumn:
    """A column of money."""
    return TextColumn(title, [money(row[name], currency) for row in rows], right=True)


def _hours(
    title: str, rows: Sequence[Mapping[str, Any]], name: str, *, short: str | None = None
) -> TextColumn:
    """A column of hours; in a narrow table without the unit, which the titles have."""
    cells = [text(row[name], "h") for row in rows]
    return TextColumn(
        title, cells, right=True, short=short, bare=[cell.removesuffix(" h") for cell in cells]
    )


def _left_out(report: WasteReport, width: int) -> list[Line]:
    reasons = [
        (
            f"{plural(row['jobs'], 'job')} ({text(row['gpu_hours'], 'h')}): "
            f"{WASTE_LEFT_OUT[row['reason']]}"
        )
        for row in report.left_out.drop_nulls("jobs").iter_rows(named=True)
    ]
    return wrapped(f"Left out: {'; '.join(reasons)}.", width, style="dim") if reasons else []


def waste_json(report: WasteReport) -> dict[str, Any]:
    """Return everything in the ledger as JSON values: GPU-hours, J, money in `currency`; null
    where not known.
    """
    values: dict[str, Any] = json_values(report, without=OF_HEADINGS)
    known = [row for row in values["left_out"] if row["jobs"] is not None]
    more: dict[str, Any] = {
        "currency": report.currency if report.priced else None,
        "left_out": known,
    }
    more["capacity"] = None if report.capacity is None else capacity_json(report.capacity)
    return {**values, **more, "lost": report.lost, "recoverable": report.recoverable}


def waste_csv(report: WasteReport, *, raw: bool = False) -> str:
    """Return the table as CSV: jobs of a cause, else groups, else causes.

    Texts are harmless to spreadsheets and terminals unless `raw`.
    """
    shown = report.concerned if report.concerned is not None else report.groups
    return table_csv(report.causes if shown is None else shown, raw=raw)
