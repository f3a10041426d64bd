"""What a benchmark needs of a GPU, and what can go wrong there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tachograph.errors import TachographError
from tachograph.interference.demand import Gpu
from tachograph.microbench.cubin import Code


class LaunchError(TachographError):
    """The GPU refused a launch, or failed while it ran."""


class MemoryFullError(LaunchError):
    """The GPU has no memory left for what was asked."""


class HangingError(LaunchError):
    """A kernel did not end within its time. Nothing can end it but the end of the process."""


@dataclass(frozen=True, slots=True)
class Lanes:
    """Threads of which an SM can do one operation per cycle. None: not told."""

    fp32: int | None
    fp64: int | None


Mark = Any  # a point in a stream, which only the device that made it understands


class Device(Protocol):
    """A GPU with two streams, 0 and 1. All that fails raises LaunchError, or one of its kind."""

    gpu: Gpu
    lanes: Lanes
    driver: str
    arch: str  # such as sm_90

    def code(self, kernel: str) -> Code | None:
        """What the compiled kernel takes; None: not known."""
        ...

    def free_bytes(self) -> int:
        """Memory that is free now."""
        ...

    def allocate(self, size: int, *, ones: str = "") -> int:
        """The address of `size` bytes: filled with ones, of float or double, else with zeros."""
        ...

    def free(self, address: int) -> None:
        """Give memory back."""

    def launch(self, kernel: str, *, blocks: int, threads: int, arguments: Sequence[int], stream: int) -> None:
        """Put a launch at the end of a stream; each argument is 8 bytes wide."""

    def mark(self, stream: int) -> Mark:
        """A point at the end of the stream, whose time is taken when the stream gets there."""
        ...

    def follow(self, stream: int, mark: Mark) -> None:
        """Let the stream go on only when another one has got to the mark."""

    def wait(self, marks: Sequence[Mark], limit_s: float) -> None:
        """Wait until all marks were reached, `limit_s` at most; then HangingError."""

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Time between two marks that were reached."""
        ...

    def numbers(self, address: int, count: int) -> tuple[int, ...]:
        """The 64-bit integers that lie there."""
        ...
