"""`tachograph study`: the published study on this system: figures, numbers, six answers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tachograph.catalog.errors import UsageError
from tachograph.catalog.units import whole_number
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_filters, add_json, job_filter

if TYPE_CHECKING:
    from tachograph.annexes.lab.figures.study import Progress, StudyReport
    from tachograph.annexes.lab.lake_study import StudyChoice
    from tachograph.annexes.lab.study_files import WrittenStudy
    from tachograph.cli.options import OpenedLake
    from tachograph.lake.delta import Lake
    from tachograph.lake.filters import JobFilter

FOLDER, COMPARE_FOLDER = "tachograph-study", "tachograph-compare"
_SPAN = re.compile(r"(\d{4})-(\d\d)(-(\d\d))?")


def add_arguments(parser: Parser) -> None:
    """Declare folder, formats, figures, jobs, variants."""
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help=f"output folder (default ./{FOLDER}, ./{COMPARE_FOLDER})",
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
    parser.add_argument(
        "--compare",
        nargs="+",
        default=[],
        metavar="LAKE",
        help=(
            "studies side by side: lakes, or months (2025-03) and days of this one; a single "
            "one beside this lake"
        ),
    )
    add_filters(parser, study=False)
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Write the study, or several side by side; print figures and answers, or numbers."""
    return _compare(arguments) if arguments.compare else _study(arguments)


def _study(arguments: Arguments) -> int:
    import gc
    from pathlib import Path

    from tachograph.annexes.lab.figures.registry import FORMATS
    from tachograph.annexes.lab.lake_study import LakeStudy
    from tachograph.annexes.lab.study import study_json
    from tachograph.annexes.lab.study_files import check_folder, check_formats
    from tachograph.cli.options import open_lake

    opened, narrator = open_lake(arguments), Narrator.of(arguments)
    folder, formats = Path(arguments.output or FOLDER), check_formats(arguments.format or FORMATS)
    check_folder(folder)
    with narrator.steps(logged=True) as progress:
        study = LakeStudy(opened.lake, opened.configuration, opened.clock).study(
            arguments.figure,
            wanted=job_filter(arguments, opened),
            progress=progress,
            **_options(arguments),
        )
        # Drawing leaves many objects to collect; what was imported need not be searched each time.
        gc.freeze()
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


def _options(arguments: Arguments) -> StudyChoice:
    """Settings of the study from the options."""
    return {
        "pipe": arguments.pipe,
        "window": arguments.window,
        "variant": arguments.variant,
        "whiskers": arguments.whiskers,
        "no_filter": arguments.no_filter,
    }


def _compare(arguments: Arguments) -> int:
    from pathlib import Path

    from tachograph.annexes.lab.comparison import (
        MOST_STUDIES,
        StudyComparison,
        comparison_json,
        write_comparison,
    )
    from tachograph.annexes.lab.lake_study import LakeStudy
    from tachograph.annexes.lab.study_files import check_folder
    from tachograph.cli.options import open_lake

    if arguments.format:
        raise UsageError(
            "--format does not go with --compare, which draws nothing", do="leave it out"
        )
    opened = open_lake(arguments)
    narrator, named = Narrator.of(arguments), list(dict.fromkeys(arguments.compare))
    folder = Path(arguments.output or COMPARE_FOLDER)
    check_folder(folder)
    labels = named if len(named) > 1 else [opened.lake.location, *named]
    if len(labels) > MOST_STUDIES:
        raise UsageError(f"{len(labels)} studies to compare", do=f"name at most {MOST_STUDIES}")
    selection, reports = job_filter(arguments, opened), []
    with narrator.steps(logged=True) as progress:
        for label in labels:
            lake, which = _of_label(label, opened, selection)
            study = LakeStudy(lake, opened.configuration, opened.clock).study(
                arguments.figure,
                wanted=which,
                progress=_prefixed(label, progress),
                **_options(arguments),
            )
            reports.append(study.report)
    comparison = StudyComparison(tuple(labels), tuple(reports))
    written = write_comparison(comparison, folder)
    if arguments.json:
        output.print_json(comparison_json(comparison))
        return 0
    output.print_table(
        ["number", *(f">{label}" for label in labels)],
        [(what, *values) for what, values in comparison.numbers()],
        no_color=arguments.no_color,
    )
    output.print_text(
        f"\n{len(written.files)} files in {written.folder}; main page: compare.html\n"
    )
    return 0


def _prefixed(label: str, progress: Progress) -> Progress:
    """Progress that names the study."""
    return lambda doing, done, total: progress(f"{label}: {doing}", done, total)


def _of_label(label: str, opened: OpenedLake, selection: JobFilter) -> tuple[Lake, JobFilter]:
    """Lake and jobs of one study: another lake, or a month or day of this one."""
    from calendar import monthrange
    from dataclasses import replace
    from datetime import date, timedelta

    from tachograph.catalog.units import parse_time
    from tachograph.lake.delta import Lake

    if label == opened.lake.location:
        return opened.lake, selection
    if not (span := _SPAN.fullmatch(label)):
        return Lake.open(label), selection
    try:
        first = date(int(span[1]), int(span[2]), int(span[4] or 1))
    except ValueError:
        raise UsageError(
            f"Invalid time: {label!r}", do="write a month as 2025-03, a day as 2025-03-04"
        ) from None
    after = first + timedelta(days=1 if span[4] else monthrange(first.year, first.month)[1])
    ends = (first.isoformat(), after.isoformat())
    since, until = (
        parse_time(end, now=opened.now, zone_name=opened.configuration.site.time_zone)
        for end in ends
    )
    return opened.lake, replace(selection, since=since, until=until)


def _show(report: StudyReport, written: WrittenStudy, *, no_color: bool) -> None:
    from tachograph.annexes.lab.study import study_lines
    from tachograph.report.lines import plain

    rows = [
        (str(figure.entry.number), figure.entry.name, f"{figure.shown_jobs:,}", figure.status)
        for figure in report.figures
    ]
    output.print_table((">", "figure", ">jobs", "status"), rows, no_color=no_color)
    lines = study_lines(report, min(output.width(), 110))
    removed = f"; {len(written.removed)} of an earlier study removed" if written.removed else ""
    where = f"{len(written.files)} files in {written.folder}{removed}; main page: study.html"
    output.print_lines([*lines, plain(where)], no_color=no_color)
