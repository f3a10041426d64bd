"""Labels that do not flicker: the class of the means over a window, kept until another one has lasted.

Pure: a step takes the state before and gives the state after, which holds the raw label, too.
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

    raw: of the last reading alone. shown: smoothed. readings: those of the window. candidate: class of their means,
    and since when it has been that.
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

    Shown is the class of the means over the last `smoothing_s` seconds; another one takes its place when it has been
    the class of the means for half of that (hysteresis). A class that is unknown comes and goes at once, and so does
    everything after a silence as long as the window, or when the clock goes back.
    """
    settings = settings or WorkloadSettings()
    window_s = settings.smoothing_s
    raw = classify(reading, settings)
    if before is None or window_s <= 0 or not 0 <= t - before.t < window_s:
        return Smoothed(t, raw, raw, ((t, reading),), raw.name, t)
    readings = (*((then, old) for then, old in before.readings if then > t - window_s), (t, reading))
    means = classify(_mean([old for _, old in readings]), settings)
    since = before.since if means.name == before.candidate else t
    lasting = t - since >= window_s / 2
    changes = lasting or UNKNOWN in (means.name, before.shown.name) or means.name == before.shown.name
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
        known = [value for reading in readings if (value := getattr(reading, item.name)) is not None]
        if known:
            total = 0.0
            for value in known:  # one by one, as in live views: `sum` rounds otherwise from Python 3.12 on
                total += value
            means[item.name] = total / len(known)
    return GpuReading(**means)
