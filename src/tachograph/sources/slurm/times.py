"""Times as Slurm writes them: wall clock of the site, hours that occur twice, hours that do not exist."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from itertools import pairwise, product

from tachograph.sources.slurm.fields import BadRowError, absent
from tachograph.units import to_utc

_NO_VALUES = frozenset({0, 0xFFFFFFFE, 0xFFFFFFFF})  # not set; NO_VAL and INFINITE of slurm.h


def from_epoch(seconds: float) -> datetime | None:
    """Return the UTC time of seconds since 1970; None for Slurm's marks for "not set".

    >>> from_epoch(4294967294), from_epoch(1795245390).isoformat()
    (None, '2026-11-21T07:16:30+00:00')

    Errors: BadRowError out of range.
    """
    if seconds in _NO_VALUES:
        return None
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        raise BadRowError("bad_time") from None


@lru_cache(maxsize=65536)
def instants(written: str, zone_name: str) -> tuple[datetime, ...]:
    """Return the UTC times a text may mean: none (nothing written), one, or two (the hour occurs twice), earlier first.

    Local wall clock, ISO with an offset, or seconds since 1970.

    >>> [t.hour for t in instants("2026-11-01T01:30:00", "America/New_York")]
    [5, 6]
    >>> instants("Unknown", "UTC")
    ()

    Errors: BadRowError for what is no time, or a wall clock that does not exist (clocks go forward).
    """
    text = written.strip()
    if absent(text):
        return ()
    if text.isascii() and text.isdigit() and len(text) <= 12:
        moment = from_epoch(int(text))
        return (moment,) if moment else ()
    try:
        local = datetime.fromisoformat(text)
    except ValueError:
        raise BadRowError("bad_time") from None
    if len(text) < 16:  # a date, or a time without minutes, is no instant
        raise BadRowError("bad_time")
    try:
        if local.tzinfo is not None:
            return (local.astimezone(UTC),)
        first, second = to_utc(local, zone_name), to_utc(local, zone_name, later=True)
    except OverflowError:
        raise BadRowError("bad_time") from None
    if first > second:
        raise BadRowError("time_does_not_exist")
    return (first,) if first == second else (first, second)


def settle(candidates: Sequence[tuple[datetime, ...]], run_s: float | None) -> list[datetime | None]:
    """Return (submit, eligible, start, end), each the candidate that fits best.

    Best: end - start nearest to `run_s` (run time, s), then times in order, then the earlier ones.

    >>> twice = (datetime(2026, 11, 1, 5, 30, tzinfo=UTC), datetime(2026, 11, 1, 6, 30, tzinfo=UTC))
    >>> [t and t.hour for t in settle([(), (), twice, (datetime(2026, 11, 1, 7, tzinfo=UTC),)], 1800.0)]
    [None, None, 6, 7]
    """
    if all(len(times) < 2 for times in candidates):
        return [times[0] if times else None for times in candidates]

    def misfit(chosen: tuple[datetime | None, ...]) -> tuple[float, int]:
        start, end = chosen[2], chosen[3]
        off = abs((end - start).total_seconds() - run_s) if start and end and run_s is not None else 0.0
        known = [time for time in chosen if time]
        return off, sum(later < earlier for earlier, later in pairwise(known))

    choices: list[tuple[datetime | None, ...]] = list(product(*(times or (None,) for times in candidates)))
    best = min(choices, key=misfit)
    return list(best)
