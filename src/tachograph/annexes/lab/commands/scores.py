"""`tachograph lab scores ID`: a job's GPU scores by each method of measurement, side by side."""

from __future__ import annotations

from pathlib import Path

from tachograph.catalog.units import printable
from tachograph.cli import output
from tachograph.cli.options import Arguments, Parser, add_job_choice, add_json


def add_arguments(parser: Parser) -> None:
    """Declare the job, its run, reports and format."""
    add_job_choice(parser)
    parser.add_argument(
        "--nsight", action="append", default=[], metavar="REPORT",
        help="a report of Nsight Compute on kernels of the job (.ncu-rep, CSV, folder); "
        "repeatable (default: those "
        "attached to it)",
    )  # fmt: skip
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Print a line per way, and why they differ."""
    from tachograph.api.job_scores import read_job_scores
    from tachograph.cli.options import open_lake
    from tachograph.report.score_ways import HEADINGS, way_remarks, way_row, ways_json

    opened = open_lake(arguments)
    scores = read_job_scores(
        opened.lake,
        arguments.job,
        cluster=arguments.cluster,
        run=arguments.nth,
        reports=[Path(name) for name in arguments.nsight],
    )
    if arguments.json:
        output.print_json(ways_json(scores.job, scores.ways))
        return 0
    title = f"GPU scores of job {scores.job} (0 best, 100 worst)"
    output.print_table(
        HEADINGS, list(map(way_row, scores.ways)), title=title, no_color=arguments.no_color
    )
    remarks = list(way_remarks(scores.ways))
    if remarks:
        output.print_text("\n" + "".join(f"{printable(remark)}\n" for remark in remarks))
    return 0
