"""Labels and visible PCIe replays of one GPU, reading by reading: plain code for what live views
do at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from tachograph.judge.workload.classes import UNKNOWN
from tachograph.judge.workload.rules import Classified, GpuReading, classify
from tachograph.judge.workload.settings import WorkloadSettings


@dataclass(frozen=True, slots=True)
class Smoothed:
    """Labels of a GPU at one time (seconds on any clock), and what the next ones are made of.

    raw: of the last reading alone. shown: smoothed. readings: those of the window. candidate: class
    of their means, and since when it has been that.
    """

    t: float
    raw: Classified
    shown: Classified
    readings: tuple[tuple[float, GpuReading], ...]
    candidate: str
    since: float


def smooth(
    before: Smoothed | None, t: float, reading: GpuReading, settings: WorkloadSettings | None = None
) -> Smoothed:
    """Return the labels at `t`, of a GPU of which `before` was known.

    Shown is the class of the means over the last `smoothing_s` seconds; another one takes its place
    when it has been the class of the means for half of that (hysteresis). A class that is unknown
    comes and goes at once, and so does everything after a silence as long as the window, or when
    the clock goes back.
    """
    settings = settings or WorkloadSettings()
    window_s = settings.smoothing_s
    raw = classify(reading, settings)
    if before is None or window_s <= 0 or not 0 <= t - before.t < window_s:
        return Smoothed(t, raw, raw, ((t, reading),), raw.name, t)
    readings = (
        *((then, old) for then, old in before.readings if then > t - window_s),
        (t, reading),
    )
    means = classify(_mean([old for _, old in readings]), settings)
    since = before.since if means.name == before.candidate else t
    lasting = t - since >= window_s / 2
    changes = (
        lasting or UNKNOWN in (means.name, before.shown.name) or means.name == before.shown.name
    )
    return Smoothed(t, raw, means if changes else before.shown, readings, means.name, since)


def smooth_series(
    readings: Iterable[tuple[float, GpuReading]], settings: WorkloadSettings | None = None
) -> list[Smoothed]:
    """Return the labels after each of some readings of one GPU, in order of time."""
    found: list[Smoothed] = []
    for t, reading in readings:
        found.append(smooth(found[-1] if found else None, t, reading, settings))
    return found


def _mean(readings: list[GpuReading]) -> GpuReading:
    """Means of what is known."""
    means: dict[str, float] = {}
    for item in fields(GpuReading):
        known = [
            value for reading in readings if (value := getattr(reading, item.name)) is not None
        ]
        if known:
            total = 0.0
            # One by one, as in live views: `sum` rounds otherwise from Python 3.12 on.
            for value in known:
                total += value
            means[item.name] = total / len(known)
    return GpuReading(**means)


@dataclass(frozen=True, slots=True)
class EventMemory:
    """Replays of a GPU that are still visible: (seconds on any clock, new ones), and the last
    count.
    """

    events: tuple[tuple[float, float], ...] = ()
    count: float | None = None

    @property
    def replays(self) -> float | None:
        """New replays that are still visible; None where fewer than two counts were seen."""
        return sum(new for _, new in self.events) if self.events else None


def remember(memory: EventMemory, t: float, count: float | None, *, keep_s: float) -> EventMemory:
    """Return the memory after a reading of the replay counter at `t`; what is older than `keep_s`
    is forgotten.

    A counter that went back began anew: what it shows came since then.

    >>> memory, seen = EventMemory(), []
    >>> for t, count in ((0, 7), (1, 9), (2, 9), (700, 9)):
    ...     memory = remember(memory, t, count, keep_s=600)
    ...     seen.append(memory.replays)
    >>> seen
    [None, 2, 2, 0]
    """
    kept = tuple((then, new) for then, new in memory.events if then > t - keep_s)
    if count is None:
        return EventMemory(kept, memory.count)
    if memory.count is None:
        return EventMemory(kept, count)
    new = count - memory.count if count >= memory.count else count
    return EventMemory((*((then, old) for then, old in kept if old), (t, new)), count)
