"""`dcgmi dmon` as a live source: DCGM's counters of this node's GPUs, up to ten times a second.

The program runs as a child process and prints a table without end. Its end, a hang or a rejection
is reported, and it is started again, after growing pauses. Fields that are unknown to the installed
DCGM are left out.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from tachograph.annexes.watch.live.snapshot import (
    GpuDevice,
    GpuId,
    Snapshot,
    SourceInfo,
    SourceProblem,
    closed_on_failure,
)
from tachograph.annexes.watch.live.unsupported import unsupported_counters
from tachograph.annexes.watch.retries import RetryDelay
from tachograph.catalog.arrays import Floats
from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.errors import InputError
from tachograph.catalog.limits import ValueLimits
from tachograph.catalog.units import plural, printable
from tachograph.sources.dcgmi import (
    DMON_NAMES,
    DmonRow,
    DmonStream,
    discovered_devices,
    discovered_instances,
    dmon_field_names,
    dmon_fields,
)
from tachograph.sources.metrics import short_node

if TYPE_CHECKING:
    from tachograph.catalog.config import Configuration


_BLOCK = 1 << 16  # bytes read at once
_LONGEST_LINE = 1 << 16  # bytes; longer lines are not part of the table
_KEPT_ROWS = 4096  # not taken yet
_GRACE_S = 0.5  # until SIGKILL


@dataclass(frozen=True, slots=True)
class DmonOutput:
    """Output since the last call. rows: with time of arrival. ended: exit code, if ended."""

    rows: tuple[tuple[float, DmonRow], ...]
    columns: tuple[str, ...]
    complaints: tuple[str, ...]
    ended: int | None


class DmonProcess:
    """One run of the program. Errors: OSError if it does not start."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._steady = clock, steady
        self._stream = DmonStream()
        self._rows: deque[tuple[float, DmonRow]] = deque(maxlen=_KEPT_ROWS)
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal must reach only this process
        )
        self.heard = steady()
        self._thread = threading.Thread(target=self._run, name="dmon", daemon=True)
        self._thread.start()

    def take(self) -> DmonOutput:
        """Return the output since the last call."""
        over = not self._thread.is_alive()
        with self._lock:
            rows = tuple(self._rows)
            self._rows.clear()
            columns, complaints = self._stream.columns, tuple(self._stream.complaints)
        return DmonOutput(rows, columns, complaints, self._process.wait() if over else None)

    def close(self) -> None:
        """End the program with all it started; may be called twice."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, how)
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_GRACE_S)
        self._thread.join(_GRACE_S)

    def _run(self) -> None:
        output = self._process.stdout
        assert output is not None
        begun = b""
        with output:
            while block := os.read(output.fileno(), _BLOCK):
                *lines, begun = (begun + block).split(b"\n")
                begun = begun if len(begun) < _LONGEST_LINE else b""
                for line in lines:
                    self._line(line)
        with suppress(subprocess.TimeoutExpired):  # it closed its output but still runs: useless
            self._process.wait(_GRACE_S)
        self._finish()

    def _finish(self) -> None:
        """Kill its remaining processes and reap it."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def _line(self, line: bytes) -> None:
        text = line[:_LONGEST_LINE].decode("utf-8", "replace").rstrip("\r")
        with self._lock:
            row = self._stream.line(text)
            if row is not None:
                self._rows.append((self._clock(), row))
                self.heard = self._steady()


NAME: Final = "dmon"
LEAST_INTERVAL_S = 0.1  # too short intervals overload DCGM
_SLOWDOWN, _HBM = 158, 250  # properties of a device, requested with the counters
_PROFILED = range(1000, 1100)  # fields of the profiling module
_FIELDS: Final = tuple(counter.dcgm_id for counter in COUNTERS if counter.dcgm_id is not None)
_COLUMN: Final = {
    counter.dcgm_id: number
    for number, counter in enumerate(COUNTERS)
    if counter.dcgm_id is not None
}
_LIMITS: Final = ValueLimits.of(
    (counter, counter.dcgm_unit or counter.unit) for counter in COUNTERS
)
_SLICE_LIMITS: Final = _LIMITS.of_slices(np.ones(len(COUNTERS), np.bool_))
_QUERY_S = 5.0  # timeout of `discovery`
_FIRST_S = 5.0  # wait of connecting for the first row
# A value is kept for so long while N/A is printed: fields alternate before Hopper.
_CARRY_S, _CARRY_TICKS = 5.0, 10.0
_HUNG_S, _HUNG_TICKS = 5.0, 5.0  # without a row, after which it counts as hung
_RETRY_S, _LONGEST_RETRY_S = 1.0, 30.0  # until it is started again, at first and at most
_SETTLED = 5  # ticks after which a field that was never reported counts as missing

_INVALID = re.compile(r"invalid field id\D*(\d+)", re.IGNORECASE)
_UNPROFILED = re.compile(r"profiling module|not currently loaded|-33\b|-37\b", re.IGNORECASE)
# message, and how to fix it
_FIXES: Final = (
    (
        re.compile(r"\broot\b|permi", re.IGNORECASE),
        "run nv-hostengine as root, and request access to it",
    ),
    (
        re.compile(r"host ?engine|establish a connection", re.IGNORECASE),
        "is the host engine running? systemctl start nvidia-dcgm",
    ),
    (re.compile(r"driver", re.IGNORECASE), "is the driver loaded? check nvidia-smi"),
)


@dataclass(slots=True)
class _LastValues:
    """Last value of each counter of a GPU, with its time."""

    values: Floats = field(default_factory=lambda: np.full(len(COUNTERS), np.nan))
    times: Floats = field(default_factory=lambda: np.full(len(COUNTERS), -np.inf))
    measured: float = float("nan")


class DmonSource:
    """`dcgmi dmon` as a live source; use `connect`. program: command; clock: s since 1970."""

    def __init__(
        self,
        *,
        interval_s: float = 1.0,
        program: Sequence[str] = ("dcgmi",),
        node: str | None = None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
        retry_s: float = _RETRY_S,
    ) -> None:
        self._interval_s = max(LEAST_INTERVAL_S, interval_s)
        self._program = tuple(program)
        self._node = node or short_node(socket.gethostname())
        self._clock, self._steady = clock, steady
        self._requested: list[int] = [*_FIELDS, _SLOWDOWN, _HBM]
        self._refused: dict[str, str] = {}
        self._names: Mapping[str, int] = DMON_NAMES
        self._slices: Mapping[int, tuple[int, int]] = {}
        self._gpus: dict[GpuId, _LastValues] = {}
        self._devices: dict[GpuId, GpuDevice] = {}
        self._process: DmonProcess | None = None
        self._problem: SourceProblem | None = None
        self._retry, self._rows = RetryDelay(retry_s, _LONGEST_RETRY_S), 0
        self._working = False  # the program that runs has printed rows

    @property
    def about(self) -> SourceInfo:
        """Description of the source; unsupported counters are known after some ticks."""
        gpus = plural(len(self._gpus), "GPU")
        return SourceInfo(NAME, f"dcgmi dmon, {gpus} of this node", self._unsupported())

    def read(self) -> Snapshot:
        """Return the last values of every GPU that was reported within some ticks."""
        self._keep_running()
        if self._process is not None:
            self._take(self._process)
        now = self._clock()
        gpus = tuple(sorted(self._gpus, key=GpuId.order))
        table = np.full((len(COUNTERS), len(gpus)), np.nan)
        carried = max(_CARRY_S, _CARRY_TICKS * self._interval_s)
        for row, gpu in enumerate(gpus):
            last = self._gpus[gpu]
            table[:, row] = np.where(now - last.times <= carried, last.values, np.nan)
        measured = np.array([self._gpus[gpu].measured for gpu in gpus], np.float64)
        measured[np.isnan(table).all(axis=0)] = np.nan
        columns = {
            counter.name: table[number]
            for number, counter in enumerate(COUNTERS)
            if self._ever(number)
        }
        problems = () if self._problem is None else (self._problem,)
        return Snapshot(now, gpus, measured, columns, dict(self._devices), problems=problems)

    def close(self) -> None:
        """End the program."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def begin(self) -> None:
        """Query the GPUs, start, and wait for the first row.

        Errors: InputError without the program, a host engine or a GPU.
        """
        listed = self._answer("discovery", "-l")
        for number, properties in discovered_devices(listed).items():
            gpu = GpuId(self._node, number)
            self._devices[gpu] = GpuDevice(
                properties.get("Name"), properties.get("Device UUID"), properties.get("PCI Bus ID")
            )
        if not self._devices:
            raise InputError(
                "DCGM lists no GPU", where=self._where, do="check `dcgmi discovery -l`"
            )
        self._slices = discovered_instances(self._answer("discovery", "-c", needed=False))
        named = dmon_field_names(self._answer("dmon", "-l", needed=False))
        if named:
            self._names = named
            supported = set(named.values())
            self._refuse(
                [number for number in self._requested if number not in supported],
                "unknown to this DCGM",
            )
        until = self._steady() + _FIRST_S
        while (
            not self._gpus
            and self._steady() < until
            and (self._problem is None or self._retry.tries == 0)
        ):
            self.read()
            time.sleep(0.02)
        if not self._gpus:
            problem = self._problem or SourceProblem(
                f"no row within {_FIRST_S:g} s", self._where, "run it by hand"
            )
            raise problem.error

    @property
    def _where(self) -> str:
        return f"{Path(self._program[-1]).name} dmon"

    def _answer(self, *arguments: str, needed: bool = True) -> str:
        """Output of the program; empty if an optional call fails."""
        try:
            done = subprocess.run(
                [*self._program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=_QUERY_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            if not needed:
                return ""
            raise self._cannot(problem) from None
        message = done.stdout.decode("utf-8", "replace")
        if done.returncode == 0 or not needed:
            return message if done.returncode == 0 else ""
        raise _problem(message.splitlines(), done.returncode, self._where).error

    def _cannot(self, problem: OSError | subprocess.TimeoutExpired) -> InputError:
        if isinstance(problem, subprocess.TimeoutExpired):
            return InputError(
                f"no answer within {_QUERY_S:g} s", where=self._where, do="is nv-hostengine alive?"
            )
        return _not_started(problem, self._where).error

    def _keep_running(self) -> None:
        """Start the program if it is not running; kill it if it hangs."""
        now = self._steady()
        if self._process is not None and now - self._process.heard > max(
            _HUNG_S, _HUNG_TICKS * self._interval_s
        ):
            self.close()
            self._fail(SourceProblem("stopped printing", self._where, "is nv-hostengine alive?"))
        if self._process is None and now >= self._retry.due:
            self._start()

    def _start(self) -> None:
        command = [*self._program, "dmon", "-e", ",".join(map(str, self._requested))]
        command += ["-d", str(round(self._interval_s * 1000))]
        if self._slices:
            entities = [str(gpu.gpu) for gpu in self._devices if gpu.mig is None]
            command += [
                "-i",
                ",".join([*entities, *(f"{gpu}/{mig}" for gpu, mig in self._slices.values())]),
            ]
        try:
            self._working = False
            self._process = DmonProcess(command, clock=self._clock, steady=self._steady)
        except OSError as problem:
            self._fail(_not_started(problem, self._where))

    def _take(self, process: DmonProcess) -> None:
        """Apply the output since the last call; handle the end of the program."""
        message = process.take()
        fields = dmon_fields(message.columns, self._requested, self._names)
        for t, row in message.rows:
            self._note(t, row, fields)
        if message.rows:
            self._retry.tries, self._problem, self._working = 0, None, True
        if message.ended is not None:
            process.close()
            self._process = None
            self._ended(message, message.ended)

    def _note(self, t: float, row: DmonRow, fields: Mapping[str, int]) -> None:
        gpu = self._gpu(row)
        if gpu is None:
            return
        last = self._gpus.setdefault(gpu, _LastValues())
        raw = np.full(len(COUNTERS), np.nan)
        facts: dict[int, float] = {}
        for name, value in row.values.items():
            number = fields.get(name)
            if number in _COLUMN:
                raw[_COLUMN[number]] = value
            elif number is not None:
                facts[number] = value
        values = (_LIMITS if gpu.mig is None else _SLICE_LIMITS).convert(raw)
        has_value = ~np.isnan(values)
        last.values[has_value], last.times[has_value] = values[has_value], t
        if has_value.any():
            last.measured = t
        self._rows += 1
        self._facts(gpu, facts)

    def _gpu(self, row: DmonRow) -> GpuId | None:
        """GPU or slice of a row; None for parts of slices, other entities, unknown slices."""
        if row.entity.kind == "GPU":
            gpu = GpuId(self._node, row.entity.number)
            return gpu if gpu in self._devices else None
        if row.entity.kind == "GPU-I" and row.entity.number in self._slices:
            return GpuId(self._node, *self._slices[row.entity.number])
        return None

    def _facts(self, gpu: GpuId, facts: Mapping[int, float]) -> None:
        """Store the constant properties of a device."""
        old = self._devices.get(gpu, GpuDevice())
        hbm, slowdown = facts.get(_HBM, 0.0), facts.get(_SLOWDOWN, 0.0)
        new = GpuDevice(
            old.model,
            old.uuid,
            old.pci,
            hbm if 0 < hbm < 1 << 22 else old.hbm_mib,
            slowdown if 0 < slowdown < 200 else old.slowdown_c,
        )
        if new != old:
            self._devices[gpu] = new

    def _ended(self, message: DmonOutput, code: int) -> None:
        """Restart without rejected fields, or report why it ended and retry later."""
        if self._working:
            self._fail(_problem(message.complaints, code, self._where))
            return
        matches = map(_INVALID.search, message.complaints)
        refused = [int(match[1]) for match in matches if match]
        why = "unknown to this DCGM"
        if not refused and any(_UNPROFILED.search(line) for line in message.complaints):
            refused, why = [number for number in self._requested if number in _PROFILED], ""
        if set(refused) & set(self._requested) and set(self._requested) - set(refused):
            self._refuse(refused, why)
            self._retry.due = 0.0
            return
        if self._slices and not message.columns:
            self._slices = {}  # this version needs other names of slices
            self._retry.due = 0.0
            return
        self._fail(_problem(message.complaints, code, self._where))

    def _refuse(self, numbers: Sequence[int], why: str) -> None:
        """Stop requesting some fields. why: "" for the usual reason."""
        for number in numbers:
            if number in _COLUMN:
                name = COUNTERS[_COLUMN[number]].name
                self._refused[name] = why or unsupported_counters([], NAME)[name]
        self._requested = [number for number in self._requested if number not in set(numbers)]

    def _fail(self, problem: SourceProblem) -> None:
        self._problem = problem
        self._retry.failed(self._steady())

    def _ever(self, column: int) -> bool:
        return any(last.times[column] > 0 for last in self._gpus.values())

    def _unsupported(self) -> Mapping[str, str]:
        if self._rows < _SETTLED * max(1, len(self._gpus)):
            return dict(self._refused)
        counters = [counter.name for number, counter in enumerate(COUNTERS) if self._ever(number)]
        return {**unsupported_counters(counters, NAME), **self._refused}


def connect(
    configuration: Configuration,
    *,
    interval_s: float | None = None,
    program: Sequence[str] = ("dcgmi",),
    node: str | None = None,
) -> DmonSource:
    """Return `dcgmi dmon` of this node as a live source, running.

    Errors: InputError, when the program is missing or may not be run, no host engine answers, or it
    lists no GPU.
    """
    every_s = configuration.watch.interval_s if interval_s is None else interval_s
    source = DmonSource(interval_s=every_s, program=program, node=node)
    with closed_on_failure(source.close):
        source.begin()
    return source


def _problem(complaints: Sequence[str], code: int, where: str) -> SourceProblem:
    """Reported reason of its end, and the fix."""
    errors = [line for line in complaints if "error" in line.lower() or "unable" in line.lower()]
    message = printable(" ".join((errors or list(complaints)[-1:])[:2]).strip(), most=300)
    how = f"ended with exit code {code}" if code >= 0 else f"was ended by signal {-code}"
    do = next((remedy for words, remedy in _FIXES if words.search(message)), "run it by hand")
    return SourceProblem(f"{how}: {message}" if message else how, where, do)


def _not_started(problem: OSError, where: str) -> SourceProblem:
    if isinstance(problem, FileNotFoundError):
        return SourceProblem(
            "program not found",
            where,
            "install DCGM (datacenter-gpu-manager), or use another source",
        )
    return SourceProblem(
        f"cannot be run: {(problem.strerror or str(problem)).lower()}",
        where,
        "request permission to run it",
    )
