"""Weekly digests to account managers and staff: of the jobs that each may see, once a week."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from functools import partial

import polars as pl

from tachograph.annexes.act.digest import week_name
from tachograph.annexes.act.digests import DueDigest, due_week, jobs_of_weeks, send_due
from tachograph.annexes.act.group_digest import SICK_COLUMNS, GroupDigest, group_digest
from tachograph.annexes.act.ledger import ActionLedger, ActionRecord
from tachograph.annexes.act.mail import is_address
from tachograph.annexes.act.unsubscribe import OPT_OUT_FILE, read_opt_out
from tachograph.api.capacity import read_capacity
from tachograph.api.managers import managers_of
from tachograph.api.viewer import Role, Viewer
from tachograph.catalog.codes import REPORTED
from tachograph.catalog.config import Configuration
from tachograph.catalog.errors import ConfigError
from tachograph.catalog.tables import JOB_GPUS
from tachograph.catalog.units import zone
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import read_consistently, read_rows, read_verdicts
from tachograph.report.capacity import capacity_headline

STAFF = "staff"
_FINDING = ("job_key", "code", "title", "severity")


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
