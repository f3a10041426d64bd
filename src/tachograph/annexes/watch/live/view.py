"""The content of a screen at one time: snapshot, classes, health, history, reasons."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tachograph.annexes.watch.explained import explained
from tachograph.annexes.watch.live.snapshot import (
    GpuId,
    Snapshot,
    SourceInfo,
    moved,
    old_places,
)
from tachograph.catalog.arrays import Bytes, Flags, Floats, Longs, Singles
from tachograph.judge.health import (
    INPUTS,
    NEW_ERRORS,
    STATES,
    Health,
    HealthLimits,
    HealthReading,
    health_of,
    health_reason,
    limits_of,
)
from tachograph.judge.workload.classes import WORKLOAD_CLASSES, Bottleneck, bottleneck
from tachograph.judge.workload.rules import Classified, GpuReading, classify, reading_of
from tachograph.judge.workload.settings import WorkloadSettings


class GpuHistory:
    """Last `capacity` snapshots: (counters x snapshots x GPUs), single precision, NaN missing.

    Of 1,000 GPUs with 25 counters 600 snapshots take 60 MB.
    """

    def __init__(self, capacity: int = 600) -> None:
        self.capacity = capacity
        self._gpus: tuple[GpuId, ...] = ()
        self._t: Floats = np.full(capacity, np.nan)
        self._values: dict[str, Singles] = {}
        self._next = 0
        self._stored = 0

    def of(self, gpus: tuple[GpuId, ...]) -> GpuHistory:
        """Return the history for these GPUs: this one, or a rearranged copy.

        A view that is still shown has its own GPUs in its history, independent of later views.
        """
        if gpus == self._gpus:
            return self
        rearranged = copy.copy(self)
        rearranged._t = self._t.copy()
        rearranged._rearrange(gpus)
        return rearranged

    def add(self, snapshot: Snapshot) -> None:
        """Store a snapshot, dropping the oldest and the GPUs that are no longer reported."""
        if snapshot.gpus != self._gpus:
            self._rearrange(snapshot.gpus)
        index = self._next
        self._t[index] = snapshot.t
        for counter in {**self._values, **snapshot.values}:
            ring = self._values.get(counter)
            if ring is None:
                ring = self._values[counter] = np.full(
                    (self.capacity, len(self._gpus)), np.nan, np.float32
                )
            with np.errstate(over="ignore"):  # values beyond single precision become infinite
                ring[index] = snapshot.column(counter)
            ring[index][np.isinf(ring[index])] = np.nan
        self._next = (index + 1) % self.capacity
        self._stored = min(self._stored + 1, self.capacity)

    @property
    def bytes(self) -> int:
        """Memory of the values, bytes."""
        return self._t.nbytes + sum(ring.nbytes for ring in self._values.values())

    def times(self) -> Floats:
        """When the snapshots were taken, oldest first (seconds since 1970)."""
        return self._t[self._order()]

    def series(self, counter: str, row: int) -> Singles:
        """Values of one GPU at `times`; all NaN for unknown counters."""
        return self.block(counter, [row])[:, 0]

    def block(self, counter: str, rows: Sequence[int]) -> Singles:
        """Values of some GPUs at `times`: (snapshots x GPUs); all NaN for unknown counters."""
        ring = self._values.get(counter)
        if ring is None:
            return np.full((self._stored, len(rows)), np.nan, np.float32)
        # GPUs first: of one GPU the ring of all need not be copied
        return ring.take(rows, axis=1).take(self._order(), axis=0)

    def _order(self) -> Longs:
        order: Longs = (
            np.arange(self._next - self._stored, self._next, dtype=np.int64) % self.capacity
        )
        return order

    def _rearrange(self, gpus: tuple[GpuId, ...]) -> None:
        """Columns for other GPUs, in arrays of their own; those that stay keep their values."""
        old_rows = old_places(self._gpus, gpus)
        self._values = {counter: moved(ring, old_rows) for counter, ring in self._values.items()}
        self._gpus = gpus


def _reading_in(columns: Mapping[str, Floats], row: int) -> GpuReading:
    return reading_of({name: float(column[row]) for name, column in columns.items()})


@dataclass(frozen=True, slots=True)
class FleetView:
    """One row per GPU, in the order of `snapshot.gpus`.

    labels: smoothed classes, as indices of CLASSES. real: real utilisation 0..1, NaN unknown.
    health: indices of STATES. current: False for a GPU without values now. stale_s: age of its
    values, NaN: never any. settings: of the classes. means: of counters over the label's window,
    NaN missing. errors: new visible ones by counter, NaN unknown; empty if not counted.
    """

    about: SourceInfo
    snapshot: Snapshot
    labels: Bytes
    real: Floats
    health: Bytes
    current: Flags
    stale_s: Floats
    history: GpuHistory
    settings: WorkloadSettings = field(default_factory=WorkloadSettings)
    means: Mapping[str, Floats] = field(default_factory=dict)
    errors: Mapping[str, Floats] = field(default_factory=dict)

    def label(self, row: int) -> str:
        """The class of a GPU, as shown."""
        return WORKLOAD_CLASSES[int(self.labels[row])]

    def bottleneck(self, row: int) -> Bottleneck:
        """The limit of a GPU."""
        return bottleneck(self.label(row))

    def reading(self, row: int) -> GpuReading:
        """The values of a GPU now."""
        return _reading_in(self.snapshot.values, row)

    def reading_of_window(self, row: int) -> GpuReading:
        """Means of a GPU over the window, for its class; empty without current values."""
        if not self.current[row]:
            return GpuReading()
        return _reading_in(self.means or self.snapshot.values, row)

    def limits(self, row: int) -> HealthLimits:
        """The limits of health of a GPU."""
        device = self.snapshot.device(row)
        return limits_of(device.model, device.slowdown_c)

    def state(self, row: int) -> str:
        """The health of a GPU."""
        return STATES[int(self.health[row])]


@dataclass(frozen=True, slots=True)
class GpuReasons:
    """The reasons for class and health of one GPU.

    classified: of the means over the window, from which the class shown comes. why: its rule with
    its values. health_why: the problem, "" without one.
    """

    classified: Classified
    health: Health
    limits: HealthLimits
    why: str
    health_why: str


def gpu_reasons(view: FleetView, row: int) -> GpuReasons:
    """Return why the GPU in a row of a view has its class and its health."""
    settings = view.settings
    of_window, limits, evidence = (
        view.reading_of_window(row),
        view.limits(row),
        health_reading(view, row),
    )
    classified, health = classify(of_window, settings), health_of(evidence, limits)
    why = explained(of_window, settings) if view.current[row] else "no values now"
    if view.current[row] and classified.name != view.label(row):
        why = f"now {classified.name} ({why}); {view.label(row)} shown until the change lasts"
    return GpuReasons(
        classified,
        health,
        limits,
        why,
        health_reason(evidence, limits, within_s=settings.event_memory_s),
    )


def health_reading(view: FleetView, row: int) -> HealthReading:
    """Return the evidence on the health of a GPU: of errors those that are still visible."""
    values = {name: view.snapshot.value(name, row) for name in INPUTS if name not in NEW_ERRORS}
    for name, errors in view.errors.items():
        values[name] = None if np.isnan(errors[row]) else float(errors[row])
    return HealthReading(**values)
