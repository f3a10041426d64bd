"""A small cluster with everything that goes wrong, from a seed: the samples and the jobs that
held the GPUs.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from plain_reference import Run, Unit, with_taken_over

from madelake import held, job, utc
from tachograph.catalog.counters import COUNTERS, CounterKind

BEGIN = utc(23, 21, 7, 13)
A100_40 = "NVIDIA A100-SXM4-40GB"
# FLOP/s over B/s of the datasheet
A100_RIDGES = {
    "fp64": 9.7e12 / 1.555e12,
    "fp32": 19.5e12 / 1.555e12,
    "fp16": 78e12 / 1.555e12,
    "tensor": 312e12 / 1.555e12,
}
_SPAN = {
    "gpu_temp_c": (25.0, 90.0),
    "mem_temp_c": (30.0, 95.0),
    "power_w": (50.0, 700.0),
    "sm_clock_mhz": (200.0, 2000.0),
}


@dataclass(frozen=True, slots=True)
class Cluster:
    """What was recorded, who held what, and what is known of the devices."""

    samples: list[dict[str, Any]]
    jobs: list[dict[str, Any]]
    allocations: list[dict[str, Any]]
    devices: list[dict[str, Any]]
    runs: list[Run]
    capacities: dict[Unit, float | None]
    ridges: dict[Unit, dict[str, float]]

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Arguments of `make_lake`."""
        named = {"jobs": self.jobs, "allocations": self.allocations, "devices": self.devices}
        return {"gpu_samples": self.samples, **named}


def single(value: float) -> float:
    """The value as single precision keeps it."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


def random_cluster(seed: int, coarser: float = 1.0) -> Cluster:
    """Seven nodes over two midnights; node n4 is cut into slices, n5 has one GPU, n6 reports
    little, n7 nothing but utilisation; one GPU of n1 draws power that is not measured. `coarser`:
    how many times as long the sampling intervals are.
    """
    dice = random.Random(seed)
    units: list[Unit] = [(f"n{node}", gpu, None) for node in (1, 2, 3) for gpu in range(3)]
    units += [
        ("n4", 0, 1),
        ("n4", 0, 2),
        ("n4", 1, 5),
        ("n5", 0, None),
        ("n6", 0, None),
        ("n6", 1, None),
        ("n7", 0, None),
    ]
    hours = {
        "n1": (2.0, 10.0),
        "n2": (4.0, 30.0),
        "n3": (5.0, 60.0),
        "n4": (4.0, 30.0),
        "n5": (33.0, 300.0),
        "n6": (5.0, 60.0),
        "n7": (3.0, 30.0),
    }
    absent = {
        "n2": {"energy_j", "fp16_active", "throttle_reasons"},
        "n4": {"gpu_util", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"},
        "n6": {
            "fp64_active",
            "fp32_active",
            "fp16_active",
            "tensor_active",
            "energy_j",
            "hbm_used_mib",
            "xid",
        },
        "n7": {counter.name for counter in COUNTERS} - {"gpu_util"},
    }
    unpowered: Unit = ("n1", 2, None)
    ends = {node: BEGIN + timedelta(hours=length) for node, (length, _) in hours.items()}
    samples = []
    for unit in units:
        length, step = hours[unit[0]]
        step *= coarser
        missing = {"power_w", "energy_j"} if unit == unpowered else absent.get(unit[0], set())
        samples += stripe(dice, unit, int(length * 3600 / step), step, missing)
    runs = _runs(dice, units, ends)
    models = {"n1": A100_40, "n5": A100_40}
    capacity = {node: 40960.0 if node in models else 81000.0 for node in hours}
    return Cluster(
        samples=samples,
        jobs=[job(run.job_id, run.start, run.end, gpus=len(run.units)) for run in runs],
        allocations=[
            row
            for run in runs
            for node, gpu, mig in run.units
            for row in held(run.job_id, node, [gpu], run.start, run.end, mig=mig)
        ],
        devices=[
            {
                "node": node,
                "gpu": gpu,
                "mig": mig,
                "model": models.get(node),
                "hbm_mib": capacity[node],
            }
            for node, gpu, mig in units
        ],
        runs=runs,
        capacities={unit: capacity[unit[0]] for unit in units},
        ridges={unit: A100_RIDGES for unit in units if unit[0] in models},
    )


def _runs(dice: random.Random, units: list[Unit], ends: dict[str, datetime]) -> list[Run]:
    """Jobs one behind the other on each node with idle time between, and one over three nodes."""
    runs: list[Run] = []
    for node, end in ends.items():
        mine = [unit for unit in units if unit[0] == node]
        at = BEGIN + timedelta(seconds=dice.randint(0, 900))
        while at < end:
            lasting = (
                dice.choice([150, 1400, 6100, 9000])
                if node != "n5" or runs[-1].units[0][0] == "n5"
                else 100_000
            )
            until = min(at + timedelta(seconds=lasting), end + timedelta(seconds=50))
            some = tuple(unit for unit in mine if dice.random() < 0.8) or (mine[0],)
            runs.append(Run(f"{len(runs) + 100}", at, until, some))
            at = until + timedelta(seconds=dice.choice([0, 0, 37, 600]))
    alone: tuple[Unit, ...] = (("n3", 0, None), ("n6", 0, None), ("n6", 1, None))
    shared = Run(
        "99", BEGIN + timedelta(hours=1, seconds=7), BEGIN + timedelta(hours=4, seconds=2), alone
    )
    kept = []
    for run in runs:
        free = tuple(
            unit
            for unit in run.units
            if unit not in alone or run.end <= shared.start or run.start >= shared.end
        )
        if free:
            kept.append(Run(run.job_id, run.start, run.end, free))
    return with_taken_over([shared, *kept])


def stripe(
    dice: random.Random, unit: Unit, count: int, step: float, absent: set[str]
) -> list[dict[str, Any]]:
    """Samples of one GPU: jitter, gaps, idle stretches, nulls, resets, changing codes and bits."""
    rows = []
    at = BEGIN + timedelta(seconds=dice.uniform(0, step))
    cumulative: dict[str, float] = {
        c.name: dice.randint(0, 100_000) for c in COUNTERS if c.kind is CounterKind.CUMULATIVE
    }
    xid = dice.choice([0, 0, 79])
    busy = True
    for _ in range(count):
        at += timedelta(seconds=round(step * dice.uniform(0.97, 1.03), 6))
        if dice.random() < 0.004:
            at += timedelta(seconds=step * dice.randint(2, 40))
        if dice.random() < 0.02:
            busy = not busy
        if dice.random() < 0.01:
            xid = dice.choice([0, 13, 31, 79])
        row: dict[str, Any] = {"t": at, "node": unit[0], "gpu": unit[1], "mig": unit[2]}
        for counter in COUNTERS:
            row[counter.name] = _value(dice, counter.name, counter.kind, cumulative, xid, busy=busy)
            if counter.name in absent or dice.random() < 0.03:
                row[counter.name] = None
        if dice.random() < 0.05:
            row["dram_active"] = row["fp64_active"]
        rows.append(row)
    return rows


def _value(
    dice: random.Random,
    name: str,
    kind: CounterKind,
    cumulative: dict[str, float],
    xid: int,
    *,
    busy: bool,
) -> float:
    if name == "xid":
        return xid
    if name == "throttle_reasons":
        return dice.choice([0, 0, 1, 2, 4, 0x20, 0x44, 0x101])
    if name == "row_remap_failure":
        return int(dice.random() < 0.05)
    if kind is CounterKind.CUMULATIVE:
        cumulative[name] = 0 if dice.random() < 0.01 else cumulative[name] + dice.randint(0, 400)
        return cumulative[name] / 7 if name == "energy_j" else cumulative[name]
    if kind is CounterKind.RATE:
        return single(dice.choice([0.0, dice.uniform(0, 1e3), dice.uniform(0, 2e10)]))
    if name in ("hbm_used_mib", "hbm_free_mib"):
        return single(dice.uniform(0, 40_000))
    if kind is CounterKind.FRACTION:
        return single(dice.choice([0.0, 1.0, dice.random(), dice.random() ** 4])) if busy else 0.0
    low, high = _SPAN.get(name, (1.0, 5000.0))
    return single(dice.uniform(low, high))
