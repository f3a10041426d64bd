"""`tachograph waste`: the ledger: where GPU-hours went, what they cost, what could be had back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.cli import output
from tachograph.cli.filters import add_filters, wanted
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json

if TYPE_CHECKING:
    import polars as pl

    from tachograph.report.waste import WasteReport

_TOP = 20  # groups and jobs of a printed table


def add_arguments(parser: Parser) -> None:
    """Declare which jobs, grouped how, and the formats."""
    add_filters(parser)
    parser.add_argument(
        "--by", default="cause", metavar="WHAT", help="cause (default), user, account, partition or gpu_model"
    )
    parser.add_argument(
        "--jobs", metavar="CAUSE", help="also list the jobs: never_used, hung, cold_start, idle, imbalance, unmeasured"
    )
    parser.add_argument(
        "--top", type=int, metavar="N", help="at most N groups and jobs (default: 20 where printed, all in exports)"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", metavar="FILE", help="write the page with plots into FILE, and print where it is")
    form.add_argument("--csv", action="store_true", help="print CSV: the jobs, else the groups, else the causes")
    add_json(form)


def run(arguments: Arguments) -> int:
    """Print or write the ledger."""
    from tachograph.report.lines import to_rich
    from tachograph.report.waste_text import waste_csv, waste_json, waste_lines

    report = _report(arguments)
    if arguments.html:
        _write_html(report, arguments.html)
        Narrator.of(arguments).say(f"written to {arguments.html}")
    elif arguments.json:
        output.print_json(waste_json(report))
    elif arguments.csv:
        output.print_text(waste_csv(report))
    else:
        lines = waste_lines(report, width=min(output.width(), 100), ascii_only=output.ascii_only())
        output.print_styled(to_rich(lines), no_color=arguments.no_color)
    return 0


def _report(arguments: Arguments) -> WasteReport:
    from tachograph.analyze.intervals import read_intervals
    from tachograph.analyze.results import of_one_moment, read_summaries
    from tachograph.cli.open import open_lake
    from tachograph.report.filters import filter_jobs
    from tachograph.report.waste import build_waste_report

    opened = open_lake(arguments)
    which = wanted(arguments, opened)

    def read() -> tuple[pl.DataFrame, pl.DataFrame]:
        summaries = read_summaries(opened.lake)
        return summaries, read_intervals(opened.lake, summaries, which.findings)

    summaries, intervals = of_one_moment(opened.lake, read)
    exported = arguments.json or arguments.csv
    return build_waste_report(
        filter_jobs(summaries, intervals, which),
        intervals,
        opened.configuration.waste,
        by=arguments.by,
        top=arguments.top if arguments.top is not None or exported else _TOP,
        jobs_of=arguments.jobs,
        zone_name=opened.configuration.site.time_zone,
    )


def _write_html(report: WasteReport, file: str) -> None:
    from pathlib import Path

    from tachograph.report.waste_html import waste_html

    page = waste_html(report)
    with output.writing(file):
        Path(file).write_text(page, encoding="utf-8")
