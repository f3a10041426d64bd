"""What the endpoints share: times and steps as Prometheus reads them, the series that are visible, the envelope."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec

from tachograph.catalog.errors import UsageError
from tachograph.catalog.units import to_utc
from tachograph.export.minute_series import JOB_LABELS, MinuteSeries
from tachograph.export.promql import LONGEST, SeriesSelector, duration_ms, is_duration, parse_selector
from tachograph.lake.filters import JobFilter
from tachograph.web.answers import ObjectAnswer
from tachograph.web.parameters import Parameters, Word
from tachograph.web.shapes import TEXT, ObjectShape, Schema, described, list_of
from tachograph.web.snapshot import View

MOST_VALUES = 10_000  # of a list
Query = Annotated[
    str,
    msgspec.Meta(
        max_length=LONGEST,
        description="A query, of the part of PromQL that is answered.",
        examples=["avg by (user) (tachograph_job_gpu_util)"],
    ),
]
Selector = Annotated[str, msgspec.Meta(max_length=LONGEST, examples=["tachograph_job_gpu_util"])]
Moment = Annotated[
    Word,
    msgspec.Meta(description="Seconds since 1970, or a time as RFC 3339 has it.", examples=["2025-03-04T12:00:00Z"]),
]
Step = Annotated[Word, msgspec.Meta(description="Seconds, or a span such as 1m.", examples=["1m"])]
Most = Annotated[int, msgspec.Meta(ge=0, le=MOST_VALUES, description="At most so many values; 0: no limit.")]
_LAST_S = 253402300799.0  # year 9999


class PrometheusParameters(Parameters, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Of an endpoint of Prometheus: parameters that are not its own do not count, as there."""


class MatchParameters(PrometheusParameters, frozen=True, kw_only=True):
    """Which series, and in which time."""

    match: Annotated[tuple[Selector, ...], msgspec.Meta(description="A selector of series; any of them.")] = (
        msgspec.field(name="match[]", default=())
    )
    start: Moment | None = None
    end: Moment | None = None
    limit: Most = 0

    def selectors(self) -> list[SeriesSelector]:
        """Return the selectors. Errors: UsageError for what is none."""
        return [parse_selector(written) for written in self.match]

    def between(self, now: datetime) -> tuple[int | None, int | None]:
        """Return start and end in ms since 1970, where they are given."""
        return (
            None if self.start is None else moment_ms("start", self.start, now),
            None if self.end is None else moment_ms("end", self.end, now),
        )


def moment_ms(name: str, written: str | None, now: datetime) -> int:
    """Return milliseconds since 1970; `now` where nothing is written.

    >>> from datetime import UTC, datetime
    >>> moment_ms("time", "1.5", datetime.now(UTC)), moment_ms("time", "1970-01-01T00:00:02Z", datetime.now(UTC))
    (1500, 2000)

    Errors: UsageError for what is no time.
    """
    if written is None:
        return math.floor(now.timestamp() * 1000)
    try:
        seconds = float(written)
    except ValueError:
        try:
            seconds = to_utc(datetime.fromisoformat(written), "UTC").astimezone(UTC).timestamp()
        except (ValueError, OverflowError):
            raise _invalid(name, written, "valid timestamp") from None
    if not 0 <= seconds <= _LAST_S:
        raise _invalid(name, written, "valid timestamp")
    return round(seconds * 1000)


def step_ms(written: str) -> int:
    """Return the milliseconds of a step.

    >>> step_ms("15"), step_ms("1m30s")
    (15000, 90000)

    Errors: UsageError for what is none.
    """
    if is_duration(written):
        length = duration_ms(written)
    else:
        try:
            seconds = float(written)
        except ValueError:
            seconds = math.nan
        length = round(seconds * 1000) if math.isfinite(seconds) else -1
    if not 0 <= length <= _LAST_S * 1000:
        raise _invalid("step", written, "valid duration")
    return length


def _invalid(name: str, written: str, what: str) -> UsageError:
    return UsageError(
        f'invalid parameter "{name}": cannot parse {written!r} to a {what}', do="write seconds, or a time"
    )


def visible_series(view: View) -> MinuteSeries:
    """Return the series of all visible jobs."""
    columns = ("job_key", "seq", "start", "as_of", "gpus", "nodes", "display_id", "job_id")
    names = [name for name in JOB_LABELS if name not in ("job", "job_key")]
    return MinuteSeries(view.opened.lake, view.jobs.matching(JobFilter(), [*columns, *names]))


def envelope(data: Schema) -> ObjectShape:
    """Return the shape of an answer whose content is `data`."""

    def properties() -> Schema:
        return {
            "status": described("success", {**TEXT, "enum": ["success"]}),
            "data": described("The answer.", data),
            "warnings": described("What limits it.", list_of(TEXT)),
        }

    return ObjectShape(properties, choices=False)


def success(data: Any, *warnings: str) -> ObjectAnswer:
    """Return an answer."""
    return ObjectAnswer({"status": "success", "data": data, **({"warnings": warnings} if warnings else {})})


def cut(values: Sequence[Any], limit: int) -> ObjectAnswer:
    """Return an answer of a list of values, with a warning where some are left out."""
    most = limit or MOST_VALUES
    warnings = [f"results truncated due to limit: {most} of {len(values)}"] if len(values) > most else []
    return success(values[:most], *warnings)


LABELS_SCHEMA: Mapping[str, Any] = {"type": "object", "additionalProperties": TEXT}
