"""Selects GPUs to show: named ones, or a job's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from typing import Final

from tachograph.annexes.watch.live.snapshot import (
    GpuAllocation,
    GpuDevice,
    GpuId,
    LiveSource,
    Snapshot,
    SourceInfo,
    SourceProblem,
)
from tachograph.annexes.watch.live.unsupported import DCGM_EXPORTER, advised_source
from tachograph.catalog.errors import NotFoundError, TachographError, UsageError
from tachograph.catalog.units import plural
from tachograph.sources.metrics import short_node

_SOME: Final = 12  # names in a message
UUID = re.compile(r"(?:GPU|MIG)-[0-9a-zA-Z][0-9a-zA-Z/_-]*")
_PCI = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_PLACE = re.compile(
    r"(?:(?P<node>[A-Za-z][\w./-]*):)?(?P<low>\d{1,4})(?:-(?P<high>\d{1,4})|\.(?P<mig>\d{1,4}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class GpuSelection:
    """Selected rows of a snapshot in its order, and a text: "2 of 8 GPUs, those of job 12".

    allocation: theirs, where that is known from the selection.
    """

    rows: tuple[int, ...]
    sentence: str
    allocation: GpuAllocation | None = None


GpuSelector = Callable[[Snapshot, SourceInfo], GpuSelection]


@dataclass(frozen=True, slots=True)
class GpuTerm:
    """A GPU reference: UUID, PCI bus address, or indices, optionally with a node."""

    written: str
    uuid: str | None = None
    pci: tuple[int, ...] | None = None
    node: str | None = None
    gpus: range = range(0)
    mig: int | None = None

    def fits(self, gpu: GpuId, device: GpuDevice) -> bool:
        """Whether a GPU has this name. A UUID may be shortened to its first characters."""
        if self.uuid is not None:
            return device.uuid is not None and device.uuid.lower().startswith(self.uuid.lower())
        if self.pci is not None:
            return device.pci is not None and bus_address(device.pci) == self.pci
        names = (gpu.node, short_node(gpu.node), gpu.host)
        if self.node is not None and self.node not in names:
            return False
        return gpu.gpu in self.gpus and (self.mig is None or gpu.mig == self.mig)


def gpu_terms(written: str) -> tuple[GpuTerm, ...]:
    """Return the terms of `--gpus`: `0,1,3-5`, `GPU-8932f937`, `3b:00.0`, `nid001:2`, `0.7`.

    >>> [term.gpus for term in gpu_terms("0,3-5")], gpu_terms("0000:3B:00.0")[0].pci
    ([range(0, 1), range(3, 6)], (0, 59, 0, 0))
    >>> gpu_terms("nid001:3.7")[0].node, gpu_terms("nid001:3.7")[0].mig
    ('nid001', 7)

    Errors: UsageError for an invalid name.
    """
    terms = tuple(_gpu_term(part.strip()) for part in written.split(",") if part.strip())
    if not terms:
        raise UsageError("--gpus selects no GPU", do="write 0,1,3-5, UUIDs or PCI addresses")
    return terms


def _gpu_term(written: str) -> GpuTerm:
    if UUID.fullmatch(written):
        return GpuTerm(written, uuid=written)
    address = bus_address(written)
    if address is not None:
        return GpuTerm(written, pci=address)
    match = _PLACE.fullmatch(written)
    if match is None:
        raise UsageError(
            f"--gpus: invalid GPU {written!r}",
            do="write 0,1,3-5, NODE:0, a UUID, or a PCI address such as 3b:00.0",
        )
    low = int(match["low"])
    high = int(match["high"] or low)
    if high < low:
        raise UsageError(f"--gpus: {written} is a reversed range", do=f"write {high}-{low}")
    mig = None if match["mig"] is None else int(match["mig"])
    return GpuTerm(written, node=match["node"], gpus=range(low, high + 1), mig=mig)


def bus_address(written: str) -> tuple[int, ...] | None:
    """Return domain, bus, device, function of a PCI address; None if invalid.

    >>> bus_address("00000000:3B:00.0") == bus_address("3b:00.0"), bus_address("n1:3")
    (True, None)
    """
    match = _PCI.fullmatch(written.strip())
    return None if match is None else tuple(int(part or "0", 16) for part in match.groups())


def select_named(written: str) -> GpuSelector:
    """Return the selection of `--gpus`; an index without a node applies to every node.

    Errors: UsageError for an invalid name. On selection: NotFoundError for a missing GPU, naming
    those that exist; UsageError for a prefix of several UUIDs.
    """
    terms = gpu_terms(written)

    def pick(snapshot: Snapshot, about: SourceInfo) -> GpuSelection:
        selected: set[int] = set()
        for term in terms:
            rows = [
                row for row, gpu in enumerate(snapshot.gpus) if term.fits(gpu, snapshot.device(row))
            ]
            if not rows or (
                term.pci is None and term.uuid is None and not _all_there(term, snapshot, rows)
            ):
                raise NotFoundError(
                    f"GPU {term.written} not found", do=f"known: {_named(snapshot)}"
                )
            if term.uuid and len({snapshot.device(row).uuid for row in rows}) > 1:
                raise UsageError(
                    f"--gpus: several UUIDs begin with {term.written}", do="write more characters"
                )
            selected.update(rows)
        return GpuSelection(
            tuple(sorted(selected)),
            f"{len(selected)} of {plural(len(snapshot.gpus), 'GPU')}, as selected",
        )

    return pick


def _all_there(term: GpuTerm, snapshot: Snapshot, rows: Iterable[int]) -> bool:
    return {snapshot.gpus[row].gpu for row in rows} == set(term.gpus)


def select_job(
    job: str, names_of: Callable[[str], frozenset[str]] = lambda job: frozenset((job,))
) -> GpuSelector:
    """Return the selection of a job's GPUs on all nodes. names_of: aliases of job ids.

    `3` selects all tasks of the array 3, all components of the heterogeneous job 3.
    On selection: NotFoundError naming jobs that hold GPUs, or what to do where no source reports.
    """

    def pick(snapshot: Snapshot, about: SourceInfo) -> GpuSelection:
        names = names_of(job) | {job}
        rows = [row for row in range(len(snapshot.gpus)) if holds(snapshot, row, names)]
        if not rows:
            raise NotFoundError(f"job {job} has no GPU in view", do=_jobs_seen(snapshot, about))
        namesakes = {snapshot.gpus[row].job_name(job) for row in rows}
        if len(namesakes) > 1:
            raise UsageError(
                f"several clusters have a job {job}", do=f"write {' or '.join(sorted(namesakes))}"
            )
        nodes = len({snapshot.gpus[row].host for row in rows})
        on = "" if nodes == 1 else f" on {nodes} nodes"
        return GpuSelection(
            tuple(rows),
            f"{len(rows)} of {plural(len(snapshot.gpus), 'GPU')}, those of job {job}{on}",
        )

    return pick


def holds(snapshot: Snapshot, row: int, names: Iterable[str | None]) -> bool:
    """Return whether a job (or part) with one of these ids holds a GPU, alone or shared."""
    gpu = snapshot.gpus[row]
    allocation = snapshot.allocations.get(gpu)
    return allocation is not None and is_of(allocation, gpu, names)


def is_of(allocation: GpuAllocation, gpu: GpuId, names: Iterable[str | None]) -> bool:
    """Return whether an allocation of a GPU includes a job with one of these ids.

    >>> gpu = GpuId("n1", 0, cluster="hpc")
    >>> [is_of(GpuAllocation(job), gpu, [name]) for job, name in (("3_0", "3"), ("8,9", "hpc/9"))]
    [True, True]
    >>> [is_of(GpuAllocation(job), gpu, [name]) for job, name in (("30", "3"), ("8", "ai/8"))]
    [False, False]
    """
    for name, job in product(filter(None, names), allocation.jobs):
        for written in (job, gpu.job_name(job)):
            if written == name or written.startswith((f"{name}_", f"{name}+")):
                return True
    return False


def jobs_in_view(snapshot: Snapshot) -> set[str]:
    """Return the names of all jobs that hold GPUs."""
    return {
        gpu.job_name(job)
        for gpu, allocation in snapshot.allocations.items()
        for job in allocation.jobs
    }


def _jobs_seen(snapshot: Snapshot, about: SourceInfo) -> str:
    jobs = sorted(jobs_in_view(snapshot))
    if jobs:
        return f"jobs in view: {_some(jobs)}"
    source = advised_source(DCGM_EXPORTER, about.exporters)
    how = (
        "dcgm-exporter write hpc_job (--hpc-job-mapping-dir)"
        if source == DCGM_EXPORTER
        else f"{source} label jobs"
    )
    return (
        f"GPU allocations are unknown: run it where squeue works, let {how}, or select GPUs "
        "with --gpus"
    )


def _named(snapshot: Snapshot) -> str:
    """The existing GPUs: by name, of one host by index."""
    if len({gpu.host for gpu in snapshot.gpus}) == 1:
        return (
            f"{_some(gpu.name.partition(':')[2] for gpu in snapshot.gpus)} on "
            f"{snapshot.gpus[0].host}"
        )
    return _some(gpu.name for gpu in snapshot.gpus)


def _some(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _SOME} others" if len(every) > _SOME else ""
    return ", ".join(every[:_SOME]) + more


class SelectedSource:
    """A source that shows only selected GPUs, re-selected when GPUs or allocations change.

    A selection that fails later (of a job that ended) leaves the GPUs unchanged, and is reported as
    a problem.
    """

    def __init__(self, source: LiveSource, pick: GpuSelector | None) -> None:
        self._source = source
        self._pick = pick
        self._picked: GpuSelection | None = None
        self._of: Snapshot | None = None  # the snapshot selected from
        self._gpus: frozenset[GpuId] = frozenset()
        self._lost: SourceProblem | None = None
        self._first: Snapshot | None = None

    @property
    def about(self) -> SourceInfo:
        """Description of the source, and which of its GPUs are shown."""
        about = self._source.about
        return (
            about
            if self._picked is None
            else replace(about, sentence=f"{about.sentence}; {self._picked.sentence}")
        )

    def poll(self) -> Snapshot:
        """Read ahead once; the next `read` returns it. Errors: also those of the selection."""
        if self._first is None:
            self._first = self._shown(self._source.read())
        return self._first

    def read(self) -> Snapshot:
        """Return the newest snapshot of the selected GPUs. Errors: as the source."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        return self._shown(self._source.read())

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _shown(self, snapshot: Snapshot) -> Snapshot:
        if self._pick is None or not snapshot.gpus:
            return snapshot
        if self._changed(snapshot):
            self._pick_from(snapshot, self._pick)
        shown = snapshot.of(tuple(gpu for gpu in snapshot.gpus if gpu in self._gpus))
        if self._picked is not None and self._picked.allocation is not None:
            shown = replace(shown, allocations=dict.fromkeys(shown.gpus, self._picked.allocation))
        return replace(shown, problems=(*shown.problems, self._lost)) if self._lost else shown

    def _changed(self, snapshot: Snapshot) -> bool:
        before = self._of
        return before is None or (
            snapshot.gpus != before.gpus
            or snapshot.allocations != before.allocations
            or snapshot.devices != before.devices
        )

    def _pick_from(self, snapshot: Snapshot, pick: GpuSelector) -> None:
        try:
            self._picked, self._lost = pick(snapshot, self._source.about), None
            self._gpus = frozenset(snapshot.gpus[row] for row in self._picked.rows)
        except TachographError as problem:
            if self._picked is None:
                raise
            self._lost = SourceProblem(problem.what, do="the previous selection stays")
        self._of = snapshot
