"""Which pairs of kinds are proposed, and a pair that somebody asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tachograph.arrays import Floats
from tachograph.errors import UsageError
from tachograph.report.colocate.judge import Judge, Proposal, overlap_h
from tachograph.report.colocate.kinds import Candidates, Kind
from tachograph.report.colocate.named import named


@dataclass(frozen=True, slots=True)
class Pair:
    """Two kinds that are not proposed; taken: one of them is in a pair that saves more."""

    one: Kind
    other: Kind
    taken: bool
    judge: Judge

    def judged(self) -> Proposal:
        """The same with all that is to be said of it."""
        return replace(self.judge.over_kernels(self.judge.proposal(self.one, self.other)), taken=self.taken)


@dataclass(frozen=True, slots=True)
class Matched:
    """Pairs in which no kind is twice; all others, where asked for; {what they are short of: pairs not proposed}."""

    found: list[Proposal]
    others: list[Pair]
    short: Counter[str]


def matched(kinds: Sequence[Kind], judge: Judge, *, every: bool) -> Matched:
    """Return the pairs to propose, and with `every` all others.

    Greedy: pairs of one user first, in order of what they would save by the matrix of all pairs. Only pairs that it
    does not rule out are judged one by one.
    """
    outlook = judge.outlook(kinds)
    free, done = set(range(len(kinds))), Matched([], [], Counter())
    for i, j in _in_order(kinds, outlook.slowdown):
        one, other = kinds[i], kinds[j]
        taken = not (i in free and j in free)
        if not taken:
            short = "hbm" if judge.full(one, other) else outlook.short_of(i, j)
            if short is None:
                proposal = judge.proposal(one, other)
                if proposal.saved_h > 0:
                    done.found.append(judge.packed(judge.over_kernels(proposal)))
                    free -= {i, j}
                    continue
                short = proposal.advice.binding or "issue"
            done.short[short] += 1
        if every:
            done.others.append(Pair(one, other, taken, judge))
    return done


def _in_order(kinds: Sequence[Kind], slowdown: Floats) -> Iterator[tuple[int, int]]:
    """Places of all pairs: those of one user first, then what saves most, then by name."""
    ones, others = np.triu_indices(len(kinds))
    again = np.array([kind.runs > 1 for kind in kinds], dtype=bool)
    there = (ones != others) | again[ones]
    ones, others = ones[there], others[there]
    hours = np.array([kind.gpu_hours for kind in kinds])
    overlap = np.where(ones == others, hours[ones] / 2, np.minimum(hours[ones], hours[others]))
    slowest = np.maximum(slowdown[ones, others], slowdown[others, ones])
    saved = np.where(np.isnan(slowest), 0.0, overlap * (2 - np.minimum(slowest, 2.0)))
    user, label = _ranks([kind.user or "" for kind in kinds]), _ranks([kind.label for kind in kinds])
    own = (user[ones] == user[others]) & np.array([kind.user is not None for kind in kinds], dtype=bool)[ones]
    order = np.lexsort((label[others], label[ones], -saved, ~own))
    yield from zip(ones[order].tolist(), others[order].tolist(), strict=True)


def _ranks(names: Sequence[str]) -> npt.NDArray[np.int64]:
    places = {name: place for place, name in enumerate(sorted(set(names)))}
    return np.array([places[name] for name in names], dtype=np.int64)


def first_judged(pairs: Sequence[Pair], top: int | None) -> list[Proposal]:
    """Return the pairs judged, in the order of `order`; `top`: only the first so many.

    Those that are not taken save nothing and come first: where they suffice, no other is judged.
    """
    untaken = sorted((pair for pair in pairs if not pair.taken), key=_overlap_first)
    if top is not None and top <= len(untaken):
        return [pair.judged() for pair in untaken[:top]]
    return sorted((pair.judged() for pair in pairs), key=order)[:top]


def order(proposal: Proposal) -> tuple[bool, float, float, str, str]:
    """Key to sort by: those that are free first, then what saves most."""
    return (proposal.taken, -proposal.saved_h, -proposal.overlap_h, proposal.one.label, proposal.other.label)


def _overlap_first(pair: Pair) -> tuple[float, str, str]:
    return (-overlap_h(pair.one, pair.other), pair.one.label, pair.other.label)


def explained(found: Candidates, pair: tuple[str, str], judge_of: Callable[[Kind], Judge]) -> Iterator[Proposal]:
    """The pair on each model and number of GPUs where there are both."""
    ones, others = (named(found, name) for name in pair)
    any_yet = False
    for one in ones:
        for other in others:
            if (one.device.name, one.gpus) != (other.device.name, other.gpus):
                continue
            if one is other and one.runs < 2:
                continue
            any_yet = True
            judge = judge_of(one)
            yield judge.over_runs(judge.over_kernels(judge.proposal(one, other)))
    if not any_yet:
        where = " and ".join(
            " or ".join(dict.fromkeys(f"{kind.gpus} x {kind.device.name}" for kind in kinds))
            for kinds in (ones, others)
        )
        raise UsageError(
            f"{pair[0]} and {pair[1]} cannot share: they ran on {where}",
            do="only jobs on as many GPUs of one model are compared, and a kind with itself only if it ran twice",
        )
