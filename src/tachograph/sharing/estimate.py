"""What is expected when kernels share a GPU: of a set, and of all pairs.

Both are computed by the same functions: `corun.run_together` for rates, slowdowns and their bounds, `_limits_reached`
for limits. A set runs them in Python, all pairs in one compiled loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tachograph.catalog.arrays import Bytes, Flags, Floats
from tachograph.catalog.compiled import compiled, either, is_made, plain
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.errors import InputError
from tachograph.sharing import contention, corun, vectors
from tachograph.sharing.corun import (
    BESIDE,
    BINDING,
    LONGER,
    OUT,
    RATE,
    RESOURCES,
    SECONDS,
    SHUT_OUT,
    SLOWDOWN,
    UPPER,
    WORST,
    Row,
    confine,
)
from tachograph.sharing.demand import (
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
from tachograph.sharing.vectors import LIMITED, Vectors, demand_vectors, joined, unknown

_WORTH_COMPILING = 2000  # pairs: for fewer Python takes less time than loading a compiler
_ROWS_AT_ONCE = 16  # whose limits are checked, so that sums of pairs stay in a cache
_IN_SM = np.array([name in CYCLES or name == "l1" for name in LIMITED])
_OWN, _OTHER = 1, 2  # whose blocks find no room beside the other: of the row, of the column
# an array of each member, resources first: arrays broadcast against each other
Each = Callable[[Callable[[Vectors], Any]], Sequence[Any]]


def estimate(
    demands: Sequence[Demand],
    *,
    gpu: GpuCapacity,
    calibration: Calibration | None = None,
    sharing: Sharing | None = None,
    settings: InterferenceOptions | None = None,
    dominance: float = contention.DOMINANCE,
) -> Estimate:
    """Return what happens when all of `demands` run together on `gpu`.

    What was not measured counts as no demand, and is named in `unknown`. Without a calibration that of the H100 NVL
    counts, as published. `dominance`: see contention.
    Errors: InputError where `sharing.shares` are not one for each, above 0 and at most 1.

    >>> from tachograph.sharing.demand import H100_NVL
    >>> fp64 = Demand(name="fp64", cycles={"issue": 0.38, "fp64": 0.73}, irregular=0.0, seconds=1.0)
    >>> both = estimate([fp64, fp64], gpu=H100_NVL)
    >>> round(both.members[0].slowdown, 2), both.members[0].binding, round(both.gain, 2)
    (1.46, 'fp64', 1.37)
    """
    calibration, sharing, settings = (
        calibration or Calibration(),
        sharing or Sharing(),
        settings or InterferenceOptions(),
    )
    machine = corun.machine(
        gpu, calibration, dominance=dominance, lasting=sharing.lasting, margin=settings.margin
    ).tolist()
    shares = shares_of(sharing, len(demands))
    group = _Group.of(demands, shares, machine, lasting=sharing.lasting, gpu=gpu, calibration=calibration)
    return Estimate(
        members=group.members(demands),
        sums=group.sums(),
        gain=group.gain(worst=False),
        worst_gain=group.gain(worst=True),
        safe=group.safe(settings),
        unknown=unknown(demands, group.vectors, gpu=gpu, calibration=calibration),
        reached=group.reached(settings),
    )


def matrix(
    rows: Sequence[Demand],
    columns: Sequence[Demand] | None = None,
    *,
    gpu: GpuCapacity,
    calibration: Calibration | None = None,
    sharing: Sharing | None = None,
    settings: InterferenceOptions | None = None,
) -> Matrix:
    """Return what happens to each of `rows` beside each of `columns` (`rows` again where None).

    Each pair has the values that `estimate` has for the kernel of the row; `sharing.shares` are of row and column.
    """
    calibration, sharing, settings = (
        calibration or Calibration(),
        sharing or Sharing(),
        settings or InterferenceOptions(),
    )
    shares = shares_of(sharing, 2)
    one = _Side.of(rows, shares[0], gpu, calibration)
    two = one if columns is None and shares[0] == shares[1] else _Side.of(columns or rows, shares[1], gpu, calibration)
    shape = (len(one.rows), len(two.rows))
    meet = _meet(one.vectors, two.vectors, sum(shares), gpu)
    answers = (np.empty((4, *shape)), np.empty(shape, dtype=np.uint8), np.empty(shape, dtype=np.uint8))
    machine = corun.machine(gpu, calibration, lasting=sharing.lasting, margin=settings.margin)
    fill = _fill if is_made(_fill) or shape[0] * shape[1] > _WORTH_COMPILING else plain(_fill)
    fill(one.rows, two.rows, machine, meet, one is two, sharing.lasting, answers)
    (slowdown, upper, higher, gain), binding, shut_out = answers
    common = (one.measured[:, None] & two.measured[None, :]) > 0
    known, both_known = common | (shut_out & _OWN > 0), common | (shut_out == _OWN + _OTHER)
    timed = np.isfinite(one.vectors.seconds)[:, None] & np.isfinite(two.vectors.seconds)[None, :]
    gain[~(both_known & (timed | sharing.lasting))] = np.nan
    slowdown[~known], upper[~known], binding[~known] = np.nan, np.nan, NOTHING

    room = (
        (higher <= settings.max_slowdown)
        & (shut_out == 0)
        & (one.rows[:, LONGER] <= 1.0)[:, None]
        & (two.rows[:, LONGER] <= 1.0)[None, :]
    )
    safe = np.zeros(shape, dtype=np.uint8)
    for part in (slice(begin, begin + _ROWS_AT_ONCE) for begin in range(0, len(one.rows), _ROWS_AT_ONCE)):
        pair = one.vectors.only(part), two.vectors
        safe[part] = room[part] & ~_limits_reached(_of_pairs(*pair), meet[part], settings).any(axis=0)
    return Matrix(one.vectors.names, two.vectors.names, RESOURCES, slowdown, upper, gain, binding, safe)


def shares_of(sharing: Sharing, count: int) -> tuple[float, ...]:
    """Return the share of the SMs of each of `count` kernels.

    Errors: InputError where they are not so many, or none a share.
    """
    shares = sharing.shares or (1.0,) * count
    if len(shares) != count or not all(0.0 < share <= 1.0 for share in shares):
        raise InputError(
            f"{len(shares)} shares of the SMs for {count} kernels: {', '.join(f'{share:g}' for share in shares)}",
            do="give one for each, above 0 and at most 1",
        )
    return shares


def _of_pairs(rows: Vectors, columns: Vectors) -> Each:
    return lambda of: (of(rows).T[..., :, None], of(columns).T[..., None, :])


def _limits_reached(each: Each, meet: Flags | bool, settings: InterferenceOptions) -> Flags:
    """Return which of LIMITED reach their limit; of two members or more. `meet`: whether they meet in SMs."""
    requested = each(lambda one: one.demanded)
    kinds, outer = len(CYCLES), (1,) * (requested[0].ndim - 1)
    limits = np.array([settings.safe_cycles] * kinds + [settings.safe_dram, settings.safe_cycles, 1.0, 1.0])
    total = reduce(np.add, requested)
    if not np.all(meet):
        apart = _IN_SM.reshape(-1, *outer) & np.logical_not(meet)
        np.copyto(total, reduce(np.maximum, requested), where=apart)
    reached: Flags = total >= limits.reshape(-1, *outer)
    return reached


@dataclass(frozen=True)
class _Group:
    """Kernels that share a GPU. `machine`: GPU and calibration as a row."""

    vectors: Vectors
    rows: list[list[float]]
    longer: list[float]
    shares: tuple[float, ...]
    machine: list[float]
    lasting: bool
    gpu: GpuCapacity

    @classmethod
    def of(
        cls,
        demands: Sequence[Demand],
        shares: tuple[float, ...],
        machine: list[float],
        *,
        lasting: bool,
        gpu: GpuCapacity,
        calibration: Calibration,
    ) -> _Group:
        whole = demand_vectors(demands, gpu, calibration)
        if any(share < 1.0 for share in shares):
            each = [confine(whole.only([place]), share, gpu) for place, share in enumerate(shares)]
            whole, longer = joined([one for one, _ in each]), np.concatenate([times for _, times in each])
        else:
            longer = np.ones(len(demands))
        rows = corun.rows(whole, longer, gpu, calibration)
        return cls(whole, rows.tolist(), longer.tolist(), shares, machine, lasting, gpu)

    @property
    def size(self) -> int:
        return len(self.rows)

    def meet(self, running: Sequence[int]) -> bool:
        """Whether these meet in SMs."""
        blocks = sum(float(self.vectors.launches.blocks[place]) for place in running)
        return not vectors.meet_nowhere(blocks, sum(self.shares[place] for place in running), self.gpu)

    @cached_property
    def everyone(self) -> list[list[float]]:
        """Rows OUT of all while all run."""
        return self.run(range(self.size))

    def run(self, running: Sequence[int]) -> list[list[float]]:
        """Rows OUT of these together."""
        meet, own = self.meet(running), [self.rows[place] for place in running]
        beside, out, of_all = [[0.0] * BESIDE for _ in own], [0.0] * OUT * len(own), [0.0] * contention.PARTS * len(own)
        corun.run_together(own, self.machine, meet, beside, of_all, out)
        return [out[at : at + OUT] for at in range(0, len(out), OUT)]

    def members(self, demands: Sequence[Demand]) -> tuple[CorunOutcome, ...]:
        """What happens to each while all run."""
        return tuple(
            CorunOutcome(one.name, out[SLOWDOWN], out[WORST], _resource(out), out[UPPER])
            if known
            else CorunOutcome(one.name, None, None, None)
            for one, out, known in zip(demands, self.everyone, self.known, strict=True)
        )

    def gain(self, *, worst: bool) -> float | None:
        """Time one after the other, on all SMs, over time together; None where durations are not known."""
        if self.lasting:
            slow = [out[WORST if worst else SLOWDOWN] for out in self.everyone]
            return sum(1.0 / each for each in slow) if all(self.known) else None
        seconds = self.vectors.seconds.tolist()
        if not np.isfinite(self.vectors.seconds).all() or not all(self.known):
            return None
        expected = self._gain(seconds, worst=False)
        return min(expected, self._gain(seconds, worst=True)) if worst else expected

    def _gain(self, seconds: list[float], *, worst: bool) -> float:
        if self.size == 2:
            first, second = self._rates(range(2), worst)
            alone = (1.0 / self.longer[0], 1.0 / self.longer[1])
            return corun.gain_of_two((seconds[0], seconds[1]), (first, second), alone)
        return float(sum(seconds) / self._until_all_ended(seconds, worst))

    def _rates(self, running: Sequence[int], worst: bool) -> list[float]:
        found = self.everyone if len(running) == self.size else self.run(running)
        return [1.0 / out[WORST] if worst else out[RATE] for out in found]

    def _until_all_ended(self, left: list[float], worst: bool) -> float:
        """When the last has ended: whenever one ends, the others go on without it."""
        now, running = 0.0, list(range(self.size))
        while running:
            rates = dict(zip(running, self._rates(running, worst), strict=True))
            ends = {place: left[place] / rate for place, rate in rates.items() if rate > 0.0}
            soonest = min(ends.values())
            now += soonest
            left = [max(time - soonest * rates.get(place, 0.0), 0.0) for place, time in enumerate(left)]
            running = [place for place in running if ends.get(place, np.inf) > soonest]
        return now

    @cached_property
    def known(self) -> list[bool]:
        """Whether something was measured both of it and of each other one, or its blocks find no room."""
        known = self.vectors.known
        common = (known[:, None, :] & known[None, :, :]).any(axis=2) | np.eye(self.size, dtype=bool)
        return [bool(one or out[SHUT_OUT]) for one, out in zip(np.all(common, axis=1), self.everyone, strict=True)]

    def sums(self) -> dict[str, float]:
        """{resource: sum of all demands on it}; of an SM, where they meet in none, the highest."""
        requested, known = self.vectors.demanded, np.any(np.isfinite(self.vectors.measured), axis=0).tolist()
        both = {True: requested.sum(axis=0), False: requested.max(axis=0)}
        meet = self.meet(range(self.size))
        return {
            name: float(both[meet or name in ("dram", "l2_bandwidth", "l2")][place])
            for place, name in enumerate(LIMITED)
            if known[place]
        }

    def safe(self, settings: InterferenceOptions) -> bool:
        """Whether no resource reaches its limit, all fit, and the decisive values were measured."""
        if any(out[SHUT_OUT] for out in self.everyone) or any(longer > 1.0 for longer in self.longer):
            return False
        if any(out[UPPER] > settings.max_slowdown for out in self.everyone):
            return False
        return not self.reached(settings)

    def reached(self, settings: InterferenceOptions) -> tuple[str, ...]:
        """The resources that reach their limit."""
        flags = _limits_reached(lambda of: of(self.vectors), self.meet(range(self.size)), settings)
        return tuple(name for name, flag in zip(LIMITED, flags.tolist(), strict=True) if flag)


def _resource(out: Sequence[float]) -> str | None:
    """The name of what binds; None: nothing."""
    return None if out[BINDING] == NOTHING else RESOURCES[int(out[BINDING])]


@dataclass(frozen=True, slots=True)
class _Side:
    """Rows, or columns: demands, the numbers that pairs are computed from, and what was measured, a bit each."""

    vectors: Vectors
    rows: Floats
    measured: NDArray[np.int64]

    @classmethod
    def of(cls, demands: Sequence[Demand], share: float, gpu: GpuCapacity, calibration: Calibration) -> _Side:
        own, longer = confine(demand_vectors(demands, gpu, calibration), share, gpu)
        return cls(own, corun.rows(own, longer, gpu, calibration), own.known @ (1 << np.arange(own.known.shape[1])))


def _meet(one: Vectors, two: Vectors, shares: float, gpu: GpuCapacity) -> Flags:
    """Which pairs meet in SMs."""
    blocks = one.launches.blocks[:, None] + two.launches.blocks[None, :]
    nowhere = vectors.meet_nowhere(0.0, shares, gpu) if gpu.sms is None or shares <= 1.0 else blocks <= gpu.sms
    return ~np.broadcast_to(nowhere, blocks.shape)


@compiled
def _fill(
    rows: Floats,
    columns: Floats,
    machine: Floats,
    meet: Flags,
    square: bool,
    lasting: bool,
    answers: tuple[Floats, Bytes, Bytes],
) -> None:
    """Fill in slowdown, upper value, the higher one of both, gain; binding; and who finds no room, of each pair.

    `square`: columns are the rows, and each pair has two places.
    """
    beside, out, of_all = np.zeros((2, BESIDE)), np.zeros(2 * OUT), np.zeros(2 * contention.PARTS)
    for i in range(len(rows)):
        own = rows[i]
        for j in range(i if square else 0, len(columns)):
            other = columns[j]
            beside[:] = 0.0
            corun.run_together((own, other), machine, meet[i, j], beside, of_all, out)
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
    """Put what happens to one of a pair, the one at `place` in `out`, where it belongs."""
    numbers, binding, shut_out = answers
    at, theirs = OUT * place, OUT * (1 - place)
    numbers[0, i, j] = out[at + SLOWDOWN]
    numbers[1, i, j] = out[at + UPPER]
    numbers[2, i, j] = max(out[at + UPPER], out[theirs + UPPER])
    binding[i, j] = int(out[at + BINDING])
    shut_out[i, j] = (_OWN if out[at + SHUT_OUT] > 0.0 else 0) + (_OTHER if out[theirs + SHUT_OUT] > 0.0 else 0)
    if lasting:
        numbers[3, i, j] = 1.0 / out[at + SLOWDOWN] + 1.0 / out[theirs + SLOWDOWN]
    elif own[SECONDS] > 0.0 and other[SECONDS] > 0.0:
        alone = (1.0 / own[LONGER], 1.0 / other[LONGER])
        numbers[3, i, j] = corun.gain_of_two(
            (own[SECONDS], other[SECONDS]), (out[at + RATE], out[theirs + RATE]), alone
        )
