"""`tachograph job [ID ...]`: the report of a job: GPU use, problems, what to do; or of several."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.catalog.errors import UsageError
from tachograph.cli import output
from tachograph.cli.formats import write_page
from tachograph.cli.options import Arguments, Parser, add_job_choice, add_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tachograph.cli.options import OpenedLake
    from tachograph.report.job import JobReport


STEPS_WIDTH = 160  # if stdout is not a terminal: all columns
_AROUND = 3  # lines of a terminal with the command, the next prompt, and a line that wraps


def add_arguments(parser: Parser) -> None:
    """Declare the job, its run, and the formats."""
    add_job_choice(parser, several=True)
    parser.add_argument(
        "--steps", action="store_true", help="list the steps: which were idle, when none ran"
    )
    parser.add_argument(
        "--ranks",
        nargs="+",
        metavar="PATH",
        help="name the rank that a hang waits for: saved answers of ncclras, flight-recorder dumps",
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
    parser.add_argument(
        "--full",
        action="store_true",
        help="print all of the report, also where it is longer than the terminal",
    )
    add_json(form)


def run(arguments: Arguments) -> int:
    """Print or write the page."""
    from tachograph.cli.options import open_lake, read_chosen_job
    from tachograph.report.job import job_json
    from tachograph.report.job_message import job_mail, job_ticket
    from tachograph.report.job_text import job_lines

    opened = open_lake(arguments)
    job_names = tuple(dict.fromkeys(arguments.job)) or (_own_last_job(opened),)
    report, *others = (read_chosen_job(opened, job, arguments) for job in job_names)
    if others:
        _print_compared([report, *others], arguments)
        return 0
    if arguments.ranks:
        report = _with_ranks(report, arguments.ranks)
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
        height = output.height()
        lines = job_lines(
            report,
            width=min(output.width(), 100),
            ascii_only=output.ascii_only(),
            every_check=arguments.checks,
            rows=None if height is None or arguments.full else height - _AROUND,
        )
        output.print_lines(lines, no_color=arguments.no_color)
    return 0


def _own_last_job(opened: OpenedLake) -> str:
    """Return the key of the job that the caller started last. Errors: UsageError without any."""
    from tachograph.cli.options import caller_name
    from tachograph.lake.filters import FirstJobs, JobFilter
    from tachograph.lake.query import select_jobs

    name = caller_name()
    mine = JobFilter(users=(name,))
    jobs = select_jobs(opened.lake, mine, ("job_key",), first=FirstJobs("-start", 1)).jobs
    if jobs.is_empty():
        raise UsageError(
            f"no job is named, and {name or 'this user'} has none in the lake",
            do="name one: `tachograph jobs` lists them",
        )
    return str(jobs.item(0, "job_key"))


def _with_ranks(report: JobReport, paths: Sequence[str]) -> JobReport:
    """Return the report with the rank that the job waits for."""
    from tachograph.judge.ranks import find_ranks
    from tachograph.sources.rank_dumps import read_rank_dumps

    groups, problems = read_rank_dumps(list(map(Path, paths)))
    units = [(gpu.row["node"], gpu.row["gpu"]) for gpu in report.gpus]
    return replace(report, ranks=find_ranks(groups, units, report.culprit, problems))


def _print_compared(reports: Sequence[JobReport], arguments: Arguments) -> None:
    from tachograph.report.job import job_json
    from tachograph.report.job_comparison import MOST_JOBS, compare_jobs, comparison_lines

    forms = (
        arguments.html,
        arguments.ticket,
        arguments.mail,
        arguments.steps,
        arguments.checks,
        arguments.ranks,
    )
    if any(forms) or len(reports) > MOST_JOBS:
        raise UsageError(
            f"{len(reports)} jobs are compared, {MOST_JOBS} at most, as text or --json",
            do="name one job for its page, ticket, mail, steps, checks and ranks",
        )
    if arguments.json:
        output.print_json([job_json(report) for report in reports])
    else:
        lines = comparison_lines(compare_jobs(reports), width=min(output.width(), 100))
        output.print_lines(lines, no_color=arguments.no_color)


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
