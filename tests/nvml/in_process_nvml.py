"""NVML as a table of answers: what each call says of each GPU, changed at will; everything else
is the real pynvml.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml

from tachograph.annexes.watch.live.sources.nvml import NvmlSource


def handle(index: int) -> Any:
    return ctypes.cast(ctypes.c_void_p(0x1000 + index), pynvml.c_nvmlDevice_t)


def index_of(one: Any) -> int:
    return int(ctypes.cast(one, ctypes.c_void_p).value or 0) - 0x1000


@dataclass
class InProcessNvml:
    """answers: {call: value, or {GPU: value}}; a value that is a code of an error (`Code`) is
    raised.
    """

    gpus: int
    answers: dict[str, Any] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name == "nvmlMemory_v2":
            return getattr(pynvml, name)
        return self._call(name)

    def _call(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **_: Any) -> Any:
            self.calls.append(name)
            value = self.answers.get(
                name, _DEFAULTS.get(name, Code(pynvml.NVML_ERROR_NOT_SUPPORTED))
            )
            if isinstance(value, dict):
                value = value.get(index_of(arguments[0]), Code(pynvml.NVML_ERROR_NOT_SUPPORTED))
            if callable(value):
                value = value(self, *arguments)
            if isinstance(value, Code):
                raise pynvml.NVMLError(value.number)
            return value

        return call


@dataclass(frozen=True)
class Code:
    number: int


def _wait(nvml: InProcessNvml, *_: Any) -> Any:
    return nvml.events.pop(0) if nvml.events else Code(pynvml.NVML_ERROR_TIMEOUT)


_DEFAULTS: dict[str, Any] = {
    "nvmlInit": None,
    "nvmlShutdown": None,
    "nvmlSystemGetDriverVersion": "570",
    "nvmlDeviceGetCount": lambda nvml: nvml.gpus,
    "nvmlDeviceGetHandleByIndex": lambda _, index: handle(index),
    "nvmlDeviceGetUUID": lambda _, one: f"GPU-{index_of(one)}",
    "nvmlDeviceGetName": "NVIDIA H100",
    "nvmlDeviceGetPciInfo": lambda _, one: SimpleNamespace(busId=f"0000:0{index_of(one)}:00.0"),
    "nvmlDeviceGetPowerUsage": 100_000,
    "nvmlEventSetCreate": lambda _: "set",
    "nvmlEventSetFree": None,
    "nvmlEventSetWait": _wait,
}


@dataclass
class Clock:
    """Time that passes when it is told to, or slept."""

    now: float = 100.0
    slept: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def source_of(nvml: InProcessNvml, clock: Clock, **options: Any) -> NvmlSource:
    """Return the source under a clock of the test."""
    clocks: dict[str, Any] = {"clock": clock, "monotonic": clock, "sleep": clock.sleep}
    return NvmlSource(nvml, node="n", **clocks, **options)
