"""Sources, snapshots and views made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tachograph.annexes.watch.live.snapshot import (
    GpuAllocation,
    GpuDevice,
    GpuId,
    Snapshot,
    SourceInfo,
    SourceProblem,
)
from tachograph.annexes.watch.live.unsupported import unsupported_counters
from tachograph.annexes.watch.live.view import FleetView, GpuHistory
from tachograph.catalog.arrays import Floats
from tachograph.judge.health import STATES
from tachograph.judge.workload.classes import WORKLOAD_CLASSES

NAN = float("nan")
H100 = "NVIDIA H100 80GB HBM3"


def node_of(
    count: int, *, node: str = "n1", first: int = 0, model: str = H100
) -> dict[GpuId, GpuDevice]:
    """GPUs of a node with UUIDs and PCI addresses of their own."""
    return {
        GpuId(node, place): GpuDevice(
            model, f"GPU-{node}-{place:04x}", f"00000000:{place + 0x1B:02X}:00.0", 81559.0
        )
        for place in range(first, first + count)
    }


def snapshot_of(
    devices: Mapping[GpuId, GpuDevice],
    values: Mapping[str, Sequence[float]] | None = None,
    *,
    t: float = 1_800_000_000.0,
    allocations: Mapping[GpuId, GpuAllocation] | None = None,
    problems: tuple[SourceProblem, ...] = (),
) -> Snapshot:
    """Values of GPUs; without values each its row as gpu_util."""
    gpus = tuple(devices)
    reported = (
        values if values is not None else {"gpu_util": [row / 100 for row in range(len(gpus))]}
    )
    arrays: dict[str, Floats] = {
        name: np.array(column, np.float64) for name, column in reported.items()
    }
    return Snapshot(
        t, gpus, np.full(len(gpus), float(t)), arrays, devices, allocations or {}, {}, problems
    )


@dataclass
class FakeSource:
    """Tells the snapshots it was given, the last again and again."""

    snapshots: list[Snapshot]
    reported: Sequence[str] = ()  # counters; the others it is blind to
    name: str = "nvml"
    reads: int = 0
    closed: int = 0

    @property
    def about(self) -> SourceInfo:
        return SourceInfo(
            self.name,
            f"{self.name}, {len(self.snapshots[0].gpus)} GPUs",
            unsupported=unsupported_counters(self.reported, self.name),
        )

    def read(self) -> Snapshot:
        self.reads += 1
        return self.snapshots[min(self.reads, len(self.snapshots)) - 1]

    def close(self) -> None:
        self.closed += 1


def view_of(
    snapshot: Snapshot,
    *,
    labels: Sequence[str] = (),
    states: Sequence[str] = (),
    real: Sequence[float] = (),
    stale: Sequence[float] = (),
    about: SourceInfo | None = None,
) -> FleetView:
    """A view of a snapshot that was judged as given; unknown where nothing is given."""
    count = len(snapshot.gpus)
    places = np.array(
        [WORKLOAD_CLASSES.index(name) for name in labels or ["unknown"] * count], np.uint8
    )
    return FleetView(
        about=about or SourceInfo("simulated", "simulated"),
        snapshot=snapshot,
        labels=places,
        real=np.array(real or [NAN] * count, np.float64),
        health=np.array([STATES.index(name) for name in states or ["unknown"] * count], np.uint8),
        current=np.full(count, True),
        stale_s=np.array(stale or [0.0] * count, np.float64),
        history=GpuHistory(2),
    )
