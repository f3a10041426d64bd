"""Metrics of Nsight Compute: merged over launches, and as fractions of resources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import fsum, isfinite
from types import MappingProxyType

import numpy as np

from tachograph.annexes.share import demand
from tachograph.annexes.share.demand import GpuCapacity
from tachograph.annexes.share.nsight.launches import Launch
from tachograph.catalog.arrays import Floats

_ACTIVE, _ELAPSED = "avg.pct_of_peak_sustained_active", "avg.pct_of_peak_sustained_elapsed"
ISSUED = "sm__inst_issued.avg.per_cycle_active"
WARP = 32  # threads
OCCUPANCY = f"sm__warps_active.{_ACTIVE}"
POSSIBLE = "sm__maximum_warps_per_active_cycle_pct"  # occupancy that the blocks allow
DRAM = f"gpu__dram_throughput.{_ELAPSED}"
DRAM_BYTES = "dram__bytes.sum.per_second"
DURATION = "gpu__time_duration.sum"  # ns
SM_HZ = "gpc__cycles_elapsed.avg.per_second"
SECTOR = 32.0  # bytes
_NS = 1e-9  # s
L2_HIT, L1_HIT = "lts__t_sector_hit_rate.pct", "l1tex__t_sector_hit_rate.pct"
L2_READ_HIT = "lts__t_sector_op_read_hit_rate.pct"
_L2_SECTORS, _L2_READS = "lts__t_sectors.sum", "lts__t_sectors_op_read.sum"
L2_BUSY = f"lts__throughput.{_ELAPSED}"
L1_BUSY = f"l1tex__throughput.{_ACTIVE}"
# Each wavefront of a load, a store or shared memory takes a cycle of the data stage of L1.
_L1_DATA = tuple(f"l1tex__data_pipe_lsu_wavefronts{part}.{_ACTIVE}" for part in ("", "_mem_shared"))
THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"
SM_ACTIVE, SM_ACTIVE_MIN, SM_ACTIVE_MAX = (
    f"sm__cycles_active.{kind}" for kind in ("avg", "min", "max")
)
# the SMs' own clock first; one of these is the length of a launch in cycles
ELAPSED = ("sm__cycles_elapsed.max", "gpc__cycles_elapsed.max")
# FP64 and tensor instructions go through one pipeline on GA100, GH100 and GB100, where this is the
# sum of both.
SHARED = "shared"
PIPES = tuple(dict.fromkeys((*demand.PIPES, SHARED)))
# what people call a pipeline
PIPE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "alu": "ALU",
        "fma": "FMA",
        "fp16": "FP16",
        "fp64": "FP64",
        "lsu": "LSU",
        SHARED: "FP64+tensor",
        "tensor": "tensor",
        "tex": "TEX",
        "uniform": "uniform",
        "xu": "XU",
    }
)
# Compute capabilities with a pipeline for FP16; since GA10x it is part of FMA, and counted there.
WITH_FP16 = ("7.0", "7.2", "7.5", "8.0")
_TENSOR = re.compile(
    r"sm__(?:inst_executed_pipe_tensor\w*|pipe_tensor\w*_cycles_active(?:_v2)?)\.(?P<basis>.+)"
)
_STALLS = (
    re.compile(r"smsp__average_warps_issue_stalled_(?P<reason>\w+)_per_issue_active\.ratio"),
    re.compile(r"smsp__warp_issue_stalled_(?P<reason>\w+)_per_warp_active\.pct"),
)
# no waiting: the warp that issues, and those that could have
_READY = frozenset({"selected", "not_selected"})
# waits that differ in length from time to time: for memory, for other warps, for instructions
IRREGULAR_STALLS = frozenset(
    {
        *("barrier", "drain", "imc_miss", "lg_throttle", "long_scoreboard", "membar"),
        *("mio_throttle", "no_instruction", "no_instructions", "short_scoreboard"),
        *("sleeping", "tex_throttle"),
    }
)
# without one of these, shares of the waiting would depend on the collected reasons; every chip has
# them
_CORE_STALLS = frozenset(
    {
        *("barrier", "drain", "lg_throttle", "long_scoreboard", "math_pipe_throttle", "membar"),
        *("mio_throttle", "short_scoreboard", "sleeping", "tex_throttle", "wait"),
    }
)
_NO_MEMORY = 0.01  # of DRAM and of the load/store pipeline


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A value, and the metric that it was read from."""

    value: float
    metric: str


def readings(metrics: Mapping[str, float], gpu: GpuCapacity) -> dict[str, MetricValue]:
    """Return {quantity: value and its metric} of a kernel, as far as is measured.

    The quantities are those of `demand.CYCLES`, the pipeline that FP64 and tensor share, `dram`,
    `l2_bandwidth`, hits in caches, bytes per second, resident warps, and the share of the SMs'
    time.

    >>> readings({ISSUED: 3.0, DRAM: 42.0}, GpuCapacity(name="H100"))["issue"]
    MetricValue(value=0.75, metric='sm__inst_issued.avg.per_cycle_active')
    """
    slot = 1 / gpu.schedulers
    # Metrics of a quantity, the best first, with the factor from each.
    scales = {
        "issue": {
            ISSUED: slot,
            "sm__issue_active.avg.per_cycle_active": slot,
            "smsp__issue_active.avg.per_cycle_active": 1.0,
            f"sm__inst_issued.{_ACTIVE}": 0.01,
            f"smsp__issue_active.{_ACTIVE}": 0.01,
        },
        "dram": {DRAM: 0.01, f"dram__throughput.{_ELAPSED}": 0.01},
        "l2_bandwidth": {L2_BUSY: 0.01},
        "l1_hit": {L1_HIT: 0.01},
        "occupancy": {OCCUPANCY: 0.01},
        "dram_bytes_per_s": {DRAM_BYTES: 1.0},
        "l2_bytes_per_s": {"lts__t_bytes.sum.per_second": 1.0, f"{_L2_SECTORS}.per_second": SECTOR},
    }
    if gpu.threads_per_sm:
        warps = gpu.threads_per_sm / WARP
        scales["occupancy"]["sm__warps_active.avg.per_cycle_active"] = 1 / warps
    quantities = {name: first(metrics, scale) for name, scale in scales.items()}
    quantities["dram_bytes_per_s"] = quantities["dram_bytes_per_s"] or _per_s(
        metrics, "dram__bytes.sum", 1.0
    )
    quantities["l2_bytes_per_s"] = quantities["l2_bytes_per_s"] or _per_s(
        metrics, _L2_SECTORS, SECTOR
    )
    traffic = quantities["dram_bytes_per_s"]
    if quantities["dram"] is None and traffic is not None and gpu.dram_bytes_per_s:
        quantities["dram"] = MetricValue(traffic.value / gpu.dram_bytes_per_s, traffic.metric)
    quantities |= {
        "l1_bandwidth": _busiest(metrics, (L1_BUSY, *_L1_DATA)),
        "l2_hit": l2_reuse(metrics),
        "sm_share": _quotient(metrics, SM_ACTIVE, ELAPSED),
    }
    for pipe in PIPES:
        quantities[pipe] = _pipe(metrics, pipe, _ACTIVE) or _pipe_of_elapsed(metrics, pipe)
    for name in ("issue", "dram", "l2_bandwidth", "l1_hit", "occupancy", "sm_share", *PIPES):
        quantities[name] = _fraction(quantities.get(name))
    return {name: reading for name, reading in quantities.items() if reading is not None}


def pipe_metric(pipe: str) -> str:
    """Return the metric of a pipeline: instructions executed there, of the maximum.

    >>> pipe_metric("fma")
    'sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active'
    """
    if pipe == SHARED:
        return f"sm__pipe_shared_cycles_active.{_ACTIVE}"
    return f"sm__inst_executed_pipe_{pipe}.{_ACTIVE}"


def first(metrics: Mapping[str, float], scales: Mapping[str, float]) -> MetricValue | None:
    """Return the first collected metric of `scales`, scaled; None without any.

    >>> first({"b": 50.0}, {"a": 1.0, "b": 0.01})
    MetricValue(value=0.5, metric='b')
    """
    for metric, scale in scales.items():
        value = metrics.get(metric)
        if value is not None and isfinite(value):
            return MetricValue(value * scale, metric)
    return None


def share(metrics: Mapping[str, float], metric: str) -> MetricValue | None:
    """Return a percentage as a fraction.

    >>> share({L2_HIT: 55.0}, L2_HIT).value
    0.55
    """
    return _fraction(first(metrics, {metric: 0.01}))


def l2_reuse(metrics: Mapping[str, float]) -> MetricValue | None:
    """Return an upper bound of the share of L2 sectors a kernel reuses; None: not collected.

    It is read, and found there. Stores hit L2 whether or not anything comes back to them, and what
    passes to DRAM anyway is not found again, so that a stream of stores does not live on L2.

    >>> stores = {L2_HIT: 99.0, L2_READ_HIT: 90.0, _L2_READS: 10.0, _L2_SECTORS: 1000.0}
    >>> round(l2_reuse(stores).value, 3), l2_reuse({L2_HIT: 55.0}).value
    (0.009, 0.55)
    """
    whole, reads = metrics.get(_L2_SECTORS), metrics.get(_L2_READS)
    read_hits = share(metrics, L2_READ_HIT)
    bounds = [hits for hits in (read_hits, share(metrics, L2_HIT)) if hits is not None]
    if bounds and whole:
        if read_hits is not None and reads is not None:
            source = f"{L2_READ_HIT} x {_L2_READS} / {_L2_SECTORS}"
            bounds.append(MetricValue(read_hits.value * reads / whole, source))
        if "dram__bytes.sum" in metrics:
            again = 1.0 - metrics["dram__bytes.sum"] / (whole * SECTOR)
            bounds.append(MetricValue(max(again, 0.0), f"1 - dram__bytes.sum / {_L2_SECTORS}"))
    return min(bounds, key=lambda hits: hits.value, default=None)


def stalls(metrics: Mapping[str, float]) -> dict[str, float] | None:
    """Return {reason: share of the waiting time}; None if important reasons are missing.

    A warp that issues, or could, does not wait. Nothing waits: an empty mapping.
    """
    for kind in range(len(_STALLS)):
        named = ((_stall(metric, kind), value) for metric, value in metrics.items())
        reasons = {reason: value for reason, value in named if reason is not None}
        if reasons.keys() >= _CORE_STALLS:
            whole = sum(reasons.values())
            return {reason: value / whole for reason, value in reasons.items() if whole}
    return None


def irregular(
    shares: Mapping[str, float] | None, measured: Mapping[str, MetricValue]
) -> float | None:
    """Return the irregular fraction of stalls; None: stall reasons were not collected.

    A kernel that was measured to touch no memory has none: 0. `shares`: see `stalls`; `measured`:
    see `readings`.
    """
    if shares is not None:
        return min(1.0, fsum(shares[reason] for reason in shares.keys() & IRREGULAR_STALLS))
    untouched = all(
        name in measured and measured[name].value < _NO_MEMORY for name in ("dram", "lsu")
    )
    return 0.0 if untouched else None


def _per_s(metrics: Mapping[str, float], count: str, size: float) -> MetricValue | None:
    """Return a count over the duration, times `size`."""
    rate = _quotient(metrics, count, (DURATION,))
    return None if rate is None else MetricValue(rate.value * size / _NS, rate.metric)


def _quotient(metrics: Mapping[str, float], part: str, wholes: Iterable[str]) -> MetricValue | None:
    """Return a metric over the first of `wholes` that was collected and is not 0."""
    for whole in wholes:
        if part in metrics and metrics.get(whole, 0.0) > 0:
            return MetricValue(metrics[part] / metrics[whole], f"{part} / {whole}")
    return None


def _pipe(metrics: Mapping[str, float], pipe: str, basis: str) -> MetricValue | None:
    if pipe != "tensor":
        counts = (f"sm__inst_executed_pipe_{pipe}", f"sm__pipe_{pipe}_cycles_active")
        return first(metrics, {f"{count}.{basis}": 0.01 for count in counts})
    # An instruction takes many cycles there: the higher of instructions and cycles. Newer versions
    # write a second count (_v2) where the first is wrong for a chip.
    names = {name for name in metrics if _tensor_basis(name) == basis}
    return _busiest(metrics, (name for name in names if name.replace(".", "_v2.", 1) not in names))


def _pipe_of_elapsed(metrics: Mapping[str, float], pipe: str) -> MetricValue | None:
    """Return the load while a warp was resident, from the load of all the time."""
    elapsed, busy = _pipe(metrics, pipe, _ELAPSED), _quotient(metrics, SM_ACTIVE, ELAPSED)
    if elapsed is None or busy is None or busy.value <= 0:
        return None
    return MetricValue(elapsed.value / busy.value, f"{elapsed.metric} / ({busy.metric})")


def _busiest(metrics: Mapping[str, float], names: Iterable[str]) -> MetricValue | None:
    """Return the highest of some percentages as a fraction."""
    shares = [reading for name in sorted(names) if (reading := share(metrics, name)) is not None]
    return max(shares, key=lambda reading: reading.value, default=None)


@lru_cache(maxsize=1 << 13)
def _stall(metric: str, kind: int) -> str | None:
    """Return the reason of waiting that a metric counts; None for other metrics.

    >>> _stall("smsp__average_warps_issue_stalled_wait_per_issue_active.ratio", 0)
    'wait'
    """
    match = _STALLS[kind].fullmatch(metric)
    reason = "selected" if match is None else match["reason"]
    # `not_issued` are those of cycles in which nothing was issued, a part of the others.
    return None if reason in _READY or reason.endswith("not_issued") else reason


@lru_cache(maxsize=1 << 13)
def _tensor_basis(name: str) -> str | None:
    """Basis of a tensor pipeline's metric, active or elapsed cycles; None for others."""
    match = _TENSOR.fullmatch(name)
    return None if match is None else match["basis"]


def _fraction(reading: MetricValue | None) -> MetricValue | None:
    """Limited to 0..1: passes of a profiler that differ give a little more than 1."""
    if reading is None:
        return None
    return MetricValue(min(1.0, max(0.0, reading.value)), reading.metric)


_NAN = float("nan")
_BEYOND = 1e30  # counters have 64 bits
_COUNTS = (".sum", ".avg", ".min", ".max")
_OF_THE_LONGEST = ("launch__", "device__")
# end of a ratio -> what it is weighted by, where every launch has that
_WHOLES = {
    L2_HIT: _L2_SECTORS,
    L2_READ_HIT: _L2_READS,
    L1_HIT: "l1tex__t_sectors.sum",
    "_per_issue_active.ratio": "smsp__inst_issued.sum",
    "_per_inst_issued.ratio": "smsp__inst_issued.sum",
    "_per_inst_executed.ratio": "smsp__inst_executed.sum",
    "_sustained_active": SM_ACTIVE,
    ".per_cycle_active": SM_ACTIVE,
}


@dataclass(frozen=True, slots=True)
class MergedLaunches:
    """Measured values of several launches as one; see Kernel. timed: launches with a duration."""

    metrics: dict[str, float]
    seconds: float | None
    timed: int
    longest: Launch
    problems: tuple[str, ...]


def merge_launches(launches: Sequence[Launch]) -> MergedLaunches:
    """Merge the metrics of a kernel's launches; their order is irrelevant.

    Rates, percentages and ratios are weighted by duration; those per active cycle by active cycles,
    hit rates and stalls by sectors and instructions, where every launch has them. Counts (`.sum`,
    `.avg`, `.min`, `.max`) add up: the sum of the highest over the sum of the mean is then their
    ratio over all launches. One that some launches lack is that of the others over their share of
    the time, so that quotients of counts are right, whoever has them. `launch__*` are those of the
    longest. A launch without a duration adds nothing where others have one; where none has, each
    counts alike.
    """
    durations = [duration_s(launch) for launch in launches]
    timed = [pair for pair in zip(durations, launches, strict=True) if pair[0]]
    weighted = timed or [(1.0, launch) for launch in launches]
    weighted.sort(key=lambda pair: (-(pair[0] or 0.0), pair[1].report, pair[1].number))
    counting = [launch for _, launch in weighted]
    weights = np.array([weight for weight, _ in weighted], dtype=np.float64)
    names = sorted({name for launch in counting for name in launch.metrics})
    values = np.array([[launch.metrics.get(name, _NAN) for name in names] for launch in counting])
    means, partial = _means(values, weights, names)
    longest = counting[0].metrics
    metrics = {}
    for name, mean in zip(names, means.tolist(), strict=True):
        value = longest.get(name, _NAN) if name.startswith(_OF_THE_LONGEST) else mean
        if is_measured(value):
            metrics[name] = value
    seconds = float(fsum(weights)) if timed else None
    return MergedLaunches(metrics, seconds, len(timed), counting[0], _problems(durations, partial))


def _means(values: Floats, weights: Floats, names: Sequence[str]) -> tuple[Floats, int]:
    """Return each metric over its launches (NaN: none has it), and how many only some have.

    values: (launches, metrics). weights: of the launches.
    """
    measured = (values >= 0) & (values < _BEYOND)
    values = np.where(measured, values, 0.0)
    weight = held = np.where(measured, weights[:, None], 0.0)
    for whole in set(_WHOLES.values()).intersection(names):
        column = [names.index(whole)]
        weighing = np.where(measured, values[:, column], 0.0)
        parts = np.array([_whole(name) == whole for name in names], dtype=bool)
        # Each launch that has the part has the whole, and that of one is not 0.
        parts &= (measured[:, column] | ~measured).all(axis=0) & (weighing.sum(axis=0) > 0)
        weight = np.where(parts, weighing, weight)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = (values * weight).sum(axis=0) / weight.sum(axis=0)
        # Rounding may lead out of the range of the values.
        least = np.where(measured, values, np.inf).min(axis=0)
        means = np.clip(means, least, values.max(axis=0))
        covered = held.sum(axis=0) / np.broadcast_to(weights[:, None], held.shape).sum(axis=0)
        totals = values.sum(axis=0) / covered
    counts = np.array([name.endswith(_COUNTS) for name in names], dtype=bool)
    some, every = measured.any(axis=0), measured.all(axis=0)
    means = np.where(counts, totals, means)
    return np.where(some, means, np.nan), int((some & ~every).sum())


def is_measured(value: float) -> bool:
    """Return whether a value is plausible: at least 0 and within 64-bit counters.

    >>> is_measured(0.0), is_measured(-1.0), is_measured(float("nan"))
    (True, False, False)
    """
    return 0 <= value < _BEYOND


def duration_s(launch: Launch) -> float | None:
    """Return the duration of a launch in s, or None.

    A duration of zero or less is 0: such a launch adds nothing to any measurement. One beyond
    64-bit counters is unknown.
    """
    duration = launch.metrics.get(DURATION, _NAN)
    return max(0.0, duration * _NS) if -_BEYOND < duration < _BEYOND else None


@lru_cache(maxsize=1 << 13)
def _whole(metric: str) -> str:
    """The metric that `metric` is a share of; "" for time."""
    return next((whole for end, whole in _WHOLES.items() if metric.endswith(end)), "")


def _problems(durations: Sequence[float | None], partial: int) -> tuple[str, ...]:
    """Lines for people: launches, or metrics of them, that could not be used."""
    total, unknown, zero = len(durations), durations.count(None), durations.count(0.0)
    use = "each counts alike" if unknown + zero == total else "their metrics are left out"
    lines = []
    if unknown and total > 1:
        lines.append(f"{unknown} of {total} launches have no duration: {use}")
    if zero:
        lines.append(f"{zero} of {total} launches took no time: {use}")
    if partial:
        lines.append(f"{partial} metrics were collected in some of the launches only")
    return tuple(lines)
