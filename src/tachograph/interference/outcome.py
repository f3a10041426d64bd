"""What is expected when kernels share a GPU: the answers of the estimator, for a set and for all pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tachograph.arrays import Bytes, Floats

Way = Literal["streams", "mps"]


@dataclass(frozen=True, slots=True)
class Sharing:
    """How kernels share: streams of one process, or processes under MPS, each with `shares` of the SMs (0..1).

    lasting: each launches again and again, as jobs do, and none ends; else each launches once, at the same time.
    """

    way: Way = "streams"
    shares: tuple[float, ...] | None = None
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happens to one member while all run: its slowdown (1: none), the worst it can be, what binds it.

    binding: one of demand.CYCLES, dram, l2, l1, blocks, sms; None: nothing. slowdown None: cannot be said, see
    Estimate.unknown. worst: were every contended resource given to the others first, or the launches run in turn.
    upper: what the slowdown may be, as wrong as the estimator was at most about published numbers; it can be above
    `worst`, for what is not modelled is in no bound, and it is no promise of what nobody measured.
    """

    name: str
    slowdown: float | None
    worst: float | None
    binding: str | None
    upper: float | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What happens when `members` run together.

    sums: {resource: sum of what is asked of it}; 1 is all there is. gain: time one after the other over time together,
    None where durations are not known; where they last, the sum of what each does over what it does alone in the same
    time. worst_gain: the same at the worst slowdowns. safe: no resource reaches its limit, all that decides was
    measured. unknown: what nobody measured, a sentence each.
    """

    members: tuple[Outcome, ...]
    sums: Mapping[str, float]
    gain: float | None
    worst_gain: float | None
    safe: bool
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """All pairs, as arrays of shape (rows, columns).

    slowdown[i, j]: of row i while column j runs beside it, NaN unknown. gain[i, j]: as in Estimate. binding[i, j]:
    place in `resources` of what binds row i, 255 nothing. safe[i, j]: 1 safe, 0 not. margin: upper over slowdown.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    resources: tuple[str, ...]
    slowdown: Floats
    gain: Floats
    binding: Bytes
    safe: Bytes
    margin: float = 1.0

    @property
    def upper(self) -> Floats:
        """What slowdowns may be, see Outcome; NaN unknown."""
        return self.slowdown * self.margin
