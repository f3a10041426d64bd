"""Kinds of simulated jobs: what their GPUs do over time, and which problem is planted in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

LONGEST_S = 36 * 3600  # of an ordinary job


class Kind(StrEnum):
    """What a job is like."""

    STEADY = "steady"
    MEMORY_BOUND = "memory_bound"
    COMPUTE_BOUND = "compute_bound"
    TENSOR = "tensor_training"
    NO_TENSOR = "no_tensor"
    LOW_UTILISATION = "low_utilisation"
    BURSTY = "bursty"
    HUNG = "hung"
    DEADLOCK = "deadlock"
    COLD_START = "cold_start"
    STALLED = "stalled"
    IDLE = "idle"
    ONE_GPU = "one_gpu_of_many"
    HALF_USED = "half_used"
    IMBALANCED = "imbalanced"
    LOW_MEMORY = "low_memory"
    FULL_MEMORY = "full_memory"
    SHORT = "short"
    DEBUG = "debug"
    CPU_ONLY = "cpu_only"


@dataclass(frozen=True, slots=True)
class Facts:
    """Planted problem (None: nothing wrong), share of jobs, least and most run time, least number of GPUs."""

    problem: str | None
    weight: float
    min_s: int = 240
    max_s: int = LONGEST_S
    min_gpus: int = 1


FACTS: Mapping[Kind, Facts] = MappingProxyType(
    {
        Kind.STEADY: Facts(None, 0.20),
        Kind.MEMORY_BOUND: Facts("memory_bound", 0.27),
        Kind.COMPUTE_BOUND: Facts(None, 0.07),
        Kind.TENSOR: Facts(None, 0.10),
        Kind.NO_TENSOR: Facts("no_tensor_use", 0.03),
        Kind.LOW_UTILISATION: Facts("low_utilisation", 0.05),
        Kind.BURSTY: Facts("bursty", 0.03, min_s=4800),
        Kind.HUNG: Facts("hung", 0.015, min_s=9000),
        Kind.DEADLOCK: Facts("busy_waiting", 0.01, min_s=9000, min_gpus=2),
        Kind.COLD_START: Facts("late_start", 0.02, min_s=4500),
        Kind.STALLED: Facts("stalled", 0.01, min_s=5400),
        Kind.IDLE: Facts("idle_job", 0.02, min_s=900),
        Kind.ONE_GPU: Facts("one_gpu_of_many", 0.05, min_s=900, min_gpus=4),
        Kind.HALF_USED: Facts("gpus_never_used", 0.02, min_s=900, min_gpus=4),
        Kind.IMBALANCED: Facts("imbalanced_gpus", 0.03, min_s=900, min_gpus=4),
        Kind.LOW_MEMORY: Facts("low_memory", 0.015),
        Kind.FULL_MEMORY: Facts("memory_nearly_full", 0.015),
        Kind.SHORT: Facts("short_job", 0.05, min_s=20, max_s=170),
        Kind.DEBUG: Facts(None, 0.05, max_s=1800),
        Kind.CPU_ONLY: Facts(None, 0.02),
    }
)

# {planted problem: the job class that tells it where it lasts long}
TOLD_AS: Mapping[str, str] = MappingProxyType(
    {"hung": "job_hang", "busy_waiting": "job_hang", "late_start": "cold_start", "stalled": "stall"}
)


class Level(NamedTuple):
    """Activity of a GPU at full work: fractions, MiB, bytes per second; `noise` is how far samples fall below.

    With `period_s` > 0 the GPU works during the first `duty` of each period and waits for the rest of it.
    """

    util: float = 0.0
    sm: float = 0.0
    occupancy: float = 0.0
    fp64: float = 0.0
    fp32: float = 0.0
    fp16: float = 0.0
    hmma: float = 0.0
    imma: float = 0.0
    dfma: float = 0.0
    dram: float = 0.0
    hbm_mib: float = 0.0
    pcie_rx: float = 0.0
    pcie_tx: float = 0.0
    nvlink: float = 0.0
    noise: float = 0.0
    period_s: float = 0.0
    duty: float = 1.0

    @property
    def heat(self) -> float:
        """Share of the range between idle and full power at full work."""
        pipes = self.fp64 + 0.7 * self.fp32 + 0.7 * self.fp16 + self.hmma + 0.7 * self.imma + self.dfma
        return min(1.0, 0.12 * self.util + 0.28 * self.sm + 0.4 * pipes + 0.35 * self.dram)

    @property
    def mean_factor(self) -> float:
        """Mean activity over full activity: noise is even between 1 - noise and 1."""
        return self.duty * (1 - self.noise / 2)

    def scaled(self, share: float) -> Level:
        """The same work at a share of the activity; memory held stays."""
        names = ("util", "sm", "occupancy", "fp64", "fp32", "fp16", "hmma", "imma", "dfma", "dram")
        scaled = {name: getattr(self, name) * share for name in (*names, "pcie_rx", "pcie_tx", "nvlink")}
        return self._replace(**scaled)


NOTHING_HELD_MIB = 4.0  # what a driver shows without any process


def idle(hbm_mib: float = NOTHING_HELD_MIB) -> Level:
    """Return the level of a GPU that does nothing; memory traffic near 1e-8 is what idle devices report."""
    return Level(dram=3e-8, hbm_mib=hbm_mib)


class Phase(NamedTuple):
    """From `begin_s` after the job's start to the next phase the GPU is at `level`."""

    begin_s: int
    level: Level


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one job behaves: its work, when loading ends, the planted interval (s after the start), GPUs that work.

    `uneven`: how far the work of a GPU may lie below that of the first one.
    """

    kind: Kind
    work: Level
    loaded_s: int
    planted: tuple[int, int] | None
    busy_slot: int
    spread: float
    uneven: float = 0.0

    def phases(self, slot: int, slots: int) -> list[Phase]:
        """Return what GPU number `slot` of `slots` does, from the start of the job on."""
        held = idle(self.work.hbm_mib)
        if self.kind is Kind.IDLE or not self._works(slot, slots):
            return [Phase(0, idle(min(self.work.hbm_mib, 1694.0) if slot % 2 else NOTHING_HELD_MIB))]
        work = self.work.scaled(self._share(slot))
        loading = Level(util=0.05, sm=0.02, occupancy=0.01, dram=0.01, pcie_rx=4e8, noise=0.2)
        loading = loading._replace(hbm_mib=float(round(self.work.hbm_mib * 0.4)))
        phases = [Phase(0, loading), Phase(self.loaded_s, work)] if self.loaded_s else [Phase(0, work)]
        if self.planted is not None:
            phases = self._with_silence(phases, held, work)
        return phases

    def _works(self, slot: int, slots: int) -> bool:
        if self.kind is Kind.ONE_GPU:
            return slot == self.busy_slot % slots
        return self.kind is not Kind.HALF_USED or slot < (slots + 1) // 2

    def _share(self, slot: int) -> float:
        """Share of the work of this GPU: one GPU has all, the others 10 to 35 %, in imbalanced jobs."""
        if slot == 0:
            return 1.0
        if self.kind is not Kind.IMBALANCED:
            return max(0.02, 1.0 - self.uneven * ((slot * 0.381966 + self.spread) % 1.0))
        return 0.10 + 0.25 * ((slot * 0.381966 + self.spread) % 1.0)

    def _with_silence(self, phases: list[Phase], held: Level, work: Level) -> list[Phase]:
        """No work in the planted interval; in a deadlock the GPU looks busy there."""
        begin, end = self.planted or (0, 0)
        silent = held._replace(util=1.0, sm=0.008, occupancy=0.001) if self.kind is Kind.DEADLOCK else held
        if self.kind is Kind.COLD_START:
            return [Phase(0, idle(NOTHING_HELD_MIB)), Phase(end, work)]
        kept = [phase for phase in phases if phase.begin_s < begin]
        after = [Phase(end, work)] if self.kind is Kind.STALLED else []
        return [*kept, Phase(begin, silent), *after]


_WORK: Mapping[Kind, Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        Kind.MEMORY_BOUND: {"util": (0.85, 1), "sm": (0.6, 0.84), "fp64": (0.08, 0.3), "dram": (0.5, 0.85)},
        Kind.COMPUTE_BOUND: {
            "util": (0.95, 1),
            "sm": (0.8, 0.93),
            "fp64": (0.35, 0.6),
            "dfma": (0.1, 0.3),
            "dram": (0.1, 0.22),
        },
        Kind.TENSOR: {
            "util": (0.85, 0.99),
            "sm": (0.65, 0.84),
            "hmma": (0.32, 0.58),
            "fp32": (0.06, 0.12),
            "fp16": (0.01, 0.04),
            "dram": (0.18, 0.28),
        },
        Kind.NO_TENSOR: {
            "util": (0.8, 0.98),
            "sm": (0.6, 0.79),
            "fp32": (0.36, 0.55),
            "fp16": (0.01, 0.06),
            "dram": (0.12, 0.25),
        },
        Kind.LOW_UTILISATION: {
            "util": (0.10, 0.24),
            "sm": (0.05, 0.09),
            "fp32": (0.01, 0.03),
            "fp64": (0.01, 0.04),
            "dram": (0.01, 0.04),
        },
        Kind.STEADY: {
            "util": (0.45, 0.95),
            "sm": (0.3, 0.44),
            "fp32": (0.04, 0.1),
            "fp64": (0.06, 0.18),
            "hmma": (0.02, 0.1),
            "dram": (0.1, 0.24),
        },
    }
)
_AS_TENSOR = frozenset({Kind.BURSTY, Kind.DEADLOCK, Kind.COLD_START, Kind.FULL_MEMORY})


def behave(
    kind: Kind, rng: np.random.Generator, *, elapsed_s: int, gpus: int, capacity_mib: float, usable_mib: float
) -> Behaviour:
    """Return how a job of `kind` behaves that runs `elapsed_s` on `gpus` GPUs of `capacity_mib` (nominal)."""
    source = kind if kind in _WORK else Kind.TENSOR if kind in _AS_TENSOR else Kind.STEADY
    drawn = {name: float(rng.uniform(low, high)) for name, (low, high) in _WORK[source].items()}
    drawn["occupancy"] = drawn["sm"] * float(rng.uniform(0.2, 0.7))
    share = float(rng.uniform(0.22, 0.92))
    if kind is Kind.LOW_MEMORY:
        share = float(rng.uniform(0.02, 0.15))
    elif kind is Kind.FULL_MEMORY:
        share = float(rng.uniform(0.96, 0.98))
    drawn["hbm_mib"] = float(min(round(share * capacity_mib), usable_mib - 64))
    drawn["pcie_rx"] = float(np.exp(rng.uniform(np.log(2e7), np.log(3e9))))
    drawn["pcie_tx"] = drawn["pcie_rx"] * float(rng.uniform(0.2, 0.8))
    drawn["nvlink"] = float(np.exp(rng.uniform(np.log(1e8), np.log(4e10)))) if gpus > 1 else 0.0
    drawn["noise"] = float(rng.uniform(0.04, 0.25))
    if kind is Kind.BURSTY:
        drawn["period_s"], drawn["duty"] = float(rng.integers(420, 780)), float(rng.uniform(0.35, 0.45))
    loaded_s = 0 if elapsed_s < 600 else int(rng.integers(15, 90))
    slot, spread = int(rng.integers(0, max(1, gpus))), float(rng.random())
    return Behaviour(kind, Level(**drawn), loaded_s, _planted(kind, rng, elapsed_s), slot, spread)


def _planted(kind: Kind, rng: np.random.Generator, elapsed_s: int) -> tuple[int, int] | None:
    """Seconds after the start in which nothing is done: to the end, from the start, or in the middle."""
    if kind in (Kind.HUNG, Kind.DEADLOCK):
        return min(int(elapsed_s * rng.uniform(0.35, 0.6)), elapsed_s - 4200), elapsed_s
    if kind is Kind.COLD_START:
        return 0, max(1200, int(elapsed_s * rng.uniform(0.25, 0.45)))
    if kind is Kind.STALLED:
        length = max(1200, int(elapsed_s * rng.uniform(0.15, 0.3)))
        begin = int(rng.integers(1500, elapsed_s - length - 900))
        return begin, begin + length
    return None
