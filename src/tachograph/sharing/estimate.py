"""What is expected when kernels share a GPU: of a set, and of all pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tachograph.catalog.arrays import Bytes, Flags, Floats
from tachograph.catalog.compiled import compiled, is_made, plain
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.errors import InputError
from tachograph.sharing import contention, corun, vectors
from tachograph.sharing.corun import BESIDE, LATENCY, LONGER, NOTHING, RESOURCES, SECONDS, confine
from tachograph.sharing.demand import CYCLES, Calibration, CorunOutcome, Demand, Estimate, GpuCapacity, Matrix, Sharing
from tachograph.sharing.vectors import Vectors, demand_vectors, joined, unknown


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

    What nobody measured counts as not asked for, and is told in `unknown`. Without a calibration that of the H100 NVL
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
    told = corun.machine(gpu, calibration, dominance=dominance, lasting=sharing.lasting).tolist()
    shares = shares_of(sharing, len(demands))
    group = _Group.of(demands, shares, told, lasting=sharing.lasting, gpu=gpu, calibration=calibration)
    sums = group.sums()
    return Estimate(
        members=group.members(demands, margin=settings.margin if len(demands) > 1 else 1.0),
        sums=sums,
        gain=group.gain(worst=False),
        worst_gain=group.gain(worst=True),
        safe=group.safe(sums, settings),
        unknown=unknown(demands, group.vectors, gpu=gpu, calibration=calibration),
    )


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


@dataclass(frozen=True, slots=True)
class _GroupRates:
    """Members that run together, a place each: rates 0..1 of alone on all SMs, slowdowns, what binds, who waits."""

    rates: list[float]
    slowdowns: list[float]
    worst: list[float]
    bindings: list[str | None]
    shut_out: list[bool]


@dataclass(frozen=True)
class _Group:
    """Kernels that share a GPU."""

    vectors: Vectors
    rows: list[list[float]]
    longer: list[float]
    shares: tuple[float, ...]
    told: list[float]
    lasting: bool
    gpu: GpuCapacity

    @classmethod
    def of(
        cls,
        demands: Sequence[Demand],
        shares: tuple[float, ...],
        told: list[float],
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
        return cls(whole, rows.tolist(), longer.tolist(), shares, told, lasting, gpu)

    @property
    def size(self) -> int:
        return len(self.rows)

    def meet(self, running: Sequence[int]) -> bool:
        """Whether these meet in SMs."""
        blocks = sum(float(self.vectors.launches.blocks[place]) for place in running)
        return not vectors.apart(blocks, sum(self.shares[place] for place in running), self.gpu)

    def beside(self, place: int, running: Sequence[int]) -> list[float]:
        """What is beside one of these."""
        sums = [0.0] * corun.BESIDE
        for other in running:
            if other != place:
                corun.add(sums, self.rows[place], self.rows[other], self.told)
        return sums

    def latency(self, own: Sequence[list[float]]) -> float:
        """Latency of DRAM while these run."""
        of_all = [0.0] * (contention.PARTS * len(own))
        for place, row in enumerate(own):
            corun.put_dram(of_all, place, row)
        return corun.latency(of_all, len(own), self.told)

    @cached_property
    def everyone(self) -> _GroupRates:
        """How fast they go on while all run."""
        return self.run(range(self.size))

    def run(self, running: Sequence[int]) -> _GroupRates:
        """How fast these go on together."""
        meet, kept = self.meet(running), contention.cache_table()
        beside = [self.beside(place, running) for place in running]
        own = [self.rows[place] for place in running]
        latency = self.latency(own)
        for sums in beside:
            sums[corun.LATENCY] = latency
        paces = [corun.pace(a, b, self.told, kept, meet) for a, b in zip(own, beside, strict=True)]
        shut_out = [meet and corun.shut_out(a, b, self.told) for a, b in zip(own, beside, strict=True)]
        turns = [corun.in_turn(b, self.told, waits) for b, waits in zip(beside, shut_out, strict=True)]
        take_turns = len(own) > 1 and all(p[0] * turn <= 1.0 for p, turn in zip(paces, turns, strict=True))
        done = _GroupRates([], [], [], [], shut_out)
        each = zip(own, beside, paces, turns, shut_out, running, strict=True)
        for a, sums, (cycles, memory, binding), turn, waits, place in each:
            longer = self.longer[place]
            most = corun.longest(turn, self.told, waits, take_turns)
            going = 1.0 / turn if take_turns else cycles
            done.rates.append(min(going, memory) / longer)
            slow = corun.slowdown(cycles, memory, longer, most)
            done.slowdowns.append(slow)
            done.worst.append(
                max(slow, corun.worst(a, sums, meet, corun.longest(turn, self.told, waits, False)) * longer)
            )
            bound = corun.bound_by(binding, cycles, memory, longer)
            done.bindings.append(None if bound == NOTHING else RESOURCES[bound])
        return done

    def members(self, demands: Sequence[Demand], *, margin: float) -> tuple[CorunOutcome, ...]:
        """What happens to each while all run."""
        found = self.everyone
        each = zip(demands, found.slowdowns, found.worst, found.bindings, self.sayable, strict=True)
        return tuple(
            CorunOutcome(one.name, slow, worst, binding, slow * margin)
            if said
            else CorunOutcome(one.name, None, None, None)
            for one, slow, worst, binding, said in each
        )

    def gain(self, *, worst: bool) -> float | None:
        """Time one after the other, on all SMs, over time together; None where durations are not known."""
        if self.lasting:
            slow = self.everyone.worst if worst else self.everyone.slowdowns
            return sum(1.0 / each for each in slow) if all(self.sayable) else None
        seconds = self.vectors.seconds.tolist()
        if not np.isfinite(self.vectors.seconds).all() or not all(self.sayable):
            return None
        expected = self._gain(seconds, worst=False)
        return min(expected, self._gain(seconds, worst=True)) if worst else expected

    def _gain(self, seconds: list[float], *, worst: bool) -> float:
        if self.size == 2:
            first, second = self._rates(range(2), worst)
            alone = (1.0 / self.longer[0], 1.0 / self.longer[1])
            times: tuple[float, float] = (seconds[0], seconds[1])
            ended: float = corun.until_both_ended(times, (first, second), alone)
            return (times[0] + times[1]) / ended
        return float(sum(seconds) / self._until_all_ended(seconds, worst))

    def _rates(self, running: Sequence[int], worst: bool) -> list[float]:
        everyone = self.everyone if len(running) == self.size else self.run(running)
        return [1.0 / slow for slow in everyone.worst] if worst else everyone.rates

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
    def sayable(self) -> list[bool]:
        """Whether something was measured both of it and of each other one, or its blocks find no room."""
        known = self.vectors.known
        common = (known[:, None, :] & known[None, :, :]).any(axis=2) | np.eye(self.size, dtype=bool)
        waits = self.everyone.shut_out
        told: list[bool] = np.all(common, axis=1).tolist()
        return [one or shut for one, shut in zip(told, waits, strict=True)]

    def sums(self) -> dict[str, float]:
        """{resource: sum of what is asked of it}; of an SM, where they meet in none, the highest."""
        own = self.vectors
        within = np.sum if self.meet(range(self.size)) else np.max
        asked = {name: (own.cycles[:, place], within) for place, name in enumerate(CYCLES)}
        asked |= {"dram": (own.dram, np.sum), "l2": (own.l2, np.sum), "l1": (own.l1, within)}
        sums = {}
        for name, (values, total) in asked.items():
            known: Floats = values[np.isfinite(values)]
            if len(known):
                sums[name] = float(total(known))
        return sums

    def safe(self, sums: dict[str, float], settings: InterferenceOptions) -> bool:
        """Whether no resource reaches its limit, all find room, and what decides was measured."""
        limits = dict.fromkeys(CYCLES, settings.safe_cycles) | {"dram": settings.safe_dram, "l2": 1.0, "l1": 1.0}
        if any(total >= limits[name] for name, total in sums.items()):
            return False
        if any(self.everyone.shut_out) or any(longer > 1.0 for longer in self.longer):
            return False
        meet = self.meet(range(self.size))
        if self.size > 1 and (self.vectors.in_l2.decides_unknown or (meet and self._unknown_in_sms)):
            return False
        part = settings.safe_cycles * (self.size - 1) / self.size if self.size > 1 else np.inf
        decides = np.array([name == "issue" or sums.get(name, 0.0) >= part for name in CYCLES] + [True])
        decides[:-1] &= meet
        return bool((self.vectors.known | ~decides).all())

    @property
    def _unknown_in_sms(self) -> bool:
        """Whether what decides in SMs where they meet, but cycles, is not known: room for blocks, L1."""
        launches = vectors.told(self.vectors.launches, self.gpu)
        return not launches.all() or self.vectors.in_l1.decides_unknown


# pairs: so many take Python less long than loading a compiler
_WORTH_COMPILING = 2000
_OWN, _OTHER = 1, 2  # whose blocks find no room beside the other: of the row, of the column


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

    Of each pair it tells what `estimate` tells of the row's kernel; `sharing.shares` are of row and column.
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
    answers = (np.empty(shape), np.empty(shape), np.empty(shape, dtype=np.uint8), np.empty(shape, dtype=np.uint8))
    told = corun.machine(gpu, calibration, lasting=sharing.lasting)
    fill = _fill if is_made(_fill) or shape[0] * shape[1] > _WORTH_COMPILING else plain(_fill)
    fill(one.rows, two.rows, told, contention.cache_table(), meet, one is two, sharing.lasting, answers)
    slowdown, gain, binding, shut_out = answers
    common = one.measured @ two.measured.T > 0
    sayable, both_sayable = common | (shut_out & _OWN > 0), common | (shut_out == _OWN + _OTHER)
    timed = np.isfinite(one.vectors.seconds)[:, None] & np.isfinite(two.vectors.seconds)[None, :]
    gain[~(both_sayable & (timed | sharing.lasting))] = np.nan
    slowdown[~sayable], binding[~sayable] = np.nan, NOTHING
    room = (shut_out == 0) & (one.rows[:, LONGER] <= 1.0)[:, None] & (two.rows[:, LONGER] <= 1.0)[None, :]
    safe = (room & _below(one.vectors, two.vectors, meet, settings) & _told(one, two, meet, gpu)).astype(np.uint8)
    return Matrix(one.vectors.names, two.vectors.names, RESOURCES, slowdown, gain, binding, safe, settings.margin)


@dataclass(frozen=True, slots=True)
class _Side:
    """Rows, or columns: demands, the numbers that pairs are computed from, and what was measured, 0 or 1."""

    vectors: Vectors
    rows: Floats
    measured: Floats

    @classmethod
    def of(cls, demands: Sequence[Demand], share: float, gpu: GpuCapacity, calibration: Calibration) -> _Side:
        own, longer = confine(demand_vectors(demands, gpu, calibration), share, gpu)
        return cls(own, corun.rows(own, longer, gpu, calibration), own.known.astype(np.float64))


def _meet(one: Vectors, two: Vectors, shares: float, gpu: GpuCapacity) -> Flags:
    """Which pairs meet in SMs."""
    blocks = one.launches.blocks[:, None] + two.launches.blocks[None, :]
    apart = vectors.apart(0.0, shares, gpu) if gpu.sms is None or shares <= 1.0 else blocks <= gpu.sms
    return ~np.broadcast_to(apart, blocks.shape)


@compiled
def _fill(
    rows: Floats,
    columns: Floats,
    told: Floats,
    kept: Floats,
    meet: Flags,
    square: bool,
    lasting: bool,
    answers: tuple[Floats, Floats, Bytes, Bytes],
) -> None:
    """Fill in slowdown, gain, binding, and who finds no room, of each pair.

    `square`: columns are the rows, and each pair tells of two places.
    """
    slowdown, gain, binding, shut_out = answers
    beside, mine = np.zeros(BESIDE), np.zeros(BESIDE)
    both = np.zeros(2 * contention.PARTS)
    for i in range(len(rows)):
        own = rows[i]
        for j in range(i if square else 0, len(columns)):
            other, met = columns[j], meet[i, j]
            mine[:] = 0.0
            beside[:] = 0.0
            corun.add(mine, own, other, told)
            corun.add(beside, other, own, told)
            corun.put_dram(both, 0, own)
            corun.put_dram(both, 1, other)
            mine[LATENCY] = beside[LATENCY] = corun.latency(both, 2, told)
            cycles, memory, bound = corun.pace(own, mine, told, kept, met)
            their_cycles, their_memory, their_bound = corun.pace(other, beside, told, kept, met)
            waits = met and corun.shut_out(own, mine, told)
            other_waits = met and corun.shut_out(other, beside, told)
            shut_out[i, j] = (_OWN if waits else 0) + (_OTHER if other_waits else 0)
            turn, their_turn = corun.in_turn(mine, told, waits), corun.in_turn(beside, told, other_waits)
            take_turns = cycles * turn <= 1.0 and their_cycles * their_turn <= 1.0
            most = corun.longest(turn, told, waits, take_turns)
            their_most = corun.longest(their_turn, told, other_waits, take_turns)
            slow = corun.slowdown(cycles, memory, own[LONGER], most)
            their_slow = corun.slowdown(their_cycles, their_memory, other[LONGER], their_most)
            slowdown[i, j] = slow
            binding[i, j] = corun.bound_by(bound, cycles, memory, own[LONGER])
            going = 1.0 / turn if take_turns else cycles
            their_going = 1.0 / their_turn if take_turns else their_cycles
            seconds = (own[SECONDS], other[SECONDS])
            shared = (min(going, memory) / own[LONGER], min(their_going, their_memory) / other[LONGER])
            alone = (1.0 / own[LONGER], 1.0 / other[LONGER])
            known = seconds[0] > 0.0 and seconds[1] > 0.0
            total = seconds[0] + seconds[1]
            if lasting:
                gain[i, j] = 1.0 / slow + 1.0 / their_slow
            elif known:
                gain[i, j] = total / corun.until_both_ended(seconds, shared, alone)
            if square and i != j:
                slowdown[j, i] = their_slow
                binding[j, i] = corun.bound_by(their_bound, their_cycles, their_memory, other[LONGER])
                shut_out[j, i] = (_OWN if other_waits else 0) + (_OTHER if waits else 0)
                if lasting:
                    gain[j, i] = 1.0 / their_slow + 1.0 / slow
                elif known:
                    turned = (shared[1], shared[0])
                    gain[j, i] = total / corun.until_both_ended((seconds[1], seconds[0]), turned, (alone[1], alone[0]))


def _told(one: _Side, two: _Side, meet: Flags, gpu: GpuCapacity) -> Flags:
    """Which pairs have all measured that decides of caches, and of room for blocks."""
    room = vectors.told(one.vectors.launches, gpu)[:, None] & vectors.told(two.vectors.launches, gpu)[None, :]
    within = room & ~one.vectors.in_l1.pairs_unknown(two.vectors.in_l1)
    return ~one.vectors.in_l2.pairs_unknown(two.vectors.in_l2) & (within | ~meet)


def _below(one: Vectors, two: Vectors, meet: Flags, settings: InterferenceOptions) -> Flags:
    """Whether sums of pairs stay below their limits, and what decides was measured."""
    known = (one.known, two.known)
    below = known[0][:, None, -1] & known[1][None, :, -1]
    below &= _sum(one.dram, two.dram) < settings.safe_dram
    mine, theirs = np.nan_to_num(one.cycles), np.nan_to_num(two.cycles)
    for place, name in enumerate(CYCLES):
        total = _both(mine[:, place], theirs[:, place], meet)
        measured = known[0][:, None, place] & known[1][None, :, place]
        decides = meet & (total >= settings.safe_cycles / 2) if name != "issue" else meet
        below &= (total < settings.safe_cycles) & (measured | ~decides)
    below &= (_sum(one.l2, two.l2) < 1.0) & (_sum(one.l1, two.l1, meet) < 1.0)
    return below


def _sum(one: Floats, two: Floats, meet: Flags | None = None) -> Floats:
    """Sum of both, unknown as nothing; the higher of them where they do not meet."""
    return _both(np.nan_to_num(one), np.nan_to_num(two), meet)


def _both(one: Floats, two: Floats, meet: Flags | None) -> Floats:
    """The same of numbers that are known."""
    mine, theirs = one[:, None], two[None, :]
    return mine + theirs if meet is None or meet.all() else np.where(meet, mine + theirs, np.maximum(mine, theirs))
