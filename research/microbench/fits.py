"""Results of the experiments: measured and expected values, and the calibration fitted to
launches alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

import numpy as np

from microbench.bench_file import BenchFile, BenchRow, Compared, LaunchTimes, PairTimes
from microbench.demand import FAR, References, cycles, references, seconds_per_byte
from microbench.device import Lanes
from microbench.experiments import Experiment
from microbench.measure import AloneRun, PairedRun
from microbench.workloads import BenchWorkload
from pair_numbers import ends_of_launches
from tachograph.annexes.share.calibration import CalibrationValue
from tachograph.annexes.share.demand import Calibration, CorunMode, Estimate, GpuCapacity
from tachograph.annexes.share.kernel_arrays import residency
from tachograph.catalog.arrays import Floats


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

    `alone`: of each launch, as tuned. `expected`: with the published calibration; `calibrated`:
    with the calibration from the launches of this run alone.
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

    @property
    def measured_alone(self) -> tuple[tuple[BenchWorkload, AloneRun], ...]:
        """All launches that ran alone on the whole GPU."""
        streams = [one for one in self.results if one.mode == "streams"]
        return tuple(
            pair
            for one in streams
            for pair in zip(one.experiment.workloads, one.alone, strict=False)
        )

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
        PairedRun(
            median(run.together.first_s for run in runs),
            median(run.together.second_s for run in runs),
        ),
        compared,
    )
    known = [value for value in each if value is not None]
    return None if middle is None or not known else MeasuredValue(middle, min(known), max(known))


def _ratio(
    alone: tuple[float, float], in_turn: float | None, together: PairedRun, compared: Compared
) -> float | None:
    if compared == "gain":
        return None if in_turn is None else in_turn / together.seconds
    slowdowns = together.first_s / alone[0], together.second_s / alone[1]
    return {"first": slowdowns[0], "second": slowdowns[1], "both": sum(slowdowns) / 2}[compared]


def expected(
    estimate: Estimate, seconds: tuple[float, float], compared: Compared
) -> ExpectedOutcome:
    """Return the result expected by an estimate for launches that begin at once; `seconds`: time of
    each alone.

    After the first has ended, the other runs alone: so slowdowns from begin to end differ from
    those while both run.
    """
    one, other = estimate.members
    binding = other.binding if compared == "second" else one.binding or other.binding
    if one.slowdown is None or other.slowdown is None:
        return ExpectedOutcome(None, None, estimate.unknown)
    if one.binding == "blocks":
        ends = (seconds[0], sum(seconds))  # the first launch has the GPU until it is done
    else:
        ends = ends_of_launches(seconds, (one.slowdown, other.slowdown))
    return ExpectedOutcome(
        _ratio(seconds, sum(seconds), PairedRun(*ends), compared), binding, estimate.unknown
    )


_MOST = 8.0  # curvature that is tried: no GPU is near it
_SATURATED = 0.97  # of the bandwidth: above it, more load has no visible effect
_POINTS = 3  # that a curve of two unknowns needs, and one to see whether it fits
_KNEE = 1.1  # times the time of a hit
_NOT_RUN = "not measured"


@dataclass(frozen=True, slots=True)
class LatencyCurve:
    """u (1 + c u^2) = k b: utilisation u of DRAM by b blocks that copy alone. `residual`: of u,
    worst, relative.
    """

    curvature: float
    slope: float
    residual: float


def calibrate(bench: Bench, *, lanes: Lanes) -> BenchFile:
    """Return the calibration of a GPU, with the source of each value, and all expected and
    measured values.
    """
    against = references(bench.measured_alone, bench.gpu)
    entries = {
        "dram_curvature": _curvature(bench, against),
        "achievable_share": _achievable(bench, against),
        "issue_capacity": _issue(bench, lanes, against),
        "l2_bytes_per_s": _l2_bytes_per_s(against),
        **_cache(bench, "l2", bench.gpu.l2_bytes),
        **_cache(bench, "l1", bench.gpu.l1_bytes),
    }
    return BenchFile(
        gpu=bench.gpu.name,
        driver=bench.driver,
        date=bench.date,
        calibration=entries,
        knees=dict(_knees(bench)),
        experiments=[bench_row(one) for one in bench.results],
    )


_STEPS = 60  # of Newton's method, at most: a handful is enough


def outstanding(used: float, curvature: float) -> float:
    """Return the requests on their way that make a kernel use the share `used`, 0..1, alone."""
    return used * (1.0 + curvature * used * used)


def dram_load(requests: float, curvature: float) -> float:
    """Return the load, 0..1, that so many requests make.

    >>> [round(dram_load(n, 0.571), 3) for n in (0.1, outstanding(0.5, 0.571), 3.0)]
    [0.099, 0.5, 1.0]
    """
    if requests >= 1.0 + curvature:
        return 1.0
    guess = min(requests, 1.0)
    for _ in range(_STEPS):  # from above to the root of a convex function
        square = curvature * guess * guess
        less = (guess * (1.0 + square) - requests) / (1.0 + 3.0 * square)
        guess -= less
        if less <= 1e-15 * guess:
            break
    return min(guess, 1.0)


def curve_errors(points: Sequence[tuple[float, float]], curvature: float) -> tuple[float, float]:
    """Return how far u (1 + c u^2) = k b is from points (blocks b, share u used alone): a sum of
    squares, and k.

    Relative errors of u; k by least squares of the requests.
    """
    requests = [outstanding(used, curvature) for _, used in points]
    weights = sum(blocks * blocks for blocks, _ in points)
    slope = (
        sum(blocks * request for (blocks, _), request in zip(points, requests, strict=True))
        / weights
    )
    return sum(
        (dram_load(slope * blocks, curvature) / used - 1.0) ** 2 for blocks, used in points
    ), slope


def fit_curve(points: Sequence[tuple[float, float]]) -> LatencyCurve | None:
    """Return the curve of (blocks, utilisation 0..1) with least squares of relative errors; None:
    not enough data.

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


def _curvature(bench: Bench, against: References) -> CalibrationValue:
    most = _most(bench, against)
    if most is None:
        return published_entry("dram_curvature", _NOT_RUN)
    points = [
        (float(one.first.blocks), 1 / per_byte / most)
        for one, alone in bench.alone("bandwidth")
        if one.second is not None and (per_byte := seconds_per_byte(one.first, alone))
    ]
    curve = fit_curve(points)
    if curve is None:
        return published_entry(
            "dram_curvature", f"{len(points)} points below saturation, or no curve through them"
        )
    shown = ", ".join(f"{blocks:.0f}: {used:.3f}" for blocks, used in points)
    return CalibrationValue(
        curve.curvature,
        "measured",
        "bandwidth",
        curve.residual,
        f"share of the bandwidth by blocks {shown}",
    )


def _most(bench: Bench, against: References) -> float | None:
    """Highest bandwidth of a copy, byte/s; None unless every SM was full of copying threads
    once.
    """
    full = any(experiment.name == "bandwidth-all" for experiment, _ in bench.alone("bandwidth"))
    return against.bandwidth if full else None


def _achievable(bench: Bench, against: References) -> CalibrationValue:
    most, peak = _most(bench, against), bench.gpu.dram_bytes_per_s
    if most is None or not peak:
        return published_entry(
            "achievable_share", _NOT_RUN if most is None else "the peak of this GPU is unknown"
        )
    note = f"{most / 1e9:.0f} of {peak / 1e9:.0f} GB/s"
    if not 0.01 <= most / peak <= 1.0:
        return published_entry("achievable_share", f"not believed: {note}")
    return CalibrationValue(most / peak, "measured", "bandwidth-all", None, note)


def _issue(bench: Bench, lanes: Lanes, against: References) -> CalibrationValue:
    found = [
        cycles(one.first, alone, bench.gpu, lanes, against).get("issue")
        for one, alone in bench.alone("issue")
        if one.name == "issue-all"
    ]
    if not found or found[0] is None:
        return published_entry("issue_capacity", _NOT_RUN)
    note = f"{found[0] * bench.gpu.schedulers:.2f} of {bench.gpu.schedulers} per cycle"
    return CalibrationValue(found[0], "measured", "issue-all", None, note)


def _l2_bytes_per_s(against: References) -> CalibrationValue:
    if against.l2_bandwidth is None:
        return published_entry("l2_bytes_per_s", _NOT_RUN)
    return CalibrationValue(
        against.l2_bandwidth, "measured", "l2-read", None, "the most that was read, no stores"
    )


def _sweep(bench: Bench, group: str) -> list[tuple[float, float]]:
    """(bytes that come back again and again, seconds per byte) of the sweeps of a group alone,
    by size.
    """
    return sorted(
        (footprint, per_byte)
        for one, alone in bench.alone(group)
        if one.first.kind.startswith("sweep")
        and (footprint := one.first.footprint_bytes)
        and (per_byte := seconds_per_byte(one.first, alone))
    )


def _cache(bench: Bench, group: str, capacity: float | None) -> dict[str, CalibrationValue]:
    """Cost of a miss, knee and cliff of a cache, from a sweep over arrays of well below to well
    above its size.
    """
    names = miss_cost, knee, cliff = tuple(
        f"{group}_{what}" for what in ("miss_cost", "knee", "cliff")
    )
    points = _sweep(bench, group)
    if (
        capacity is None
        or len(points) < 2
        or 2 * points[0][0] > capacity
        or points[-1][0] < _FAR_ENOUGH * capacity
    ):
        return {name: published_entry(name, _NOT_RUN) for name in names}
    law = fit_residency(tuple((footprint / capacity, per_byte) for footprint, per_byte in points))
    if law is None:
        return {
            name: published_entry(name, "large arrays took no longer than small ones")
            for name in names
        }
    found = {
        miss_cost: CalibrationValue(law.cost, "measured", f"{group}-miss", law.residual, _OF_TIMES)
    }
    if law.between < _BETWEEN:
        why = (
            f"{law.between} sizes between all and nothing stays: {_BETWEEN} show where it "
            "begins and ends"
        )
        return found | {name: published_entry(name, why) for name in (knee, cliff)}
    note = f"{_OF_TIMES}; {law.between} of them between knee and cliff"
    return found | {
        knee: CalibrationValue(law.knee, "measured", group, law.residual, note),
        cliff: CalibrationValue(law.cliff, "measured", group, law.residual, note),
    }


_FAR_ENOUGH = 0.99 * FAR  # times the cache, sizes are rounded down
_OF_TIMES = "residual: of the times of all sizes, alone"
_LEAST_COST = 1.05  # a smaller one is within the noise
_BETWEEN = 2  # sizes of which a part stays, for the two ends of a line
_KNEES, _CLIFFS = (0.2, 2.0), (0.3, 3.9)  # where they are looked for, times the size of the cache
_GRID = 24  # steps of a search along each


@dataclass(frozen=True, slots=True)
class ResidencyLaw:
    """t = hit (1 + (1 - residency) (cost - 1)): time of a byte of arrays around the size of a
    cache.

    `knee`, `cliff`: over that size, see kernel_arrays.residency. `residual`: of the times, worst,
    relative. `between`: sizes of which a part stays.
    """

    cost: float
    knee: float
    cliff: float
    residual: float
    between: int


@lru_cache(maxsize=4)  # the file is written after every experiment, and few of them change a sweep
def fit_residency(points: tuple[tuple[float, float], ...]) -> ResidencyLaw | None:
    """Return the law of (array over cache, time of a byte), least squares of relative errors; None:
    nothing is lost.

    The first size hits always, the last never.

    >>> sizes = np.array([0.2, 0.8, 1.0, 1.2, 1.4, 1.8, 4.0])
    >>> times = 2 * (1 + (1 - residency(sizes, 0.9, 1.6)) * 3)
    >>> law = fit_residency(tuple(zip(sizes, times)))
    >>> round(law.cost, 2), round(law.knee, 2), round(law.cliff, 2), law.between
    (4.0, 0.9, 1.6, 3)
    """
    ordered = sorted(points)
    hit, miss = ordered[0][1], ordered[-1][1]
    cost = miss / hit
    if cost < _LEAST_COST:
        return None

    sizes, times = np.array(ordered).T

    def errors(knee: float, cliff: float) -> Floats:
        expected_s = hit * (1 + (1 - residency(sizes, knee, cliff)) * (cost - 1))
        found: Floats = expected_s / times - 1
        return found

    def squares(place: tuple[float, float]) -> float:
        return float(np.square(errors(*place)).sum())

    ranges = _KNEES, _CLIFFS
    best = (1.0, 1.0)
    # Every round refines the search around the best place.
    while max(high - low for low, high in ranges) > 1e-4:
        knees, cliffs = (
            [low + (high - low) * step / _GRID for step in range(_GRID + 1)] for low, high in ranges
        )
        best = min(
            ((knee, cliff) for knee in knees for cliff in cliffs if knee < cliff), key=squares
        )
        ranges = _around(best[0], ranges[0], _KNEES), _around(best[1], ranges[1], _CLIFFS)
    between = sum(best[0] < x < best[1] for x, _ in ordered)
    return ResidencyLaw(cost, *best, float(np.abs(errors(*best)).max()), between)


def _around(
    place: float, tried: tuple[float, float], allowed: tuple[float, float]
) -> tuple[float, float]:
    """A third of the range tried, around a place in it, within what is allowed."""
    reach = (tried[1] - tried[0]) / 6
    return max(allowed[0], place - reach), min(allowed[1], place + reach)


def _knees(bench: Bench) -> Sequence[tuple[str, float]]:
    """(where, bytes of the array of the GPU, or of a block) above which sweeps alone take longer
    than from a cache.
    """
    found = []
    for group in ("l2", "l1"):
        points = _sweep(bench, group)
        beyond = [footprint for footprint, per_byte in points if per_byte > _KNEE * points[0][1]]
        below = [footprint for footprint, _ in points if beyond and footprint < beyond[0]]
        if below:
            found.append((f"{group}_array_bytes_alone", below[-1]))
    return found


def bench_row(result: ExperimentResult) -> BenchRow:
    """Return an experiment as it stands in the file: what was expected apart from what was
    measured.
    """
    measured, runs = result.measured, result.runs
    turns = [run.in_turn for run in runs if run.in_turn is not None]
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
        launches=[
            LaunchTimes(
                workload.words,
                workload.floats,
                one.rounds,
                one.cycles,
                one.seconds,
                list(one.each_s),
            )
            for workload, one in zip(result.experiment.workloads, result.alone, strict=False)
        ],
        times=None
        if not runs
        else PairTimes(
            first_alone_s=[run.alone[0] for run in runs],
            second_alone_s=[run.alone[1] for run in runs],
            in_turn_s=turns,
            first_together_s=[run.together.first_s for run in runs],
            second_together_s=[run.together.second_s for run in runs],
        ),
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


def published_entry(name: str, why: str) -> CalibrationValue:
    """Return the published value of `name`, marked so, and why it was not measured; None where none
    is published.

    >>> published_entry("l1_miss_cost", "no GPU").value
    5.75
    """
    return CalibrationValue(value=getattr(Calibration(), name), provenance="published", note=why)
