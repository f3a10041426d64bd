"""`tachograph lake`: contents of the lake: rows, time span, space, gaps per node, rejects;
repair.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.catalog.errors import LakeError, UsageError
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import Arguments, Parser, add_json

if TYPE_CHECKING:
    from datetime import datetime

    import polars as pl

    from tachograph.lake.describe import TableFacts, TableSpace
    from tachograph.lake.repair import LostFile

WORST = 10


def add_arguments(parser: Parser) -> None:
    """Declare `--nodes`, `--no-gaps`, `--repair`, `--give-up-lost`, `--json`."""
    parser.add_argument(
        "--nodes", action="store_true", help="all nodes, not only those with the longest gaps"
    )
    parser.add_argument("--no-gaps", action="store_true", help="do not search for gaps in samples")
    parser.add_argument(
        "--repair",
        action="store_true",
        help=(
            "move torn log files aside, and check every data file; print what was done and what is "
            "lost"
        ),
    )
    parser.add_argument(
        "--give-up-lost",
        action="store_true",
        help="with --repair: remove lost data files from the logs",
    )
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Print tables, nodes and rejects; with `--repair` what was put aside."""
    if arguments.give_up_lost and not arguments.repair:
        raise UsageError(
            "--give-up-lost goes with --repair", do="run `tachograph lake --repair` first"
        )
    return _repair(arguments) if arguments.repair else _describe(arguments)


def _repair(arguments: Arguments) -> int:
    from tachograph.cli.options import open_lake
    from tachograph.collect.lock import CollectLock
    from tachograph.collect.status import state_folder
    from tachograph.lake.repair import give_up, lost_files, repair

    opened = open_lake(arguments)
    location = opened.lake.location
    holder = CollectLock(state_folder(location, opened.configuration.collect.state)).holder()
    if holder is not None:
        what = f"process {holder.pid} on {holder.host} collects into the lake"
        raise LakeError(what, where=location, do="stop it, then run it again")
    done = repair(opened.lake)
    lost = lost_files(opened.lake)
    if arguments.give_up_lost:
        give_up(opened.lake, lost)
    if arguments.json:
        output.print_json({"repaired": done, "lost": lost, "given_up": arguments.give_up_lost})
        return LakeError.exit_code if lost else 0
    for file in done:
        output.print_text(f"{file.table}: {file.file} put aside: {file.what}\n")
    if done:
        output.print_text(f"{len(done)} files put aside.\n")
    if lost:
        _print_lost(lost, opened.configuration.site.time_zone, given_up=arguments.give_up_lost)
        return LakeError.exit_code
    if not done:
        output.print_text("Nothing to repair.\n")
    return 0


def _print_lost(lost: list[LostFile], zone: str, *, given_up: bool) -> None:
    from tachograph.catalog.columns import local_time

    for file in lost:
        times = ""
        if file.first is not None and file.last is not None:
            times = f" from {local_time(file.first, zone)} to {local_time(file.last, zone)}"
        output.print_text(
            f"{file.table}: {file.file} is {file.what}; {file.rows:,} rows lost{times}\n"
        )
    if given_up:
        output.print_text(
            f"Files given up: {len(lost)}; the others can be read. To get the rows back:\n"
        )
    else:
        output.print_text(
            f"Files lost: {len(lost)}; nothing was changed. Restore them from a backup. "
            "Without one, give them up\n"
            "with `tachograph lake --repair --give-up-lost`, then get the rows back:\n"
        )
    for table, remedy in dict.fromkeys((file.table, file.remedy) for file in lost):
        output.print_text(f"  {table}: {remedy}\n")


def _describe(arguments: Arguments) -> int:
    from tachograph.catalog.tables import ALL_TABLES
    from tachograph.cli.options import open_lake
    from tachograph.lake.describe import (
        describe_clusters,
        describe_nodes,
        describe_rejects,
        describe_space,
        describe_tables,
    )

    opened = open_lake(arguments)
    zone = opened.configuration.site.time_zone
    tables = describe_tables(opened.lake, ALL_TABLES)
    space = describe_space(opened.lake, ALL_TABLES, opened.configuration.retention.days)
    with Narrator.of(arguments).steps() as progress:
        nodes = None if arguments.no_gaps else describe_nodes(opened.lake, progress)
    rejects = describe_rejects(opened.lake)
    clusters = describe_clusters(opened.lake)
    if arguments.json:
        description = {"tables": tables, "space": space, "rejects": rejects.to_dicts()}
        if clusters.height:
            description["clusters"] = clusters.to_dicts()
        output.print_json(description | ({} if nodes is None else {"nodes": nodes.to_dicts()}))
        return 0
    _print_tables(tables, zone, arguments)
    _print_space(space, arguments)
    if clusters.height:
        _print_clusters(clusters, arguments)
    if nodes is not None and nodes.height:
        _print_nodes(nodes, arguments)
    _print_rejects(rejects, arguments)
    return 0


def _print_tables(tables: list[TableFacts], zone: str, arguments: Arguments) -> None:
    from tachograph.catalog.columns import local_time
    from tachograph.catalog.units import text

    def time(moment: datetime | None) -> str | None:
        return None if moment is None else local_time(moment, zone)

    headings = ("table", ">rows", ">files", ">size", ">bytes/row", "first", "last")
    rows = [
        (
            t.table, f"{t.rows:,}", f"{t.files:,}", text(t.bytes, "B"), _one(t.bytes_per_row),
            time(t.first), time(t.last),
        )
        for t in tables
    ]  # fmt: skip
    output.print_table(headings, rows, title=f"Tables (times: {zone})", no_color=arguments.no_color)


def _print_space(space: list[TableSpace], arguments: Arguments) -> None:
    from tachograph.catalog.units import text

    def size(value: float | None) -> str | None:
        return None if value is None else text(value, "B")

    has_retention = any(table.retention_days is not None for table in space)
    headings = ["table", ">size", ">replaced, log", ">days", ">a day", ">a year"]
    rows = [
        [
            table.table, size(table.bytes), size(table.other_bytes), _one(table.days), size(table.bytes_per_day),
            size(table.expected_year_bytes),
        ]
        for table in space
    ]  # fmt: skip
    if has_retention:
        headings += [">kept for", ">then"]
        for row, table in zip(rows, space, strict=True):
            days = "ever" if table.retention_days is None else f"{table.retention_days:,} d"
            row += [days, size(table.expected_kept_bytes)]
    output.print_text("\n")
    output.print_table(
        headings, rows, title="Space, at the rate so far", no_color=arguments.no_color
    )


def _print_clusters(clusters: pl.DataFrame, arguments: Arguments) -> None:
    cells = [
        [None if value is None else str(value) for value in row] for row in clusters.iter_rows()
    ]
    headings = ("cluster", ">jobs", ">nodes", ">GPUs")
    output.print_text("\n")
    output.print_table(headings, cells, title="Clusters", no_color=arguments.no_color)


def _one(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _print_nodes(nodes: pl.DataFrame, arguments: Arguments) -> None:
    from tachograph.catalog.units import text

    worst = nodes.sort("silence_s", "node", "cluster", descending=[True, False, False])
    shown = nodes if arguments.nodes else worst.head(WORST)
    headings = ("node", ">GPUs", ">samples", ">every", ">gaps", ">longest gap", ">all gaps")
    rows = [
        (
            " of ".join(filter(None, (row["node"], row["cluster"]))), str(row["gpus"]),
            f"{row['samples']:,}", text(row["interval_s"], "s"), f"{row['gaps']:,}",
            text(row["longest_gap_s"], "s"), text(row["silence_s"], "s"),
        )
        for row in shown.iter_rows(named=True)
    ]  # fmt: skip
    title = (
        "Nodes"
        if arguments.nodes
        else f"Nodes with the longest gaps ({len(rows)} of {nodes.height})"
    )
    output.print_text("\n")
    output.print_table(headings, rows, title=title, no_color=arguments.no_color)


def _print_rejects(rejects: pl.DataFrame, arguments: Arguments) -> None:
    headings = ("table", "reason", "column", ">rejected", "example")
    rows = [
        (row["target"], row["reason"], row["column"], f"{row['removed']:,}", row["example"])
        for row in rejects.iter_rows(named=True)
    ]
    output.print_text("\n")
    if rows:
        output.print_table(headings, rows, title="Rejected by ingest", no_color=arguments.no_color)
    else:
        output.print_text("No rejects.\n")
