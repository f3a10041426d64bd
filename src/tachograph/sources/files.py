"""Files of a recording: Parquet, CSV and JSON as frames, read in pieces; fingerprints."""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, cast

import msgspec
import polars as pl

from tachograph.catalog.chunks import Reject, chosen_cells, counted
from tachograph.catalog.errors import InputError, unreadable
from tachograph.catalog.tables import LakeTable


def add_files(
    parser: argparse.ArgumentParser, what: str = "files or folders", *, may_lack: bool = False
) -> None:
    """Declare the files of a source."""
    parser.add_argument("files", nargs="*" if may_lack else "+", metavar="FILE", help=what)


def expand(paths: Iterable[str | Path], suffixes: tuple[str, ...]) -> Iterator[Path]:
    """Yield the named files, and files with one of `suffixes` in named folders, sorted.

    Errors: InputError for a path that does not exist, or a folder without such files.
    """
    for written in paths:
        path = Path(written)
        if path.is_dir():
            files = sorted(
                file for file in path.rglob("*") if file.is_file() and file.name.endswith(suffixes)
            )
            if not files:
                raise InputError(
                    f"no file ending in {', '.join(suffixes)}", where=path, do="name the files"
                )
            yield from files
        elif path.exists():
            yield path
        else:
            raise InputError("no such file", where=path, do="check the name")


def fingerprint(path: Path, *parts: str) -> str:
    """Return the SHA-256 of the content and `parts` (options that matter) as 32 hex digits.

    Errors: InputError when the file cannot be read or is empty.
    """
    digest = hashlib.sha256("\0".join(parts).encode())
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
            if file.tell() == 0:
                raise InputError("the file is empty", where=path, do="export it again")
    except OSError as problem:
        raise unreadable(problem, path) from None
    return digest.hexdigest()[:32]


def read_bytes(path: Path) -> bytes:
    """Return the content.

    Errors: InputError when the file cannot be read or is empty.
    """
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise unreadable(problem, path) from None
    if not content:
        raise InputError("the file is empty", where=path, do="export it again")
    return content


FileFormat = Literal["parquet", "csv", "json"]
PARQUET_SUFFIXES = (".parquet", ".pq")
JSON_SUFFIXES = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")
CSV_SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz")
SUFFIXES = (*PARQUET_SUFFIXES, *CSV_SUFFIXES, *JSON_SUFFIXES)
CHUNK_ROWS = 2_000_000
BLOCK_BYTES = 64 << 20  # about 0.6 GB of memory while its lines are taken apart
_MAX_BACK = 1 << 20
# A quoted cell may hold line breaks; more is a quote that was never closed.
_MAX_LINES_OF_ONE_CELL = 50
_DOCUMENT = re.compile(r"^[\[{]", re.MULTILINE)
_INSIDE = re.compile(r"\s*[,\]}]")  # what follows a value within another one
_DOCUMENTS = 2  # at least, in a file of several
# The decoder panics at some bytes.
_BROKEN_PARQUET = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
BROKEN_GZIP = (gzip.BadGzipFile, EOFError, zlib.error)


@dataclass(frozen=True, slots=True)
class TableLayout:
    """Format of a CSV file. `names`: columns if there is no header."""

    delimiter: str = ","
    comment: str = ""
    names: tuple[str, ...] = ()
    encoding: str = "utf-8"


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Consecutive rows of a file: readable rows, their number, rejects."""

    rows: pl.DataFrame
    first_row: int
    rows_read: int
    rejects: tuple[Reject, ...] = field(default=())


def format_of(path: Path) -> FileFormat:
    """Return the format of a file, by its first bytes and then by its name.

    Errors: InputError for an invalid or truncated Parquet file, and for an unreadable or empty
    file.
    """
    with open_file(path) as file:
        try:
            start = file.read(4096)
        except BROKEN_GZIP as problem:
            raise _damaged_gzip(path, problem) from None
    if not start:
        raise InputError("the file is empty", where=path, do="export it again")
    if start.startswith(b"PAR1"):
        return "parquet"
    if path.name.endswith(PARQUET_SUFFIXES):
        raise InputError(
            "this is not Parquet: it does not start with PAR1",
            where=path,
            do="export it again",
        )
    if path.name.endswith(JSON_SUFFIXES):
        return "json"
    if path.name.endswith(CSV_SUFFIXES):
        return "csv"
    return "json" if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[") else "csv"


def open_file(path: Path) -> IO[bytes]:
    """Return the file opened for reading, decompressed if gzip.

    Errors: InputError when it cannot be read.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        return cast("IO[bytes]", gzip.open(path, "rb")) if packed else path.open("rb")
    except OSError as problem:
        raise unreadable(problem, path) from None


def read_unpacked(path: Path) -> bytes:
    """Return the content, decompressed if gzip.

    Errors: InputError when the file cannot be read, is damaged or holds nothing but blanks.
    """
    try:
        with open_file(path) as file:
            content = file.read()
    except BROKEN_GZIP as problem:
        raise _damaged_gzip(path, problem) from None
    if not content.removeprefix(b"\xef\xbb\xbf").strip():
        raise InputError("the file is empty", where=path, do="export it again")
    return content


def listed(names: Iterable[str], most: int = 20) -> str:
    """Return column names for messages: few and short.

    >>> listed(["time", "x" * 60], most=5)
    'time, xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…'
    """
    all_names = list(names)
    shown = [name if len(name) <= 40 else f"{name[:39]}…" for name in all_names[:most]]
    return ", ".join(shown) + (
        f" and {len(all_names) - most} more" if len(all_names) > most else ""
    )


def parquet_columns(path: Path) -> pl.Schema:
    """Return {column: type} of a Parquet file.

    Errors: InputError when the file is damaged.
    """
    try:
        return pl.scan_parquet(path, glob=False).collect_schema()
    except _BROKEN_PARQUET:
        raise _damaged(path) from None


def parquet_ends(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    """Return `columns` of the first and last row of a Parquet file; empty for an empty file.

    Errors: InputError when the file is damaged.
    """
    lazy = pl.scan_parquet(path, glob=False).select(columns)
    try:
        return pl.concat([lazy.head(1).collect(), lazy.tail(1).collect()])
    except _BROKEN_PARQUET:
        raise _damaged(path) from None


def read_parquet(
    path: Path,
    columns: Sequence[str],
    *,
    rows: int | None = CHUNK_ROWS,
    cut: Callable[[pl.DataFrame], int] | None = None,
) -> Iterator[FilePiece]:
    """Yield `columns` of a Parquet file, at most `rows` at a time (None: all at once).

    `cut`: of how many first rows a piece should consist, where others follow it; 0: of all.
    Only the row groups concerned are decoded.
    Errors: InputError when the file is damaged.
    """
    lazy = pl.scan_parquet(path, glob=False).select(columns)
    try:
        total = int(pl.scan_parquet(path, glob=False).select(pl.len()).collect().item())
        step = rows or max(total, 1)
        first, pending = 0, lazy.slice(0, 0).collect()
        while first < total or not first:
            piece = lazy.slice(first + pending.height, step - pending.height).collect()
            piece = pl.concat([pending, piece], rechunk=False) if pending.height else piece
            end = cut(piece) if cut and first + piece.height < total else 0
            end = end or piece.height
            pending = piece.slice(end)
            yield FilePiece(piece.head(end), first, end)
            first += end
            if not end:
                return
    except _BROKEN_PARQUET:
        raise _damaged(path) from None


def _damaged(path: Path) -> InputError:
    """Describe the damage of a Parquet file without the decoder's internal terms."""
    what = "damaged Parquet: its schema or a page of it cannot be decoded"
    with open_file(path) as file:
        file.seek(-4, io.SEEK_END)
        if file.read() != b"PAR1":
            what = "damaged Parquet, cut off: it does not end with PAR1"
    return InputError(what, where=path, do="copy or export it again")


def _damaged_gzip(path: Path, problem: Exception) -> InputError:
    return InputError(f"damaged gzip: {problem}", where=path, do="copy or export it again")


def read_csv(
    path: Path, layout: TableLayout | None = None, *, block_bytes: int | None = BLOCK_BYTES
) -> Iterator[FilePiece]:
    """Yield the rows of a CSV file as text columns, in blocks of `block_bytes` (None: all).

    Rejects, each counting lines: `ragged_row` (not as many fields as the header), `not_text` (bytes
    that are no text in the encoding), `repeated_header` (a header line again, as in files put one
    behind the other). Errors: InputError when there is no header line, it is binary, or names a
    column twice.
    """
    layout = layout or TableLayout()
    header: _Header | None = None
    first = 0
    for block in _blocks(path, layout, block_bytes):
        lines, rejects, not_text = _lines(block, layout)
        if header is None:
            header, lines = _header(path, layout, lines, not_text)
        lines, counts = _split_off(lines, header, layout.delimiter)
        rejects += counts
        read = len(lines) + sum(reject.count for reject in rejects)
        yield FilePiece(
            _cells(path, lines, header.names, layout.delimiter), first, read, tuple(rejects)
        )
        first += read
    if header is None:
        raise InputError("the file holds no line", where=path, do="export it again")


@dataclass(frozen=True, slots=True)
class _Header:
    line: str | None  # None: named by the layout
    names: tuple[str, ...]


def _blocks(path: Path, layout: TableLayout, block_bytes: int | None) -> Iterator[bytes]:
    """Pieces of the file that end at line ends, converted to UTF-8."""
    with open_file(path) as file:
        try:
            if layout.encoding.lower().replace("-", "") not in ("utf8", "utf8sig", "ascii"):
                yield file.read().decode(layout.encoding).encode()
                return
            if block_bytes is None:
                yield file.read()
                return
            rest = b""
            while piece := file.read(block_bytes):
                rest += piece
                cut = _cut(rest) if len(piece) == block_bytes else len(rest)
                if cut:
                    yield rest[:cut]
                    rest = rest[cut:]
            if rest:
                yield rest
        except BROKEN_GZIP as problem:
            raise _damaged_gzip(path, problem) from None
        except (UnicodeError, LookupError) as problem:
            raise InputError(
                f"not text in {layout.encoding}: {problem}", where=path, do="name its encoding"
            ) from None


def _cut(block: bytes) -> int:
    """Return the length up to the last unquoted line end within 1 MB; 0: read on."""
    last = cut = block.rfind(b"\n") + 1
    odd = block.count(b'"', 0, cut) % 2 == 1
    while odd and cut > max(0, last - _MAX_BACK):
        before = block.rfind(b"\n", 0, cut - 1) + 1
        odd ^= block.count(b'"', before, cut) % 2 == 1
        cut = before
    return last if odd or (cut == 0 and last > _MAX_BACK) else cut


def _lines(block: bytes, layout: TableLayout) -> tuple[pl.Series, list[Reject], int]:
    """Data lines without comments; rejects; number of binary lines."""
    damaged: list[bytes] = []
    try:
        text = block.decode() if b"\0" not in block else None
    except UnicodeDecodeError:
        text = None
    if text is None:
        good: list[str] = []
        for line in block.split(b"\n"):
            try:
                decoded = line.decode()
            except UnicodeDecodeError:
                decoded = "\0"
            if "\0" in decoded:
                damaged.append(line)
            else:
                good.append(decoded)
        text = "\n".join(good)
    lines = pl.Series("line", text.removeprefix("\ufeff").split("\n"), dtype=pl.String)
    lines = lines.str.strip_chars_end("\r")
    if layout.comment:
        lines = lines.filter(~lines.str.starts_with(layout.comment))
    rejects = [Reject("not_text", None, len(damaged), repr(damaged[0][:100]))] if damaged else []
    return lines, rejects, len(damaged)


def _header(
    path: Path, layout: TableLayout, lines: pl.Series, not_text: int
) -> tuple[_Header, pl.Series]:
    """Return the header and the remaining lines."""
    if layout.names:
        return _Header(None, layout.names), lines
    begin = lines.str.contains(r"\S").arg_max() if len(lines) else None
    lines = lines[begin or 0 :]
    if not len(lines) or not str(lines[0]).strip() or not_text > len(lines):
        what = (
            "this is not a text table: it holds binary data"
            if not_text
            else "the file holds no line"
        )
        raise InputError(what, where=path, do="name a CSV, JSON or Parquet file, or its encoding")
    first = str(lines[0])
    try:
        names = [
            name.strip()
            for name in next(csv.reader([first.removeprefix("#")], delimiter=layout.delimiter))
        ]
    except csv.Error as problem:
        raise InputError(
            f"no header line: {problem}", where=path, do="export it with its column names"
        ) from None
    if names and names[-1] == "" and len(names) > 1:
        names[-1] = "(last)"
    twice = (
        sorted(name for name, times in Counter(names).items() if times > 1)
        if len(names) < 10_000
        else names[:1]
    )
    if twice:
        raise InputError(
            f"the header names {listed(twice)} twice", where=path, do="name each column once"
        )
    return _Header(first, tuple(names)), lines[1:]


def _split_off(lines: pl.Series, header: _Header, delimiter: str) -> tuple[pl.Series, list[Reject]]:
    """Return lines with the header's number of fields, and the other lines."""
    rejects: list[Reject] = []
    if header.line is not None:
        again = lines == header.line
        rejects += counted("repeated_header", None, again, lines)
        lines = lines.filter(~again)
    quotes = lines.str.count_matches('"', literal=True)
    quoted = bool(quotes.max())
    if quoted and (quotes % 2 == 1).any():
        lines = _join_quoted(lines, quotes % 2 == 1)
    lines = lines.filter(lines.str.contains(r"\S"))
    bare = lines.str.replace_all(r'"[^"]*"', "") if quoted else lines
    separators = len(header.names) - 1
    fields = bare.str.count_matches(delimiter, literal=True)
    # An empty cell too many at the end.
    longer = (fields == separators + 1) & lines.str.ends_with(delimiter)
    if longer.any():
        cut = lines.str.slice(0, lines.str.len_chars() - 1)
        lines = chosen_cells(longer, cut, lines)
    ragged = ((fields != separators) & ~longer) | bare.str.contains('"', literal=True)
    return lines.filter(~ragged), [*rejects, *counted("ragged_row", None, ragged, lines)]


def _join_quoted(lines: pl.Series, odd: pl.Series) -> pl.Series:
    """Join lines of a quoted cell to one record; keep unpaired quotes."""
    pending = odd.arg_true().to_list()
    if not pending:
        return lines
    records = lines.to_list()
    index = 0
    while index + 1 < len(pending):
        start, end = pending[index], pending[index + 1]
        if end - start < _MAX_LINES_OF_ONE_CELL:
            records[start] = "\n".join(records[start : end + 1])
            records[start + 1 : end + 1] = [None] * (end - start)
            index += 2
        else:
            index += 1
    return pl.Series("line", records, dtype=pl.String).drop_nulls()


def _cells(path: Path, lines: pl.Series, names: Sequence[str], delimiter: str) -> pl.DataFrame:
    if not len(lines):
        return pl.DataFrame(schema=dict.fromkeys(names, pl.String))
    text = "\n".join(lines.to_list()) + "\n"
    try:
        return pl.read_csv(
            text.encode(),
            has_header=False,
            new_columns=list(names),
            separator=delimiter,
            quote_char='"' if '"' in text else None,
            infer_schema=False,
        )
    except pl.exceptions.PolarsError:
        what = f"not a table of {len(names)} columns"
        raise InputError(what, where=path, do="check quotes and delimiter") from None


def read_json(path: Path) -> tuple[object, tuple[Reject, ...]]:
    """Return the content of a JSON file, or the list of a JSON Lines file.

    NaN and Infinity, which some writers leave in JSON, are read as such.
    Rejects: `unreadable_line` counts the lines of such a file that are no JSON.
    Errors: InputError when it is no JSON, naming the place.
    """
    content = read_unpacked(path).removeprefix(b"\xef\xbb\xbf")
    try:
        return msgspec.json.decode(content), ()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        return _loads(content), ()
    except RecursionError:
        raise InputError(
            "JSON nested too deeply", where=path, do="export the rows as a list"
        ) from None
    except UnicodeDecodeError as problem:
        raise InputError(
            f"not text: {problem}", where=path, do="export it again as UTF-8"
        ) from None
    except json.JSONDecodeError as problem:
        values = _json_lines(content) or _json_values(content)
        if values is None:
            where = f"line {problem.lineno}, column {problem.colno}"
            raise InputError(
                f"not valid JSON, perhaps cut off: {problem.msg} at {where}",
                where=path,
                do="export it again",
            ) from None
        return values
    except ValueError:
        raise InputError(
            "the JSON holds a number too long", where=path, do="export it again"
        ) from None


def _loads(content: bytes) -> object:
    """The value; half a surrogate pair, which no text holds and JSON can write, becomes `?`."""
    value = json.loads(content.decode(json.detect_encoding(content)))
    if b"\\ud" in content.lower():
        value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    return value


def _json_values(content: bytes) -> tuple[list[object], tuple[Reject, ...]] | None:
    """Return the documents that a program in a loop wrote behind each other; None for none.

    Text before the first, and each document that is cut off, are counted as one line.
    """
    text = content.decode("utf-8", "replace")
    begin = _DOCUMENT.search(text)
    decoder = json.JSONDecoder()
    values: list[object] = []
    broken = [text[: begin.start()]] if begin and begin.start() else []
    is_cut = False
    while begin is not None:
        start = begin.start()
        try:
            value, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError as problem:
            is_cut = True
            begin = _DOCUMENT.search(text, max(problem.pos, begin.end()))
            broken.append(text[start : begin.start() if begin else None])
            continue
        except (ValueError, RecursionError):  # without a position to go on from
            broken.append(text[start:])
            break
        begin = _DOCUMENT.search(text, end)
        if is_cut and _INSIDE.match(text, end):
            continue  # a row of the document that cannot be read
        is_cut = False
        values.append(value)
    if not values or len(values) + len(broken) < _DOCUMENTS:
        return None
    rejects = (Reject("unreadable_line", None, len(broken), broken[0][:100]),) if broken else ()
    return values, rejects


def _json_lines(content: bytes) -> tuple[list[object], tuple[Reject, ...]] | None:
    """Return values and broken lines of a JSON Lines file; None if it is not one."""
    values: list[object] = []
    broken: list[bytes] = []
    for line in filter(None, map(bytes.strip, content.split(b"\n"))):
        try:
            value = _loads(line)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            values.append(value)
        elif not values:
            return None
        else:
            broken.append(line)
    if not values:
        return None
    return values, (
        Reject("unreadable_line", None, len(broken), repr(broken[0][:100])),
    ) if broken else ()


def filled_columns(table: LakeTable, rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return rows of a table as a frame of the columns that some row names."""
    names = {name for row in rows for name in row}
    schema = {name: dtype for name, dtype in table.schema.items() if name in names}
    return pl.DataFrame(rows, schema=schema)


def records(rows: object, *, origin: str) -> pl.DataFrame:
    """Return JSON objects as a frame: missing keys are null, nested values are JSON text.

    Errors: InputError when it is not a list of objects.
    """
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(
            "not a list of records", where=origin, do="export a list of objects, one per sample"
        )
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return pl.DataFrame([_series(name, [row.get(name) for row in rows]) for name in names])


def _series(name: str, values: list[object]) -> pl.Series:
    kinds = {type(value) for value in values}
    mixed = str in kinds and kinds - {str, type(None)}
    if mixed or kinds & {dict, list}:
        return pl.Series(name, [_cell_text(value) for value in values], dtype=pl.String)
    return pl.Series(name, values, strict=False)


def _cell_text(value: object) -> str | None:
    """Return a value as text, objects and lists as JSON."""
    if value is None:
        return None
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value)
