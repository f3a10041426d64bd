"""What is expected of a set of kernels that share a GPU. Of two it tells what `matrix` tells of that pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tachograph.arrays import Floats
from tachograph.config import Interference
from tachograph.errors import InputError
from tachograph.interference.demand import CYCLES, Calibration, Demand, Gpu
from tachograph.interference.outcome import Estimate, Outcome, Sharing
from tachograph.interference.sharing import caches, contention, dram, placement, together
from tachograph.interference.sharing.confine import confine
from tachograph.interference.sharing.together import NOTHING, RESOURCES
from tachograph.interference.sharing.unknown import unknown
from tachograph.interference.sharing.vectors import Vectors, joined, vectors


def estimate(
    demands: Sequence[Demand],
    *,
    gpu: Gpu,
    calibration: Calibration | None = None,
    sharing: Sharing | None = None,
    settings: Interference | None = None,
    dominance: float = contention.DOMINANCE,
) -> Estimate:
    """Return what happens when all of `demands` run together on `gpu`.

    What nobody measured counts as not asked for, and is told in `unknown`. Without a calibration that of the H100 NVL
    counts, as published. `dominance`: see contention.
    Errors: InputError where `sharing.shares` are not one for each, above 0 and at most 1.

    >>> from tachograph.interference.demand import H100_NVL
    >>> fp64 = Demand(name="fp64", cycles={"issue": 0.38, "fp64": 0.73}, irregular=0.0, seconds=1.0)
    >>> both = estimate([fp64, fp64], gpu=H100_NVL)
    >>> round(both.members[0].slowdown, 2), both.members[0].binding, round(both.gain, 2)
    (1.46, 'fp64', 1.37)
    """
    calibration, sharing, settings = calibration or Calibration(), sharing or Sharing(), settings or Interference()
    told = together.machine(gpu, calibration, dominance=dominance, lasting=sharing.lasting).tolist()
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
class _Running:
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
    gpu: Gpu

    @classmethod
    def of(
        cls,
        demands: Sequence[Demand],
        shares: tuple[float, ...],
        told: list[float],
        *,
        lasting: bool,
        gpu: Gpu,
        calibration: Calibration,
    ) -> _Group:
        whole = vectors(demands, gpu, calibration)
        if any(share < 1.0 for share in shares):
            each = [confine(whole.only([place]), share, gpu) for place, share in enumerate(shares)]
            whole, longer = joined([one for one, _ in each]), np.concatenate([times for _, times in each])
        else:
            longer = np.ones(len(demands))
        rows = together.rows(whole, longer, gpu, calibration)
        return cls(whole, rows.tolist(), longer.tolist(), shares, told, lasting, gpu)

    @property
    def size(self) -> int:
        return len(self.rows)

    def meet(self, running: Sequence[int]) -> bool:
        """Whether these meet in SMs."""
        blocks = sum(float(self.vectors.launches.blocks[place]) for place in running)
        return not placement.apart(blocks, sum(self.shares[place] for place in running), self.gpu)

    def beside(self, place: int, running: Sequence[int]) -> list[float]:
        """What is beside one of these."""
        sums = [0.0] * together.BESIDE
        for other in running:
            if other != place:
                together.add(sums, self.rows[place], self.rows[other], self.told)
        return sums

    def latency(self, own: Sequence[list[float]]) -> float:
        """Latency of DRAM while these run."""
        of_all = [0.0] * (dram.PARTS * len(own))
        for place, row in enumerate(own):
            together.put_dram(of_all, place, row)
        return together.latency(of_all, len(own), self.told)

    @cached_property
    def everyone(self) -> _Running:
        """How fast they go on while all run."""
        return self.run(range(self.size))

    def run(self, running: Sequence[int]) -> _Running:
        """How fast these go on together."""
        meet, kept = self.meet(running), caches.table()
        beside = [self.beside(place, running) for place in running]
        own = [self.rows[place] for place in running]
        latency = self.latency(own)
        for sums in beside:
            sums[together.LATENCY] = latency
        paces = [together.pace(a, b, self.told, kept, meet) for a, b in zip(own, beside, strict=True)]
        shut_out = [meet and together.shut_out(a, b, self.told) for a, b in zip(own, beside, strict=True)]
        turns = [together.in_turn(b, self.told, waits) for b, waits in zip(beside, shut_out, strict=True)]
        take_turns = len(own) > 1 and all(p[0] * turn <= 1.0 for p, turn in zip(paces, turns, strict=True))
        done = _Running([], [], [], [], shut_out)
        each = zip(own, beside, paces, turns, shut_out, running, strict=True)
        for a, sums, (cycles, memory, binding), turn, waits, place in each:
            longer = self.longer[place]
            most = together.longest(turn, self.told, waits, take_turns)
            going = 1.0 / turn if take_turns else cycles
            done.rates.append(min(going, memory) / longer)
            slow = together.slowdown(cycles, memory, longer, most)
            done.slowdowns.append(slow)
            done.worst.append(
                max(slow, together.worst(a, sums, meet, together.longest(turn, self.told, waits, False)) * longer)
            )
            bound = together.bound_by(binding, cycles, memory, longer)
            done.bindings.append(None if bound == NOTHING else RESOURCES[bound])
        return done

    def members(self, demands: Sequence[Demand], *, margin: float) -> tuple[Outcome, ...]:
        """What happens to each while all run."""
        found = self.everyone
        each = zip(demands, found.slowdowns, found.worst, found.bindings, self.sayable, strict=True)
        return tuple(
            Outcome(one.name, slow, worst, binding, slow * margin) if said else Outcome(one.name, None, None, None)
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
            ended: float = together.until_both_ended(times, (first, second), alone)
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

    def safe(self, sums: dict[str, float], settings: Interference) -> bool:
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
        launches = placement.told(self.vectors.launches, self.gpu)
        return not launches.all() or self.vectors.in_l1.decides_unknown
