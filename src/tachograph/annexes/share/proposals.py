"""Two job groups on one GPU, evaluated: sharing mode, slowdowns, GPU-hours saved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain

import numpy as np

from tachograph.annexes.share.advice import (
    CONTEXT_BYTES,
    NOT_KEPT_APART,
    SharingAdvice,
    SharingCase,
    advise,
)
from tachograph.annexes.share.corun import least_on_sms
from tachograph.annexes.share.demand import (
    NOTHING,
    Calibration,
    Demand,
    Estimate,
    GpuCapacity,
    Matrix,
    Sharing,
)
from tachograph.annexes.share.estimate import estimate, matrix
from tachograph.annexes.share.job_groups import JobGroup
from tachograph.annexes.share.mixes import (
    Mix,
    MixOutcome,
    corun_of_mixes,
    folded,
    mix_issuing,
    shares_of,
)
from tachograph.annexes.share.partitions import by_kernels_ruled_out, ruled_out
from tachograph.catalog.arrays import Bytes, Flags, Floats
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.units import MI

_BESIDE = Sharing("mps", lasting=True)  # jobs launch repeatedly
# Of a pair that memory does not hold.
_NOT_ESTIMATED = Estimate((), {}, None, None, safe=False, unknown=())


@dataclass(frozen=True, slots=True)
class SharingProposal:
    """Two job groups on one GPU instead of two; a group may pair with itself.

    overlap_h: GPU-hours of one that can overlap with the other, at most. saved_h: GPU-hours saved
    then; 0 if not proposed. taken: one of them is in a pair that saves more. runs: expected over
    all pairs of their runs; None if not requested. kernels: the same over all pairs of their
    kernels while busy, conservative, if one was profiled; an unprofiled group is one kernel.
    """

    one: JobGroup
    other: JobGroup
    advice: SharingAdvice
    overlap_h: float
    saved_h: float
    taken: bool = False
    runs: MixOutcome | None = None
    kernels: MixOutcome | None = None

    @property
    def memory(self) -> float | None:
        """Share of GPU memory of both and one more context; None: unknown."""
        return memory_share(self.one, self.other)

    @property
    def same_user(self) -> bool:
        """Whether both are of one user, who needs no other user's consent."""
        return same_user(self.one, self.other)


@dataclass(frozen=True, slots=True)
class Outlook:
    """All pairs of job groups, before any is evaluated.

    slowdown: of each group (row) beside each (column) by MPS, all its time, decisive, NaN unknown.
    gone: certainly not to be proposed. matrix: while both are busy, as expected.
    """

    slowdown: Floats
    gone: Flags
    matrix: Matrix

    def short_of(self, i: int, j: int) -> str | None:
        """Limiting resource of a pair that is ruled out, as in its advice; None: must be
        evaluated.
        """
        if not self.gone[i, j]:
            return None
        slowdown, binding = self.matrix.slowdown, self.matrix.binding
        ends = [
            (slowdown[at], int(binding[at])) for at in ((i, j), (j, i)) if binding[at] != NOTHING
        ]
        return self.matrix.resources[max(ends, key=lambda end: end[0])[1]] if ends else None


@dataclass(frozen=True, slots=True)
class PairJudge:
    """Evaluates job groups on as many GPUs of one model."""

    gpu: GpuCapacity
    calibration: Calibration
    settings: InterferenceOptions

    def pairs(
        self, rows: Sequence[Demand], columns: Sequence[Demand], sharing: Sharing = _BESIDE
    ) -> Matrix:
        """Return each of `rows` beside each of `columns`."""
        return matrix(
            rows,
            None if columns is rows else columns,
            gpu=self.gpu,
            calibration=self.calibration,
            sharing=sharing,
            settings=self.settings,
        )

    def estimate(self, demands: Sequence[Demand], sharing: Sharing = _BESIDE) -> Estimate:
        """Return the estimate of two demands."""
        return estimate(
            demands,
            gpu=self.gpu,
            calibration=self.calibration,
            sharing=sharing,
            settings=self.settings,
        )

    def alone(self, demands: Sequence[Demand]) -> Floats:
        """Return the least slowdown of each alone on 0, 1, 2 .. SMs: (demands, SMs)."""
        return least_on_sms(demands, self.gpu, self.calibration)

    def outlook(self, kinds: Sequence[JobGroup]) -> Outlook:
        """Outlook on all pairs of job groups, from the runs of highest demand, conservative."""
        found = self.matrix(kinds, self.settings.assumed_issue)
        most, busy = [kind.demand.mean for kind in kinds], [kind.busy for kind in kinds]
        gone = ruled_out(found.slowdown, most, busy=busy, gpu=self.gpu, settings=self.settings)
        profiled = _profiled(kinds)
        # Kernels may fit on parts of the SMs where means do not.
        gone &= ~(profiled[:, None] | profiled[None, :])
        slowdown = over_all_time(decisive(found, kinds), kinds)
        if profiled.any():
            demands = [kind.demand for kind in kinds]
            mixes = self._conservative(demands)
            members = list(chain.from_iterable(mix.demands for mix in mixes))
            kept_together = [found.resources.index(name) for name in NOT_KEPT_APART]
            gone |= by_kernels_ruled_out(
                slowdown,
                demands,
                by_memory=np.isin(found.binding, kept_together),
                narrow=shares_of(mixes) @ self.alone(members),
                profiled=profiled,
                busy=busy,
                gpu=self.gpu,
                calibration=self.calibration,
                settings=self.settings,
            )
        return Outlook(slowdown, gone, found)

    def matrix(self, kinds: Sequence[JobGroup], assumed: float = 0.0) -> Matrix:
        """Each job group beside each while busy, under MPS; unmeasured issue slots: `assumed`."""
        mixes = [mix_issuing(kind.demand, assumed) for kind in kinds]
        members = list(chain.from_iterable(mix.demands for mix in mixes))
        found = self.pairs(members, members)
        if len(members) == len(kinds):
            return found
        shares = shares_of(mixes)
        return folded(found, shares, shares)

    def full(self, one: JobGroup, other: JobGroup) -> bool:
        """Whether memory is known not to hold both."""
        return (memory_share(one, other) or 0.0) > self.settings.safe_hbm

    def proposal(self, one: JobGroup, other: JobGroup) -> SharingProposal:
        """Decisive result of a pair: limits and slowdowns of the most demanding runs."""
        demands, profiled = (one.demand, other.demand), bool(one.profile or other.profile)
        least, most = [mix_issuing(mix) for mix in demands], self._conservative(demands)

        def estimated(mixes: Sequence[Mix], sharing: Sharing = _BESIDE) -> Estimate:
            if profiled:
                return self._of_kernels(mixes, sharing)
            return self.estimate([mix.mean for mix in mixes], sharing)

        expected = conservative = _NOT_ESTIMATED
        if not self.full(one, other):  # else nothing more is examined
            expected = conservative = estimated(least)
            members = chain.from_iterable(mix.demands for mix in demands)
            if any("issue" not in demand.cycles for demand in members):
                conservative = estimated(most)
        advice = advise(
            SharingCase(
                estimate=expected,
                conservative=conservative,
                demands=tuple(mix.mean for mix in demands),
                members=tuple(mix.members for mix in most),
                gpu=self.gpu,
                settings=self.settings,
                calibration=self.calibration,
                busy=(one.busy, other.busy),
                same_user=same_user(one, other),
                by_worst=profiled,
                shared=lambda shares: estimated(most, replace(_BESIDE, shares=shares)),
            )
        )
        overlap = overlap_h(one, other)
        return SharingProposal(one, other, advice, overlap, _saved_h(advice, overlap))

    def _of_kernels(self, mixes: Sequence[Mix], sharing: Sharing) -> Estimate:
        """Return an estimate kernel by kernel if one of two groups was profiled.

        Sums are those of the means: the effect of phases is in the slowdowns.
        """
        found = self._member_by_member(mixes, sharing)
        sums = self.estimate([mix.mean for mix in mixes]).sums
        unknown: dict[str, None] = {}
        for one in _unlike(mixes[0]):
            for other in _unlike(mixes[1]):
                unknown |= dict.fromkeys(self.estimate((one, other)).unknown)
        return Estimate(found.members, sums, None, None, safe=found.safe, unknown=tuple(unknown))

    def _member_by_member(self, mixes: Sequence[Mix], sharing: Sharing = _BESIDE) -> MixOutcome:
        one, other = mixes
        turned = (
            sharing if sharing.shares is None else replace(sharing, shares=sharing.shares[::-1])
        )
        here = self.pairs(one.demands, other.demands, sharing)
        there = self.pairs(other.demands, one.demands, turned)
        return corun_of_mixes(one, other, here=here, there=there)

    def over_kernels(self, proposal: SharingProposal) -> SharingProposal:
        """Expected result over all kernel pairs, if one was profiled: shown, not decisive."""
        one, other = proposal.one, proposal.other
        if not (one.profile or other.profile):
            return proposal
        found = self._member_by_member(self._conservative((one.demand, other.demand)))
        return replace(proposal, kernels=found)

    def over_runs(self, proposal: SharingProposal) -> SharingProposal:
        """Expected result over all pairs of runs, if kernels are unknown."""
        one, other = proposal.one, proposal.other
        if one.profile or other.profile:
            return proposal
        found = self._member_by_member(self._conservative((one.mix, other.mix)))
        return replace(proposal, runs=found)

    def _conservative(self, demands: Sequence[Mix]) -> list[Mix]:
        return [mix_issuing(one, self.settings.assumed_issue) for one in demands]


def same_user(one: JobGroup, other: JobGroup) -> bool:
    """Return whether both are of one user, who needs no other user's consent."""
    return one.user is not None and one.user == other.user


def _profiled(kinds: Sequence[JobGroup]) -> Flags:
    return np.array([kind.profile is not None for kind in kinds], dtype=bool)


def over_all_time(slowdown: Floats, kinds: Sequence[JobGroup]) -> Floats:
    """Return slowdowns over all time from those while both are busy."""
    over_all: Floats = 1 + np.array([kind.busy for kind in kinds])[None, :] * (slowdown - 1)
    return over_all


def decisive(found: Matrix, kinds: Sequence[JobGroup]) -> Floats:
    """Return the decisive slowdown of each job group beside each, while both are busy.

    Where one was profiled the worst ones, unless both were and all pairs of their kernels are safe;
    else as expected.
    """
    profiled = _profiled(kinds)
    measured = np.array([kind.issue == "profile" for kind in kinds], dtype=bool)
    safe = (found.safe & found.safe.T > 0) & measured[:, None] & measured[None, :]
    return np.where((profiled[:, None] | profiled[None, :]) & ~safe, found.worst, found.slowdown)


def _unlike(whole: Mix) -> list[Demand]:
    """Return one member per set of measured values, to report what was not measured."""
    found: dict[object, Demand] = {}
    for demand in whole.demands:
        lacks = [field.name for field in fields(demand) if getattr(demand, field.name) is None]
        found.setdefault((frozenset(demand.cycles), *lacks), demand.named(whole.mean.name))
    return list(found.values())


def memory_share(one: JobGroup, other: JobGroup) -> float | None:
    """Return the share of GPU memory at both peaks and one more context; None: unknown."""
    known = [
        kind.mix.highest.hbm_bytes
        for kind in (one, other)
        if kind.mix.highest.hbm_bytes is not None
    ]
    return (
        None if len(known) < 2 else (math.fsum(known) + CONTEXT_BYTES) / (one.device.hbm_mib * MI)
    )


def overlap_h(one: JobGroup, other: JobGroup) -> float:
    """GPU-hours of each that can overlap with the other, if both are always present."""
    return one.gpu_hours / 2 if one is other else min(one.gpu_hours, other.gpu_hours)


def _saved_h(advice: SharingAdvice, overlap: float) -> float:
    """Return GPU-hours saved: two GPUs for the overlap, less one until the slower ended."""
    known = [slowdown for slowdown in advice.conservative if slowdown is not None]
    if advice.mode == "no" or len(known) < 2:
        return 0.0
    return max(0.0, overlap * (2 - max(known)))


@dataclass(frozen=True, slots=True)
class GroupMatrix:
    """Job groups on as many GPUs of a model: row beside column under MPS, and itself.

    slowdown: of the row over all its time, expected from measured demand; conservative: decisive,
    with assumed issue slots where not measured, and the margin of the estimator where one was
    profiled; NaN unknown. binding: place in `resources` of what slows the row, conservative, 255
    nothing. full: whether memory is known not to hold both.
    """

    kinds: tuple[JobGroup, ...]
    slowdown: Floats
    conservative: Floats
    binding: Bytes
    resources: tuple[str, ...]
    full: Flags


def group_matrix(kinds: Sequence[JobGroup], judge: PairJudge) -> GroupMatrix:
    """Return all of `kinds` (same model and number of GPUs) beside all."""
    least, most = judge.matrix(kinds), judge.matrix(kinds, judge.settings.assumed_issue)
    return GroupMatrix(
        kinds=tuple(kinds),
        slowdown=over_all_time(least.slowdown, kinds),
        conservative=over_all_time(decisive(most, kinds), kinds),
        binding=most.binding,
        resources=most.resources,
        full=np.array([[judge.full(one, other) for other in kinds] for one in kinds], dtype=bool),
    )
