"""What reports of Nsight Compute tell of kernels, as one structure that text, JSON, CSV and HTML render."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import fsum

from tachograph.interference.demand import Calibration, Demand, Gpu
from tachograph.interference.jobs import together
from tachograph.interference.outcome import Estimate, Matrix, Sharing
from tachograph.interference.profile.kernels import Kernel
from tachograph.report.kernels.facts import Fact
from tachograph.report.kernels.judged import Judged


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked of the reports. together, explain: kernels by number, name, pattern. shares: of SMs, under MPS."""

    kernels: tuple[str, ...] = ()
    device: str | None = None
    top: int | None = None
    explain: str | None = None
    together: tuple[str, ...] = ()
    matrix: bool = False
    shares: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Numbered:
    """One kernel. share: fraction 0..1 of the time of all kernels on its GPU, None where times are not told."""

    number: int
    label: str
    kernel: Kernel
    share: float | None

    @property
    def demand(self) -> Demand:
        """What it asks, under the name that tells it apart."""
        return self.kernel.demand.named(self.label)


@dataclass(frozen=True, slots=True)
class KernelView(Numbered):
    """One kernel that is shown, with all that is told of it."""

    facts: Mapping[str, Fact]
    scores: Mapping[str, Fact]
    judged: Judged


@dataclass(frozen=True, slots=True)
class Lacking:
    """What was not collected. `of`: numbers of the kernels that lack it."""

    metric: str
    tells: str
    of: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Together:
    """What happens when `members` (numbers) run at the same time."""

    members: tuple[Numbered, ...]
    estimate: Estimate


@dataclass(frozen=True, slots=True)
class Disturber:
    """A kernel beside which others of the table take longer.

    slowdown: of `victim` (a number), the one that it hits most. binding: what holds that up, as in Outcome.
    """

    number: int
    label: str
    slowdown: float
    victim: int
    binding: str | None = None


@dataclass(frozen=True, slots=True)
class GpuPart:
    """The kernels of one GPU. pairs: rows are the kernels, columns `columns`; None where it was not asked for.

    disturbers: the kernels that disturb others most, the worst first; None where there are too many pairs to say.
    mixed: all kernels of these reports beside all of the other's, weighted by time; None without another report.
    """

    gpu: Gpu
    calibration: Calibration
    kernels: tuple[KernelView, ...]
    left_out: int  # kernels beyond `top`
    columns: tuple[Numbered, ...]
    pairs: Matrix | None
    lacking: tuple[Lacking, ...]
    command: str | None  # that collects what lacks
    disturbers: tuple[Disturber, ...] | None = None
    mixed: together.Together | None = None


@dataclass(frozen=True, slots=True)
class FileRead:
    """One file: what was read of it, what was left out."""

    file: str
    launches: int
    rejected: Mapping[str, int]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KernelsReport:
    """Everything that is told. problems: lines for people, of files and of kernels."""

    files: tuple[FileRead, ...]
    parts: tuple[GpuPart, ...]
    sharing: Sharing
    together: Together | None
    explained: KernelView | None
    beside: tuple[str, ...]  # files whose kernels are the columns of pairs
    problems: tuple[str, ...]


def total_s(part: GpuPart) -> float | None:
    """Return the time of the kernels that are shown, None where none is told."""
    told = [view.kernel.seconds for view in part.kernels if view.kernel.seconds is not None]
    return fsum(told) if told else None
