"""Output formats of a report (page, CSV, JSON, text): their options, and writing them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.catalog.errors import UsageError
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json, add_raw

if TYPE_CHECKING:
    from tachograph.report.lines import Line


@dataclass(frozen=True, slots=True)
class ReportFormats:
    """A report in each format, built on demand.

    lines: (characters per line, ASCII only) to lines.
    """

    html: Callable[[], str]
    json: Callable[[], object]
    csv: Callable[[bool], str]  # raw: texts as recorded, also formulas of spreadsheets
    lines: Callable[[int, bool], Sequence[Line]]
    widest: int  # characters of a line


def add_formats(parser: Parser, *, csv: str) -> None:
    """Add `--html`, `--csv`, `--json` (mutually exclusive) and `--raw`.

    `csv`: contents of the CSV.
    """
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", metavar="FILE", help="write the page with plots into FILE")
    form.add_argument("--csv", action="store_true", help=f"print CSV: {csv}")
    add_json(form)
    add_raw(parser)


def write_report(forms: ReportFormats, arguments: Arguments) -> None:
    """Print the report, or write its page, in the chosen format.

    Errors: UsageError for a file that cannot be written.
    """
    if arguments.html is not None:
        write_page(forms.html, arguments)
    elif arguments.json:
        output.print_json(forms.json())
    elif arguments.csv:
        output.print_data(forms.csv(arguments.raw))
    else:
        lines = forms.lines(min(output.width(), forms.widest), output.ascii_only())
        output.print_lines(lines, no_color=arguments.no_color)


def write_page(render: Callable[[], str], arguments: Arguments) -> None:
    """Write the page that `--html` names. Errors: UsageError for a file that cannot be written."""
    file = arguments.html
    if not file:  # Path("") is the current folder
        raise UsageError("empty file name", where="--html", do="name a file")
    page = render()
    with output.writing(file):
        Path(file).write_text(page, encoding="utf-8")
    Narrator.of(arguments).say(f"page written to {file}")
