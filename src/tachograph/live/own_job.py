"""Which GPUs are those of this process: what the environment of its job says, and how that fits what a source shows.

Traps of a job's environment, for which what is written is believed in this order:
- A UUID in CUDA_VISIBLE_DEVICES names a GPU wherever it is seen.
- SLURM_STEP_GPUS and SLURM_JOB_GPUS count the GPUs of the node. Inside a cgroup that hides the others NVML counts anew
  from 0: where a source shows no more GPUs than the job has, these are they, whatever their numbers.
- Indices in CUDA_VISIBLE_DEVICES count what the process may see. Inside a cgroup GPU 0 is the job's first, while
  dcgm-exporter and DCGM, outside it, call another one 0: there they say nothing.
- Numbers of Slurm are minor numbers of device files, or indices of NVML (AutoDetect=nvml), as the site has set it up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tachograph.live.snapshot import Holder, Snapshot
from tachograph.live.source import About
from tachograph.live.visible import UUID, Pick, Picked, Term, counted, device_of, holds, short_host

_NONE_VISIBLE: Final = frozenset({"", "-1", "nodevfiles", "none", "void"})


@dataclass(frozen=True, slots=True)
class Held:
    """What the environment of a process says of its GPUs. job: None outside of Slurm.

    numbers: of the node's GPUs, as Slurm counts them; devices: CUDA_VISIBLE_DEVICES. None: not told; empty: none.
    """

    job: str | None = None
    shown_job: str | None = None  # of an array: 3_0
    user: str | None = None
    since: float | None = None
    node: str | None = None
    nodes: int = 1
    numbers: tuple[int, ...] | None = None
    devices: tuple[str, ...] | None = None

    @property
    def name(self) -> str:
        """The job as people call it, else where the GPUs are named."""
        return f"job {self.shown_job or self.job}" if self.job else "CUDA_VISIBLE_DEVICES"

    @property
    def holder(self) -> Holder | None:
        """The job as a holder."""
        return Holder(self.shown_job or self.job, self.user, self.since) if self.job else None

    @property
    def count(self) -> int | None:
        """How many GPUs there are for the process; None where that is not told."""
        told = self.numbers if self.numbers is not None else self.devices
        return None if told is None else len(told)


def held_by(environment: Mapping[str, str]) -> Held | None:
    """Return what an environment says of a process's GPUs; None outside of a job with none named.

    >>> held_by({"SLURM_JOB_ID": "14", "SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"}).numbers
    (2, 3)
    >>> held_by({}) is None, held_by({"CUDA_VISIBLE_DEVICES": "GPU-8932f937"}).devices
    (True, ('GPU-8932f937',))
    """
    job = environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID")
    devices = _devices(environment.get("CUDA_VISIBLE_DEVICES"))
    if not job:
        return None if devices is None else Held(devices=devices)
    array, task = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
    start = environment.get("SLURM_JOB_START_TIME", "")
    nodes = environment.get("SLURM_JOB_NUM_NODES") or environment.get("SLURM_NNODES") or "1"
    return Held(
        job,
        f"{array}_{task}" if array and task else job,
        environment.get("SLURM_JOB_USER") or environment.get("USER"),
        float(start) if start.isdigit() else None,
        environment.get("SLURMD_NODENAME"),
        int(nodes) if nodes.isdigit() else 1,
        _numbers(environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS")),
        devices,
    )


def _devices(written: str | None) -> tuple[str, ...] | None:
    """CUDA takes what is written up to the first that is no device."""
    if written is None:
        return None
    found: list[str] = []
    for part in (part.strip() for part in written.split(",")):
        if part.lower() in _NONE_VISIBLE:
            break
        found.append(part)
    return tuple(found)


def _numbers(written: str | None) -> tuple[int, ...] | None:
    """Numbers of GPUs as Slurm writes them: `0,1`, `0-3`; None where they are none."""
    found: list[int] = []
    for part in (written or "").split(","):
        ends = re.fullmatch(r"(?:gpu:)?(\d{1,4})(?:-(\d{1,4}))?", part.strip(), re.ASCII)
        if ends is None:
            return None
        found += range(int(ends[1]), int(ends[2] or ends[1]) + 1)
    return tuple(dict.fromkeys(found))


def pick_own(held: Held, *, host: str) -> Pick:
    """Return what picks the GPUs of the process's own job, or of CUDA_VISIBLE_DEVICES, on this host.

    Where it cannot be told which they are, all of the host are picked, and the words say so.
    """

    def pick(snapshot: Snapshot, about: About) -> Picked:
        here = _rows_of_host(snapshot, {short_host(name) for name in (host, held.node) if name})
        if held.count == 0 or (held.count is None and held.devices is None):
            return Picked(tuple(here), f"{counted(snapshot)}, as {held.name} names none")
        rows = _own_rows(snapshot, about, held, here)
        if rows is None:
            words = f"{counted(snapshot)}: which of them are those of {held.name} is not told; name them with --gpus"
            return Picked(tuple(here), words)
        return Picked(tuple(rows), f"{len(rows)} of {counted(snapshot)}, those of {held.name}", held.holder)

    return pick


def _own_rows(snapshot: Snapshot, about: About, held: Held, here: Sequence[int]) -> Sequence[int] | None:
    """The rows of one's own GPUs; None where nothing tells them. See the traps above."""
    uuids = [Term(name, uuid=name) for name in held.devices or () if UUID.fullmatch(name)]
    named = [
        row
        for row in here
        if any(term.fits(snapshot.gpus[row], device_of(snapshot, snapshot.gpus[row])) for term in uuids)
    ]
    if named:
        return named
    if confined(snapshot, held, here):
        return here
    sliced = any(snapshot.gpus[row].mig is not None for row in here)
    if held.numbers is not None and not sliced:
        of_slurm = [row for row in here if snapshot.gpus[row].gpu in held.numbers]
        return of_slurm or None
    of_job = [row for row in here if held.job and holds(snapshot, row, {held.job, held.shown_job})]
    if of_job:
        return of_job
    indices = {int(name) for name in held.devices or () if name.isdigit()}
    if uuids or sliced or (held.job and about.name != "nvml"):
        return None  # they count from 0 inside a cgroup; NVML is asked inside it, too
    return [row for row in here if snapshot.gpus[row].gpu in indices] or None


def confined(snapshot: Snapshot, held: Held, rows: Sequence[int] | None = None) -> bool:
    """Return whether a source shows no more GPUs (or slices) than the process may use: then they are its own."""
    units = [snapshot.gpus[row] for row in rows] if rows is not None else snapshot.gpus
    return held.count is not None and 0 < len(units) <= held.count


def _rows_of_host(snapshot: Snapshot, names: set[str]) -> list[int]:
    """Rows of a host; all where there is but one, which may call itself otherwise (a container)."""
    if len({gpu.node for gpu in snapshot.gpus}) <= 1:
        return list(range(len(snapshot.gpus)))
    return [row for row, gpu in enumerate(snapshot.gpus) if short_host(gpu.node) in names]
