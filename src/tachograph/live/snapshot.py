"""One poll of a live source: GPUs by row, counters by column, allocations, problems; and what a live source is.

A source is added by one file under `sources` and a line in `discovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from tachograph.catalog.arrays import Floats


@dataclass(frozen=True, slots=True, order=True)
class GpuId:
    """Which GPU: its host, its index there, its MIG slice."""

    node: str
    gpu: int
    mig: int | None = None

    @property
    def name(self) -> str:
        """As people write it.

        >>> GpuId("nid001", 3).name, GpuId("nid001", 3, 7).name
        ('nid001:3', 'nid001:3.7')
        """
        return f"{self.node}:{self.gpu}" + (f".{self.mig}" if self.mig is not None else "")


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """What hardly changes of a GPU; None: not reported. slowdown_c: at which it lowers its clocks by itself."""

    model: str | None = None
    uuid: str | None = None
    pci: str | None = None
    hbm_mib: float | None = None
    slowdown_c: float | None = None


@dataclass(frozen=True, slots=True)
class GpuAllocation:
    """Who holds a GPU: a job, as people name it; a user; since when (seconds since 1970). None: not reported.

    Of several that share it there are commas between them.
    """

    job_id: str | None = None
    user: str | None = None
    since: float | None = None

    @property
    def jobs(self) -> tuple[str, ...]:
        """Each of the jobs.

        >>> GpuAllocation("8,9").jobs, GpuAllocation("3_0").jobs, GpuAllocation(user="ana").jobs
        (('8', '9'), ('3_0',), ())
        """
        return tuple(self.job_id.split(",")) if self.job_id else ()


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU; None: not reported. hbm_used_mib: device memory it holds."""

    pid: int
    user: str | None = None
    command: str | None = None
    hbm_used_mib: float | None = None


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """What a source could not do, and what to do about it. where: a GPU, a host, an address, or "" for all of it.

    fatal: nothing more will come.
    """

    what: str
    where: str = ""
    do: str = ""
    fatal: bool = False

    @property
    def sentence(self) -> str:
        """In one line.

        >>> SourceProblem("no answer within 5 s", "http://n1:9400/metrics", "is the exporter running?").sentence
        'http://n1:9400/metrics: no answer within 5 s; is the exporter running?'
        """
        message = f"{self.where}: {self.what}" if self.where else self.what
        return f"{message}; {self.do}" if self.do else message


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One row per GPU, in the order of `gpus`.

    t: when it was taken, seconds since 1970. measured: when the values of each GPU were measured, by the best account
    there is; NaN of a GPU that reported nothing. values: {counter of the catalogue: float64 array in its unit, NaN
    missing}; counters that the source never reports are not in it. Who holds or runs nothing is in neither mapping.
    """

    t: float
    gpus: tuple[GpuId, ...]
    measured: Floats
    values: Mapping[str, Floats]
    devices: Mapping[GpuId, GpuDevice] = field(default_factory=dict)
    allocations: Mapping[GpuId, GpuAllocation] = field(default_factory=dict)
    processes: Mapping[GpuId, tuple[GpuProcess, ...]] = field(default_factory=dict)
    problems: tuple[SourceProblem, ...] = ()

    def column(self, counter: str) -> Floats:
        """The values of a counter, all NaN of one that is not reported."""
        given = self.values.get(counter)
        return np.full(len(self.gpus), np.nan) if given is None else given

    def value(self, counter: str, row: int) -> float | None:
        """One value; None where it is missing."""
        found = float(self.column(counter)[row])
        return None if found != found else found


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A source in one line for people, and what it does not support.

    name: dcgm-exporter, dmon, prometheus, nvml, recording, simulated. sentence: which GPUs of whom, such as "NVML with
    GPM, 8 GPUs of this node". refresh_s: so often its values can be new. unsupported: {counter: how to
    enable it, "" where that cannot be done}.
    """

    name: str
    sentence: str
    refresh_s: float = 1.0
    unsupported: Mapping[str, str] = field(default_factory=dict)


class LiveSource(Protocol):
    """A source of live telemetry. Used by one thread at a time."""

    @property
    def about(self) -> SourceInfo:
        """What it is, as far as is known yet; more may be known after the first snapshot."""
        ...

    def read(self) -> Snapshot:
        """Return the newest snapshot.

        What may recover by itself (a host that does not answer, a GPU that is lost, a program that ended and is started
        again) is reported in `problems`, and tried again at the next call; GPUs that reported nothing stay, with NaN.
        Takes a few seconds at most. Errors: those of the project, for what a user must change first.
        """
        ...

    def close(self) -> None:
        """Let go of everything; may be called twice."""
        ...


@runtime_checkable
class Playback(Protocol):
    """A source that is a recording. speed: so many times as fast as it was recorded."""

    speed: float
    paused: bool


@runtime_checkable
class ReplaySource(LiveSource, Playback, Protocol):
    """A recording that can be moved to where something is to be seen."""

    @property
    def start(self) -> float:
        """When its first sample was measured (seconds since 1970)."""
        ...

    @property
    def end(self) -> float:
        """When its last sample was measured."""
        ...

    def seek(self, t: float) -> None:
        """Go on from `t` (seconds since 1970), or from the end of the recording that is closer."""
        ...

    def to_first(self, job: str) -> None:
        """Go on from where a job began; from where it is now, if none of this id is known."""
        ...

    def to_last(self, job: str | None = None) -> None:
        """Stand still at the last instant at which GPUs, of a job where one is named, reported something."""
        ...


@contextmanager
def closed_on_failure(close: Callable[[], None]) -> Iterator[None]:
    """Call `close` where the block raises anything, an interrupt too; a source that is handed on stays open."""
    with ExitStack() as stack:
        stack.callback(close)
        yield
        stack.pop_all()
