"""`tachograph interference day`: simulated days of jobs, placed with and without advice about sharing GPUs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.cli import output
from tachograph.cli.options import Arguments, seed
from tachograph.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tachograph.report.day.text import Column

_POLICIES = ("exclusive", "roofline", "occupancy", "advice", "safe", "oracle")
_DRAWN = (".svg", ".png", ".pdf")
_MOST_GPUS, _MOST_JOBS, _MOST_DAYS = 4096, 100_000, 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the days, the policies, and what they see of the jobs; `--json` is added by the command."""
    parser.add_argument("--gpus", type=int, default=32, metavar="N", help="GPUs of the cluster (default 32)")
    parser.add_argument("--jobs", type=int, default=400, metavar="N", help="jobs of a day (default 400)")
    parser.add_argument(
        "--load", type=float, default=1.4, metavar="X", help="what jobs ask for over what the GPUs have (default 1.4)"
    )
    parser.add_argument("--seed", type=seed, default=1, help="of the first day (default 1)")
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="so many days, each a seed on (default 10)")
    parser.add_argument(
        "--policies", nargs="+", choices=_POLICIES, default=_POLICIES, metavar="POLICY", help=", ".join(_POLICIES)
    )
    parser.add_argument(
        "--profiles",
        choices=("measured", "dcgm", "dcgm-careful"),
        default="measured",
        help="what advice sees. measured: kernels as a profiler measures them (default); dcgm: means of DCGM's "
        "counters per job; dcgm-careful: these, and half of the issue slots counted as asked for",
    )
    parser.add_argument("--figure", metavar="FILE", help="draw the days into FILE: .svg, .png or .pdf")


def run(arguments: Arguments) -> int:
    """Simulate the days, and print what each policy came to."""
    _check(arguments)
    from tachograph import config
    from tachograph.report.day.report import build_day_report
    from tachograph.report.day.text import SLOWDOWNS, WORK, day_json, heading, legend, table

    report = build_day_report(
        gpus=arguments.gpus,
        jobs=arguments.jobs,
        load=arguments.load,
        seeds=range(arguments.seed, arguments.seed + arguments.seeds),
        policies=arguments.policies,
        profiles=arguments.profiles,
        settings=config.load(arguments.config).interference,
    )
    if arguments.figure:
        from tachograph.report.day.figure import write_figure

        with output.writing(arguments.figure):
            write_figure(report, Path(arguments.figure))
    if arguments.json:
        output.print_json(day_json(report))
        return 0

    def show(title: str, columns: Sequence[Column]) -> None:
        titles, rows = table(report, columns, width=output.width())
        headings = [output.Heading(name, right=place > 0) for place, name in enumerate(titles)]
        output.print_text(f"\n{title}\n")
        output.print_table(headings, rows, no_color=arguments.no_color)

    output.print_text(heading(report))
    show("Work", WORK)
    show("Slowdown of a job against running alone", SLOWDOWNS)
    output.print_text(f"\n{legend(report)}")
    return 0


def _check(arguments: Arguments) -> None:
    for name, most in (("gpus", _MOST_GPUS), ("jobs", _MOST_JOBS), ("seeds", _MOST_DAYS)):
        if not 1 <= getattr(arguments, name) <= most:
            raise UsageError(f"--{name} {getattr(arguments, name)} is not between 1 and {most}")
    if not 0.01 <= arguments.load <= 100:
        raise UsageError(f"--load {arguments.load:g} is not between 0.01 and 100")
    if arguments.figure and Path(arguments.figure).suffix not in _DRAWN:
        raise UsageError("is no format of figures", where=arguments.figure, do=f"name one of {', '.join(_DRAWN)}")
