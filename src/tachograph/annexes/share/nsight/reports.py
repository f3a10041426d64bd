"""Reports of Nsight Compute, in any form: found, recognized, read."""

from __future__ import annotations

import gzip
import hashlib
import io
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
_EXPORT = "export it with ncu --import FILE --csv --page raw"
# {part of a message of the profiler: what to do}
_ADVICE = {
    "ERR_NVGPUCTRPERM": (
        "have the administrator load the kernel module nvidia with "
        "NVreg_RestrictProfilingToAdminUsers=0, or run ncu as root"
    ),
    "driver resource was unavailable": (
        "another profiler holds the counters: end it, or pause DCGM with dcgmi profile --pause, "
        "and profile again"
    ),
}


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
        try:
            report = read_report(file)
        except InputError as problem:
            problems = (str(problem).removeprefix(f"{file}: "),)
            report = NcuReport(str(file), (), problems=problems)
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
        if path.exists() and not path.is_file():  # a pipe is read once, and may never begin
            what = "no report is in this folder" if path.is_dir() else "not a regular file"
            raise InputError(what, where=str(path), do="name reports in files")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            start = file.read(len(MAGIC))
        if start == MAGIC or (start == ZSTD_MAGIC and ".ncu-rep" in path.suffix.lower()):
            report = read_ncu_rep(path, compressed=start == ZSTD_MAGIC)
        elif start:
            report = _read_text(path, compressed=start.startswith(_GZIP_MAGIC))
        else:
            problem = "the file is empty; profile or copy it again"
            report = NcuReport(str(path), (), problems=(problem,))
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
    if content.error:
        yield f"the profiler failed: {content.error.rstrip('.')}; {_advice(content.error)}"
    if content.other_locale:
        yield (
            "its numbers are not in the format of the C locale, so none was used; "
            "export it with LC_ALL=C ncu --csv"
        )
    if content.cut:
        yield "the file is cut off; copy or export it again"
    if not (content.launches or content.error):
        table = "its table holds no launch of a kernel"
        yield f"{table if content.tables else 'it contains no table of Nsight Compute'}; {_EXPORT}"


def _advice(error: str) -> str:
    return next((do for part, do in _ADVICE.items() if part in error), "profile again")


def _nothing(reports: Iterable[NcuReport]) -> str:
    """Return the message when no file held a launch."""
    points: list[str] = []
    for report in reports:
        problems = report.problems or ("no launch of a kernel",)
        points += [f"{report.file}: {problem}" for problem in problems]
    if len(points) > _POINTS_MAX:
        points = [*points[:_POINTS_MAX], f"and {len(points) - _POINTS_MAX} more"]
    return "no launch of a kernel could be read" + "".join(BREAK + point for point in points)
