"""The last minutes of every GPU and counter, in rings of fixed size: memory does not grow with time."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from tachograph.arrays import Floats, Longs, Singles
from tachograph.live.snapshot import Gpu, Snapshot


class History:
    """Values of the last `capacity` snapshots: (counters x snapshots x GPUs) in single precision, NaN missing.

    Of 1,000 GPUs with 25 counters 600 snapshots take 60 MB.
    """

    def __init__(self, capacity: int = 600) -> None:
        self.capacity = capacity
        self._gpus: tuple[Gpu, ...] = ()
        self._t: Floats = np.full(capacity, np.nan)
        self._values: dict[str, Singles] = {}
        self._next = 0
        self._held = 0

    def of(self, gpus: tuple[Gpu, ...]) -> History:
        """Return the history of these GPUs: this one, or where it is of others a copy.

        A view whose screen is still up finds its own GPUs in the one it has, whatever comes after it.
        """
        if gpus == self._gpus:
            return self
        made = copy.copy(self)
        made._t = self._t.copy()
        made._rearrange(gpus)
        return made

    def add(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; the oldest goes. What is kept of a GPU that is no longer named goes with it."""
        if snapshot.gpus != self._gpus:
            self._rearrange(snapshot.gpus)
        place = self._next
        self._t[place] = snapshot.t
        for counter in {**self._values, **snapshot.values}:
            ring = self._values.get(counter)
            if ring is None:
                ring = self._values[counter] = np.full((self.capacity, len(self._gpus)), np.nan, np.float32)
            with np.errstate(over="ignore"):  # what single precision does not hold is infinite there
                ring[place] = snapshot.column(counter)
            ring[place][np.isinf(ring[place])] = np.nan
        self._next = (place + 1) % self.capacity
        self._held = min(self._held + 1, self.capacity)

    @property
    def bytes(self) -> int:
        """How much memory the values take."""
        return self._t.nbytes + sum(ring.nbytes for ring in self._values.values())

    def times(self) -> Floats:
        """When the snapshots were taken, oldest first (seconds since 1970)."""
        return self._t[self._order()]

    def series(self, counter: str, row: int) -> Singles:
        """The values of one GPU beside `times`; all NaN of a counter that was never told."""
        ring = self._values.get(counter)
        return np.full(self._held, np.nan, np.float32) if ring is None else ring[self._order(), row]

    def block(self, counter: str, rows: Sequence[int]) -> Singles:
        """The values of some GPUs beside `times`: (snapshots x GPUs); all NaN of a counter that was never told."""
        ring = self._values.get(counter)
        if ring is None:
            return np.full((self._held, len(rows)), np.nan, np.float32)
        return ring.take(self._order(), axis=0).take(rows, axis=1)

    def _order(self) -> Longs:
        found: Longs = np.arange(self._next - self._held, self._next, dtype=np.int64) % self.capacity
        return found

    def _rearrange(self, gpus: tuple[Gpu, ...]) -> None:
        """Columns for other GPUs, in arrays of their own; those that stay keep what they have."""
        before = {gpu: column for column, gpu in enumerate(self._gpus)}
        kept = [(new, before[gpu]) for new, gpu in enumerate(gpus) if gpu in before]
        new, old = [pair[0] for pair in kept], [pair[1] for pair in kept]
        values: dict[str, Singles] = {}
        for counter, ring in self._values.items():
            moved = values[counter] = np.full((self.capacity, len(gpus)), np.nan, np.float32)
            moved[:, new] = ring[:, old]
        self._values, self._gpus = values, gpus
