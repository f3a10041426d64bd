"""Polls a source and writes new values to a spool, with little overhead."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from tachograph.annexes.watch.live.snapshot import (
    GpuDevice,
    GpuId,
    LiveSource,
    PmMeasurement,
    Snapshot,
    SourceProblem,
)
from tachograph.catalog.arrays import Flags, Floats, Ints, Longs
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.spool import SpoolRows, SpoolWriter
from tachograph.sources.score_sums import PmSums

SINGLES = tuple(counter.name for counter in COUNTERS if counter.storage == "f32")
# Whole numbers fit, too.
DOUBLES = tuple(counter.name for counter in COUNTERS if counter.storage != "f32")
ANONYMOUS_NODE = "node"  # before the number of a host
FLUSH_S = 5.0  # longest loss where the recorder is killed
_FLUSH_ROWS = 20_000  # kept in memory, at most
_PROBLEMS = 100  # different ones that are stored


@dataclass(slots=True)
class SpoolSampler:
    """Samples of one source in one spool, step by step.

    A row is written for each GPU with new values. A GPU that stops reporting leaves one row without
    values. anonymous: hosts are numbered, GPUs have no identity.
    """

    source: LiveSource
    spool: SpoolWriter
    anonymous: bool = False
    rows: int = 0
    _gpus: tuple[GpuId, ...] = ()
    _indices: Ints = field(default_factory=lambda: np.zeros(0, np.int32))
    _index_of: dict[GpuId, int] = field(default_factory=dict)
    _devices: dict[GpuId, GpuDevice] = field(default_factory=dict)
    _nodes: dict[str, str] = field(default_factory=dict)
    _measured: Floats = field(default_factory=lambda: np.zeros(0))  # by place; NaN: no values
    _problems: set[SourceProblem] = field(default_factory=set)
    _pm: dict[int, PmMeasurement] = field(default_factory=dict)  # by place, not written yet
    _began: float = 0.0
    _flushed: float = 0.0  # when, and at how many rows
    _written: int = 0

    def step(self) -> Snapshot:
        """Poll, keep new values, flush in time; return the snapshot. Errors: those of the
        source.
        """
        snapshot = self.source.read()
        self._note_gpus(snapshot)
        self._note_problems(snapshot)
        self._add(snapshot)
        for measurement in snapshot.pm:
            self._keep_pm(measurement)
        now = time.monotonic()
        self._began = self._began or now
        if (
            now - self._flushed >= min(FLUSH_S, (now - self._began) / 4)
            or self.rows - self._written >= _FLUSH_ROWS
        ):
            self._flushed, self._written = now, self.rows
            self.note_pm()
            self.spool.flush()
        return snapshot

    def note_pm(self) -> None:
        """Write the PM sampling results since the last call, before a flush."""
        for index, measurement in self._pm.items():
            sums = [minute.as_json() for minute in measurement.sums]
            cut = ",".join(measurement.cut)
            self.spool.note({"kind": "pm", "place": index, "cut": cut, "sums": sums})
        self._pm.clear()

    def _keep_pm(self, new: PmMeasurement) -> None:
        """Add the values to the pending minutes."""
        index = self._index_of[new.gpu]
        before = self._pm.get(index)
        minutes: dict[int, PmSums] = (
            {} if before is None else {sums.minute: sums for sums in before.sums}
        )
        for sums in new.sums:
            pending = minutes.setdefault(sums.minute, sums)
            if pending is not sums:
                pending.add(sums)
        self._pm[index] = PmMeasurement(new.gpu, tuple(minutes.values()), new.cut)

    def _note_gpus(self, snapshot: Snapshot) -> None:
        """Write GPUs and devices that are new or changed."""
        if snapshot.gpus != self._gpus:
            for gpu in snapshot.gpus:
                self._index_of.setdefault(gpu, len(self._index_of))
            self._gpus = snapshot.gpus
            self._indices = np.array([self._index_of[gpu] for gpu in snapshot.gpus], np.int32)
            grown = np.full(len(self._index_of), np.nan)
            grown[: len(self._measured)] = self._measured
            self._measured = grown
        new = [
            gpu
            for gpu in snapshot.gpus
            if self._devices.get(gpu) != snapshot.devices.get(gpu, GpuDevice())
        ]
        if new:
            self._devices |= {gpu: snapshot.devices.get(gpu, GpuDevice()) for gpu in new}
            self.spool.note({"kind": "gpus", "gpus": [self._described(gpu) for gpu in new]})

    def _described(self, gpu: GpuId) -> dict[str, Any]:
        device = self._devices[gpu]
        if self.anonymous:
            device = replace(device, uuid=None, pci=None)
        named = {"place": self._index_of[gpu], "node": self._node(gpu.node)}
        return named | {"gpu": gpu.gpu, "mig": gpu.mig} | asdict(device)

    def _node(self, name: str) -> str:
        if not self.anonymous:
            return name
        return self._nodes.setdefault(name, f"{ANONYMOUS_NODE}{len(self._nodes) + 1}")

    def _note_problems(self, snapshot: Snapshot) -> None:
        for problem in snapshot.problems:
            if problem not in self._problems and len(self._problems) < _PROBLEMS:
                self._problems.add(problem)
                message = problem.what if self.anonymous else problem.sentence
                self.spool.note({"kind": "problem", "t": snapshot.t, "text": message})

    def _add(self, snapshot: Snapshot) -> None:
        before = self._measured[self._indices]
        singles = _matrix(snapshot, SINGLES)
        doubles = _matrix(snapshot, DOUBLES)
        missing: Flags = np.isnan(snapshot.measured) | (
            np.isnan(singles).all(0) & np.isnan(doubles).all(0)
        )
        stopped = missing & ~np.isnan(before)
        write = (~missing & (snapshot.measured != before)) | stopped
        self._measured[self._indices] = np.where(missing, np.nan, snapshot.measured)
        count = int(np.count_nonzero(write))
        if not count:
            return
        at: Floats = np.where(missing, snapshot.t, snapshot.measured)[write]
        t: Longs = np.round(at * 1e6).astype(np.int64)
        written = singles[:, write].astype(np.float32)
        self.spool.add(SpoolRows(t, self._indices[write], written, doubles[:, write]))
        self.rows += count


def _matrix(snapshot: Snapshot, counters: tuple[str, ...]) -> Floats:
    """(counters x GPUs), NaN missing."""
    matrix = np.full((len(counters), len(snapshot.gpus)), np.nan)
    for index, counter in enumerate(counters):
        values = snapshot.values.get(counter)
        if values is not None:
            matrix[index] = values
    return matrix


def sample(sampler: SpoolSampler, *, interval_s: float, wait: Callable[[float], bool]) -> None:
    """Step at the interval until `wait(seconds)` returns True; skips late steps.

    The first step is taken at once. Errors: those of the source.
    """
    due = time.monotonic()
    while True:
        snapshot = sampler.step()
        if any(problem.fatal for problem in snapshot.problems):
            wait(float("inf"))
            return
        now = time.monotonic()
        due += interval_s * max(1, math.ceil((now - due) / interval_s))
        if wait(due - now):
            return
