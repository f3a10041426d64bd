"""What is concluded of one kernel, and the sentences that say it."""

from __future__ import annotations

from dataclasses import dataclass

from tachograph.interference.demand import Calibration
from tachograph.interference.profile.kernels import Kernel
from tachograph.interference.profile.limits import Limit, Limits, limits
from tachograph.interference.profile.operations import Work, work_of
from tachograph.interference.profile.pitfalls import Pitfall, pitfalls
from tachograph.interference.profile.roofline import Placement, placement
from tachograph.interference.profile.susceptibility import Susceptibility, susceptibilities
from tachograph.report.kernels.facts import NAMES
from tachograph.units import text

KIND_NAMES = {"fp64": "FP64", "fp32": "FP32", "fp16": "FP16", "tensor": "tensor cores"}
_NUMBERS = {"ipc": "IPC", "ipc_left": "IPC left", "ipc_of_copy": "IPC of a copy", "nvidia_smi": "nvidia-smi"}
_SIDES = {"compute": "on the side of compute", "memory": "on the side of memory"}


@dataclass(frozen=True, slots=True)
class Judged:
    """Its work, its limits, what it has to fear, what misleads, and its place under the roofline."""

    work: Work
    limits: Limits
    fears: tuple[Susceptibility, ...]
    pitfalls: tuple[Pitfall, ...]
    placement: Placement

    @property
    def limited_by(self) -> str | None:
        """The resource that is nearly full, or `latency`; None: cannot be said."""
        limiting = self.limits.limiting
        return self.limits.bound if limiting is None else limiting.resource


def judge(kernel: Kernel, *, calibration: Calibration) -> Judged:
    """Return what is concluded of a kernel."""
    work, found = work_of(kernel), limits(kernel, calibration=calibration)
    placed = placement(kernel, work=work, found=found)
    fears = susceptibilities(kernel, calibration=calibration)
    return Judged(work, found, fears, pitfalls(kernel, placed=placed), placed)


def resource_name(resource: str) -> str:
    """Return what people call a resource.

    >>> resource_name("fma"), resource_name("blocks")
    ('FMA', 'block slots')
    """
    return NAMES.get(resource, resource)


def limited_words(found: Limits) -> str:
    """Return what limits a kernel, in a sentence."""
    fullest = found.resources[0] if found.resources else None
    most = "" if fullest is None else f" (most: {resource_name(fullest.resource)} {text(fullest.demand, 'fraction')})"
    stall = found.stall
    waits = "" if stall is None else f", most of all for {stall.reason} ({text(stall.share, 'fraction')})"
    if found.limiting is not None:
        name, used = resource_name(found.limiting.resource), text(found.limiting.demand, "fraction")
        measured = {limit.resource for limit in found.resources}
        untold = [resource_name(resource) for resource in ("issue", "dram") if resource not in measured]
        lacks = f" Not measured, and perhaps fuller: {', '.join(untold)}." if untold else ""
        left = text(found.limiting.head_room, "fraction")
        return f"{name}: {used} of {all_words(found.limiting)} is used, {left} is left to others.{lacks}"
    if found.bound == "latency":
        return f"Latency: nothing is near its limit{most}; its warps wait{waits}."
    return f"Cannot be said: issue slots or DRAM were not measured{most}."


def all_words(limit: Limit) -> str:
    """Return what a load is a share of.

    >>> all_words(Limit("dram", 0.69, 0.31, "", "NVIDIA H100 NVL")), all_words(Limit("issue", 0.5, 0.5, ""))
    ('what can be achieved (as measured on NVIDIA H100 NVL)', 'it')
    """
    if limit.measured_on is not None:
        return f"what can be achieved (as measured on {limit.measured_on})"
    return "its peak" if limit.resource == "dram" else "it"


def roofline_words(place: Placement) -> str:
    """Return where a kernel stands under the roofline, in sentences."""
    said = []
    if place.intensity is not None:
        least = "at least " if place.at_least else ""
        ridge = "" if place.ridge is None else f", the ridge is at {text(place.ridge)}"
        said.append(f"It does {least}{text(place.intensity)} FLOP per byte of DRAM{ridge}.")
    if place.side is not None:
        how = "" if place.by == "intensity" else ", by the load of pipelines and DRAM: FLOP were not counted"
        said.append(f"That is {_SIDES[place.side]}{how}.")
    else:
        said.append("It has no place: FLOP, traffic, or a peak is not told.")
    for kind, rate in place.achieved.items():
        roof = place.roof(kind)
        if rate > 0 and roof is not None:
            share = text(rate / roof.peak, "fraction")
            said.append(f"{KIND_NAMES[kind]}: {flops(rate)}, {share} of {flops(roof.peak)} ({roof.told_by}).")
    dram = place.roof("dram")
    if place.bytes_per_s is not None and dram is not None:
        share = text(place.bytes_per_s / dram.peak, "fraction")
        said.append(f"DRAM: {text(place.bytes_per_s, 'B/s')}, {share} of {text(dram.peak, 'B/s')} ({dram.told_by}).")
    if place.bound == "latency":
        said.append("It is far below both roofs: latency.")
    return " ".join(said)


def fear_words(fear: Susceptibility) -> str:
    """Return what a kernel has to fear on a resource, with the number, and what would tell it."""
    number = "" if fear.value is None else f"{text(fear.value, 'fraction')}: "
    lacks = f" (collect it with ncu {fear.missing})" if fear.missing else ""
    return f"{number}{fear.why}{lacks}"


def pitfall_words(pitfall: Pitfall) -> str:
    """Return a conclusion that would be wrong, with its numbers."""
    return f"{pitfall.why} ({pitfall_numbers(pitfall)})"


def pitfall_numbers(pitfall: Pitfall) -> str:
    """Return the numbers behind a conclusion that would be wrong; of two of a kind only what they ask together."""
    of_two = {
        name.removesuffix("_of_two"): value for name, value in pitfall.numbers.items() if name.endswith("_of_two")
    }
    told = of_two or dict(list(pitfall.numbers.items())[:2])
    said = (
        f"{_NUMBERS.get(name, NAMES.get(name, name.replace('_', ' ')))} {_number(name, value)}"
        for name, value in told.items()
    )
    return f"{'two: ' if of_two else ''}{', '.join(said)}"


def flops(rate: float) -> str:
    """Return a rate of floating-point operations.

    >>> flops(2.5e13)
    '25.00 TFLOP/s'
    """
    return f"{text(rate, 'B').removesuffix('B')}FLOP/s"


def _number(name: str, value: float) -> str:
    return text(value, "ratio" if name.startswith("ipc") else "fraction")
