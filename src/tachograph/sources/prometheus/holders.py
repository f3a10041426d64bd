"""Which job held which GPU when, from series that name the job: rows of `allocations`, where that changes.

A job that is named at one scrape holds the GPU from then until the first scrape at which it is not named. A silence of
the exporter ends nothing. A job that still holds it has no end yet: attribution ends it with the job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tachograph.arrays import Longs
from tachograph.sources.prometheus.legend import Unit


@dataclass(frozen=True, slots=True)
class Hold:
    """A job held a GPU in [start, end), milliseconds since 1970; `end` None: it still does."""

    unit: Unit
    job: str
    start: int
    end: int | None


@dataclass(slots=True)
class Holders:
    """Who holds what at the last scrape seen. {GPU: {job: since when}}"""

    now: dict[Unit, dict[str, int]] = field(default_factory=dict)

    def changes(self, unit: Unit, scrapes: Longs, named: Mapping[str, Longs]) -> Iterator[Hold]:
        """Yield what began and what ended. `scrapes`: when the GPU was seen; `named`: when each job was named on it.

        >>> holders, times = Holders(), np.array([10, 20, 30, 40])
        >>> [(hold.job, hold.start, hold.end) for hold in holders.changes(("n", 0, None), times, {"7": times[1:3]})]
        [('7', 20, 40)]
        """
        if not scrapes.size:
            return
        holding = self.now.setdefault(unit, {})
        for job in [job for job in holding if job not in named]:
            yield Hold(unit, job, holding.pop(job), int(scrapes[0]))
        for job, times in named.items():
            places = np.searchsorted(scrapes, times)
            since = holding.pop(job, None)
            if since is not None and places[0] > 0:
                yield Hold(unit, job, since, int(scrapes[0]))
                since = None
            begins = np.flatnonzero(np.diff(places, prepend=-2) > 1)
            for first, last in zip(begins, [*(begins[1:] - 1), places.size - 1], strict=True):
                start = int(times[first]) if since is None else since
                after = int(places[last]) + 1
                if after < scrapes.size:
                    yield Hold(unit, job, start, int(scrapes[after]))
                else:
                    holding[job] = start
                    if since is None:
                        yield Hold(unit, job, start, None)
                since = None
