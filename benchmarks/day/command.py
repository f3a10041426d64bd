"""The command line of the simulated day: days of jobs, synthetic or of a lake, placed with and without advice."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from day.report import DayReport, How, RecordedJobs, build_day_report, build_recorded_report, recorded
from day.schedule import POLICIES
from day.text import SLOWDOWNS, WORK, Column, day_json, heading, legend, table, write_figure
from tachograph.catalog import config
from tachograph.catalog.errors import TachographError, UsageError
from tachograph.catalog.tables import DEVICES
from tachograph.cli import narrate, output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_common, add_filters, add_json, job_filter, open_lake, seed
from tachograph.lake.query import read_latest, select_jobs
from tachograph.sharing.calibration import calibration_of

_POLICIES = tuple(policy.code for policy in POLICIES)
_DRAWN = (".svg", ".png", ".pdf")
_GPUS, _JOBS, _LOAD = 32, 400, 1.4  # of a synthetic day
_MOST_GPUS, _MOST_JOBS, _MOST_DAYS, _MOST_PER_GPU = 4096, 100_000, 1000, 4
_OF_LAKE = ("model", "user", "account", "partition", "state", "since", "until", "where", "finding", "attribution")


def main(words: Sequence[str]) -> int:
    """Return the exit code of the command with these arguments: errors of the user are one line on stderr."""
    output.prepare()
    try:
        code = run(parsed(words))
        output.flush()
    except TachographError as problem:
        narrate.error(problem)
        return problem.exit_code
    return code


def parsed(words: Sequence[str]) -> Arguments:
    """Return the options of the command."""
    parser = Parser("python benchmarks/day", "Simulate days of jobs that share GPUs.")
    add_arguments(parser)
    add_json(parser)
    add_common(parser)
    return parser.parse_args(words, Arguments())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the days, the policies, and what they see of the jobs; `--json` is added by the command."""
    parser.add_argument(
        "--gpus", type=int, metavar="N", help="GPUs of the cluster (default 32; with --lake as many as it has)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="jobs of a synthetic day (default 400)")
    parser.add_argument(
        "--load", type=float, metavar="X", help="demand of synthetic jobs over what the GPUs have (default 1.4)"
    )
    parser.add_argument("--seed", type=seed, default=1, help="of the first day, or sample (default 1)")
    parser.add_argument(
        "--seeds", type=int, default=10, metavar="N", help="so many days, or samples, each a seed on (default 10)"
    )
    parser.add_argument(
        "--policies", nargs="+", choices=_POLICIES, default=_POLICIES, metavar="POLICY", help=", ".join(_POLICIES)
    )
    parser.add_argument(
        "--profiles",
        choices=("measured", "dcgm", "dcgm-careful"),
        help="what advice sees. measured: kernels as a profiler measures them (default of synthetic days); dcgm: means "
        "of DCGM's counters per job; dcgm-careful: these, and half of the issue slots counted as demand (default "
        "with --lake)",
    )
    parser.add_argument("--per-gpu", type=int, default=2, metavar="N", help="jobs that may share a GPU, 2 to 4")
    parser.add_argument(
        "--model", metavar="NAME", help="model of GPU whose jobs of the lake are simulated (default: most used)"
    )
    parser.add_argument("--figure", metavar="FILE", help="draw the days into FILE: .svg, .png or .pdf")
    add_filters(parser)


def run(arguments: Arguments) -> int:
    """Simulate the days, and print the result of each policy."""
    _check(arguments)
    report = _report(arguments)
    if arguments.figure:
        with output.writing(arguments.figure):
            write_figure(report, Path(arguments.figure))
    if arguments.json:
        output.print_json(day_json(report))
        return 0

    def show(title: str, columns: Sequence[Column]) -> tuple[str, ...]:
        titles, rows = table(report, columns, width=output.width())
        output.print_text(f"\n{title}\n")
        output.print_table([titles[0], *(f">{name}" for name in titles[1:])], rows, no_color=arguments.no_color)
        return titles

    output.print_text(heading(report))
    shown = show("Work", WORK)
    shown += show("Slowdown of a job against running alone", SLOWDOWNS)
    output.print_text(f"\n{legend(report, shown)}")
    return 0


def _report(arguments: Arguments) -> DayReport:
    with Narrator.of(arguments).steps() as progress:
        how = How(
            seeds=range(arguments.seed, arguments.seed + arguments.seeds),
            policies=arguments.policies,
            profiles=arguments.profiles or ("measured" if arguments.lake is None else "dcgm-careful"),
            settings=config.load(arguments.config).interference,
            per_gpu=arguments.per_gpu,
            progress=progress,
        )
        if arguments.lake is not None:
            return build_recorded_report(how, _jobs_of_lake(arguments))
        return build_day_report(
            how,
            gpus=_GPUS if arguments.gpus is None else arguments.gpus,
            jobs=_JOBS if arguments.jobs is None else arguments.jobs,
            load=_LOAD if arguments.load is None else arguments.load,
        )


def _jobs_of_lake(arguments: Arguments) -> RecordedJobs:
    opened = open_lake(arguments)
    return recorded(
        select_jobs(opened.lake, job_filter(arguments, opened)).jobs,
        read_latest(opened.lake, DEVICES),
        thresholds=opened.configuration.thresholds,
        achievable=calibration_of(opened.configuration).achievable_share,
        model=arguments.model,
        gpus=arguments.gpus,
    )


def _check(arguments: Arguments) -> None:
    limits = (("gpus", 1, _MOST_GPUS), ("jobs", 1, _MOST_JOBS), ("seeds", 1, _MOST_DAYS), ("per_gpu", 2, _MOST_PER_GPU))
    for name, least, most in limits:
        given = getattr(arguments, name)
        if given is not None and not least <= given <= most:
            raise UsageError(f"--{name.replace('_', '-')} {given} is not between {least} and {most}")
    if arguments.load is not None and not 0.01 <= arguments.load <= 100:
        raise UsageError(f"--load {arguments.load:g} is not between 0.01 and 100")
    if arguments.figure and Path(arguments.figure).suffix not in _DRAWN:
        raise UsageError("is no format of figures", where=arguments.figure, do=f"name one of {', '.join(_DRAWN)}")
    if arguments.figure:
        with output.writing(arguments.figure):  # before minutes of simulation
            next(Path(arguments.figure).parent.iterdir(), None)
    if arguments.lake is None:
        chosen = [option for option in _OF_LAKE if getattr(arguments, option)]
        if chosen:
            raise UsageError(
                f"--{chosen[0].replace('_', '-')} chooses jobs of a lake, and these days are synthetic",
                do="give --lake, too",
            )
    else:
        for name in ("jobs", "load"):
            if getattr(arguments, name) is not None:
                raise UsageError(f"--{name} is of synthetic days", do="omit it: with --lake its jobs are simulated")
