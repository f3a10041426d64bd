"""Estimated effect of sharing a GPU, for one pair and for all pairs.

Both are computed by the same functions: `corun.run_pair` for rates, slowdowns and the worst ones,
`corun.is_safe` for limits. One pair runs them in Python, all pairs in one compiled loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np

from tachograph.annexes.share import corun, vectors
from tachograph.annexes.share.corun import (
    LIMITED,
    LONGER,
    RESOURCES,
    SECONDS,
    CorunRates,
    Row,
    Two,
    confine,
)
from tachograph.annexes.share.demand import (
    NOTHING,
    Calibration,
    CorunOutcome,
    Demand,
    Estimate,
    GpuCapacity,
    Matrix,
    Sharing,
    unless_nan,
)
from tachograph.annexes.share.vectors import Vectors, demand_vectors, unknown
from tachograph.catalog.arrays import Bytes, Flags, Floats, Longs
from tachograph.catalog.compiled import compiled, either, is_made, plain
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.errors import InputError

_WORTH_COMPILING = 2000  # pairs: for fewer Python takes less time than loading a compiler


def estimate(
    demands: Sequence[Demand],
    *,
    gpu: GpuCapacity,
    calibration: Calibration | None = None,
    sharing: Sharing | None = None,
    settings: InterferenceOptions | None = None,
) -> Estimate:
    """Return the estimate for two kernels together on `gpu`.

    What was not measured counts as no demand, and is named in `unknown`. Without a calibration that
    of the H100 NVL counts, as published. Errors: InputError for more or fewer than two demands, and
    where `sharing.shares` are not one for each, above 0 and at most 1.

    >>> from tachograph.annexes.share.demand import H100_NVL
    >>> fp64 = Demand(name="fp64", cycles={"issue": 0.38, "fp64": 0.73}, irregular=0.0, seconds=1.0)
    >>> both = estimate([fp64, fp64], gpu=H100_NVL)
    >>> round(both.members[0].slowdown, 2), both.members[0].binding, round(both.gain, 2)
    (1.46, 'fp64', 1.37)
    """
    if len(demands) != 2:
        raise InputError(f"{len(demands)} kernels cannot be compared", do="name two")
    calibration, sharing = calibration or Calibration(), sharing or Sharing()
    shares = shares_of(sharing)
    one, other = (
        _Side.of([demand], share, gpu, calibration)
        for demand, share in zip(demands, shares, strict=True)
    )
    row, other_row = one.rows[0].tolist(), other.rows[0].tolist()
    machine = corun.machine(
        gpu, calibration, settings or InterferenceOptions(), lasting=sharing.lasting
    ).tolist()
    meet_all = _meet(one.vectors, other.vectors, sum(shares), gpu)
    unsure = _unsure(one.vectors, other.vectors, gpu, calibration, meet_all)
    meet = bool(meet_all[0, 0])
    first, second = corun.run_pair(row, other_row, machine, meet, int(unsure[0, 0]))
    common = bool(one.measured[0] & other.measured[0])
    gain = worst_gain = None
    if (common or first.waits) and (common or second.waits):
        rates = _worked(first, second, sharing.lasting)
        worst_rates = (1.0 / first.worst, 1.0 / second.worst)
        gain = unless_nan(_gain(row, other_row, rates, sharing.lasting))
        worst_gain = unless_nan(_gain(row, other_row, worst_rates, sharing.lasting))
    if gain is not None and worst_gain is not None:
        worst_gain = min(gain, worst_gain)
    known = np.isfinite(one.vectors.measured[0]) | np.isfinite(other.vectors.measured[0])
    return Estimate(
        members=(_member(demands[0], first, common), _member(demands[1], second, common)),
        sums={
            name: corun.total_demand(row, other_row, meet, place)
            for place, name in enumerate(LIMITED)
            if known[place]
        },
        gain=gain,
        worst_gain=worst_gain,
        safe=corun.is_safe(row, other_row, machine, meet, first, second),
        unknown=unknown(
            demands, demand_vectors(demands, gpu, calibration), gpu=gpu, calibration=calibration
        ),
        reached=tuple(
            name
            for place, name in enumerate(LIMITED)
            if corun.at_limit(row, other_row, machine, meet, place)
        ),
    )


def _member(demand: Demand, rates: CorunRates, common: bool) -> CorunOutcome:
    """Return the outcome of a member; `common`: of some resource both demands were measured."""
    if not (common or rates.waits):
        return CorunOutcome(demand.name, None, None, None)
    binding = None if rates.binding == NOTHING else RESOURCES[rates.binding]
    return CorunOutcome(demand.name, rates.slowdown, rates.worst, binding)


@either
def _worked(first: CorunRates, second: CorunRates, lasting: bool) -> Two:
    """Return what each works in the time alone: on its share of the SMs, or of all if lasting."""
    if lasting:
        return 1.0 / first.slowdown, 1.0 / second.slowdown
    return first.rate, second.rate


@either
def _gain(one: Row, other: Row, rates: Two, lasting: bool) -> float:
    """Return sequential time over shared time at `rates`; NaN: times are unknown."""
    if lasting:
        return rates[0] + rates[1]
    if one[SECONDS] > 0.0 and other[SECONDS] > 0.0:
        alone = (1.0 / one[LONGER], 1.0 / other[LONGER])
        return corun.gain_of_two((one[SECONDS], other[SECONDS]), rates, alone)
    return nan


def matrix(
    rows: Sequence[Demand],
    columns: Sequence[Demand] | None = None,
    *,
    gpu: GpuCapacity,
    calibration: Calibration | None = None,
    sharing: Sharing | None = None,
    settings: InterferenceOptions | None = None,
) -> Matrix:
    """Return the estimates of each of `rows` beside each of `columns` (None: `rows`).

    Each pair has the values that `estimate` has for the kernel of the row; `sharing.shares` are of
    row and column.
    """
    calibration, sharing = calibration or Calibration(), sharing or Sharing()
    shares = shares_of(sharing)
    one = two = _Side.of(rows, shares[0], gpu, calibration)
    if columns is not None or shares[0] != shares[1]:
        two = _Side.of(columns or rows, shares[1], gpu, calibration)
    meet = _meet(one.vectors, two.vectors, sum(shares), gpu)
    unsure = _unsure(one.vectors, two.vectors, gpu, calibration, meet)
    machine = corun.machine(
        gpu, calibration, settings or InterferenceOptions(), lasting=sharing.lasting
    )
    shape = (len(one.rows), len(two.rows))
    numbers = np.empty((3, *shape))
    binding, safe = np.empty(shape, dtype=np.uint8), np.empty(shape, dtype=np.uint8)
    common = (one.measured[:, None] & two.measured[None, :]) > 0
    worthwhile = is_made(_fill) or shape[0] * shape[1] > _WORTH_COMPILING
    fill = _fill if worthwhile else plain(_fill)
    fill(
        one.rows, two.rows, machine, meet, unsure, common, one is two, sharing.lasting,
        (numbers, binding, safe),
    )  # fmt: skip
    slowdown, worst, gain = numbers
    return Matrix(
        one.vectors.names, two.vectors.names, RESOURCES, slowdown, worst, gain, binding, safe
    )


def shares_of(sharing: Sharing) -> tuple[float, float]:
    """Return the share of the SMs of each of two kernels.

    Errors: InputError for a wrong number of shares, or an invalid one.
    """
    shares = sharing.shares or (1.0, 1.0)
    if len(shares) != 2 or not all(0.0 < share <= 1.0 for share in shares):
        raise InputError(
            (
                f"{len(shares)} shares of the SMs for 2 kernels: "
                f"{', '.join(f'{share:g}' for share in shares)}"
            ),
            do="give one for each, above 0 and at most 1",
        )
    return shares[0], shares[1]


def _unsure(
    one: Vectors, two: Vectors, gpu: GpuCapacity, calibration: Calibration, meet: Flags
) -> Longs:
    """Unmeasured inputs that might decide, per pair; see corun.SURE."""
    of_memory = vectors.unsure_of_memory(one, two, gpu, calibration, meet=meet)
    of_sm = meet & vectors.unsure_of_sm(one, two, gpu)
    return np.where(
        of_sm, corun.UNSURE_OF_SM, np.where(of_memory, corun.UNSURE_OF_MEMORY, corun.SURE)
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """Rows or columns: demands, derived numbers, and a bit for each measured one."""

    vectors: Vectors
    rows: Floats
    measured: Longs

    @classmethod
    def of(
        cls, demands: Sequence[Demand], share: float, gpu: GpuCapacity, calibration: Calibration
    ) -> _Side:
        own, longer = confine(demand_vectors(demands, gpu, calibration), share, gpu)
        # one bit each: cycles, DRAM and bandwidth of L2, not what stays in caches
        known = np.isfinite(own.measured[:, : LIMITED.index("l2")])
        return cls(
            own,
            corun.rows(own, longer, gpu, calibration),
            known @ (1 << np.arange(known.shape[1])),
        )


def _meet(one: Vectors, two: Vectors, shares: float, gpu: GpuCapacity) -> Flags:
    """Which pairs meet in SMs: shares are not apart, and there is no SM for each block."""
    blocks = one.launches.blocks[:, None] + two.launches.blocks[None, :]
    if gpu.sms is None or shares <= 1.0:
        return np.full(blocks.shape, shares > 1.0)
    meet: Flags = ~(blocks <= gpu.sms)  # NaN: unknown
    return meet


@compiled
def _fill(
    rows: Floats,
    columns: Floats,
    machine: Floats,
    meet: Flags,
    unsure: Longs,
    common: Flags,
    square: bool,
    lasting: bool,
    answers: tuple[Floats, Bytes, Bytes],
) -> None:
    """Fill slowdown, worst one and gain, binding, and whether it is safe, of each pair.

    `common`: whether of some resource both demands were measured. `square`: columns are the rows,
    and each pair has two places.
    """
    for i in range(len(rows)):
        own = rows[i]
        for j in range(i if square else 0, len(columns)):
            other = columns[j]
            first, second = corun.run_pair(own, other, machine, meet[i, j], unsure[i, j])
            known = common[i, j] or first.waits
            other_known = common[i, j] or second.waits
            gain = nan
            if known and other_known:
                gain = _gain(own, other, _worked(first, second, lasting), lasting)
            safe = corun.is_safe(own, other, machine, meet[i, j], first, second)
            _answer(answers, i, j, first, known, gain, safe)
            if square and i != j:
                _answer(answers, j, i, second, other_known, gain, safe)


@either
def _answer(
    answers: tuple[Floats, Bytes, Bytes],
    i: int,
    j: int,
    rates: CorunRates,
    known: bool,
    gain: float,
    safe: bool,
) -> None:
    """Write the estimate of one of a pair."""
    numbers, bindings, safes = answers
    numbers[0, i, j] = rates.slowdown if known else nan
    numbers[1, i, j] = rates.worst if known else nan
    numbers[2, i, j] = gain
    bindings[i, j] = rates.binding if known else NOTHING
    safes[i, j] = 1 if safe else 0
