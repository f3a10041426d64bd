"""Weekly digests by mail: one per user and complete week, if there is something to report."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import partial
from pathlib import Path

import polars as pl

from tachograph.annexes.act.digest import (
    DigestTemplates,
    UserDigest,
    digest_week,
    user_digest,
    week_name,
)
from tachograph.annexes.act.ledger import ActionLedger, ActionRecord
from tachograph.annexes.act.mail import Mail, Mailer
from tachograph.annexes.act.unsubscribe import PATH, Unsubscribing
from tachograph.catalog.codes import REPORTED
from tachograph.catalog.config import Configuration
from tachograph.catalog.durable import replace_file
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.units import to_utc, zone
from tachograph.judge.usage import USAGE_COLUMNS
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import read_consistently, read_verdicts, select_jobs

KIND = "mail"
OPT_OUT_FILE = "digest-opt-out"  # in the folder of state: users who get no digest, one a line
SENT_FROM = (0, 7)  # day of the week and hour, in the time zone of the site
WEEKS = 8  # before the reported one, with which it is compared


def due_week(now: datetime, configuration: Configuration) -> date | None:
    """Return the Monday of the week to send now; None before the configured day and hour."""
    local = now.astimezone(zone(configuration.site.time_zone))
    return digest_week(local) if (local.weekday(), local.hour) >= SENT_FROM else None


def user_digests(
    lake: Lake, configuration: Configuration, week: date, *, users: Collection[str] = ()
) -> Iterator[UserDigest]:
    """Yield digests of users (default: all) with jobs that ended in a week, by name."""
    zone_name = configuration.site.time_zone
    begin, end = (
        to_utc(datetime.combine(day, time()), zone_name)
        for day in (week - timedelta(weeks=WEEKS), week + timedelta(weeks=1))
    )
    monday = to_utc(datetime.combine(week, time()), zone_name)
    wanted = JobFilter(users=tuple(users), since=begin, until=end)
    columns = tuple(dict.fromkeys((*USAGE_COLUMNS, "seq", "end")))

    def read() -> tuple[pl.DataFrame, pl.DataFrame]:
        chosen = select_jobs(lake, wanted, columns).jobs
        jobs = chosen.filter(
            pl.col("end") >= begin, pl.col("end") < end, pl.col("user").is_not_null()
        )
        return jobs, read_verdicts(lake, jobs.filter(pl.col("end") >= monday), REPORTED)

    jobs, findings = read_consistently(lake, read)
    parts = jobs.partition_by("user", as_dict=True)
    for (user,), theirs in sorted(parts.items(), key=lambda part: str(part[0][0])):
        own = findings.join(theirs, on="job_key", how="semi")
        digest = user_digest(theirs, own, user=str(user), week=week, zone_name=zone_name)
        if digest is not None:
            yield digest


@dataclass(frozen=True, slots=True)
class DigestMails:
    """Sends digests as mails."""

    mailer: Mailer
    templates: DigestTemplates
    url: str = ""
    unsubscribing: Unsubscribing | None = None

    @classmethod
    def of(cls, configuration: Configuration) -> DigestMails:
        """Return the configured service. Errors: ConfigError."""
        templates = DigestTemplates.of()
        mailer, unsubscribing = Mailer.of(configuration.mail), Unsubscribing.of(configuration)
        return cls(mailer, templates, configuration.serve.url, unsubscribing)

    def mail(self, digest: UserDigest) -> Mail:
        """Return the mail. Errors: ExportError without an address; ConfigError for a template."""
        link = self.unsubscribing.link(digest.user) if self.unsubscribing else ""
        text = self.templates.text(digest, url=self.url, unsubscribe=link)
        html = self.templates.html(digest, url=self.url, unsubscribe=link)
        return Mail(self.mailer.address(digest.user), digest.subject, text, html, link)


def send_digests(
    ledger: ActionLedger, lake: Lake, configuration: Configuration, *, folder: Path, now: datetime
) -> list[ActionRecord]:
    """Send the due digests, or record a dry run; return the ledger lines.

    Killed in between, a mail whose result is unknown is not sent again. Errors: ConfigError;
    ExportError where the mail server cannot be reached, which is tried again in the next round.
    """
    week = due_week(now, configuration) if "users" in configuration.act.digest else None
    if week is None:
        return []
    dry_run, left_out = configuration.act.dry_run, read_opt_out(folder / OPT_OUT_FILE)
    due, made = [], []
    for digest in user_digests(lake, configuration, week):
        last = ledger.last(digest_key(digest))
        if digest.user in left_out or not digest.is_worth_sending:
            continue
        if (
            last is None
            or last.state == "begun"
            or ledger.is_due(digest_key(digest), dry_run=dry_run)
        ):
            due.append(digest)
    if not due:
        return []
    if dry_run:
        return [_once(ledger, digest, lambda: "", dry_run=True) for digest in due]
    mails = DigestMails.of(configuration)
    with mails.mailer.connected() as connection:
        for digest in due:
            made.append(
                _once(ledger, digest, partial(_send, mails, connection.send, digest), dry_run=False)
            )
            if connection.lost:
                break
    return made


def _send(mails: DigestMails, send: Callable[[Mail, str], str], digest: UserDigest) -> str:
    return send(mails.mail(digest), digest_key(digest))


def _once(
    ledger: ActionLedger, digest: UserDigest, act: Callable[[], str], *, dry_run: bool
) -> ActionRecord:
    why = digest.subject if digest.change is None else f"{digest.subject}: {digest.change.title}"
    return ledger.once(digest_key(digest), KIND, act, target=digest.user, why=why, dry_run=dry_run)


def digest_key(digest: UserDigest) -> str:
    """Return the key of the action: one a week and user."""
    return f"digest:{week_name(digest.week)}:{digest.user}"


# ---------------------------------------------------------------------------------------------- who gets no digest


def read_opt_out(file: Path) -> frozenset[str]:
    """Return the users in a file, one per line; none without a file.

    Errors: ConfigError, and nothing is sent.
    """
    try:
        return frozenset(
            line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()
        )
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else "it is not a text file"
        raise ConfigError(
            f"the list of users without digests cannot be read: {reason}", where=str(file)
        ) from None


def change_opt_out(file: Path, user: str, *, out: bool) -> None:
    """Add or remove a user in the file, under a lock. Errors: ConfigError."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(
            file.with_name(f".{file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
    except OSError as problem:
        raise ConfigError(
            f"the list of users without digests cannot be written: {problem.strerror}",
            where=str(file),
        ) from None
    with os.fdopen(descriptor):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        users = read_opt_out(file)
        if (user in users) != out:
            write_opt_out(file, users | {user} if out else users - {user})


def write_opt_out(file: Path, users: Collection[str]) -> None:
    """Write the users; readers see the old file or the new one. Errors: ConfigError."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, "".join(f"{user}\n" for user in sorted(users)).encode(), mode=0o644)
    except OSError as problem:
        raise ConfigError(
            f"the list of users without digests cannot be written: {problem.strerror}",
            where=str(file),
        ) from None


@dataclass(frozen=True, slots=True)
class OptOutLinks:
    """Opt-out links: their tokens, and the list of opted-out users. path: route of the pages."""

    signed: Unsubscribing
    file: Path
    path: str = PATH

    def user(self, token: str) -> str | None:
        """Return the user of a token; None for an invalid token."""
        return self.signed.user(token)

    def opt_out(self, user: str) -> None:
        """Record that a user opts out. Errors: those of `change_opt_out`."""
        change_opt_out(self.file, user, out=True)


def opt_out_links(configuration: Configuration, folder: Path) -> OptOutLinks | None:
    """Return the links; None without a key. `folder`: state. Errors: ConfigError for a bad key."""
    signed = Unsubscribing.of(configuration)
    return None if signed is None else OptOutLinks(signed, folder / OPT_OUT_FILE)
