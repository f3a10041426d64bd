"""`tachograph seff ID`: what a job used of its request, in the format of Slurm's `seff`."""

from __future__ import annotations

from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.units import printable
from tachograph.cli import output
from tachograph.cli.options import Arguments, Parser, add_job_choice, add_json


def add_arguments(parser: Parser) -> None:
    """Declare the job, its run, and the forms."""
    add_job_choice(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--brief", action="store_true", help="print only the verdict, Next time and the link"
    )
    parser.add_argument("--ended", action="store_true", help="fail unless the job has ended")
    add_json(form)


def run(arguments: Arguments) -> int:
    """Print it."""
    from tachograph.cli.options import open_lake, read_chosen_job
    from tachograph.report.job_comment import comment_json
    from tachograph.report.job_efficiency import brief_lines, efficiency_text

    opened = open_lake(arguments)
    report = read_chosen_job(opened, arguments.job, arguments)
    if arguments.ended and report.running:
        raise NotFoundError(
            f"job {report.job} has not ended in this lake", do="analyze it after it has ended"
        )
    url = opened.configuration.serve.url
    if arguments.json:
        output.print_json(comment_json(report, url=url))
    elif arguments.brief:
        output.print_text("".join(f"{printable(line)}\n" for line in brief_lines(report, url=url)))
    else:
        output.print_text(efficiency_text(report, url=url))
    return 0
