"""NVML as a live source: this node's GPUs, counters, processes, XID errors, every second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tachograph.annexes.watch.live.snapshot import (
    GpuDevice,
    GpuId,
    GpuProcess,
    Snapshot,
    SourceInfo,
    SourceProblem,
    closed_on_failure,
)
from tachograph.annexes.watch.live.sources.nvml_calls import (
    CALLS,
    CALLS_OF_SLICES,
    CALLS_OF_WHOLE,
    DRIVER_GONE,
    DRIVER_NOT_LOADED,
    GPM_METRICS,
    GPU_GONE,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    REFUSED,
    VERSION_MISMATCH,
    GpmMetrics,
    NvmlCall,
    NvmlHandle,
    NvmlLibrary,
    XidEvents,
    how_to_permit,
)
from tachograph.annexes.watch.live.sources.nvml_devices import (
    GpuProcesses,
    NvmlBoard,
    NvmlRow,
    RefusedCalls,
    found_board,
    mig_slices,
)
from tachograph.annexes.watch.pm_sampling.library import this_host
from tachograph.annexes.watch.retries import RetryDelay
from tachograph.catalog.arrays import Floats
from tachograph.catalog.counters import COUNTER_NAMES, COUNTERS
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.units import plural

if TYPE_CHECKING:
    from tachograph.catalog.config import Configuration


_GPM, _EVENTS = "GPM", "events"  # their places among the refusals
_OF_GPM = [COUNTER_NAMES.index(metric.counter) for metric in GPM_METRICS]
_XID = COUNTER_NAMES.index("xid")
# a value outside the range of its counter is missing, as in stored data
_LOW: Floats = np.array([counter.low for counter in COUNTERS])
_HIGH: Floats = np.array([counter.high for counter in COUNTERS])
_ZERO_IS_MISSING = np.array([counter.zero_is_missing for counter in COUNTERS])
_LAYOUT_S = 30.0  # between two searches for MIG slices
LOST = "ask the administrator to check nvidia-smi and the kernel log; retried"


class NvmlSession:
    """All visible GPUs. Errors of `NvmlSession()`, `read`: NVMLError if the driver is gone."""

    def __init__(
        self,
        nvml: NvmlLibrary,
        node: str,
        *,
        clock: Callable[[], float],
        monotonic: Callable[[], float],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._nvml, self._node = nvml, node
        self._clock, self._monotonic, self._sleep = clock, monotonic, sleep
        nvml.nvmlInit()
        self.driver = str(nvml.nvmlSystemGetDriverVersion())
        listed = [found_board(nvml, index, node) for index in range(nvml.nvmlDeviceGetCount())]
        self.boards = [board for board in listed if board is not None]
        self.hidden = len(listed) - len(self.boards)
        self.rows = [row for board in self.boards for row in board.rows]
        self._metrics = GpmMetrics(nvml)
        self._events = XidEvents(nvml)
        for board in self.boards:
            self._listen(board)
        self.xids: dict[tuple[int, int | None], int] = {}
        self.unsupported: dict[str, str] = {}
        self.stale = False  # GPUs have changed since the start, or may have: start again
        self._layout_due = monotonic() + _LAYOUT_S

    def read(self, problems: list[SourceProblem]) -> tuple[dict[str, Floats], Floats]:
        """Query every GPU; return {counter: column} and row times; failures go to `problems`."""
        table = np.full((len(self.rows), len(COUNTER_NAMES)), np.nan)
        measured = np.full(len(self.rows), np.nan)
        self.xids.update(self._events.take())
        self._wait()
        first = 0
        for board in self.boards:
            part = slice(first, first := first + len(board.rows))
            if self._there(board):
                self._query(board, table[part], problems)
                if not board.lost and not np.isfinite(table[part]).any():
                    self._lose(board, "no call succeeds")
            if board.lost:
                table[part] = np.nan
                problems.append(self._loss(board))
            else:
                self._xid(board, table[part])
                measured[part] = self._clock()
                board.retry.tries = 0
        table[(table < _LOW) | (table > _HIGH) | (_ZERO_IS_MISSING & (table == 0))] = np.nan
        self._check_layout()
        has_column = np.isfinite(table).any(axis=0)
        return {
            name: table[:, at].copy() for at, name in enumerate(COUNTER_NAMES) if has_column[at]
        }, measured

    def close(self) -> None:
        """Free everything."""
        self._events.close()
        for board in self.boards:
            board.close()
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:  # the driver ended first
            return

    @property
    def with_gpm(self) -> bool:
        """Whether any GPU reported metrics of GPM."""
        return any(
            row.gauge is not None
            and row.gauge.values is not None
            and bool(np.isfinite(row.gauge.values).any())
            for row in self.rows
        )

    @property
    def incomplete(self) -> bool:
        """Whether a GPU is lost."""
        return any(board.lost for board in self.boards)

    def processes(self, processes: GpuProcesses, row: NvmlRow) -> tuple[GpuProcess, ...]:
        """Processes on a GPU, if reported. Errors: NVMLError if the driver is gone."""
        try:
            return processes.of(row.handles)
        except self._nvml.NVMLError as error:
            if error.value in DRIVER_GONE:
                raise
            return ()

    def _wait(self) -> None:
        """Wait if samples would be too close, at the first read and at 10 Hz."""
        now = self._monotonic()
        waits = [
            row.gauge.wait_s(now)
            for row in self.rows
            if row.gauge is not None and row.refusals.due(_GPM, now)
        ]
        longest = max(waits, default=0.0)
        first = all(row.gauge is None or row.gauge.values is None for row in self.rows)
        if longest > 0 and (first or longest <= 0.02):
            self._sleep(longest + 1e-4)

    def _there(self, board: NvmlBoard) -> bool:
        """Whether a GPU can be queried; a lost one is tried again when due."""
        now = self._monotonic()
        if not board.lost:
            return True
        if now < board.retry.due:
            return False
        again = found_board(self._nvml, board.index, self._node)
        if again is None or again.lost or again.handle is None:
            board.retry.failed(now)
            return False
        if [row.gpu for row in again.rows] != [row.gpu for row in board.rows]:
            self.stale = True
            return False
        for row, new in zip(board.rows, again.rows, strict=True):
            row.device, row.handles, row.gauge, row.refusals = (
                new.device,
                new.handles,
                new.gauge,
                new.refusals,
            )
        board.handle, board.lost = again.handle, ""
        self._listen(board)
        return True

    def _lose(self, board: NvmlBoard, why: str) -> None:
        board.lost = why
        board.retry.failed(self._monotonic())
        board.close()

    def _loss(self, board: NvmlBoard) -> SourceProblem:
        codes = [code for (index, _), code in self.xids.items() if index == board.index]
        xid = f", last XID {codes[-1]}" if codes else ""
        return SourceProblem(
            f"the GPU does not respond (NVML: {board.lost}{xid})",
            f"{self._node}:{board.index}",
            LOST,
        )

    def _query(self, board: NvmlBoard, table: Floats, problems: list[SourceProblem]) -> None:
        """Query a GPU and its slices, and fill their rows."""
        divided = board.instances != ()
        try:
            table[:] = self._plain(
                CALLS_OF_WHOLE if divided else CALLS, board.handle, board.refusals, board, problems
            )
            for values, row in zip(table, board.rows, strict=True):
                if divided:
                    of_slice = self._plain(
                        CALLS_OF_SLICES, row.handles[0], row.refusals, board, problems
                    )
                    values[:] = np.where(np.isnan(of_slice), values, of_slice)
                self._gpm(row, values, problems)
        except self._nvml.NVMLError as error:
            if error.value in DRIVER_GONE:
                raise
            self._lose(board, str(error))

    def _listen(self, board: NvmlBoard) -> None:
        """Register for a GPU's XID errors, with retries after rejections."""
        now = self._monotonic()
        if (
            board.handle is None
            or self._events.registered(board.index)
            or not board.refusals.due(_EVENTS, now)
        ):
            return
        code = self._events.register(board.index, board.handle)
        if code:
            board.refusals.add(_EVENTS, code=code, now=now)

    def _plain(
        self,
        calls: tuple[NvmlCall, ...],
        handle: NvmlHandle,
        refusals: RefusedCalls,
        board: NvmlBoard,
        problems: list[SourceProblem],
    ) -> list[float]:
        """Values in the order of NAMES. Errors: NVMLError if GPU or driver is gone."""
        now = self._monotonic()
        values = [math.nan] * len(COUNTER_NAMES)
        for call in calls:
            if refusals.calls and not refusals.due(call.name, now):
                continue
            try:
                answer = call.query(self._nvml, handle)
            except self._nvml.NVMLError as error:
                self._refused(error, call.name, call.counters, refusals)
                if error.value not in REFUSED:
                    where = f"{self._node}:{board.index}"
                    problems.append(SourceProblem(f"{call.name}: {error}", where, "retried"))
                continue
            for part, column, factor in call.wants:
                values[column] = answer.get(part, math.nan) * factor
        return values

    def _refused(
        self, error: Any, call: str, counters: Iterable[str], refusals: RefusedCalls
    ) -> None:
        """Note an unsupported call and its fix. Errors: the error, if GPU or driver is gone."""
        code = error.value
        if code in DRIVER_GONE or code in GPU_GONE:
            raise error
        if code in REFUSED:
            refusals.add(call, code=code, now=self._monotonic())
            for counter in counters:
                self.unsupported.setdefault(counter, how_to_permit(code, gpm=call == _GPM))

    def _gpm(self, row: NvmlRow, values: Floats, problems: list[SourceProblem]) -> None:
        now = self._monotonic()
        gauge = row.gauge
        if gauge is None or not row.refusals.due(_GPM, now):
            return
        try:
            gauge.read(self._metrics, now)
        except self._nvml.NVMLError as error:
            gauge.forget()
            self._refused(error, _GPM, (metric.counter for metric in GPM_METRICS), row.refusals)
            if error.value not in REFUSED:
                problems.append(SourceProblem(f"GPM: {error}", row.gpu.name, "retried"))
            return
        if gauge.values is None:
            return
        values[_OF_GPM] = gauge.values
        if any(gauge.codes):
            none = not np.isfinite(gauge.values).any()
            for metric, code in zip(GPM_METRICS, gauge.codes, strict=True):
                if code in REFUSED:  # one of many: the device has no such unit, such as links
                    how = how_to_permit(code, gpm=True) if none or code == NO_PERMISSION else ""
                    self.unsupported.setdefault(metric.counter, how)

    def _xid(self, board: NvmlBoard, table: Floats) -> None:
        """Last XID of a GPU or slice since registration, 0 without one."""
        if not self._events.registered(board.index):
            self._listen(board)
            self.unsupported.setdefault("xid", self._events.refused.get(board.index, ""))
            return
        whole = self.xids.get((board.index, None), 0)
        for values, row in zip(table, board.rows, strict=True):
            values[_XID] = (
                whole if row.gpu.mig is None else self.xids.get((board.index, row.gpu.mig), whole)
            )

    def _check_layout(self) -> None:
        """Detect new and removed MIG slices; changing the mode itself needs a GPU reset."""
        now = self._monotonic()
        if now < self._layout_due:
            return
        self._layout_due = now + _LAYOUT_S
        for board in self.boards:
            if board.lost or board.handle is None:
                continue
            try:
                there = tuple(mig_slices(self._nvml, board.handle))
            except self._nvml.NVMLError as error:
                if error.value in DRIVER_GONE:
                    raise
                continue
            if there != board.instances:
                self.stale = True


_LONGEST_S = 600.0  # between two sessions because of a lost GPU


def connect(
    configuration: Configuration, *, node: str = "", nvml: NvmlLibrary | None = None
) -> NvmlSource:
    """Return this node's GPUs, polled once so that `about` has counters; changes no setting.

    Errors: NotFoundError where NVML, its driver or a GPU is absent.
    """
    source = NvmlSource(nvml or _library(), node=node or this_host())
    with closed_on_failure(source.close):
        source.start()
    return source


def _library() -> NvmlLibrary:
    import pynvml  # 8,000 lines, imported only on use

    return pynvml


class NvmlSource:
    """GPUs of this node. processes_s: interval of process queries; tests pass in clocks."""

    def __init__(
        self,
        nvml: NvmlLibrary,
        *,
        node: str,
        processes_s: float = 1.0,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        processes: GpuProcesses | None = None,
    ) -> None:
        self._nvml, self._node = nvml, node
        self._clock, self._monotonic, self._sleep = clock, monotonic, sleep
        self._session: NvmlSession | None = None
        self._retry = RetryDelay()
        # a GPU that was reset is only found by another session, begun at growing intervals
        self._restarts = 0
        self._restart_due: float | None = None
        self._failed: SourceProblem | None = None  # why there is no session
        self._rows: dict[GpuId, GpuDevice] = {}  # as last listed, and some that have vanished
        self._known: dict[str, tuple[GpuId, GpuDevice]] = {}  # all that ever were, by UUID
        self._missing: tuple[SourceProblem, ...] = ()
        self._ever: set[str] = set()
        # Outlive a session; by address and slice.
        self._xids: dict[tuple[str, int | None], int] = {}
        self._processes = processes or GpuProcesses(nvml)
        self._processes_s, self._processes_due = processes_s, 0.0
        self._running: Mapping[GpuId, tuple[GpuProcess, ...]] = {}

    def start(self) -> None:
        """Start with two queries: GPM metrics need two samples. Errors: NotFoundError."""
        try:
            self._open()
        except self._nvml.NVMLError as error:
            raise _absent(error) from None
        if not self._rows:
            raise NotFoundError(
                "NVML lists no GPU",
                where=self._node,
                do="run it where GPUs are, or in a job that has some",
            )
        self.read()
        self.read()

    @property
    def about(self) -> SourceInfo:
        """Description of the source; `unsupported`: counters that no GPU has reported."""
        session = self._session
        if session is None:
            return SourceInfo(
                "nvml", f"NVML, {plural(len(self._rows), 'GPU')} of this node", unsupported={}
            )
        hidden = f"; {plural(session.hidden, 'GPU')} hidden here" if session.hidden else ""
        name = "NVML with GPM" if session.with_gpm else "NVML without GPM"
        unsupported = {
            counter: how
            for counter, how in session.unsupported.items()
            if counter not in self._ever
        }
        sentence = (
            f"{name}, {plural(len(self._rows), 'GPU')} of this node, driver "
            f"{session.driver}{hidden}"
        )
        return SourceInfo("nvml", sentence, unsupported=unsupported)

    def read(self) -> Snapshot:
        """Return the GPUs' present values."""
        t = self._clock()
        problems: list[SourceProblem] = []
        session = self._ready()
        values: dict[str, Floats] = {}
        measured: Floats = np.full(0, np.nan)
        if session is not None:
            try:
                values, measured = session.read(problems)
                self._query_processes(session)
            except self._nvml.NVMLError as error:
                self._fail(error)
                session, values, measured, problems = None, {}, np.full(0, np.nan), []
            else:
                self._retry.tries = 0
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
                self._xids.update(
                    {
                        (pci, at): code
                        for (of, at), code in session.xids.items()
                        if of == board.index
                    }
                )
        session.close()

    def _ready(self) -> NvmlSession | None:
        """The session, renewed if it ended and a retry is due."""
        due = self._restart_due is not None and self._monotonic() >= self._restart_due
        if self._session is not None and (self._session.stale or due):
            self._restarts += due
            self._restart_due = None
            self.close()
        if self._session is None and self._monotonic() >= self._retry.due:
            try:
                self._open()
            except self._nvml.NVMLError as error:
                self._fail(error)
        return self._session

    def _open(self) -> None:
        try:
            session = NvmlSession(
                self._nvml,
                self._node,
                clock=self._clock,
                monotonic=self._monotonic,
                sleep=self._sleep,
            )
        except self._nvml.NVMLError:
            self._end_of_half_a_start()
            raise
        for board in session.boards:  # state of the same GPUs in the last session
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

    def _plan_restart(self, session: NvmlSession) -> None:
        """Plan a new session if a GPU is lost or missing."""
        if not session.incomplete and not self._missing:
            self._restarts, self._restart_due = 0, None
        elif self._restart_due is None:
            self._restart_due = self._monotonic() + min(
                _LONGEST_S, 15.0 * 2 ** min(self._restarts, 10)
            )

    def _list(self, session: NvmlSession) -> None:
        """Rows of a new session; GPUs that vanished are problems, kept while their name is free."""
        listed = {row.gpu: row.device for row in session.rows}
        lost = {board.index for board in session.boards if board.lost}
        for board in session.boards:
            if board.lost:  # it has no properties; it was reported before
                listed.update({row.gpu: self._rows.get(row.gpu, row.device) for row in board.rows})
        divided: set[int] = set()
        for gpu, device in listed.items():
            if gpu.mig is not None:
                divided.add(gpu.gpu)
            elif device.uuid:
                self._known[device.uuid] = (gpu, device)
        uuids = {device.uuid for device in listed.values()}
        not_gone = lost | divided
        gone = {
            gpu: device
            for uuid, (gpu, device) in self._known.items()
            if uuid not in uuids and gpu.gpu not in not_gone
        }
        self._missing = tuple(
            SourceProblem(
                f"the driver no longer lists {device.uuid}",
                gpu.name,
                "other GPUs may have new indices; ask the administrator to check nvidia-smi",
            )
            for gpu, device in gone.items()
        )
        self._rows = listed | {gpu: gone[gpu] for gpu in gone if gpu not in listed}

    def _fail(self, error: Exception) -> None:
        """End the session; the next one is begun when due."""
        self.close()
        self._retry.failed(self._monotonic())
        updated = getattr(error, "value", 0) == VERSION_MISMATCH
        do = (
            "the driver was updated: restart this command; retried until then"
            if updated
            else "retried"
        )
        self._failed = SourceProblem(f"the driver does not respond (NVML: {error})", self._node, do)

    def _query_processes(self, session: NvmlSession) -> None:
        now = self._monotonic()
        if now < self._processes_due:
            return
        self._processes_due = now + self._processes_s
        running: dict[GpuId, tuple[GpuProcess, ...]] = {}
        for board in session.boards:
            for row in board.rows:
                if not board.lost and (held := session.processes(self._processes, row)):
                    running[row.gpu] = held
        self._processes.forget_ended()
        self._running = running

    def _snapshot(
        self,
        t: float,
        session: NvmlSession | None,
        values: dict[str, Floats],
        measured: Floats,
        problems: list[SourceProblem],
    ) -> Snapshot:
        """Rows of the session, followed by those of earlier sessions with NaN."""
        gpus = tuple(self._rows)
        self._ever.update(values)
        columns = {}
        for counter in sorted(self._ever):
            column = columns[counter] = np.full(len(gpus), np.nan)
            if counter in values:
                column[: len(measured)] = values[counter]
        moments = np.full(len(gpus), np.nan)
        moments[: len(measured)] = measured
        running = self._running if session is not None else {}
        all_problems = (*problems, *self._missing)
        if session is None:
            all_problems = (self._failed,) if self._failed else ()
        return Snapshot(t, gpus, moments, columns, dict(self._rows), {}, running, all_problems)


# what prevents a start, and what to do
_ABSENT: Mapping[int, tuple[str, str]] = {
    LIBRARY_NOT_FOUND: (
        "NVML is not installed: libnvidia-ml.so.1 was not found",
        (
            "install the NVIDIA driver (Debian, Ubuntu: apt-get install libnvidia-ml1); in a "
            "container, start it with GPUs (--gpus all, --nv) and "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        ),
    ),
    DRIVER_NOT_LOADED: (
        "no NVIDIA driver is loaded",
        "run it on a node with GPUs; there: modprobe nvidia",
    ),
    NO_PERMISSION: ("no permission to access the driver", "who may open /dev/nvidiactl?"),
    VERSION_MISMATCH: (
        "NVML and the loaded driver are of different versions",
        "reload the driver, or reboot the node",
    ),
}


def _absent(error: Exception) -> NotFoundError:
    """Why NVML is not available."""
    unknown = f"NVML does not start: {error}", "run nvidia-smi: it should fail the same way"
    what, do = _ABSENT.get(getattr(error, "value", 0), unknown)
    return NotFoundError(what, do=do)
