"""Which job groups could share a GPU: pairs, explained or matched, as one report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import combinations_with_replacement, groupby

import numpy as np
import polars as pl

from tachograph.annexes.share.capacity import gpu_of_device
from tachograph.annexes.share.demand import Calibration
from tachograph.annexes.share.job_groups import (
    LEAST_RUNS,
    GivenProfile,
    GroupCandidates,
    JobGroup,
    LaunchReader,
    candidates,
    missing_counters,
    named,
    profiled,
)
from tachograph.annexes.share.proposals import (
    GroupMatrix,
    PairJudge,
    SharingProposal,
    group_matrix,
    overlap_h,
    same_user,
)
from tachograph.catalog.arrays import Floats
from tachograph.catalog.config import InterferenceOptions, Thresholds
from tachograph.catalog.devices import match_device
from tachograph.catalog.errors import UsageError


@dataclass(frozen=True, slots=True)
class GroupPair:
    """Two groups that are not proposed; taken: one is in a pair that saves more."""

    one: JobGroup
    other: JobGroup
    taken: bool
    judge: PairJudge

    def judged(self) -> SharingProposal:
        """The same with all results."""
        return replace(
            self.judge.over_kernels(self.judge.proposal(self.one, self.other)), taken=self.taken
        )


@dataclass(frozen=True, slots=True)
class Matched:
    """Pairs with each group once; all others, on request; {limiting resource: rejected pairs}."""

    found: list[SharingProposal]
    others: list[GroupPair]
    short: Counter[str]


def matched_pairs(kinds: Sequence[JobGroup], judge: PairJudge, *, every: bool) -> Matched:
    """Return the pairs to propose; `every`: and all others.

    Greedy: pairs of one user first, in order of savings by the matrix of all pairs. Only pairs that
    it does not rule out are evaluated one by one.
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
                    done.found.append(judge.over_kernels(proposal))
                    free -= {i, j}
                    continue
                short = proposal.advice.binding or "issue"
            done.short[short] += 1
        if every:
            done.others.append(GroupPair(one, other, taken, judge))
    return done


def _in_order(kinds: Sequence[JobGroup], slowdown: Floats) -> list[tuple[int, int]]:
    """Return all pairs sorted: same user first, then by savings, then by name."""
    slowest = np.maximum(slowdown, slowdown.T).tolist()
    labels = [kind.label for kind in kinds]

    def key(pair: tuple[int, int]) -> tuple[bool, float, str, str]:
        i, j = pair
        saved = 0.0
        if not math.isnan(slowest[i][j]):
            saved = overlap_h(kinds[i], kinds[j]) * (2 - min(slowest[i][j], 2.0))
        return not same_user(kinds[i], kinds[j]), -saved, labels[i], labels[j]

    pairs = combinations_with_replacement(range(len(kinds)), 2)
    return sorted(((i, j) for i, j in pairs if i != j or kinds[i].runs > 1), key=key)


def first_judged(pairs: Sequence[GroupPair], top: int | None) -> list[SharingProposal]:
    """Return the evaluated pairs, in the order of `order`; `top`: only the first `top`.

    Those that are not taken save nothing and are first: where they suffice, no other is evaluated.
    """
    untaken = sorted((pair for pair in pairs if not pair.taken), key=_overlap_first)
    if top is not None and top <= len(untaken):
        return [pair.judged() for pair in untaken[:top]]
    return sorted((pair.judged() for pair in pairs), key=order)[:top]


def order(proposal: SharingProposal) -> tuple[bool, float, float, str, str]:
    """Sort key: free groups first, then highest savings."""
    return (
        proposal.taken,
        -proposal.saved_h,
        -proposal.overlap_h,
        proposal.one.label,
        proposal.other.label,
    )


def _overlap_first(pair: GroupPair) -> tuple[float, str, str]:
    return (-overlap_h(pair.one, pair.other), pair.one.label, pair.other.label)


def explained(
    found: GroupCandidates, pair: tuple[str, str], judge_of: Callable[[JobGroup], PairJudge]
) -> Iterator[SharingProposal]:
    """Pairs of both groups on each model and number of GPUs."""
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
        raise _no_pair(pair, ones, others)


def _no_pair(
    pair: tuple[str, str], ones: Sequence[JobGroup], others: Sequence[JobGroup]
) -> UsageError:
    """Return why two groups form no pair: one group with a single run, or different GPUs."""
    if ones == others:
        return UsageError(
            f"{pair[0]} cannot share with itself: it ran once",
            do="name two job groups, or one that ran at least twice",
        )
    return UsageError(
        f"{pair[0]} and {pair[1]} cannot share: they ran on {_ran_on(ones)} and {_ran_on(others)}",
        do="only jobs on as many GPUs of one model are compared",
    )


def _ran_on(groups: Sequence[JobGroup]) -> str:
    return " or ".join(dict.fromkeys(f"{group.gpus} x {group.device.name}" for group in groups))


# Of one model and number of GPUs, those of most GPU-hours: all their pairs are evaluated.
MOST_GROUPS = 150


@dataclass(frozen=True, slots=True)
class ColocateReport:
    """Report on sharing of `jobs` examined jobs.

    proposals: largest savings first, no group in two of them. refused: other pairs, where
    requested, the first of `not_proposed`. chosen: the requested pair, explained. left_out:
    (reason, jobs, GPU-hours). missing: counters that no job has. achievable: {model: share of the
    peak bandwidth of memory that can be achieved, as far as is known}. short: (resource, pairs that
    were evaluated and not proposed for it, most first). cut: groups not compared: there are too
    many. profiled: groups evaluated by their kernels. refused_profiles: a line for each that is not
    used. matrices: all groups beside all, where requested, one of each model and number of GPUs.
    """

    jobs: int
    gpu_hours: float
    first: datetime | None
    last: datetime | None
    kinds: int
    proposals: tuple[SharingProposal, ...]
    refused: tuple[SharingProposal, ...]
    chosen: tuple[SharingProposal, ...]
    left_out: tuple[tuple[str, int, float], ...]
    missing: tuple[str, ...]
    achievable: tuple[tuple[str, float], ...]
    calibration: Calibration
    settings: InterferenceOptions
    short: tuple[tuple[str, int], ...] = ()
    least_runs: int = LEAST_RUNS
    cut: int = 0
    not_proposed: int = 0
    zone_name: str = "UTC"
    profiled: tuple[JobGroup, ...] = ()
    refused_profiles: tuple[str, ...] = ()
    matrices: tuple[GroupMatrix, ...] | None = None

    @property
    def saved_h(self) -> float:
        """GPU-hours that all proposals together would save."""
        return math.fsum(proposal.saved_h for proposal in self.proposals)


def build_colocate_report(
    summaries: pl.DataFrame,
    verdicts: pl.DataFrame,
    *,
    settings: InterferenceOptions,
    thresholds: Thresholds,
    calibration: Calibration,
    least_runs: int = LEAST_RUNS,
    every: bool = False,
    top: int | None = None,
    pair: tuple[str, str] | None = None,
    matrix: bool = False,
    profiles: Sequence[GivenProfile] = (),
    read: LaunchReader = lambda report: (),
    zone_name: str = "UTC",
    judge: type[PairJudge] = PairJudge,
) -> ColocateReport:
    """Return the report on (already filtered) rows of job_summaries.

    `verdicts`: rows of findings with job_key, code, verdict, those of the class `stable` among
    them. `every`: pairs that are not proposed, too, at most `top` of them. `pair`: two kinds
    (user/name) or jobs (ids) that shall be explained. `matrix`: all kinds beside all in place of
    proposals. `profiles`: reports of Nsight Compute of kinds, which `read` reads. `judge`:
    evaluates pairs. Errors: NotFoundError for a kind of the pair that there is not; UsageError for
    one that cannot be compared; that of the first profile where none named at the command can be
    used.
    """
    if least_runs < 1:
        raise UsageError(f"invalid --runs {least_runs}", do="give 1 or more")
    achievable = _achievable(summaries, calibration)
    found = candidates(
        summaries,
        verdicts,
        settings=settings,
        thresholds=thresholds,
        achievable=achievable,
        least_runs=1 if pair else least_runs,
    )
    found, refused_profiles = profiled(found, profiles, read)

    def judge_of(kind: JobGroup) -> PairJudge:
        model = kind.device.name
        here = replace(calibration, achievable_share=achievable[model])
        return judge(gpu_of_device(kind.device), here, settings)

    comparable = [] if pair else list(_comparable(found.kinds))
    compared = [kinds[:MOST_GROUPS] for kinds in comparable]
    cut = sum(map(len, comparable)) - sum(map(len, compared))
    matrices: tuple[GroupMatrix, ...] | None = None
    if matrix:
        matrices = tuple(group_matrix(kinds, judge_of(kinds[0])) for kinds in compared)
        compared = []
    proposals: list[SharingProposal] = []
    refused: list[GroupPair] = []
    short: Counter[str] = Counter()
    for kinds in compared:
        judged = matched_pairs(kinds, judge_of(kinds[0]), every=every)
        proposals += judged.found
        refused += judged.others
        short += judged.short
    models = {kind.device.name for kind in found.kinds}
    return ColocateReport(
        jobs=summaries.height,
        gpu_hours=float(summaries.get_column("gpu_hours").sum()),
        first=summaries.select(pl.col("start").min()).item() if summaries.height else None,
        last=summaries.select(pl.col("as_of").max()).item() if summaries.height else None,
        kinds=len(found.kinds),
        proposals=tuple(sorted(proposals, key=order)),
        refused=tuple(first_judged(refused, top)),
        not_proposed=len(refused),
        chosen=tuple(explained(found, pair, judge_of)) if pair else (),
        left_out=tuple(found.reasons()),
        missing=tuple(missing_counters(summaries)) if summaries.height else (),
        achievable=tuple(sorted((model, achievable[model]) for model in models)),
        calibration=calibration,
        settings=settings,
        short=tuple(sorted(short.items(), key=lambda item: (-item[1], item[0]))),
        least_runs=least_runs,
        cut=cut,
        zone_name=zone_name,
        profiled=tuple(kind for kind in found.kinds if kind.profile),
        refused_profiles=refused_profiles,
        matrices=matrices,
    )


def _achievable(summaries: pl.DataFrame, calibration: Calibration) -> dict[str, float]:
    """{model: share of peak bandwidth}: as calibrated, or the highest sample of any job, where
    that is more.
    """
    highest = summaries.group_by("gpu_model").agg(pl.col("dram_active_max").max())
    shares: dict[str, float] = {}
    for model, share in highest.iter_rows():
        device = match_device(model)
        if device is not None:
            before = shares.get(device.name, calibration.achievable_share)
            shares[device.name] = max(before, min(1.0, share or 0.0))
    return shares


def _comparable(kinds: Sequence[JobGroup]) -> Iterator[list[JobGroup]]:
    """Return groups on the same number of GPUs of one model: the slowest GPU sets the pace."""

    def shape(kind: JobGroup) -> tuple[str, int]:
        return kind.device.name, kind.gpus

    for _, group in groupby(sorted(kinds, key=shape), key=shape):
        yield list(group)
