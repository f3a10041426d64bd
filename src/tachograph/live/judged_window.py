"""Labels of many GPUs that do not flicker: what `workload.smoothing.smooth` does of one, done of all at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from tachograph.arrays import Bytes, Flags, Floats, Ints, Longs
from tachograph.workload.classes import CLASSES, UNKNOWN
from tachograph.workload.rows import COUNTERS, classify_rows
from tachograph.workload.settings import Settings

_UNKNOWN = CLASSES.index(UNKNOWN)
_FIRST_SLOTS = 64
MOST_SLOTS = 1200  # looks that a window holds; of one with more, the newest: a look of 1,000 GPUs takes 90 kB


@dataclass(frozen=True, slots=True)
class Labels:
    """One place per GPU. Classes as places in CLASSES: `shown` smoothed, `raw` of the last reading.

    real: real utilisation then, NaN unknown. means: of each counter over the window, NaN missing.
    """

    shown: Bytes
    raw: Bytes
    real: Floats
    means: Mapping[str, Floats]


@dataclass(slots=True)
class _Gpus:
    """What is known of GPUs: when they were measured last, their labels, how many readings tell each counter."""

    t: Floats
    real: Floats
    since: Floats
    raw: Bytes
    shown: Bytes
    candidate: Bytes
    counts: Ints

    @classmethod
    def new(cls, size: int) -> _Gpus:
        """GPUs of which nothing is known."""
        t, real, since = (np.full(size, np.nan) for _ in range(3))
        raw, shown, candidate = (np.full(size, _UNKNOWN, np.uint8) for _ in range(3))
        return cls(t, real, since, raw, shown, candidate, np.zeros((len(COUNTERS), size), np.int32))


@dataclass(slots=True)
class _Looks:
    """Readings by slot and GPU: when measured, when they arrived; values, 0 where missing; which are there."""

    times: Floats
    arrived: Floats
    values: Floats
    known: Flags
    alive: Flags

    @classmethod
    def new(cls, slots: int, size: int) -> _Looks:
        """Slots that hold nothing."""
        shape = (slots, len(COUNTERS), size)
        return cls(
            np.full((slots, size), np.nan),
            np.zeros(slots),
            np.zeros(shape),
            np.zeros(shape, np.bool_),
            np.zeros((slots, size), np.bool_),
        )


class Window:
    """Readings of the last `smoothing_s` of GPUs, and the labels that come of them.

    A look is one slot of all GPUs; of those without a new reading it holds nothing. So a GPU's readings lie in their
    order, and sums over slots round as sums over its readings do. Slots that nobody's window reaches are given up, and
    after two windows also those of GPUs that told nothing since.
    """

    def __init__(self, settings: Settings, *, most_slots: int = MOST_SLOTS) -> None:
        self.settings, self.most_slots = settings, most_slots
        self._gpus = _Gpus.new(0)
        self._looks = _Looks.new(_FIRST_SLOTS, 0)
        self._begin = self._end = 0

    def step(self, now: float, measured: Floats, values: Mapping[str, Floats]) -> Labels:
        """Return the labels after a look at `now`.

        measured: when the values of each GPU were measured; where that is what it was, or NaN, there is no new reading.
        values: {counter: value per GPU, NaN missing}.
        """
        gpus, window_s = self._gpus, self.settings.smoothing_s
        fresh = ~np.isnan(measured) & (measured != gpus.t)
        rows = classify_rows(values, len(measured), self.settings)
        gpus.raw = np.where(fresh, rows.labels, gpus.raw)
        gpus.real = np.where(fresh, rows.real, gpus.real)
        passed = measured - gpus.t
        continues = fresh & (passed >= 0) & (passed < window_s)  # NaN, and no window: it begins anew
        begins = fresh & ~continues
        self._forget(now, begins, np.where(continues, measured - window_s, -np.inf))
        if fresh.any():
            self._keep(now, fresh, measured, values)
        means = self._means()
        self._take_over(fresh, begins, measured, means)
        gpus.t = np.where(fresh, measured, gpus.t)
        return Labels(gpus.shown, gpus.raw, gpus.real, means)

    def rearrange(self, places: Longs) -> None:
        """Take other GPUs: `places` of each among those so far, -1 of a new one."""
        stays = places >= 0
        gpus, looks = _Gpus.new(len(places)), _Looks.new(len(self._looks.times), len(places))
        for kept, before in ((gpus, self._gpus), (looks, self._looks)):
            for one in fields(kept):
                if one.name == "arrived":
                    looks.arrived = self._looks.arrived
                else:
                    getattr(kept, one.name)[..., stays] = getattr(before, one.name)[..., places[stays]]
        self._gpus, self._looks = gpus, looks

    def _forget(self, now: float, begins: Flags, until: Floats) -> None:
        """Take out readings up to `until` of each GPU, all of those that begin anew, and slots that hold none."""
        held = slice(self._begin, self._end)
        gone = self._looks.alive[held] & ((self._looks.times[held] <= until) | begins)
        for place in np.flatnonzero(gone.any(axis=1)).tolist():
            self._drop(held.start + place, gone[place])
        age_s = 2 * self.settings.smoothing_s
        while self._begin < self._end:
            slot = self._begin
            if self._looks.alive[slot].any():
                if 0 <= now - self._looks.arrived[slot] < age_s and self._end - slot < self.most_slots:
                    break
                self._drop(slot, self._looks.alive[slot].copy())
            self._begin += 1

    def _drop(self, slot: int, gone: Flags) -> None:
        self._gpus.counts[:, gone] -= self._looks.known[slot][:, gone]
        self._looks.values[slot][:, gone] = 0.0
        self._looks.known[slot][:, gone] = False
        self._looks.alive[slot][gone] = False

    def _keep(self, now: float, fresh: Flags, measured: Floats, values: Mapping[str, Floats]) -> None:
        """Put the new readings into a slot of their own."""
        if self._end == len(self._looks.times):
            self._make_room()
        slot = self._end
        self._looks.times[slot] = np.where(fresh, measured, np.nan)
        self._looks.arrived[slot] = now
        self._looks.alive[slot] = fresh
        for place, name in enumerate(COUNTERS):
            column = values.get(name)
            known = np.zeros(len(fresh), np.bool_) if column is None else fresh & ~np.isnan(column)
            self._looks.known[slot, place] = known
            self._looks.values[slot, place] = 0.0 if column is None else np.where(known, column, 0.0)
        self._gpus.counts += self._looks.known[slot]
        self._end += 1

    def _make_room(self) -> None:
        """Move what is held to the front; with twice the room where it is more than half of it."""
        looks, count = self._looks, self._end - self._begin
        slots = len(looks.times)
        if count * 2 > slots:
            self._looks = _Looks.new(slots * 2, looks.times.shape[1])
        for one in fields(looks):
            getattr(self._looks, one.name)[:count] = getattr(looks, one.name)[self._begin : self._end]
        self._begin, self._end = 0, count

    def _means(self) -> Mapping[str, Floats]:
        sums = np.add.reduce(self._looks.values[self._begin : self._end], axis=0)
        with np.errstate(invalid="ignore"):
            return dict(zip(COUNTERS, sums / self._gpus.counts, strict=True))

    def _take_over(self, fresh: Flags, begins: Flags, measured: Floats, means: Mapping[str, Floats]) -> None:
        """Show the class of the means where it may take the place of the one shown."""
        gpus = self._gpus
        found = classify_rows(means, len(fresh), self.settings).labels
        gpus.since = np.where(fresh & (begins | (found != gpus.candidate)), measured, gpus.since)
        lasting = measured - gpus.since >= self.settings.smoothing_s / 2
        changes = begins | lasting | (found == _UNKNOWN) | (gpus.shown == _UNKNOWN)
        gpus.shown = np.where(fresh & changes, found, gpus.shown)
        gpus.candidate = np.where(fresh, found, gpus.candidate)
