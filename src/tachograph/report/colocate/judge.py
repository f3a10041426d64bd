"""Two kinds of jobs on one GPU, judged: how to share, how much slower each gets, what that saves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tachograph.arrays import Flags, Floats
from tachograph.config import Interference
from tachograph.interference.demand import Calibration, Demand, Gpu
from tachograph.interference.jobs.advice import advise
from tachograph.interference.jobs.case import Advice
from tachograph.interference.jobs.mixes import issuing
from tachograph.interference.jobs.ruled_out import ruled_out
from tachograph.interference.jobs.together import Pairs, Together, together
from tachograph.interference.jobs.ways import CONTEXT_BYTES
from tachograph.interference.outcome import Estimate, Matrix, Sharing
from tachograph.report.colocate.kinds import Kind
from tachograph.units import MI

MOST_PACKED = 8  # runs of one kind on a GPU that are tried


@dataclass(frozen=True, slots=True)
class Estimator:
    """What tells of demands on one GPU: all pairs, and a set that shares in some way."""

    pairs: Pairs
    estimate: Callable[[Sequence[Demand], Sharing], Estimate]


# the estimator of one GPU, calibrated
EstimatorOf = Callable[[Gpu, Calibration], Estimator]
_SLACK = 1e-6  # sums of floats differ in their last digits
_UNBOUND = 255  # in Matrix.binding
_BESIDE = Sharing("mps", lasting=True)  # jobs launch again and again
_UNASKED = Estimate((), {}, None, None, safe=False, unknown=())  # of a pair that memory does not hold


@dataclass(frozen=True, slots=True)
class Proposal:
    """Two kinds on one GPU in place of two; both may be the same kind: two of its runs.

    overlap_h: GPU-hours of one of them that the other can run beside, at the most. saved_h: GPU-hours fewer then; 0
    where it is not proposed. taken: one of them is in a pair that saves more. packed: so many runs of a kind beside
    itself may share under MPS. runs: what is expected over all pairs of their runs; None where not asked for.
    """

    one: Kind
    other: Kind
    advice: Advice
    overlap_h: float
    saved_h: float
    taken: bool = False
    packed: int = 2
    runs: Together | None = None

    @property
    def memory(self) -> float | None:
        """Share of a GPU's memory that both need together, and a further context; None not known."""
        return memory_share(self.one, self.other)

    @property
    def same_user(self) -> bool:
        """Whether both are of one user, who can do it without asking anybody."""
        return self.one.user is not None and self.one.user == self.other.user


@dataclass(frozen=True, slots=True)
class Outlook:
    """All pairs of kinds, before any is judged.

    slowdown: of each kind (row) beside each (column), all its time, NaN not known. gone: certainly not to be proposed.
    """

    slowdown: Floats
    gone: Flags
    matrix: Matrix

    def short_of(self, i: int, j: int) -> str | None:
        """What a pair that is gone has too little of, as its advice would say; None where it has to be judged."""
        if not self.gone[i, j]:
            return None
        slowdown, binding = self.matrix.slowdown, self.matrix.binding
        ends = [(slowdown[at], int(binding[at])) for at in ((i, j), (j, i)) if binding[at] != _UNBOUND]
        return self.matrix.resources[max(ends, key=lambda end: end[0])[1]] if ends else None


@dataclass(frozen=True, slots=True)
class Judge:
    """Judges kinds on as many GPUs of one model, with the estimator of that GPU."""

    gpu: Gpu
    calibration: Calibration
    settings: Interference
    estimator: Estimator

    def outlook(self, kinds: Sequence[Kind]) -> Outlook:
        """What all pairs of kinds come to, of the runs that ask most, read carefully."""
        highest = [kind.mix.highest for kind in kinds]
        asked = [self._carefully(demand) for demand in highest]
        found, busy = self.estimator.pairs(asked, asked), [kind.busy for kind in kinds]
        gone = ruled_out(found.slowdown, highest, busy=busy, gpu=self.gpu, settings=self.settings)
        slowdown = 1 + np.array(busy)[None, :] * (found.slowdown - 1)
        return Outlook(slowdown, gone, found)

    def full(self, one: Kind, other: Kind) -> bool:
        """Whether memory is known not to hold both."""
        return (memory_share(one, other) or 0.0) > self.settings.safe_hbm

    def proposal(self, one: Kind, other: Kind) -> Proposal:
        """What is to be said of a pair: limits and slowdowns are those of the runs that ask most."""
        demands = [one.mix.highest, other.mix.highest]
        full = self.full(one, other)  # then nothing else is looked at
        same_user = one.user is not None and one.user == other.user
        advice = self._advice(demands, (one.busy, other.busy), same_user=same_user, full=full)
        overlap = overlap_h(one, other)
        return Proposal(one, other, advice, overlap, _saved_h(advice, overlap))

    def _advice(
        self, demands: Sequence[Demand], busy: Sequence[float], *, same_user: bool, full: bool = False
    ) -> Advice:
        asked = [_alike(demand) for demand in demands]
        blind = any("issue" not in demand.cycles for demand in demands)
        most = [self._carefully(demand) for demand in demands]
        return advise(
            _UNASKED if full else self.estimator.estimate(asked, _BESIDE),
            demands,
            careful=self.estimator.estimate(most, _BESIDE) if blind and not full else None,
            gpu=self.gpu,
            settings=self.settings,
            calibration=self.calibration,
            busy=busy,
            same_user=same_user,
            shared=lambda shares: self.estimator.estimate(most, replace(_BESIDE, shares=shares)),
        )

    def packed(self, proposal: Proposal) -> Proposal:
        """The same with how many runs of a kind may share at once, of those that there are."""
        kind, count = proposal.one, 2
        if kind is not proposal.other or proposal.advice.way != "mps":
            return proposal
        while count < min(MOST_PACKED, kind.runs):
            more = count + 1
            if self._too_slow(kind, more):  # by one estimate, before three and their sentences
                break
            if self._advice([kind.mix.highest] * more, [kind.busy] * more, same_user=True).way != "mps":
                break
            count = more
        return replace(proposal, packed=count)

    def _too_slow(self, kind: Kind, count: int) -> bool:
        """Whether so many runs of a kind are certainly too slow under MPS."""
        one = self._carefully(kind.mix.highest)
        slowdown = self.estimator.estimate([one] * count, _BESIDE).members[0].slowdown
        beside = min(1.0, kind.busy * (count - 1))
        return slowdown is not None and 1 + beside * (slowdown - 1) > self.settings.max_slowdown + _SLACK

    def over_runs(self, proposal: Proposal) -> Proposal:
        """The same with what is expected over all pairs of runs."""

        def pairs(rows: Sequence[Demand], columns: Sequence[Demand]) -> Matrix:
            return self.estimator.pairs([*map(self._carefully, rows)], [*map(self._carefully, columns)])

        return replace(proposal, runs=together(proposal.one.mix, proposal.other.mix, pairs=pairs))

    def _carefully(self, demand: Demand) -> Demand:
        return _alike(demand, self.settings.assumed_issue)


def _alike(demand: Demand, assumed: float = 0.0) -> Demand:
    """A demand as the estimator takes it: with issue slots, and as long as any other, for launches are not known."""
    return replace(issuing(demand, assumed), seconds=1.0)


def memory_share(one: Kind, other: Kind) -> float | None:
    """Return the share of a GPU's memory that both need at their peaks, and a further context; None not known."""
    known = [kind.mix.highest.hbm_bytes for kind in (one, other) if kind.mix.highest.hbm_bytes is not None]
    return None if len(known) < 2 else (math.fsum(known) + CONTEXT_BYTES) / (one.device.hbm_mib * MI)


def overlap_h(one: Kind, other: Kind) -> float:
    """GPU-hours of each that can run beside the other, were they always there at the same time."""
    return one.gpu_hours / 2 if one is other else min(one.gpu_hours, other.gpu_hours)


def _saved_h(advice: Advice, overlap: float) -> float:
    """Two GPUs for the overlap, less the one GPU that both take until the slower one is through, read carefully."""
    known = [slowdown for slowdown in advice.careful if slowdown is not None]
    if advice.way == "no" or len(known) < 2:
        return 0.0
    return max(0.0, overlap * (2 - max(known)))
