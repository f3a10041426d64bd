"""One life of NVML, from its start to its end or to the loss of the driver: asks every GPU all it can tell."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tachograph.arrays import Floats
from tachograph.counters import COUNTERS, NAMES
from tachograph.live.snapshot import Problem, Process
from tachograph.live.sources.gpm import METRICS, Metrics
from tachograph.live.sources.nvml_boards import Board, Refusals, Row, found, slices
from tachograph.live.sources.nvml_calls import (
    CALLS,
    CALLS_OF_SLICES,
    CALLS_OF_WHOLE,
    DRIVER_GONE,
    GPU_GONE,
    NO_PERMISSION,
    REFUSED,
    Call,
    Handle,
    Library,
    cure,
)
from tachograph.live.sources.nvml_xid import XidEvents, last_of
from tachograph.live.sources.processes import Processes

_GPM, _EVENTS = "GPM", "events"  # their places among the refusals
_OF_GPM = [NAMES.index(metric.counter) for metric in METRICS]
_XID = NAMES.index("xid")
# a value outside the range of its counter is missing, as it is where it is stored
_LOW: Floats = np.array([counter.low for counter in COUNTERS])
_HIGH: Floats = np.array([counter.high for counter in COUNTERS])
_ZERO_IS_MISSING = np.array([counter.zero_is_missing for counter in COUNTERS])
_LAYOUT_S = 30.0  # so often MIG slices are looked for anew
LOST = "ask the administrator to look at nvidia-smi and the kernel's log; it is tried again"


class Session:
    """Every GPU that may be seen. Errors of `Session()` and `read`: NVMLError, where the driver is gone."""

    def __init__(
        self,
        nvml: Library,
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
        listed = [found(nvml, index, node) for index in range(nvml.nvmlDeviceGetCount())]
        self.boards = [board for board in listed if board is not None]
        self.hidden = len(listed) - len(self.boards)
        self.rows = [row for board in self.boards for row in board.rows]
        self._metrics = Metrics(nvml)
        self._events = XidEvents(nvml)
        for board in self.boards:
            self._listen(board)
        self.xids: dict[tuple[int, int | None], int] = {}
        self.blind: dict[str, str] = {}
        self.stale = False  # GPUs are others than at the start, or may be: start anew
        self._layout_due = monotonic() + _LAYOUT_S

    def read(self, problems: list[Problem]) -> tuple[dict[str, Floats], Floats]:
        """Ask every GPU; what fails goes to `problems`. Return {counter: column} and when each row was measured."""
        table = np.full((len(self.rows), len(NAMES)), np.nan)
        measured = np.full(len(self.rows), np.nan)
        self.xids.update(last_of(self._events.take()))
        self._wait()
        first = 0
        for board in self.boards:
            part = slice(first, first := first + len(board.rows))
            if self._there(board):
                self._ask(board, table[part], problems)
                if not board.lost and not np.isfinite(table[part]).any():
                    self._lose(board, "no call succeeds")
            if board.lost:
                table[part] = np.nan
                problems.append(self._loss(board))
            else:
                self._xid(board, table[part])
                measured[part] = self._clock()
                board.patience.tries = 0
        table[(table < _LOW) | (table > _HIGH) | (_ZERO_IS_MISSING & (table == 0))] = np.nan
        self._look_at_layout()
        told = np.isfinite(table).any(axis=0)
        return {name: table[:, at].copy() for at, name in enumerate(NAMES) if told[at]}, measured

    def close(self) -> None:
        """Give everything back."""
        self._events.close()
        for board in self.boards:
            board.close()
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:  # the driver went first
            return

    @property
    def with_gpm(self) -> bool:
        """Whether any GPU told metrics of GPM."""
        return any(
            row.gauge is not None and row.gauge.values is not None and bool(np.isfinite(row.gauge.values).any())
            for row in self.rows
        )

    @property
    def incomplete(self) -> bool:
        """Whether a GPU is lost."""
        return any(board.lost for board in self.boards)

    def processes(self, processes: Processes, row: Row) -> tuple[Process, ...]:
        """Who computes on a GPU; nobody where it does not tell. Errors: NVMLError, where the driver is gone."""
        try:
            return processes.of(row.handles)
        except self._nvml.NVMLError as error:
            if error.value in DRIVER_GONE:
                raise
            return ()

    def _wait(self) -> None:
        """Let a little time pass where samples would else be too close, as at the first read and at 10 Hz."""
        now = self._monotonic()
        waits = [row.gauge.wait_s(now) for row in self.rows if row.gauge is not None and row.refusals.due(_GPM, now)]
        longest = max(waits, default=0.0)
        first = all(row.gauge is None or row.gauge.values is None for row in self.rows)
        if longest > 0 and (first or longest <= 0.02):
            self._sleep(longest + 1e-4)

    def _there(self, board: Board) -> bool:
        """Whether a GPU can be asked; a lost one is tried again when its time has come."""
        now = self._monotonic()
        if not board.lost:
            return True
        if now < board.patience.due:
            return False
        again = found(self._nvml, board.index, self._node)
        if again is None or again.lost or again.handle is None:
            board.patience.failed(now)
            return False
        if [row.gpu for row in again.rows] != [row.gpu for row in board.rows]:
            self.stale = True
            return False
        for row, new in zip(board.rows, again.rows, strict=True):
            row.device, row.handles, row.gauge, row.refusals = new.device, new.handles, new.gauge, new.refusals
        board.handle, board.lost = again.handle, ""
        self._listen(board)
        return True

    def _lose(self, board: Board, why: str) -> None:
        board.lost = why
        board.patience.failed(self._monotonic())
        board.close()

    def _loss(self, board: Board) -> Problem:
        codes = [code for (index, _), code in self.xids.items() if index == board.index]
        xid = f", last XID {codes[-1]}" if codes else ""
        return Problem(f"the GPU does not answer (NVML: {board.lost}{xid})", f"{self._node}:{board.index}", LOST)

    def _ask(self, board: Board, table: Floats, problems: list[Problem]) -> None:
        """Ask a GPU and its slices, and fill their rows."""
        divided = board.instances != ()
        try:
            table[:] = self._plain(CALLS_OF_WHOLE if divided else CALLS, board.handle, board.refusals, board, problems)
            for values, row in zip(table, board.rows, strict=True):
                if divided:
                    own = self._plain(CALLS_OF_SLICES, row.handles[0], row.refusals, board, problems)
                    values[:] = np.where(np.isnan(own), values, own)
                self._gpm(row, values, problems)
        except self._nvml.NVMLError as error:
            if error.value in DRIVER_GONE:
                raise
            self._lose(board, str(error))

    def _listen(self, board: Board) -> None:
        """Ask for the XID errors of a GPU, again now and then where that is refused."""
        now = self._monotonic()
        if board.handle is None or self._events.registered(board.index) or not board.refusals.due(_EVENTS, now):
            return
        code = self._events.register(board.index, board.handle)
        if code:
            board.refusals.add(_EVENTS, code=code, now=now)

    def _plain(
        self, calls: tuple[Call, ...], handle: Handle, refusals: Refusals, board: Board, problems: list[Problem]
    ) -> list[float]:
        """Values in the order of NAMES. Errors: NVMLError, where the GPU or the driver is gone."""
        now = self._monotonic()
        values = [math.nan] * len(NAMES)
        for call in calls:
            if refusals.calls and not refusals.due(call.name, now):
                continue
            try:
                answer = call.ask(self._nvml, handle)
            except self._nvml.NVMLError as error:
                self._refused(error, call.name, call.counters, refusals)
                if error.value not in REFUSED:
                    where = f"{self._node}:{board.index}"
                    problems.append(Problem(f"{call.name}: {error}", where, "it is asked again"))
                continue
            for part, place, factor in call.wants:
                values[place] = answer.get(part, math.nan) * factor
        return values

    def _refused(self, error: Any, call: str, counters: Iterable[str], refusals: Refusals) -> None:
        """Remember what is not told, and how to enable it. Errors: the error itself, where all is gone."""
        code = error.value
        if code in DRIVER_GONE or code in GPU_GONE:
            raise error
        if code in REFUSED:
            refusals.add(call, code=code, now=self._monotonic())
            for counter in counters:
                self.blind.setdefault(counter, cure(code, gpm=call == _GPM))

    def _gpm(self, row: Row, values: Floats, problems: list[Problem]) -> None:
        now = self._monotonic()
        gauge = row.gauge
        if gauge is None or not row.refusals.due(_GPM, now):
            return
        try:
            gauge.read(self._metrics, now)
        except self._nvml.NVMLError as error:
            gauge.forget()
            self._refused(error, _GPM, (metric.counter for metric in METRICS), row.refusals)
            if error.value not in REFUSED:
                problems.append(Problem(f"GPM: {error}", row.gpu.name, "it is asked again"))
            return
        if gauge.values is None:
            return
        values[_OF_GPM] = gauge.values
        if any(gauge.codes):
            none = not np.isfinite(gauge.values).any()
            for metric, code in zip(METRICS, gauge.codes, strict=True):
                if code in REFUSED:  # one of many: the device has no such unit, such as links
                    how = cure(code, gpm=True) if none or code == NO_PERMISSION else ""
                    self.blind.setdefault(metric.counter, how)

    def _xid(self, board: Board, table: Floats) -> None:
        """The last XID of a GPU or of its slice, 0 where none was told since it is listened to."""
        if not self._events.registered(board.index):
            self._listen(board)
            self.blind.setdefault("xid", self._events.refused.get(board.index, ""))
            return
        whole = self.xids.get((board.index, None), 0)
        for values, row in zip(table, board.rows, strict=True):
            values[_XID] = whole if row.gpu.mig is None else self.xids.get((board.index, row.gpu.mig), whole)

    def _look_at_layout(self) -> None:
        """Notice MIG slices that came or went; a change of the mode itself needs a reset of the GPU."""
        now = self._monotonic()
        if now < self._layout_due:
            return
        self._layout_due = now + _LAYOUT_S
        for board in self.boards:
            if board.lost or board.handle is None:
                continue
            try:
                there = tuple(slices(self._nvml, board.handle))
            except self._nvml.NVMLError as error:
                if error.value in DRIVER_GONE:
                    raise
                continue
            if there != board.instances:
                self.stale = True
