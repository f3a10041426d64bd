"""`tachograph study`: the published study on this system: figures, numbers, six answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.catalog.units import whole_number
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_filters, add_json, job_filter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tachograph.annexes.lab.figures.study import StudyReport
    from tachograph.annexes.lab.study_files import WrittenStudy

FOLDER = "tachograph-study"


def add_arguments(parser: Parser) -> None:
    """Declare folder, formats, figures, jobs, variants."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help=f"output folder (default ./{FOLDER})",
    )
    parser.add_argument(
        "--format",
        action="append",
        default=[],
        metavar="NAME",
        help="pdf, svg, png; repeatable (default: all three)",
    )
    parser.add_argument(
        "--figure",
        action="append",
        default=[],
        metavar="NAME",
        help="only this one, by name or number; repeatable",
    )
    parser.add_argument(
        "--pipe",
        default="fp64",
        metavar="NAME",
        help="pipe of the roofline: fp64, fp32, fp16, tensor",
    )
    parser.add_argument(
        "--window",
        type=whole_number(1, 30),
        metavar="MIN",
        help="window of spatial imbalance: 1, 5, 15, 30 (default: as configured)",
    )
    parser.add_argument(
        "--variant",
        default="paper",
        metavar="NAME",
        help="metrics as in the paper or the notebooks",
    )
    parser.add_argument(
        "--whiskers",
        default="tukey",
        metavar="NAME",
        help="ends of whiskers: tukey (1.5 box lengths), percentile (5, 95)",
    )
    parser.add_argument(
        "--no-filter",
        action="append",
        default=[],
        metavar="REASON",
        help="include jobs left out for this reason only, such as short; repeatable",
    )
    add_filters(parser, study=False)
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Write the study; print figures and answers."""
    from pathlib import Path

    from tachograph.annexes.lab.figures.registry import FORMATS
    from tachograph.annexes.lab.study import study_json
    from tachograph.annexes.lab.study_files import check_folder, check_formats
    from tachograph.api.open_lake import OpenLake
    from tachograph.cli.options import open_lake

    opened, narrator = open_lake(arguments), Narrator.of(arguments)
    folder, formats = Path(arguments.output or FOLDER), check_formats(arguments.format or FORMATS)
    check_folder(folder)
    with narrator.steps(logged=True) as progress:
        study = OpenLake(opened.lake, opened.configuration, opened.clock).study(
            arguments.figure,
            wanted=job_filter(arguments, opened),
            progress=progress,
            pipe=arguments.pipe,
            window=arguments.window,
            variant=arguments.variant,
            whiskers=arguments.whiskers,
            no_filter=arguments.no_filter,
        )
        written = study.write(folder, formats=formats, progress=progress)
    if study.dataset.stale:
        narrator.say(
            "the configuration changed after the last analysis; run `tachograph analyze` to update"
        )
    if arguments.json:
        output.print_json(study_json(study.report, written.files))
    else:
        _show(study.report, written, no_color=arguments.no_color)
    return 0


def _show(report: StudyReport, written: WrittenStudy, *, no_color: bool) -> None:
    from tachograph.annexes.lab.study import study_lines

    rows = [
        (str(figure.entry.number), figure.entry.name, f"{figure.shown_jobs:,}", figure.status)
        for figure in report.figures
    ]
    output.print_table((">", "figure", ">jobs", "status"), rows, no_color=no_color)
    width = min(output.width(), 110)
    output.print_lines([*study_lines(report, width), *_where(written)], no_color=no_color)


def _where(written: WrittenStudy) -> Iterator[tuple[tuple[str, str], ...]]:
    removed = f"; {len(written.removed)} of an earlier study removed" if written.removed else ""
    yield ((f"{len(written.files)} files in {written.folder}{removed}; main page: study.html", ""),)
