"""One poll of a live source: GPUs by row, counters by column, allocations, problems.

A source is added by one file under `sources` and a line in `discovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from tachograph.catalog.arrays import Flags, Floats, Longs
from tachograph.catalog.errors import InputError, TachographError
from tachograph.catalog.secrets import redacted
from tachograph.sources.score_sums import PmSums

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Fact = TypeVar("Fact")
Scalar = TypeVar("Scalar", bound=np.generic)
Record = TypeVar("Record", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class GpuId:
    """Identity of a GPU: its node, its index there, its MIG slice.

    cluster: of the node, where the source knows several clusters; None: one, or not reported.
    """

    node: str
    gpu: int
    mig: int | None = None
    cluster: str | None = None

    @property
    def host(self) -> str:
        """Name of the node that differs from that of every other node."""
        return self.node if self.cluster is None else f"{self.cluster}/{self.node}"

    @property
    def name(self) -> str:
        """Displayed name.

        >>> GpuId("nid001", 3).name, GpuId("nid001", 3, 7).name, GpuId("n1", 0, None, "hpc").name
        ('nid001:3', 'nid001:3.7', 'hpc/n1:0')
        """
        return f"{self.host}:{self.gpu}" + (f".{self.mig}" if self.mig is not None else "")

    def job_name(self, job: str) -> str:
        """Return the name of a job on this GPU: clusters give the same ids."""
        return job if self.cluster is None else f"{self.cluster}/{job}"

    def order(self) -> tuple[str, str, int, int]:
        """Sort key: a whole GPU is before its slices.

        >>> sorted([GpuId("n1", 0, 3), GpuId("n1", 0), GpuId("n0", 1)], key=GpuId.order)[0].name
        'n0:1'
        """
        return self.node, self.cluster or "", self.gpu, -1 if self.mig is None else self.mig


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """Constant properties of a GPU; None: not reported. slowdown_c: throttling temperature."""

    model: str | None = None
    uuid: str | None = None
    pci: str | None = None
    hbm_mib: float | None = None
    slowdown_c: float | None = None
    minor_number: int | None = None  # of its device file


_NO_DEVICE = GpuDevice()


@dataclass(frozen=True, slots=True)
class GpuAllocation:
    """Allocation of a GPU: displayed job id, user, start (s since 1970). None: not reported.

    Several that share it are separated by commas.
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

    def name_on(self, gpu: GpuId) -> str:
        """Return the names of its jobs, with the cluster where there are several; "" for none."""
        return ",".join(gpu.job_name(job) for job in self.jobs)


NO_ALLOCATION = GpuAllocation()


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process on a GPU; None: not reported. hbm_used_mib: device memory it holds."""

    pid: int
    user: str | None = None
    command: str | None = None
    hbm_used_mib: float | None = None


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """A source's problem and its fix. where: GPU, host, address, or "" for all.

    fatal: the source has ended.
    """

    what: str
    where: str = ""
    do: str = ""
    fatal: bool = False

    @classmethod
    def of(cls, error: TachographError, *, where: str = "") -> SourceProblem:
        """Return an error as a problem. where: of one that names no place."""
        return cls(error.what, error.where or where, error.do or "")

    @property
    def sentence(self) -> str:
        """One line, without secrets.

        >>> SourceProblem("no answer within 5 s", "http://n1:9400/metrics", "is the exporter running?").sentence
        'http://n1:9400/metrics: no answer within 5 s; is the exporter running?'
        """
        message = f"{self.where}: {self.what}" if self.where else self.what
        return redacted(f"{message}; {self.do}" if self.do else message)

    @property
    def error(self) -> InputError:
        """The same as an error."""
        return InputError(self.what, where=self.where, do=self.do)


@dataclass(frozen=True, slots=True)
class PmMeasurement:
    """PM sampling of a GPU since the last snapshot. cut: what the chip cannot count as well.

    sums: one per minute.
    """

    gpu: GpuId
    sums: tuple[PmSums, ...]
    cut: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One row per GPU, in the order of `gpus`.

    t: when it was taken, seconds since 1970. measured: when values of each GPU were measured, by
    the best available source; NaN of a GPU that reported nothing. values: {counter of the
    catalogue: float64 array, in its unit, NaN missing}, without unsupported counters. GPUs without
    allocation or process are absent from these mappings. free: GPUs for which it is reported that
    no job holds them; of others without allocation that is unknown. pm: what PM sampling counted,
    where the source is that.
    """

    t: float
    gpus: tuple[GpuId, ...]
    measured: Floats
    values: Mapping[str, Floats]
    devices: Mapping[GpuId, GpuDevice] = field(default_factory=dict)
    allocations: Mapping[GpuId, GpuAllocation] = field(default_factory=dict)
    processes: Mapping[GpuId, tuple[GpuProcess, ...]] = field(default_factory=dict)
    problems: tuple[SourceProblem, ...] = ()
    free: frozenset[GpuId] = frozenset()
    pm: tuple[PmMeasurement, ...] = ()

    def column(self, counter: str) -> Floats:
        """The values of a counter, all NaN of one that is not reported."""
        column = self.values.get(counter)
        return np.full(len(self.gpus), np.nan) if column is None else column

    def value(self, counter: str, row: int) -> float | None:
        """One value, or None."""
        number = float(self.column(counter)[row])
        return None if number != number else number

    def device(self, row: int) -> GpuDevice:
        """The device of a GPU, as far as reported."""
        return self.devices.get(self.gpus[row], _NO_DEVICE)

    def has_values(self) -> Flags:
        """Which GPUs report anything."""
        has_value = np.zeros(len(self.gpus), np.bool_)
        for column in self.values.values():
            has_value |= column == column
        return has_value

    def of(self, gpus: tuple[GpuId, ...]) -> Snapshot:
        """Return the same of other GPUs, with all problems; those it lacks report nothing."""
        if gpus == self.gpus:
            return self
        old_rows = old_places(self.gpus, gpus)
        selected = frozenset(gpus)

        def of_selected(facts: Mapping[GpuId, Fact]) -> dict[GpuId, Fact]:
            return {gpu: fact for gpu, fact in facts.items() if gpu in selected}

        return replace(
            self,
            gpus=gpus,
            measured=moved(self.measured, old_rows),
            values={name: moved(column, old_rows) for name, column in self.values.items()},
            devices=of_selected(self.devices),
            allocations=of_selected(self.allocations),
            processes=of_selected(self.processes),
            free=self.free & selected,
            pm=tuple(measurement for measurement in self.pm if measurement.gpu in selected),
        )


def old_places(before: Sequence[GpuId], gpus: Sequence[GpuId]) -> Longs:
    """Return the index of each GPU among those before, -1 of a new one."""
    rows = {gpu: row for row, gpu in enumerate(before)}
    return np.array([rows.get(gpu, -1) for gpu in gpus], np.int64)


def moved(
    values: np.ndarray[Any, np.dtype[Scalar]], old_rows: Longs, empty: float = np.nan
) -> np.ndarray[Any, np.dtype[Scalar]]:
    """Return values of GPUs, the last axis, at their `old_places`; new GPUs have `empty` ones.

    >>> moved(np.array([1.0, 2.0]), np.array([1, -1, 0])).tolist()
    [2.0, nan, 1.0]
    """
    rearranged_values = np.full((*values.shape[:-1], len(old_rows)), empty, values.dtype)
    stays = old_rows >= 0
    rearranged_values[..., stays] = values[..., old_rows[stays]]
    return rearranged_values


def rearranged(record: Record, old_rows: Longs, **empty: float) -> Record:
    """Return a dataclass with all its arrays of GPUs `moved`; `empty`: of new GPUs, else NaN."""
    values = {column.name: getattr(record, column.name) for column in fields(record)}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            values[name] = moved(value, old_rows, empty.get(name, np.nan))
    return replace(record, **values)


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """A source in one line for people, and its unsupported counters.

    name: dcgm-exporter, dmon, prometheus, nvml, recording, simulated. sentence: source and GPUs,
    such as "NVML with GPM, 8 GPUs of this node". unsupported:
    {counter: how to enable it, "" where that is not possible}. exporters: names of those that wrote
    the values, as far as known.
    """

    name: str
    sentence: str
    unsupported: Mapping[str, str] = field(default_factory=dict)
    exporters: tuple[str, ...] = ()


class LiveSource(Protocol):
    """A source of live telemetry. Used by one thread at a time."""

    @property
    def about(self) -> SourceInfo:
        """Description of the source as known; the first snapshot may add to it."""
        ...

    def read(self) -> Snapshot:
        """Return the newest snapshot.

        A recoverable failure (a host that does not answer, a GPU that is lost, a program that ended
        and is started again) is reported in `problems`, and tried again at the next call; GPUs that
        reported nothing stay, with NaN. Takes a few seconds at most. Errors: those of the project,
        for problems that only a user can fix.
        """
        ...

    def close(self) -> None:
        """Free all resources; may be called twice."""
        ...


@contextmanager
def closed_on_failure(close: Callable[[], None]) -> Iterator[None]:
    """Call `close` if the block raises; otherwise the source stays open."""
    with ExitStack() as stack:
        stack.callback(close)
        yield
        stack.pop_all()
