"""The kernels of a job in short, as reports that are attached to it have them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

MOST_KERNELS = 40  # of a report that is shown, on each GPU


@dataclass(frozen=True, slots=True)
class ShortKernel:
    """A kernel in short. share: of all kernel time; limited_by: as KernelLimits; None: unknown."""

    name: str
    launches: int
    seconds: float | None
    share: float | None
    limited_by: str | None


@dataclass(frozen=True, slots=True)
class AttachedReport:
    """A report attached to a job. launches: number in the file; `launches_kept`: number attached.

    kernels, seconds: of the kept launches; longest: kernels with most time. problems: unreadable
    parts.
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
    """Reports attached to a job, in order of attachment. kernels, longest: over all reports."""

    reports: tuple[AttachedReport, ...] = ()
    kernels: int = 0
    longest: ShortKernel | None = None


NO_KERNELS = JobKernels()
