"""A report in CSV, of whichever pages, as launches."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tachograph.nsight.counted import Counted
from tachograph.nsight.csv_details import Details
from tachograph.nsight.csv_gathered import Gathered, Table
from tachograph.nsight.csv_lines import Messages, cells, ended, header, is_details, records
from tachograph.nsight.csv_numbers import Numbers
from tachograph.nsight.csv_raw import Raw

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

GZIP_MAGIC = b"\x1f\x8b"
OPEN_QUOTE = "a row with a quote that does not close"
TOO_LONG = "a line of more than 16 million characters"
OPEN_END = "a value at the end of a line without an end, which may be cut"

_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_UTF_8_MARK = b"\xef\xbb\xbf"
_SNIFFED = 4096  # bytes
_BLOCK = 1 << 18  # bytes that are read at once; after each, a step is told
_HEAD_LINES = 200
_LONGEST_LINE = 16_000_000  # characters; the largest rows, with instances of each metric, have a few millions


@dataclass(slots=True)
class Read:
    """What a text holds. `head`: its first lines outside of tables, to tell what else it may be. `tables`: how many."""

    gathered: Gathered
    messages: Messages = field(default_factory=Messages)
    head: list[str] = field(default_factory=list)
    tables: int = 0
    overlong: int = 0  # lines that were left out
    cut: bool = False  # the compressed file ended before its end


def read_text(path: Path, *, step: Callable[[int], None] | None = None) -> Read:
    """Return what the tables of a text give, however much else stands between them.

    The whole file is never in memory. `step`: takes the bytes read so far, block by block.
    Errors: OSError when it cannot be opened or read.
    """
    counted = Counted()
    read = Read(Gathered(str(path), counted, Numbers(counted)))
    table: Table | None = None
    quoted = False
    tail: list[str] | None = None  # the cells that are left of a row that the end of the file cut
    with path.open("rb") as file:
        for record in records(_lines(file, read, step)):
            names = header(record)
            if names is not None:
                _finish(table, tail)
                table = Details(names, read.gathered) if is_details(names) else Raw(names, read.gathered)
                tail, quoted = None, '"Kernel Name"' in record
                read.tables += 1
            elif table is None or (quoted and not record.startswith('"')):
                _remember(read, record, table)
            else:
                tail = _take(table, record, read) or tail
    _finish(table, [] if read.cut and tail is None else tail)
    read.gathered.numbers.finish()
    return read


def _finish(table: Table | None, tail: list[str] | None) -> None:
    if table is not None:
        table.finish(tail)


def _remember(read: Read, record: str, table: Table | None) -> None:
    """Keep what the profiler says, and the first lines before any table."""
    if not read.messages.note(record) and table is None and len(read.head) < _HEAD_LINES and record.strip():
        read.head.append(record[:_SNIFFED])


def _take(table: Table, record: str, read: Read) -> list[str] | None:
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


def _lines(file: IO[bytes], read: Read, step: Callable[[int], None] | None) -> Iterator[str]:
    """Yield lines with their ends, of a file that may be compressed, in the encoding that its first bytes tell."""
    start = file.read(2)
    file.seek(0)
    plain = gzip.GzipFile(fileobj=file) if start == GZIP_MAGIC else file
    told = partial(_tell, file, step) if step is not None else None
    buffered = io.BufferedReader(_Whole(plain, read, told), _BLOCK)
    encoding, errors = _encoding(buffered.peek(_SNIFFED)[:_SNIFFED])
    text = io.TextIOWrapper(buffered, encoding=encoding, errors=errors, newline="")
    while line := text.readline(_LONGEST_LINE):
        if len(line) == _LONGEST_LINE and not ended(line):
            _skip(text, line, read)
        else:
            yield line


def _tell(file: IO[bytes], step: Callable[[int], None]) -> None:
    step(file.tell())


def _skip(text: io.TextIOWrapper, line: str, read: Read) -> None:
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
    """A stream that ends where compressed bytes are cut or damaged, and says so."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, read: Read, told: Callable[[], None] | None) -> None:
        super().__init__()
        self._told = told
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
        if self._told is not None:
            self._told()
        return len(block)
