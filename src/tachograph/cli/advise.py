"""`tachograph advise SCRIPT`: what to request for a job, from past jobs like it; with a
backtest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.catalog.errors import InputError, UsageError
from tachograph.catalog.units import whole_number
from tachograph.cli import output
from tachograph.cli.options import Arguments, Parser, add_json

if TYPE_CHECKING:
    from tachograph.cli.options import OpenedLake
    from tachograph.judge.advice.request import JobRequest


def add_arguments(parser: Parser) -> None:
    """Declare script or names, and the formats."""
    parser.add_argument(
        "script", nargs="?", metavar="SCRIPT", help="job script; - reads it from stdin"
    )
    parser.add_argument("--user", metavar="NAME", help="user of the job (default: you)")
    parser.add_argument("--name", metavar="NAME", help="name of the job (default: from the script)")
    parser.add_argument("--partition", metavar="NAME", help="partition (default: from the script)")
    parser.add_argument(
        "--gpus",
        type=whole_number(0),
        metavar="N",
        help="GPUs of the job (default: from the script)",
    )
    parser.add_argument(
        "--as-of", metavar="TIME", help="advise as of this time: from jobs that had ended by then"
    )
    parser.add_argument(
        "--backtest",
        action="store_true",
        help=(
            "replay past jobs (all, or those of --user): what advice would have saved, which jobs "
            "would have failed"
        ),
    )
    parser.add_argument(
        "--top",
        type=whole_number(1),
        default=10,
        metavar="N",
        help="rows per table of --backtest (default 10)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--sbatch", action="store_true", help="print only the #SBATCH lines")
    add_json(form)


def run(arguments: Arguments) -> int:
    """Print the advice, or the backtest."""
    if arguments.backtest:
        return _backtest(arguments)
    from tachograph.api.advice import read_advice
    from tachograph.cli.options import open_lake
    from tachograph.report.advice import advice_json, advice_lines, sbatch_lines

    request = _request(arguments)
    opened = open_lake(arguments)
    opened.remark_end()
    advice = read_advice(opened.lake, opened.configuration, request, now=opened.now)
    if arguments.json:
        output.print_json(advice_json(advice))
    elif arguments.sbatch:
        output.print_text("".join(f"{line}\n" for line in sbatch_lines(advice)))
    else:
        output.print_lines(
            advice_lines(advice, width=min(output.width(), 100)), no_color=arguments.no_color
        )
        if advice.group.level is None:
            _print_newest(opened)
    return 0


def _print_newest(opened: OpenedLake) -> None:
    """Print where the data end: the jobs of a user may be newer."""
    from tachograph.catalog.units import capitalized
    from tachograph.cli.options import newest_job
    from tachograph.lake.query import read_summaries

    zone_name = opened.configuration.site.time_zone
    newest = newest_job(read_summaries(opened.lake, ("start",)), zone_name=zone_name)
    if newest:
        output.print_text(f"{capitalized(newest)}.\n")


def _backtest(arguments: Arguments) -> int:
    from tachograph.api.advice import read_backtest
    from tachograph.cli.options import open_lake
    from tachograph.lake.filters import JobFilter
    from tachograph.report.backtest import backtest_json, backtest_lines

    if (
        arguments.script is not None
        or arguments.sbatch
        or arguments.name
        or arguments.gpus is not None
    ):
        raise UsageError(
            "--backtest replays jobs that ran",
            do="leave out the script, --name, --gpus and --sbatch",
        )
    opened = open_lake(arguments)
    jobs = JobFilter(
        users=(arguments.user,) if arguments.user else (),
        partitions=(arguments.partition,) if arguments.partition else (),
        until=opened.now,
    )
    report = read_backtest(opened.lake, opened.configuration, jobs)
    if arguments.json:
        output.print_json(backtest_json(report))
    else:
        lines = backtest_lines(report, top=arguments.top, width=min(output.width(), 100))
        output.print_lines(lines, no_color=arguments.no_color)
    return 0


def _request(arguments: Arguments) -> JobRequest:
    from dataclasses import replace

    from tachograph.judge.advice.request import JobRequest, read_script

    if arguments.script is None and arguments.name is None:
        raise UsageError(
            "no job is named", do="give a script, or --name with --partition and --gpus"
        )
    request = JobRequest()
    if arguments.script is not None:
        text, name = _read(arguments.script)
        request = read_script(text, name=name)
    return replace(
        request,
        user=arguments.user or _own_name(),
        name=arguments.name or request.name,
        partition=arguments.partition or request.partition,
        gpus=request.gpus if arguments.gpus is None else arguments.gpus,
    )


def _read(script: str) -> tuple[str, str]:
    """Text of a script, and the name that sbatch gives its job."""
    import sys
    from pathlib import Path

    if script == "-":
        return sys.stdin.buffer.read().decode("utf-8", "replace"), "sbatch"
    try:
        return Path(script).read_bytes().decode("utf-8", "replace"), Path(script).name
    except OSError as problem:
        raise InputError(
            problem.strerror or str(problem), where=script, do="name a readable job script"
        ) from None


def _own_name() -> str | None:
    """Who runs this; None for a number without a name."""
    import os
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return None
