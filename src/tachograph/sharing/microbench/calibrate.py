"""Results of the experiments: measured values, demands of the workloads, and the calibration fitted to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tachograph.sharing.calibration import BenchRow, CalibrationFile, CalibrationValue, Compared, published_entry
from tachograph.sharing.capacity import computed_fit
from tachograph.sharing.contention import curve_errors, dram_load, residency
from tachograph.sharing.demand import (
    PIPES,
    BandwidthBasis,
    Calibration,
    CorunMode,
    Demand,
    Estimate,
    Footprint,
    GpuCapacity,
)
from tachograph.sharing.microbench.device import Code, Lanes
from tachograph.sharing.microbench.experiments import (
    KERNELS,
    WARP,
    BenchWorkload,
    Experiment,
    resident_blocks,
)
from tachograph.sharing.microbench.measure import AloneRun, PairedRun


@dataclass(frozen=True, slots=True)
class ExpectedOutcome:
    """Expected before the two ran together. None: undetermined; `unknown` gives the reason."""

    value: float | None
    binding: str | None = None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ExperimentRun:
    """One of the ten runs: times in s of each alone, of one after the other, of both at once."""

    alone: tuple[float, float]
    in_turn: float | None
    together: PairedRun


@dataclass(frozen=True, slots=True)
class MeasuredValue:
    """Of the medians of all runs; `low` and `high`: the lowest and highest of single runs."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentResult:
    """One experiment in one sharing mode. `problem`: why it was not measured.

    `alone`: of each launch, as tuned. `expected`: with the published calibration; `calibrated`: with the
    calibration from the launches of this run alone.
    """

    experiment: Experiment
    mode: CorunMode
    alone: tuple[AloneRun, ...] = ()
    expected: ExpectedOutcome | None = None
    calibrated: ExpectedOutcome | None = None
    runs: tuple[ExperimentRun, ...] = ()
    problem: str | None = None

    @property
    def published(self) -> float | None:
        """What was measured on the H100 NVL."""
        return self.experiment.published_shares if self.mode == "mps" else self.experiment.published

    @property
    def measured(self) -> MeasuredValue | None:
        """What is compared, of all runs; None where there are none."""
        return value_of(self.runs, self.experiment.compared) if self.runs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """All results on one GPU; `date` in UTC."""

    gpu: GpuCapacity
    driver: str
    date: str
    results: tuple[ExperimentResult, ...]
    stuck: bool = False  # a kernel did not end

    def alone(self, group: str) -> tuple[tuple[Experiment, AloneRun], ...]:
        """Experiments of a group, as long as the first of their launches took alone."""
        return tuple(
            (one.experiment, one.alone[0])
            for one in self.results
            if one.experiment.group == group and one.alone and one.mode == "streams"
        )


def value_of(runs: Sequence[ExperimentRun], compared: Compared) -> MeasuredValue | None:
    """Return what is compared, of the medians of all times; None where it was not measured.

    >>> runs = [ExperimentRun((1.0, 1.0), 2.0, PairedRun(1.5, t)) for t in (1.25, 1.5, 2.0)]
    >>> value_of(runs, "gain"), value_of(runs, "second").median
    (MeasuredValue(median=1.3333333333333333, low=1.0, high=1.3333333333333333), 1.5)
    """
    each = [_ratio(run.alone, run.in_turn, run.together, compared) for run in runs]
    turns = [run.in_turn for run in runs if run.in_turn is not None]
    middle = _ratio(
        (median(run.alone[0] for run in runs), median(run.alone[1] for run in runs)),
        median(turns) if turns else None,
        PairedRun(median(run.together.first_s for run in runs), median(run.together.second_s for run in runs)),
        compared,
    )
    known = [value for value in each if value is not None]
    return None if middle is None or not known else MeasuredValue(middle, min(known), max(known))


def _ratio(alone: tuple[float, float], in_turn: float | None, together: PairedRun, compared: Compared) -> float | None:
    if compared == "gain":
        return None if in_turn is None else in_turn / together.seconds
    slowdowns = together.first_s / alone[0], together.second_s / alone[1]
    return {"first": slowdowns[0], "second": slowdowns[1], "both": sum(slowdowns) / 2}[compared]


def expected(estimate: Estimate, seconds: tuple[float, float], compared: Compared) -> ExpectedOutcome:
    """Return the result expected by an estimate for launches that begin at once; `seconds`: time of each alone.

    After the first has ended, the other runs alone: so slowdowns from begin to end differ from those while both run.
    """
    one, other = estimate.members
    binding = other.binding if compared == "second" else one.binding or other.binding
    if estimate.gain is None or one.slowdown is None or other.slowdown is None:
        return ExpectedOutcome(None, None, estimate.unknown)
    ends = ended(seconds, (one.slowdown, other.slowdown), estimate.gain)
    return ExpectedOutcome(_ratio(seconds, sum(seconds), PairedRun(*ends), compared), binding, estimate.unknown)


def ended(seconds: tuple[float, float], slowdowns: tuple[float, float], gain: float) -> tuple[float, float]:
    """Return when two launches end that begin at once: the sooner one by its slowdown, the later one by the gain.

    >>> ended((1.0, 1.0), (1.0, 2.0), 1.0), ended((1.0, 3.0), (2.0, 2.0), 1.0)
    ((1.0, 2.0), (2.0, 4.0))
    """
    first, second = seconds[0] * slowdowns[0], seconds[1] * slowdowns[1]
    last = sum(seconds) / gain
    return (first, max(first, last)) if first <= second else (max(second, last), second)


# pipelines whose rate for these instructions, per cycle, is not published
_UNPUBLISHED_RATES = {"copy": ("alu", "fma", "lsu", "uniform"), "copy_own": ("alu", "fma", "lsu", "uniform"),
           "matmul": ("alu", "lsu", "uniform")}  # fmt: skip
_FAR = 4.0  # times L2: an array this large has no hits there
_WAITS_FOR_MEMORY = ("copy", "copy_own")
_WAITS_FOR_BARRIERS = ("matmul",)


@dataclass(frozen=True, slots=True)
class References:
    """What launches are compared with. None: was not measured.

    bandwidth: the most that any copy achieved, byte/s. l2_hit, l1_hit: seconds per byte copied where all accesses hit
    that cache, of the smallest arrays.
    """

    bandwidth: float | None = None
    l2_hit: float | None = None
    l1_hit: float | None = None


def seconds_per_byte(workload: BenchWorkload, alone: AloneRun) -> float | None:
    """Return the time of one byte read or written; None where nothing is copied."""
    size = workload.copied_bytes(alone.rounds)
    return None if not size or alone.seconds <= 0 else alone.seconds / size


def references(measured: Sequence[tuple[BenchWorkload, AloneRun]], gpu: GpuCapacity) -> References:
    """Return what the launches of these measurements are compared with."""
    large: list[tuple[float, float]] = []
    small: list[tuple[float, float]] = []
    own: list[tuple[float, float]] = []
    for workload, alone in measured:
        per_byte, footprint = seconds_per_byte(workload, alone), workload.footprint_bytes
        if per_byte is None or footprint is None:
            continue
        if workload.kind == "copy_own":
            own.append((footprint, per_byte))
        elif gpu.l2_bytes is not None:
            (large if footprint > _FAR * gpu.l2_bytes else small).append((footprint, per_byte))
    return References(
        bandwidth=1 / min(per_byte for _, per_byte in large) if large else None,
        l2_hit=_fitting(small, gpu.l2_bytes),
        l1_hit=_fitting(own, gpu.l1_bytes),
    )


def _fitting(points: Sequence[tuple[float, float]], capacity: float | None) -> float | None:
    """Seconds per byte of the smallest footprint, if it fits twice into the cache."""
    footprint, per_byte = min(points, default=(None, None))
    return None if footprint is None or capacity is None or 2 * footprint > capacity else per_byte


def demand_of(
    workload: BenchWorkload,
    alone: AloneRun,
    *,
    gpu: GpuCapacity,
    lanes: Lanes,
    code: Code | None,
    against: References,
    calibration: Calibration,
) -> Demand:
    """Return the demand of a launch, from its time alone; values that this does not determine are absent."""
    dram, dram_of = _dram(workload, alone, gpu, against, calibration)
    warps = resident_blocks(workload, gpu) * workload.threads / WARP / gpu.schedulers
    own = workload.kind == "copy_own"
    per_sm = (workload.footprint_bytes or 0.0) * resident_blocks(workload, gpu)
    return Demand(
        name=workload.words,
        cycles=cycles(workload, alone, gpu, lanes),
        dram=dram,
        dram_of=dram_of,
        l2_hit=None if own else _l2_hit(workload, alone, gpu, against, calibration),
        l2_bytes=workload.footprint_bytes if workload.kind == "copy" else None,
        l1_hit=_hit(workload, alone, against.l1_hit, calibration.l1_miss_cost) if own else 0.0,
        l1_bytes=per_sm if own else 0.0,
        warps=max(1.0, warps),
        irregular=_irregular(workload),
        sm_share=min(1.0, workload.blocks / (gpu.sms or 1)),
        seconds=alone.seconds,
        hbm_bytes=float(workload.bytes_needed),
        footprint=footprint(workload, gpu, code),
    )


def cycles(workload: BenchWorkload, alone: AloneRun, gpu: GpuCapacity, lanes: Lanes) -> Mapping[str, float]:
    """Return {issue, pipelines: fraction 0..1 of an SM's cycles}, from instructions and the clock of an SM.

    What the compiled code does not use at all is 0; a pipeline whose rate is not published is not in it.
    """
    kernel = KERNELS[workload.kernel]
    used = min(workload.blocks, gpu.sms or workload.blocks)
    if alone.cycles <= 0:
        return {}
    units = workload.units(alone.rounds) / used / alone.cycles  # of an SM in a cycle
    unknown = _UNPUBLISHED_RATES.get(kernel.kind, ())
    found = {pipe: 0.0 for pipe in PIPES if pipe not in unknown and pipe != kernel.pipe}
    found["issue"] = min(1.0, units * kernel.instructions / gpu.schedulers)
    width = lanes.fp64 if kernel.pipe == "fp64" else lanes.fp32
    if kernel.pipe is not None and width:
        found[kernel.pipe] = min(1.0, units * kernel.of_pipe * WARP / width)
    return found


def _dram(
    workload: BenchWorkload, alone: AloneRun, gpu: GpuCapacity, against: References, calibration: Calibration
) -> tuple[float | None, BandwidthBasis]:
    """Share of the bandwidth, and of which one; 0 for what copies nothing."""
    per_byte = seconds_per_byte(workload, alone)
    if per_byte is None:
        return 0.0, "achievable"
    hit = 1.0 if workload.kind == "copy_own" else _l2_hit(workload, alone, gpu, against, calibration)
    if hit is None:
        return None, "achievable"
    missed = 1.0 - hit
    if against.bandwidth is not None:
        return min(1.0, missed / per_byte / against.bandwidth), "achievable"
    if gpu.dram_bytes_per_s is not None:
        return min(1.0, missed / per_byte / gpu.dram_bytes_per_s), "peak"
    return None, "peak"


def _l2_hit(
    workload: BenchWorkload, alone: AloneRun, gpu: GpuCapacity, against: References, calibration: Calibration
) -> float | None:
    """Hit rate of L2, 0..1: 0 for a footprint far larger than L2, for any measured time."""
    if (workload.footprint_bytes or 0.0) > _FAR * (gpu.l2_bytes or float("inf")):
        return 0.0
    return _hit(workload, alone, against.l2_hit, calibration.l2_miss_cost)


def _hit(workload: BenchWorkload, alone: AloneRun, hit_s: float | None, miss_cost: float) -> float | None:
    """Hit rate of a cache, 0..1, from the time of a byte relative to that of a hit; 0 where nothing is copied."""
    per_byte = seconds_per_byte(workload, alone)
    if per_byte is None:
        return 0.0
    if hit_s is None or miss_cost <= 1:
        return None
    return min(1.0, max(0.0, 1.0 - (per_byte / hit_s - 1.0) / (miss_cost - 1.0)))


def _irregular(workload: BenchWorkload) -> float | None:
    """None for a kernel that waits for barriers: its irregularity was not measured."""
    if workload.kind in _WAITS_FOR_BARRIERS:
        return None
    return 1.0 if workload.kind in _WAITS_FOR_MEMORY else 0.0


def footprint(workload: BenchWorkload, gpu: GpuCapacity, code: Code | None) -> Footprint:
    """Return what the blocks of a launch occupy; registers and shared memory only where the compiled code is known."""
    if code is None or code.registers is None:
        return Footprint(workload.blocks, workload.threads)
    taken = Footprint(workload.blocks, workload.threads, code.registers, float(code.shared_bytes))
    return replace(taken, blocks_per_sm=computed_fit(taken, gpu))


_MOST = 8.0  # curvature that is tried: no GPU is near it
_SATURATED = 0.97  # of the bandwidth: above it, more load has no visible effect
_POINTS = 3  # that a curve of two unknowns needs, and one to see whether it fits
_KNEE = 1.1  # times the time of a hit
_NOT_RUN = "not measured"


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """u (1 + c u^2) = k b: utilisation u of DRAM by b blocks that copy alone. `residual`: of u, worst, relative."""

    curvature: float
    slope: float
    residual: float


def calibrate(bench: Bench, *, lanes: Lanes) -> CalibrationFile:
    """Return the calibration of a GPU, with the source of each value, and all expected and measured values."""
    entries = {
        "dram_curvature": _curvature(bench),
        "achievable_share": _achievable(bench),
        "issue_capacity": _issue(bench, lanes),
        "l2_miss_cost": _miss_cost(bench, "l2", bench.gpu.l2_bytes),
        "l1_miss_cost": _miss_cost(bench, "l1", bench.gpu.l1_bytes),
    }
    return CalibrationFile(
        gpu=bench.gpu.name,
        driver=bench.driver,
        date=bench.date,
        calibration=entries,
        knees=dict(_knees(bench)),
        experiments=[_row(one) for one in bench.results if one.experiment.second is not None],
    )


def fit_curve(points: Sequence[tuple[float, float]]) -> LatencyCurve | None:
    """Return the curve of (blocks, utilisation 0..1) with least squares of relative errors; None: not enough data.

    >>> curve = fit_curve([(33, 0.2133), (66, 0.4012), (99, 0.5506), (132, 0.6918)])
    >>> round(curve.curvature, 2), curve.residual < 0.02
    (0.57, True)
    """
    known = [(blocks, used) for blocks, used in points if 0 < used < _SATURATED]
    if len(known) < _POINTS:
        return None
    step, best = _MOST / 16, 0.0
    while step > 1e-6:  # every round refines the search around the best value of the last one
        tried = [max(0.0, best + place * step) for place in range(-16, 17)]
        best = min(tried, key=lambda curvature: curve_errors(known, curvature)[0])
        step /= 8
    slope = curve_errors(known, best)[1]
    if best >= _MOST:
        return None
    residual = max(abs(dram_load(slope * blocks, best) / used - 1) for blocks, used in known)
    return LatencyCurve(best, slope, residual)


def _most(bench: Bench) -> float | None:
    """Highest bandwidth of a copy, byte/s; None unless every SM was full of copying threads once."""
    if not any(experiment.name == "bandwidth-all" for experiment, _ in bench.alone("bandwidth")):
        return None
    pairs = [(one.first, alone) for one, alone in bench.alone("bandwidth")]
    return references(pairs, bench.gpu).bandwidth


def _curvature(bench: Bench) -> CalibrationValue:
    most = _most(bench)
    if most is None:
        return published_entry("dram_curvature", _NOT_RUN)
    points = [
        (float(one.first.blocks), 1 / per_byte / most)
        for one, alone in bench.alone("bandwidth")
        if one.second is not None and (per_byte := seconds_per_byte(one.first, alone))
    ]
    curve = fit_curve(points)
    if curve is None:
        return published_entry("dram_curvature", f"{len(points)} points below saturation, or no curve through them")
    shown = ", ".join(f"{blocks:.0f}: {used:.3f}" for blocks, used in points)
    return CalibrationValue(
        curve.curvature, "measured", "bandwidth", curve.residual, f"share of the bandwidth by blocks {shown}"
    )


def _achievable(bench: Bench) -> CalibrationValue:
    most, peak = _most(bench), bench.gpu.dram_bytes_per_s
    if most is None or not peak:
        return published_entry("achievable_share", _NOT_RUN if most is None else "the peak of this GPU is unknown")
    note = f"{most / 1e9:.0f} of {peak / 1e9:.0f} GB/s"
    if not 0.01 <= most / peak <= 1.0:
        return published_entry("achievable_share", f"not believed: {note}")
    return CalibrationValue(most / peak, "measured", "bandwidth-all", None, note)


def _issue(bench: Bench, lanes: Lanes) -> CalibrationValue:
    found = [
        cycles(one.first, alone, bench.gpu, lanes).get("issue")
        for one, alone in bench.alone("issue")
        if one.name == "issue-all"
    ]
    if not found or found[0] is None:
        return published_entry("issue_capacity", _NOT_RUN)
    return CalibrationValue(
        found[0], "measured", "issue-all", None, f"{found[0] * bench.gpu.schedulers:.2f} of 4 per cycle"
    )


def _copies(bench: Bench, group: str) -> list[tuple[float, float]]:
    """(bytes of what is come back to, seconds per byte), by size."""
    return sorted(
        (footprint, per_byte)
        for one, alone in bench.alone(group)
        if (footprint := one.first.footprint_bytes) and (per_byte := seconds_per_byte(one.first, alone))
    )


def _miss_cost(bench: Bench, group: str, capacity: float | None) -> CalibrationValue:
    name = f"{group}_miss_cost"
    points = _copies(bench, group)
    if capacity is None or len(points) < 2 or 2 * points[0][0] > capacity or points[-1][0] < 4 * capacity:
        return published_entry(name, _NOT_RUN)
    hit, miss = points[0][1], points[-1][1]
    if miss <= hit:
        return published_entry(name, "large arrays were copied as fast as small ones")
    cost = miss / hit
    knee, cliff = getattr(Calibration(), f"{group}_knee"), getattr(Calibration(), f"{group}_cliff")
    errors = [
        abs((1 + (1 - residency(footprint / capacity, knee, cliff)) * (cost - 1)) * hit / per_byte - 1)
        for footprint, per_byte in points
    ]
    return CalibrationValue(
        cost, "measured", f"{group}-miss", max(errors), "residual: of the times of all sizes, alone"
    )


def _knees(bench: Bench) -> Sequence[tuple[str, float]]:
    """(where, bytes of the array of the GPU, or of a block) above which copies alone take longer than from a cache."""
    found = []
    for group in ("l2", "l1"):
        points = _copies(bench, group)
        beyond = [footprint for footprint, per_byte in points if per_byte > _KNEE * points[0][1]]
        below = [footprint for footprint, _ in points if beyond and footprint < beyond[0]]
        if below:
            found.append((f"{group}_array_bytes_alone", below[-1] / 2))
    return found


def _row(result: ExperimentResult) -> BenchRow:
    measured = result.measured
    return BenchRow(
        name=result.experiment.name,
        mode=result.mode,
        compared=result.experiment.compared,
        predicted=None if result.expected is None else result.expected.value,
        calibrated=None if result.calibrated is None else result.calibrated.value,
        measured=None if measured is None else measured.median,
        low=None if measured is None else measured.low,
        high=None if measured is None else measured.high,
        published=result.published,
        problem=result.problem,
    )


def gpu_words(gpu: GpuCapacity) -> str:
    """Return a GPU in words.

    >>> gpu_words(GpuCapacity(name="NVIDIA H200", sms=132, l2_bytes=60e6))
    'NVIDIA H200, 132 SMs, L2 60 MB'
    """
    parts = [gpu.name]
    parts += [] if gpu.sms is None else [f"{gpu.sms} SMs"]
    parts += [] if gpu.l2_bytes is None else [f"L2 {gpu.l2_bytes / 1e6:.0f} MB"]
    parts += [] if gpu.l1_bytes is None else [f"L1 {gpu.l1_bytes / 1024:.0f} KiB"]
    return ", ".join(parts)
