"""Parameters of pages and endpoints: typed by a struct each, from path and query, nothing else is accepted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Annotated, Any, TypeVar, cast, get_origin

import msgspec

from tachograph.api.choices import JobChoice, job_filter
from tachograph.catalog.config import meant
from tachograph.catalog.errors import UsageError
from tachograph.lake.filters import JobFilter

LONGEST = 500  # characters of a value
MOST_JOBS = 1000  # of one answer
Word = Annotated[str, msgspec.Meta(max_length=LONGEST)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=MOST_JOBS)]


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of a page without any."""

    def moments(self, *, now: datetime, zone_name: str) -> str:
        """Return what they mean at `now`, as text, where that is another thing at another time; "" otherwise."""
        return ""


class JobChoiceParameters(Parameters, frozen=True, kw_only=True):
    """Which jobs, as the options of the commands have it; all that are visible where nothing is given."""

    user: tuple[Word, ...] = ()
    account: tuple[Word, ...] = ()
    partition: tuple[Word, ...] = ()
    state: tuple[Word, ...] = ()
    attribution: tuple[Word, ...] = ()
    finding: tuple[Word, ...] = ()
    verdict: Word = "yes"
    since: Word | None = None
    until: Word | None = None
    where: tuple[Word, ...] = ()

    def job_filter(self, *, now: datetime, zone_name: str) -> JobFilter:
        """Return the filter. Errors: UsageError for a condition or a time that is none."""
        return job_filter(self.chosen(), now=now, zone_name=zone_name)

    def chosen(self) -> JobChoice:
        """Return them as an open lake takes them."""
        return cast("JobChoice", {name: getattr(self, name) for name in JobChoiceParameters.__struct_fields__})

    def moments(self, *, now: datetime, zone_name: str) -> str:
        """Return since and until as instants."""
        wanted = self.job_filter(now=now, zone_name=zone_name)
        return f"{wanted.since} {wanted.until}"


P = TypeVar("P", bound=Parameters)


def read_parameters(kind: type[P], path: Mapping[str, Any], query: Iterable[tuple[str, str]]) -> P:
    """Return the parameters of a request; values that are empty, as forms send them, do not count.

    >>> read_parameters(JobChoiceParameters, {}, [("user", "ann"), ("user", "bob"), ("since", "")]).user
    ('ann', 'bob')

    Errors: UsageError naming the parameter: unknown, twice where one is wanted, or of the wrong type.
    """
    several = {field.name for field in msgspec.structs.fields(kind) if get_origin(field.type) is tuple}
    values: dict[str, Any] = dict(path)
    for name, value in query:
        if not value:
            continue
        if name in several:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise UsageError(f"parameter {name} twice", do="give it once")
        else:
            values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as problem:
        text = str(problem).replace("`", "'").replace("Object contains unknown field", "unknown parameter")
        raise UsageError(text, do=meant(str(problem).replace("`", "'"), kind) or "see api/docs") from None
