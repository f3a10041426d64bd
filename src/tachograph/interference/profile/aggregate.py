"""Metrics of many launches as those of one kernel: rates weighted by time, counts added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import fsum, isfinite
from operator import mul

from tachograph.nsight.launch import Launch
from tachograph.nsight.measured import Columns

_NS = 1e-9
_NAN = float("nan")
_BEYOND = 1e30  # counters have 64 bits
_DURATIONS = tuple(f"gpu__time_duration.{kind}" for kind in ("sum", "avg", "max"))
_CYCLES, _CLOCK = "gpc__cycles_elapsed.max", "gpc__cycles_elapsed.avg.per_second"
_COUNTS = (".sum", ".avg", ".min", ".max")
_OF_THE_LONGEST = ("launch__", "device__")
_WHILE_ACTIVE = ("_sustained_active", ".per_cycle_active")
# a ratio is weighted by what it is a share of, where every launch tells that
_WHOLES = {
    "lts__t_sector_hit_rate.pct": "lts__t_sectors.sum",
    "l1tex__t_sector_hit_rate.pct": "l1tex__t_sectors.sum",
}
_WHOLES_BY_SUFFIX = {
    "_per_issue_active.ratio": "smsp__inst_issued.sum",
    "_per_inst_issued.ratio": "smsp__inst_issued.sum",
    "_per_inst_executed.ratio": "smsp__inst_executed.sum",
    **dict.fromkeys(_WHILE_ACTIVE, "sm__cycles_active.avg"),
}


@dataclass(frozen=True, slots=True)
class Together:
    """What launches were measured to do, taken together; see Kernel for the fields."""

    metrics: dict[str, float]
    coverage: dict[str, float]
    seconds: float | None
    longest: Launch
    problems: tuple[str, ...]


def together(launches: Sequence[Launch]) -> Together:
    """Return the metrics of launches of one kernel as one: the order of launches does not matter.

    Rates, percentages and ratios are weighted by duration; those per active cycle by active cycles, hit rates and
    stalls by sectors and instructions, where every launch tells them. Counts (`.sum`, `.avg`, `.min`, `.max`) add up:
    the sum of the highest over the sum of the mean is then their ratio over all launches. `launch__*` are those of the
    longest. A launch without a duration adds nothing where others have one; where none has, each counts alike.

    Errors: ValueError without launches.
    """
    if not launches:
        raise ValueError("no launches: there is no kernel")
    durations = [duration_s(launch) for launch in launches]
    timed = [(launch, seconds) for launch, seconds in zip(launches, durations, strict=True) if seconds]
    weighted = timed or [(launch, 1.0) for launch in launches]
    longest = min(weighted, key=lambda pair: (-pair[1], pair[0].report, pair[0].number))[0]
    seconds = fsum(seconds for _, seconds in timed) if timed else None
    if len(weighted) == 1:
        told = {name: value for name, value in sorted(longest.metrics.items()) if is_measured(value)}
        return Together(told, {}, seconds, longest, _problems(durations, {}))
    means = _Means(Columns([launch.metrics for launch, _ in weighted]), [weight for _, weight in weighted])
    metrics, coverage = {}, {}
    for metric in sorted(means.columns.names()):
        if metric.startswith(_OF_THE_LONGEST):
            if is_measured(value := longest.metrics.get(metric, _NAN)):
                metrics[metric] = value
        elif (found := means.of(metric)) is not None:
            metrics[metric], covered = found
            if covered is not None:
                coverage[metric] = covered
    return Together(metrics, coverage, seconds, longest, _problems(durations, coverage))


def is_measured(value: float) -> bool:
    """Return whether a value is one that a profiler measures: no metric is below 0, or beyond all counting.

    >>> is_measured(0.0), is_measured(-1.0), is_measured(float("nan"))
    (True, False, False)
    """
    return 0 <= value < _BEYOND


def duration_s(launch: Launch) -> float | None:
    """Return how long a launch took, in seconds; None: not told. By its cycles and their clock where no time is told.

    A duration of zero or less is 0: such a launch took part in nothing that could be measured. One beyond all counting
    is not told.
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
    """Metrics of launches, one by one; what others are shares of is looked up once."""

    columns: Columns
    weights: list[float]
    _shares: dict[str, list[float]] = field(default_factory=dict)

    def of(self, metric: str) -> tuple[float, float | None] | None:
        """Return the metric of all launches that have it, and the fraction of the weight of these, None: all have it.

        None: no launch has it.
        """
        values = self.columns[metric]
        if _all_measured(values):
            return self._combined(metric, values, None), None
        holders = [place for place, value in enumerate(values) if is_measured(value)]
        if not holders:
            return None
        covered = fsum(_at(self.weights, holders)) / fsum(self.weights)
        return self._combined(metric, _at(values, holders), holders), covered

    def _combined(self, metric: str, values: Sequence[float], holders: Sequence[int] | None) -> float:
        """The values of one metric as one; `holders`: the places of the launches that have it, None: all have it."""
        if len(values) == 1:
            return values[0]
        if metric.endswith(_COUNTS):
            return fsum(values)
        weights = self._weights(_whole(metric), holders)
        mean = fsum(map(mul, values, weights)) / fsum(weights)
        return min(max(values), max(min(values), mean))  # rounding leads out of where the values are

    def _weights(self, whole: str, holders: Sequence[int] | None) -> Sequence[float]:
        """How much of `whole` each holder has; its weight where one of them does not tell, or there is nothing."""
        if whole:
            if whole not in self._shares:
                self._shares[whole] = self.columns[whole]
            shares = _at(self._shares[whole], holders)
            if _all_measured(shares) and fsum(shares) > 0:
                return shares
        return _at(self.weights, holders)


def _at(values: Sequence[float], places: Sequence[int] | None) -> Sequence[float]:
    return values if places is None else [values[place] for place in places]


def _all_measured(values: Sequence[float]) -> bool:
    """Whether there are values, and each is one that a profiler measures: a look at all in a moment.

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


def _problems(durations: Sequence[float | None], coverage: Mapping[str, float]) -> tuple[str, ...]:
    """Lines for people: what of the launches could not be used."""
    total, untold, zero = len(durations), durations.count(None), sum(seconds == 0 for seconds in durations)
    timed = total - untold - zero
    lines = []
    if not timed and total > 1:
        lines.append(f"none of {total} launches tells how long it took: each counts alike")
    if not timed and zero:
        lines.append(f"{zero} of {total} launches took no time: their metrics may mean nothing")
    if timed and untold:
        lines.append(f"{untold} of {total} launches tell no duration: counted, their metrics left out")
    if timed and zero:
        lines.append(f"{zero} of {total} launches took no time: counted, their metrics left out")
    if coverage:
        lines.append(f"{len(coverage)} metrics were collected in some of the launches only")
    return tuple(lines)
