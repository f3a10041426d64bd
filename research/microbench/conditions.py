"""Conditions of a GPU while it is measured, as NVML reports them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

# why clocks are lower than they could be; idle and settings of the user are left out
_HELD_BACK: Mapping[int, str] = MappingProxyType(
    {
        0x4: "power cap",
        0x8: "hardware slowdown",
        0x20: "heat (software)",
        0x40: "heat (hardware)",
        0x80: "power brake",
    }
)
_MPS_SERVER = "nvidia-cuda-mps-server"


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the GPU is now. None: unknown. `others`: processes on it that are not this one. `mig`:
    it is divided.
    """

    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    others: tuple[int, ...] = ()
    held_back: tuple[str, ...] = ()
    driver: str | None = None
    mig: bool = False

    def warnings(self) -> tuple[str, ...]:
        """Conditions that may have affected the measurement, in sentences.

        >>> Conditions(others=(17,), held_back=("power cap",)).warnings()[1]
        'the clock of the SMs was held back: power cap'
        """
        sentences = []
        if self.others:
            numbers = ", ".join(map(str, self.others))
            sentences.append(
                f"other processes are on this GPU ({numbers}): times may be theirs as well"
            )
        if self.held_back:
            sentences.append(f"the clock of the SMs was held back: {', '.join(self.held_back)}")
        if self.mig:
            sentences.append(
                "MIG divides this GPU: what is measured is true of this instance, beside quiet "
                "ones, only"
            )
        return tuple(sentences)


def conditions(pci_bus_id: str, library: Any = None) -> Conditions:
    """Return the conditions of the GPU at this address now; values that NVML does not report are
    None.

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

    def reported(query: Callable[[], Any], otherwise: Any = None) -> Any:
        """The result; `otherwise` where a GPU or a MIG instance does not report it, so that
        other values remain.
        """
        try:
            return query()
        except nvml.NVMLError:
            return otherwise

    reasons = reported(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle), 0)
    found = Conditions(
        sm_clock_mhz=reported(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        max_sm_clock_mhz=reported(
            lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)
        ),
        others=_others(
            [
                one.pid
                for one in reported(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), [])
            ],
            lambda number: str(reported(lambda: nvml.nvmlSystemGetProcessName(number), "")),
        ),
        held_back=tuple(words for bit, words in _HELD_BACK.items() if reasons & bit),
        driver=reported(lambda: str(nvml.nvmlSystemGetDriverVersion())),
        mig=reported(lambda: nvml.nvmlDeviceGetMigMode(handle), (0, 0))[0] == 1,
    )
    nvml.nvmlShutdown()
    return found


def _others(found: Sequence[int], name: Callable[[int], str]) -> tuple[int, ...]:
    """Processes that are neither this one nor the server of MPS, through which this one may run.

    Within a container NVML reports process ids of the host, unknown inside: a single one is taken
    as this process.
    """
    if len(found) == 1 and os.getpid() not in found and not Path(f"/proc/{found[0]}").exists():
        return ()
    return tuple(
        sorted(one for one in found if one != os.getpid() and _MPS_SERVER not in name(one))
    )
