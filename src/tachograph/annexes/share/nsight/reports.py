"""Reports of Nsight Compute, in any form: found, recognized, read."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tachograph.annexes.share.nsight.csv_pages import CsvContent, read_csv
from tachograph.annexes.share.nsight.launches import NcuReport
from tachograph.annexes.share.nsight.ncu_rep import MAGIC, ZSTD_MAGIC, read_ncu_rep
from tachograph.catalog.errors import BREAK, InputError, unreadable

_GZIP_MAGIC = b"\x1f\x8b"
_LINE_MAX = 16_000_000  # characters; the largest rows have a few millions
_SUFFIXES = (".ncu-rep", ".ncu-repz", ".csv", ".csv.gz", ".log", ".txt")
_POINTS_MAX = 20
_WARNINGS_MAX = 3
_EXPORT = "export it with ncu --import FILE --csv --page raw"
_PERMISSION = (
    "have the administrator load the kernel module nvidia with "
    "NVreg_RestrictProfilingToAdminUsers=0,"
    " or run ncu as root"
)
# message of the profiler: what to do
_ADVICE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile("ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance"),
        _PERMISSION,
    ),
    (
        re.compile("driver resource was unavailable", re.IGNORECASE),
        (
            "another profiler holds the counters: end it, or pause DCGM with dcgmi profile "
            "--pause, and profile again"
        ),
    ),
)


def read_reports(
    paths: Sequence[Path],
    *,
    remark: Callable[[str], None] = lambda line: None,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[NcuReport, ...]:
    """Return a report per file, in order; unreadable files have problems.

    A folder means all reports below it. Identical files, under any name, are read once, so that
    launches do not count twice. `remark`: takes lines about rejects. `progress`: takes the step,
    the files read so far, and all files.

    Raises InputError, which names each file, when no launch could be read from any of them.
    """
    reports: dict[str, NcuReport] = {}
    files = [file for path in paths for file in _files(path)]
    for number, file in enumerate(files):
        if progress is not None:
            progress("read reports", number, len(files))
        report = _report(file)
        if report.digest in reports:
            remark(f"{file}: the same as {reports[report.digest].file}, read once")
        else:
            reports[report.digest or str(file)] = report
    if not any(report.launches for report in reports.values()):
        raise InputError(
            _nothing(reports.values()), do="name reports written by ncu -o, or tables by ncu --csv"
        )
    return tuple(reports.values())


def read_report(path: Path) -> NcuReport:
    """Return the report in a file, by its content; rejects and problems list unusable parts.

    Raises InputError when the file cannot be opened, or is a .ncu-rep and its library is not
    installed or cannot read it.
    """
    try:
        if not path.is_file() and path.exists():  # a pipe is read once, and may never begin
            raise InputError(
                "not a regular file",
                where=str(path),
                do="write it into a file first, and name that",
            )
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
            digest = hashlib.file_digest(file, lambda: hashlib.sha256(start)).hexdigest()
        if start == MAGIC or (
            start == ZSTD_MAGIC and path.name.lower().endswith((".ncu-rep", ".ncu-repz"))
        ):
            report = read_ncu_rep(path)
        elif not start:
            report = NcuReport(
                str(path), (), problems=("the file is empty; profile or copy it again",)
            )
        else:
            report = _read_text(path, compressed=start.startswith(_GZIP_MAGIC))
    except OSError as problem:
        raise unreadable(problem, path) from None
    return replace(report, digest=digest)


def _files(path: Path) -> list[Path]:
    """Return the reports in a folder (or the folder if there are none), or the file."""
    if not path.is_dir():
        return [path]
    files = (
        file for file in path.rglob("*") if file.name.lower().endswith(_SUFFIXES) and file.is_file()
    )
    return sorted(files) or [path]


def _report(path: Path) -> NcuReport:
    if path.is_dir():
        return NcuReport(str(path), (), problems=("no report is in this folder; name files",))
    try:
        return read_report(path)
    except InputError as problem:
        return NcuReport(str(path), (), problems=(str(problem).removeprefix(f"{path}: "),))


def _read_text(path: Path, *, compressed: bool) -> NcuReport:
    """Return the tables in a text, reading line by line."""
    with gzip.open(path) if compressed else path.open("rb") as file:
        text = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        content = CsvContent(str(path))
        read_csv(_lines(text, content), content)
    launches = () if content.other_locale else tuple(content.launches)
    problems = tuple(_problems(content))
    return NcuReport(str(path), launches, content.rejects.rejects(), problems)


def _lines(text: io.TextIOBase, content: CsvContent) -> Iterator[str]:
    """Yield lines with line ends, until a compressed file is cut or damaged."""
    try:
        while line := text.readline(_LINE_MAX):
            yield line
    except (EOFError, zlib.error, gzip.BadGzipFile):
        content.cut = True


def _problems(content: CsvContent) -> Iterator[str]:
    """Yield the problems of the file as a whole."""
    for error in content.errors[:1]:
        yield f"the profiler failed: {error.rstrip('.')}; {advice(error)}"
    for warning in content.warnings[:_WARNINGS_MAX]:
        yield f"the profiler warned: {warning}"
    if content.other_locale:
        yield (
            "its numbers are not in the format of the C locale, so none was used; export it with LC_ALL=C ncu --csv"
        )
    if content.cut:
        yield "the file is cut off; copy or export it again"
    if not content.tables and not content.errors:
        yield f"it contains no table of Nsight Compute; check that ncu profiled a kernel, or {_EXPORT}"
    elif not (content.launches or content.errors):
        reasons = ", ".join(
            f"{reject.reason} ({reject.count:,})" for reject in content.rejects.rejects()
        )
        yield f"its table holds no launch of a kernel{reasons and f': {reasons}'}; {_EXPORT}"


def advice(error: str) -> str:
    """Return advice on a profiler error.

    >>> advice("Profiling failed because a driver resource was unavailable.")[:40]
    'another profiler holds the counters: end'
    """
    return next((do for pattern, do in _ADVICE if pattern.search(error)), "profile again")


def _nothing(reports: Iterable[NcuReport]) -> str:
    """Return the message when no file held a launch."""
    points: list[str] = []
    for report in reports:
        problems = report.problems or ("no launch of a kernel",)
        points += [f"{report.file}: {problem}" for problem in problems]
    if len(points) > _POINTS_MAX:
        points = [*points[:_POINTS_MAX], f"and {len(points) - _POINTS_MAX} more"]
    return "no launch of a kernel could be read" + "".join(BREAK + point for point in points)
