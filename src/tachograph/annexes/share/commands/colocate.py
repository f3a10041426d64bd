"""`tachograph share colocate`: which jobs of a lake could share a GPU, how, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.catalog.units import whole_number
from tachograph.cli import narrate, output
from tachograph.cli.options import Arguments, Parser, add_filters, add_json, add_raw, job_filter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tachograph.annexes.share.colocation import ColocateReport
    from tachograph.annexes.share.job_groups import GivenProfile
    from tachograph.cli.options import OpenedLake
    from tachograph.lake.filters import JobFilter

_TOP = 20  # pairs of a printed table


def add_arguments(parser: Parser) -> None:
    """Declare which jobs, which pairs, and the formats."""
    add_filters(parser)
    parser.add_argument(
        "--runs",
        type=whole_number(1),
        default=2,
        metavar="N",
        help="only job groups with at least N runs (default: 2)",
    )
    parser.add_argument(
        "--profile", action="append", default=[], metavar="GROUP=REPORT",
        help="estimate this job group (user/name, a job's id, or 'user/*') from its kernels: a "
        "file or folder that "
        "`tachograph share kernels` reads; repeatable",
    )  # fmt: skip
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--pair",
        nargs=2,
        metavar=("A", "B"),
        help="explain one pair (user/name or job ids), proposed or not",
    )
    which.add_argument(
        "--all", action="store_true", help="also pairs that are not proposed, with reasons"
    )
    which.add_argument("--matrix", action="store_true", help="slowdown of every pair of job groups")
    which.add_argument(
        "--accuracy",
        action="store_true",
        help="predicted slowdowns beside those of jobs that shared GPUs",
    )
    parser.add_argument(
        "--top",
        type=whole_number(1),
        metavar="N",
        help="at most N pairs (default: 20 where printed, all in exports)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV: one line per pair")
    add_json(form)
    add_raw(parser)


def run(arguments: Arguments) -> int:
    """Print the pairs of job groups that could share a GPU."""
    if arguments.accuracy:
        return _print_accuracy(arguments)
    from tachograph.cli.options import open_lake

    opened = open_lake(arguments)
    which = job_filter(arguments, opened)
    report = _report(arguments, opened, which)
    for problem in report.refused_profiles:
        narrate.remark(problem)
    if arguments.json:
        from tachograph.annexes.share.sharing_json import colocate_json

        output.print_json(colocate_json(report, top=arguments.top))
    elif arguments.csv:
        from tachograph.annexes.share.sharing_json import colocate_csv

        output.print_data(colocate_csv(report, top=arguments.top, raw=arguments.raw))
    else:
        from tachograph.annexes.share.sharing_text import colocate_lines
        from tachograph.cli.no_match import no_match_lines
        from tachograph.report.lines import plain

        lines = colocate_lines(report, width=min(output.width(), 120), top=arguments.top or _TOP)
        if not report.jobs and not report.left_out:
            lines = [*map(plain, no_match_lines(opened, which)), *lines]
        output.print_lines(lines, no_color=arguments.no_color)
    return 0


def _print_accuracy(arguments: Arguments) -> int:
    """Print what jobs on shared GPUs lost, beside what was predicted."""
    from tachograph.annexes.share import sharing_accuracy
    from tachograph.catalog.errors import UsageError
    from tachograph.cli.options import open_lake

    if arguments.csv:
        raise UsageError("--accuracy is not printed as CSV", do="use --json")
    opened = open_lake(arguments)
    report = sharing_accuracy.read_accuracy(
        opened.lake,
        opened.configuration,
        job_filter(arguments, opened),
        profiles=_profiles(arguments.profile),
        remark=narrate.remark,
    )
    if arguments.json:
        output.print_json(sharing_accuracy.accuracy_json(report, top=arguments.top))
    else:
        width, top = min(output.width(), 120), arguments.top or _TOP
        lines = sharing_accuracy.accuracy_lines(report, width=width, top=top)
        output.print_lines(lines, no_color=arguments.no_color)
    return 0


def _report(arguments: Arguments, opened: OpenedLake, which: JobFilter) -> ColocateReport:
    from tachograph.annexes.share.job_sharing import read_sharing

    return read_sharing(
        opened.lake,
        opened.configuration,
        which,
        least_runs=arguments.runs,
        every=arguments.all,
        top=arguments.top if arguments.json or arguments.csv else arguments.top or _TOP,
        pair=tuple(arguments.pair) if arguments.pair else None,
        matrix=arguments.matrix,
        profiles=_profiles(arguments.profile),
        remark=narrate.remark,
    )


def _profiles(written: Sequence[str]) -> list[GivenProfile]:
    """The profiles that the command names.

    Errors: UsageError for an option that is not GROUP=REPORT.
    """
    from tachograph.annexes.share.job_groups import GivenProfile
    from tachograph.catalog.errors import UsageError

    profiles = []
    for option in written:
        group, _, report = option.partition("=")
        if not group or not report:
            raise UsageError(
                f"invalid --profile '{option}'", do="write --profile user/name=report.ncu-rep"
            )
        profiles.append(GivenProfile(group, report))
    return profiles
