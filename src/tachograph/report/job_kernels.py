"""The kernels of a job in short, as reports that are attached to it have them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

MOST_KERNELS = 40  # of a report that is shown, on each GPU


@dataclass(frozen=True, slots=True)
class ShortKernel:
    """A kernel in short. share: of the time of all kernels; limited_by: as KernelLimits has it;
    None: not known.
    """

    name: str
    launches: int
    seconds: float | None
    share: float | None
    limited_by: str | None


@dataclass(frozen=True, slots=True)
class AttachedReport:
    """A report that is attached to a job. launches: in the file; `launches_kept` of them were
    attached.

    kernels, seconds: of those kept; longest: those that took most time. problems: what could not be
    read.
    """

    report: str
    digest: str
    attached: datetime
    launches: int
    launches_kept: int
    kernels: int
    seconds: float | None
    longest: tuple[ShortKernel, ...]
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobKernels:
    """Reports that are attached to a job, the first attached first. kernels, longest: of all of
    them together.
    """

    reports: tuple[AttachedReport, ...] = ()
    kernels: int = 0
    longest: ShortKernel | None = None


NO_KERNELS = JobKernels()
