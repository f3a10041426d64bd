"""What may disturb a measurement: clocks that were held back, other processes on the GPU. Through NVML, where it is."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

# why clocks are lower than they could be; idle and settings of the user are left out
_HELD_BACK: Mapping[int, str] = MappingProxyType(
    {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake"}
)
_MPS_SERVER = "nvidia-cuda-mps-server"


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the GPU is now. None: not told. `others`: processes on it that are not this one. `mig`: it is divided."""

    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    others: tuple[int, ...] = ()
    held_back: tuple[str, ...] = ()
    driver: str | None = None
    mig: bool = False

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
        if self.mig:
            said.append("MIG divides this GPU: what is measured is true of this instance, beside quiet ones, only")
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
    except nvml.NVMLError:
        nvml.nvmlShutdown()
        return Conditions()

    def told(ask: Callable[[], Any], otherwise: Any = None) -> Any:
        """The answer: what one GPU does not tell, or one instance of it, keeps nothing else back."""
        try:
            return ask()
        except nvml.NVMLError:
            return otherwise

    reasons = told(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle), 0)
    found = Conditions(
        sm_clock_mhz=told(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        max_sm_clock_mhz=told(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        others=_others(
            [one.pid for one in told(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), [])],
            lambda number: str(told(lambda: nvml.nvmlSystemGetProcessName(number), "")),
        ),
        held_back=tuple(words for bit, words in _HELD_BACK.items() if reasons & bit),
        driver=told(lambda: str(nvml.nvmlSystemGetDriverVersion())),
        mig=told(lambda: nvml.nvmlDeviceGetMigMode(handle), (0, 0))[0] == 1,
    )
    nvml.nvmlShutdown()
    return found


def _others(found: Sequence[int], name: Callable[[int], str]) -> tuple[int, ...]:
    """Processes that are neither this one nor the server of MPS, through which this one may run.

    Within a container NVML tells numbers of the host, by which nobody knows oneself: a single one is this process.
    """
    if len(found) == 1 and os.getpid() not in found and not Path(f"/proc/{found[0]}").exists():
        return ()
    return tuple(sorted(one for one in found if one != os.getpid() and _MPS_SERVER not in name(one)))
