"""Simulated GPUs of every workload class, some with faults, for demonstration and for tests.

Most GPUs have a job, every job a class that may change; the readings are the classes' profiles and
noise. Idle GPUs of every third job are free. With faults, one GPU of 32 is too hot while it works,
and of 64 one has lost memory rows and one repeats PCIe packets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from tachograph.annexes.watch.live.snapshot import (
    GpuAllocation,
    GpuDevice,
    GpuId,
    GpuProcess,
    Snapshot,
    SourceInfo,
)
from tachograph.catalog.arrays import Floats
from tachograph.catalog.units import plural
from tachograph.judge.workload.classes import FULL_IO_BYTES_PER_S, RULED

MODEL = "NVIDIA H100 80GB HBM3"
_HBM_MIB = 81559.0  # as NVML reports it for this model
_USERS = ("ana", "bo", "chen", "dita", "emil")
_AXES = ("sm_active", "tensor_active", "dram_active", "gr_engine_active", "io", "fp64_active")
_NOISE = 0.015  # standard deviation of a fraction
_CHANGE = 1 / 300  # of a job's class, per second
_HOT, _SICK, _REPLAYING = (32, 5), (64, 7), (64, 11)  # one GPU of this many, at this index
_HOT_C, _THROTTLED_MHZ, _SOFTWARE_THERMAL = 97.0, 1170.0, 32.0
_XID, _XID_AFTER_S = 48.0, 20.0  # an uncorrectable memory error, so long after the start
_REPLAYS_PER_S = 0.1


class SimulatedSource:
    """Simulated GPUs, `per_node` per node, determined by seed and times. faults: of some GPUs."""

    def __init__(
        self,
        gpus: int = 8,
        *,
        per_node: int = 8,
        seed: int = 0,
        clock: Callable[[], float] = time.time,
        faults: bool = False,
    ) -> None:
        self._rng = np.random.default_rng(seed)
        self._clock = clock
        indices = np.arange(gpus)
        self._gpus = tuple(
            GpuId(f"sim{index // per_node + 1:03d}", index % per_node) for index in range(gpus)
        )
        self._jobs = indices // min(4, per_node)
        self._kinds = self._rng.integers(0, len(RULED), int(self._jobs.max(initial=0)) + 1)
        self._profiles = np.array([rule.profile for rule in RULED])
        self._energy: Floats = self._rng.uniform(1e6, 1e8, gpus)
        self._replays: Floats = np.zeros(gpus)
        self._hot, self._sick, self._replaying = (
            faults & (indices % every == index) for every, index in (_HOT, _SICK, _REPLAYING)
        )
        self._before: float | None = None
        self._began: float | None = None
        self._held: list[GpuAllocation] = []  # by job
        self._devices = {
            gpu: GpuDevice(MODEL, f"GPU-{index:08x}", f"00000000:{index % 256:02x}:00.0", _HBM_MIB)
            for index, gpu in enumerate(self._gpus)
        }

    @property
    def about(self) -> SourceInfo:
        """Description of the source."""
        return SourceInfo("simulated", f"simulated: {plural(len(self._gpus), 'GPU')}")

    def read(self) -> Snapshot:
        """Return the next snapshot."""
        t = self._clock()
        passed = 0.0 if self._before is None else max(0.0, t - self._before)
        self._before = t
        self._began = t if self._began is None else self._began
        changed = self._rng.random(len(self._kinds)) < passed * _CHANGE
        self._kinds[changed] = self._rng.integers(0, len(RULED), int(changed.sum()))
        values, allocations = (
            self._faulty(self._values(passed), t - self._began),
            self._allocations(self._began),
        )
        measured = np.full(len(self._gpus), t)
        free = frozenset(self._gpus) - allocations.keys()
        return Snapshot(
            t,
            self._gpus,
            measured,
            values,
            self._devices,
            allocations,
            self._processes(values),
            free=free,
        )

    def close(self) -> None:
        """Nothing to close."""

    def _values(self, passed: float) -> Mapping[str, Floats]:
        rng, count = self._rng, len(self._gpus)
        kinds = self._kinds[self._jobs]
        profile = self._profiles[kinds]
        noisy = np.clip(profile + rng.normal(0, _NOISE, profile.shape) * (profile > 0), 0, 1)
        values: dict[str, Floats] = {
            name: noisy[:, axis] for axis, name in enumerate(_AXES) if name != "io"
        }
        busy, io = values["sm_active"], noisy[:, _AXES.index("io")]
        values["gpu_util"] = np.clip(np.round(values["gr_engine_active"] * 1.05, 2), 0, 1)
        values["sm_occupancy"] = busy * 0.5
        values["fp32_active"] = np.clip(
            0.7 * busy - values["tensor_active"] - values["fp64_active"], 0, 1
        )
        values["fp16_active"] = busy * 0.05
        values["mem_copy_util"] = np.round(values["dram_active"] * 0.9, 2)
        values["pcie_rx_bytes_per_s"] = io * FULL_IO_BYTES_PER_S
        values["pcie_tx_bytes_per_s"] = io * FULL_IO_BYTES_PER_S * 0.3
        values["nvlink_tx_bytes_per_s"] = values["nvlink_rx_bytes_per_s"] = busy * 5e9
        values["hbm_used_mib"] = np.where(
            kinds == 0, 600.0, 20_000 + 50_000 * values["dram_active"]
        )
        values["hbm_free_mib"] = _HBM_MIB - values["hbm_used_mib"]
        values["power_w"] = (
            90
            + 500 * np.clip(0.6 * busy + 0.4 * values["dram_active"], 0, 1)
            + rng.normal(0, 3, count)
        )
        self._energy = self._energy + values["power_w"] * passed
        values["energy_j"] = self._energy
        values["gpu_temp_c"] = np.round(32 + values["power_w"] / 16 + 2 * (np.arange(count) % 5))
        values["mem_temp_c"] = values["gpu_temp_c"] + 6
        values["sm_clock_mhz"] = np.where(
            kinds == 0, 345.0, 1755.0 + 15 * rng.integers(-8, 16, count)
        )
        values["mem_clock_mhz"] = np.full(count, 2619.0)
        values["throttle_reasons"] = np.where(
            kinds == 0, 1.0, np.where(values["power_w"] > 520, 4.0, 0.0)
        )
        values["xid"] = np.zeros(count)
        rate = np.where(self._replaying, _REPLAYS_PER_S, 1e-5)
        self._replays = self._replays + (rng.random(count) < passed * rate)
        values["pcie_replays"] = self._replays
        for name in (
            "remapped_rows_uncorrectable",
            "remapped_rows_correctable",
            "row_remap_failure",
        ):
            values[name] = np.zeros(count)
        return values

    def _faulty(self, values: Mapping[str, Floats], since_s: float) -> Mapping[str, Floats]:
        """Return the values with overheated GPUs and lost memory."""
        hot = self._hot & (values["sm_active"] > _NOISE * 4)
        changed = {
            "gpu_temp_c": np.where(hot, _HOT_C, values["gpu_temp_c"]),
            "mem_temp_c": np.where(hot, _HOT_C - 4, values["mem_temp_c"]),
            "sm_clock_mhz": np.where(hot, _THROTTLED_MHZ, values["sm_clock_mhz"]),
            "throttle_reasons": np.where(hot, _SOFTWARE_THERMAL, values["throttle_reasons"]),
            "remapped_rows_uncorrectable": np.where(self._sick, 2.0, 0.0),
            "row_remap_failure": np.where(self._sick, 1.0, 0.0),
            "xid": np.where(self._sick & (since_s >= _XID_AFTER_S), _XID, 0.0),
        }
        return {**values, **changed}

    def _allocations(self, began: float) -> Mapping[GpuId, GpuAllocation]:
        if not self._held:  # the same at every poll, as of a scheduler that is asked now and then
            self._held = [
                GpuAllocation(str(1000 + job), _USERS[job % len(_USERS)], began - 60 * (job % 90))
                for job in range(len(self._kinds))
            ]
        works = self._kinds.tolist()
        return {
            gpu: self._held[job]
            for gpu, job in zip(self._gpus, self._jobs.tolist(), strict=True)
            if works[job] or job % 3
        }

    def _processes(self, values: Mapping[str, Floats]) -> Mapping[GpuId, tuple[GpuProcess, ...]]:
        used_mib = values["hbm_used_mib"].tolist()
        works = self._kinds.tolist()
        return {
            gpu: (
                GpuProcess(
                    20_000 + index, _USERS[job % len(_USERS)], "python train.py", used_mib[index]
                ),
            )
            for index, (gpu, job) in enumerate(zip(self._gpus, self._jobs.tolist(), strict=True))
            if works[job]
        }
