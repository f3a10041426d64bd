"""What is judged when kernels or jobs shall share a GPU, and what the judgement is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tachograph.config import Interference
from tachograph.interference.demand import Calibration, Demand, Gpu
from tachograph.interference.jobs.mixes import Members
from tachograph.interference.jobs.words import AdvisedWay, limit
from tachograph.interference.outcome import Estimate

Slowdowns = tuple[float | None, ...]  # of each member; None not known


@dataclass(frozen=True, slots=True)
class Advice:
    """How to share, and why.

    shares: of the SMs, one for each member (`mps_share`). profiles: MIG, one for each. slowdowns: what is expected of
    each in that way by what was measured; careful: what decides, see `Case`; worst: were they always busy together and
    what nobody measured short. binding: the resource that slows them most. why:
    sentences with the numbers, those of ways that were passed over among them.
    safe: all sums are below their limits, and nothing that decides is unknown.
    """

    way: AdvisedWay
    shares: tuple[float, ...] | None
    why: tuple[str, ...]
    unknown: tuple[str, ...]
    slowdowns: Slowdowns = ()
    careful: Slowdowns = ()
    worst: Slowdowns = ()
    binding: str | None = None
    profiles: tuple[str, ...] | None = None
    cautions: tuple[str, ...] = ()
    safe: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """What is judged.

    estimate: by what was measured. careful: by `assumed`, the demands with issue slots where nobody measured them; the
    same where all were. members: of each its kernels, with the share of its time, where they are known; else `assumed`
    is its one member. others: for each member the share of time in which another is busy. shared: what happens under
    MPS with these shares of the SMs, None not told. missing: what nobody measured, sentences. by_margin: the kernels of
    one were profiled, so that upper values decide, unless those of all were and all pairs of them are safe.
    """

    estimate: Estimate
    careful: Estimate
    demands: tuple[Demand, ...]
    assumed: tuple[Demand, ...]
    members: tuple[Members, ...]
    gpu: Gpu
    settings: Interference
    calibration: Calibration
    others: tuple[float, ...]
    shared: Callable[[tuple[float, ...]], Estimate] | None = None
    missing: tuple[str, ...] = ()
    by_margin: bool = False

    @property
    def blind(self) -> list[str]:
        """Names of those whose issue slots were not measured."""
        return [demand.name for demand in self.demands if "issue" not in demand.cycles]

    @property
    def slowdowns(self) -> Slowdowns:
        """What is expected of each by what was measured."""
        return self.met([member.slowdown for member in self.estimate.members])

    @property
    def carefully(self) -> Slowdowns:
        """What decides: the same were unmeasured issue slots asked for, or the estimator as wrong as it may be."""
        known = [member.upper if self.unsure(self.careful) else member.slowdown for member in self.careful.members]
        return self.met(known)

    @property
    def worst(self) -> Slowdowns:
        """Always together; where issue slots were not measured they may be what is short, then each has its part."""
        count = float(len(self.demands))
        known = [member.worst for member in self.estimate.members]
        if self.blind:
            return tuple(max(worst or 1.0, count) for worst in known)
        if not self.unsure(self.estimate):
            return tuple(known)
        uppers = [member.upper for member in self.estimate.members]
        return tuple(max(worst or 1.0, upper or 1.0) for worst, upper in zip(known, uppers, strict=True))

    @property
    def binding(self) -> str | None:
        """The resource that slows them most; where none does, the one that they ask most of."""
        slowed = [member for member in self.careful.members if member.binding is not None]
        if slowed:
            return max(slowed, key=lambda member: member.slowdown or math.inf).binding
        return max(self.estimate.sums, key=lambda name: self.estimate.sums[name], default=None)

    def unsure(self, estimate: Estimate) -> bool:
        """Whether the upper values of `estimate` decide, in place of what is expected."""
        return self.by_margin and bool(self.blind or not estimate.safe)

    def good(self, slowdowns: Sequence[float | None]) -> bool:
        """Whether all are known and none is above the limit."""
        return all(s is not None and s <= self.settings.max_slowdown + 1e-9 for s in slowdowns)

    def met(self, slowdowns: Sequence[float | None]) -> Slowdowns:
        """What is expected of slowdowns that hold while others are busy, too."""
        return tuple(
            None if s is None else 1 + share * (s - 1) for s, share in zip(slowdowns, self.others, strict=True)
        )

    def over(self) -> list[str]:
        """Resources of which what was measured reaches the limit, the shortest one first."""
        sums, settings = self.estimate.sums, self.settings
        names = [name for name, total in sums.items() if total >= limit(name, settings)]
        return sorted(names, key=lambda name: sums[name] / limit(name, settings), reverse=True)

    def conflicts(self) -> list[str]:
        """Resources that reach their limit, and what slows a member beyond what is allowed."""
        names = self.over()
        for estimate, slowdowns in ((self.estimate, self.slowdowns), (self.careful, self.carefully)):
            for member, slowdown in zip(estimate.members, slowdowns, strict=True):
                if member.binding and slowdown is not None and slowdown > self.settings.max_slowdown:
                    names.append(member.binding)
        return list(dict.fromkeys(names))
