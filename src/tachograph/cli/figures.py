"""`tachograph figures`: the published study for this system: figures, their numbers, the answers to six questions.

`tachograph figures radar`: profiles of jobs along six axes of GPU activity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.catalog.errors import NotFoundError, UsageError
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_filters, add_json, job_filter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tachograph.figures.study import StudyReport
    from tachograph.report.radar import RadarReport
    from tachograph.report.study_files import WrittenStudy

SHOWN = 20  # profiles in the printed table
FOLDER, RADAR_FOLDER = "tachograph-study", "tachograph-radar"
_OF_STUDY = ("figure", "pipe", "window", "variant", "whiskers", "no_filter")


def add_arguments(parser: Parser) -> None:
    """Declare folder, formats, figures, jobs, variants."""
    parser.add_argument(
        "what", nargs="?", default="study", metavar="radar", help="radar plots of jobs instead of the study"
    )
    parser.add_argument(
        "-o", "--output", metavar="DIR", help=f"output folder (default ./{FOLDER}, radar: ./{RADAR_FOLDER})"
    )
    parser.add_argument(
        "--format", action="append", default=[], metavar="NAME", help="pdf, svg, png; repeatable (default: all three)"
    )
    parser.add_argument(
        "--figure", action="append", default=[], metavar="NAME", help="only this one, by name or number; repeatable"
    )
    parser.add_argument("--pipe", default="fp64", metavar="NAME", help="pipe of the roofline: fp64, fp32, fp16, tensor")
    parser.add_argument(
        "--window", type=int, metavar="MIN", help="window of spatial imbalance: 1, 5, 15, 30 (default: as configured)"
    )
    parser.add_argument("--variant", default="paper", metavar="NAME", help="metrics as in the paper or the notebooks")
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
        "--by", metavar="NAME", help="radar: one profile per job (default), user, account, partition, workload, all"
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
            f"unknown argument '{arguments.what}'", do="use radar; one figure of the study is --figure NAME"
        )
    if arguments.by is not None:
        raise UsageError("--by is an option of `tachograph figures radar`", do="leave it out")
    return _study(arguments)


def _radar(arguments: Arguments) -> int:
    from pathlib import Path

    import polars as pl

    from tachograph.api.choices import described
    from tachograph.cli.options import open_lake
    from tachograph.figures.style import FORMATS
    from tachograph.lake.query import select_jobs
    from tachograph.report.radar import build_radar, radar_json, write_radar

    given = [name for name, default in arguments.of_study.items() if getattr(arguments, name) != default]
    if given:
        raise UsageError(f"--{given[0].replace('_', '-')} is an option of the study, not of radar", do="leave it out")
    opened = open_lake(arguments)
    which = job_filter(arguments, opened)
    jobs = select_jobs(opened.lake, which).jobs.filter(pl.col("samples") > 0)
    if jobs.is_empty():
        raise NotFoundError("no matching job has samples", do="widen the job filter: --since, --until, --where ...")
    report = build_radar(jobs, by=arguments.by or "job", chosen=described(which, opened.configuration.site.time_zone))
    folder = Path(arguments.output or RADAR_FOLDER)
    with Narrator.of(arguments).steps(logged=True) as progress:
        files = write_radar(report, folder, formats=arguments.format or FORMATS, progress=progress)
    if arguments.json:
        output.print_json(radar_json(report, files))
    else:
        _show_radar(report, folder, files, no_color=arguments.no_color)
    return 0


def _show_radar(report: RadarReport, folder: Path, files: Sequence[str], *, no_color: bool) -> None:
    from tachograph.figures.radar import sentences
    from tachograph.report.radar import radar_rows

    names, rows = radar_rows(report, at_most=SHOWN)
    output.print_table([names[0], *(f">{name}" for name in names[1:])], rows, no_color=no_color)
    left = report.profiles.tables["profiles"].height - len(rows)
    more = [f"{left} more in radar.json"] if left else []
    lines = [*more, *sentences(report.profiles), f"{len(files)} files in {folder}"]
    output.print_text("\n" + "\n".join(lines) + "\n")


def _study(arguments: Arguments) -> int:
    from pathlib import Path

    from tachograph.api.open_lake import OpenLake
    from tachograph.cli.options import open_lake
    from tachograph.figures.style import FORMATS
    from tachograph.report.study import study_json
    from tachograph.report.study_files import check_folder, check_formats

    opened = open_lake(arguments)
    narrator = Narrator.of(arguments)
    folder, formats = Path(arguments.output or FOLDER), check_formats(arguments.format or FORMATS)
    check_folder(folder)
    with narrator.steps(logged=True) as progress:
        study = OpenLake(opened.lake, opened.configuration, opened.now).study(
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
        narrator.say("the configuration changed after the last analysis; run `tachograph analyze` to update")
    if arguments.json:
        output.print_json(study_json(study.report, written.files))
    else:
        _show(study.report, written, no_color=arguments.no_color)
    return 0


def _show(report: StudyReport, written: WrittenStudy, *, no_color: bool) -> None:
    from tachograph.report.study import study_lines

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
