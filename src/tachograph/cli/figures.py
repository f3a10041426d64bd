"""`tachograph figures`: the published study of this system: figures, their numbers, the answers to six questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.cli import output
from tachograph.cli.filters import add_filters, wanted
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tachograph.report.study.files import WrittenStudy
    from tachograph.report.study.report import StudyReport

FOLDER = "tachograph-study"


def add_arguments(parser: Parser) -> None:
    """Declare folder, formats, figures, jobs, variants."""
    parser.add_argument(
        "-o", "--output", default=FOLDER, metavar="DIR", help=f"folder to write into (default ./{FOLDER})"
    )
    parser.add_argument(
        "--format", action="append", default=[], metavar="NAME", help="pdf, svg, png; repeatable (default: all three)"
    )
    parser.add_argument(
        "--figure", action="append", default=[], metavar="NAME", help="only this one, by name or number; repeatable"
    )
    parser.add_argument("--pipe", default="fp64", metavar="NAME", help="fp64, fp32, fp16, tensor: whose roofline")
    parser.add_argument(
        "--window", type=int, metavar="MIN", help="of spatial imbalance: 1, 5, 15, 30 (default: as configured)"
    )
    parser.add_argument("--variant", default="paper", metavar="NAME", help="metrics as in the paper, or notebooks")
    parser.add_argument(
        "--no-filter",
        action="append",
        default=[],
        metavar="REASON",
        help="bring back jobs left out for this reason only, such as short; repeatable",
    )
    add_filters(parser, study=False)
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Make the study, write it, print what was drawn and the answers."""
    from pathlib import Path

    from tachograph.api import OpenLake
    from tachograph.cli.open import open_lake
    from tachograph.figures.style import FORMATS
    from tachograph.report.study.files import check_folder, check_formats
    from tachograph.report.study.json import study_json

    opened = open_lake(arguments)
    narrator = Narrator.of(arguments)
    folder, formats = Path(arguments.output), check_formats(arguments.format or FORMATS)
    check_folder(folder)
    with narrator.steps() as tell:
        study = OpenLake(opened.lake, opened.configuration, opened.now).study(
            arguments.figure,
            wanted=wanted(arguments, opened),
            tell=tell,
            pipe=arguments.pipe,
            window=arguments.window,
            variant=arguments.variant,
            no_filter=arguments.no_filter,
        )
        written = study.write(folder, formats=formats, tell=tell)
    if study.dataset.stale:
        narrator.say("the configuration changed after the last analysis: `tachograph analyze` brings the numbers along")
    if arguments.json:
        output.print_json(study_json(study.report, written.files))
    else:
        _show(study.report, written, no_color=arguments.no_color)
    return 0


def _show(report: StudyReport, written: WrittenStudy, *, no_color: bool) -> None:
    from tachograph.report.lines import to_rich
    from tachograph.report.study.text import study_lines

    rows = [
        (str(figure.entry.number), figure.entry.name, f"{figure.numbers.jobs:,}", figure.status)
        for figure in report.figures
    ]
    headings = [
        output.Heading("", right=True),
        output.Heading("figure"),
        output.Heading("jobs", right=True),
        output.Heading("drawn"),
    ]
    output.print_table(headings, rows, no_color=no_color)
    width = min(output.width(), 110)
    output.print_styled(to_rich([*study_lines(report, width), *_where(written)]), no_color=no_color)


def _where(written: WrittenStudy) -> Iterator[tuple[tuple[str, str], ...]]:
    removed = f"; {len(written.removed)} of an earlier study removed" if written.removed else ""
    yield ((f"{len(written.files)} files in {written.folder}{removed}; begin with study.html", ""),)
