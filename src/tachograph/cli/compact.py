"""`tachograph compact`: rewrite days as few sorted files, merge duplicates, drop what was superseded."""

from __future__ import annotations

from tachograph.catalog.errors import UsageError
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json


def add_arguments(parser: Parser) -> None:
    """Declare `--vacuum-hours` and `--json`."""
    parser.add_argument(
        "--vacuum-hours",
        type=int,
        metavar="N",
        help="delete files replaced more than N hours ago; readers that run longer than that would fail",
    )
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Compact every table; print what changed."""
    from tachograph.catalog.tables import ALL_TABLES
    from tachograph.cli.options import open_lake
    from tachograph.lake.compact import compact
    from tachograph.lake.query import rows_that_count

    if arguments.vacuum_hours is not None and arguments.vacuum_hours < 0:
        raise UsageError(f"invalid --vacuum-hours {arguments.vacuum_hours}", do="give 0 or more")
    opened = open_lake(arguments)
    with Narrator.of(arguments).steps() as progress:
        done = compact(
            opened.lake,
            ALL_TABLES,
            counting=rows_that_count(opened.lake, opened.now),
            vacuum_hours=arguments.vacuum_hours,
            progress=progress,
        )
    if arguments.json:
        output.print_json(done)
        return 0
    changed = [one for one in done if one.files_before != one.files_after or one.rows_before != one.rows_after]
    for one in changed:
        merged = f", {one.duplicates:,} duplicate rows merged" if one.duplicates else ""
        dropped = f", {one.superseded:,} superseded rows dropped" if one.superseded else ""
        output.print_text(f"{one.table}: {one.files_before:,} files became {one.files_after:,}{merged}{dropped}\n")
    if not changed:
        output.print_text("nothing to compact\n")
    return 0
