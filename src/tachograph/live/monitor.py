"""Snapshots judged: classes, health, who tells nothing, what happened. One step costs some milliseconds a 1,000 GPUs.

What is judged here is judged by the rules that judge stored data: `workload.rows`, `workload.health`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tachograph.arrays import Floats, Longs
from tachograph.live.events import Happenings, Seen
from tachograph.live.history import History
from tachograph.live.judged_reasons import Reasons, health_reading, reasons
from tachograph.live.judged_replays import Replays
from tachograph.live.judged_window import Window
from tachograph.live.snapshot import Device, Gpu, Snapshot
from tachograph.live.source import About
from tachograph.live.view import View
from tachograph.workload import health as of_health
from tachograph.workload.classes import CLASSES, UNKNOWN
from tachograph.workload.health import INPUTS, STATES, health_reason, health_states, limit_columns, limits_of
from tachograph.workload.settings import Settings

__all__ = ["GONE_S", "Monitor", "Reasons", "reasons"]

GONE_S = 300.0  # so long a GPU that the source names no more is shown as lost
_UNKNOWN = np.uint8(CLASSES.index(UNKNOWN))
_UNKNOWN_HEALTH = np.uint8(STATES.index(of_health.UNKNOWN))


class Monitor:
    """Makes views of snapshots, one after the other; memory is that of what it keeps, not of time."""

    def __init__(self, about: About, *, settings: Settings, history: History, keep_events: int = 1000) -> None:
        self.about, self.settings, self.history = about, settings, history
        self._window = Window(settings)
        self._replays = Replays(settings.event_memory_s)
        self._happenings = Happenings(hold_s=settings.smoothing_s, keep=keep_events)
        self._gpus: tuple[Gpu, ...] = ()
        self._places: Mapping[Gpu, int] = {}
        self._named_at: dict[Gpu, float] = {}  # of GPUs that the source names no more: when it did last
        self._measured: Floats = np.empty(0)  # last, of each GPU
        self._devices: Mapping[Gpu, Device] = {}
        self._limits = limit_columns([])
        self._named: tuple[Gpu, ...] = ()
        self._t = 0.0

    def step(self, snapshot: Snapshot, about: About | None = None) -> View:
        """Return what is to be shown of a snapshot. about: what the source says of itself now, where that is new."""
        self.about = about or self.about
        named = snapshot.gpus
        snapshot = self._with_lost(snapshot)
        size, t = len(snapshot.gpus), snapshot.t
        if snapshot.gpus != self._gpus:
            self._rearrange(snapshot.gpus)
            self._set_limits(snapshot)
        elif snapshot.devices is not self._devices and snapshot.devices != self._devices:
            self._set_limits(snapshot)
        told = ~np.isnan(snapshot.measured) & _tells(snapshot)
        measured = np.where(told, snapshot.measured, np.nan)
        self._measured = np.where(told, measured, self._measured)
        labels = self._window.step(t, measured, snapshot.values)
        replays = self._replays.step(t, snapshot.column("pcie_replays"))
        values = {name: replays if name == "pcie_replays" else snapshot.column(name) for name in INPUTS}
        health = np.where(told, health_states(values, self._limits), _UNKNOWN_HEALTH)
        shown = np.where(told, labels.shown, _UNKNOWN)
        self.history = self.history.of(snapshot.gpus)
        self.history.add(snapshot)
        is_named = np.ones(size, np.bool_)
        if len(named) < size:
            is_named[[self._places[gpu] for gpu in self._named_at]] = False
        view = View(
            about=self.about,
            snapshot=snapshot,
            labels=shown,
            raw=np.where(told, labels.raw, _UNKNOWN),
            real=np.where(told, labels.real, np.nan),
            health=health,
            told=told,
            stale_s=np.maximum(t - self._measured, 0.0),
            history=self.history,
            events=(),
            settings=self.settings,
            means=labels.means,
            replays=replays,
        )
        events = self._happenings.step(Seen(snapshot, told, is_named, shown, health), lambda row: _why(view, row))
        return replace(view, events=events)

    def _with_lost(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot, with GPUs that it named a while ago: they tell nothing."""
        t = snapshot.t
        if snapshot.gpus != self._named:
            now = set(snapshot.gpus)
            self._named_at = {gpu: then for gpu, then in self._named_at.items() if gpu not in now}
            self._named_at |= {gpu: self._t for gpu in self._named if gpu not in now}
            self._named = snapshot.gpus
        self._named_at = {gpu: then for gpu, then in self._named_at.items() if abs(t - then) < GONE_S}
        self._t = t
        if not self._named_at:
            return snapshot
        gpus = _together(snapshot.gpus, list(self._named_at))
        places = {gpu: place for place, gpu in enumerate(gpus)}
        rows = np.array([places[gpu] for gpu in snapshot.gpus], np.int64)
        lost = {gpu: self._devices[gpu] for gpu in self._named_at if gpu in self._devices}
        return replace(
            snapshot,
            gpus=gpus,
            measured=_put(snapshot.measured, rows, len(gpus)),
            values={name: _put(column, rows, len(gpus)) for name, column in snapshot.values.items()},
            devices={**snapshot.devices, **lost},
        )

    def _rearrange(self, gpus: tuple[Gpu, ...]) -> None:
        """Other GPUs, or in another order: those that stay keep what is known of them."""
        places = np.array([self._places.get(gpu, -1) for gpu in gpus], np.int64)
        for part in (self._window, self._replays, self._happenings):
            part.rearrange(places)
        measured = np.full(len(gpus), np.nan)
        measured[places >= 0] = self._measured[places[places >= 0]]
        self._measured = measured
        self._gpus = gpus
        self._places = {gpu: place for place, gpu in enumerate(gpus)}

    def _set_limits(self, snapshot: Snapshot) -> None:
        """Temperatures of the devices, once for as long as they stay."""
        self._devices = snapshot.devices
        devices = [snapshot.devices.get(gpu) or Device() for gpu in snapshot.gpus]
        self._limits = limit_columns([limits_of(device.model, device.slowdown_c) for device in devices])


def _why(view: View, row: int) -> str:
    """Why the health of a GPU is what it is."""
    device = view.snapshot.devices.get(view.snapshot.gpus[row]) or Device()
    limits = limits_of(device.model, device.slowdown_c)
    return health_reason(health_reading(view, row), limits, within_s=view.settings.event_memory_s)


def _tells(snapshot: Snapshot) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which GPUs tell anything."""
    tells = np.zeros(len(snapshot.gpus), np.bool_)
    for column in snapshot.values.values():
        tells |= column == column
    return tells


def _put(column: Floats, rows: Longs, size: int) -> Floats:
    """A column with places of GPUs that tell nothing."""
    found = np.full(size, np.nan)
    found[rows] = column
    return found


def _together(named: Sequence[Gpu], lost: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """GPUs in the order of the source; those it names no more behind the others of their node."""
    last = {gpu.node: place for place, gpu in enumerate(named)}
    end = len(named)
    order = sorted(
        [*((place, 0, gpu) for place, gpu in enumerate(named)), *((last.get(gpu.node, end), 1, gpu) for gpu in lost)],
        key=lambda one: (one[0], one[1], one[2].node if one[1] else "", one[2].gpu, _slice(one[2])),
    )
    return tuple(gpu for _, _, gpu in order)


def _slice(gpu: Gpu) -> int:
    return -1 if gpu.mig is None else gpu.mig
