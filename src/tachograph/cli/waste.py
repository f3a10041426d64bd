"""`tachograph waste`: the ledger of unused GPU-hours: causes, cost, recoverable part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.catalog.units import whole_number
from tachograph.cli.formats import ReportFormats, add_formats, write_report
from tachograph.cli.options import Arguments, Parser, add_filters, job_filter

if TYPE_CHECKING:
    from tachograph.cli.options import OpenedLake
    from tachograph.judge.ledger import WasteReport
    from tachograph.lake.filters import JobFilter
    from tachograph.report.lines import Line

_TOP = 20  # groups and jobs of a printed table
_WIDEST = 100  # characters of a line


def add_arguments(parser: Parser) -> None:
    """Declare job filter, grouping, and formats."""
    add_filters(parser)
    parser.add_argument(
        "--by",
        default="cause",
        metavar="WHAT",
        help="group by cause (default), user, account, partition, cluster or gpu_model",
    )
    parser.add_argument(
        "--jobs",
        metavar="CAUSE",
        help="list the jobs of a cause: never_used, hung, cold_start, idle, imbalance, "
        "in_use, in_use_unknown, unmeasured, or all; most of its hours first, of all most "
        "recoverable",
    )
    parser.add_argument(
        "--top",
        type=whole_number(1),
        metavar="N",
        help="at most N groups and jobs (default: 20 where printed, all in exports)",
    )
    parser.add_argument(
        "--capacity",
        action="store_true",
        help="also list all installed GPU-hours by partition and GPU model; in CSV by day, too",
    )
    add_formats(parser, csv="the capacity, else the jobs, else the groups, else the causes")


def run(arguments: Arguments) -> int:
    """Print or write the ledger."""
    from tachograph.cli.options import open_lake
    from tachograph.report.waste import waste_json, waste_lines

    opened = open_lake(arguments)
    which = job_filter(arguments, opened)
    report = _report(arguments, opened, which)
    forms = ReportFormats(
        html=lambda: _html(report),
        json=lambda: waste_json(report),
        csv=lambda raw: _csv(report, arguments, raw=raw),
        lines=lambda width, ascii_only: [
            *_why_empty(report, opened, which),
            *waste_lines(report, width=width, ascii_only=ascii_only, by_group=arguments.capacity),
        ],
        widest=_WIDEST,
    )
    write_report(forms, arguments)
    return 0


def _why_empty(report: WasteReport, opened: OpenedLake, which: JobFilter) -> list[Line]:
    """Return why no job matches, where the ledger has none and left none out."""
    if report.jobs or not report.left_out.drop_nulls("jobs").is_empty():
        return []
    from tachograph.cli.no_match import no_match_lines
    from tachograph.report.lines import plain

    return list(map(plain, no_match_lines(opened, which)))


def _report(arguments: Arguments, opened: OpenedLake, which: JobFilter) -> WasteReport:
    from tachograph.api.capacity import read_capacity, require_capacity
    from tachograph.api.needs import read_ledger
    from tachograph.judge.ledger import LEDGER_COLUMNS, build_waste_report

    capacity_of = require_capacity if arguments.capacity else read_capacity
    capacity = capacity_of(opened.lake, opened.configuration, which)
    jobs, intervals, freed = read_ledger(opened.lake, opened.configuration, which, LEDGER_COLUMNS)
    exported = arguments.json or arguments.csv
    return build_waste_report(
        jobs,
        intervals,
        opened.configuration.waste,
        freed=freed,
        by=arguments.by,
        top=arguments.top if arguments.top is not None or exported else _TOP,
        jobs_of=arguments.jobs,
        zone_name=opened.configuration.site.time_zone,
        since=which.since,
        until=which.until,
        capacity=capacity,
    )


def _csv(report: WasteReport, arguments: Arguments, *, raw: bool) -> str:
    from tachograph.catalog.spreadsheets import table_csv
    from tachograph.report.waste import waste_csv

    if arguments.capacity and report.capacity is not None:
        return table_csv(report.capacity.rows, raw=raw)
    return waste_csv(report, raw=raw)


def _html(report: WasteReport) -> str:
    from tachograph.report.waste_page import waste_html  # draws: only for --html

    return waste_html(report)
