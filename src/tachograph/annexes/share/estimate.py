"""Estimated effect of sharing a GPU, for one pair and for all pairs.

Both are computed by the same functions: `corun.run_pair` for rates, slowdowns and the worst ones,
`_limits_reached` for limits. One pair runs them in Python, all pairs in one compiled loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tachograph.annexes.share import contention, corun, vectors
from tachograph.annexes.share.corun import (
    BESIDE,
    BINDING,
    LONGER,
    OUT,
    RATE,
    RESOURCES,
    SECONDS,
    SHUT_OUT,
    SLOWDOWN,
    WORST,
    Row,
    confine,
)
from tachograph.annexes.share.demand import (
    CYCLES,
    NOTHING,
    Calibration,
    CorunOutcome,
    Demand,
    Estimate,
    GpuCapacity,
    Matrix,
    Sharing,
)
from tachograph.annexes.share.vectors import LIMITED, Vectors, demand_vectors, unknown
from tachograph.catalog.arrays import Bytes, Flags, Floats
from tachograph.catalog.compiled import compiled, either, is_made, plain
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.errors import InputError

_WORTH_COMPILING = 2000  # pairs: for fewer Python takes less time than loading a compiler
_ROWS_AT_ONCE = 16  # whose limits are checked, so that sums of pairs stay in a cache
_IN_SM = np.array([name in CYCLES or name == "l1" for name in LIMITED])
_OWN, _OTHER = 1, 2  # whose blocks find no room beside the other: of the row, of the column


def estimate(
    demands: Sequence[Demand],
    *,
    gpu: GpuCapacity,
    calibration: Calibration | None = None,
    sharing: Sharing | None = None,
    settings: InterferenceOptions | None = None,
    dominance: float = contention.DOMINANCE,
) -> Estimate:
    """Return the estimate for two kernels together on `gpu`.

    What was not measured counts as no demand, and is named in `unknown`. Without a calibration that
    of the H100 NVL counts, as published. `dominance`: see contention. Errors: InputError for more
    or fewer than two demands, and where `sharing.shares` are not one for each, above 0 and at most
    1.

    >>> from tachograph.annexes.share.demand import H100_NVL
    >>> fp64 = Demand(name="fp64", cycles={"issue": 0.38, "fp64": 0.73}, irregular=0.0, seconds=1.0)
    >>> both = estimate([fp64, fp64], gpu=H100_NVL)
    >>> round(both.members[0].slowdown, 2), both.members[0].binding, round(both.gain, 2)
    (1.46, 'fp64', 1.37)
    """
    if len(demands) != 2:
        raise InputError(f"{len(demands)} kernels cannot be compared", do="name two")
    calibration, sharing, settings = (
        calibration or Calibration(),
        sharing or Sharing(),
        settings or InterferenceOptions(),
    )
    shares = shares_of(sharing)
    one, other = (
        _Side.of([demand], share, gpu, calibration)
        for demand, share in zip(demands, shares, strict=True)
    )
    meet = _meet(one.vectors, other.vectors, sum(shares), gpu)
    out = _outcomes(one, other, meet, sharing, gpu, calibration, dominance)
    known = [bool(one.measured[0] & other.measured[0] or member[SHUT_OUT]) for member in out]
    reached = _limits_reached(one.vectors, other.vectors, meet, settings)[:, 0, 0]
    room = (
        not any(member[SHUT_OUT] for member in out) and max(one.longer[0], other.longer[0]) <= 1.0
    )
    bounded = max(member[WORST] for member in out) <= settings.max_slowdown
    gain = worst_gain = None
    if all(known):
        gain, worst_gain = _gains(one, other, out, lasting=sharing.lasting)
    return Estimate(
        members=tuple(map(_member, demands, out, known)),
        sums=_sums(one.vectors, other.vectors, meet=bool(meet[0, 0])),
        gain=gain,
        worst_gain=worst_gain,
        safe=room and bounded and not reached.any(),
        unknown=unknown(
            demands, demand_vectors(demands, gpu, calibration), gpu=gpu, calibration=calibration
        ),
        reached=tuple(name for name, flag in zip(LIMITED, reached.tolist(), strict=True) if flag),
    )


def _outcomes(
    one: _Side,
    other: _Side,
    meet: Flags,
    sharing: Sharing,
    gpu: GpuCapacity,
    calibration: Calibration,
    dominance: float,
) -> tuple[list[float], list[float]]:
    """Rows OUT of both while both run."""
    machine = corun.machine(gpu, calibration, dominance=dominance, lasting=sharing.lasting).tolist()
    unsure = int(_unsure(one.vectors, other.vectors, gpu, calibration, meet)[0, 0])
    beside, of_all, out = (
        [[0.0] * BESIDE for _ in range(2)],
        [0.0] * (2 * contention.PARTS),
        [0.0] * (2 * OUT),
    )
    rows = one.rows[0].tolist(), other.rows[0].tolist()
    corun.run_pair(*rows, machine, bool(meet[0, 0]), unsure, beside, of_all, out)
    return out[:OUT], out[OUT:]


def _member(demand: Demand, out: Sequence[float], known: bool) -> CorunOutcome:
    if not known:
        return CorunOutcome(demand.name, None, None, None)
    binding = None if out[BINDING] == NOTHING else RESOURCES[int(out[BINDING])]
    return CorunOutcome(demand.name, out[SLOWDOWN], out[WORST], binding)


def _gains(
    one: _Side, other: _Side, out: tuple[list[float], list[float]], *, lasting: bool
) -> tuple[float | None, float | None]:
    """Sequential over shared time, expected and worst; None if times are unknown."""
    if lasting:
        return sum(1.0 / member[SLOWDOWN] for member in out), sum(
            1.0 / member[WORST] for member in out
        )
    first_s, second_s = float(one.vectors.seconds[0]), float(other.vectors.seconds[0])
    if not np.isfinite(first_s + second_s):
        return None, None
    alone = (1.0 / float(one.longer[0]), 1.0 / float(other.longer[0]))
    gain = corun.gain_of_two((first_s, second_s), (out[0][RATE], out[1][RATE]), alone)
    worst = corun.gain_of_two(
        (first_s, second_s), (1.0 / out[0][WORST], 1.0 / out[1][WORST]), alone
    )
    return gain, min(gain, worst)


def _sums(one: Vectors, other: Vectors, *, meet: bool) -> dict[str, float]:
    """{resource: total demand}; for SM resources without overlap, the higher demand."""
    mine, theirs = one.demanded[0], other.demanded[0]
    known = np.isfinite(one.measured[0]) | np.isfinite(other.measured[0])
    total = np.where(_IN_SM & (not meet), np.maximum(mine, theirs), mine + theirs)
    return {name: float(total[place]) for place, name in enumerate(LIMITED) if known[place]}


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
    calibration, sharing, settings = (
        calibration or Calibration(),
        sharing or Sharing(),
        settings or InterferenceOptions(),
    )
    shares = shares_of(sharing)
    one = _Side.of(rows, shares[0], gpu, calibration)
    two = (
        one
        if columns is None and shares[0] == shares[1]
        else _Side.of(columns or rows, shares[1], gpu, calibration)
    )
    shape = (len(one.rows), len(two.rows))
    meet = _meet(one.vectors, two.vectors, sum(shares), gpu)
    unsure = _unsure(one.vectors, two.vectors, gpu, calibration, meet)
    answers = (
        np.empty((4, *shape)),
        np.empty(shape, dtype=np.uint8),
        np.empty(shape, dtype=np.uint8),
    )
    machine = corun.machine(gpu, calibration, lasting=sharing.lasting)
    fill = _fill if is_made(_fill) or shape[0] * shape[1] > _WORTH_COMPILING else plain(_fill)
    fill(one.rows, two.rows, machine, meet, unsure, one is two, sharing.lasting, answers)
    (slowdown, worst, higher, gain), binding, shut_out = answers
    common = (one.measured[:, None] & two.measured[None, :]) > 0
    known, both_known = common | (shut_out & _OWN > 0), common | (shut_out == _OWN + _OTHER)
    timed = np.isfinite(one.vectors.seconds)[:, None] & np.isfinite(two.vectors.seconds)[None, :]
    gain[~(both_known & (timed | sharing.lasting))] = np.nan
    slowdown[~known], worst[~known], binding[~known] = np.nan, np.nan, NOTHING

    room = (
        (higher <= settings.max_slowdown)
        & (shut_out == 0)
        & (one.longer <= 1.0)[:, None]
        & (two.longer <= 1.0)[None, :]
    )
    safe = np.zeros(shape, dtype=np.uint8)
    for part in (
        slice(begin, begin + _ROWS_AT_ONCE) for begin in range(0, len(one.rows), _ROWS_AT_ONCE)
    ):
        reached = _limits_reached(one.vectors.only(part), two.vectors, meet[part], settings)
        safe[part] = room[part] & ~reached.any(axis=0)
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


def _limits_reached(
    rows: Vectors, columns: Vectors, meet: Flags, settings: InterferenceOptions
) -> Flags:
    """Return which of LIMITED reach their limit: (LIMITED, rows, columns)."""
    limits = [settings.safe_cycles] * len(CYCLES) + [
        settings.safe_dram,
        settings.safe_cycles,
        1.0,
        1.0,
    ]
    mine, theirs = rows.demanded.T[:, :, None], columns.demanded.T[:, None, :]
    total = mine + theirs
    apart = _IN_SM.reshape(-1, 1, 1) & ~meet
    np.copyto(total, np.maximum(mine, theirs), where=apart)
    reached: Flags = total >= np.array(limits).reshape(-1, 1, 1)
    return reached


def _unsure(
    one: Vectors, two: Vectors, gpu: GpuCapacity, calibration: Calibration, meet: Flags
) -> NDArray[np.int64]:
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
    measured: NDArray[np.int64]

    @classmethod
    def of(
        cls, demands: Sequence[Demand], share: float, gpu: GpuCapacity, calibration: Calibration
    ) -> _Side:
        own, longer = confine(demand_vectors(demands, gpu, calibration), share, gpu)
        return cls(
            own,
            corun.rows(own, longer, gpu, calibration),
            own.known @ (1 << np.arange(own.known.shape[1])),
        )

    @property
    def longer(self) -> Floats:
        """Relative time of each alone on its share of the SMs."""
        return self.rows[:, LONGER]


def _meet(one: Vectors, two: Vectors, shares: float, gpu: GpuCapacity) -> Flags:
    """Which pairs meet in SMs."""
    blocks = one.launches.blocks[:, None] + two.launches.blocks[None, :]
    nowhere = (
        vectors.meet_nowhere(0.0, shares, gpu)
        if gpu.sms is None or shares <= 1.0
        else blocks <= gpu.sms
    )
    return ~np.broadcast_to(nowhere, blocks.shape)


@compiled
def _fill(
    rows: Floats,
    columns: Floats,
    machine: Floats,
    meet: Flags,
    unsure: NDArray[np.int64],
    square: bool,
    lasting: bool,
    answers: tuple[Floats, Bytes, Bytes],
) -> None:
    """Fill slowdown, worst and higher one, gain, binding, and no-room flags of each pair.

    `square`: columns are the rows, and each pair has two places.
    """
    beside, out, of_all = np.zeros((2, BESIDE)), np.zeros(2 * OUT), np.zeros(2 * contention.PARTS)
    for i in range(len(rows)):
        own = rows[i]
        for j in range(i if square else 0, len(columns)):
            other = columns[j]
            beside[:] = 0.0
            corun.run_pair(own, other, machine, meet[i, j], unsure[i, j], beside, of_all, out)
            _answer(answers, i, j, own, other, out, 0, lasting)
            if square and i != j:
                _answer(answers, j, i, other, own, out, 1, lasting)


@either
def _answer(
    answers: tuple[Floats, Bytes, Bytes],
    i: int,
    j: int,
    own: Row,
    other: Row,
    out: Row,
    place: int,
    lasting: bool,
) -> None:
    """Write the estimate of one of a pair, at index `place`, into `out`."""
    numbers, binding, shut_out = answers
    at, theirs = OUT * place, OUT * (1 - place)
    numbers[0, i, j] = out[at + SLOWDOWN]
    numbers[1, i, j] = out[at + WORST]
    numbers[2, i, j] = max(out[at + WORST], out[theirs + WORST])
    binding[i, j] = int(out[at + BINDING])
    shut_out[i, j] = (_OWN if out[at + SHUT_OUT] > 0.0 else 0) + (
        _OTHER if out[theirs + SHUT_OUT] > 0.0 else 0
    )
    if lasting:
        numbers[3, i, j] = 1.0 / out[at + SLOWDOWN] + 1.0 / out[theirs + SLOWDOWN]
    elif own[SECONDS] > 0.0 and other[SECONDS] > 0.0:
        alone = (1.0 / own[LONGER], 1.0 / other[LONGER])
        numbers[3, i, j] = corun.gain_of_two(
            (own[SECONDS], other[SECONDS]), (out[at + RATE], out[theirs + RATE]), alone
        )
