"""Reports of Nsight Compute of any kind, known by their content, many at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tachograph.errors import BREAK, InputError
from tachograph.nsight.counted import encodable
from tachograph.nsight.csv_gathered import Gathered
from tachograph.nsight.csv_numbers import AMBIGUOUS, OTHER_LOCALE
from tachograph.nsight.csv_report import GZIP_MAGIC, TOO_LONG, Read, read_text
from tachograph.nsight.foreign import advice, foreign
from tachograph.nsight.launch import Report
from tachograph.nsight.ncu_rep_layout import MAGIC, ZSTD_MAGIC

_SUFFIXES = (".ncu-rep", ".ncu-repz", ".csv", ".csv.gz", ".log", ".log.gz", ".txt", ".txt.gz")
_NAMED_AS_REPORTS = (".ncu-rep", ".ncu-repz")
_MOST_POINTS = 20
_DO = "name reports written by ncu -o, or tables written by ncu --csv"


def read_reports(
    paths: Sequence[Path],
    *,
    told: Callable[[str], None] | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> tuple[Report, ...]:
    """Return a report per file, in the order named, also of files of which nothing could be read: they have problems.

    A folder stands for the reports under it. A file that is there twice, under whatever name, is read once, so that its
    launches do not count twice. `told`: takes lines about what was left out. `progress`: takes what is being done, the
    bytes read so far, and all bytes.

    Errors: InputError when no launch could be read from any of them; it names each file.
    """
    tell = told if told is not None else _silent
    seen = _Seen()
    reports: list[Report] = []
    left_out: list[Report] = []
    files = list(_files(paths, tell))
    steps = _Steps(sum(_bytes(path) for path, _ in files), progress)
    for path, found in files:
        steps.begin(_bytes(path))
        if path.is_dir():
            reports.append(Report(str(path), (), problems=("no report is in this folder; name files",)))
            continue
        first = seen.same_as(path)
        if first is not None:
            tell(f"{path}: the same as {first}, read once")
            continue
        report = _one(path, steps.tell)
        if found and not report.launches and not path.name.endswith(_NAMED_AS_REPORTS):
            left_out.append(report)
            continue
        reports.append(report)
    steps.begin(0)
    if not any(report.launches for report in reports):
        raise InputError(_nothing([*reports, *left_out]), do=_DO)
    for report in left_out:
        tell(f"{report.file}: left out, {'; '.join(report.problems)}")
    return tuple(reports)


def read_report(path: Path, *, step: Callable[[int], None] | None = None) -> Report:
    """Return what a file holds, known by its content. What could not be used of it stands in rejects and problems.

    `step`: takes the bytes of a text that were read so far, again and again.

    Errors: InputError when the file cannot be opened, or is a .ncu-rep and its library is not installed or cannot read
    it.
    """
    try:
        if not path.is_file() and path.exists():  # a pipe is read once, and may never begin; a device may never end
            raise InputError("not a regular file", where=str(path), do="write it into a file first, and name that")
        with path.open("rb") as file:
            start = file.read(4096)
        if start.startswith(MAGIC) or (start.startswith(ZSTD_MAGIC) and _is_named_report(path)):
            from tachograph.nsight.ncu_rep import read_ncu_rep

            return read_ncu_rep(path)
        if not start:
            return Report(str(path), (), problems=(f"the file is empty; {_again(path)}",))
        return _of_text(path, start, read_text(path, step=step))
    except OSError as problem:
        raise InputError(problem.strerror or str(problem), where=str(path), do="name a readable file") from None


def _one(path: Path, step: Callable[[int], None]) -> Report:
    try:
        return read_report(path, step=step)
    except InputError as problem:
        return Report(str(path), (), problems=(_without_place(str(problem), path),))


def _of_text(path: Path, start: bytes, read: Read) -> Report:
    """Return the report that a text holds, with what is to be said of the file as a whole."""
    gathered = read.gathered
    return Report(
        file=str(path),
        launches=tuple(gathered.launches),
        rejects=gathered.counted.rejects(),
        problems=tuple(_problems(start, read)),
    )


def _problems(start: bytes, read: Read) -> Iterator[str]:
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
        yield "it tells means over the launches of each kernel; each launch counts as the mean"
    reasons = {reject.reason for reject in gathered.counted.rejects()}
    if AMBIGUOUS in reasons:
        yield "it does not show whether a comma or a point is the decimal sign; export it with LC_ALL=C ncu --csv"
    if OTHER_LOCALE in reasons:
        yield "its numbers are written in two ways; put tables of different locales into different files"


def _launchless(gathered: Gathered) -> str:
    """Return why a table gave nothing: its rows were left out, or it has none."""
    rows = [reject for reject in gathered.counted.rejects() if reject.column is None]
    if not rows:
        return "its table holds no launch of a kernel; check that ncu profiled any"
    reasons = ", ".join(f"{reject.reason} ({reject.count:,})" for reject in rows)
    return f"no row of its table can be used: {reasons}; export it again with ncu --import FILE --csv"


def _untabled(start: bytes, read: Read) -> str:
    """Return what a text without a table is."""
    if read.messages.warnings or (read.messages.any and not read.head):
        said = " ".join(read.messages.warnings) or "No kernels were profiled"
        return f"the profiler ran and wrote no table; {advice(said)}"
    if start.startswith(GZIP_MAGIC) and not read.head and not read.cut:
        return "nothing is in the compressed file; export it again"
    what, do = foreign(start, "".join(read.head))
    return f"{what}; {do}"


def _nothing(reports: Sequence[Report]) -> str:
    """Return the message when no file gave a launch."""
    if not reports:
        return "no file was named"
    points = [
        f"{report.file}: {problem}" for report in reports for problem in report.problems or ("no launch of a kernel",)
    ]
    left = len(points) - _MOST_POINTS
    more = [f"and {left} more"] if left > 0 else []
    return "no launch of a kernel could be read" + "".join(BREAK + point for point in points[:_MOST_POINTS] + more)


def _files(paths: Sequence[Path], tell: Callable[[str], None]) -> Iterator[tuple[Path, bool]]:
    """Yield each file and whether it was found in a folder; a folder without any as itself."""
    named: set[Path] = set()
    for path in paths:
        inside = _reports_under(path) if path.is_dir() else [path]
        for file in inside or [path]:
            place = file.resolve()
            if place in named:
                tell(f"{file}: named twice, read once")
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
    """Bytes that were read, file by file; nobody may want to know."""

    total: int
    progress: Callable[[str, int, int], None] | None
    _before: int = 0  # bytes of files that are done with
    _size: int = 0

    def begin(self, size: int) -> None:
        """Begin the next file, of that many bytes; the one before it counts as read, however much of it was."""
        self._before, self._size = self._before + self._size, size
        self.tell(0)

    def tell(self, read: int) -> None:
        """Tell how many bytes of the file were read."""
        if self.progress is not None:
            self.progress("read reports", self._before + min(read, self._size), self.total)


def _bytes(path: Path) -> int:
    """Return the size of a file; 0 where there is none: whoever reads it says so."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


@dataclass(slots=True)
class _Seen:
    """Files by size and, of those of one size, by content."""

    _by_size: dict[int, list[Path]] = field(default_factory=dict)
    _digests: dict[Path, bytes] = field(default_factory=dict)

    def same_as(self, path: Path) -> Path | None:
        """Return the earlier file with the same content."""
        try:
            if not path.is_file():
                return None
            earlier = self._by_size.setdefault(path.stat().st_size, [])
            same = next((other for other in earlier if self._digest(other) == self._digest(path)), None)
        except OSError:
            return None
        earlier.append(path)
        return same

    def _digest(self, path: Path) -> bytes:
        if path not in self._digests:
            with path.open("rb") as file:
                self._digests[path] = hashlib.file_digest(file, "sha256").digest()
        return self._digests[path]


def _is_named_report(path: Path) -> bool:
    return path.name.lower().endswith(_NAMED_AS_REPORTS)


def _again(path: Path) -> str:
    return "profile or copy it again" if _is_named_report(path) else "export it again"


def _without_place(message: str, path: Path) -> str:
    return message.removeprefix(f"{path}: ")


def _silent(line: str) -> None:
    """Take a line and say nothing."""
