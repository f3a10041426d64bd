"""A fleet of GPUs whose every text that exporters, processes and Slurm write is hostile: a GPU
per payload.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hostile_lake import PAYLOADS

from tachograph.annexes.watch.live.snapshot import (
    GpuAllocation,
    GpuDevice,
    GpuId,
    GpuProcess,
    Snapshot,
    SourceInfo,
    SourceProblem,
)
from tachograph.annexes.watch.live.sources.simulated import SimulatedSource

TEXTS = tuple(PAYLOADS.values())


class HostileSource:
    """A live source of simulated values with hostile names."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._source = SimulatedSource(len(TEXTS), seed=3, clock=clock)
        self.about = SourceInfo(TEXTS[0], TEXTS[1], exporters=TEXTS)
        self._began = clock()

    def read(self) -> Snapshot:
        """Return the newest snapshot; every payload is a node, a job, a user, a model, a
        process, a problem.
        """
        snapshot = self._source.read()
        gpus = tuple(GpuId(text, place) for place, text in enumerate(TEXTS))
        return replace(
            snapshot,
            gpus=gpus,
            devices={gpu: GpuDevice(gpu.node, gpu.node, gpu.node, 81559.0) for gpu in gpus},
            allocations={gpu: GpuAllocation(gpu.node, gpu.node, self._began - 600) for gpu in gpus},
            processes={gpu: (GpuProcess(1, gpu.node, gpu.node, 512.0),) for gpu in gpus},
            problems=tuple(SourceProblem(text, text, text) for text in TEXTS),
        )

    def close(self) -> None:
        """Nothing is held."""
