"""Where a kernel stands under the roofline: what it achieves, and the roofs over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tachograph.interference.demand import Calibration
from tachograph.interference.profile.capacities import REPORT, device_of
from tachograph.interference.profile.kernels import Kernel
from tachograph.interference.profile.limits import Limits, limits
from tachograph.interference.profile.operations import PIPE_OF, Work, reported_peak, work_of

Side = Literal["compute", "memory"]
CATALOGUE = "the catalogue of devices"
# pipelines that compute; what moves data is not among them
_COMPUTING = ("issue", "alu", "fma", "fp16", "fp64", "tensor", "xu")


@dataclass(frozen=True, slots=True)
class Roof:
    """A peak. name: dram (byte/s), or fp64, fp32, fp16, tensor (FLOP/s). told_by: the report, or the catalogue."""

    name: str
    peak: float
    told_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """A kernel under the roofline; None: not known.

    intensity: FLOP per byte of DRAM traffic, `at_least` where some operations may not have been counted. achieved:
    {kind of numbers: FLOP/s}. ridge: FLOP per byte at which the roof of the kind that takes most time meets DRAM's.
    side: compute or memory, the class by which schedulers pair kernels. bound: the same, but latency where nothing is
    near its limit. by: intensity; or load, of pipelines and DRAM, where operations or peaks are not known.
    """

    intensity: float | None
    at_least: bool
    achieved: Mapping[str, float]
    bytes_per_s: float | None
    roofs: tuple[Roof, ...]
    kind: str | None
    ridge: float | None
    side: Side | None
    bound: Literal["compute", "memory", "latency"] | None
    by: Literal["intensity", "load"] | None

    def roof(self, name: str) -> Roof | None:
        """Return the roof of that name; None: nobody tells it."""
        return next((roof for roof in self.roofs if roof.name == name), None)


def placement(
    kernel: Kernel, *, calibration: Calibration | None = None, work: Work | None = None, found: Limits | None = None
) -> Placement:
    """Return where a kernel stands. Peaks are the report's own, else those of the catalogue; each says which.

    `work`, `found`: its work and its limits where these were computed before.
    """
    work = work or work_of(kernel)
    roofs = _roofs(kernel)
    peaks = {roof.name: roof.peak for roof in roofs}
    kind = _kind(work.flop_per_s, peaks)
    ridge = peaks[kind] / peaks["dram"] if kind in peaks and "dram" in peaks else None
    side = _side_by_intensity(work, ridge)
    by: Literal["intensity", "load"] | None = "intensity" if side else None
    if side is None and (side := _side_by_load(kernel)) is not None:
        by = "load"
    waits = (found or limits(kernel, calibration=calibration)).bound == "latency"
    return Placement(
        intensity=work.intensity,
        at_least=work.intensity is not None and bool(work.unsure),
        achieved=MappingProxyType(dict(work.flop_per_s)),
        bytes_per_s=work.bytes_per_s,
        roofs=roofs,
        kind=kind,
        ridge=ridge,
        side=side,
        bound="latency" if waits else side,
        by=by,
    )


def _roofs(kernel: Kernel) -> tuple[Roof, ...]:
    roofs = []
    if kernel.gpu.dram_bytes_per_s:
        teller = kernel.gpu.told_by.get("dram_bytes_per_s", REPORT)
        roofs.append(Roof("dram", kernel.gpu.dram_bytes_per_s, teller))
    device = device_of(kernel.chip)
    for kind in PIPE_OF:
        peak, teller = reported_peak(kernel, kind), REPORT
        if peak is None and device is not None:
            peak, teller = device.peak_flop_per_s(kind), CATALOGUE
        if peak is not None:
            roofs.append(Roof(kind, peak, teller))
    return tuple(roofs)


def _kind(achieved: Mapping[str, float], peaks: Mapping[str, float]) -> str | None:
    """The kind of numbers that takes most time at its peak: operations on others are seldom what a kernel waits for."""
    done = {kind: rate / peaks[kind] for kind, rate in achieved.items() if rate > 0 and peaks.get(kind)}
    return max(done, key=lambda kind: done[kind]) if done else None


def _side_by_intensity(work: Work, ridge: float | None) -> Side | None:
    """None: not known, or operations that nobody counted may lift the kernel over the ridge."""
    if work.intensity is None or (ridge is None and work.intensity > 0):
        return None
    if ridge is not None and work.intensity >= ridge:
        return "compute"
    return None if work.unsure else "memory"


def _side_by_load(kernel: Kernel) -> Side | None:
    """Whether pipelines and schedulers or DRAM are busier; None: one of the two was not measured."""
    loads = [kernel.demand.cycles[name] for name in _COMPUTING if name in kernel.demand.cycles]
    if not loads or kernel.demand.dram is None:
        return None
    return "compute" if max(loads) >= kernel.demand.dram else "memory"
