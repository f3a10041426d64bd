"""What may disturb a measurement: clocks that were held back, other processes on the GPU. Through NVML, where it is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

# why clocks are lower than they could be; idle and settings of the user are left out
_HELD_BACK: Mapping[int, str] = MappingProxyType(
    {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake"}
)


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the GPU is now. None: not told. `others`: processes on it that are not this one."""

    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    others: tuple[int, ...] = ()
    held_back: tuple[str, ...] = ()
    driver: str | None = None

    def warnings(self) -> tuple[str, ...]:
        """What may have disturbed the measurement, in sentences.

        >>> Conditions(others=(17,), held_back=("power cap",)).warnings()[1]
        'the clock of the SMs was held back: power cap'
        """
        said = []
        if self.others:
            numbers = ", ".join(map(str, self.others))
            said.append(f"other processes are on this GPU ({numbers}): times may be theirs as well")
        if self.held_back:
            said.append(f"the clock of the SMs was held back: {', '.join(self.held_back)}")
        return tuple(said)


def conditions(pci_bus_id: str, library: Any = None) -> Conditions:
    """Return how the GPU at this address is now; nothing where NVML does not tell.

    `library`: the module pynvml, or one like it.
    """
    import pynvml

    nvml: Any = library or pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return Conditions()
    try:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
        found = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return Conditions(
            sm_clock_mhz=nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
            max_sm_clock_mhz=nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
            others=tuple(sorted(one.pid for one in found if one.pid != os.getpid())),
            held_back=tuple(words for bit, words in _HELD_BACK.items() if reasons & bit),
            driver=str(nvml.nvmlSystemGetDriverVersion()),
        )
    except nvml.NVMLError:
        return Conditions()
    finally:
        nvml.nvmlShutdown()
