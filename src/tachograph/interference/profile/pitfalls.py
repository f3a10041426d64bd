"""Where one popular metric says that a kernel can share a GPU, and its other numbers say otherwise.

Source: Elvinger et al. 2025, section 3: classes of the roofline, sums of occupancy, and what nvidia-smi shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tachograph.interference.profile import readings
from tachograph.interference.profile.kernels import Kernel
from tachograph.interference.profile.roofline import Placement, placement
from tachograph.interference.profile.utilisation import launched

# IPC of the published copy kernel, alone on an H100: the memory-bound partner that such schedulers would choose
COPY_IPC = 0.61
HALF = 0.5  # above it two of the kind exceed a resource, below it they fit by occupancy
FEW_SMS = 0.5


@dataclass(frozen=True, slots=True)
class Pitfall:
    """A conclusion that would be wrong. numbers: {name: value}, the evidence; IPC per SM, fractions 0..1.

    name: roofline_class (a scheduler pairs it with a memory-bound kernel, for which it leaves no issue slots),
    occupancy (two of it seem to fit, their occupancy being under 100 %), nvidia_smi (100 % busy, on few SMs).
    """

    name: Literal["roofline_class", "occupancy", "nvidia_smi"]
    why: str
    numbers: Mapping[str, float]


def pitfalls(kernel: Kernel, *, placed: Placement | None = None) -> tuple[Pitfall, ...]:
    """Return the pitfalls that a kernel is an example of; those whose numbers were not collected are not in it.

    `placed`: its place under the roofline where that was computed before.
    """
    found = (_roofline_class(kernel, placed), _occupancy(kernel), _nvidia_smi(kernel))
    return tuple(pitfall for pitfall in found if pitfall is not None)


def _roofline_class(kernel: Kernel, placed: Placement | None) -> Pitfall | None:
    issue = kernel.demand.cycles.get("issue")
    if issue is None or (placed or placement(kernel)).side != "compute":
        return None
    ipc, most = issue * kernel.gpu.schedulers, float(kernel.gpu.schedulers)
    if most - ipc >= COPY_IPC:
        return None
    why = (
        "compute-bound, so memory-bound kernels seem good company; yet it leaves fewer issue slots than "
        "even a copy needs"
    )
    numbers = {"ipc": ipc, "ipc_left": most - ipc, "ipc_of_copy": COPY_IPC}
    return Pitfall("roofline_class", why, MappingProxyType(numbers))


def _occupancy(kernel: Kernel) -> Pitfall | None:
    occupied = readings.occupancy(kernel.metrics, kernel.gpu)
    loads = kernel.demand.cycles
    if occupied is None or occupied.value >= HALF or not loads:
        return None
    fullest = max(loads, key=lambda name: loads[name])
    if loads[fullest] <= HALF:
        return None
    what = "issue slots" if fullest == "issue" else f"{readings.PIPE_NAMES[fullest]} pipeline"
    why = f"by occupancy two of it fit with room to spare; yet they ask for more than all of the {what}"
    numbers = {"occupancy": occupied.value, "occupancy_of_two": 2 * occupied.value,
               fullest: loads[fullest], f"{fullest}_of_two": 2 * loads[fullest]}  # fmt: skip
    return Pitfall("occupancy", why, MappingProxyType(numbers))


def _nvidia_smi(kernel: Kernel) -> Pitfall | None:
    lies = launched(kernel.demand.footprint, kernel.gpu)
    reached = lies.reached / kernel.gpu.sms if lies.reached is not None and kernel.gpu.sms else None
    told = {"sm_share": kernel.demand.sm_share, "sms_reached_share": reached}
    numbers = {name: value for name, value in told.items() if value is not None}
    if not numbers or min(numbers.values()) >= FEW_SMS:
        return None
    why = "nvidia-smi shows 100 % while it runs; yet most of the SMs' time nothing is on them"
    return Pitfall("nvidia_smi", why, MappingProxyType({"nvidia_smi": 1.0, **numbers}))
