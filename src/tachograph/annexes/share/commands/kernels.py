"""`tachograph share kernels`: demand, sensitivity and slowdown of kernels that share a GPU.

The kernels are those of reports, or of reports that were attached to a job of the lake.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.annexes.share.commands.job_kernels import (
    add_job_options,
    attach_reports,
    changes_job,
    detach_reports,
    read_job_kernels,
)
from tachograph.catalog.errors import UsageError
from tachograph.catalog.units import whole_number
from tachograph.cli.formats import ReportFormats, add_formats, write_report
from tachograph.cli.narrate import Narrator, remark
from tachograph.cli.options import Arguments, Parser, configuration_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tachograph.annexes.share.kernel_facts import KernelsReport
    from tachograph.annexes.share.nsight.launches import NcuReport


_TOP = 20  # kernels of a printed table
_WIDEST = 140  # characters of a line
_MOST_LINES = 20  # remarks on stderr


def add_arguments(parser: Parser) -> None:
    """Declare reports, kernel filter, questions, and formats."""
    parser.add_argument(
        "reports",
        nargs="*",
        metavar="REPORT",
        help="a .ncu-rep, CSV of `LC_ALL=C ncu --csv`, or a folder",
    )
    add_job_options(parser)
    selection = parser.add_argument_group("kernel filter")
    selection.add_argument(
        "--kernel", action="append", default=[], metavar="PATTERN",
        help="only kernels whose name contains this; * and ? as in a shell; repeatable",
    )  # fmt: skip
    selection.add_argument(
        "--top",
        type=whole_number(1),
        metavar="N",
        help=f"the N longest-running kernels of each GPU (default: {_TOP} in text)",
    )
    selection.add_argument(
        "--gpu",
        metavar="MODEL",
        help="GPU of reports that name none, as listed by `tachograph lake devices`",
    )
    report = parser.add_argument_group("report")
    report.add_argument(
        "--explain", metavar="KERNEL", help="all values of one kernel, by number or pattern"
    )
    report.add_argument(
        "--together",
        nargs=2,
        metavar="KERNEL",
        help="slowdown of these two if they run at the same time",
    )
    report.add_argument(
        "--matrix",
        action="store_true",
        help="slowdown of every pair of kernels, also of two of the same",
    )
    report.add_argument(
        "--mps-share", type=_shares, metavar="P,P",
        help="processes under MPS (NVIDIA's service to share a GPU) with these percentages of "
        "the SMs, as 50,50; "
        "default: streams of one process",
    )  # fmt: skip
    add_formats(parser, csv="the kernels, or the estimates of pairs")


def run(arguments: Arguments) -> int:
    """Print or write the report on kernels, or attach reports to a job, or detach them."""
    changes = changes_job(arguments)
    if arguments.detach:
        return detach_reports(arguments)
    if not all(arguments.reports):  # Path("") is the current folder
        raise UsageError("empty report name", do="name a file or a folder; the current one is .")
    if changes:
        return attach_reports(arguments, lambda: _of_gpu(_read(arguments), arguments))
    return _report(arguments)


def _report(arguments: Arguments) -> int:
    from tachograph.annexes.share.kernel_facts import KernelsRequest
    from tachograph.annexes.share.kernel_report import build_kernels_report

    exported = arguments.json or arguments.csv or arguments.html is not None
    request = KernelsRequest(
        kernels=tuple(arguments.kernel),
        top=arguments.top if arguments.top is not None or exported else _TOP,
        explain=arguments.explain,
        together=arguments.together,
        matrix=arguments.matrix or arguments.html is not None,
        shares=arguments.mps_share,
    )
    reports = read_job_kernels(arguments) if arguments.job is not None else _read(arguments)
    report = build_kernels_report(
        _of_gpu(reports, arguments), request, configuration=configuration_of(arguments)
    )
    _remark_some(report.problems, more="--json has them all")
    _show(report, arguments)
    return 0


def _show(report: KernelsReport, arguments: Arguments) -> None:
    from tachograph.annexes.share.kernels_json import kernels_csv, kernels_json
    from tachograph.annexes.share.kernels_text import kernels_lines

    forms = ReportFormats(
        html=lambda: _html(report),
        json=lambda: kernels_json(report),
        csv=lambda raw: kernels_csv(report, raw=raw),
        lines=lambda width, _: kernels_lines(report, width=width),
        widest=_WIDEST,
    )
    write_report(forms, arguments)


def _read(arguments: Arguments) -> tuple[NcuReport, ...]:
    """Return the reports of files and folders; unreadable ones are skipped and reported."""
    from tachograph.annexes.share.nsight.reports import read_reports

    remarks: list[str] = []
    with Narrator.of(arguments).steps() as progress:
        reports = read_reports(
            [Path(name) for name in arguments.reports], remark=remarks.append, progress=progress
        )
    if not arguments.quiet:
        _remark_some(remarks, more="these files were read only once")
    return reports


def _of_gpu(reports: tuple[NcuReport, ...], arguments: Arguments) -> tuple[NcuReport, ...]:
    if arguments.gpu is None:
        return reports
    from tachograph.annexes.share.capacity import device_called
    from tachograph.annexes.share.kernel_report import on_one_gpu

    return on_one_gpu(reports, device_called(arguments.gpu))


def _remark_some(lines: Sequence[str], *, more: str) -> None:
    """Write the first remarks: thousands of files may have one each."""
    for line in lines[:_MOST_LINES]:
        remark(line)
    if len(lines) > _MOST_LINES:
        remark(f"and {len(lines) - _MOST_LINES:,} more lines like these: {more}")


def _html(report: KernelsReport) -> str:
    from tachograph.annexes.share.kernels_html import kernels_html  # draws: only for --html

    return kernels_html(report)


def _shares(text: str) -> tuple[float, float]:
    """Return two percentages of the SMs as fractions.

    >>> _shares("50,25")
    (0.5, 0.25)
    """
    try:
        first, second = (float(part) / 100 for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"invalid percentages '{text}'", where="--mps-share", do="write 50,50"
        ) from None
    if not (0 < first <= 1 and 0 < second <= 1):
        raise UsageError(
            "percentages must be above 0 and at most 100", where="--mps-share", do="write 50,50"
        )
    return first, second
