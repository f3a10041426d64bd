"""Which job groups could share a GPU: pairs proposed, worth a try, or explained, as one report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import combinations_with_replacement, groupby

import numpy as np
import polars as pl

from tachograph.annexes.share.calibration import of_model
from tachograph.annexes.share.capacity import gpu_of_device
from tachograph.annexes.share.demand import Calibration, CorunBounds
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
from tachograph.annexes.share.mixes import CorunLaw, corun_bounds
from tachograph.annexes.share.proposals import GroupPairs, SharingProposal, matched
from tachograph.catalog.arrays import Flags, Floats
from tachograph.catalog.config import Configuration, InterferenceOptions
from tachograph.catalog.devices import match_device
from tachograph.catalog.errors import UsageError

# Of one model and number of GPUs, those of most GPU-hours, where each pair is a row or a cell.
MOST_GROUPS = 150


@dataclass(frozen=True, slots=True)
class ColocateRequest:
    """Request for the report. every: also pairs that are not proposed, at most `top` of them.

    least_runs: of a group. pair: two groups (user/name) or jobs (ids) that shall be explained.
    matrix: all groups beside all in place of proposals.
    """

    least_runs: int = LEAST_RUNS
    every: bool = False
    top: int | None = None
    pair: tuple[str, str] | None = None
    matrix: bool = False


@dataclass(frozen=True, slots=True)
class GroupMatrix:
    """Job groups on as many GPUs of a model under MPS, each beside each and itself.

    bounds: of the row for all time in which it uses the GPU. fits: memory holds both.
    """

    kinds: tuple[JobGroup, ...]
    bounds: CorunBounds
    fits: Flags


@dataclass(frozen=True, slots=True)
class ColocateReport:
    """Report on sharing of `jobs` examined jobs.

    proposals: most hours first, no group in two of them. trials: pairs worth a try, of groups that
    are in no proposal. refused: all other pairs, where requested. chosen: the requested pair.
    left_out: (reason, jobs, GPU-hours). missing: counters that no job has. cut: groups left out of
    `refused` or `matrices`: there are too many. profiled: groups whose kernels are
    known. refused_profiles: a line for each that is not used. matrices: all groups beside all,
    where requested, one of each model and number of GPUs.
    """

    jobs: int
    gpu_hours: float
    first: datetime | None
    last: datetime | None
    kinds: int
    proposals: tuple[SharingProposal, ...]
    trials: tuple[SharingProposal, ...]
    refused: tuple[SharingProposal, ...]
    chosen: tuple[SharingProposal, ...]
    left_out: tuple[tuple[str, int, float], ...]
    missing: tuple[str, ...]
    calibration: Calibration
    settings: InterferenceOptions
    least_runs: int
    cut: int
    not_proposed: int
    zone_name: str
    profiled: tuple[JobGroup, ...]
    refused_profiles: tuple[str, ...]
    matrices: tuple[GroupMatrix, ...] | None

    @property
    def saved_h(self) -> float:
        """GPU-hours that all proposals together free, at the upper ends of the slowdowns."""
        return math.fsum(proposal.saved_h for proposal in self.proposals)

    @property
    def saved_most_h(self) -> float:
        """GPU-hours that the pairs worth a try free, at the lower ends of the slowdowns."""
        return math.fsum(proposal.saved_most_h for proposal in self.trials)


def build_colocate_report(
    summaries: pl.DataFrame,
    verdicts: pl.DataFrame,
    request: ColocateRequest,
    *,
    configuration: Configuration,
    calibration: Calibration,
    profiles: Sequence[GivenProfile] = (),
    read: LaunchReader = lambda report: (),
    law: CorunLaw = corun_bounds,
) -> ColocateReport:
    """Return the report on (already filtered) rows of job_summaries.

    `verdicts`: rows of findings with job_key, code, verdict, those of the class `stable` among
    them. `profiles`: reports of Nsight Compute of kinds, which `read` reads. `law`: of kernels that
    share a GPU. Errors: NotFoundError for a kind of the pair that there is not; UsageError for one
    that cannot be compared; that of the first profile where none named at the command can be used.
    """
    settings, pair = configuration.interference, request.pair
    achievable = _achievable(summaries, calibration)
    groups_found = candidates(
        summaries,
        verdicts,
        settings=settings,
        thresholds=configuration.thresholds,
        achievable=achievable,
        least_runs=1 if pair else request.least_runs,
    )
    groups_found, refused_profiles = profiled(groups_found, profiles, read)

    def pairs_of(groups: Sequence[JobGroup]) -> GroupPairs:
        device = groups[0].device
        here = replace(of_model(calibration, device.name), achievable_share=achievable[device.name])
        return GroupPairs(tuple(groups), gpu_of_device(device), here, settings, law)

    requested = _requested(groups_found, pair) if pair else ()
    explained = [pairs_of(both).proposal(0, len(both) - 1) for both in requested]
    comparable = [] if pair else list(_comparable(groups_found.kinds))
    matrices: list[GroupMatrix] = []
    proposals: list[SharingProposal] = []
    trials: list[SharingProposal] = []
    refused: list[SharingProposal] = []
    for groups in comparable:
        if request.matrix:
            matrices.append(_matrix(pairs_of(groups[:MOST_GROUPS])))
            continue
        whole = pairs_of(groups)
        shared, worth_a_try = _matched(whole)
        proposals += [whole.proposal(i, j) for i, j in shared]
        trials += [whole.proposal(i, j) for i, j in worth_a_try]
        if request.every:
            refused += _others(whole, {*shared, *worth_a_try})
    cut = sum(max(0, len(groups) - MOST_GROUPS) for groups in comparable)
    return ColocateReport(
        jobs=summaries.height,
        gpu_hours=float(summaries.get_column("gpu_hours").sum()),
        first=summaries.select(pl.col("start").min()).item() if summaries.height else None,
        last=summaries.select(pl.col("as_of").max()).item() if summaries.height else None,
        kinds=len(groups_found.kinds),
        proposals=tuple(sorted(proposals, key=_order)),
        trials=tuple(sorted(trials, key=_order)),
        refused=tuple(sorted(refused, key=_order)[: request.top]),
        not_proposed=len(refused),
        chosen=tuple(explained),
        left_out=tuple(groups_found.reasons()),
        missing=tuple(missing_counters(summaries)) if summaries.height else (),
        calibration=calibration,
        settings=settings,
        least_runs=request.least_runs,
        cut=cut if request.matrix or request.every else 0,
        zone_name=configuration.site.time_zone,
        profiled=tuple(kind for kind in groups_found.kinds if kind.profile),
        refused_profiles=refused_profiles,
        matrices=tuple(matrices) if request.matrix else None,
    )


def _matched(pairs: GroupPairs) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the pairs to propose, and of the other groups those worth a try; see `matched`."""
    free = np.ones(len(pairs.groups), dtype=bool)

    def surely(i: int) -> Floats:
        high = pairs.least_high(i)
        return np.where(high <= pairs.limit, pairs.gains(i, high), 0.0)

    def perhaps(i: int) -> Floats:
        return pairs.gains(i, pairs.trial_slowdown(i))

    return matched(surely, free), matched(perhaps, free)


def _others(pairs: GroupPairs, matched_pairs: set[tuple[int, int]]) -> Iterator[SharingProposal]:
    """Yield all other pairs of the groups of most GPU-hours."""
    taken = {index for pair in matched_pairs for index in pair}
    indexes = range(min(len(pairs.groups), MOST_GROUPS))
    for i, j in combinations_with_replacement(indexes, 2):
        runs_twice = i != j or pairs.groups[i].runs > 1
        if runs_twice and not {(i, j), (j, i)} & matched_pairs:
            yield pairs.proposal(i, j, taken=i in taken or j in taken)


def _order(proposal: SharingProposal) -> tuple[bool, float, float, float, str, str]:
    """Sort key: free groups first, then the most hours."""
    return (
        proposal.taken,
        -proposal.saved_h,
        -proposal.saved_most_h,
        -proposal.overlap_h,
        proposal.one.label,
        proposal.other.label,
    )


def _matrix(pairs: GroupPairs) -> GroupMatrix:
    fits = np.array([pairs.fits(i) for i in range(len(pairs.groups))], dtype=bool)
    return GroupMatrix(pairs.groups, pairs.under_mps(), fits)


def _requested(groups: GroupCandidates, pair: tuple[str, str]) -> Iterator[tuple[JobGroup, ...]]:
    """Yield both groups on each model and number of GPUs; one group where it is both.

    Errors: UsageError if they form no pair.
    """
    ones, others = (named(groups, name) for name in pair)
    none_yet = True
    for first in ones:
        for other in others:
            same_shape = (first.device.name, first.gpus) == (other.device.name, other.gpus)
            if same_shape and (first is not other or first.runs > 1):
                none_yet = False
                yield (first,) if first is other else (first, other)
    if none_yet and ones == others:
        raise UsageError(
            f"{pair[0]} cannot share with itself: it ran once",
            do="name two job groups, or one that ran at least twice",
        )
    if none_yet:
        ran = f"{_ran_on(ones)} and {_ran_on(others)}"
        raise UsageError(
            f"{pair[0]} and {pair[1]} cannot share: they ran on {ran}",
            do="only jobs on as many GPUs of one model are compared",
        )


def _ran_on(groups: Sequence[JobGroup]) -> str:
    return " or ".join(dict.fromkeys(f"{group.gpus} x {group.device.name}" for group in groups))


def _achievable(summaries: pl.DataFrame, calibration: Calibration) -> dict[str, float]:
    """{model: share of peak bandwidth}: as calibrated, or the highest sample of any job, where
    that is more.
    """
    highest = summaries.group_by("gpu_model").agg(pl.col("dram_active_max").max())
    shares: dict[str, float] = {}
    for model, share in highest.iter_rows():
        device = match_device(model)
        if device is not None:
            before = shares.get(device.name, of_model(calibration, device.name).achievable_share)
            shares[device.name] = max(before, min(1.0, share or 0.0))
    return shares


def _comparable(kinds: Sequence[JobGroup]) -> Iterator[list[JobGroup]]:
    """Return groups on the same number of GPUs of one model: the slowest GPU sets the pace."""

    def shape(kind: JobGroup) -> tuple[str, int]:
        return kind.device.name, kind.gpus

    for _, group in groupby(sorted(kinds, key=shape), key=shape):
        yield list(group)
