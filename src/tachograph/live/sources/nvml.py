"""The source `nvml`: all GPUs of this node through NVIDIA's own library, with GPM on Hopper and newer; no DCGM needed.

A GPU that is lost and a driver that is reloaded are tried again with patience; what a GPU does not tell or permit is
missing, and `about` says how to enable it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from tachograph.arrays import Floats
from tachograph.errors import NotFoundError
from tachograph.live.snapshot import Device, Gpu, Problem, Process, Snapshot
from tachograph.live.source import About
from tachograph.live.sources.nvml_boards import Patience
from tachograph.live.sources.nvml_calls import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    VERSION_MISMATCH,
    Library,
)
from tachograph.live.sources.nvml_session import Session
from tachograph.live.sources.processes import Processes
from tachograph.units import plural

if TYPE_CHECKING:
    from tachograph.config import Configuration

_START_AGAIN = {
    VERSION_MISMATCH: "the driver was updated: start this command again; until then it is tried again",
}

_LONGEST_S = 600.0  # between two sessions for the sake of a lost GPU


def connect(configuration: Configuration, *, node: str = "", nvml: Library | None = None) -> NvmlSource:
    """Return the GPUs of this node, asked already, so that `about` knows what they tell. Nothing is configured.

    Errors: NotFoundError where NVML, its driver or a GPU is absent.
    """
    source = NvmlSource(nvml or _library(), node=node or this_node())
    try:
        source.start()
    except NotFoundError:
        source.close()
        raise
    return source


def _library() -> Library:
    import pynvml  # 8,000 lines, only for who needs them

    return pynvml


def this_node(environment: Mapping[str, str] = os.environ) -> str:
    """Return the name of this node as Slurm has it, or the host name without its domain.

    >>> this_node({"SLURMD_NODENAME": "nid001"})
    'nid001'
    """
    return environment.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


class NvmlSource:
    """GPUs of this node. processes_s: so often who computes on them is asked; clocks are passed in by tests."""

    def __init__(
        self,
        nvml: Library,
        *,
        node: str,
        processes_s: float = 1.0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        processes: Processes | None = None,
    ) -> None:
        self._nvml, self._node = nvml, node
        self._clock, self._monotonic, self._sleep = clock, monotonic, sleep
        self._session: Session | None = None
        self._patience = Patience()
        # a GPU that was reset is only found by another session: each next one for its sake comes later
        self._restarts = 0
        self._restart_due: float | None = None
        self._failed: Problem | None = None  # why there is no session
        self._rows: dict[Gpu, Device] = {}  # as last listed, and some that are no longer
        self._known: dict[str, tuple[Gpu, Device]] = {}  # all that ever were, by UUID
        self._missing: tuple[Problem, ...] = ()
        self._told: set[str] = set()
        self._xids: dict[tuple[str, int | None], int] = {}  # outlive a session; by address and slice
        self._processes = processes or Processes(nvml)
        self._processes_s, self._processes_due = processes_s, 0.0
        self._running: Mapping[Gpu, tuple[Process, ...]] = {}

    def start(self) -> None:
        """Begin, and ask everything twice: metrics of GPM need two samples. Errors: NotFoundError."""
        try:
            self._open()
        except self._nvml.NVMLError as error:
            raise _absent(error) from None
        if not self._rows:
            raise NotFoundError(
                "NVML sees no GPU", where=self._node, do="run it where GPUs are, or in a job that has some"
            )
        self.read()
        self.read()

    @property
    def about(self) -> About:
        """What it is; `blind` holds what no GPU told so far."""
        session = self._session
        if session is None:
            return About("nvml", f"NVML, {plural(len(self._rows), 'GPU')} of this node", blind={})
        hidden = f"; {plural(session.hidden, 'GPU')} may not be seen from here" if session.hidden else ""
        name = "NVML with GPM" if session.with_gpm else "NVML without GPM"
        blind = {counter: how for counter, how in session.blind.items() if counter not in self._told}
        sentence = f"{name}, {plural(len(self._rows), 'GPU')} of this node, driver {session.driver}{hidden}"
        return About("nvml", sentence, blind=blind)

    def read(self) -> Snapshot:
        """Return what the GPUs tell now."""
        t = self._clock()
        problems: list[Problem] = []
        session = self._ready()
        values: dict[str, Floats] = {}
        measured: Floats = np.full(0, np.nan)
        if session is not None:
            try:
                values, measured = session.read(problems)
                self._ask_processes(session)
            except self._nvml.NVMLError as error:
                self._fail(error)
                session, values, measured, problems = None, {}, np.full(0, np.nan), []
            else:
                self._patience.tries = 0
                self._plan_restart(session)
        return self._snapshot(t, session, values, measured, problems)

    def close(self) -> None:
        """End NVML in this process."""
        session, self._session = self._session, None
        if session is None:
            return
        for board in session.boards:
            pci = board.rows[0].device.pci
            if pci is not None:
                self._xids.update({(pci, at): code for (of, at), code in session.xids.items() if of == board.index})
        session.close()

    def _ready(self) -> Session | None:
        """The session; a new one where the last has ended and its time has come."""
        due = self._restart_due is not None and self._monotonic() >= self._restart_due
        if self._session is not None and (self._session.stale or due):
            self._restarts += due
            self._restart_due = None
            self.close()
        if self._session is None and self._monotonic() >= self._patience.due:
            try:
                self._open()
            except self._nvml.NVMLError as error:
                self._fail(error)
        return self._session

    def _open(self) -> None:
        try:
            session = Session(
                self._nvml,
                self._node,
                clock=self._clock,
                monotonic=self._monotonic,
                sleep=self._sleep,
            )
        except self._nvml.NVMLError:
            self._end_of_half_a_start()
            raise
        for board in session.boards:  # what the last session knew of the same GPUs
            for (pci, instance), code in self._xids.items():
                if pci == board.rows[0].device.pci:
                    session.xids[board.index, instance] = code
        self._session, self._failed = session, None
        self._list(session)

    def _end_of_half_a_start(self) -> None:
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:  # it had not even begun
            return

    def _plan_restart(self, session: Session) -> None:
        """Where a GPU is lost or missing, another session is begun in a while."""
        if not session.incomplete and not self._missing:
            self._restarts, self._restart_due = 0, None
        elif self._restart_due is None:
            self._restart_due = self._monotonic() + min(_LONGEST_S, 15.0 * 2 ** min(self._restarts, 10))

    def _list(self, session: Session) -> None:
        """Rows of a new session; GPUs that the driver no longer lists are told, and stay where their name is free."""
        listed = {row.gpu: row.device for row in session.rows}
        lost = {board.index for board in session.boards if board.lost}
        for board in session.boards:
            if board.lost:  # it says nothing of itself; it was told before
                listed.update({row.gpu: self._rows.get(row.gpu, row.device) for row in board.rows})
        self._known |= {one.uuid: (gpu, one) for gpu, one in listed.items() if one.uuid and gpu.mig is None}
        uuids = {device.uuid for device in listed.values()}
        divided = {gpu.gpu for gpu in listed if gpu.mig is not None}
        gone = {
            gpu: device
            for uuid, (gpu, device) in self._known.items()
            if uuid not in uuids and gpu.gpu not in lost and gpu.gpu not in divided
        }
        self._missing = tuple(
            Problem(
                f"the driver no longer lists {device.uuid}",
                gpu.name,
                "the others may have other numbers now; ask the administrator to look at nvidia-smi",
            )
            for gpu, device in gone.items()
        )
        self._rows = {**listed, **{gpu: device for gpu, device in gone.items() if gpu not in listed}}

    def _fail(self, error: Exception) -> None:
        """End what is left of the session; the next one is begun when its time has come."""
        self.close()
        self._patience.failed(self._monotonic())
        do = _START_AGAIN.get(getattr(error, "value", 0), "it is tried again")
        self._failed = Problem(f"the driver does not answer (NVML: {error})", self._node, do)

    def _ask_processes(self, session: Session) -> None:
        now = self._monotonic()
        if now < self._processes_due:
            return
        self._processes_due = now + self._processes_s
        running: dict[Gpu, tuple[Process, ...]] = {}
        for board in session.boards:
            for row in board.rows:
                if not board.lost and (held := session.processes(self._processes, row)):
                    running[row.gpu] = held
        self._processes.forget_ended()
        self._running = running

    def _snapshot(
        self,
        t: float,
        session: Session | None,
        values: dict[str, Floats],
        measured: Floats,
        problems: list[Problem],
    ) -> Snapshot:
        """Rows of the session come first; those that are only remembered follow, with NaN."""
        gpus = tuple(self._rows)
        self._told.update(values)
        columns = {}
        for counter in sorted(self._told):
            column = columns[counter] = np.full(len(gpus), np.nan)
            if counter in values:
                column[: len(measured)] = values[counter]
        moments = np.full(len(gpus), np.nan)
        moments[: len(measured)] = measured
        told = (*problems, *self._missing) if session is not None else (self._failed,) if self._failed else ()
        running = self._running if session is not None else {}
        return Snapshot(t, gpus, moments, columns, dict(self._rows), {}, running, told)


def _absent(error: Exception) -> NotFoundError:
    """Why NVML cannot be had at all."""
    match getattr(error, "value", 0):
        case code if code == LIBRARY_NOT_FOUND:
            return NotFoundError(
                "NVML is not installed: libnvidia-ml.so.1 was not found",
                do="install the NVIDIA driver (Debian, Ubuntu: apt-get install libnvidia-ml1); in a container, "
                "start it with GPUs (--gpus all, --nv) and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
            )
        case code if code == DRIVER_NOT_LOADED:
            return NotFoundError("no NVIDIA driver is loaded", do="run it on a node with GPUs; there: modprobe nvidia")
        case code if code == NO_PERMISSION:
            return NotFoundError("NVML is not permitted to talk to the driver", do="who may open /dev/nvidiactl?")
        case code if code == VERSION_MISMATCH:
            return NotFoundError(
                "NVML and the loaded driver are of different versions", do="reload the driver, or reboot the node"
            )
    return NotFoundError(f"NVML does not start: {error}", do="try nvidia-smi; it should say the same")
