"""`tachograph study`: the published study on this system: figures, numbers, six answers.

`tachograph study radar`: profiles of jobs along six axes of GPU activity.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.catalog.units import whole_number
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_filters, add_json, job_filter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tachograph.annexes.lab.figures.study import Progress, StudyReport
    from tachograph.annexes.lab.lake_study import StudyChoice
    from tachograph.annexes.lab.radar import RadarReport
    from tachograph.annexes.lab.study_files import WrittenStudy
    from tachograph.cli.options import OpenedLake
    from tachograph.lake.delta import Lake
    from tachograph.lake.filters import JobFilter

SHOWN = 20  # profiles in the printed table
FOLDER, RADAR_FOLDER, COMPARE_FOLDER = "tachograph-study", "tachograph-radar", "tachograph-compare"
_SPAN = re.compile(r"(\d{4})-(\d\d)(-(\d\d))?")
_OF_STUDY = ("figure", "pipe", "window", "variant", "whiskers", "no_filter", "compare")


def add_arguments(parser: Parser) -> None:
    """Declare folder, formats, figures, jobs, variants."""
    parser.add_argument(
        "what",
        nargs="?",
        default="study",
        metavar="radar",
        help="radar plots of jobs instead of the study",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help=f"output folder (default ./{FOLDER}, ./{RADAR_FOLDER}, ./{COMPARE_FOLDER})",
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
    parser.add_argument(
        "--by",
        metavar="NAME",
        help="radar: one profile per job (default), user, account, partition, workload, all",
    )
    add_filters(parser, study=False)
    add_json(parser)
    parser.set_defaults(of_study={name: parser.get_default(name) for name in _OF_STUDY})


def run(arguments: Arguments) -> int:
    """Write the study or the radar plots; print figures and answers."""
    if arguments.what == "radar":
        return _radar(arguments)
    if arguments.what != "study":
        raise UsageError(
            f"unknown argument '{arguments.what}'",
            do="use radar; one figure of the study is --figure NAME",
        )
    if arguments.by is not None:
        raise UsageError("--by is an option of `tachograph study radar`", do="leave it out")
    return _compare(arguments) if arguments.compare else _study(arguments)


def _radar(arguments: Arguments) -> int:
    from pathlib import Path

    import polars as pl

    from tachograph.annexes.lab.figures.registry import FORMATS
    from tachograph.annexes.lab.radar import build_radar, radar_json, write_radar
    from tachograph.api.choices import described
    from tachograph.cli.options import open_lake
    from tachograph.lake.query import select_jobs

    given = [
        name for name, default in arguments.of_study.items() if getattr(arguments, name) != default
    ]
    if given:
        raise UsageError(
            f"--{given[0].replace('_', '-')} is an option of the study, not of radar",
            do="leave it out",
        )
    opened = open_lake(arguments)
    which = job_filter(arguments, opened)
    jobs = select_jobs(opened.lake, which).jobs.filter(pl.col("samples") > 0)
    if jobs.is_empty():
        raise NotFoundError(
            "no matching job has samples", do="widen the job filter: --since, --until, --where ..."
        )
    report = build_radar(
        jobs, by=arguments.by or "job", chosen=described(which, opened.configuration.site.time_zone)
    )
    folder = Path(arguments.output or RADAR_FOLDER)
    with Narrator.of(arguments).steps(logged=True) as progress:
        files = write_radar(report, folder, formats=arguments.format or FORMATS, progress=progress)
    if arguments.json:
        output.print_json(radar_json(report, files))
    else:
        _show_radar(report, folder, files, no_color=arguments.no_color)
    return 0


def _show_radar(report: RadarReport, folder: Path, files: Sequence[str], *, no_color: bool) -> None:
    from tachograph.annexes.lab.figures.radar import sentences
    from tachograph.catalog.units import text
    from tachograph.judge.workload.classes import AXES, AXIS_NAMES

    profiles = report.profiles.tables["profiles"]
    headings = [str(report.profiles.facts["by"]), ">jobs"]
    headings += [f">{AXIS_NAMES[axis]}" for axis in AXES]
    rows = []
    for row in profiles.head(SHOWN).iter_rows(named=True):
        fractions = [text(row[axis], "fraction") for axis in AXES]
        rows.append((str(row["name"]), f"{row['jobs']:,}", *fractions))
    output.print_table(headings, rows, no_color=no_color)
    left = profiles.height - len(rows)
    more = [f"{left} more in radar.json"] if left else []
    lines = [*more, *sentences(report.profiles), f"{len(files)} files in {folder}"]
    output.print_text("\n" + "\n".join(lines) + "\n")


def _study(arguments: Arguments) -> int:
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
            **_options(arguments),
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
    from tachograph.annexes.lab.study_files import check_folder
    from tachograph.api.open_lake import OpenLake
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
    wanted, reports = job_filter(arguments, opened), []
    with narrator.steps(logged=True) as progress:
        for label in labels:
            lake, which = _of_label(label, opened, wanted)
            study = OpenLake(lake, opened.configuration, opened.clock).study(
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


def _of_label(label: str, opened: OpenedLake, wanted: JobFilter) -> tuple[Lake, JobFilter]:
    """Lake and jobs of one study: another lake, or a month or day of this one."""
    from calendar import monthrange
    from dataclasses import replace
    from datetime import date, timedelta

    from tachograph.catalog.units import parse_time
    from tachograph.lake.delta import Lake

    if label == opened.lake.location:
        return opened.lake, wanted
    if not (found := _SPAN.fullmatch(label)):
        return Lake.open(label), wanted
    try:
        first = date(int(found[1]), int(found[2]), int(found[4] or 1))
    except ValueError:
        raise UsageError(
            f"Invalid time: {label!r}", do="write a month as 2025-03, a day as 2025-03-04"
        ) from None
    after = first + timedelta(days=1 if found[4] else monthrange(first.year, first.month)[1])
    ends = (first.isoformat(), after.isoformat())
    since, until = (
        parse_time(end, now=opened.now, zone_name=opened.configuration.site.time_zone)
        for end in ends
    )
    return opened.lake, replace(wanted, since=since, until=until)


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
