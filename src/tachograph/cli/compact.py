"""`tachograph lake compact`: rewrite days as few sorted files; drop superseded and expired rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tachograph.catalog.errors import UsageError
from tachograph.catalog.units import whole_number
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json

if TYPE_CHECKING:
    from tachograph.lake.compact import Compaction
    from tachograph.lake.retention import Expiry


def add_arguments(parser: Parser) -> None:
    """Declare `--expire`, `--dry-run`, `--vacuum-hours` and `--json`."""
    parser.add_argument(
        "--expire",
        action="store_true",
        help="first remove rows older than [retention] allows",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="with --expire: show what would be removed, remove nothing",
    )
    parser.add_argument(
        "--vacuum-hours",
        type=whole_number(0),
        metavar="N",
        help=(
            "delete files replaced more than N hours ago; readers that run longer than that "
            "would fail"
        ),
    )
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Remove what expired, compact every table; print what changed."""
    from tachograph.catalog.tables import ALL_TABLES
    from tachograph.cli.options import open_lake
    from tachograph.lake.compact import compact
    from tachograph.lake.retention import expire, rows_that_count

    if arguments.dry_run and not arguments.expire:
        raise UsageError("--dry-run belongs to --expire", do="give both")
    opened = open_lake(arguments)
    expired: list[Expiry] = []
    done: list[Compaction] = []
    with Narrator.of(arguments).steps() as progress:
        if arguments.expire:
            keep = opened.configuration.retention.days
            expired = expire(
                opened.lake, keep, now=opened.clock, dry_run=arguments.dry_run, progress=progress
            )
        if not arguments.dry_run:
            done = compact(
                opened.lake,
                ALL_TABLES,
                counting=rows_that_count(opened.lake, opened.clock),
                vacuum_hours=arguments.vacuum_hours,
                progress=progress,
            )
    if arguments.json:
        output.print_json({"expired": expired, "compacted": done} if arguments.expire else done)
        return 0
    _print_expired(expired, arguments)
    if not arguments.dry_run:
        _print_compacted(done)
    return 0


def _print_expired(expired: Sequence[Expiry], arguments: Arguments) -> None:
    from tachograph.catalog.units import text

    verb = "would be removed" if arguments.dry_run else "removed"
    for table in expired:
        if table.rows:
            span = f" of {table.first} to {table.last}" if table.first else ""
            size = f"{table.files:,} files, {text(table.bytes, 'B')}"
            output.print_text(
                f"{table.table}: {table.rows:,} rows{span} {verb} ({size}), "
                f"older than {table.before}\n"
            )
        for rest in table.kept_back:
            span = f" of {rest.first} to {rest.last}" if rest.first else ""
            example = f" ({rest.example})" if rest.example else ""
            output.print_text(
                f"{table.table}: {rest.rows:,} rows{span} kept: {rest.why}{example}\n"
            )
    if arguments.dry_run and not any(table.rows or table.kept_back for table in expired):
        output.print_text("no row is older than [retention] allows\n")


def _print_compacted(done: Sequence[Compaction]) -> None:
    changed = [
        table
        for table in done
        if table.files_before != table.files_after or table.rows_before != table.rows_after
    ]
    for table in changed:
        merged = f", {table.duplicates:,} duplicate rows merged" if table.duplicates else ""
        if table.completing:
            merged += f", {table.completing:,} rows with other counters of a sample merged"
        dropped = f", {table.superseded:,} superseded rows dropped" if table.superseded else ""
        output.print_text(
            f"{table.table}: {table.files_before:,} files became {table.files_after:,}"
            f"{merged}{dropped}\n"
        )
    if not changed:
        output.print_text("nothing to compact\n")
