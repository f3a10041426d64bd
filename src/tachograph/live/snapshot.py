"""What a source told at one moment: GPUs by row, counters by column, whoever holds them, what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tachograph.arrays import Floats


@dataclass(frozen=True, slots=True, order=True)
class Gpu:
    """Which GPU: its host, its index there, its MIG slice."""

    node: str
    gpu: int
    mig: int | None = None

    @property
    def name(self) -> str:
        """As people write it.

        >>> Gpu("nid001", 3).name, Gpu("nid001", 3, 7).name
        ('nid001:3', 'nid001:3.7')
        """
        return f"{self.node}:{self.gpu}" + (f".{self.mig}" if self.mig is not None else "")


@dataclass(frozen=True, slots=True)
class Device:
    """What hardly changes of a GPU; None: not told. slowdown_c: at which it lowers its clocks by itself."""

    model: str | None = None
    uuid: str | None = None
    pci: str | None = None
    hbm_mib: float | None = None
    slowdown_c: float | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a GPU: a job, as people name it; a user; since when (seconds since 1970). None: not told.

    Of several that share it there are commas between them.
    """

    job_id: str | None = None
    user: str | None = None
    since: float | None = None

    @property
    def jobs(self) -> tuple[str, ...]:
        """Each of the jobs.

        >>> Holder("8,9").jobs, Holder("3_0").jobs, Holder(user="ana").jobs
        (('8', '9'), ('3_0',), ())
        """
        return tuple(self.job_id.split(",")) if self.job_id else ()


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a GPU; None: not told. hbm_used_mib: device memory it holds."""

    pid: int
    user: str | None = None
    command: str | None = None
    hbm_used_mib: float | None = None


@dataclass(frozen=True, slots=True)
class Problem:
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

        >>> Problem("no answer within 5 s", "http://n1:9400/metrics", "is the exporter running?").sentence
        'http://n1:9400/metrics: no answer within 5 s; is the exporter running?'
        """
        said = f"{self.where}: {self.what}" if self.where else self.what
        return f"{said}; {self.do}" if self.do else said


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One row per GPU, in the order of `gpus`.

    t: when it was taken, seconds since 1970. measured: when the values of each GPU were measured, by the best account
    there is; NaN of a GPU that told nothing. values: {counter of the catalogue: float64 array in its unit, NaN
    missing}; counters that the source never tells are not in it. Who holds or runs nothing is in neither mapping.
    """

    t: float
    gpus: tuple[Gpu, ...]
    measured: Floats
    values: Mapping[str, Floats]
    devices: Mapping[Gpu, Device] = field(default_factory=dict)
    holders: Mapping[Gpu, Holder] = field(default_factory=dict)
    processes: Mapping[Gpu, tuple[Process, ...]] = field(default_factory=dict)
    problems: tuple[Problem, ...] = ()

    def column(self, counter: str) -> Floats:
        """The values of a counter, all NaN of one that is not told."""
        given = self.values.get(counter)
        return np.full(len(self.gpus), np.nan) if given is None else given

    def value(self, counter: str, row: int) -> float | None:
        """One value; None where it is missing."""
        found = float(self.column(counter)[row])
        return None if found != found else found
