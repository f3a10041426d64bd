"""Which pairs of kinds are proposed, and a pair that somebody asked for."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import polars as pl

from tachograph.errors import NotFoundError, UsageError
from tachograph.report.colocate.judge import Judge, Proposal, overlap_h
from tachograph.report.colocate.kinds import LEFT_OUT, Candidates, Kind
from tachograph.report.columns import must_exist


@dataclass(frozen=True, slots=True)
class Matched:
    """Pairs in which no kind is twice; all others, where asked for; {what they are short of: pairs not proposed}."""

    found: list[Proposal]
    others: list[Proposal]
    short: Counter[str]


def matched(kinds: Sequence[Kind], judge: Judge, *, every: bool) -> Matched:
    """Return the pairs to propose, and with `every` all others.

    Greedy: pairs of one user first, in order of what they would save by the matrix of all pairs.
    """
    table = judge.slowdowns(kinds)
    order = sorted(
        (
            (_rank(kinds, table, i, j), i, j)
            for i, one in enumerate(kinds)
            for j in range(i, len(kinds))
            if i != j or one.runs > 1
        ),
        key=lambda item: item[0],
    )
    free, done = set(range(len(kinds))), Matched([], [], Counter())
    for _, i, j in order:
        taken = not (i in free and j in free)
        if not every and taken:
            continue
        if not every and judge.full(kinds[i], kinds[j]):
            done.short["hbm"] += 1
            continue
        proposal = replace(judge.proposal(kinds[i], kinds[j]), taken=taken)
        if proposal.saved_h > 0 and not taken:
            done.found.append(judge.packed(proposal))
            free -= {i, j}
            continue
        if not taken:
            done.short[proposal.advice.binding or "issue"] += 1
        if every:
            done.others.append(proposal)
    return done


def _rank(kinds: Sequence[Kind], table: Sequence[Sequence[float]], i: int, j: int) -> tuple[bool, float, str, str]:
    one, other = kinds[i], kinds[j]
    slowest = max(table[i][j], table[j][i])
    saved = 0.0 if math.isnan(slowest) else overlap_h(one, other) * (2 - min(2.0, slowest))
    own = one.user is not None and one.user == other.user
    return not own, -saved, one.label, other.label


def explained(found: Candidates, pair: tuple[str, str], judge_of: Callable[[Kind], Judge]) -> Iterator[Proposal]:
    """The pair on each model and number of GPUs where there are both."""
    ones, others = (_named(found, name) for name in pair)
    any_yet = False
    for one in ones:
        for other in others:
            if (one.device.name, one.gpus) != (other.device.name, other.gpus):
                continue
            if one is other and one.runs < 2:
                continue
            any_yet = True
            judge = judge_of(one)
            yield judge.over_runs(judge.proposal(one, other))
    if not any_yet:
        where = " and ".join(
            " or ".join(dict.fromkeys(f"{kind.gpus} x {kind.device.name}" for kind in kinds))
            for kinds in (ones, others)
        )
        raise UsageError(
            f"{pair[0]} and {pair[1]} cannot share: they ran on {where}",
            do="only jobs on as many GPUs of one model are compared, and a kind with itself only if it ran twice",
        )


def _named(found: Candidates, name: str) -> list[Kind]:
    """The kinds that a person means: user/name, or the id of a job.

    Errors: UsageError where it is left out, with the reason; NotFoundError where it is not known.
    """
    kinds = [
        kind for kind in found.kinds if name in (kind.label, f"{kind.user or '?'}/{kind.name}") or (name in kind.jobs)
    ]
    if kinds:
        return kinds
    called = pl.concat_str(pl.col("user").fill_null("?"), pl.lit("/"), pl.col("name").fill_null(""))
    mine = found.left_out.filter((called == name) | (pl.col("display_id") == name) | (pl.col("job_id") == name))
    if mine.is_empty():
        known = [kind.label for kind in found.kinds]
        must_exist([name], known, what="kind of job")
        raise NotFoundError(f"no kind of job {name!r}", do="write user/name, or the id of a job")
    reasons = dict.fromkeys(LEFT_OUT[reason] for reason in mine.get_column("reason"))
    raise UsageError(f"{name} cannot be judged: {'; '.join(reasons)}", do="name another, or see --help")
