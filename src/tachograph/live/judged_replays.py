"""PCIe replays of many GPUs that are still visible: what `workload.health.remember` does of one, of all at once."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from tachograph.arrays import Floats, Longs


class Replays:
    """New replays within the last `keep_s` seconds, and the last count of each GPU.

    Few GPUs ever have one, so only those that do are looked at one by one.
    """

    def __init__(self, keep_s: float) -> None:
        self.keep_s = keep_s
        self._count: Floats = np.empty(0)
        self._told: Floats = np.empty(0)  # when new ones were counted last, none among them
        self._events: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)  # {GPU: (when, new ones)}

    def step(self, t: float, count: Floats) -> Floats:
        """Return the new replays of each GPU that are visible at `t`; NaN where fewer than two counts were seen.

        count: replays since the driver was loaded, NaN missing; one that went back began anew.
        """
        begun = ~np.isnan(count) & ~np.isnan(self._count)
        new = np.where(count >= self._count, count - self._count, count)
        self._told = np.where(begun, t, self._told)
        self._count = np.where(np.isnan(count), self._count, count)
        for row in np.flatnonzero(begun & (new > 0)).tolist():
            self._events[row].append((t, float(new[row])))
        self._told = np.where(self._told > t - self.keep_s, self._told, np.nan)  # for good, if the clock goes back
        visible = np.where(np.isnan(self._told), np.nan, 0.0)
        for row, events in list(self._events.items()):
            kept = [event for event in events if event[0] > t - self.keep_s]
            if kept:
                self._events[row] = kept
                visible[row] = sum(one for _, one in kept)
            else:
                del self._events[row]
        return visible

    def rearrange(self, places: Longs) -> None:
        """Take other GPUs: `places` of each among those so far, -1 of a new one."""
        stays = places >= 0
        count, told = np.full(len(places), np.nan), np.full(len(places), np.nan)
        count[stays], told[stays] = self._count[places[stays]], self._told[places[stays]]
        events = self._events
        self._events = defaultdict(list)
        self._events.update({new: events[old] for new, old in enumerate(places.tolist()) if old in events})
        self._count, self._told = count, told
