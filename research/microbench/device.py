"""A GPU as the micro-benchmarks use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tachograph.annexes.share.demand import GpuCapacity
from tachograph.catalog.errors import TachographError


class LaunchError(TachographError):
    """The GPU rejected a launch, or failed while it ran."""


class MemoryFullError(LaunchError):
    """The GPU has not enough free memory for an allocation."""


class HangingError(LaunchError):
    """A kernel did not end within its time. Nothing can end it but the end of the process."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Threads of which an SM can do one operation per cycle. None: unknown."""

    fp32: int | None
    fp64: int | None


Mark = Any  # a point in a stream, which only the device that made it understands


class BenchDevice(Protocol):
    """A GPU with two streams, 0 and 1. All that fails raises LaunchError, or one of its kind."""

    gpu: GpuCapacity
    lanes: Lanes
    driver: str
    arch: str  # such as sm_90

    def free_bytes(self) -> int:
        """Memory that is free now."""
        ...

    def allocate(self, size: int, *, ones: str = "") -> int:
        """The address of `size` bytes: filled with ones, of float or double, else with zeros."""
        ...

    def free(self, address: int) -> None:
        """Free memory."""

    def launch(
        self, kernel: str, *, blocks: int, threads: int, arguments: Sequence[int], stream: int
    ) -> None:
        """Put a launch at the end of a stream; each argument is 8 bytes wide."""

    def mark(self, stream: int) -> Mark:
        """A point at the end of the stream, whose time is taken when the stream gets there."""
        ...

    def follow(self, stream: int, mark: Mark) -> None:
        """Block the stream until another one has reached the mark."""

    def wait(self, marks: Sequence[Mark], limit_s: float) -> None:
        """Wait until all marks were reached, `limit_s` at most; then HangingError."""

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Time between two marks that were reached."""
        ...

    def numbers(self, address: int, count: int) -> tuple[int, ...]:
        """The 64-bit integers at this address."""
        ...
