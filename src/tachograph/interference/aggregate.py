"""Metrics of many launches as those of one kernel: rates weighted by time, counts added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite

from tachograph.nsight.launch import Launch

_NS = 1e-9
_DURATIONS = tuple(f"gpu__time_duration.{kind}" for kind in ("sum", "avg", "max"))
_CYCLES = (("gpc__cycles_elapsed.max", "gpc__cycles_elapsed.avg.per_second"),)
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

    metrics: Mapping[str, float]
    coverage: Mapping[str, float]
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
    weights = timed or [(launch, 1.0) for launch in launches]
    longest = min(weights, key=lambda pair: (-pair[1], pair[0].report, pair[0].number))[0]
    whole = fsum(weight for _, weight in weights)
    metrics, coverage = {}, {}
    for metric in sorted({name for launch, _ in weights for name in launch.metrics}):
        holders = [(launch, weight) for launch, weight in weights if isfinite(launch.metrics.get(metric, float("nan")))]
        value = _of_one(longest, metric) if metric.startswith(_OF_THE_LONGEST) else _combined(metric, holders)
        if value is None:
            continue
        metrics[metric] = value
        if len(holders) < len(weights) and not metric.startswith(_OF_THE_LONGEST):
            coverage[metric] = fsum(weight for _, weight in holders) / whole
    seconds = fsum(seconds for _, seconds in timed) if timed else None
    return Together(metrics, coverage, seconds, longest, _problems(durations, coverage))


def duration_s(launch: Launch) -> float | None:
    """Return how long a launch took, in seconds; None: not told. By its cycles and their clock where no time is told.

    A duration of zero or less is 0: such a launch took part in nothing that could be measured.
    """
    for metric in _DURATIONS:
        if isfinite(value := launch.metrics.get(metric, float("nan"))):
            return max(0.0, value * _NS)
    for cycles, clock in _CYCLES:
        elapsed, per_second = launch.metrics.get(cycles), launch.metrics.get(clock)
        if elapsed is not None and per_second is not None and per_second > 0 and isfinite(elapsed / per_second):
            return max(0.0, elapsed / per_second)
    return None


def _of_one(launch: Launch, metric: str) -> float | None:
    value = launch.metrics.get(metric)
    return value if value is not None and isfinite(value) else None


def _combined(metric: str, holders: Sequence[tuple[Launch, float]]) -> float | None:
    if not holders:
        return None
    values = [launch.metrics[metric] for launch, _ in holders]
    if metric.endswith(_COUNTS):
        return fsum(values)
    weights = _shares(metric, [launch for launch, _ in holders]) or [weight for _, weight in holders]
    mean = fsum(value * weight for value, weight in zip(values, weights, strict=True)) / fsum(weights)
    return min(max(values), max(min(values), mean))  # rounding leads out of where the values are


def _shares(metric: str, launches: Sequence[Launch]) -> list[float] | None:
    """How much of what `metric` is a share of each launch has; None where one does not tell, or there is nothing."""
    whole = _WHOLES.get(metric) or next(
        (name for suffix, name in _WHOLES_BY_SUFFIX.items() if metric.endswith(suffix)), None
    )
    if whole is None:
        return None
    weights = [launch.metrics.get(whole, float("nan")) for launch in launches]
    usable = all(isfinite(weight) and weight >= 0 for weight in weights) and fsum(weights) > 0
    return weights if usable else None


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
