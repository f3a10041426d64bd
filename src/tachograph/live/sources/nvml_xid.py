"""XID errors as NVML tells them: events, of which the last stays the value of a GPU, as DCGM has it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

from tachograph.live.sources.nvml_calls import NO_PERMISSION, Handle, Library

_XID = 0x8  # nvmlEventTypeXidCriticalError
_NO_INSTANCE = 0xFFFFFFFF
_MOST = 256  # events taken at a time: a GPU in trouble may tell thousands


@dataclass(frozen=True, slots=True)
class Xid:
    """One event. index: of the GPU; instance: of the MIG slice, None where it concerns all of the GPU."""

    index: int
    instance: int | None
    code: int


class XidEvents:
    """Events of GPUs since they were registered."""

    def __init__(self, nvml: Library) -> None:
        self._nvml = nvml
        self._set: Handle | None = None
        self._indices: dict[int | None, int] = {}
        self.refused: dict[int, str] = {}  # GPUs of which nothing will come, and why

    def register(self, index: int, handle: Handle) -> int:
        """Ask for the events of a GPU; return 0, or the code of a refusal: the GPU is in `refused`, too."""
        try:
            if self._set is None:
                self._set = self._nvml.nvmlEventSetCreate()
            self._nvml.nvmlDeviceRegisterEvents(handle, _XID, self._set)
        except self._nvml.NVMLError as error:
            permission = error.value == NO_PERMISSION
            self.refused[index] = "not permitted: use DCGM, or look into the kernel's log" if permission else ""
            return int(error.value)
        self._indices[_address(handle)] = index
        self.refused.pop(index, None)
        return 0

    def registered(self, index: int) -> bool:
        """Whether XID errors of a GPU would be told."""
        return index in self._indices.values()

    def take(self) -> list[Xid]:
        """What happened since the last call, oldest first; waits for nothing."""
        found: list[Xid] = []
        while self._set is not None and len(found) < _MOST:
            try:
                event = self._nvml.nvmlEventSetWait(self._set, 0)
            except self._nvml.NVMLError:  # nothing more; or a GPU is lost, which its own calls tell
                break
            index = self._indices.get(_address(event.device))
            if index is not None and event.eventType & _XID:
                whole = event.gpuInstanceId == _NO_INSTANCE
                found.append(Xid(index, None if whole else int(event.gpuInstanceId), int(event.eventData)))
        return found

    def close(self) -> None:
        """Let go of the events."""
        events, self._set = self._set, None
        self._indices = {}
        if events is not None:
            try:
                self._nvml.nvmlEventSetFree(events)
            except self._nvml.NVMLError:  # the driver went first
                return


def last_of(events: list[Xid]) -> Mapping[tuple[int, int | None], int]:
    """Return {(GPU, slice or None): its last code}.

    >>> last_of([Xid(0, None, 13), Xid(1, 7, 31), Xid(0, None, 79)])
    {(0, None): 79, (1, 7): 31}
    """
    return {(event.index, event.instance): event.code for event in events}


def _address(handle: Handle) -> int | None:
    """Where a handle points to, the same for all handles of a GPU; one that is lost no longer tells its index."""
    return ctypes.cast(handle, ctypes.c_void_p).value
