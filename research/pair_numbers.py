"""Numbers of pairs of kernels: pure functions of what was measured and predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

from tachograph.annexes.share.demand import Calibration, Demand, GpuCapacity
from tachograph.annexes.share.estimate import estimate
from tachograph.annexes.share.kernels import kernels_of
from tachograph.annexes.share.mixes import bounds_of_mixes, corun_bounds, mix
from tachograph.annexes.share.nsight.launches import Launch
from tachograph.catalog.config import InterferenceOptions

MATTERS = 1.2  # a slowdown from which on nobody would call a pair safe


@dataclass(frozen=True, slots=True)
class PairCheck:
    """One kernel beside another: measured and predicted slowdown, the interval predicted, whether
    the pair is safe.

    largest_sum: of the demands of both, weighted as slowdowns are.
    """

    name: str
    beside: str
    measured: float
    predicted: float | None
    low: float | None
    high: float | None
    safe: bool
    unknown: tuple[str, ...] = ()
    largest_sum: float | None = None

    @property
    def error(self) -> float | None:
        """Relative error of what is predicted."""
        return None if self.predicted is None else self.predicted / self.measured - 1.0

    @property
    def covered(self) -> bool | None:
        """Whether the measured slowdown lies in the interval."""
        if self.low is None or self.high is None:
            return None
        return self.low <= self.measured <= self.high


def demands_of(
    launches: Sequence[Launch], step_s: float | None = None
) -> tuple[GpuCapacity, list[tuple[float, Demand]]]:
    """Return the GPU, and (share of the time, demand) of each kernel of a profiled step.

    `step_s`: how long a step takes alone without a profiler, which is divided among its kernels.
    Errors: ValueError where the report has no times.
    """
    found = kernels_of(launches)
    known = [kernel.demand.seconds for kernel in found if kernel.demand.seconds is not None]
    whole = sum(known)
    if not known or len(known) < len(found) or whole <= 0:
        raise ValueError("the report has no times of kernels")
    longer = 1.0 if step_s is None else step_s / whole
    return found[0].gpu, [
        (seconds / whole, replace(kernel.demand, launch_s=longer * seconds / kernel.launches))
        for seconds, kernel in zip(known, found, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class StepsTogether:
    """What is predicted of a step beside another, both repeated.

    low, high: the interval. largest_sum: of the demands of both. safe: all pairs of their kernels
    are.
    """

    slowdown: float
    low: float
    high: float
    largest_sum: float
    safe: bool
    unknown: tuple[str, ...]


def largest_rate(sums: Mapping[str, float]) -> float:
    """Return the largest sum of demands of a pair, of all but what caches hold, which is no rate."""
    return max((total for name, total in sums.items() if name not in ("l2", "l1")), default=0.0)


def predicted(
    own: Sequence[tuple[float, Demand]],
    beside: Sequence[tuple[float, Demand]],
    gpu: GpuCapacity,
    by: Calibration,
) -> StepsTogether:
    """Return what is predicted of steps that are repeated side by side."""
    one, other = (mix([demand for _, demand in step], [share for share, _ in step], name="step")
                  for step in (own, beside))  # fmt: skip
    law = partial(corun_bounds, gpu=gpu, calibration=by, settings=InterferenceOptions())
    found = bounds_of_mixes([one], [other], law)
    largest_sum, safe, unknown = 0.0, True, dict[str, None]()
    for share, kernel in own:
        for other_share, met in beside:
            pair = estimate((kernel, met), gpu=gpu, calibration=by)
            largest_sum += share * other_share * largest_rate(pair.sums)
            safe = safe and pair.safe
            unknown |= dict.fromkeys(pair.unknown)
    return StepsTogether(
        slowdown=float(found.slowdown[0, 0]),
        low=float(found.low[0, 0]),
        high=float(found.high[0, 0]),
        largest_sum=largest_sum,
        safe=safe,
        unknown=tuple(unknown),
    )


def step_seconds(pair: Mapping[str, Any]) -> tuple[float, float]:
    """Return the time of a step of each kernel of a measured pair alone, the median of its runs."""
    first, second = (median(run["alone_s"][place] for run in pair["runs"]) for place in (0, 1))
    return first, second


def checks(
    pairs: Sequence[Mapping[str, Any]], reports: Mapping[str, Sequence[Launch]], by: Calibration
) -> list[PairCheck]:
    """Return a check of each kernel of each measured pair; without a report of both, nothing is
    predicted.
    """
    found = []
    for one in pairs:
        alone = dict(zip(one["pair"], step_seconds(one), strict=True))
        missing = tuple(
            f"{name} was not profiled" for name in sorted(set(one["pair"]) - set(reports))
        )
        for own, beside, slower in zip(
            one["pair"], reversed(one["pair"]), one["slowdowns"], strict=True
        ):
            if missing:
                found.append(PairCheck(own, beside, slower, None, None, None, False, missing))
                continue
            gpu, mine = demands_of(reports[own], alone[own])
            _, theirs = demands_of(reports[beside], alone[beside])
            steps = predicted(mine, theirs, gpu, by)
            found.append(
                PairCheck(
                    name=own,
                    beside=beside,
                    measured=slower,
                    predicted=steps.slowdown,
                    low=steps.low,
                    high=steps.high,
                    safe=steps.safe,
                    unknown=steps.unknown,
                    largest_sum=steps.largest_sum,
                )
            )
    return found


def ends_of_launches(
    seconds: tuple[float, float], slowdowns: tuple[float, float]
) -> tuple[float, float]:
    """Return when two launches end that begin at once, of slowdowns while both run: the later one
    runs alone once the other has ended.

    >>> ends_of_launches((1.0, 1.0), (1.0, 20.0)), ends_of_launches((1.0, 3.0), (2.0, 2.0))
    ((1.0, 1.95), (2.0, 4.0))
    """
    together = [time * slower for time, slower in zip(seconds, slowdowns, strict=True)]
    first = 0 if together[0] <= together[1] else 1
    end = together[first]
    last = 1 - first
    ends = [end, end]
    ends[last] = end + max(seconds[last] - end / slowdowns[last], 0.0)
    return ends[0], ends[1]


@dataclass(frozen=True, slots=True)
class PairErrors:
    """Errors over checks with a prediction; None where there is none.

    coverage: share of measured slowdowns in the interval; width: median of its upper end over what
    was measured. wrongly_safe: kernels in pairs that are called safe and were slowed by `MATTERS`
    or more.
    """

    checked: int
    mean_error: float | None
    worst_error: float | None
    coverage: float | None
    width: float | None
    wrongly_safe: int


def pair_errors(found: Sequence[PairCheck]) -> PairErrors:
    """Return the errors of the model.

    >>> rows = [PairCheck("a", "b", 1.5, 1.2, 1.0, 1.4, True), PairCheck("b", "a", 1.0, 1.0, 0.9, 1.1, True)]
    >>> pair_errors(rows)
    PairErrors(checked=2, mean_error=0.1, worst_error=0.2, coverage=0.5, width=1.016667, wrongly_safe=1)
    """
    errors = [abs(one.error) for one in found if one.error is not None]
    covered = [one.covered for one in found if one.covered is not None]
    widths = [one.high / one.measured for one in found if one.high is not None]
    return PairErrors(
        len(errors),
        round(sum(errors) / len(errors), 12) if errors else None,
        round(max(errors), 12) if errors else None,
        sum(covered) / len(covered) if covered else None,
        round(median(widths), 6) if widths else None,
        sum(one.safe and one.measured >= MATTERS for one in found),
    )
