"""Options by name: which jobs, and how the metrics of a study are defined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias, TypedDict, get_type_hints

from tachograph.catalog.columns import local_time
from tachograph.catalog.errors import UsageError
from tachograph.catalog.suggestions import did_you_mean
from tachograph.catalog.units import parse_time
from tachograph.lake.filters import FILTER_KINDS, JobFilter, parse_condition

Names: TypeAlias = str | Sequence[str]
Moment: TypeAlias = str | datetime


class JobChoice(TypedDict, total=False):
    """Job filter with the options of the commands; empty: all jobs."""

    user: Names
    account: Names
    partition: Names
    state: Names
    attribution: Names
    finding: Names
    verdict: str
    since: Moment
    until: Moment
    where: Names


def several(names: Names | None) -> tuple[str, ...]:
    """Return names as a tuple, given one, several, or none.

    >>> several("short"), several(["short", "idle"]), several(None)
    (('short',), ('short', 'idle'), ())
    """
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def check_names(options: Iterable[str], declared: type[JobChoice]) -> None:
    """Check the names of options: a misspelt one would choose nothing without notice.

    >>> check_names(["wher"], JobChoice)
    Traceback (most recent call last):
    ...
    TypeError: unexpected keyword argument 'wher'; did you mean where?

    Errors: TypeError naming the closest one, or all.
    """
    names = tuple(get_type_hints(declared))
    for name in options:
        if name not in names:
            suggestion = did_you_mean(name, names, otherwise=f"use {', '.join(names)}")
            raise TypeError(f"unexpected keyword argument {name!r}; {suggestion}")


def job_filter(options: Mapping[str, Any], *, now: datetime, zone_name: str) -> JobFilter:
    """Return the filter from the names of a `Choice`, ignoring other names.

    Errors: UsageError for an invalid condition or time, and for a time that ends before it begins.
    """

    def instant(name: str) -> datetime | None:
        written = options.get(name)
        return (
            written
            if written is None or isinstance(written, datetime)
            else parse_time(str(written), now=now, zone_name=zone_name)
        )

    names: dict[str, Any] = {
        field: several(options.get(name)) for name, field in FILTER_KINDS.items()
    }
    where = tuple(map(parse_condition, several(options.get("where"))))
    since, until = instant("since"), instant("until")
    if since is not None and until is not None and since.timestamp() > until.timestamp():
        begin, end = (local_time(moment, zone_name) for moment in (since, until))
        raise UsageError(f"since ({begin}) is later than until ({end})", do="swap them")
    return JobFilter(
        **names, verdict=options.get("verdict") or "yes", since=since, until=until, where=where
    )


def described(selection: JobFilter, zone_name: str = "UTC") -> tuple[tuple[str, str], ...]:
    """Return the selection of jobs as (option, value) pairs, times in the zone.

    >>> described(JobFilter(users=("ann", "bob"), where=(parse_condition("gpus>4"),)))
    (('user', 'ann, bob'), ('where', 'gpus>4'))
    """
    criteria = [
        (name, ", ".join(getattr(selection, field))) for name, field in FILTER_KINDS.items()
    ]
    criteria += [("verdict", selection.verdict)] if selection.verdict != "yes" else []
    criteria += [
        (name, local_time(moment, zone_name))
        for name, moment in (("since", selection.since), ("until", selection.until))
        if moment
    ]
    criteria.append(("where", ", ".join(map(str, selection.where))))
    return tuple((name, value) for name, value in criteria if value)
