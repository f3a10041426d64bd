"""Numbers of pairs of kernels: pure functions of what was measured and predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tachograph.nsight.launches import Launch
from tachograph.sharing.accuracy import MATTERS
from tachograph.sharing.demand import Calibration, Demand, GpuCapacity, Sharing
from tachograph.sharing.estimate import estimate
from tachograph.sharing.kernels import kernels_of


@dataclass(frozen=True, slots=True)
class PairCheck:
    """One kernel beside another: measured and predicted slowdown, the upper value, whether the pair is called safe."""

    name: str
    beside: str
    measured: float
    predicted: float | None
    upper: float | None
    safe: bool
    unknown: tuple[str, ...] = ()

    @property
    def error(self) -> float | None:
        """Relative error of what is predicted."""
        return None if self.predicted is None else self.predicted / self.measured - 1.0

    @property
    def covered(self) -> bool | None:
        """Whether the measured slowdown is at or under the upper value."""
        return None if self.upper is None else self.measured <= self.upper


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
    return found[0].gpu, [(one / whole, kernel.demand) for one, kernel in zip(known, found, strict=True)]


def predicted(
    own: Sequence[tuple[float, Demand]], beside: Sequence[tuple[float, Demand]], gpu: GpuCapacity, by: Calibration
) -> tuple[float | None, float | None, bool, tuple[str, ...]]:
    """Return slowdown, upper value, safety and what is unknown, of steps that are repeated side by side.

    Each kernel of one meets each of the other, as often as their shares of the time say; a pair is safe where all of
    its kernels are.
    """
    slowdown: float | None = 0.0
    upper: float | None = 0.0
    safe, unknown = True, dict[str, None]()
    for share, one in own:
        for other_share, other in beside:
            found = estimate((one, other), gpu=gpu, calibration=by, sharing=Sharing(lasting=True))
            member = found.members[0]
            weight = share * other_share
            slowdown = (
                None if None in (slowdown, member.slowdown) else (slowdown or 0) + weight * (member.slowdown or 0)
            )
            upper = None if None in (upper, member.upper) else (upper or 0) + weight * (member.upper or 0)
            safe = safe and found.safe
            unknown |= dict.fromkeys(found.unknown)
    return slowdown, upper, safe, tuple(unknown)


def checks(
    pairs: Sequence[Mapping[str, Any]], reports: Mapping[str, Sequence[Launch]], by: Calibration
) -> list[PairCheck]:
    """Return a check of each kernel of each measured pair; without a report of both, nothing is predicted."""
    known = {name: demands_of(launches) for name, launches in reports.items()}
    found = []
    for one in pairs:
        for own, beside, slower in zip(one["pair"], reversed(one["pair"]), one["slowdowns"], strict=True):
            if own not in known or beside not in known:
                missing = tuple(f"{name} was not profiled" for name in sorted({own, beside} - set(known)))
                found.append(PairCheck(own, beside, slower, None, None, False, missing))
                continue
            gpu, mine = known[own]
            found.append(PairCheck(own, beside, slower, *predicted(mine, known[beside][1], gpu, by)))
    return found


@dataclass(frozen=True, slots=True)
class PairErrors:
    """Errors over checks with a prediction; None where there is none.

    coverage: share of measured slowdowns at or under the upper value. wrongly_safe: kernels in pairs that are called
    safe and were slowed by `MATTERS` or more.
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
