"""`tachograph jobs`: the table of jobs, filtered and sorted, printed or exported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tachograph.catalog.errors import UsageError
from tachograph.catalog.units import plural, whole_number
from tachograph.cli import output
from tachograph.cli.narrate import Narrator
from tachograph.cli.options import (
    Arguments,
    Parser,
    add_filters,
    add_json,
    add_raw,
    caller_name,
    job_filter,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tachograph.cli.options import OpenedLake
    from tachograph.lake.filters import JobFilter
    from tachograph.report.jobs import JobsTable

_PROMPTS = 2  # lines of a terminal with the command and the next prompt


def add_arguments(parser: Parser) -> None:
    """Declare filters, columns, order and formats."""
    add_filters(parser)
    order = parser.add_mutually_exclusive_group()
    order.add_argument(
        "--sort",
        metavar="COLUMN",
        help=(
            "sort by a column of job_summaries (docs/tables.md); -COLUMN: descending "
            "(default: -start, of a plain listing your own jobs first)"
        ),
    )
    order.add_argument(
        "--worst",
        action="store_true",
        help="sort by GPU-hours lost, most first: --sort -gpu_hours_lost",
    )
    parser.add_argument(
        "--columns",
        metavar="LIST",
        help="columns, separated by commas: those of job_summaries (docs/tables.md), "
        "gpu_hours_lost, worst_severity, "
        "findings",
    )
    parser.add_argument(
        "--limit",
        type=whole_number(1),
        metavar="N",
        help="at most N jobs (default: as many as fit on a terminal, else all)",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("-o", "--output", metavar="FILE", help="write .csv, .parquet or .json")
    form.add_argument("--csv", action="store_true", help="print CSV instead of a table")
    add_json(form)
    add_raw(parser)


def run(arguments: Arguments) -> int:
    """Print or write the jobs."""
    from tachograph.cli.options import open_lake
    from tachograph.lake.filters import FirstJobs
    from tachograph.lake.query import select_jobs
    from tachograph.report.jobs import (
        DEFAULT_SORT,
        WORST_SORT,
        build_jobs_table,
        check_jobs_columns,
    )

    opened = open_lake(arguments)
    which = job_filter(arguments, opened)
    exported = bool(arguments.json or arguments.csv or arguments.output)
    limit, rows = arguments.limit, None
    height = output.height()
    if limit is None and not exported and height is not None:
        limit = rows = max(1, height - _PROMPTS)
    columns = tuple(name for name in (arguments.columns or "").split(",") if name)
    sort = WORST_SORT if arguments.worst else arguments.sort or DEFAULT_SORT
    check_jobs_columns(columns, sort)
    user = "" if exported else _first_user(arguments, which)
    first = None if limit is None else FirstJobs(sort, limit, user)
    selected = select_jobs(opened.lake, which, answers=True, first=first)
    jobs = selected.jobs
    if which.findings and jobs.is_empty():
        _remark_if_stale(arguments, opened)
    table = build_jobs_table(
        jobs,
        selected.answers,
        columns=columns,
        sort=sort,
        limit=limit,
        matching=selected.matching,
        zone_name=opened.configuration.site.time_zone,
        wanted=which,
        first_user=user,
    )
    if jobs.is_empty() and not exported:
        from tachograph.cli.no_match import no_match_lines

        output.print_text("".join(f"{line}\n" for line in no_match_lines(opened, which)))
        return 0
    _show(table, arguments, rows)
    return 0


def _first_user(arguments: Arguments, which: JobFilter) -> str:
    """Return whose jobs a plain listing shows first: the caller's; "" with a filter or an order.

    Exports keep the documented order: programs compare them between users.
    """
    from tachograph.lake.filters import JobFilter

    plain = which == JobFilter() and not arguments.sort and not arguments.worst
    return caller_name() if plain else ""


def _remark_if_stale(arguments: Arguments, opened: OpenedLake) -> None:
    """Report that jobs were judged by another version or configuration."""
    from tachograph.judge.digest import judge_digest
    from tachograph.pipeline.state import is_stale

    if is_stale(opened.lake, opened.configuration, judge_digest(opened.configuration)):
        Narrator.of(arguments).say(
            "findings of another version or configuration; run `tachograph analyze` to update"
        )


def _show(table: JobsTable, arguments: Arguments, rows: int | None) -> None:
    from tachograph.report.jobs import jobs_csv, jobs_json, jobs_lines

    if arguments.output:
        from pathlib import Path

        with output.writing(arguments.output):
            _write(table, Path(arguments.output), raw=arguments.raw)
        Narrator.of(arguments).say(
            f"{plural(table.frame.height, 'job')} written to {arguments.output}"
        )
    elif arguments.json:
        output.print_json(jobs_json(table))
    elif arguments.csv:
        output.print_data(jobs_csv(table, raw=arguments.raw))
    else:
        width = output.width(default=200)
        lines = jobs_lines(table, width=width, ascii_only=output.ascii_only(), rows=rows)
        output.print_lines(lines, no_color=arguments.no_color)


def _write(table: JobsTable, target: Path, *, raw: bool) -> None:
    """Write the jobs in the format of the file's suffix."""
    from tachograph.report.jobs import jobs_csv, jobs_json, write_jobs_parquet

    match target.suffix:
        case ".parquet":
            write_jobs_parquet(table, target)
        case ".csv":
            target.write_text(jobs_csv(table, raw=raw), encoding="utf-8")
        case ".json":
            target.write_bytes(output.json_bytes(jobs_json(table)))
        case other:
            raise UsageError(
                f"unknown file type {other or '(none)'}", do="use .csv, .parquet or .json"
            )
