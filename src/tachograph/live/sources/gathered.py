"""The values of a fleet, put together from what many tell: one table that grows by rows, and snapshots of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tachograph.arrays import Flags, Floats, Longs
from tachograph.counters import NAMES
from tachograph.live.snapshot import Device, Gpu, Holder, Problem, Snapshot
from tachograph.live.sources.series import Layout, order

KEPT_S = 3600.0  # so long a GPU of which nobody tells anything keeps its row


@dataclass(frozen=True, slots=True)
class _Part:
    """What one teller has in the table."""

    layout: Layout
    rows: Longs
    measured: Floats
    devices: Mapping[Gpu, Device]
    holders: Mapping[Gpu, Holder]


@dataclass(slots=True)
class Gathered:
    """Values by counter and GPU, of tellers that are known by a number; each owns the cells it told last.

    GPUs that were seen once stay as rows for an hour: that one tells nothing any more is news.
    """

    gpus: tuple[Gpu, ...] = ()
    _rows: dict[Gpu, int] = field(default_factory=dict)
    _values: Floats = field(default_factory=lambda: np.empty((len(NAMES), 0)))
    _ever: Flags = field(default_factory=lambda: np.zeros(len(NAMES), np.bool_))
    _parts: dict[int, _Part] = field(default_factory=dict)
    _devices: dict[Gpu, Device] = field(default_factory=dict)
    _silent: dict[Gpu, float] = field(default_factory=dict)  # when it was noted that nobody tells of it
    _made: Snapshot | None = None

    @property
    def told(self) -> list[str]:
        """Counters of which a value was told."""
        return [name for name, ever in zip(NAMES, self._ever.tolist(), strict=True) if ever]

    def enter(self, gpus: Iterable[Gpu]) -> None:
        """Give every GPU a row; those that are known keep their values. Best called once for many."""
        new = [gpu for gpu in gpus if gpu not in self._rows]
        if not new:
            return
        self._arrange(tuple(sorted({*self.gpus, *new}, key=order)))

    def _arrange(self, gpus: tuple[Gpu, ...]) -> None:
        """Give rows to these GPUs and to no others."""
        rows = {gpu: row for row, gpu in enumerate(gpus)}
        moved = np.full((len(NAMES), len(gpus)), np.nan)
        stay = [gpu for gpu in self.gpus if gpu in rows]
        moved[:, [rows[gpu] for gpu in stay]] = self._values[:, [self._rows[gpu] for gpu in stay]]
        self.gpus, self._rows, self._values = gpus, rows, moved
        for teller, part in self._parts.items():
            self._parts[teller] = replace(part, rows=np.array([rows[gpu] for gpu in part.layout.gpus], np.int64))

    def put(self, teller: int, layout: Layout, table: Floats, measured: Floats | float) -> None:
        """Take in what a teller tells now, in place of what it told before; measured: per row, or of all of them."""
        self.enter(layout.gpus)
        self._clear(teller)
        rows = np.array([self._rows[gpu] for gpu in layout.gpus], np.int64)
        when = np.full(len(rows), measured, np.float64) if isinstance(measured, float) else measured
        devices, holders = layout.devices_of(table), layout.holders_of(table)
        self._parts[teller] = _Part(layout, rows, when, devices, holders)
        self._values[np.ix_(layout.counters, rows)] = table[layout.counters]
        self._ever[layout.counters] |= ~np.isnan(table[layout.counters]).all(axis=1)
        self._devices.update(devices)
        self._made = None

    def patch(self, teller: int, layout: Layout, table: Floats, measured: float) -> None:
        """Take in a part of what a teller tells: where it says nothing, what it said before stays."""
        part = self._parts.get(teller)
        if part is None:
            self.put(teller, layout, table, measured)
            return
        for row, gpu in enumerate(layout.gpus):
            here = self._rows.get(gpu)
            if here is not None:
                new = table[: len(NAMES), row]
                self._values[:, here] = np.where(np.isnan(new), self._values[:, here], new)
                part.measured[part.rows == here] = measured
        self._made = None

    def forget(self, teller: int) -> None:
        """Drop what a teller told: it is too old to be shown."""
        if teller in self._parts:
            self._clear(teller)
            self._made = None

    def snapshot(self, t: float, problems: Sequence[Problem]) -> Snapshot:
        """Return the table as it is; later changes do not touch it."""
        if self._made is None:
            self._drop_silent(t)
            self._made = self._snapshot(t)
        self._made = replace(self._made, t=t, problems=tuple(problems))
        return self._made

    def _snapshot(self, t: float) -> Snapshot:
        kept = self._values.copy()
        values = {name: kept[number] for number, name in enumerate(NAMES) if self._ever[number]}
        measured = np.full(len(self.gpus), np.nan)
        holders: dict[Gpu, Holder] = {}
        for part in self._parts.values():
            measured[part.rows] = np.fmax(measured[part.rows], part.measured)
            holders.update(part.holders)
        measured[np.isnan(kept).all(axis=0)] = np.nan
        return Snapshot(t, self.gpus, measured, values, dict(self._devices), holders)

    def _drop_silent(self, t: float) -> None:
        """Take away rows of which nobody has told anything for too long; a broken page may name any number of GPUs."""
        told = {gpu for part in self._parts.values() for gpu in part.layout.gpus}
        if len(told) == len(self.gpus):
            self._silent = {}
            return
        self._silent = {gpu: self._silent.get(gpu, t) for gpu in self.gpus if gpu not in told}
        gone = {gpu for gpu, since in self._silent.items() if abs(t - since) > KEPT_S}
        if gone:
            self._arrange(tuple(gpu for gpu in self.gpus if gpu not in gone))
            self._devices = {gpu: device for gpu, device in self._devices.items() if gpu not in gone}

    def _clear(self, teller: int) -> None:
        part = self._parts.pop(teller, None)
        if part is not None:
            self._values[np.ix_(part.layout.counters, part.rows)] = np.nan
