"""Converts snapshots to views: smoothed classes, health, lost GPUs.

Classes and health are from the functions that evaluate stored data.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tachograph.annexes.watch.live.snapshot import (
    GpuDevice,
    GpuId,
    Snapshot,
    SourceInfo,
    moved,
    old_places,
    rearranged,
)
from tachograph.annexes.watch.live.view import FleetView, GpuHistory
from tachograph.catalog.arrays import Bytes, Flags, Floats, Ints, Longs
from tachograph.judge import health as of_health
from tachograph.judge.health import (
    INPUTS,
    NEW_ERRORS,
    STATES,
    health_states,
    limit_columns,
    limits_of,
)
from tachograph.judge.workload.arrays import COUNTERS, classify_rows
from tachograph.judge.workload.classes import UNKNOWN, WORKLOAD_CLASSES
from tachograph.judge.workload.settings import WorkloadSettings

_UNKNOWN = WORKLOAD_CLASSES.index(UNKNOWN)
# Polls that a window holds; of one with more, the newest: a poll of 1,000 GPUs takes 90 kB.
MOST_POLLS = 1200


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
    def none(cls) -> _GpuStates:
        """States of no GPU."""
        t, real, since = np.empty((3, 0))
        shown, candidate = np.empty((2, 0), np.uint8)
        return cls(t, real, since, shown, candidate, np.empty((len(COUNTERS), 0), np.int32))


@dataclass(slots=True)
class _PolledReadings:
    """Readings of a poll by GPU: when measured, values (0: missing), which have one.

    arrived: when the poll was received. alive: GPUs with a new reading in it.
    """

    arrived: float
    times: Floats
    values: Floats
    has_value: Flags
    alive: Flags


class SmoothingWindow:
    """Readings of the last `smoothing_s` of GPUs, and the labels from them.

    A poll is of all GPUs; empty for those without a new reading. So a GPU's readings are in their
    order, and sums over polls round as sums over its readings do. Polls beyond every window are
    dropped, and after two windows also those of GPUs that reported nothing since.
    """

    def __init__(self, settings: WorkloadSettings, *, most_polls: int = MOST_POLLS) -> None:
        self.settings, self.most_polls = settings, most_polls
        self._gpus = _GpuStates.none()
        self._polls: deque[_PolledReadings] = deque()

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

    def rearrange(self, old_rows: Longs) -> None:
        """Change the GPUs: `old_rows` are old indices, -1 for new GPUs."""
        self._gpus = rearranged(self._gpus, old_rows, shown=_UNKNOWN, candidate=_UNKNOWN, counts=0)
        polls = (rearranged(poll, old_rows, values=0, has_value=0, alive=0) for poll in self._polls)
        self._polls = deque(polls)

    def _forget(self, now: float, begins: Flags, until: Floats) -> None:
        """Remove readings up to `until` per GPU, all of restarted GPUs, and empty polls."""
        for poll in self._polls:
            gone = poll.alive & ((poll.times <= until) | begins)
            if gone.any():
                self._drop(poll, gone)
        age_s = 2 * self.settings.smoothing_s
        while self._polls:
            oldest = self._polls[0]
            if oldest.alive.any():
                is_recent = 0 <= now - oldest.arrived < age_s
                if is_recent and len(self._polls) < self.most_polls:
                    break
                self._drop(oldest, oldest.alive.copy())
            self._polls.popleft()

    def _drop(self, poll: _PolledReadings, gone: Flags) -> None:
        self._gpus.counts[:, gone] -= poll.has_value[:, gone]
        poll.values[:, gone] = 0.0
        poll.has_value[:, gone] = False
        poll.alive[gone] = False

    def _keep(
        self, now: float, fresh: Flags, measured: Floats, values: Mapping[str, Floats]
    ) -> None:
        """Store the new readings."""
        missing = np.full(len(fresh), np.nan)
        columns = np.array([values.get(name, missing) for name in COUNTERS])
        has_value = fresh & ~np.isnan(columns)
        times = np.where(fresh, measured, np.nan)
        poll = _PolledReadings(
            now, times, np.where(has_value, columns, 0.0), has_value, fresh.copy()
        )
        self._polls.append(poll)
        self._gpus.counts += has_value

    def _means(self) -> Mapping[str, Floats]:
        sums = np.zeros(self._gpus.counts.shape)
        for poll in self._polls:
            sums += poll.values
        with np.errstate(invalid="ignore"):
            return dict(zip(COUNTERS, sums / self._gpus.counts, strict=True))

    def _take_over(
        self, fresh: Flags, begins: Flags, measured: Floats, means: Mapping[str, Floats]
    ) -> None:
        """Show the class of the means if it may replace the shown one."""
        gpus = self._gpus
        classes = classify_rows(means, len(fresh), self.settings).labels
        gpus.since = np.where(fresh & (begins | (classes != gpus.candidate)), measured, gpus.since)
        lasting = measured - gpus.since >= self.settings.smoothing_s / 2
        changes = begins | lasting | (classes == _UNKNOWN) | (gpus.shown == _UNKNOWN)
        gpus.shown = np.where(fresh & changes, classes, gpus.shown)
        gpus.candidate = np.where(fresh, classes, gpus.candidate)


class RecentErrors:
    """New errors of a counter within the last `keep_s` seconds, and each GPU's last count.

    Few GPUs ever have one, so only polls with new ones are kept.
    """

    def __init__(self, keep_s: float) -> None:
        self.keep_s = keep_s
        self._count: Floats = np.empty(0)
        self._counted_at: Floats = np.empty(0)  # when new ones were counted last, none among them
        self._events: list[tuple[float, Floats]] = []  # when, new ones of each GPU

    def step(self, t: float, count: Floats) -> Floats:
        """Return new visible errors of each GPU at `t`; NaN with fewer than two counts.

        count: errors since the driver was loaded, NaN missing; one that went back began again.
        """
        begun = ~np.isnan(count) & ~np.isnan(self._count)
        new = np.where(count >= self._count, count - self._count, count)
        self._counted_at = np.where(begun, t, self._counted_at)
        self._count = np.where(np.isnan(count), self._count, count)
        new = np.where(begun & (new > 0), new, 0.0)
        if new.any():
            self._events.append((t, new))
        recent = self._counted_at > t - self.keep_s
        # Permanently, if the clock goes back.
        self._counted_at = np.where(recent, self._counted_at, np.nan)
        self._events = [event for event in self._events if event[0] > t - self.keep_s]
        visible = np.zeros(len(count))
        for _, errors in self._events:
            visible += errors
        return np.where(np.isnan(self._counted_at) & (visible == 0), np.nan, visible)

    def rearrange(self, old_rows: Longs) -> None:
        """Change the GPUs: `old_rows` are old indices, -1 for new GPUs."""
        self._count = moved(self._count, old_rows)
        self._counted_at = moved(self._counted_at, old_rows)
        self._events = [(t, moved(new, old_rows, 0.0)) for t, new in self._events]


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
        self._errors = {name: RecentErrors(settings.event_memory_s) for name in NEW_ERRORS}
        self._gpus: tuple[GpuId, ...] = ()
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
        current = ~np.isnan(snapshot.measured) & snapshot.has_values()
        measured = np.where(current, snapshot.measured, np.nan)
        self._measured = np.where(current, measured, self._measured)
        labels = self._window.step(t, measured, snapshot.values)
        errors = {name: of.step(t, snapshot.column(name)) for name, of in self._errors.items()}
        values = {name: snapshot.column(name) for name in INPUTS} | errors
        health = np.where(current, health_states(values, self._limits), _UNKNOWN_HEALTH)
        shown = np.where(current, labels.shown, _UNKNOWN_CLASS)
        self.history = self.history.of(snapshot.gpus)
        self.history.add(snapshot)
        return FleetView(
            about=self.about,
            snapshot=snapshot,
            labels=shown,
            real=np.where(current, labels.real, np.nan),
            health=health,
            current=current,
            stale_s=np.maximum(t - self._measured, 0.0),
            history=self.history,
            settings=self.settings,
            means=labels.means,
            errors=errors,
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
        lost = {gpu: self._devices[gpu] for gpu in self._lost_since if gpu in self._devices}
        return replace(snapshot.of(gpus), devices={**snapshot.devices, **lost})

    def _rearrange(self, gpus: tuple[GpuId, ...]) -> None:
        """Other GPUs, or in another order: those that stay keep their state."""
        old_rows = old_places(self._gpus, gpus)
        self._window.rearrange(old_rows)
        for errors in self._errors.values():
            errors.rearrange(old_rows)
        self._measured = moved(self._measured, old_rows)
        self._gpus = gpus

    def _set_limits(self, snapshot: Snapshot) -> None:
        """Temperatures of the devices, computed once while these are unchanged."""
        self._devices = snapshot.devices
        devices = [snapshot.device(row) for row in range(len(snapshot.gpus))]
        self._limits = limit_columns(
            [limits_of(device.model, device.slowdown_c) for device in devices]
        )


def _with_lost_gpus(listed: Sequence[GpuId], lost: Sequence[GpuId]) -> tuple[GpuId, ...]:
    """Return GPUs in source order, each node's lost GPUs after its others."""
    last = {gpu.host: index for index, gpu in enumerate(listed)}
    end = len(listed)
    order = sorted(
        [
            *((index, 0, gpu) for index, gpu in enumerate(listed)),
            *((last.get(gpu.host, end), 1, gpu) for gpu in lost),
        ],
        key=lambda entry: (entry[0], entry[1], entry[2].order()),
    )
    return tuple(gpu for _, _, gpu in order)
