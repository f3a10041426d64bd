"""Reports of Nsight Compute, in any form: found, recognized, read."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from tachograph.catalog.errors import BREAK, InputError
from tachograph.nsight.csv_cells import (
    AMBIGUOUS,
    OTHER_LOCALE,
    CellNumbers,
    GatheredLaunches,
    LaunchTable,
    Messages,
    cells,
    ended,
    header,
    is_details,
    records,
)
from tachograph.nsight.csv_pages import DetailsPage, RawPage
from tachograph.nsight.launches import NcuReport, RejectCounter, encodable
from tachograph.nsight.ncu_rep import MAGIC, ZSTD_MAGIC, read_ncu_rep

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


GZIP_MAGIC = b"\x1f\x8b"
OPEN_QUOTE = "a row with a quote that does not close"
TOO_LONG = "a line of more than 16 million characters"
OPEN_END = "a value at the end of a line without an end, which may be cut"

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_UTF_8_MARK = b"\xef\xbb\xbf"
_SNIFFED = 4096  # bytes
_BLOCK = 1 << 18  # bytes that are read at once; after each, progress is reported
_HEAD_LINES = 200
_LONGEST_LINE = 16_000_000  # characters; the largest rows, with instances of each metric, have a few millions


@dataclass(slots=True)
class TextRead:
    """What a text holds. `head`: first lines outside of tables, to recognise other formats. `tables`: how many."""

    gathered: GatheredLaunches
    messages: Messages = field(default_factory=Messages)
    head: list[str] = field(default_factory=list)
    tables: int = 0
    overlong: int = 0  # lines that were left out
    cut: bool = False  # the compressed file ended before its end


def read_text(path: Path, *, step: Callable[[int], None] | None = None) -> TextRead:
    """Return what the tables of a text give, also where other text is between them.

    The whole file is not held in memory. `step`: takes the bytes read so far, block by block.
    Errors: OSError when it cannot be opened or read.
    """
    counted = RejectCounter()
    read = TextRead(GatheredLaunches(str(path), counted, CellNumbers(counted)))
    table: LaunchTable | None = None
    quoted = False
    tail: list[str] | None = None  # the cells that are left of a row that the end of the file cut
    with path.open("rb") as file:
        for record in records(_lines(file, read, step)):
            names = header(record)
            if names is not None:
                _finish(table, tail)
                table = DetailsPage(names, read.gathered) if is_details(names) else RawPage(names, read.gathered)
                tail, quoted = None, '"Kernel Name"' in record
                read.tables += 1
            elif table is None or (quoted and not record.startswith('"')):
                _remember(read, record, table)
            else:
                tail = _take(table, record, read) or tail
    _finish(table, [] if read.cut and tail is None else tail)
    read.gathered.numbers.finish()
    return read


def _finish(table: LaunchTable | None, tail: list[str] | None) -> None:
    if table is not None:
        table.finish(tail)


def _remember(read: TextRead, record: str, table: LaunchTable | None) -> None:
    """Keep messages of the profiler, and the first lines before any table."""
    if not read.messages.note(record) and table is None and len(read.head) < _HEAD_LINES and record.strip():
        read.head.append(record[:_SNIFFED])


def _take(table: LaunchTable, record: str, read: TextRead) -> list[str] | None:
    """Hand a row to the table. Return the cells that are left of it where the end of the file cut it."""
    if not record.strip() or (not record.startswith('"') and read.messages.note(record)):
        return None
    row = cells(record)
    if not ended(record):
        if row is None or len(row) < table.needed:
            return _loosely(record)
        if not record.endswith('"'):
            if row[-1]:
                read.gathered.counted.add(OPEN_END, None, row[-1])
            row[-1] = ""
    if row is None:
        read.gathered.counted.add(OPEN_QUOTE, None, record)
    else:
        table.take(row)
    return None


def _loosely(record: str) -> list[str]:
    """Return the cells of a record that was cut; the last of them is what is left."""
    try:
        return next(csv.reader(record.splitlines(keepends=True)), [])
    except csv.Error:
        return record.split(",")


def _lines(file: IO[bytes], read: TextRead, step: Callable[[int], None] | None) -> Iterator[str]:
    """Yield lines with their ends, of a file that may be compressed, in the encoding of its first bytes."""
    start = file.read(2)
    file.seek(0)
    plain = gzip.GzipFile(fileobj=file) if start == GZIP_MAGIC else file
    progress = (lambda: step(file.tell())) if step is not None else None
    buffered = io.BufferedReader(_Whole(plain, read, progress), _BLOCK)
    encoding, errors = _encoding(buffered.peek(_SNIFFED)[:_SNIFFED])
    text = io.TextIOWrapper(buffered, encoding=encoding, errors=errors, newline="")
    while line := text.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE and not ended(line):
            _skip(text, line, read)
        else:
            yield line


def _skip(text: io.TextIOWrapper, line: str, read: TextRead) -> None:
    """Leave out a line that is too long, whose first characters are `line`, and count it."""
    read.gathered.counted.add(TOO_LONG, None, line[:_SNIFFED])
    read.overlong += 1
    while line and not ended(line):
        line = text.readline(_LONGEST_LINE)


def _encoding(start: bytes) -> tuple[str, str]:
    """Return encoding and error handler. PowerShell redirects into UTF-16."""
    if start.startswith(_UTF_16):
        return "utf-16", "replace"
    if start.startswith(_UTF_8_MARK):
        return "utf-8-sig", "surrogateescape"
    if start[1:64:2].count(0) > 16:
        return "utf-16-le", "replace"
    return "utf-8", "surrogateescape"


class _Whole(io.RawIOBase):
    """A stream that ends where compressed bytes are cut or damaged, and records it."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, read: TextRead, progress: Callable[[], None] | None) -> None:
        super().__init__()
        self._progress = progress
        self._stream = stream
        self._read = read

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill the buffer and return how many bytes it took."""
        try:
            view = memoryview(buffer)
            block = self._stream.read(len(view))
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self._read.cut = True
            return 0
        view[: len(block)] = block
        if self._progress is not None:
            self._progress()
        return len(block)


class Foreign(NamedTuple):
    """What a file is, and what to do."""

    what: str
    do: str


_EXPORT = "write its details with ncu --import FILE --csv --page raw"
_PROFILE = "profile with ncu -o REPORT or ncu --csv"

_BINARIES: tuple[tuple[bytes, Foreign], ...] = (
    (b"SQLite format 3", Foreign("this is a database, as nsys exports it: a timeline without metrics", _PROFILE)),
    (b"PK\x03\x04", Foreign("this is a ZIP archive", "unpack it and name what is in it")),
    (b"PAR1", Foreign("this is a Parquet file", _PROFILE)),
    (b"%PDF", Foreign("this is a PDF", _PROFILE)),
    (b"\xd0\xcf\x11\xe0", Foreign("this is a workbook of a spreadsheet", _EXPORT)),
    (
        b"version https://git-lfs",
        Foreign("this stands for a file that was not downloaded", "fetch it with git lfs pull"),
    ),
)
_TEXTS: tuple[tuple[re.Pattern[str], Foreign], ...] = (
    (
        re.compile(r"^\ufeff?\"?(Process )?ID\"?[;\t].*Kernel Name", re.M),
        Foreign("its cells are separated by ; or tabs: another program wrote it anew", _EXPORT),
    ),
    (
        re.compile(r"^==\d+== (NVPROF|Profiling|Generated)|\"Time\(%\)\"|\"Event Name\",|^\"Device\",\"Kernel\"", re.M),
        Foreign("this is output of nvprof, which has other metrics", _PROFILE),
    ),
    (
        re.compile(r"Time \(%\)\"?,\"?Total Time \(ns\)|Total Time \(ns\)\"?,\"?(Instances|Num Calls|Count)|nsys-rep"),
        Foreign("this is a summary of nsys: times without metrics", _PROFILE),
    ),
    (
        re.compile(r"\A# (HELP|TYPE) |^DCGM_FI_\w+\{", re.M),
        Foreign("this is a page for Prometheus", "read it with tachograph ingest; here, name reports of ncu"),
    ),
    (
        re.compile(r"^\s+Section: |^\s*-{5,}\s+-{5,}\s+-{5,}", re.M),
        Foreign("this is the page for people, whose numbers are rounded", "export it again with ncu --csv"),
    ),
    (
        re.compile(r"(\"Address\"|\"Source\"|\"SASS\"|\"# Samples\")", re.M),
        Foreign("this is the source page, which has a row per instruction", _EXPORT),
    ),
    (
        re.compile(r"\"Metric Name\"|Metric Name,"),
        Foreign("this table does not name the kernel of its metrics", "keep the column Kernel Name"),
    ),
    (re.compile(r"\A\s*[\[{]"), Foreign("this is JSON", _PROFILE)),
    (re.compile(r"\A\s*<"), Foreign("this is HTML or XML", _PROFILE)),
)
_MOST_ZEROS = 8
_MOST_CONTROLS = 0.05  # of the first bytes
_CONTROLS = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x1b"))  # a log in colour has escapes


def foreign(start: bytes, head: str) -> Foreign:
    """Return what the file is. `start`: its first bytes. `head`: its first lines, where it is a text."""
    for magic, known in _BINARIES:
        if start.startswith(magic):
            return known
    for pattern, known in _TEXTS:
        if pattern.search(head):
            return known
    if _is_binary(start[:512]):
        return Foreign("this is a binary file of another kind", "name files written by ncu -o, or by ncu --csv")
    return Foreign("no table of Nsight Compute is in it", "write one with ncu --csv, or ncu --import FILE --csv")


def _is_binary(start: bytes) -> bool:
    """Whether the bytes are no text; of UTF-16 every other byte may be zero."""
    controls = len(start) - len(start.translate(None, _CONTROLS))
    odd = start.count(0) > _MOST_ZEROS or controls > _MOST_CONTROLS * len(start)
    return odd and not start.startswith((b"\xff\xfe", b"\xfe\xff"))


_PERMISSION = (
    "have the administrator load the kernel module nvidia with NVreg_RestrictProfilingToAdminUsers=0, or run ncu as"
    " root"
)
# message of the profiler: what to do
_ADVICE: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile("ERR_NVGPUCTRPERM|permission to access NVIDIA GPU Performance"),
        _PERMISSION,
    ),
    (
        re.compile("driver resource was unavailable", re.I),
        "another profiler holds the counters: end it, or pause DCGM with dcgmi profile --pause, and profile again",
    ),
    (
        re.compile("No kernels were profiled|No metrics to collect", re.I),
        "check the filters of ncu (-k, --launch-skip, --nvtx-include), and add --target-processes all",
    ),
    (
        re.compile("returned an error code|application.*(terminated|failed)", re.I),
        "the application failed: run it without ncu first",
    ),
    (
        re.compile("not supported|unsupported|InterfaceUnsupported|no compatible", re.I),
        "use a version of ncu that knows this GPU and its driver",
    ),
    (
        re.compile("Failed to find metric|Unknown metric|invalid metric", re.I),
        "list the metrics of this GPU with ncu --query-metrics",
    ),
)


def advice(error: str) -> str:
    """Return what to do about an error of the profiler.

    >>> advice("Profiling failed because a driver resource was unavailable.")[:40]
    'another profiler holds the counters: end'
    """
    return next((do for pattern, do in _ADVICE if pattern.search(error)), "profile again")


_SUFFIXES = (".ncu-rep", ".ncu-repz", ".csv", ".csv.gz", ".log", ".log.gz", ".txt", ".txt.gz")
_NAMED_AS_REPORTS = (".ncu-rep", ".ncu-repz")
_MOST_POINTS = 20
_DO = "name reports written by ncu -o, or tables written by ncu --csv"


def read_reports(
    paths: Sequence[Path],
    *,
    remark: Callable[[str], None] = lambda line: None,
    progress: Callable[[str, int, int], None] | None = None,
    digests: bool = False,
) -> tuple[NcuReport, ...]:
    """Return a report per file, in the order named, also of files of which nothing could be read: they have problems.

    A folder stands for the reports under it. A file that is there twice, under any name, is read once, so that its
    launches do not count twice. `remark`: takes lines about what was left out. `progress`: takes the step, the bytes
    read so far, and all bytes. `digests`: those of files with launches are computed.

    Errors: InputError when no launch could be read from any of them; it names each file.
    """
    seen = _Seen()
    reports: list[NcuReport] = []
    left_out: list[NcuReport] = []
    files = list(_files(paths, remark))
    steps = _Steps(sum(_bytes(path) for path, _ in files), progress)
    for path, found in files:
        steps.begin(_bytes(path))
        if path.is_dir():
            reports.append(NcuReport(str(path), (), problems=("no report is in this folder; name files",)))
            continue
        first = seen.same_as(path)
        if first is not None:
            remark(f"{path}: the same as {first}, read once")
            continue
        report = _one(path, steps.report)
        if found and not report.launches and not path.name.endswith(_NAMED_AS_REPORTS):
            left_out.append(report)
            continue
        reports.append(replace(report, digest=seen.digest(path)) if digests and report.launches else report)
    steps.begin(0)
    if not any(report.launches for report in reports):
        raise InputError(_nothing([*reports, *left_out]), do=_DO)
    for report in left_out:
        remark(f"{report.file}: left out, {'; '.join(report.problems)}")
    return tuple(reports)


def read_report(path: Path, *, step: Callable[[int], None] | None = None) -> NcuReport:
    """Return what a file holds, known by its content. Rejects and problems record what could not be used.

    `step`: takes the bytes of a text that were read so far, repeatedly.

    Errors: InputError when the file cannot be opened, or is a .ncu-rep and its library is not installed or cannot read
    it.
    """
    try:
        if not path.is_file() and path.exists():  # a pipe is read once, and may never begin; a device may never end
            raise InputError("not a regular file", where=str(path), do="write it into a file first, and name that")
        with path.open("rb") as file:
            start = file.read(4096)
        if start.startswith(MAGIC) or (start.startswith(ZSTD_MAGIC) and _is_named_report(path)):
            return read_ncu_rep(path)
        if not start:
            return NcuReport(str(path), (), problems=(f"the file is empty; {_again(path)}",))
        return _of_text(path, start, read_text(path, step=step))
    except OSError as problem:
        raise InputError(problem.strerror or str(problem), where=str(path), do="name a readable file") from None


def _one(path: Path, step: Callable[[int], None]) -> NcuReport:
    try:
        return read_report(path, step=step)
    except InputError as problem:
        return NcuReport(str(path), (), problems=(_without_place(str(problem), path),))


def _of_text(path: Path, start: bytes, read: TextRead) -> NcuReport:
    """Return the report that a text holds, with the problems of the file as a whole."""
    gathered = read.gathered
    return NcuReport(
        file=str(path),
        launches=tuple(gathered.launches),
        rejects=gathered.counted.rejects(),
        problems=tuple(_problems(start, read)),
    )


def _problems(start: bytes, read: TextRead) -> Iterator[str]:
    gathered, errors = read.gathered, read.messages.errors
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        yield f"the profiler failed: {encodable(errors[0]).rstrip('.')}{more}; {advice(errors[0])}"
    for warning in read.messages.warnings[:3]:
        yield f"the profiler warned: {encodable(warning)}"
    if read.overlong:
        yield f"{TOO_LONG} was left out ({read.overlong:,} times); ncu writes none so long: export it again"
    if not (read.tables or errors or read.overlong) and not (read.cut and not read.head):
        yield _untabled(start, read)
    elif read.tables and not gathered.launches and not errors:
        yield _launchless(gathered)
    if read.cut or gathered.lost:
        lost = f", {gathered.lost} launch at its end was not read" if gathered.lost else ""
        yield f"the file is cut off{lost}; copy or export it again"
    if gathered.summarised:
        yield "it holds means over the launches of each kernel; each launch counts as the mean"
    reasons = {reject.reason for reject in gathered.counted.rejects()}
    if AMBIGUOUS in reasons:
        yield "it does not show whether a comma or a point is the decimal sign; export it with LC_ALL=C ncu --csv"
    if OTHER_LOCALE in reasons:
        yield "its numbers are written in two ways; put tables of different locales into different files"


def _launchless(gathered: GatheredLaunches) -> str:
    """Return why a table gave nothing: its rows were left out, or it has none."""
    rows = [reject for reject in gathered.counted.rejects() if reject.column is None]
    if not rows:
        return "its table holds no launch of a kernel; check that ncu profiled any"
    reasons = ", ".join(f"{reject.reason} ({reject.count:,})" for reject in rows)
    return f"no row of its table can be used: {reasons}; export it again with ncu --import FILE --csv"


def _untabled(start: bytes, read: TextRead) -> str:
    """Return what a text without a table is."""
    if read.messages.warnings or (read.messages.any and not read.head):
        text = " ".join(read.messages.warnings) or "No kernels were profiled"
        return f"the profiler ran and wrote no table; {advice(text)}"
    if start.startswith(GZIP_MAGIC) and not read.head and not read.cut:
        return "nothing is in the compressed file; export it again"
    what, do = foreign(start, "".join(read.head))
    return f"{what}; {do}"


def _nothing(reports: Sequence[NcuReport]) -> str:
    """Return the message when no file gave a launch."""
    if not reports:
        return "no file was named"
    points = [
        f"{report.file}: {problem}" for report in reports for problem in report.problems or ("no launch of a kernel",)
    ]
    left = len(points) - _MOST_POINTS
    more = [f"and {left} more"] if left > 0 else []
    return "no launch of a kernel could be read" + "".join(BREAK + point for point in points[:_MOST_POINTS] + more)


def _files(paths: Sequence[Path], remark: Callable[[str], None]) -> Iterator[tuple[Path, bool]]:
    """Yield each file and whether it was found in a folder; a folder without any as itself."""
    named: set[Path] = set()
    for path in paths:
        inside = _reports_under(path) if path.is_dir() else [path]
        for file in inside or [path]:
            place = file.resolve()
            if place in named:
                remark(f"{file}: named twice, read once")
                continue
            named.add(place)
            yield file, path.is_dir()


def _reports_under(folder: Path) -> list[Path]:
    try:
        return sorted(file for file in folder.rglob("*") if file.name.lower().endswith(_SUFFIXES) and file.is_file())
    except OSError:
        return []


@dataclass(slots=True)
class _Steps:
    """Bytes that were read, file by file; `progress` None: not reported."""

    total: int
    progress: Callable[[str, int, int], None] | None
    _before: int = 0  # bytes of files that are done with
    _size: int = 0

    def begin(self, size: int) -> None:
        """Begin the next file, of that many bytes; the one before it counts as read, however much of it was."""
        self._before, self._size = self._before + self._size, size
        self.report(0)

    def report(self, read: int) -> None:
        """Report how many bytes of the file were read."""
        if self.progress is not None:
            self.progress("read reports", self._before + min(read, self._size), self.total)


def _bytes(path: Path) -> int:
    """Return the size of a file; 0 where there is none: reading it raises the error."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


@dataclass(slots=True)
class _Seen:
    """Files by size and, of those of one size, by content."""

    _by_size: dict[int, list[Path]] = field(default_factory=dict)
    _digests: dict[Path, str] = field(default_factory=dict)

    def same_as(self, path: Path) -> Path | None:
        """Return the earlier file with the same content."""
        try:
            if not path.is_file():
                return None
            earlier = self._by_size.setdefault(path.stat().st_size, [])
            same = next((other for other in earlier if self.digest(other) == self.digest(path)), None)
        except OSError:
            return None
        earlier.append(path)
        return same

    def digest(self, path: Path) -> str:
        """Return the SHA-256 of a file in hexadecimal digits. Errors: OSError."""
        if path not in self._digests:
            with path.open("rb") as file:
                self._digests[path] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._digests[path]


def _is_named_report(path: Path) -> bool:
    return path.name.lower().endswith(_NAMED_AS_REPORTS)


def _again(path: Path) -> str:
    return "profile or copy it again" if _is_named_report(path) else "export it again"


def _without_place(message: str, path: Path) -> str:
    return message.removeprefix(f"{path}: ")
