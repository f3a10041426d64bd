"""`tachograph job ID`: the report of one job: GPU use, problems, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.catalog.errors import UsageError
from tachograph.cli import output
from tachograph.cli.formats import write_page
from tachograph.cli.options import Arguments, Parser, add_job_choice, add_json

if TYPE_CHECKING:
    from tachograph.report.job import JobReport


STEPS_WIDTH = 160  # if stdout is not a terminal: all columns


def add_arguments(parser: Parser) -> None:
    """Declare the job, its run, and the formats."""
    add_job_choice(parser)
    parser.add_argument(
        "--steps", action="store_true", help="list the steps: which were idle, when none ran"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", metavar="FILE", help="write the page with plots into FILE")
    form.add_argument("--ticket", action="store_true", help="print Markdown for a ticket")
    form.add_argument(
        "--mail", action="store_true", help="print subject and body of a mail to its user"
    )
    parser.add_argument(
        "--checks", action="store_true", help="list all findings and checks with their values"
    )
    add_json(form)


def run(arguments: Arguments) -> int:
    """Print or write the page."""
    from tachograph.cli.options import open_lake, read_chosen_job
    from tachograph.report.job import job_json
    from tachograph.report.job_message import job_mail, job_ticket
    from tachograph.report.job_text import job_lines

    opened = open_lake(arguments)
    report = read_chosen_job(opened, arguments)
    if arguments.steps:
        _print_steps(report, arguments)
    elif arguments.html is not None:
        write_page(lambda: _html(report), arguments)
    elif arguments.ticket:
        output.print_text(job_ticket(report))
    elif arguments.mail:
        subject, body = job_mail(report)
        output.print_text(f"Subject: {subject}\n\n{body}")
    elif arguments.json:
        output.print_json(job_json(report))
    else:
        lines = job_lines(
            report,
            width=min(output.width(), 100),
            ascii_only=output.ascii_only(),
            every_check=arguments.checks,
        )
        output.print_lines(lines, no_color=arguments.no_color)
    return 0


def _print_steps(report: JobReport, arguments: Arguments) -> None:
    from tachograph.report.steps import steps_json, steps_lines

    if arguments.html is not None or arguments.checks or arguments.ticket or arguments.mail:
        raise UsageError(
            "--steps lists only steps",
            do="leave out --html (it shows the steps, too), --checks, --ticket and --mail",
        )
    if arguments.json:
        output.print_json({"job_key": report.summary["job_key"], **steps_json(report.steps)})
    else:
        lines = steps_lines(
            report.steps, zone_name=report.zone_name, width=output.width(STEPS_WIDTH)
        )
        output.print_lines(lines, no_color=arguments.no_color)


def _html(report: JobReport) -> str:
    from tachograph.report.job_page import job_html  # draws: only for --html

    return job_html(report)
