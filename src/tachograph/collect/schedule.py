"""When to do something again: pure functions of instants, in seconds of a clock that only goes forward."""

from __future__ import annotations

import math
from dataclasses import dataclass

FIRST_RETRY_S = 5.0
LONGEST_RETRY = 10  # times the interval


@dataclass(frozen=True, slots=True)
class Grid:
    """Instants `start`, `start + every_s`, ...: they do not drift, however long a poll takes."""

    start: float
    every_s: float

    def after(self, now: float) -> float:
        """Return the first instant of the grid later than `now`; those that were missed are not made up for.

        >>> Grid(100.0, 60.0).after(100.0), Grid(100.0, 60.0).after(279.0)
        (160.0, 280.0)
        """
        later = self.start + (math.floor((now - self.start) / self.every_s) + 1) * self.every_s
        return later if later > now else later + self.every_s  # rounding may give `now` itself


def retry_s(failures: int, *, every_s: float) -> float:
    """Return how long to wait after so many failures in a row: doubling, up to ten intervals.

    >>> [retry_s(failures, every_s=60.0) for failures in (1, 2, 3, 7, 8, 2000)]
    [5.0, 10.0, 20.0, 320.0, 600.0, 600.0]
    >>> retry_s(1, every_s=1.0)
    1.0
    """
    first = min(FIRST_RETRY_S, every_s)
    longest = LONGEST_RETRY * every_s
    return min(longest, first * 2.0 ** min(failures - 1, 60))
