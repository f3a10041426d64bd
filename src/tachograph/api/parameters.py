"""Typed parameters of pages and endpoints; unknown ones are rejected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, cast, get_origin
from urllib.parse import urlencode

import msgspec

from tachograph.api.choices import JobChoice, job_filter
from tachograph.catalog.errors import UsageError
from tachograph.catalog.suggestions import explain_misfit
from tachograph.judge.finding import Verdict
from tachograph.lake.filters import JobFilter

LONGEST = 500  # characters of a value
MOST_JOBS = 1000  # of one answer
MOST_CONDITIONS = 20  # each reads a column of all jobs
Word = Annotated[str, msgspec.Meta(max_length=LONGEST)]
Limit = Annotated[int, msgspec.Meta(ge=1, le=MOST_JOBS)]


def says(sentence: str) -> msgspec.Meta:
    """Return the description of a parameter, for its type."""
    return msgspec.Meta(description=sentence)


Since = (
    Annotated[
        Word,
        says("The job ran after it: 2026-04-23, 2026-04-23T10:30, yesterday, or 7d before now."),
    ]
    | None
)
Until = Annotated[Word, says("The job ran before it, written as `since`.")] | None
Names = Annotated[tuple[Word, ...], says("Any of these names.")]


class Parameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class, and the parameters of a page without any."""

    def moments(self, *, now: datetime, zone_name: str) -> str:
        """Return `since` and `until` as instants at `now`, as text, or "".

        Errors: UsageError for an invalid time.
        """
        times = {name: getattr(self, name, None) for name in ("since", "until")}
        selection = job_filter(times, now=now, zone_name=zone_name)
        return f"{selection.since} {selection.until}" if any(times.values()) else ""

    def as_query(self, *without: str, **changed: object) -> str:
        """Return the non-default values as a link's query; `changed`: replacements.

        >>> JobChoiceParameters(user=("ann", "bob"), since="7d").as_query("since", partition="gpu")
        'user=ann&user=bob&partition=gpu'
        """
        options = {
            field.name: getattr(self, field.name)
            for field in _fields(type(self)).values()
            if field.name not in without and getattr(self, field.name) != field.default
        }
        values = {
            name: value
            for name, value in {**options, **changed}.items()
            if value not in (None, "", ())
        }
        return urlencode(values, doseq=True)


class JobChoiceParameters(Parameters, frozen=True, kw_only=True):
    """Job filter with the options of the commands; without any, all visible jobs."""

    user: Names = ()
    account: Names = ()
    partition: Names = ()
    state: Annotated[
        tuple[Word, ...], says("Base state, such as RUNNING, COMPLETED, FAILED; any of them.")
    ] = ()
    attribution: Annotated[
        tuple[Word, ...],
        says("How its GPUs are known: explicit, live_index, whole_node, ambiguous; any of them."),
    ] = ()
    finding: Annotated[
        tuple[Word, ...], says("Code of a finding (docs/job-report.md); any of them.")
    ] = ()
    verdict: Annotated[Verdict, says("The result that `finding` has.")] = "yes"
    since: Since = None
    until: Until = None
    where: Annotated[
        tuple[Word, ...],
        msgspec.Meta(max_length=MOST_CONDITIONS),
        says(
            "A condition on a column of job_summaries: gpu_util_mean<10%, name~train; all of them."
        ),
    ] = ()

    def job_filter(self, *, now: datetime, zone_name: str) -> JobFilter:
        """Return the filter. Errors: UsageError for an invalid condition or time."""
        return job_filter(self.chosen(), now=now, zone_name=zone_name)

    def chosen(self) -> JobChoice:
        """Return them as an open lake takes them."""
        return cast(
            "JobChoice",
            {name: getattr(self, name) for name in JobChoiceParameters.__struct_fields__},
        )


class StudyChoiceParameters(JobChoiceParameters, frozen=True, kw_only=True):
    """Which jobs a study is of, and how their metrics are defined."""

    pipe: Annotated[Word, says("Pipe of the roofline: fp64, fp32, fp16 or tensor.")] = "fp64"
    window: (
        Annotated[Literal[1, 5, 15, 30], says("Windows of spatial imbalance. Unit: min.")] | None
    ) = None
    variant: Annotated[Word, says("paper, or notebooks.")] = "paper"
    whiskers: Annotated[Word, says("Whiskers of box plots: tukey or percentile.")] = "tukey"
    no_filter: Annotated[
        tuple[Word, ...], says("Reasons that must not leave jobs out, such as short or idle.")
    ] = ()

    def settings(self) -> dict[str, Any]:
        """Return how metrics are defined, as an open lake takes it."""
        names = ("pipe", "window", "variant", "whiskers", "no_filter")
        return {name: getattr(self, name) for name in names}


class StudyParameters(StudyChoiceParameters, frozen=True, kw_only=True):
    """Which jobs, which figures, and how their metrics are defined."""

    figure: Annotated[tuple[Word, ...], says("Names or numbers of figures; default: all.")] = ()


class UsageParameters(Parameters, frozen=True, kw_only=True):
    """Whose usage, in which period."""

    name: Annotated[Word, says("Name of the user or account.")]
    since: Since = None
    until: Until = None

    def choice(self, option: Literal["user", "account"]) -> JobChoice:
        """Return the jobs of that user or account in the period, as an open lake takes them."""
        options = {option: self.name, "since": self.since, "until": self.until}
        return cast(
            "JobChoice", {name: value for name, value in options.items() if value is not None}
        )


class JobParameters(Parameters, frozen=True, kw_only=True):
    """One run of a job."""

    key: Annotated[Word, says("The job: its id as displayed, its raw id or its job_key.")]
    cluster: Annotated[Word, says("Its cluster, if several have the id.")] | None = None
    run: Annotated[int, says("The N-th run of a requeued job; default: the last.")] | None = None


P = TypeVar("P", bound=Parameters)


def read_parameters(
    kind: type[P],
    path: Mapping[str, Any],
    query: Iterable[tuple[str, str]],
    *,
    of_form: bool = True,
) -> P:
    """Return the parameters of a request; of a form, values that are empty do not count.

    >>> read_parameters(JobChoiceParameters, {}, [("user", "ann"), ("user", "bob"), ("since", "")]).user
    ('ann', 'bob')

    Errors: UsageError naming the parameter: unknown, twice where one is wanted, or of the wrong
    type.
    """
    fields = _fields(kind)
    several = {name for name, field in fields.items() if _is_tuple(field.type)}
    values: dict[str, Any] = dict(path)
    for name, value in query:
        if of_form and not value:
            continue
        if name in several:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise UsageError(f"parameter {name} twice", do="give it once")
        else:
            values[name] = value
    try:
        parameters = msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as problem:
        what, do = explain_misfit(str(problem), kind)
        what = what.replace("unknown field", "unknown parameter")
        raise UsageError(what, do=do or "see docs/api.md") from None
    for name in values.keys() & fields.keys():
        if getattr(parameters, fields[name].name) is None:  # msgspec takes the text null for None
            raise UsageError(f"{name} cannot be {values[name]!r}", do="see docs/api.md")
    return parameters


def read_document(
    kind: type[P], path: Mapping[str, Any], query: Iterable[tuple[str, str]], body: bytes
) -> P:
    """Return the parameters of a request with a JSON object as body.

    Its URL has path parameters only.

    >>> read_document(JobParameters, {}, [], b'{"key": "7", "run": 2}').run
    2

    Errors: UsageError naming the parameter.
    """
    for name, _ in query:
        raise UsageError(f"unknown parameter {name!r}", do="write it into the body")
    try:
        values = msgspec.json.decode(body, type=dict[str, Any])
        return msgspec.convert({**values, **path}, kind, strict=True)
    except msgspec.ValidationError as problem:
        what, do = explain_misfit(str(problem), kind)
        raise UsageError(what, do=do or "see docs/api.md") from None
    except (msgspec.DecodeError, RecursionError) as problem:
        raise UsageError(str(problem), do="see docs/api.md") from None


@cache
def _fields(kind: type[Parameters]) -> Mapping[str, msgspec.structs.FieldInfo]:
    """Fields of parameters by the name in a query; to resolve their types takes a millisecond."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}


def _is_tuple(kind: Any) -> bool:
    return get_origin(kind.__origin__ if hasattr(kind, "__metadata__") else kind) is tuple
