"""What a kernel computes, what limits it, and its place in the roofline model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from tachograph.sharing import kernel_metrics
from tachograph.sharing.capacity import CATALOGUE, REPORT, device_of
from tachograph.sharing.demand import Calibration
from tachograph.sharing.kernel_metrics import MetricValue
from tachograph.sharing.kernels import Kernel

# operations of one instruction of a thread. Instructions on halves always work on two at once (HADD2, HFMA2), those on
# pairs of fp32 (FADD2, FFMA2, on Blackwell alone) too
_OPERATIONS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "fp64": {"dadd": 1.0, "dmul": 1.0, "dfma": 2.0},
        "fp32": {"fadd": 1.0, "fmul": 1.0, "ffma": 2.0},
        "fp16": {"hadd": 2.0, "hmul": 2.0, "hfma": 4.0},
    }
)
_PAIRS: Mapping[str, float] = MappingProxyType({"fadd2": 2.0, "fmul2": 2.0, "ffma2": 4.0})
# factors of instructions in roofline sections. Older ones count one on halves as two operations, not as four:
# their values are divided by their own factor
_FACTORS = (4.0, 2.0)
# kind of numbers -> pipeline that works on them
PIPE_OF: Mapping[str, str] = MappingProxyType({"fp64": "fp64", "fp32": "fma", "fp16": "fp16", "tensor": "tensor"})
_IDLE = 0.005  # the work of a pipeline below this load is negligible
_CLOCKS = tuple(f"{unit}__cycles_elapsed.avg.per_second" for unit in ("smsp", "sm", "gpc"))
_TENSOR = re.compile(
    r"sm__ops_path_tensor_(src_(?!u?int)[a-z0-9]+)(?:_(dst_[a-z0-9]+))?(?:_(sparsity_on|sparsity_off))?\.sum"
)


@dataclass(frozen=True, slots=True)
class KernelWork:
    """What a kernel computes and moves per second, alone.

    flop_per_s: {fp64, fp32, fp16, tensor: of those that were counted}. bytes_per_s: with DRAM, None: unknown.
    uncounted: kinds whose pipeline was busy but operations were not counted; the intensity is then unknown.
    unsure: kinds with neither operations nor load of the pipeline known; the intensity is then at least this.
    """

    flop_per_s: Mapping[str, float]
    bytes_per_s: float | None
    uncounted: tuple[str, ...]
    unsure: tuple[str, ...]

    @property
    def intensity(self) -> float | None:
        """FLOP per byte of DRAM traffic; None: not known, or no traffic."""
        if not self.flop_per_s or self.uncounted or not self.bytes_per_s:
            return None
        return sum(self.flop_per_s.values()) / self.bytes_per_s

    @property
    def at_least(self) -> bool:
        """Whether some operations of the intensity may not have been counted."""
        return self.intensity is not None and bool(self.unsure)


def work_of(kernel: Kernel) -> KernelWork:
    """Return what a kernel computes and moves per second, from any form of the counts that was collected."""
    counted = {kind: rate for kind in _OPERATIONS if (rate := _rate_of_kind(kernel, kind)) is not None}
    tensor = _tensor(kernel)
    if tensor is not None:
        counted["tensor"] = tensor
    load = kernel_metrics.pipes(kernel.metrics)
    unknown = [kind for kind in PIPE_OF if kind not in counted]
    return KernelWork(
        flop_per_s=MappingProxyType(counted),
        bytes_per_s=_traffic(kernel),
        uncounted=tuple(kind for kind in unknown if PIPE_OF[kind] in load and load[PIPE_OF[kind]].value >= _IDLE),
        unsure=tuple(kind for kind in unknown if PIPE_OF[kind] not in load),
    )


def reported_peak(kernel: Kernel, kind: str) -> float | None:
    """Return the peak of fp64, fp32, fp16 or tensor in FLOP/s as reported: per cycle, times the clock."""
    per_cycle = _tensor_peak(kernel) if kind == "tensor" else _vector_peak(kernel, kind)
    peak = (per_cycle or 0.0) * (_clock(kernel) or 0.0)
    return peak if peak > 0 else None


def _vector_peak(kernel: Kernel, kind: str) -> float | None:
    """Operations per cycle on fp64, fp32 or fp16."""
    letter, times = {"fp64": ("d", 2.0), "fp32": ("f", 2.0), "fp16": ("h", 4.0)}[kind]
    stem = f"__sass_thread_inst_executed_op_{letter}fma_pred_on"
    scales = {f"sm{stem}.sum.peak_sustained": times}
    scales |= {f"derived__sm{stem}_x{factor:.0f}": times / factor for factor in _FACTORS}
    peak = kernel_metrics.first(kernel.metrics, scales)
    return None if peak is None else peak.value


def _clock(kernel: Kernel) -> float | None:
    """Cycles per second; None: unknown, or reported as 0, at which nothing runs."""
    known = (kernel.metrics.get(name, 0.0) for name in _CLOCKS)
    return next((clock for clock in known if clock > 0), None)


def _rate_of_kind(kernel: Kernel, kind: str) -> float | None:
    """FLOP/s; None unless additions, multiplications and both at once were all counted."""
    counted = {operation: _instructions(kernel, operation) for operation in _OPERATIONS[kind]}
    if kind == "fp32":
        pairs = {operation: _instructions(kernel, operation) for operation in _PAIRS}
        counted |= {operation: rate for operation, rate in pairs.items() if rate is not None}
    times = {**_OPERATIONS[kind], **_PAIRS}
    rates = [None if rate is None else rate * times[operation] for operation, rate in counted.items()]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if len(known) == len(rates) else None


def _instructions(kernel: Kernel, operation: str) -> float | None:
    """Instructions of threads per second, from any form in which they were collected."""
    stem = f"sass_thread_inst_executed_op_{operation}_pred_on"
    rates = (_rate(kernel, f"{unit}__{stem}.sum") for unit in ("smsp", "sm"))
    rate = next((rate for rate in rates if rate is not None), None)
    return _derived(kernel, stem) if rate is None else rate


def _derived(kernel: Kernel, stem: str) -> float | None:
    """Instructions per second from operations per cycle, the form of roofline sections."""
    scales = {f"derived__smsp__{stem}_x{factor:.0f}": 1 / factor for factor in _FACTORS}
    per_cycle, clock = kernel_metrics.first(kernel.metrics, scales), _clock(kernel)
    return None if per_cycle is None or clock is None else per_cycle.value * clock


def _rate(kernel: Kernel, count: str) -> float | None:
    """A count per second: from one per second, per cycle, or in total."""
    if (known := kernel.metrics.get(f"{count}.per_second")) is not None:
        return known
    per_cycle = kernel.metrics.get(f"{count}.per_cycle_elapsed")
    clock = _clock(kernel)
    if per_cycle is not None and clock is not None:
        return per_cycle * clock
    return kernel.per_second(count)


def _tensor(kernel: Kernel) -> float | None:
    """Operations of the tensor cores on floating-point numbers, per second, over all types that were counted."""
    counts = {parts: rate for parts in _tensor_parts(kernel)
              if (rate := _rate(kernel, _tensor_count(parts))) is not None}  # fmt: skip
    # a count without a destination, or without sparsity, includes those that name one
    whole = [rate for parts, rate in counts.items() if not any(parts[:cut] in counts for cut in range(1, len(parts)))]
    return sum(whole) if whole else None


def _tensor_peak(kernel: Kernel) -> float | None:
    """Per cycle, of the type of numbers with most operations."""
    known = [(rate, peak) for parts in _tensor_parts(kernel)
            if (rate := _rate(kernel, _tensor_count(parts)))
            and (peak := kernel.metrics.get(f"{_tensor_count(parts)}.peak_sustained"))]  # fmt: skip
    return max(known)[1] if known else None


def _tensor_parts(kernel: Kernel) -> set[tuple[str, ...]]:
    """What the counts of tensor operations in a report distinguish: source, then destination, then sparsity."""
    found = (_TENSOR.match(name) for name in kernel.metrics if name.startswith("sm__ops_path_tensor"))
    return {tuple(part for part in match.groups() if part) for match in found if match}


def _tensor_count(parts: tuple[str, ...]) -> str:
    return f"sm__ops_path_tensor_{'_'.join(parts)}.sum"


def _traffic(kernel: Kernel) -> float | None:
    whole = _rate(kernel, "dram__bytes.sum")
    if whole is not None:
        return whole
    read, written = (_rate(kernel, f"dram__bytes_{way}.sum") for way in ("read", "write"))
    if read is not None and written is not None:
        return read + written
    known = kernel_metrics.traffic(kernel.metrics)
    return None if known is None else known.value


NEAR = 0.6  # of a resource: below it on all of them, Nsight Compute itself reports latency

LimitKind = Literal["throughput", "latency", "small_grid"]


@dataclass(frozen=True, slots=True)
class Limit:
    """A resource as a kernel uses it, alone. Fractions 0..1; head_room: what is unused.

    resource: one of demand.CYCLES, dram (see `achievable`), l2_bandwidth. measured_on: for DRAM the GPU on which the
    achievable bandwidth was measured, of which `demand` is a share; None: on other GPUs.
    """

    resource: str
    demand: float
    head_room: float
    measured_by: str
    measured_on: str | None = None


@dataclass(frozen=True, slots=True)
class Stall:
    """A reason to wait, and its fraction 0..1 of the waiting."""

    reason: str
    share: float


@dataclass(frozen=True, slots=True)
class KernelLimits:
    """All resources that were measured, the fullest first.

    bound: throughput, the first of `resources` is nearly full; small_grid, nothing is, and SMs have no block; latency,
    nothing is, its warps wait; None: schedulers or DRAM were not measured, and nothing that was is nearly full.
    limiting: the resource, for throughput. stall: the main reason why its warps wait, where that was collected.
    small_grid: (blocks, SMs) of a launch with fewer blocks than the GPU has SMs, else None.
    """

    bound: LimitKind | None
    resources: tuple[Limit, ...]
    limiting: Limit | None
    stall: Stall | None
    small_grid: tuple[int, int] | None = None

    @property
    def limited_by(self) -> str | None:
        """The resource that is nearly full, or `small_grid` or `latency`; None: undetermined."""
        return self.bound if self.limiting is None else self.limiting.resource


def limits(kernel: Kernel, *, calibration: Calibration | None = None) -> KernelLimits:
    """Return what a kernel uses of each resource, and what limits it. Ties: in the order of resources."""
    calibration = calibration or Calibration()
    known = _loads(kernel, calibration)
    same = kernel.gpu.name if calibration.measured_on == kernel.gpu.name else None
    found = [
        Limit(name, load.value, 1 - load.value, load.metric, same if name == "dram" else None)
        for name, load in known.items()
    ]
    resources = tuple(sorted(found, key=lambda limit: -limit.demand))
    limiting = resources[0] if resources and resources[0].demand >= NEAR else None
    small, waits = _small_grid(kernel), {"issue", "dram"} <= known.keys()
    bound: LimitKind | None = "throughput" if limiting else "small_grid" if small else "latency" if waits else None
    return KernelLimits(bound, resources, limiting, _worst_stall(kernel.metrics), small)


def _small_grid(kernel: Kernel) -> tuple[int, int] | None:
    footprint, sms = kernel.demand.footprint, kernel.gpu.sms
    return None if footprint is None or sms is None or footprint.blocks >= sms else (footprint.blocks, sms)


def achievable(share: float, calibration: Calibration) -> float:
    """Return a share of DRAM's peak as one of the bandwidth that can be achieved, the same that estimates count with.

    >>> achievable(0.45, Calibration())
    0.5
    """
    return min(1.0, share / calibration.achievable_share)


def _loads(kernel: Kernel, calibration: Calibration) -> dict[str, MetricValue]:
    metrics = kernel.metrics
    issue, dram = kernel_metrics.issue(metrics, kernel.gpu), kernel_metrics.dram(metrics, kernel.gpu)
    loads: dict[str, MetricValue | None] = {
        "issue": issue,
        **kernel_metrics.pipes(metrics),
        "dram": None if dram is None else MetricValue(achievable(dram.value, calibration), dram.metric),
        "l2_bandwidth": kernel_metrics.share(metrics, kernel_metrics.L2_BUSY),
        "l1_bandwidth": kernel_metrics.l1_bandwidth(metrics),
    }
    return {name: load for name, load in loads.items() if load is not None}


def _worst_stall(metrics: Mapping[str, float]) -> Stall | None:
    shares = kernel_metrics.stalls(metrics)
    if not shares:
        return None
    reason = min(shares, key=lambda name: (-shares[name], name))
    return Stall(reason, shares[reason])


RooflineSide = Literal["compute", "memory"]
# pipelines that compute, without those that move data
_COMPUTING = ("issue", "alu", "fma", "fp16", "fp64", "tensor", "xu")


@dataclass(frozen=True, slots=True)
class Roof:
    """A peak. name: dram (byte/s), or fp64, fp32, fp16, tensor (FLOP/s). source: where the number is from."""

    name: str
    peak: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePlacement:
    """A kernel under the roofline; None: not known.

    intensity: FLOP per byte of DRAM traffic, `at_least` where some operations may not have been counted. achieved:
    {kind of numbers: FLOP/s}. ridge: FLOP per byte at which the roof of the kind that takes most time meets DRAM's.
    side: compute or memory, the class by which schedulers pair kernels. bound: the same, but latency where nothing is
    near its limit. by: intensity; or load, of pipelines and DRAM, where operations or peaks are not known.
    """

    intensity: float | None
    at_least: bool
    bytes_per_s: float | None
    kind: str | None
    ridge: float | None
    side: RooflineSide | None
    bound: Literal["compute", "memory", "latency"] | None
    by: Literal["intensity", "load"] | None
    achieved: Mapping[str, float]
    roofs: tuple[Roof, ...]

    def roof(self, name: str) -> Roof | None:
        """Return the roof of that name; None: unknown."""
        return next((roof for roof in self.roofs if roof.name == name), None)


def placement(
    kernel: Kernel,
    *,
    calibration: Calibration | None = None,
    work: KernelWork | None = None,
    found: KernelLimits | None = None,
) -> RooflinePlacement:
    """Return the place of a kernel. Peaks are those of the report, else of the catalogue; each names its source.

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
    return RooflinePlacement(
        intensity=work.intensity,
        at_least=work.at_least,
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
        source = kernel.gpu.sources.get("dram_bytes_per_s", REPORT)
        roofs.append(Roof("dram", kernel.gpu.dram_bytes_per_s, source))
    device = device_of(kernel.chip)
    for kind in PIPE_OF:
        peak, source = reported_peak(kernel, kind), REPORT
        if peak is None and device is not None:
            peak, source = device.peak_flop_per_s(kind), CATALOGUE
        if peak is not None:
            roofs.append(Roof(kind, peak, source))
    return tuple(roofs)


def _kind(achieved: Mapping[str, float], peaks: Mapping[str, float]) -> str | None:
    """The kind of numbers that takes most time at its peak: operations on others seldom limit a kernel."""
    done = {kind: rate / peaks[kind] for kind, rate in achieved.items() if rate > 0 and peaks.get(kind)}
    return max(done, key=lambda kind: done[kind]) if done else None


def _side_by_intensity(work: KernelWork, ridge: float | None) -> RooflineSide | None:
    """None: unknown, or uncounted operations may lift the kernel over the ridge."""
    if work.intensity is None or (ridge is None and work.intensity > 0):
        return None
    if ridge is not None and work.intensity >= ridge:
        return "compute"
    return None if work.unsure else "memory"


def _side_by_load(kernel: Kernel) -> RooflineSide | None:
    """Whether pipelines and schedulers or DRAM are busier; None: one of the two was not measured."""
    loads = [kernel.demand.cycles[name] for name in _COMPUTING if name in kernel.demand.cycles]
    if not loads or kernel.demand.dram is None:
        return None
    return "compute" if max(loads) >= kernel.demand.dram else "memory"
