"""Job summaries in Slurm's AdminComment, written after the jobs ended."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import polars as pl

from tachograph.annexes.act.ledger import ActionLedger, ActionRecord
from tachograph.api.job_report import read_job
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ExportError, InputError, RefusedError, TachographError
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.report.job import JobReport
from tachograph.report.job_comment import comment_json, comment_text
from tachograph.sources.slurm.commands import IN_SECONDS, SiteProgram
from tachograph.sources.slurm.recorded_use import (
    EMPTY,
    OWN,
    PREFIX,
    SMALL_LETTERS,
    read_comment,
)

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


KIND = "comment"
RECENT = timedelta(days=7)  # older jobs are commented when they are named
LIMIT_S = 30.0  # of a command of Slurm
MOST_FAILURES = 3  # one after the other: Slurm is down, and each takes LIMIT_S
MOST_COMMENTS = 200  # a round: others follow in the next one
_READ = (
    *("job_key", "seq", "job_id", "display_id", "cluster", "user", "submit", "start", "end"),
    "time_precision_s",
)
# Of sacctmgr, under "Modified jobs...".
_LISTED = re.compile(r"^\s*(\d+) submitted at ", re.MULTILINE)

ReportOf = Callable[[str], JobReport]  # job_key -> report
# After the end of a job: its last samples and accounting arrive meanwhile.
COMMENT_DELAY = timedelta(minutes=5)


@dataclass(slots=True)
class AdminComments:
    """AdminComment, read by `sacct`, written by `sacctmgr`.

    `before`: command prefix, such as `ssh login`.

    Every method raises RefusedError for a record with a value that is invalid in Slurm, or if Slurm
    has another run.
    """

    before: tuple[str, ...] = ()
    # This Slurm was seen to have no capital ones.
    small_letters: bool = field(default=False, init=False)

    def check(self) -> None:
        """Query the clusters of the accounting. Errors: InputError if it does not answer."""
        self._program("sacctmgr").output("-n", "-Q", "list", "cluster", "format=cluster")

    def read(self, row: JobSummaryRow) -> str:
        """Return the comment of a run, "" without one.

        Errors: InputError, also if the accounting lacks the run.

        Slurm reads and writes the comment of the last run that has the id: another one is refused.
        """
        runs = self._sacct(row, "--format=JobIDRaw,Submit,User").splitlines()
        if not runs:
            raise InputError(
                f"job {_name(row)} is not in the accounting", where="sacct", do="see `sacct -j`"
            )
        if len(runs) > 1 or not _is_run(runs[0], row):
            raise RefusedError(
                f"job {_name(row)} is another run in the accounting, or several",
                where="sacct",
                do="check `sacct --duplicates -j`",
            )
        return self._sacct(row, "--format=AdminComment").strip()

    def write(self, row: JobSummaryRow, summary: Mapping[str, Any]) -> str:
        """Write the summary into the comment of a run; return the result.

        What somebody else wrote stays. Errors: ExportError where it stays or cannot be written,
        InputError.
        """
        there = self.read(row)
        if there and not _may_replace(there):
            raise ExportError(
                "AdminComment already holds another text",
                where=f"job {_name(row)}",
                do="remove it first",
            )
        self.small_letters |= there.startswith(SMALL_LETTERS)
        for small_letters in (True,) if self.small_letters else (False, True):
            comment = comment_text(summary, small_letters=small_letters)
            if comment == there:
                return "as it was"
            self._set(row, comment)
            there = self.read(row)
            if there == comment:
                return f"{len(comment)} characters; no other job was changed"
            self.small_letters = there == comment.lower()
        raise ExportError(
            "AdminComment differs from what was written",
            where=f"job {_name(row)}",
            do="see `sacct -j`",
        )

    def _set(self, row: JobSummaryRow, comment: str) -> None:
        """Write a comment after sacctmgr listed exactly this run as its target."""
        would = self._modify(row, comment, (), answer=b"n\n" * 3)
        if would != [row["job_id"]]:
            raise RefusedError(
                f"sacctmgr would change {', '.join(would[:10]) or 'no job'}; nothing was written"
            )
        changed = self._modify(row, comment, ("-i",), answer=b"")
        if changed != [row["job_id"]]:
            raise ExportError(
                f"sacctmgr changed {', '.join(changed[:10]) or 'no job'}", where=f"job {_name(row)}"
            )

    def _modify(
        self, row: JobSummaryRow, comment: str, options: Sequence[str], *, answer: bytes
    ) -> list[str]:
        """Raw ids of the jobs that sacctmgr would change; without -i it lists them and prompts."""
        words = [*options, "modify", "job", "where", "jobid={job}"]
        values = {"job": _name(row), "comment": comment}
        if row["cluster"]:
            words, values = [*words, "cluster={cluster}"], {**values, "cluster": row["cluster"]}
        program = self._program("sacctmgr", answer=answer)
        printed = program.output(*words, "set", "AdminComment={comment}", **values)
        return _LISTED.findall(printed.decode("utf-8", "replace"))

    def _sacct(self, row: JobSummaryRow, columns: str) -> str:
        words, values = ["-X", "-n", "-P", columns, "-j", "{job}"], {"job": _name(row)}
        if row["cluster"]:
            words, values = [*words, "-M", "{cluster}"], {**values, "cluster": row["cluster"]}
        return self._program("sacct").output(*words, **values).decode("utf-8", "replace")

    def _program(self, name: str, *, answer: bytes = b"") -> SiteProgram:
        words = (*self.before, name)
        return SiteProgram(words, timeout_s=LIMIT_S, environment=IN_SECONDS, answer=answer)


def _name(row: JobSummaryRow) -> str:
    """Return the job id for Slurm's commands: an array's last raw id means the whole array."""
    return str(row["display_id"] or row["job_id"])


def _is_run(line: str, row: JobSummaryRow) -> bool:
    """Whether a line of sacct (raw id, submit time, user) is the run of a job_summaries row."""
    job_id, submit, user = line.split("|", 2)
    submitted: datetime | None = row["submit"]
    if job_id != row["job_id"] or user != row["user"] or not submit.isdigit() or submitted is None:
        return False
    return abs(int(submit) - submitted.timestamp()) <= max(2.0, row["time_precision_s"] or 0.0)


def _may_replace(comment: str) -> bool:
    """Return whether a comment is one of ours, perhaps lower-cased by Slurm, or has no data."""
    if comment in EMPTY:
        return True
    contents = read_comment(comment)
    return comment.startswith(PREFIX.lower()) if contents is None else OWN in contents


def ended_jobs(lake: Lake, *, now: datetime, delay: timedelta) -> list[JobSummaryRow]:
    """Return the last run of jobs that ended within RECENT, `delay` or more ago, oldest first."""
    runs = read_summaries(lake, _READ).filter(pl.col("start").is_not_null())
    last = runs.sort("start", "job_key").unique(
        ["cluster", "job_id"], keep="last", maintain_order=True
    )
    recent = last.filter(pl.col("end").is_between(now - RECENT, now - delay))
    return cast("list[JobSummaryRow]", recent.sort("end", "job_key").to_dicts())


def comment_ended(
    ledger: ActionLedger, lake: Lake, configuration: Configuration, *, now: datetime
) -> list[ActionRecord]:
    """Write the comments of jobs that ended recently, if enabled; return the ledger lines.

    Errors: those of `comment_jobs`.
    """
    options = configuration.act
    if not options.comment:
        return []
    return comment_jobs(
        ledger,
        ended_jobs(lake, now=now, delay=COMMENT_DELAY),
        lambda job_key: read_job(lake, job_key, now=now, configuration=configuration),
        AdminComments(options.slurm_before),
        url=configuration.serve.url,
        dry_run=options.dry_run,
        most=MOST_COMMENTS,
    )


def comment_jobs(
    ledger: ActionLedger,
    jobs: Sequence[JobSummaryRow],
    report_of: ReportOf,
    comments: AdminComments,
    *,
    url: str = "",
    dry_run: bool = True,
    most: int | None = None,
) -> list[ActionRecord]:
    """Write the due comments, at most `most`; return the ledger lines.

    After MOST_FAILURES in a row the others are left for later. Killed in between, it writes a
    comment again, which is the same. Errors: those of the ledger; InputError where the accounting
    cannot be reached: then no job is tried.
    """
    records: list[ActionRecord] = []
    for row in jobs:
        key = f"{KIND}:{row['job_key']}"
        if not ledger.is_due(key, dry_run=dry_run):
            continue
        if not records and not dry_run:
            comments.check()
        records.append(
            _comment_job(ledger, key, row, report_of, comments, url=url, dry_run=dry_run)
        )
        down = len(records) >= MOST_FAILURES and all(
            record.state == "failed" for record in records[-MOST_FAILURES:]
        )
        if down or (most is not None and len(records) >= most):
            break
    return records


def _comment_job(
    ledger: ActionLedger,
    key: str,
    row: JobSummaryRow,
    report_of: ReportOf,
    comments: AdminComments,
    *,
    url: str,
    dry_run: bool,
) -> ActionRecord:
    target = f"job {row['job_id']}"
    try:
        report = report_of(row["job_key"])
    except TachographError as problem:  # it was analyzed under another key meanwhile, say
        return ledger.note(key, KIND, "failed", target, result=str(problem))
    summary = comment_json(report, url=url)
    return ledger.once(
        key,
        KIND,
        partial(comments.write, row, summary),
        target=target,
        why=report.headline,
        dry_run=dry_run,
        repeatable=True,
    )
