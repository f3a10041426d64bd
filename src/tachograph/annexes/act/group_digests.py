"""Weekly digests to account managers and staff: of the jobs that each may see, once a week."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from functools import partial
from pathlib import Path

import polars as pl

from tachograph.annexes.act.digest import week_name
from tachograph.annexes.act.digests import (
    KIND,
    OPT_OUT_FILE,
    WEEKS,
    DigestMails,
    due_week,
    read_opt_out,
)
from tachograph.annexes.act.group_digest import SICK_COLUMNS, GroupDigest, group_digest
from tachograph.annexes.act.ledger import ActionLedger, ActionRecord
from tachograph.annexes.act.mail import Mail, MailConnection, is_address
from tachograph.catalog.codes import REPORTED
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.tables import JOB_GPUS
from tachograph.catalog.units import to_utc
from tachograph.judge.usage import USAGE_COLUMNS
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import read_consistently, read_rows, read_verdicts, select_jobs

STAFF = "staff"
Managers = Callable[[], Mapping[str, frozenset[str]]]  # {user: accounts that they coordinate}
# A manager and their accounts -> the jobs that they may see.
VisibleTo = Callable[[str, frozenset[str]], pl.Expr]
_FINDING = ("job_key", "code", "title", "severity")


def group_digests(
    lake: Lake,
    configuration: Configuration,
    week: date,
    managers: Mapping[str, frozenset[str]],
    visible: VisibleTo,
) -> Iterator[GroupDigest]:
    """Yield the digest of all jobs for staff, then those of managers, by name."""
    zone_name = configuration.site.time_zone
    begin, monday, end = (
        to_utc(datetime.combine(day, time()), zone_name)
        for day in (week - timedelta(weeks=WEEKS), week, week + timedelta(weeks=1))
    )
    columns = tuple(dict.fromkeys((*USAGE_COLUMNS, "seq", "end")))

    def read() -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
        chosen = select_jobs(lake, JobFilter(since=begin, until=end), columns).jobs
        jobs = chosen.filter(pl.col("end") >= begin, pl.col("end") < end)
        of_week = jobs.filter(pl.col("end") >= monday)
        gpus = read_rows(lake, JOB_GPUS, of_week, SICK_COLUMNS)
        return jobs, read_verdicts(lake, jobs, REPORTED, _FINDING), gpus

    jobs, findings, gpus = read_consistently(lake, read)
    make = partial(group_digest, week=week, zone_name=zone_name)
    digests = [make(jobs, findings, gpus, audience="staff", name=STAFF)]
    for name, accounts in sorted(managers.items()):
        seen = jobs.filter(visible(name, accounts), pl.col("account").is_in(sorted(accounts)))
        own = findings.join(seen, on="job_key", how="semi")
        # only staff see which GPUs are unhealthy
        digests.append(
            make(seen, own, gpus.clear(), audience="managers", name=name, accounts=accounts)
        )
    yield from (digest for digest in digests if digest is not None)


def send_group_digests(
    ledger: ActionLedger,
    lake: Lake,
    configuration: Configuration,
    *,
    folder: Path,
    now: datetime,
    managers: Managers,
    visible: VisibleTo,
) -> list[ActionRecord]:
    """Send the due digests, or record a dry run; return the ledger lines.

    Errors: as send_digests; those of reading who coordinates accounts.
    """
    act = configuration.act
    audiences = {"managers", "staff"} & set(act.digest)
    week = due_week(now, configuration) if audiences else None
    if week is None:
        return []
    for address in act.digest_staff:
        if not is_address(address):
            raise ConfigError(
                f"act.digest_staff: {address!r} is not an address", do='write ["ops@example.org"]'
            )
    if "staff" in audiences and not act.digest_staff:
        raise ConfigError("act.digest_staff is empty", do='write ["ops@example.org"]')
    known = managers() if "managers" in audiences else {}
    left_out = read_opt_out(folder / OPT_OUT_FILE)
    due = []
    for digest in group_digests(lake, configuration, week, known, visible):
        if (
            digest.audience not in audiences
            or not digest.is_worth_sending
            or digest.name in left_out
        ):
            continue
        for target in act.digest_staff if digest.audience == "staff" else (digest.name,):
            key = f"group-digest:{week_name(week)}:{digest.audience}:{target}"
            last = ledger.last(key)
            if last is None or last.state == "begun" or ledger.is_due(key, dry_run=act.dry_run):
                due.append((key, target, digest))
    if not due:
        return []
    once = partial(ledger.once, kind=KIND, dry_run=act.dry_run)
    if act.dry_run:
        return [
            once(key, act=str, target=target, why=digest.subject) for key, target, digest in due
        ]
    mails, made = DigestMails.of(configuration), []
    with mails.mailer.connected() as connection:
        for key, target, digest in due:
            send = partial(_send, mails, connection, digest, target, key)
            made.append(once(key, act=send, target=target, why=digest.subject))
            if connection.lost:
                break
    return made


def _send(
    mails: DigestMails, connection: MailConnection, digest: GroupDigest, target: str, key: str
) -> str:
    """Send it: to staff at an address, to a manager at theirs, with a link to opt out."""
    to_staff = digest.audience == "staff"
    link = "" if to_staff or mails.unsubscribing is None else mails.unsubscribing.link(digest.name)
    text = mails.templates.text(digest, url=mails.url, unsubscribe=link)
    html = mails.templates.html(digest, url=mails.url, unsubscribe=link)
    address = target if to_staff else mails.mailer.address(target)
    return connection.send(Mail(address, digest.subject, text, html, link), key)
