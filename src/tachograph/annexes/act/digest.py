"""A user's weekly digest as text, HTML, JSON: successes, one thing to change, hours recovered."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import Any, ClassVar, Protocol

import polars as pl
from jinja2 import Environment

from tachograph.catalog.columns import LOST_COLUMN
from tachograph.catalog.units import gpu_hours_text, plural, printable, text
from tachograph.judge.ledger import in_ledger
from tachograph.judge.usage import CODE_ORDER, weekly_use
from tachograph.lake.filters import lost_hours
from tachograph.report.pages import environment
from tachograph.report.tables import cut

WIDTH = 72  # of the text
LEAST_GPU_HOURS = 1.0  # lost or recovered in the week: less is not worth a mail
_GOOD_SHARE = 0.1  # of the hours lost, at most
_CUT_OFF = ("TIMEOUT", "OUT_OF_MEMORY", "FAILED", "NODE_FAIL")  # in the order of the sentence
_MOST_NAME = 60  # characters


@dataclass(frozen=True, slots=True)
class ProposedChange:
    """The problem that cost most in the week.

    jobs: with this problem; gpu_hours: their total loss, to any cause; job, name, sentence, advice:
    of the job that lost most.
    """

    code: str
    title: str
    jobs: int
    gpu_hours: float
    job: str
    name: str | None
    sentence: str
    advice: str


@dataclass(frozen=True, slots=True)
class UserDigest:
    """A user's week.

    week: its Monday. jobs, gpu_hours, lost: of the jobs that ended in it and whose hours are known;
    unknown: number of others. clean: jobs without a reported problem that lost little and were not
    cut off; cut_off: jobs by the state in which they ended before they were done. recovered:
    GPU-hours against the share lost in the weeks before, None in the first week; recovered_since:
    of all weeks from `since` on.
    """

    template: ClassVar[str] = "digest"
    user: str
    week: date
    jobs: int
    unknown: int
    gpu_hours: float
    lost: float
    clean: int
    cut_off: Mapping[str, int]
    change: ProposedChange | None
    recovered: float | None
    recovered_since: float | None
    since: date

    @property
    def is_worth_sending(self) -> bool:
        """Whether there is something to change, or something was recovered."""
        return self.change is not None or (self.recovered or 0.0) >= LEAST_GPU_HOURS

    @property
    def good(self) -> tuple[str, ...]:
        """Sentences on what was good."""
        sentences = []
        if self.clean:
            sentences.append(f"{self.clean:,} of {plural(self.jobs, 'job')} had no problem.")
        lost_little = self.lost <= _GOOD_SHARE * self.gpu_hours
        # Hours of jobs that were cut off are in use for the ledger, but may have been for nothing.
        if self.gpu_hours > 0 and lost_little and not self.cut_off:
            share = text(1 - self.lost / self.gpu_hours, "fraction")
            sentences.append(f"{share} of {gpu_hours_text(self.gpu_hours)} were not lost.")
        if self.recovered is not None and self.recovered >= LEAST_GPU_HOURS:
            sentences.append(
                f"{gpu_hours_text(self.recovered)} recovered, compared with your weeks before."
            )
        return tuple(sentences)

    @property
    def ends(self) -> str:
        """Sentence on jobs that were cut off; "" without any."""
        if not self.cut_off:
            return ""
        states = ", ".join(f"{state} {jobs:,}" for state, jobs in self.cut_off.items())
        return (
            f"{plural(sum(self.cut_off.values()), 'job')} ended before the work was done: {states}."
        )

    @property
    def subject(self) -> str:
        """The subject of the mail."""
        return (
            f"GPU jobs, {week_name(self.week)}: {plural(self.jobs, 'job')}, "
            f"{gpu_hours_text(self.gpu_hours)}"
        )


def week_name(monday: date) -> str:
    """Return the name of a week.

    >>> week_name(date(2026, 11, 16))
    '2026-W47'
    """
    year, week, _ = monday.isocalendar()
    return f"{year}-W{week:02}"


def user_digest(
    jobs: pl.DataFrame, findings: pl.DataFrame, *, user: str, week: date, zone_name: str = "UTC"
) -> UserDigest | None:
    """Return the digest of `jobs` (USAGE_COLUMNS) ended up to `week`; None if none ended in it.

    findings: reported ones of the jobs of the week.
    """
    weeks = weekly_use(jobs, zone_name)
    this = weeks.filter(pl.col("week") == week)
    if this.is_empty():
        return None
    row = this.row(0, named=True)
    ended = (
        pl.col("end")
        .dt.convert_time_zone(zone_name)
        .dt.date()
        .is_between(week, week + timedelta(days=6))
    )
    of_week = jobs.filter(ended).with_columns(lost_hours().alias(LOST_COLUMN))
    ledger_jobs = of_week.filter(in_ledger())
    problems = findings.filter(pl.col("severity") == "problem").join(
        ledger_jobs, on="job_key", how="semi"
    )
    recovered = weeks.get_column("recovered").drop_nulls()
    lost_little = pl.col(LOST_COLUMN).fill_null(0.0) <= _GOOD_SHARE * pl.col("gpu_hours")
    is_cut_off = pl.col("state").is_in(_CUT_OFF).fill_null(value=False)
    clean = ledger_jobs.filter(lost_little, ~is_cut_off).join(problems, on="job_key", how="anti")
    states = Counter(ledger_jobs.filter(is_cut_off).get_column("state"))
    return UserDigest(
        user=user,
        week=week,
        jobs=ledger_jobs.height,
        unknown=of_week.height - ledger_jobs.height,
        gpu_hours=row["gpu_hours"],
        lost=row["lost"],
        clean=clean.height,
        cut_off={state: states[state] for state in _CUT_OFF if states[state]},
        change=_change(ledger_jobs, findings),
        recovered=row["recovered"],
        recovered_since=None if recovered.is_empty() else float(recovered.sum()),
        since=weeks.row(0, named=True)["week"],
    )


def _change(jobs: pl.DataFrame, findings: pl.DataFrame) -> ProposedChange | None:
    """Problem with advice whose jobs lost most; None if they lost too little."""
    shown = jobs.select("job_key", "display_id", "name", LOST_COLUMN).filter(
        pl.col(LOST_COLUMN) > 0
    )
    problem = pl.col("severity") == "problem"  # hints cost nothing by themselves
    advised = findings.filter(problem, pl.col("advice").is_not_null()).unique(
        ["job_key", "code"], keep="first"
    )
    problems = advised.select("job_key", "job_id", "code", "title", "sentence", "advice").join(
        shown, on="job_key"
    )
    if problems.is_empty():
        return None
    by_code = problems.group_by("code").agg(jobs=pl.len(), hours=pl.col(LOST_COLUMN).sum())
    code, count, hours = by_code.sort(
        "hours", CODE_ORDER, "code", descending=[True, False, False]
    ).row(0)
    if hours < LEAST_GPU_HOURS:
        return None
    worst = problems.filter(pl.col("code") == code).sort(
        LOST_COLUMN, "job_key", descending=[True, False]
    )
    row = worst.row(0, named=True)
    job = row["display_id"] or row["job_id"]
    return ProposedChange(
        code, row["title"], count, hours, job, row["name"], row["sentence"], row["advice"]
    )


# ------------------------------------------------------------------------------------------------------- renderers


def digest_json(digest: UserDigest) -> dict[str, Any]:
    """Return the digest as JSON."""
    return {
        **asdict(digest),
        "week": week_name(digest.week),
        "good": digest.good,
        "subject": digest.subject,
    }


class Digest(Protocol):
    """Input of templates. template: file name before `.txt.j2` and `.html.j2`."""

    template: ClassVar[str]

    @property
    def week(self) -> date:
        """Monday of the week."""
        ...

    @property
    def subject(self) -> str:
        """The subject of the mail."""
        ...


@dataclass(frozen=True, slots=True)
class DigestTemplates:
    """The templates `digest.txt.j2`, `digest.html.j2`, and those of groups."""

    plain: Environment
    page: Environment

    @classmethod
    def of(cls) -> DigestTemplates:
        """Return them."""
        page = environment(__package__)
        page.filters.update(short=_short)
        plain = page.overlay(autoescape=False, finalize=_shown)
        plain.filters.update(page.filters, fill=_filled)
        return cls(plain, page)

    def text(self, digest: Digest, *, url: str = "", unsubscribe: str = "") -> str:
        """Return the digest as text of WIDTH columns."""
        return (
            _rendered(self.plain, f"{digest.template}.txt.j2", digest, url, unsubscribe).rstrip(
                "\n"
            )
            + "\n"
        )

    def html(self, digest: Digest, *, url: str = "", unsubscribe: str = "") -> str:
        """Return the digest as an HTML mail, without anything that is loaded."""
        return _rendered(self.page, f"{digest.template}.html.j2", digest, url, unsubscribe)


def _rendered(jinja: Environment, name: str, digest: Digest, url: str, unsubscribe: str) -> str:
    values: Mapping[str, object] = {
        "digest": digest,
        "week_name": week_name(digest.week),
        "last_day": digest.week + timedelta(days=6),
        "url": url if "://" in url else "",
        "unsubscribe": unsubscribe,
        "plural": plural,
    }
    return jinja.get_template(name).render(values)


class FilledParagraph(str):
    """Lines that `fill` made of printable text; only the program breaks them."""

    __slots__ = ()


def _shown(value: object) -> object:
    """Printable text: control and direction characters and line ends in names are escaped."""
    return printable(value) if type(value) is str else value


def _short(name: str | None) -> str:
    """A job's name on one line."""
    return cut(printable(name or ""), _MOST_NAME)


def _filled(paragraph: str, indent: str = "") -> FilledParagraph:
    """A paragraph in lines of WIDTH columns."""
    shown = printable(paragraph)
    filled = textwrap.fill(
        shown, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    return FilledParagraph(filled)


def digest_week(now: datetime) -> date:
    """Return the Monday of the last week that is complete at a local time.

    >>> digest_week(datetime(2026, 11, 23, 0, 0)).isoformat()
    '2026-11-16'
    """
    return now.date() - timedelta(days=now.weekday() + 7)
