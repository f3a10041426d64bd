"""`tachograph kernels`: demand and sensitivity of kernels, and the estimated slowdown when they share a GPU.

The kernels are those of reports, or of reports that were attached to a job of the lake.
Reports from a pipe are copied to a file while they are read; messages name them stdin.
"""

from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, BinaryIO

from tachograph.catalog.errors import InputError, UsageError
from tachograph.cli.formats import ReportFormats, add_formats, write_report
from tachograph.cli.job_kernels import add_job_options, attach_reports, changes_job, detach_reports, read_job_kernels
from tachograph.cli.narrate import Narrator, remark
from tachograph.cli.options import Arguments, Parser, configuration_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tachograph.nsight.launches import NcuReport
    from tachograph.sharing.kernel_facts import KernelsReport


_TOP = 20  # kernels of a printed table
_WIDEST = 140  # characters of a line
STDIN_NAME = "stdin"
_STDIN = "-"  # as a report
_MOST_LINES = 20  # remarks on stderr


def add_arguments(parser: Parser) -> None:
    """Declare reports, kernel filter, questions, and formats."""
    parser.add_argument(
        "reports", nargs="*", metavar="REPORT", help="a .ncu-rep, CSV of `ncu --csv`, a folder, or - for stdin"
    )
    add_job_options(parser)
    chosen = parser.add_argument_group("kernel filter")
    chosen.add_argument(
        "--kernel", action="append", default=[], metavar="PATTERN",
        help="only kernels whose name contains this; * and ? as in a shell, /.../ a regular expression; repeatable",
    )  # fmt: skip
    chosen.add_argument(
        "--top",
        type=_count,
        metavar="N",
        help=f"the N longest-running kernels of each GPU (default: {_TOP} in text)",
    )
    chosen.add_argument("--device", metavar="NAME", help="only kernels on a GPU whose name contains this")
    unnamed = parser.add_mutually_exclusive_group()
    unnamed.add_argument("--gpu", metavar="MODEL", help="the GPU of reports that name none, as in `tachograph devices`")
    unnamed.add_argument(
        "--same-gpu", action="store_true", help="reports that name no GPU are all of one, of any model"
    )
    report = parser.add_argument_group("report")
    report.add_argument("--explain", metavar="KERNEL", help="all values of one kernel, by number or pattern")
    report.add_argument(
        "--together", nargs="+", metavar="KERNEL", help="slowdown when these run at the same time (behind REPORT)"
    )
    report.add_argument("--with", dest="beside", metavar="REPORT", help="each kernel beside each of another report")
    report.add_argument("--matrix", action="store_true", help="each kernel beside each other and beside itself")
    report.add_argument(
        "--mps-share", type=_shares, metavar="P,P",
        help="processes under MPS (NVIDIA's service to share a GPU) with these percentages of the SMs, as 50,50; "
        "default: streams of one process",
    )  # fmt: skip
    add_formats(parser, csv="the kernels, or the estimates of those together")


def run(arguments: Arguments) -> int:
    """Print or write the report on kernels, or attach reports to a job, or detach them."""
    changes = changes_job(arguments)
    if arguments.detach:
        return detach_reports(arguments)
    _check_names([*arguments.reports, *([] if arguments.beside is None else [arguments.beside])])
    if changes:
        return attach_reports(arguments, lambda: _read(arguments.reports, arguments, digests=True))
    return _report(arguments)


def _report(arguments: Arguments) -> int:
    from tachograph.sharing.kernel_facts import KernelsRequest
    from tachograph.sharing.kernel_report import build_kernels_report

    settings = configuration_of(arguments)
    exported = arguments.json or arguments.csv or arguments.html is not None
    request = KernelsRequest(
        kernels=tuple(arguments.kernel),
        device=arguments.device,
        top=arguments.top if arguments.top is not None or exported else _TOP,
        explain=arguments.explain,
        together=tuple(arguments.together or ()),
        matrix=arguments.matrix or arguments.html is not None,
        shares=arguments.mps_share,
    )
    reports = _attached(arguments) if arguments.job is not None else _read(arguments.reports, arguments)
    beside = _read([arguments.beside], arguments) if arguments.beside is not None else ()
    with Narrator.of(arguments).steps() as progress:
        report = build_kernels_report(reports, request, configuration=settings, beside=beside, progress=progress)
    _remark_some(report.problems, more="--json has them all")
    _show(report, arguments)
    return 0


def _show(report: KernelsReport, arguments: Arguments) -> None:
    from tachograph.report.kernels_json import kernels_csv, kernels_json
    from tachograph.report.kernels_text import kernels_lines

    forms = ReportFormats(
        html=lambda: _html(report),
        json=lambda: kernels_json(report),
        csv=lambda raw: kernels_csv(report, raw=raw),
        lines=lambda width, ascii_only: kernels_lines(report, width=width, ascii_only=ascii_only),
        widest=_WIDEST,
    )
    write_report(forms, arguments)


def _attached(arguments: Arguments) -> tuple[NcuReport, ...]:
    return _of_one_gpu(read_job_kernels(arguments), arguments)


def _read(names: Sequence[str], arguments: Arguments, *, digests: bool = False) -> tuple[NcuReport, ...]:
    """The reports of files and folders; an unreadable one is reported and skipped, as long as another is readable."""
    from tachograph.nsight.reports import read_reports

    with stdin_as_file(wanted=_STDIN in names) as kept, Narrator.of(arguments).steps() as progress:
        paths = [kept.path if name == _STDIN else Path(name) for name in names]
        remarks: list[str] = []
        with kept.failing():
            reports = read_reports(paths, remark=kept.renaming(remarks.append), progress=progress, digests=digests)
    if not arguments.quiet:
        _remark_some(remarks, more="these files were left out, or read once")
    return _of_one_gpu(tuple(kept.named(report) for report in reports), arguments)


def _of_one_gpu(reports: tuple[NcuReport, ...], arguments: Arguments) -> tuple[NcuReport, ...]:
    if arguments.gpu is None and not arguments.same_gpu:
        return reports
    from tachograph.sharing.capacity import device_called
    from tachograph.sharing.kernel_report import on_one_gpu

    return on_one_gpu(reports, device_called(arguments.gpu) if arguments.gpu is not None else None)


def _remark_some(lines: Sequence[str], *, more: str) -> None:
    """Write the first remarks: thousands of files may have one each."""
    for line in lines[:_MOST_LINES]:
        remark(line)
    if len(lines) > _MOST_LINES:
        remark(f"and {len(lines) - _MOST_LINES:,} more lines like these: {more}")


def _check_names(names: Sequence[str]) -> None:
    """Errors: UsageError for an empty name, or for stdin twice."""
    if not all(names):  # Path("") is the current folder
        raise UsageError("empty report name", do="name a file or a folder; the current one is .")
    if names.count(_STDIN) > 1:
        raise UsageError("stdin can be read once only", where=_STDIN, do="write one of the reports into a file")


def _html(report: KernelsReport) -> str:
    from tachograph.report.kernels_html import kernels_html  # draws: only for --html

    return kernels_html(report)


def _count(written: str) -> int:
    try:
        number = int(written)
    except ValueError:
        number = 0
    if number < 1:
        raise ArgumentTypeError(f"invalid number of kernels '{written}'")
    return number


def _shares(written: str) -> tuple[float, ...]:
    """Return percentages of the SMs as fractions.

    >>> _shares("50,25")
    (0.5, 0.25)
    """
    try:
        shares = tuple(float(part) / 100 for part in written.split(","))
    except ValueError:
        raise UsageError(f"invalid percentages '{written}'", where="--mps-share", do="write 50,50") from None
    if not all(0 < share <= 1 for share in shares):
        raise UsageError("percentages must be above 0 and at most 100", where="--mps-share", do="write 50,50")
    return shares


@dataclass(frozen=True, slots=True)
class StdinFile:
    """A file that holds stdin; messages about it name stdin."""

    path: Path

    def named(self, report: NcuReport) -> NcuReport:
        """The report under the name stdin."""
        return report.named(STDIN_NAME) if report.file == str(self.path) else report

    def renaming(self, write: Callable[[str], None]) -> Callable[[str], None]:
        """Return `write` for lines that name the file."""
        return lambda line: write(self._renamed(line))

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Errors of the block name stdin."""
        try:
            yield
        except InputError as problem:
            raise InputError(self._renamed(problem.what), where=self._renamed(problem.where), do=problem.do) from None

    def _renamed(self, line: str) -> str:
        return line.replace(str(self.path), STDIN_NAME)


@contextmanager
def stdin_as_file(*, wanted: bool, stdin: BinaryIO | None = None) -> Iterator[StdinFile]:
    """Copy stdin to a file while the block runs: reports are recognized by content, and read twice.

    Nothing is read where it is not `wanted`. Errors: UsageError where stdin is a terminal or closed.
    """
    if not wanted:
        yield StdinFile(Path(STDIN_NAME))
        return
    if stdin is None:
        stdin = None if sys.stdin is None else sys.stdin.buffer
    if stdin is None or stdin.isatty():
        what = "stdin is closed" if stdin is None else "stdin is a terminal"
        raise UsageError(what, where="-", do="write ncu --csv ... | tachograph kernels -")
    with TemporaryDirectory(prefix="tachograph-") as folder:
        path = Path(folder) / STDIN_NAME
        with path.open("wb") as file:
            copyfileobj(stdin, file)
        yield StdinFile(path)
