"""The only module that writes stdout: text, tables, JSON. Narration goes to stderr.

Where stdout is no terminal a table is never cropped, wrapped or coloured.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tachograph.catalog.errors import UsageError

if TYPE_CHECKING:
    from tachograph.report.lines import Line

_ABSENT = "–"
_LEAST_TEXT = 16  # characters of a column of text on a narrow terminal
_DRAWN = "─█▁–°"


def prepare() -> None:
    """Make stdout escape characters that its encoding lacks, instead of failing.

    Streams that were closed by the parent process go to /dev/null; else the next opened file would
    take their number.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def print_text(text: str) -> None:
    """Write text for people; text from others cannot control the terminal."""
    from tachograph.catalog.units import printable_lines

    sys.stdout.write(printable_lines(text))


def print_data(document: str) -> None:
    """Write a document for programs unchanged, such as CSV with harmless cells."""
    sys.stdout.write(document)


def print_lines(lines: Sequence[Line], *, no_color: bool = False) -> None:
    """Write styled lines: coloured on a terminal, else plain; ASCII if stdout needs it."""
    from tachograph.report.lines import to_rich, to_text

    environment = os.environ
    is_forced = environment.get("FORCE_COLOR") or environment.get("TTY_COMPATIBLE") == "1"
    is_coloured = sys.stdout.isatty() or bool(is_forced)
    if ascii_only() or not is_coloured:
        sys.stdout.write(to_text(lines, ascii_only=ascii_only()))
        return
    from rich.console import Console

    console = Console(file=sys.stdout, no_color=no_color or None, highlight=False)
    console.print(to_rich(lines), soft_wrap=True)


def width(default: int = 100) -> int:
    """Return the line width: that of the terminal (or $COLUMNS), else `default`."""
    return shutil.get_terminal_size((default, 24)).columns


def height() -> int | None:
    """Return the lines of the terminal (or $LINES); None if stdout is not one."""
    return shutil.get_terminal_size((100, 24)).lines if sys.stdout.isatty() else None


def on_terminal() -> bool:
    """Return whether stdout and stdin are a terminal."""
    return sys.stdout.isatty() and sys.stdin.isatty()


def is_shown() -> bool:
    """Return whether stdout is a terminal; piped output is never cut."""
    return sys.stdout.isatty()


def ascii_only() -> bool:
    """Return whether stdout cannot encode the characters of bars and rules."""
    try:
        _DRAWN.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return True
    return False


def print_json(value: object, *, indented: bool = True) -> None:
    """Write `value` as JSON: times in UTC, NaN and infinities as null, dataclasses as objects.

    Texts are those that were recorded; what steers terminals or the direction of writing is there
    as an escape.
    """
    import msgspec

    from tachograph.catalog.units import escaped_json

    document = json_bytes(value) if indented else msgspec.json.encode(value) + b"\n"
    sys.stdout.write(escaped_json(document.decode()))


def json_bytes(value: object) -> bytes:
    """Return `value` as indented JSON, texts unchanged."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[str | None]],
    *,
    title: str = "",
    no_color: bool = False,
) -> None:
    """Write a table, one text cell per heading in every row; None is shown as a dash.

    A heading that starts with `>` is of numbers: they are set to the right.

    Cells are printed literally: no markup is parsed, control characters are made visible. Where a
    terminal is narrow texts are continued on the next line, then numbers are hidden, the last
    first.
    """
    from tachograph.report.lines import plain
    from tachograph.report.tables import TextColumn, fit_table

    rows = list(rows)
    columns = []
    for index, heading in enumerate(headings):
        cells = (row[index] for row in rows)
        texts = [_ABSENT if cell is None else cell for cell in cells]
        if heading.startswith(">"):
            columns.append(TextColumn(heading[1:], texts, right=True, hide=-index))
        else:
            columns.append(TextColumn(heading, texts, least=_LEAST_TEXT, folds=True))
    room = width() if sys.stdout.isatty() else None
    lines = fit_table(columns, room).with_note(width=room or 0)
    title_lines = [plain(title, "italic")] if title else []
    print_lines([*title_lines, *lines], no_color=no_color)


@contextmanager
def writing(file: str) -> Iterator[None]:
    """Turn a failure to write a file named by the user into a UsageError.

    Errors: UsageError for a folder that does not exist, or a name that is one.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise UsageError(
            "the folder does not exist", where=file, do="create the folder, or name another file"
        ) from None
    except IsADirectoryError:
        raise UsageError("this is a folder", where=file, do="name a file in it") from None


def flush() -> None:
    """Flush stdout.

    Errors: BrokenPipeError where the reader closed stdout, OSError where the disk is full.
    """
    sys.stdout.flush()


def flush_or_abandon() -> None:
    """Flush stdout, or discard what cannot be written."""
    try:
        flush()
    except OSError:
        abandon()


def abandon() -> None:
    """Discard output that cannot be written, so that the interpreter does not retry at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
