"""Metrics of Nsight Compute: merged over launches, and as fractions of resources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import fsum, isfinite
from operator import mul
from types import MappingProxyType

from tachograph.annexes.share.demand import PIPES, GpuCapacity
from tachograph.annexes.share.nsight.launches import Launch

_ACTIVE, _ELAPSED = "avg.pct_of_peak_sustained_active", "avg.pct_of_peak_sustained_elapsed"
ISSUED = "sm__inst_issued.avg.per_cycle_active"
WARP = 32  # threads
OCCUPANCY = f"sm__warps_active.{_ACTIVE}"
POSSIBLE = "sm__maximum_warps_per_active_cycle_pct"  # occupancy that the blocks allow
DRAM = "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_BYTES = "dram__bytes.sum.per_second"
DURATION = "gpu__time_duration.sum"  # ns
SECTOR = 32.0  # bytes
_NS_IN_S = 1e9
L2_HIT, L1_HIT = "lts__t_sector_hit_rate.pct", "l1tex__t_sector_hit_rate.pct"
L2_READ_HIT = "lts__t_sector_op_read_hit_rate.pct"
_L2_SECTORS, _L2_READS = "lts__t_sectors.sum", "lts__t_sectors_op_read.sum"
L2_BUSY = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
L1_BUSY = f"l1tex__throughput.{_ACTIVE}"
THREADS = "smsp__thread_inst_executed_per_inst_executed.ratio"
SM_ACTIVE, SM_ACTIVE_MIN, SM_ACTIVE_MAX = (
    f"sm__cycles_active.{kind}" for kind in ("avg", "min", "max")
)
# the SMs' own clock first; one of these is the length of a launch in cycles
ELAPSED = ("sm__cycles_elapsed.max", "gpc__cycles_elapsed.max", "sm__cycles_elapsed.avg")
# what people call a pipeline
PIPE_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "alu": "ALU",
        "fma": "FMA",
        "fp16": "FP16",
        "fp64": "FP64",
        "lsu": "LSU",
        "tensor": "tensor",
        "tex": "TEX",
        "uniform": "uniform",
        "xu": "XU",
    }
)

_TENSOR = re.compile(
    r"sm__(?:inst_executed_pipe_tensor\w*|pipe_tensor\w*_cycles_active)\.(?P<of>.+)"
)
_STALL = re.compile(
    r"smsp__average_warps_issue_stalled_(?P<ratio>\w+)_per_issue_active\.ratio"
    r"|smsp__average_warp_latency_issue_stalled_(?P<latency>\w+)\.ratio"
    r"|smsp__warp_issue_stalled_(?P<share>\w+)_per_warp_active\.pct"
)
# no waiting: the warp that issues, and those that could have
_READY = frozenset({"selected", "not_selected"})
# waits that differ in length from time to time: for memory, for other warps, for instructions
IRREGULAR_STALLS = frozenset(
    {
        *("barrier", "drain", "imc_miss", "lg_throttle", "long_scoreboard", "membar"),
        *(
            "mio_throttle",
            "no_instruction",
            "no_instructions",
            "short_scoreboard",
            "sleeping",
            "tex_throttle",
        ),
    }
)
# without one of these, shares of the waiting would depend on the collected reasons; every chip has
# them
_CORE_STALLS = frozenset(
    {
        *(
            "barrier",
            "drain",
            "lg_throttle",
            "long_scoreboard",
            "math_pipe_throttle",
            "membar",
            "mio_throttle",
        ),
        *("short_scoreboard", "sleeping", "tex_throttle", "wait"),
    }
)


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A value, and the metric that it was read from."""

    value: float
    metric: str


def readings(metrics: Mapping[str, float], gpu: GpuCapacity) -> dict[str, MetricValue]:
    """Return {quantity: value and its metric} of a kernel, as far as is measured.

    The quantities are those of `demand.CYCLES`, `dram`, `l2_bandwidth`, hits in caches, bytes per
    second, resident warps, and the share of the SMs' time.

    >>> list(readings({ISSUED: 3.0, DRAM: 42.0}, GpuCapacity(name="H100")))
    ['issue', 'dram']
    """
    known = {
        "issue": issue(metrics, gpu),
        **pipes(metrics),
        "dram": dram(metrics, gpu),
        "l2_bandwidth": share(metrics, L2_BUSY),
        "l1_bandwidth": l1_bandwidth(metrics),
        "l2_hit": l2_reuse(metrics),
        "l1_hit": share(metrics, L1_HIT),
        "l2_bytes_per_s": l2_traffic(metrics),
        "dram_bytes_per_s": traffic(metrics),
        "warps": warps(metrics, gpu),
        "occupancy": occupancy(metrics, gpu),
        "sm_share": sm_share(metrics),
    }
    return {name: reading for name, reading in known.items() if reading is not None}


def pipe_metric(pipe: str) -> str:
    """Return the metric of a pipeline: instructions executed there, of the maximum.

    >>> pipe_metric("fma")
    'sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active'
    """
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


def issue(metrics: Mapping[str, float], gpu: GpuCapacity) -> MetricValue | None:
    """Return the fraction of issue slots that were used, while a warp was on the SM.

    >>> issue({ISSUED: 3.0}, GpuCapacity(name="H100"))
    MetricValue(value=0.75, metric='sm__inst_issued.avg.per_cycle_active')
    """
    return _fraction(
        first(
            metrics,
            {
                ISSUED: 1 / gpu.schedulers,
                f"sm__inst_issued.{_ACTIVE}": 0.01,
                "smsp__inst_issued.avg.per_cycle_active": 1.0,
                "sm__issue_active.avg.per_cycle_active": 1 / gpu.schedulers,
                f"sm__issue_active.{_ACTIVE}": 0.01,
                "smsp__issue_active.avg.per_cycle_active": 1.0,
                f"smsp__issue_active.{_ACTIVE}": 0.01,
                f"smsp__inst_issued.{_ACTIVE}": 0.01,
            },
        )
    )


def pipes(metrics: Mapping[str, float]) -> dict[str, MetricValue]:
    """Return {pipeline of PIPES: fraction of peak while a warp was resident}, if measured.

    A metric of the whole time only is divided by the share of it that a warp was on the SMs.

    >>> pipes({pipe_metric("fma"): 60.0})["fma"].value
    0.6
    >>> half = {SM_ACTIVE: 50.0, ELAPSED[0]: 100.0}
    >>> pipes({"sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed": 30.0} | half)["fma"].value
    0.6
    """
    active = {pipe: _pipe(metrics, pipe) or _pipe_of_elapsed(metrics, pipe) for pipe in PIPES}
    return {pipe: reading for pipe, reading in active.items() if reading is not None}


def dram(metrics: Mapping[str, float], gpu: GpuCapacity) -> MetricValue | None:
    """Return the fraction of peak DRAM bandwidth; from traffic if the GPU's peak is known.

    >>> dram({DRAM: 42.0}, GpuCapacity(name="H100")).value
    0.42
    """
    known = first(metrics, {DRAM: 0.01, "dram__throughput.avg.pct_of_peak_sustained_elapsed": 0.01})
    moved = traffic(metrics) if known is None and gpu.dram_bytes_per_s else None
    if moved is not None and gpu.dram_bytes_per_s:
        known = MetricValue(moved.value / gpu.dram_bytes_per_s, moved.metric)
    return _fraction(known)


def traffic(metrics: Mapping[str, float]) -> MetricValue | None:
    """Return byte/s with DRAM, as reported or by bytes and time.

    >>> traffic({"dram__bytes.sum": 3000.0, DURATION: 1000.0})
    MetricValue(value=3000000000.0, metric='dram__bytes.sum / gpu__time_duration.sum')
    """
    known = first(metrics, {DRAM_BYTES: 1.0})
    whole, took = "dram__bytes.sum", metrics.get(DURATION)
    if known is not None or whole not in metrics or not took or not isfinite(took):
        return known
    return MetricValue(metrics[whole] / took * _NS_IN_S, f"{whole} / {DURATION}")


def l2_traffic(metrics: Mapping[str, float]) -> MetricValue | None:
    """Return byte/s read from and written to L2, reported or sectors over time; see `traffic`.

    >>> l2_traffic({"lts__t_sectors.sum": 1000.0, DURATION: 1000.0})
    MetricValue(value=32000000000.0, metric='lts__t_sectors.sum / gpu__time_duration.sum')
    """
    known = first(
        metrics, {"lts__t_bytes.sum.per_second": 1.0, "lts__t_sectors.sum.per_second": SECTOR}
    )
    took = metrics.get(DURATION)
    if known is not None or not took or not isfinite(took):
        return known
    for whole, size in (("lts__t_bytes.sum", 1.0), ("lts__t_sectors.sum", SECTOR)):
        if whole in metrics:
            return MetricValue(metrics[whole] * size / took * _NS_IN_S, f"{whole} / {DURATION}")
    return None


def l2_reuse(metrics: Mapping[str, float]) -> MetricValue | None:
    """Return an upper bound of the share of L2 sectors a kernel reuses; None: not collected.

    It is read, and found there. Stores hit L2 whether or not anything comes back to them, and what
    passes to DRAM anyway is not found again, so that a stream of stores does not live on L2.

    >>> stores = {L2_HIT: 99.0, L2_READ_HIT: 90.0, _L2_READS: 10.0, _L2_SECTORS: 1000.0}
    >>> round(l2_reuse(stores).value, 3), l2_reuse({L2_HIT: 55.0}).value
    (0.009, 0.55)
    """
    whole, reads = metrics.get(_L2_SECTORS), metrics.get(_L2_READS)
    hits = [share(metrics, metric) for metric in (L2_READ_HIT, L2_HIT)]
    known = [hit for hit in hits if hit is not None]
    if not known or not whole:
        return min(known, key=lambda hits: hits.value, default=None)
    if known[0].metric == L2_READ_HIT and reads is not None:
        known.append(
            MetricValue(
                known[0].value * reads / whole, f"{L2_READ_HIT} x {_L2_READS} / {_L2_SECTORS}"
            )
        )
    if "dram__bytes.sum" in metrics:
        again = 1.0 - metrics["dram__bytes.sum"] / (whole * SECTOR)
        known.append(MetricValue(max(again, 0.0), f"1 - dram__bytes.sum / {_L2_SECTORS}"))
    return min(known, key=lambda hits: hits.value)


def l1_bandwidth(metrics: Mapping[str, float]) -> MetricValue | None:
    """Return the fraction of L1 throughput, with shared memory and its bank conflicts.

    The unit's own throughput, or its data stage, where that is higher: each wavefront of a load, a
    store or shared memory takes one of its cycles.

    >>> l1_bandwidth({L1_BUSY: 40.0, f"l1tex__data_pipe_lsu_wavefronts.{_ACTIVE}": 60.0}).value
    0.6
    """
    named = (
        L1_BUSY,
        *(f"l1tex__data_pipe_lsu_wavefronts{of}.{_ACTIVE}" for of in ("", "_mem_shared")),
    )
    return _busiest(metrics, named)


def share(metrics: Mapping[str, float], metric: str) -> MetricValue | None:
    """Return a percentage as a fraction: hit rate (L1_HIT) or activity (L1_BUSY) of a cache.

    >>> share({L2_HIT: 55.0}, L2_HIT).value
    0.55
    """
    return _fraction(first(metrics, {metric: 0.01}))


def occupancy(metrics: Mapping[str, float], gpu: GpuCapacity) -> MetricValue | None:
    """Return the fraction of an SM's warp slots in use, while it had a warp.

    >>> occupancy({OCCUPANCY: 6.25}, GpuCapacity(name="H100")).value
    0.0625
    """
    scales = {OCCUPANCY: 0.01}
    if gpu.threads_per_sm:
        scales["sm__warps_active.avg.per_cycle_active"] = WARP / gpu.threads_per_sm
    return _fraction(first(metrics, scales))


def warps(metrics: Mapping[str, float], gpu: GpuCapacity) -> MetricValue | None:
    """Return the warps resident on one scheduler, mean.

    >>> warps({"sm__warps_active.avg.per_cycle_active": 4.0}, GpuCapacity(name="H100")).value
    1.0
    """
    scales = {
        "sm__warps_active.avg.per_cycle_active": 1 / gpu.schedulers,
        "smsp__warps_active.avg.per_cycle_active": 1,
    }
    if gpu.threads_per_sm:
        scales[OCCUPANCY] = gpu.threads_per_sm / WARP / gpu.schedulers / 100
    return first(metrics, scales)


def stalls(metrics: Mapping[str, float]) -> dict[str, float] | None:
    """Return {reason: share of the waiting time}; None if important reasons are missing.

    A warp that issues, or could, does not wait. Nothing waits: an empty mapping.
    """
    for kind in ("ratio", "share", "latency"):
        known = _stalls_of_kind(metrics, kind)
        if known.keys() >= _CORE_STALLS:
            whole = sum(known.values())
            return {reason: value / whole for reason, value in known.items()} if whole > 0 else {}
    return None


def irregular(metrics: Mapping[str, float], gpu: GpuCapacity) -> float | None:
    """Return the irregular fraction of stalls; None: stall reasons were not collected.

    A kernel that was measured to touch no memory (under 1 % of DRAM and of the load/store pipeline)
    has none: 0.
    """
    shares = stalls(metrics)
    if shares is not None:
        return min(
            1.0, sum(share for reason, share in shares.items() if reason in IRREGULAR_STALLS)
        )
    memory = (dram(metrics, gpu), _pipe(metrics, "lsu"))
    untouched = all(reading is not None and reading.value < _NO_MEMORY for reading in memory)
    return 0.0 if untouched else None


_NO_MEMORY = 0.01


def sm_share(metrics: Mapping[str, float]) -> MetricValue | None:
    """Return the fraction of the SMs' time that a warp was on them."""
    active = metrics.get(SM_ACTIVE)
    for metric in ELAPSED:
        elapsed = metrics.get(metric)
        if active is not None and elapsed is not None and elapsed > 0:
            return _fraction(MetricValue(active / elapsed, f"{SM_ACTIVE} / {metric}"))
    return None


def _pipe(metrics: Mapping[str, float], pipe: str, of: str = _ACTIVE) -> MetricValue | None:
    if pipe == "tensor":
        return _busiest(metrics, (name for name in metrics if _tensor_of(name) == of))
    counts = (f"sm__inst_executed_pipe_{pipe}", f"sm__pipe_{pipe}_cycles_active")
    return _fraction(first(metrics, {f"{count}.{of}": 0.01 for count in counts}))


def _pipe_of_elapsed(metrics: Mapping[str, float], pipe: str) -> MetricValue | None:
    elapsed = _pipe(metrics, pipe, _ELAPSED)
    busy = sm_share(metrics) if elapsed is not None else None
    if elapsed is None or busy is None or busy.value <= 0:
        return None
    return _fraction(MetricValue(elapsed.value / busy.value, f"{elapsed.metric} / ({busy.metric})"))


def _busiest(metrics: Mapping[str, float], names: Iterable[str]) -> MetricValue | None:
    """An instruction of a tensor pipeline takes many cycles there: the higher of count and
    cycles.
    """
    readings = [first(metrics, {name: 0.01}) for name in sorted(names)]
    known = [reading for reading in readings if reading is not None]
    return _fraction(max(known, key=lambda reading: reading.value, default=None))


def _stalls_of_kind(metrics: Mapping[str, float], kind: str) -> dict[str, float]:
    """{reason: as reported}, without the subset of cycles in which nothing was issued."""
    named = ((metric, _stall_of(metric)) for metric in metrics)
    known = {
        stall[1]: metrics[metric]
        for metric, stall in named
        if stall is not None and stall[0] == kind
    }
    return {reason: max(0.0, value) for reason, value in known.items() if isfinite(value)}


@lru_cache(maxsize=4096)
def _stall_of(metric: str) -> tuple[str, str] | None:
    """(kind of metric, stall reason); None for other metrics.

    >>> _stall_of("smsp__average_warps_issue_stalled_wait_per_issue_active.ratio")
    ('ratio', 'wait')
    """
    found = _STALL.fullmatch(metric)
    if found is None or found.lastgroup is None:
        return None
    reason = found[found.lastgroup]
    return None if reason in _READY or reason.endswith("not_issued") else (found.lastgroup, reason)


@lru_cache(maxsize=4096)
def _tensor_of(metric: str) -> str | None:
    """Basis of a tensor pipeline's metric, active or elapsed cycles; None for others."""
    found = _TENSOR.fullmatch(metric)
    return None if found is None else found["of"]


def _fraction(reading: MetricValue | None) -> MetricValue | None:
    """Limited to 0..1: passes of a profiler that differ give a little more than 1."""
    return (
        None if reading is None else MetricValue(min(1.0, max(0.0, reading.value)), reading.metric)
    )


_NS = 1e-9
_NAN = float("nan")
_BEYOND = 1e30  # counters have 64 bits
_DURATIONS = tuple(f"gpu__time_duration.{kind}" for kind in ("sum", "avg", "max"))
_CYCLES, _CLOCK = "gpc__cycles_elapsed.max", "gpc__cycles_elapsed.avg.per_second"
_COUNTS = (".sum", ".avg", ".min", ".max")
_OF_THE_LONGEST = ("launch__", "device__")
_WHILE_ACTIVE = ("_sustained_active", ".per_cycle_active")
# a ratio is weighted by its whole, where every launch has that
_WHOLES = {
    L2_HIT: _L2_SECTORS,
    L2_READ_HIT: _L2_READS,
    L1_HIT: "l1tex__t_sectors.sum",
}
_WHOLES_BY_SUFFIX = {
    "_per_issue_active.ratio": "smsp__inst_issued.sum",
    "_per_inst_issued.ratio": "smsp__inst_issued.sum",
    "_per_inst_executed.ratio": "smsp__inst_executed.sum",
    **dict.fromkeys(_WHILE_ACTIVE, "sm__cycles_active.avg"),
}


@dataclass(frozen=True, slots=True)
class MergedLaunches:
    """Measured values of several launches as one; see Kernel for the fields."""

    metrics: dict[str, float]
    seconds: float | None
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

    Errors: ValueError without launches.
    """
    if not launches:
        raise ValueError("no launches, so there is no kernel")
    durations = [duration_s(launch) for launch in launches]
    timed = [
        (launch, seconds) for launch, seconds in zip(launches, durations, strict=True) if seconds
    ]
    weighted = timed or [(launch, 1.0) for launch in launches]
    longest = min(weighted, key=lambda pair: (-pair[1], pair[0].report, pair[0].number))[0]
    seconds = fsum(seconds for _, seconds in timed) if timed else None
    of_launches = [launch.metrics for launch, _ in weighted]
    means = _Means(of_launches, [weight for _, weight in weighted])
    metrics: dict[str, float] = {}
    for metric in sorted(set[str]().union(*of_launches)):
        value: float | None
        if metric.startswith(_OF_THE_LONGEST):
            value = longest.metrics.get(metric, _NAN)
            value = value if is_measured(value) else None
        else:
            value = means.of(metric)
        if value is not None:
            metrics[metric] = value
    return MergedLaunches(metrics, seconds, longest, _problems(durations, means.partial))


def is_measured(value: float) -> bool:
    """Return whether a value is plausible: at least 0 and within 64-bit counters.

    >>> is_measured(0.0), is_measured(-1.0), is_measured(float("nan"))
    (True, False, False)
    """
    return 0 <= value < _BEYOND


def duration_s(launch: Launch) -> float | None:
    """Return the duration of a launch in s, from cycles and clock if not reported; or None.

    A duration of zero or less is 0: such a launch adds nothing to any measurement. One beyond
    64-bit counters is unknown.
    """
    for metric in _DURATIONS:
        if -_BEYOND < (value := launch.metrics.get(metric, _NAN)) < _BEYOND:
            return max(0.0, value * _NS)
    elapsed, per_second = launch.metrics.get(_CYCLES, _NAN), launch.metrics.get(_CLOCK, _NAN)
    if not (elapsed < _BEYOND and 0 < per_second < _BEYOND and elapsed / per_second < _BEYOND):
        return None
    return max(0.0, elapsed / per_second)


@dataclass(slots=True)
class _Means:
    """Weighted means of launch metrics; totals of shares are cached.

    partial: how many metrics only some of the launches have.
    """

    launches: Sequence[Mapping[str, float]]
    weights: list[float]
    partial: int = 0
    _shares: dict[str, list[float]] = field(default_factory=dict)

    def of(self, metric: str) -> float | None:
        """Return the metric over launches that have it; None: no launch has it."""
        values = self._values(metric)
        if _all_measured(values):
            return self._combined(metric, values, None)
        holders = [place for place, value in enumerate(values) if is_measured(value)]
        if not holders:
            return None
        self.partial += 1
        covered = fsum(_at(self.weights, holders)) / fsum(self.weights)
        found = self._combined(metric, _at(values, holders), holders)
        return found / covered if metric.endswith(_COUNTS) and covered > 0 else found

    def _values(self, metric: str) -> list[float]:
        return [metrics.get(metric, _NAN) for metrics in self.launches]

    def _combined(
        self, metric: str, values: Sequence[float], holders: Sequence[int] | None
    ) -> float:
        """Combined value of one metric; `holders`: indices of launches that have it, None: all."""
        if len(values) == 1:
            return values[0]
        if metric.endswith(_COUNTS):
            return fsum(values)
        weights = self._weights(_whole(metric), holders)
        mean = fsum(map(mul, values, weights)) / fsum(weights)
        # Rounding may lead out of the range of the values.
        return min(max(values), max(min(values), mean))

    def _weights(self, whole: str, holders: Sequence[int] | None) -> Sequence[float]:
        """Share of `whole` per holder; by weight if one does not report it, or all are 0."""
        if whole:
            if whole not in self._shares:
                self._shares[whole] = self._values(whole)
            shares = _at(self._shares[whole], holders)
            if _all_measured(shares) and fsum(shares) > 0:
                return shares
        return _at(self.weights, holders)


def _at(values: Sequence[float], places: Sequence[int] | None) -> Sequence[float]:
    return values if places is None else [values[place] for place in places]


def _all_measured(values: Sequence[float]) -> bool:
    """Whether there are values and all are plausible: a fast check of a column.

    >>> _all_measured([0.0, 1.0]), _all_measured([1.0, float("nan")]), _all_measured([])
    (True, False, False)
    """
    return bool(values) and isfinite(sum(values)) and min(values) >= 0 and max(values) < _BEYOND


@lru_cache(maxsize=4096)
def _whole(metric: str) -> str:
    """The metric that `metric` is a share of; "" for time."""
    if metric in _WHOLES:
        return _WHOLES[metric]
    return next((name for suffix, name in _WHOLES_BY_SUFFIX.items() if metric.endswith(suffix)), "")


def _problems(durations: Sequence[float | None], partial: int) -> tuple[str, ...]:
    """Lines for people: launches, or metrics of them, that could not be used."""
    total, unknown, zero = (
        len(durations),
        durations.count(None),
        sum(seconds == 0 for seconds in durations),
    )
    timed = total - unknown - zero
    lines = []
    if not timed and total > 1:
        lines.append(f"none of {total} launches has a duration: each counts alike")
    if not timed and zero:
        lines.append(f"{zero} of {total} launches took no time: their metrics may mean nothing")
    if timed and unknown:
        lines.append(
            f"{unknown} of {total} launches have no duration: counted, their metrics left out"
        )
    if timed and zero:
        lines.append(f"{zero} of {total} launches took no time: counted, their metrics left out")
    if partial:
        lines.append(f"{partial} metrics were collected in some of the launches only")
    return tuple(lines)
