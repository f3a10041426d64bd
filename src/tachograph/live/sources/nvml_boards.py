"""The GPUs of this node as NVML lists them: what hardly changes of them, and their MIG slices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from tachograph.live.snapshot import Device, Gpu
from tachograph.live.sources.gpm import Gauge
from tachograph.live.sources.nvml_calls import DRIVER_GONE, NO_PERMISSION, Handle, Library, memory
from tachograph.units import MI

_SLOWDOWN = 1  # of nvmlTemperatureThresholds_t
_AGAIN_S = 60.0  # what is refused is asked again so much later
T = TypeVar("T")


@dataclass(slots=True)
class Patience:
    """When something that failed is tried again: after a second, then two, four, at most a minute."""

    tries: int = 0
    due: float = 0.0

    def failed(self, now: float) -> None:
        """Wait longer."""
        self.due = now + min(60.0, 2.0**self.tries)
        self.tries += 1


@dataclass(slots=True)
class Refusals:
    """What a GPU does not tell: {call: (when it is asked again, the code it was refused with)}."""

    calls: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, call: str, *, code: int, now: float) -> None:
        """Leave a call alone for a while."""
        self.calls[call] = (now + _AGAIN_S, code)

    def due(self, call: str, now: float) -> bool:
        """Whether a call is to be made."""
        refused = self.calls.get(call)
        return refused is None or now >= refused[0]


@dataclass(slots=True)
class Row:
    """One row of a snapshot: a GPU, or a slice of one. handles: of its MIG devices; of a whole GPU, its own."""

    gpu: Gpu
    device: Device
    handles: tuple[Handle, ...]
    gauge: Gauge | None = None
    refusals: Refusals = field(default_factory=Refusals)


@dataclass(slots=True)
class Board:
    """One GPU of the node. lost: what it failed with, "" while it answers; then it is tried again with patience."""

    index: int
    handle: Handle | None
    rows: list[Row]
    refusals: Refusals = field(default_factory=Refusals)
    lost: str = ""
    patience: Patience = field(default_factory=Patience)

    @property
    def instances(self) -> tuple[int, ...]:
        """Its MIG slices."""
        return tuple(row.gpu.mig for row in self.rows if row.gpu.mig is not None)

    def close(self) -> None:
        """Give back what was taken for it."""
        for row in self.rows:
            if row.gauge is not None:
                row.gauge.close()
                row.gauge = None


def found(nvml: Library, index: int, node: str) -> Board | None:
    """Return a GPU with its rows, None of one that may not be seen: other jobs' in a container or a job's cgroup.

    Errors: NVMLError where the driver is gone. A GPU that is lost has a row, and says so.
    """
    gpu = Gpu(node, index)
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        whole = _device(nvml, handle)
        rows = [_row_of_slice(nvml, handle, whole, Gpu(node, index, at), of) for at, of in slices(nvml, handle).items()]
    except nvml.NVMLError as error:
        if error.value in DRIVER_GONE:
            raise
        if error.value == NO_PERMISSION:
            return None
        return Board(index, None, [Row(gpu, Device(), ())], lost=str(error))
    return Board(index, handle, rows or [Row(gpu, whole, (handle,), Gauge(nvml, handle))])


def slices(nvml: Library, handle: Handle) -> dict[int, tuple[Handle, ...]]:
    """Return {GPU instance: handles of its MIG devices}; empty where the GPU is not divided. Errors: NVMLError."""
    divided = _told(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle)[0])
    if not divided:
        return {}
    handles: dict[int, tuple[Handle, ...]] = {}
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        one = _told(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place))
        if one is not None:  # places are not filled from the first
            instance = nvml.nvmlDeviceGetGpuInstanceId(one)
            handles[instance] = (*handles.get(instance, ()), one)
    return dict(sorted(handles.items()))


def _device(nvml: Library, handle: Handle) -> Device:
    """What a GPU says of itself. Whatever else fails, a GPU without UUID is lost."""
    uuid = nvml.nvmlDeviceGetUUID(handle)
    total = _told(nvml, lambda: memory(nvml, handle)["total"] / MI)
    slowdown = _told(nvml, lambda: float(nvml.nvmlDeviceGetTemperatureThreshold(handle, _SLOWDOWN)))
    return Device(
        _told(nvml, lambda: str(nvml.nvmlDeviceGetName(handle))),
        str(uuid),
        _told(nvml, lambda: str(nvml.nvmlDeviceGetPciInfo(handle).busId)),
        total,
        slowdown or None,  # 0 where it has none
    )


def _row_of_slice(nvml: Library, board: Handle, whole: Device, gpu: Gpu, handles: tuple[Handle, ...]) -> Row:
    total = _told(nvml, lambda: memory(nvml, handles[0])["total"] / MI)
    uuid = _told(nvml, lambda: str(nvml.nvmlDeviceGetUUID(handles[0])))
    device = Device(whole.model, uuid, whole.pci, total, whole.slowdown_c)
    return Row(gpu, device, handles, Gauge(nvml, board, instance=gpu.mig))


def _told(nvml: Library, ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except nvml.NVMLError as error:
        if error.value in DRIVER_GONE:
            raise
        return None
