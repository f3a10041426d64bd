"""`tachograph act comment`: write summaries of ended jobs into Slurm's AdminComment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tachograph.catalog.errors import ExportError, UsageError
from tachograph.catalog.units import plural, whole_number
from tachograph.cli import output
from tachograph.cli.options import Arguments, OpenedLake, Parser, add_json, open_lake

if TYPE_CHECKING:
    from pathlib import Path

    from tachograph.catalog.rows import JobSummaryRow
    from tachograph.report.job import JobReport


def add_arguments(parser: Parser) -> None:
    """Declare jobs, `--write`, `--most`, `--json`."""
    parser.add_argument(
        "jobs", metavar="ID", nargs="*", help="jobs (default: those that ended recently)"
    )
    parser.add_argument("--cluster", metavar="NAME", help="cluster, if several have this job id")
    parser.add_argument(
        "--write",
        action="store_true",
        help="write the comments, each once (default: only show them)",
    )
    parser.add_argument(
        "--most",
        type=whole_number(1),
        default=500,
        metavar="N",
        help="jobs per request (default: 500)",
    )
    add_json(parser)


def run(arguments: Arguments) -> int:
    """Show the comments, or write them."""
    opened = open_lake(arguments)
    return _write(opened, arguments) if arguments.write else _show(opened, arguments)


def _jobs(opened: OpenedLake, arguments: Arguments) -> list[JobSummaryRow]:
    """Rows of the named jobs, else of recently ended ones. Errors: UsageError for a running job."""
    from tachograph.annexes.act.comments import COMMENT_DELAY, ended_jobs
    from tachograph.lake.query import read_job_row

    if not arguments.jobs:
        return [*ended_jobs(opened.lake, now=opened.clock, delay=COMMENT_DELAY)]
    rows = [read_job_row(opened.lake, job, cluster=arguments.cluster).row for job in arguments.jobs]
    running = next((row for row in rows if row["end"] is None), None)
    if running is not None:
        raise UsageError(
            f"job {running['job_id']} has not ended", do="run it again after the job has ended"
        )
    return rows


def _report(opened: OpenedLake, job_key: str) -> JobReport:
    from tachograph.api.job_report import read_job

    return read_job(opened.lake, job_key, now=opened.now, configuration=opened.configuration)


def _show(opened: OpenedLake, arguments: Arguments) -> int:
    """Print the summaries and how long they are; nothing is noted."""
    from tachograph.annexes.act.comments import KIND
    from tachograph.annexes.act.ledger import read_ledger
    from tachograph.report.job_comment import comment_json, comment_text

    done = {record.key for record in read_ledger(_folder(opened)) if record.state == "done"}
    due = [
        row
        for row in _jobs(opened, arguments)
        if arguments.jobs or f"{KIND}:{row['job_key']}" not in done
    ]
    shown = due[: arguments.most]
    summaries: list[dict[str, Any]] = []
    for row in shown:
        summary = comment_json(_report(opened, row["job_key"]), url=opened.configuration.serve.url)
        summaries.append(
            {"job_id": row["job_id"], "characters": len(comment_text(summary)), "summary": summary}
        )
    if arguments.json:
        output.print_json(summaries)
        return 0
    for entry in summaries:
        headline = entry["summary"]["tachograph"]["headline"]
        output.print_text(f"job {entry['job_id']}: {entry['characters']} characters: {headline}\n")
    more = f", and {len(due) - len(shown)} more" if len(due) > len(shown) else ""
    output.print_text(
        f"{plural(len(shown), 'comment')} would be written{more}; nothing was: see --write\n"
    )
    return 0


def _write(opened: OpenedLake, arguments: Arguments) -> int:
    """Write the comments that are due; exit code 7 if one failed."""
    from collections import Counter
    from datetime import UTC, datetime

    from tachograph.annexes.act.comments import AdminComments, comment_jobs
    from tachograph.annexes.act.ledger import ActionLedger

    jobs = _jobs(opened, arguments)
    with ActionLedger(_folder(opened), clock=lambda: datetime.now(UTC)) as ledger:
        records = comment_jobs(
            ledger,
            jobs,
            lambda job_key: _report(opened, job_key),
            AdminComments(opened.configuration.act.slurm_before),
            url=opened.configuration.serve.url,
            dry_run=False,
            most=arguments.most,
        )
    if arguments.json:
        output.print_json(records)
    else:
        counts = Counter(record.state for record in records)
        for record in records:
            if record.state != "done":
                output.print_text(f"{record.target}: {record.state}: {record.result}\n")
        refused = f", {counts['refused']} refused" if counts["refused"] else ""
        output.print_text(
            f"{plural(counts['done'], 'comment')} written, {counts['failed']} failed{refused}\n"
        )
    return (
        ExportError.exit_code
        if any(record.state in ("failed", "refused") for record in records)
        else 0
    )


def _folder(opened: OpenedLake) -> Path:
    from tachograph.collect.status import state_folder

    return state_folder(opened.lake.location, opened.configuration.collect.state)
