"""Numbers of pairs of kernels: pure functions of what was measured and predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tachograph.annexes.share.demand import Calibration, Demand, GpuCapacity, Sharing
from tachograph.annexes.share.estimate import estimate
from tachograph.annexes.share.kernels import kernels_of
from tachograph.annexes.share.nsight.launches import Launch

MATTERS = 1.2  # a slowdown from which on nobody would call a pair safe


@dataclass(frozen=True, slots=True)
class PairCheck:
    """One kernel beside another: measured and predicted slowdown, the worst one predicted, whether
    the pair is safe.

    largest_sum: of the demands of both, weighted as slowdowns are.
    """

    name: str
    beside: str
    measured: float
    predicted: float | None
    worst: float | None
    safe: bool
    unknown: tuple[str, ...] = ()
    largest_sum: float | None = None

    @property
    def error(self) -> float | None:
        """Relative error of what is predicted."""
        return None if self.predicted is None else self.predicted / self.measured - 1.0

    @property
    def covered(self) -> bool | None:
        """Whether the measured slowdown is at or under the worst one predicted."""
        return None if self.worst is None else self.measured <= self.worst


def demands_of(launches: Sequence[Launch]) -> tuple[GpuCapacity, list[tuple[float, Demand]]]:
    """Return the GPU, and (share of the time, demand) of each kernel of a profiled step.

    Errors: ValueError where the report has no times.
    """
    found = kernels_of(launches)
    seconds = [kernel.demand.seconds for kernel in found]
    known = [one for one in seconds if one is not None]
    if not known or len(known) < len(seconds) or sum(known) <= 0:
        raise ValueError("the report has no times of kernels")
    whole = sum(known)
    return found[0].gpu, [
        (one / whole, kernel.demand) for one, kernel in zip(known, found, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class StepsTogether:
    """What is predicted of a step beside another, both repeated; None: undetermined.

    worst: the worst slowdown. largest_sum: of the demands of both. safe: all pairs of their kernels
    are.
    """

    slowdown: float | None
    worst: float | None
    largest_sum: float
    safe: bool
    unknown: tuple[str, ...]


def predicted(
    own: Sequence[tuple[float, Demand]],
    beside: Sequence[tuple[float, Demand]],
    gpu: GpuCapacity,
    by: Calibration,
) -> StepsTogether:
    """Return what is predicted of steps that are repeated side by side.

    Each kernel of one meets each of the other, as often as their shares of the time say.
    """
    slowdown = worst = largest_sum = 0.0
    determined, safe, unknown = True, True, dict[str, None]()
    for share, one in own:
        for other_share, other in beside:
            outcome = estimate((one, other), gpu=gpu, calibration=by, sharing=Sharing(lasting=True))
            member, weight = outcome.members[0], share * other_share
            if member.slowdown is None or member.worst is None:
                determined = False
            else:
                slowdown += weight * member.slowdown
                worst += weight * member.worst
            largest_sum += weight * max(outcome.sums.values(), default=0.0)
            safe = safe and outcome.safe
            unknown |= dict.fromkeys(outcome.unknown)
    if not determined:
        return StepsTogether(None, None, largest_sum, safe, tuple(unknown))
    return StepsTogether(slowdown, worst, largest_sum, safe, tuple(unknown))


def checks(
    pairs: Sequence[Mapping[str, Any]], reports: Mapping[str, Sequence[Launch]], by: Calibration
) -> list[PairCheck]:
    """Return a check of each kernel of each measured pair; without a report of both, nothing is
    predicted.
    """
    known = {name: demands_of(launches) for name, launches in reports.items()}
    found = []
    for one in pairs:
        for own, beside, slower in zip(
            one["pair"], reversed(one["pair"]), one["slowdowns"], strict=True
        ):
            if own not in known or beside not in known:
                missing = tuple(
                    f"{name} was not profiled" for name in sorted({own, beside} - set(known))
                )
                found.append(PairCheck(own, beside, slower, None, None, False, missing))
                continue
            gpu, mine = known[own]
            steps = predicted(mine, known[beside][1], gpu, by)
            found.append(
                PairCheck(
                    own,
                    beside,
                    slower,
                    steps.slowdown,
                    steps.worst,
                    steps.safe,
                    steps.unknown,
                    steps.largest_sum,
                )
            )
    return found


@dataclass(frozen=True, slots=True)
class PairErrors:
    """Errors over checks with a prediction; None where there is none.

    coverage: share of measured slowdowns at or under the worst one predicted. wrongly_safe: kernels
    in pairs that are called safe and were slowed by `MATTERS` or more.
    """

    checked: int
    mean_error: float | None
    worst_error: float | None
    coverage: float | None
    wrongly_safe: int


def pair_errors(found: Sequence[PairCheck]) -> PairErrors:
    """Return the errors of the model.

    >>> rows = [PairCheck("a", "b", 1.5, 1.2, 1.4, True), PairCheck("b", "a", 1.0, 1.0, 1.1, True)]
    >>> pair_errors(rows)
    PairErrors(checked=2, mean_error=0.1, worst_error=0.2, coverage=0.5, wrongly_safe=1)
    """
    errors = [abs(one.error) for one in found if one.error is not None]
    covered = [one.covered for one in found if one.covered is not None]
    return PairErrors(
        len(errors),
        round(sum(errors) / len(errors), 12) if errors else None,
        round(max(errors), 12) if errors else None,
        sum(covered) / len(covered) if covered else None,
        sum(one.safe and one.measured >= MATTERS for one in found),
    )
