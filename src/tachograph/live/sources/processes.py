"""Who computes on a GPU: process ids and memory from NVML, user and command from /proc.

NVML tells process ids of the host. In a container they may belong to nobody, or to somebody else by chance: there a
process only gets a name when its open files show the GPU.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tachograph.live.snapshot import Process
from tachograph.live.sources.nvml_calls import FUNCTION_NOT_FOUND, REFUSED, Handle, Library
from tachograph.units import MI

_INITIAL_NAMESPACE = "pid:[4026531836]"  # the host's, the same on every Linux (include/linux/proc_ns.h)
_STARTED = 19  # field 22 of /proc/PID/stat, counted behind the name, which may hold blanks and brackets
_LONGEST = 4096  # bytes of a command line; some are megabytes


@dataclass(frozen=True, slots=True)
class _Known:
    started: str = ""
    user: str | None = None
    command: str | None = None


class Processes:
    """Processes of GPUs, each looked up in /proc once. proc: where that is mounted."""

    def __init__(self, nvml: Library, *, proc: Path = Path("/proc")) -> None:
        self._nvml = nvml
        self._proc = proc
        self._known: dict[int, _Known] = {}
        self._users: dict[int, str] = {}
        self._seen: set[int] = set()
        self._on_host = _link(proc / "self/ns/pid") == _INITIAL_NAMESPACE

    def of(self, handles: Iterable[Handle]) -> tuple[Process, ...]:
        """Processes of a GPU, or of the MIG devices of a slice, by process id.

        Errors: NVMLError, unless the GPU just does not tell.
        """
        held: dict[int, float | None] = {}
        for handle in handles:
            for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMPSComputeRunningProcesses"):
                for pid, mib in self._running(name, handle):
                    if held.get(pid) is None:
                        held[pid] = mib
        self._seen.update(held)
        found = [(pid, self._look_up(pid) or _Known()) for pid in sorted(held)]
        return tuple(Process(pid, known.user, known.command, held[pid]) for pid, known in found)

    def forget_ended(self) -> None:
        """Call after all GPUs of a round: what none of them runs any more is no longer kept."""
        for pid in self._known.keys() - self._seen:
            del self._known[pid]
        self._seen = set()

    def _running(self, name: str, handle: Handle) -> list[tuple[int, float | None]]:
        try:
            try:
                told = getattr(self._nvml, f"{name}_v3")(handle)
            except self._nvml.NVMLError as error:
                if error.value != FUNCTION_NOT_FOUND:
                    raise
                told = getattr(self._nvml, f"{name}_v2")(handle)
        except self._nvml.NVMLError as error:
            if error.value in REFUSED:
                return []
            raise
        return [(one.pid, None if one.usedGpuMemory is None else one.usedGpuMemory / MI) for one in told if one.pid]

    def _look_up(self, pid: int) -> _Known | None:
        """None of a process that is not to be seen from here: vanished, hidden, or of another container."""
        folder = self._proc / str(pid)
        try:
            stat = (folder / "stat").read_text(errors="replace")
            started = stat.rpartition(")")[2].split()[_STARTED]
        except (OSError, IndexError):
            self._known.pop(pid, None)
            return None
        known = self._known.get(pid)
        if known is None or known.started != started:
            known = self._known[pid] = self._ask(folder, started, stat.partition("(")[2].rpartition(")")[0])
        return known

    def _ask(self, folder: Path, started: str, name: str) -> _Known:
        if not self._on_host and not _holds_a_gpu(folder):
            return _Known(started, None, None)
        try:
            with (folder / "cmdline").open("rb") as stream:
                line = stream.read(_LONGEST).decode(errors="replace")
        except OSError:
            line = ""
        return _Known(started, self._user(folder), printable(line.replace("\0", " ")) or printable(name) or None)

    def _user(self, folder: Path) -> str | None:
        # who owns the folder is root where a process may not be traced
        try:
            status = (folder / "status").read_text(errors="replace")
            number = int(status.partition("\nUid:")[2].split()[0])
        except (OSError, IndexError, ValueError):
            return None
        if number not in self._users:
            try:
                self._users[number] = pwd.getpwuid(number).pw_name
            except KeyError:
                self._users[number] = str(number)
        return self._users[number]


def printable(line: str) -> str:
    """Return a command line in which nothing steers a terminal.

    >>> printable("python train.py \\x1b[2J --lr 0.1 ")
    'python train.py ?[2J --lr 0.1'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in line.strip())


def _holds_a_gpu(folder: Path) -> bool:
    """Whether the open files of a process show a GPU; False where they may not be seen."""
    try:
        return any((_link(one) or "").startswith("/dev/nvidia") for one in (folder / "fd").iterdir())
    except OSError:
        return False


def _link(path: Path) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115  Path would resolve `pid:[1]` as if it were a name
    except OSError:
        return None
