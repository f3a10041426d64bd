"""What launches that ran alone tell of the GPU, for the estimator. No pair counts: pairs are what it is tried on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp

from tachograph.interference.calibration_file import CalibrationFile, Entry, Row, published_entry
from tachograph.interference.demand import Gpu
from tachograph.microbench.demands import cycles, references, seconds_per_byte
from tachograph.microbench.device import Lanes
from tachograph.microbench.results import Bench, Result

_MOST = 8.0  # curvature that is tried: no GPU is near it
_SATURATED = 0.97  # of the bandwidth: above it, more load cannot be seen
_POINTS = 3  # that a curve of two unknowns needs, and one to see whether it fits
_KNEE = 1.1  # times the time of a hit
_NOT_RUN = "not measured"


@dataclass(frozen=True, slots=True)
class Curve:
    """u (1 + c u^2) = k b: utilisation u of DRAM by b blocks that copy alone. `residual`: of u, worst, relative."""

    curvature: float
    slope: float
    residual: float


def calibrate(bench: Bench, *, lanes: Lanes) -> CalibrationFile:
    """Return the calibration of a GPU, with who told each value, and all that was expected and measured."""
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


def fit_curve(points: Sequence[tuple[float, float]]) -> Curve | None:
    """Return the curve of (blocks, utilisation 0..1) with the least squares of relative errors; None: cannot be told.

    >>> curve = fit_curve([(33, 0.2133), (66, 0.4012), (99, 0.5506), (132, 0.6918)])
    >>> round(curve.curvature, 2), curve.residual < 0.02
    (0.57, True)
    """
    told = [(blocks, used) for blocks, used in points if 0 < used < _SATURATED]
    if len(told) < _POINTS:
        return None
    step, best = _MOST / 16, 0.0
    while step > 1e-6:  # every round looks closer around the best of the last one
        tried = [max(0.0, best + place * step) for place in range(-16, 17)]
        best = min(tried, key=lambda curvature: _errors(told, curvature)[0])
        step /= 8
    slope = _errors(told, best)[1]
    if best >= _MOST:
        return None
    residual = max(abs(_used(slope * blocks, best) / used - 1) for blocks, used in told)
    return Curve(best, slope, residual)


def _errors(points: Sequence[tuple[float, float]], curvature: float) -> tuple[float, float]:
    """(sum of squares of relative errors, slope), the slope by least squares of the requests."""
    requests = [(blocks, used * (1 + curvature * used * used)) for blocks, used in points]
    slope = sum(wanted * blocks for blocks, wanted in requests) / sum(blocks * blocks for blocks, _ in requests)
    return sum((_used(slope * blocks, curvature) / used - 1) ** 2 for blocks, used in points), slope


def _used(requests: float, curvature: float) -> float:
    """The root u of u (1 + c u^2) = requests, by Newton's method from above."""
    used = requests
    for _ in range(60):
        square = curvature * used * used
        less = (used * (1 + square) - requests) / (1 + 3 * square)
        used -= less
        if abs(less) < 1e-14:
            break
    return used


def _most(bench: Bench) -> float | None:
    """Highest bandwidth of a copy, byte/s; None unless every SM was full of copying threads once."""
    if not any(experiment.name == "bandwidth-all" for experiment, _ in bench.alone("bandwidth")):
        return None
    pairs = [(one.first, alone) for one, alone in bench.alone("bandwidth")]
    return references(pairs, bench.gpu).bandwidth


def _curvature(bench: Bench) -> Entry:
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
    return Entry(curve.curvature, "measured", "bandwidth", curve.residual, f"share of the bandwidth by blocks {shown}")


def _achievable(bench: Bench) -> Entry:
    most, peak = _most(bench), bench.gpu.dram_bytes_per_s
    if most is None or not peak:
        return published_entry("achievable_share", _NOT_RUN if most is None else "nobody tells the peak of this GPU")
    note = f"{most / 1e9:.0f} of {peak / 1e9:.0f} GB/s"
    if not 0.01 <= most / peak <= 1.0:
        return published_entry("achievable_share", f"not believed: {note}")
    return Entry(most / peak, "measured", "bandwidth-all", None, note)


def _issue(bench: Bench, lanes: Lanes) -> Entry:
    found = [
        cycles(one.first, alone, bench.gpu, lanes).get("issue")
        for one, alone in bench.alone("issue")
        if one.name == "issue-all"
    ]
    if not found or found[0] is None:
        return published_entry("issue_capacity", _NOT_RUN)
    return Entry(found[0], "measured", "issue-all", None, f"{found[0] * bench.gpu.schedulers:.2f} of 4 per cycle")


def _copies(bench: Bench, group: str) -> list[tuple[float, float]]:
    """(bytes of what is come back to, seconds per byte), by size."""
    return sorted(
        (footprint, per_byte)
        for one, alone in bench.alone(group)
        if (footprint := one.first.footprint_bytes) and (per_byte := seconds_per_byte(one.first, alone))
    )


def _miss_cost(bench: Bench, group: str, capacity: float | None) -> Entry:
    name = f"{group}_miss_cost"
    points = _copies(bench, group)
    if capacity is None or len(points) < 2 or 2 * points[0][0] > capacity or points[-1][0] < 4 * capacity:
        return published_entry(name, _NOT_RUN)
    hit, miss = points[0][1], points[-1][1]
    if miss <= hit:
        return published_entry(name, "large arrays were copied as fast as small ones")
    cost = miss / hit
    errors = [
        abs((1 + (1 - _stays(footprint / capacity)) * (cost - 1)) * hit / per_byte - 1)
        for footprint, per_byte in points
    ]
    return Entry(cost, "measured", f"{group}-miss", max(errors), "residual: of the times of all sizes, alone")


def _stays(filled: float) -> float:
    """Share that stays in a cache which replaces at random, of an array swept again and again: h = exp(-(1 - h) f)."""
    if filled <= 1:
        return 1.0
    share = 0.0
    for _ in range(500):
        share = exp(-(1 - share) * filled)
    return share


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


def _row(result: Result) -> Row:
    measured = result.measured
    return Row(
        name=result.experiment.name,
        way=result.way,
        compared=result.experiment.compared,
        predicted=None if result.expected is None else result.expected.value,
        calibrated=None if result.calibrated is None else result.calibrated.value,
        measured=None if measured is None else measured.median,
        low=None if measured is None else measured.low,
        high=None if measured is None else measured.high,
        published=result.published,
        problem=result.problem,
    )


def gpu_words(gpu: Gpu) -> str:
    """Return a GPU in words.

    >>> gpu_words(Gpu(name="NVIDIA H200", sms=132, l2_bytes=60e6))
    'NVIDIA H200, 132 SMs, L2 60 MB'
    """
    parts = [gpu.name]
    parts += [] if gpu.sms is None else [f"{gpu.sms} SMs"]
    parts += [] if gpu.l2_bytes is None else [f"L2 {gpu.l2_bytes / 1e6:.0f} MB"]
    parts += [] if gpu.l1_bytes is None else [f"L1 {gpu.l1_bytes / 1024:.0f} KiB"]
    return ", ".join(parts)
