"""Summaries of jobs in the field AdminComment of Slurm's accounting, written once the jobs have ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import polars as pl

from tachograph.catalog.errors import ExportError, InputError, TachographError
from tachograph.lake.delta import Lake
from tachograph.lake.query import read_summaries
from tachograph.report.job import JobReport
from tachograph.report.job_comment import OWN, PREFIX, SMALL_LETTERS, comment_json, comment_text, read_comment
from tachograph.service.act.ledger import ActionLedger, ActionRecord
from tachograph.sources.slurm.commands import SiteProgram

KIND = "comment"
RECENT = timedelta(days=7)  # older jobs are commented when they are named
LIMIT_S = 30.0  # of a command of Slurm
MOST_FAILURES = 3  # one after the other: Slurm is down, and each takes LIMIT_S
_READ = ("job_key", "seq", "job_id", "cluster", "start", "end")

ReportOf = Callable[[str], JobReport]  # job_key -> report


@dataclass(slots=True)
class AdminComments:
    """AdminComment as `sacct` reads and `sacctmgr` writes it. `before`: words before both, such as `ssh login`."""

    before: tuple[str, ...] = ()
    small_letters: bool = field(default=False, init=False)  # this Slurm was seen to have no capital ones

    def check(self) -> None:
        """Request the clusters of the accounting. Errors: InputError where it does not answer."""
        self._program("sacctmgr").output("-n", "-Q", "list", "cluster", "format=cluster")

    def read(self, row: Mapping[str, Any]) -> str:
        """Return the comment of a job's last run, "" without one. Errors: InputError, also for an unknown job."""
        options = ["-X", "-n", "-P", "-o", "JobIDRaw,AdminComment", "-j", row["job_id"]]
        options += ["-M", row["cluster"]] if row["cluster"] else []
        printed = self._program("sacct").output(*options).decode("utf-8", "replace")
        for line in printed.splitlines():
            job, _, comment = line.partition("|")
            if job == row["job_id"]:
                return comment.strip()
        raise InputError(f"job {row['job_id']} is not in the accounting", where="sacct", do="see `sacct -j`")

    def write(self, row: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
        """Put the summary into the comment of a job; return what became of it.

        What somebody else wrote stays. Errors: ExportError where it stays or cannot be written, InputError.
        """
        there = self.read(row)
        if there and not _may_replace(there):
            raise ExportError("AdminComment holds something else", where=f"job {row['job_id']}", do="remove it first")
        self.small_letters |= there.startswith(SMALL_LETTERS)
        for small_letters in (True,) if self.small_letters else (False, True):
            comment = comment_text(summary, small_letters=small_letters)
            if comment == there:
                return "as it was"
            self._set(row, comment)
            there = self.read(row)
            if there == comment:
                return f"{len(comment)} characters"
            self.small_letters = there == comment.lower()
        raise ExportError("AdminComment is not what was written", where=f"job {row['job_id']}", do="see `sacct -j`")

    def _set(self, row: Mapping[str, Any], comment: str) -> None:
        of_cluster = [f"cluster={row['cluster']}"] if row["cluster"] else []
        words = ["-i", "-Q", "modify", "job", "where", f"jobid={row['job_id']}", *of_cluster]
        self._program("sacctmgr").output(*words, "set", f"AdminComment={comment}")

    def _program(self, name: str) -> SiteProgram:
        return SiteProgram((*self.before, name), timeout_s=LIMIT_S)


def _may_replace(comment: str) -> bool:
    """Whether a comment is one of ours, or one whose capital letters Slurm has destroyed."""
    known = read_comment(comment)
    return comment.startswith(PREFIX.lower()) if known is None else OWN in known


def ended_jobs(lake: Lake, *, now: datetime, delay: timedelta) -> list[dict[str, Any]]:
    """Return the last run of each job that ended within RECENT and at least `delay` ago, oldest first."""
    runs = read_summaries(lake, _READ).filter(pl.col("start").is_not_null())
    last = runs.sort("start", "job_key").unique(["cluster", "job_id"], keep="last", maintain_order=True)
    return last.filter(pl.col("end").is_between(now - RECENT, now - delay)).sort("end", "job_key").to_dicts()


def comment_jobs(
    ledger: ActionLedger,
    jobs: Sequence[Mapping[str, Any]],
    report_of: ReportOf,
    comments: AdminComments,
    *,
    url: str = "",
    dry_run: bool = True,
    most: int | None = None,
) -> list[ActionRecord]:
    """Write the comments that are due, `most` of them at a time; return what was noted.

    After MOST_FAILURES in a row the others are left for later. Killed in between, it writes a comment again, which is
    the same. Errors: those of the ledger; InputError where the accounting cannot be reached: then no job is tried.
    """
    made: list[ActionRecord] = []
    for row in jobs:
        key = f"{KIND}:{row['job_key']}"
        last = ledger.last(key)
        if last is not None and last.state != "begun" and not ledger.is_due(key, dry_run=dry_run):
            continue
        if not made and not dry_run:
            comments.check()
        made.append(_comment_job(ledger, key, row, report_of, comments, url=url, dry_run=dry_run))
        down = len(made) >= MOST_FAILURES and all(record.state == "failed" for record in made[-MOST_FAILURES:])
        if down or (most is not None and len(made) >= most):
            break
    return made


def _comment_job(
    ledger: ActionLedger,
    key: str,
    row: Mapping[str, Any],
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
