"""`tachograph job ID`: one job's page: what it did with its GPUs, what was wrong, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json

if TYPE_CHECKING:
    from tachograph.cli.open import Opened
    from tachograph.report.job import JobReport


def add_arguments(parser: Parser) -> None:
    """Declare the job, its run, and the formats."""
    parser.add_argument("job", metavar="ID", help="job id: 123, 123_4 (array), 123+1 (heterogeneous)")
    parser.add_argument(
        "--run", type=int, dest="nth", metavar="N", help="of a requeued job the N-th run (default: last)"
    )
    parser.add_argument("--cluster", metavar="NAME", help="which cluster, where several have the id")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", metavar="FILE", help="write the page with plots into FILE, and print where it is")
    parser.add_argument("--verdicts", action="store_true", help="tell everything that was looked for, with its values")
    add_json(form)


def run(arguments: Arguments) -> int:
    """Print or write the page."""
    from tachograph.cli.open import open_lake
    from tachograph.report.job_json import job_json
    from tachograph.report.job_text import job_lines
    from tachograph.report.lines import to_rich

    opened = open_lake(arguments)
    report = report_of(opened, arguments.job, cluster=arguments.cluster, nth=arguments.nth)
    if arguments.html:
        write_html(report, arguments.html)
        Narrator.of(arguments).say(f"written to {arguments.html}")
    elif arguments.json:
        output.print_json(job_json(report))
    else:
        lines = job_lines(
            report,
            width=min(output.width(), 100),
            ascii_only=output.ascii_only(),
            every_verdict=arguments.verdicts,
        )
        output.print_styled(to_rich(lines), no_color=arguments.no_color)
    return 0


def report_of(opened: Opened, job: str, *, cluster: str | None = None, nth: int | None = None) -> JobReport:
    """Return the report of one job of the lake.

    Errors: NotFoundError, UsageError, LakeError.
    """
    from tachograph.analyze.results import of_one_moment

    return of_one_moment(opened.lake, lambda: _read(opened, job, cluster, nth))


def _read(opened: Opened, job: str, cluster: str | None, nth: int | None) -> JobReport:
    import polars as pl

    from tachograph.analyze.results import read_gpus, read_minutes, read_summaries, read_verdicts
    from tachograph.report.choose import choose_job
    from tachograph.report.job import build_job_report

    summaries = read_summaries(opened.lake)
    chosen = choose_job(summaries, job, cluster=cluster, run=nth)
    mine = summaries.filter(pl.col("job_key") == chosen.row["job_key"])
    return build_job_report(
        chosen.row,
        read_gpus(opened.lake, mine),
        read_minutes(opened.lake, chosen.row),
        read_verdicts(opened.lake, mine),
        opened.now,
        zone_name=opened.configuration.site.time_zone,
        other_runs=chosen.other_runs,
    )


def write_html(report: JobReport, file: str) -> None:
    """Write the page as one self-contained file."""
    from pathlib import Path

    from tachograph.report.job_html import job_html

    page = job_html(report)
    with output.writing(file):
        Path(file).write_text(page, encoding="utf-8")
