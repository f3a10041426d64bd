"""Weekly digests by mail: one per user and complete week, if there is something to report."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import partial

import polars as pl

from tachograph.annexes.act.digest import (
    Digest,
    DigestTemplates,
    UserDigest,
    digest_week,
    user_digest,
    week_name,
)
from tachograph.annexes.act.ledger import ActionLedger, ActionRecord
from tachograph.annexes.act.mail import Mail, MailConnection, Mailer
from tachograph.annexes.act.unsubscribe import OPT_OUT_FILE, Unsubscribing, read_opt_out
from tachograph.catalog.codes import REPORTED
from tachograph.catalog.config import Configuration
from tachograph.catalog.units import to_utc, zone
from tachograph.judge.usage import USAGE_COLUMNS
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import read_consistently, read_verdicts, select_jobs

KIND = "mail"
SENT_FROM = (0, 7)  # day of the week and hour, in the time zone of the site
WEEKS = 8  # before the reported one, with which it is compared


def due_week(now: datetime, configuration: Configuration) -> date | None:
    """Return the Monday of the week to send now; None before the configured day and hour."""
    local = now.astimezone(zone(configuration.site.time_zone))
    return digest_week(local) if (local.weekday(), local.hour) >= SENT_FROM else None


def jobs_of_weeks(
    lake: Lake, week: date, zone_name: str, users: Collection[str] = ()
) -> tuple[pl.DataFrame, pl.Expr]:
    """Return the jobs (USAGE_COLUMNS) that ended in a week or the WEEKS before, and which in it."""
    begin, monday, end = (
        to_utc(datetime.combine(day, time()), zone_name)
        for day in (week - timedelta(weeks=WEEKS), week, week + timedelta(weeks=1))
    )
    of_weeks = JobFilter(users=tuple(users), since=begin, until=end)
    columns = tuple(dict.fromkeys((*USAGE_COLUMNS, "seq", "end")))
    jobs = select_jobs(lake, of_weeks, columns).jobs
    ended = jobs.filter(pl.col("end").is_between(begin, end, closed="left"))
    return ended, pl.col("end") >= monday


def user_digests(
    lake: Lake, configuration: Configuration, week: date, *, users: Collection[str] = ()
) -> Iterator[UserDigest]:
    """Yield digests of users (default: all) with jobs that ended in a week, by name."""
    zone_name = configuration.site.time_zone

    def read() -> tuple[pl.DataFrame, pl.DataFrame]:
        ended, of_week = jobs_of_weeks(lake, week, zone_name, users)
        jobs = ended.filter(pl.col("user").is_not_null())
        return jobs, read_verdicts(lake, jobs.filter(of_week), REPORTED)

    jobs, findings = read_consistently(lake, read)
    parts = jobs.partition_by("user", as_dict=True)
    for (user,), theirs in sorted(parts.items(), key=lambda part: str(part[0][0])):
        findings_of_user = findings.join(theirs, on="job_key", how="semi")
        digest = user_digest(
            theirs, findings_of_user, user=str(user), week=week, zone_name=zone_name
        )
        if digest is not None:
            yield digest


@dataclass(frozen=True, slots=True)
class DueDigest:
    """A digest to be sent. key: of the action. target: a user, or an address `of_staff`."""

    key: str
    digest: Digest
    target: str
    why: str
    of_staff: bool = False


def send_digests(
    ledger: ActionLedger, lake: Lake, configuration: Configuration, *, now: datetime
) -> list[ActionRecord]:
    """Send the due digests of users, or record a dry run; return the ledger lines.

    Errors: those of `send_due`.
    """
    week = due_week(now, configuration) if "users" in configuration.act.digest else None
    if week is None:
        return []
    left_out = read_opt_out(ledger.folder / OPT_OUT_FILE)
    due = []
    for digest in user_digests(lake, configuration, week):
        if digest.is_worth_sending and digest.user not in left_out:
            change = "" if digest.change is None else f": {digest.change.title}"
            key = f"digest:{week_name(week)}:{digest.user}"
            due.append(DueDigest(key, digest, digest.user, f"{digest.subject}{change}"))
    return send_due(ledger, configuration, due)


def send_due(
    ledger: ActionLedger, configuration: Configuration, digests: Iterable[DueDigest]
) -> list[ActionRecord]:
    """Send the digests that are due, each once, or record a dry run; return the ledger lines.

    Killed in between, a mail whose result is unknown is not sent again. Errors: ConfigError;
    ExportError where the mail server cannot be reached, which is tried again in the next round.
    """
    dry_run = configuration.act.dry_run
    due = [due_digest for due_digest in digests if ledger.is_due(due_digest.key, dry_run=dry_run)]
    if not due:
        return []
    if dry_run:
        return [
            ledger.once(
                due_digest.key,
                KIND,
                str,
                target=due_digest.target,
                why=due_digest.why,
                dry_run=True,
            )
            for due_digest in due
        ]
    mails, records = DigestMails.of(configuration, ledger), []
    with mails.mailer.connected() as connection:
        for due_digest in due:
            send = partial(mails.send, connection, due_digest)
            records.append(
                ledger.once(
                    due_digest.key, KIND, send, target=due_digest.target, why=due_digest.why
                )
            )
            if connection.lost:
                break
    return records


@dataclass(frozen=True, slots=True)
class DigestMails:
    """Makes mails of digests."""

    mailer: Mailer
    templates: DigestTemplates
    url: str
    unsubscribing: Unsubscribing | None

    @classmethod
    def of(cls, configuration: Configuration, ledger: ActionLedger) -> DigestMails:
        """Return the configured service. Errors: ConfigError."""
        unsubscribing = Unsubscribing.of(configuration, ledger.folder)
        mailer, templates = Mailer.of(configuration.mail), DigestTemplates.of()
        return cls(mailer, templates, configuration.serve.url, unsubscribing)

    def send(self, connection: MailConnection, due: DueDigest) -> str:
        """Send a digest to staff at an address, to a user at theirs with a link to opt out.

        Errors: ExportError without an address, or if the mail is refused.
        """
        link, address = "", due.target
        if not due.of_staff:
            address = self.mailer.address(due.target)
            link = self.unsubscribing.link(due.target) if self.unsubscribing else ""
        text = self.templates.text(due.digest, url=self.url, unsubscribe=link)
        html = self.templates.html(due.digest, url=self.url, unsubscribe=link)
        return connection.send(Mail(address, due.digest.subject, text, html, link), due.key)
