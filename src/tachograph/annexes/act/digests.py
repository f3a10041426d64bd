"""Weekly digests by mail, if there is something to report, each once a complete week.

Every user gets one of their own jobs, managers and staff one of the jobs that each may see.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
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
from tachograph.annexes.act.group_digest import SICK_COLUMNS, GroupDigest, group_digest
from tachograph.annexes.act.ledger import ActionLedger, ActionRecord
from tachograph.annexes.act.mail import Mail, MailConnection, Mailer, is_address
from tachograph.annexes.act.unsubscribe import OPT_OUT_FILE, Unsubscribing, read_opt_out
from tachograph.api.capacity import read_capacity
from tachograph.api.managers import managers_of
from tachograph.api.viewer import Role, Viewer
from tachograph.catalog.codes import REPORTED
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.tables import JOB_GPUS
from tachograph.catalog.units import to_utc, zone
from tachograph.judge.usage import USAGE_COLUMNS
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import read_consistently, read_rows, read_verdicts, select_jobs
from tachograph.report.capacity import capacity_headline

KIND = "mail"
SENT_FROM = (0, 7)  # day of the week and hour, in the time zone of the site
STAFF = "staff"
_FINDING = ("job_key", "code", "title", "severity")
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


def group_digests(
    lake: Lake,
    configuration: Configuration,
    week: date,
    managers: Mapping[str, frozenset[str]],
) -> Iterator[GroupDigest]:
    """Yield the digest of all jobs for staff, then those of managers, by name.

    managers: {user: accounts that they coordinate}; they see what they see on served pages.
    """
    zone_name = configuration.site.time_zone

    def read() -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        jobs, of_week = jobs_of_weeks(lake, week, zone_name)
        gpus = read_rows(lake, JOB_GPUS, jobs.filter(of_week), SICK_COLUMNS)
        return jobs, read_verdicts(lake, jobs, REPORTED, _FINDING), gpus

    jobs, findings, gpus = read_consistently(lake, read)
    make = partial(group_digest, week=week, zone_name=zone_name)
    capacity = _capacity(lake, configuration, week)
    digests = [make(jobs, findings, gpus, audience="staff", name=STAFF, capacity=capacity)]
    for name, accounts in sorted(managers.items()):
        visible = Viewer(name, Role.MANAGER, accounts).visible()
        visible_jobs = jobs.filter(visible, pl.col("account").is_in(sorted(accounts)))
        findings_of_jobs = findings.join(visible_jobs, on="job_key", how="semi")
        # only staff see which GPUs are unhealthy
        digests.append(
            make(
                visible_jobs,
                findings_of_jobs,
                gpus.clear(),
                audience="managers",
                name=name,
                accounts=accounts,
            )
        )
    yield from (digest for digest in digests if digest is not None)


def _capacity(lake: Lake, configuration: Configuration, week: date) -> str:
    """Return what became of all installed GPU-hours of a week; "" where that is not known."""
    zone_name = configuration.site.time_zone
    days = (week, week + timedelta(days=7))
    begin, end = (datetime.combine(day, time(), zone(zone_name)).astimezone(UTC) for day in days)
    report = read_capacity(lake, configuration, JobFilter(since=begin, until=end))
    return "" if report is None else capacity_headline(report)


def send_group_digests(
    ledger: ActionLedger, lake: Lake, configuration: Configuration, *, now: datetime
) -> list[ActionRecord]:
    """Send the due digests of managers and staff, or record a dry run; return the ledger lines.

    Errors: those of `send_due`, and of reading who coordinates accounts.
    """
    act = configuration.act
    audiences = {"managers"} & set(act.digest)
    if act.digest_staff:
        audiences.add(STAFF)
    week = due_week(now, configuration) if audiences else None
    if week is None:
        return []
    for address in act.digest_staff:
        if not is_address(address):
            raise ConfigError(
                f"act.digest: {address!r} is not an address", do='write ["ops@example.org"]'
            )
    managers = managers_of(configuration.serve)() if "managers" in audiences else {}
    left_out = read_opt_out(ledger.folder / OPT_OUT_FILE)
    due = []
    for digest in group_digests(lake, configuration, week, managers):
        if digest.audience in audiences and digest.is_worth_sending and digest.name not in left_out:
            of_staff = digest.audience == "staff"
            for target in act.digest_staff if of_staff else (digest.name,):
                key = f"group-digest:{week_name(week)}:{digest.audience}:{target}"
                due.append(DueDigest(key, digest, target, digest.subject, of_staff))
    return send_due(ledger, configuration, due)
