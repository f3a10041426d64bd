"""GPUs and MIG slices listed by NVML, their unsupported calls, and the processes on them."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from tachograph.annexes.watch.live.snapshot import GpuDevice, GpuId, GpuProcess
from tachograph.annexes.watch.live.sources.nvml_calls import (
    DRIVER_GONE,
    FUNCTION_NOT_FOUND,
    NO_PERMISSION,
    REFUSED,
    GpmGauge,
    NvmlHandle,
    NvmlLibrary,
    memory,
)
from tachograph.annexes.watch.retries import RetryDelay
from tachograph.catalog.units import MI

_SLOWDOWN = 1  # of nvmlTemperatureThresholds_t
_AGAIN_S = 60.0  # time until a rejected call is repeated
T = TypeVar("T")


@dataclass(slots=True)
class RefusedCalls:
    """Calls rejected for a GPU: {call: (when it is repeated, its error code)}."""

    calls: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, call: str, *, code: int, now: float) -> None:
        """Skip a call for a while."""
        self.calls[call] = (now + _AGAIN_S, code)

    def due(self, call: str, now: float) -> bool:
        """Whether a call is to be made."""
        refused = self.calls.get(call)
        return refused is None or now >= refused[0]


@dataclass(slots=True)
class NvmlRow:
    """One row of a snapshot: GPU or slice. handles: of its MIG devices, or its own."""

    gpu: GpuId
    device: GpuDevice
    handles: tuple[NvmlHandle, ...]
    gauge: GpmGauge | None = None
    refusals: RefusedCalls = field(default_factory=RefusedCalls)


@dataclass(slots=True)
class NvmlBoard:
    """One GPU of the node. lost: its error, or ""; retried at growing intervals."""

    index: int
    handle: NvmlHandle | None
    rows: list[NvmlRow]
    refusals: RefusedCalls = field(default_factory=RefusedCalls)
    lost: str = ""
    retry: RetryDelay = field(default_factory=RetryDelay)

    @property
    def instances(self) -> tuple[int, ...]:
        """MIG slices of the GPU."""
        return tuple(row.gpu.mig for row in self.rows if row.gpu.mig is not None)

    def close(self) -> None:
        """Free its resources."""
        for row in self.rows:
            if row.gauge is not None:
                row.gauge.close()
                row.gauge = None


def found_board(nvml: NvmlLibrary, index: int, node: str) -> NvmlBoard | None:
    """Return a GPU with its rows; None if it is hidden by a container or cgroup.

    Errors: NVMLError if the driver is gone. A lost GPU has a row with that error.
    """
    gpu = GpuId(node, index)
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        whole = _device(nvml, handle)
        rows = [
            _row_of_slice(nvml, handle, whole, GpuId(node, index, at), of)
            for at, of in mig_slices(nvml, handle).items()
        ]
    except nvml.NVMLError as error:
        if error.value in DRIVER_GONE:
            raise
        if error.value == NO_PERMISSION:
            return None
        return NvmlBoard(index, None, [NvmlRow(gpu, GpuDevice(), ())], lost=str(error))
    return NvmlBoard(
        index, handle, rows or [NvmlRow(gpu, whole, (handle,), GpmGauge(nvml, handle))]
    )


def mig_slices(nvml: NvmlLibrary, handle: NvmlHandle) -> dict[int, tuple[NvmlHandle, ...]]:
    """Return {GPU instance: MIG device handles}; {} if MIG is off. Errors: NVMLError."""
    divided = _optional(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    if not divided:
        return {}
    handles: dict[int, tuple[NvmlHandle, ...]] = {}
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        device = _optional(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index))
        if device is not None:  # used places are not contiguous
            instance = nvml.nvmlDeviceGetGpuInstanceId(device)
            handles[instance] = (*handles.get(instance, ()), device)
    return dict(sorted(handles.items()))


def _device(nvml: NvmlLibrary, handle: NvmlHandle) -> GpuDevice:
    """Properties of a GPU. A GPU without UUID is lost; other failures are allowed."""
    uuid = nvml.nvmlDeviceGetUUID(handle)
    total = _optional(nvml, lambda: memory(nvml, handle)["total"] / MI)
    slowdown = _optional(
        nvml, lambda: float(nvml.nvmlDeviceGetTemperatureThreshold(handle, _SLOWDOWN))
    )
    return GpuDevice(
        _optional(nvml, lambda: str(nvml.nvmlDeviceGetName(handle))),
        str(uuid),
        _optional(nvml, lambda: str(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        total,
        slowdown or None,  # 0 where it has none
        _optional(nvml, lambda: int(nvml.nvmlDeviceGetMinorNumber(handle))),
    )


def _row_of_slice(
    nvml: NvmlLibrary,
    board: NvmlHandle,
    whole: GpuDevice,
    gpu: GpuId,
    handles: tuple[NvmlHandle, ...],
) -> NvmlRow:
    total = _optional(nvml, lambda: memory(nvml, handles[0])["total"] / MI)
    uuid = _optional(nvml, lambda: str(nvml.nvmlDeviceGetUUID(handles[0])))
    device = GpuDevice(whole.model, uuid, whole.pci, total, whole.slowdown_c, whole.minor_number)
    return NvmlRow(gpu, device, handles, GpmGauge(nvml, board, instance=gpu.mig))


def _optional(nvml: NvmlLibrary, query: Callable[[], T]) -> T | None:
    try:
        return query()
    except nvml.NVMLError as error:
        if error.value in DRIVER_GONE:
            raise
        return None


# The host's, the same on every Linux (include/linux/proc_ns.h).
_INITIAL_NAMESPACE = "pid:[4026531836]"
# Field 22 of /proc/PID/stat, counted behind the name, which may hold blanks and brackets.
_STARTED = 19
_LONGEST = 4096  # bytes of a command line; some are megabytes


@dataclass(frozen=True, slots=True)
class _KnownProcess:
    started: str = ""
    user: str | None = None
    command: str | None = None


class GpuProcesses:
    """Processes of GPUs, each looked up in /proc once. proc: its mount point."""

    def __init__(self, nvml: NvmlLibrary, *, proc: Path = Path("/proc")) -> None:
        self._nvml = nvml
        self._proc = proc
        self._known: dict[int, _KnownProcess] = {}
        self._users: dict[int, str] = {}
        self._seen: set[int] = set()
        self._on_host = _link(proc / "self/ns/pid") == _INITIAL_NAMESPACE

    def of(self, handles: Iterable[NvmlHandle]) -> tuple[GpuProcess, ...]:
        """Processes of a GPU, or of the MIG devices of a slice, by process id.

        Errors: NVMLError, unless the call is only unsupported.
        """
        held: dict[int, float | None] = {}
        for handle in handles:
            for name in (
                "nvmlDeviceGetComputeRunningProcesses",
                "nvmlDeviceGetMPSComputeRunningProcesses",
            ):
                for pid, mib in self._running(name, handle):
                    if held.get(pid) is None:
                        held[pid] = mib
        self._seen.update(held)
        looked_up = [(pid, self._look_up(pid) or _KnownProcess()) for pid in sorted(held)]
        return tuple(
            GpuProcess(pid, details.user, details.command, held[pid]) for pid, details in looked_up
        )

    def forget_ended(self) -> None:
        """Drop ended processes; call after all GPUs of a round."""
        for pid in self._known.keys() - self._seen:
            del self._known[pid]
        self._seen = set()

    def _running(self, name: str, handle: NvmlHandle) -> list[tuple[int, float | None]]:
        try:
            try:
                processes = getattr(self._nvml, f"{name}_v3")(handle)
            except self._nvml.NVMLError as error:
                if error.value != FUNCTION_NOT_FOUND:
                    raise
                processes = getattr(self._nvml, f"{name}_v2")(handle)
        except self._nvml.NVMLError as error:
            if error.value in REFUSED:
                return []
            raise
        return [
            (process.pid, None if process.usedGpuMemory is None else process.usedGpuMemory / MI)
            for process in processes
            if process.pid
        ]

    def _look_up(self, pid: int) -> _KnownProcess | None:
        """None for a process that is not visible here: ended, hidden, or of another container."""
        folder = self._proc / str(pid)
        try:
            stat = (folder / "stat").read_text(errors="replace")
            started = stat.rpartition(")")[2].split()[_STARTED]
        except (OSError, IndexError):
            self._known.pop(pid, None)
            return None
        details = self._known.get(pid)
        if details is None or details.started != started:
            details = self._known[pid] = self._read(
                folder, started, stat.partition("(")[2].rpartition(")")[0]
            )
        return details

    def _read(self, folder: Path, started: str, name: str) -> _KnownProcess:
        if not self._on_host and not _holds_a_gpu(folder):
            return _KnownProcess(started, None, None)
        try:
            with (folder / "cmdline").open("rb") as stream:
                line = stream.read(_LONGEST).decode(errors="replace")
        except OSError:
            line = ""
        return _KnownProcess(
            started, self._user(folder), line.replace("\0", " ").strip() or name.strip() or None
        )

    def _user(self, folder: Path) -> str | None:
        # who owns the folder is root where a process may not be traced
        try:
            status = (folder / "status").read_text(errors="replace")
            number = int(status.partition("\nUid:")[2].split()[0])
        except (OSError, IndexError, ValueError):
            return None
        if number not in self._users:
            try:
                self._users[number] = pwd.getpwuid(number).pw_name.encode(errors="replace").decode()
            except KeyError:
                self._users[number] = str(number)
        return self._users[number]


def _holds_a_gpu(folder: Path) -> bool:
    """Whether a process has a GPU open; False if its files are hidden."""
    try:
        return any(
            (_link(descriptor) or "").startswith("/dev/nvidia")
            for descriptor in (folder / "fd").iterdir()
        )
    except OSError:
        return False


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115  Path would resolve `pid:[1]` as if it were a name
    except OSError:
        return None
