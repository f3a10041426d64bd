"""Converts snapshots to views: smoothed classes, health, lost GPUs.

Classes and health are from the functions that evaluate stored data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from tachograph.annexes.watch.live.snapshot import (
    GpuDevice,
    GpuId,
    Snapshot,
    SourceInfo,
    spread_rows,
)
from tachograph.annexes.watch.live.view import FleetView, GpuHistory
from tachograph.catalog.arrays import Bytes, Flags, Floats, Ints, Longs
from tachograph.judge import health as of_health
from tachograph.judge.health import INPUTS, STATES, health_states, limit_columns, limits_of
from tachograph.judge.workload.arrays import COUNTERS, classify_rows
from tachograph.judge.workload.classes import UNKNOWN, WORKLOAD_CLASSES
from tachograph.judge.workload.settings import WorkloadSettings

_UNKNOWN = WORKLOAD_CLASSES.index(UNKNOWN)
_FIRST_SLOTS = 64
# Polls that a window holds; of one with more, the newest: a poll of 1,000 GPUs takes 90 kB.
MOST_SLOTS = 1200


@dataclass(frozen=True, slots=True)
class ClassLabels:
    """Labels by GPU. shown: smoothed classes, as indices of CLASSES.

    real: real utilisation of the last reading, NaN unknown. means: of each counter over the window,
    NaN missing.
    """

    shown: Bytes
    real: Floats
    means: Mapping[str, Floats]


@dataclass(slots=True)
class _GpuStates:
    """State of GPUs: last measurement, labels, number of readings of each counter."""

    t: Floats
    real: Floats
    since: Floats
    shown: Bytes
    candidate: Bytes
    counts: Ints

    @classmethod
    def new(cls, size: int) -> _GpuStates:
        """GPUs without any reading."""
        t, real, since = (np.full(size, np.nan) for _ in range(3))
        shown, candidate = (np.full(size, _UNKNOWN, np.uint8) for _ in range(2))
        return cls(t, real, since, shown, candidate, np.zeros((len(COUNTERS), size), np.int32))


@dataclass(slots=True)
class _PolledReadings:
    """Readings by slot and GPU: times measured and received; values (0: missing); presence."""

    times: Floats
    arrived: Floats
    values: Floats
    known: Flags
    alive: Flags

    @classmethod
    def new(cls, slots: int, size: int) -> _PolledReadings:
        """Empty slots."""
        shape = (slots, len(COUNTERS), size)
        return cls(
            np.full((slots, size), np.nan),
            np.zeros(slots),
            np.zeros(shape),
            np.zeros(shape, np.bool_),
            np.zeros((slots, size), np.bool_),
        )


class SmoothingWindow:
    """Readings of the last `smoothing_s` of GPUs, and the labels from them.

    A poll is one slot of all GPUs; empty for those without a new reading. So a GPU's readings are
    in their order, and sums over slots round as sums over its readings do. Slots beyond every
    window are dropped, and after two windows also those of GPUs that reported nothing since.
    """

    def __init__(self, settings: WorkloadSettings, *, most_slots: int = MOST_SLOTS) -> None:
        self.settings, self.most_slots = settings, most_slots
        self._gpus = _GpuStates.new(0)
        self._polls = _PolledReadings.new(_FIRST_SLOTS, 0)
        self._begin = self._end = 0

    def step(self, now: float, measured: Floats, values: Mapping[str, Floats]) -> ClassLabels:
        """Return the labels after a poll at `now`.

        measured: when the values of each GPU were measured; where that is unchanged, or NaN, there
        is no new reading. values: {counter: value per GPU, NaN missing}.
        """
        gpus, window_s = self._gpus, self.settings.smoothing_s
        fresh = ~np.isnan(measured) & (measured != gpus.t)
        real = classify_rows(values, len(measured), self.settings).real
        gpus.real = np.where(fresh, real, gpus.real)
        passed = measured - gpus.t
        # With NaN, or without a window, it begins again.
        continues = fresh & (passed >= 0) & (passed < window_s)
        begins = fresh & ~continues
        self._forget(now, begins, np.where(continues, measured - window_s, -np.inf))
        if fresh.any():
            self._keep(now, fresh, measured, values)
        means = self._means()
        self._take_over(fresh, begins, measured, means)
        gpus.t = np.where(fresh, measured, gpus.t)
        return ClassLabels(gpus.shown, gpus.real, means)

    def rearrange(self, places: Longs) -> None:
        """Change the GPUs: `places` are old indices, -1 for new GPUs."""
        stays = places >= 0
        gpus, polls = (
            _GpuStates.new(len(places)),
            _PolledReadings.new(len(self._polls.times), len(places)),
        )
        for kept, before in ((gpus, self._gpus), (polls, self._polls)):
            for one in fields(kept):
                if one.name == "arrived":
                    polls.arrived = self._polls.arrived
                else:
                    getattr(kept, one.name)[..., stays] = getattr(before, one.name)[
                        ..., places[stays]
                    ]
        self._gpus, self._polls = gpus, polls

    def _forget(self, now: float, begins: Flags, until: Floats) -> None:
        """Remove readings up to `until` per GPU, all of restarted GPUs, and empty slots."""
        held = slice(self._begin, self._end)
        gone = self._polls.alive[held] & ((self._polls.times[held] <= until) | begins)
        for place in np.flatnonzero(gone.any(axis=1)).tolist():
            self._drop(held.start + place, gone[place])
        age_s = 2 * self.settings.smoothing_s
        while self._begin < self._end:
            slot = self._begin
            if self._polls.alive[slot].any():
                if (
                    0 <= now - self._polls.arrived[slot] < age_s
                    and self._end - slot < self.most_slots
                ):
                    break
                self._drop(slot, self._polls.alive[slot].copy())
            self._begin += 1

    def _drop(self, slot: int, gone: Flags) -> None:
        self._gpus.counts[:, gone] -= self._polls.known[slot][:, gone]
        self._polls.values[slot][:, gone] = 0.0
        self._polls.known[slot][:, gone] = False
        self._polls.alive[slot][gone] = False

    def _keep(
        self, now: float, fresh: Flags, measured: Floats, values: Mapping[str, Floats]
    ) -> None:
        """Store the new readings in a new slot."""
        if self._end == len(self._polls.times):
            self._make_room()
        slot = self._end
        self._polls.times[slot] = np.where(fresh, measured, np.nan)
        self._polls.arrived[slot] = now
        self._polls.alive[slot] = fresh
        for place, name in enumerate(COUNTERS):
            column = values.get(name)
            known = np.zeros(len(fresh), np.bool_) if column is None else fresh & ~np.isnan(column)
            self._polls.known[slot, place] = known
            self._polls.values[slot, place] = (
                0.0 if column is None else np.where(known, column, 0.0)
            )
        self._gpus.counts += self._polls.known[slot]
        self._end += 1

    def _make_room(self) -> None:
        """Compact the used slots to the front; double the capacity if more than half is used."""
        polls, count = self._polls, self._end - self._begin
        slots = len(polls.times)
        if count * 2 > slots:
            self._polls = _PolledReadings.new(slots * 2, polls.times.shape[1])
        for one in fields(polls):
            getattr(self._polls, one.name)[:count] = getattr(polls, one.name)[
                self._begin : self._end
            ]
        self._begin, self._end = 0, count

    def _means(self) -> Mapping[str, Floats]:
        sums = np.add.reduce(self._polls.values[self._begin : self._end], axis=0)
        with np.errstate(invalid="ignore"):
            return dict(zip(COUNTERS, sums / self._gpus.counts, strict=True))

    def _take_over(
        self, fresh: Flags, begins: Flags, measured: Floats, means: Mapping[str, Floats]
    ) -> None:
        """Show the class of the means if it may replace the shown one."""
        gpus = self._gpus
        found = classify_rows(means, len(fresh), self.settings).labels
        gpus.since = np.where(fresh & (begins | (found != gpus.candidate)), measured, gpus.since)
        lasting = measured - gpus.since >= self.settings.smoothing_s / 2
        changes = begins | lasting | (found == _UNKNOWN) | (gpus.shown == _UNKNOWN)
        gpus.shown = np.where(fresh & changes, found, gpus.shown)
        gpus.candidate = np.where(fresh, found, gpus.candidate)


class RecentReplays:
    """New replays within the last `keep_s` seconds, and each GPU's last count.

    Few GPUs ever have one, so only those that do are examined one by one.
    """

    def __init__(self, keep_s: float) -> None:
        self.keep_s = keep_s
        self._count: Floats = np.empty(0)
        self._counted_at: Floats = np.empty(0)  # when new ones were counted last, none among them
        # {GPU: (when, new ones)}.
        self._events: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)

    def step(self, t: float, count: Floats) -> Floats:
        """Return new visible replays of each GPU at `t`; NaN with fewer than two counts.

        count: replays since the driver was loaded, NaN missing; one that went back began again.
        """
        begun = ~np.isnan(count) & ~np.isnan(self._count)
        new = np.where(count >= self._count, count - self._count, count)
        self._counted_at = np.where(begun, t, self._counted_at)
        self._count = np.where(np.isnan(count), self._count, count)
        for row in np.flatnonzero(begun & (new > 0)).tolist():
            self._events[row].append((t, float(new[row])))
        recent = self._counted_at > t - self.keep_s
        # Permanently, if the clock goes back.
        self._counted_at = np.where(recent, self._counted_at, np.nan)
        visible = np.where(np.isnan(self._counted_at), np.nan, 0.0)
        for row, events in list(self._events.items()):
            kept = [event for event in events if event[0] > t - self.keep_s]
            if kept:
                self._events[row] = kept
                visible[row] = sum(one for _, one in kept)
            else:
                del self._events[row]
        return visible

    def rearrange(self, places: Longs) -> None:
        """Change the GPUs: `places` are old indices, -1 for new GPUs."""
        stays = places >= 0
        count, counted_at = np.full(len(places), np.nan), np.full(len(places), np.nan)
        count[stays], counted_at[stays] = (
            self._count[places[stays]],
            self._counted_at[places[stays]],
        )
        events = self._events
        self._events = defaultdict(list)
        self._events.update(
            {new: events[old] for new, old in enumerate(places.tolist()) if old in events}
        )
        self._count, self._counted_at = count, counted_at


GONE_S = 300.0  # a GPU that the source no longer reports is shown as lost for so long
_UNKNOWN_CLASS = np.uint8(WORKLOAD_CLASSES.index(UNKNOWN))
_UNKNOWN_HEALTH = np.uint8(STATES.index(of_health.HEALTH_UNKNOWN))


class Monitor:
    """Turns snapshots into views; memory does not grow with time."""

    def __init__(
        self, about: SourceInfo, *, settings: WorkloadSettings, history: GpuHistory
    ) -> None:
        self.about, self.settings, self.history = about, settings, history
        self._window = SmoothingWindow(settings)
        self._replays = RecentReplays(settings.event_memory_s)
        self._gpus: tuple[GpuId, ...] = ()
        self._places: Mapping[GpuId, int] = {}
        # Of GPUs that the source no longer reports: when it did last.
        self._lost_since: dict[GpuId, float] = {}
        self._measured: Floats = np.empty(0)  # last, of each GPU
        self._devices: Mapping[GpuId, GpuDevice] = {}
        self._limits = limit_columns([])
        self._listed: tuple[GpuId, ...] = ()
        self._t = 0.0

    def step(self, snapshot: Snapshot, about: SourceInfo | None = None) -> FleetView:
        """Return the view of a snapshot. about: the source's description, if it changed."""
        self.about = about or self.about
        snapshot = self._with_lost(snapshot)
        t = snapshot.t
        if snapshot.gpus != self._gpus:
            self._rearrange(snapshot.gpus)
            self._set_limits(snapshot)
        elif snapshot.devices is not self._devices and snapshot.devices != self._devices:
            self._set_limits(snapshot)
        reported = ~np.isnan(snapshot.measured) & snapshot.has_values()
        measured = np.where(reported, snapshot.measured, np.nan)
        self._measured = np.where(reported, measured, self._measured)
        labels = self._window.step(t, measured, snapshot.values)
        replays = self._replays.step(t, snapshot.column("pcie_replays"))
        values = {
            name: replays if name == "pcie_replays" else snapshot.column(name) for name in INPUTS
        }
        health = np.where(reported, health_states(values, self._limits), _UNKNOWN_HEALTH)
        shown = np.where(reported, labels.shown, _UNKNOWN_CLASS)
        self.history = self.history.of(snapshot.gpus)
        self.history.add(snapshot)
        return FleetView(
            about=self.about,
            snapshot=snapshot,
            labels=shown,
            real=np.where(reported, labels.real, np.nan),
            health=health,
            reported=reported,
            stale_s=np.maximum(t - self._measured, 0.0),
            history=self.history,
            settings=self.settings,
            means=labels.means,
            replays=replays,
        )

    def _with_lost(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot, with GPUs of recent ones that are missing in it: they report nothing."""
        t = snapshot.t
        if snapshot.gpus != self._listed:
            now = set(snapshot.gpus)
            self._lost_since = {
                gpu: then for gpu, then in self._lost_since.items() if gpu not in now
            }
            self._lost_since |= {gpu: self._t for gpu in self._listed if gpu not in now}
            self._listed = snapshot.gpus
        self._lost_since = {
            gpu: then for gpu, then in self._lost_since.items() if abs(t - then) < GONE_S
        }
        self._t = t
        if not self._lost_since:
            return snapshot
        gpus = _with_lost_gpus(snapshot.gpus, list(self._lost_since))
        places = {gpu: place for place, gpu in enumerate(gpus)}
        rows = np.array([places[gpu] for gpu in snapshot.gpus], np.int64)
        lost = {gpu: self._devices[gpu] for gpu in self._lost_since if gpu in self._devices}
        return replace(
            snapshot,
            gpus=gpus,
            measured=spread_rows(snapshot.measured, rows, len(gpus)),
            values={
                name: spread_rows(column, rows, len(gpus))
                for name, column in snapshot.values.items()
            },
            devices={**snapshot.devices, **lost},
        )

    def _rearrange(self, gpus: tuple[GpuId, ...]) -> None:
        """Other GPUs, or in another order: those that stay keep their state."""
        places = np.array([self._places.get(gpu, -1) for gpu in gpus], np.int64)
        for part in (self._window, self._replays):
            part.rearrange(places)
        measured = np.full(len(gpus), np.nan)
        measured[places >= 0] = self._measured[places[places >= 0]]
        self._measured = measured
        self._gpus = gpus
        self._places = {gpu: place for place, gpu in enumerate(gpus)}

    def _set_limits(self, snapshot: Snapshot) -> None:
        """Temperatures of the devices, computed once while these are unchanged."""
        self._devices = snapshot.devices
        devices = [snapshot.device(row) for row in range(len(snapshot.gpus))]
        self._limits = limit_columns(
            [limits_of(device.model, device.slowdown_c) for device in devices]
        )


def _with_lost_gpus(listed: Sequence[GpuId], lost: Sequence[GpuId]) -> tuple[GpuId, ...]:
    """Return GPUs in source order, each node's lost GPUs after its others."""
    last = {gpu.node: place for place, gpu in enumerate(listed)}
    end = len(listed)
    order = sorted(
        [
            *((place, 0, gpu) for place, gpu in enumerate(listed)),
            *((last.get(gpu.node, end), 1, gpu) for gpu in lost),
        ],
        key=lambda one: (one[0], one[1], one[2].node if one[1] else "", *GpuId.order(one[2])[1:]),
    )
    return tuple(gpu for _, _, gpu in order)
