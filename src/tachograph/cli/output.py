"""The one module that writes stdout: text, tables, JSON. What it writes is data; narration goes to stderr.

Where stdout is no terminal a table is never cropped, wrapped or coloured.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tachograph.catalog.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_UNBOUNDED = 100_000  # columns of characters: width of a pipe or a file
_ABSENT = "–"
_DRAWN = "─█▁–°"


@dataclass(frozen=True, slots=True)
class TableHeading:
    """Heading of a column of text cells; numbers are set to the right."""

    title: str
    right: bool = False
    style: str = ""


def prepare() -> None:
    """Make stdout escape characters that its encoding lacks, as stderr does, in place of failing.

    Streams that were closed by the parent process go to /dev/null; else the next opened file would take their number.
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
    """Write `text` as it is."""
    sys.stdout.write(text)


def print_styled(text: Text, *, no_color: bool = False) -> None:
    """Write rich text made of lines: coloured on a terminal, plain elsewhere."""
    from rich.console import Console

    console = Console(file=sys.stdout, no_color=no_color or None, highlight=False)
    if console.is_terminal:
        console.print(text, soft_wrap=True)
    else:
        sys.stdout.write(f"{text.plain}\n")


def width(default: int = 100) -> int:
    """Return how many characters a line may have: those of the terminal (or $COLUMNS), else `default`."""
    return shutil.get_terminal_size((default, 24)).columns


def on_terminal() -> bool:
    """Return whether stdout and stdin are a terminal."""
    return sys.stdout.isatty() and sys.stdin.isatty()


def ascii_only() -> bool:
    """Return whether stdout cannot encode the characters of bars and rules."""
    try:
        _DRAWN.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return True
    return False


def print_json(value: object) -> None:
    """Write `value` as indented JSON: times in UTC with Z, NaN and infinities as null, data classes as objects."""
    sys.stdout.write(json_bytes(value).decode())


def json_bytes(value: object) -> bytes:
    """Return `value` as `print_json` writes it."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def print_table(
    headings: Sequence[TableHeading],
    rows: Iterable[Sequence[str | None]],
    *,
    title: str = "",
    no_color: bool = False,
) -> None:
    """Write a table, one text cell per heading in every row; None is shown as a dash.

    Cells are printed literally: no markup is parsed, control characters are made visible.
    """
    from rich.console import Console

    table = _table(headings, title)
    for row in rows:
        table.add_row(*map(_cell, row))
    console = Console(file=sys.stdout, no_color=no_color or None, highlight=False)
    if console.is_terminal:
        console.print(table)
        return
    plain = Console(file=sys.stdout, width=_UNBOUNDED, color_system=None, highlight=False)
    with plain.capture() as captured:
        plain.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


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


def abandon() -> None:
    """Discard what could not be written, so that the interpreter does not try again at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _table(headings: Sequence[TableHeading], title: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in headings:
        table.add_column(
            heading.title, justify="right" if heading.right else "left", style=heading.style, overflow="fold"
        )
    return table


def _cell(value: str | None) -> Text:
    from rich.text import Text

    from tachograph.catalog.units import printable

    return Text(_ABSENT if value is None else printable(value))
