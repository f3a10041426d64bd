"""Where in a recording a written time is: a clock time, a date and time, or so many seconds from now."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta

from tachograph.errors import UsageError

_STEP = re.compile(r"^([+-]\d+(?:\.\d*)?)\s*(s|min|m|h|)$")
_SIZES = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_CLOCK = re.compile(r"^(\d{1,2}):(\d\d)(?::(\d\d))?$")


def seconds_of(written: str, *, now: float, start: float, end: float) -> float:
    """Return the time that is written, in seconds since 1970; times without a zone are local, as they are shown.

    A clock time is of the day on which it lies in the recording. now: the instant that is shown.

    >>> seconds_of("+60", now=1000.0, start=0.0, end=5000.0), seconds_of("-5min", now=1000.0, start=0.0, end=5000.0)
    (1060.0, 700.0)

    Errors: UsageError for what is no time, and for one that does not lie in the recording; a step ends at its ends.
    """
    words = written.strip()
    if step := _STEP.match(words):
        return min(max(start, now + float(step[1]) * _SIZES[step[2]]), end)
    try:
        found = _at(words, now)
        moments = [one.timestamp() for one in found]
    except (ValueError, OverflowError):
        raise UsageError(
            f"{written!r} is no time", do="write 14:05:30, 2026-11-21T14:05:30, or +60 and -60 seconds"
        ) from None
    for moment in moments:
        if int(start) <= moment <= end + 1:
            return min(max(start, moment), end)
    first, last = (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(t)) for t in (start, end))
    raise UsageError(f"{words} is not in the recording", do=f"write a time from {first} to {last}")


def _at(words: str, now: float) -> list[datetime]:
    """Moments that may be meant: of a clock time this day, the one before and the next."""
    clock = _CLOCK.match(words)
    if clock is None:
        return [datetime.fromisoformat(words)]
    hour, minute, second = (int(part or 0) for part in clock.groups())
    local = datetime.fromtimestamp(now, UTC).astimezone().replace(tzinfo=None)
    day = local.replace(hour=hour, minute=minute, second=second, microsecond=0)
    return [day, day - timedelta(days=1), day + timedelta(days=1)]
