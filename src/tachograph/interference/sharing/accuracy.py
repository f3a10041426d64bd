"""Errors of the estimator against published measurements, as it is and with each table left out.

No constant is fitted to a number it predicts. Fitted is one, c of dram, from kernels that ran alone. Structural are
the factor `contention.DOMINANCE` (any value of 1.3 to 5.6 keeps errors low) and what waits regularly. Left out, a table
gives nothing: without Table 2 latency of DRAM does not grow, c = 0, and bandwidth alone is shared; without Table 3, or
without pitfall 1, the other still tells that who asks for much more is served first. The other tables gave nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tachograph.interference.demand import Calibration
from tachograph.interference.sharing.contention import DOMINANCE
from tachograph.interference.sharing.estimate import estimate
from tachograph.interference.sharing.published import Published, fitted_curvature, held_out, twenty

_GAVE_CURVATURE = "Table 2"


@dataclass(frozen=True, slots=True)
class Judged:
    """A published number, what is predicted, and what is predicted without anything from its table.

    Errors are relative: (predicted - measured) / measured.
    """

    published: Published
    predicted: float
    left_out: float

    @property
    def error(self) -> float:
        """Error of what is predicted."""
        return self.predicted / self.published.measured - 1.0

    @property
    def longer_left_out(self) -> float:
        """Time that was measured over the time that is predicted without its table."""
        times = self.published.measured / self.left_out
        return times if self.published.read == "slowdown" else 1.0 / times

    @property
    def error_left_out(self) -> float:
        """Error of what is predicted without its table."""
        return self.left_out / self.published.measured - 1.0


@dataclass(frozen=True, slots=True)
class Accuracy:
    """All errors. `twenty`: of the paper; `held_out`: of another GPU."""

    twenty: tuple[Judged, ...]
    held_out: tuple[Judged, ...]
    curvature: float


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean and highest absolute error, relative, and whose is the highest."""

    mean: float
    worst: float
    worst_of: str


def predict(published: Published, *, curvature: float, dominance: float = DOMINANCE) -> float:
    """Return what the estimator tells of a published case."""
    told = estimate(
        published.demands,
        gpu=published.gpu,
        calibration=Calibration(dram_curvature=curvature),
        sharing=published.sharing,
        dominance=dominance,
    )
    predicted = told.gain if published.read == "gain" else told.members[-1].slowdown
    assert predicted is not None, published.name
    return predicted


def accuracy(*, dominance: float = DOMINANCE) -> Accuracy:
    """Return the estimator's errors."""
    curvature = fitted_curvature()

    def judged(published: Published, without: float) -> Judged:
        predicted = predict(published, curvature=curvature, dominance=dominance)
        return Judged(published, predicted, predict(published, curvature=without, dominance=dominance))

    return Accuracy(
        tuple(judged(row, 0.0 if row.table == _GAVE_CURVATURE else curvature) for row in twenty()),
        tuple(judged(row, curvature) for row in held_out()),
        curvature,
    )


def margin(judged: Sequence[Judged]) -> float:
    """Return how many times as long as predicted the worst of these took, with each table left out.

    Left out is a table with all it taught: so wrong is the estimator about what it has no model of. It is the default
    of `interference.margin`, and no simulated day had a part in it.

    >>> round(margin(accuracy().twenty), 2)
    1.14
    """
    return max(one.longer_left_out for one in judged)


def errors(judged: Sequence[Judged], *, left_out: bool = False) -> Errors:
    """Return mean and highest error, or those with each table left out."""
    each = [(abs(one.error_left_out if left_out else one.error), one.published.name) for one in judged]
    worst, name = max(each)
    return Errors(sum(error for error, _ in each) / len(each), worst, name)
