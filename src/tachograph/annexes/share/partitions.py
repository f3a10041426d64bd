"""Parts of a GPU: MIG profiles, SM shares, and pairs that certainly fit on none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import product

import numpy as np

from tachograph.annexes.share.demand import Calibration, Demand, GpuCapacity
from tachograph.annexes.share.mixes import (
    Mix,
    MixMembers,
    issuing,
    launches_known,
    mix_issuing,
)
from tachograph.catalog.arrays import Flags, Floats
from tachograph.catalog.config import InterferenceOptions
from tachograph.catalog.mig import MigProfile, profiles_of


def smallest_together(choices: Sequence[Sequence[MigProfile]]) -> tuple[MigProfile, ...] | None:
    """Return the smallest set of profiles, one per member, that fit on one GPU; or None.

    >>> a100 = profiles_of("A100 SXM 80GB")
    >>> [profile.name for profile in smallest_together([a100[2:], a100[3:]])]
    ['2g.20gb', '3g.40gb']
    >>> smallest_together([a100[4:], a100[4:]])
    """
    fitting = []
    for profiles in product(*choices):
        sms = sum(profile.sms for profile in profiles)
        memory = sum(profile.memory for profile in profiles)
        if sms <= 1 and memory <= 1:
            fitting.append((sms, memory, profiles))
    smallest = min(fitting, key=lambda fit: fit[:2], default=None)
    return None if smallest is None else smallest[2]


def shares_for(demands: Sequence[Demand]) -> tuple[float, ...]:
    """Return SM shares in proportion to the needs; equal shares if one is unknown.

    >>> wide, narrow = (Demand(name="a", cycles={"issue": 0.6}, sm_share=share) for share in (0.6, 0.2))
    >>> [round(share, 2) for share in shares_for([wide, narrow])]
    [0.75, 0.25]
    """
    needs = []
    for demand in demands:
        sm_share = 1.0 if demand.sm_share is None else demand.sm_share
        needs.append(max(demand.cycles.values(), default=0.0) * sm_share)
    if min(needs, default=0.0) <= 0:
        return tuple(1 / len(needs) for _ in needs)
    total = math.fsum(needs)
    return tuple(need / total for need in needs)


def over_members(members: MixMembers, lost: Callable[[Demand], float | None]) -> float | None:
    """Return the mean slowdown over the kernels of a mix by time; None if one is unknown."""
    slowdowns = [(share, lost(demand)) for share, demand in members]
    known = [share * slowdown for share, slowdown in slowdowns if slowdown is not None]
    return math.fsum(known) if len(known) == len(slowdowns) else None


def on_share(demand: Demand, share: float, *, gpu: GpuCapacity) -> float | None:
    """Return a kernel's slowdown on a share 0..1 of the SMs; None if its footprint is unknown.

    With a footprint: the ratio of waves of blocks, or that of demand to capacity of an SM, where
    higher. Without: the share of SMs that it keeps busy over its share.

    >>> on_share(Demand(name="a", sm_share=0.6), 0.5, gpu=GpuCapacity(name="g"))
    1.2
    """
    if share <= 0:
        return None
    width = 1.0 if demand.sm_share is None else demand.sm_share
    filled = max((requested * width / share for requested in demand.cycles.values()), default=0.0)
    feet = demand.footprint
    if feet is not None and feet.blocks_per_sm and gpu.sms:
        some = max(1, math.floor(gpu.sms * share + 1e-9))
        waves = math.ceil(feet.blocks / (some * feet.blocks_per_sm)) / math.ceil(
            feet.blocks / (gpu.sms * feet.blocks_per_sm)
        )
        return max(1.0, waves, filled)
    return None if demand.sm_share is None else max(1.0, width / share, filled)


def if_wide(demand: Demand, share: float) -> float | None:
    """Return the slowdown assuming that every kernel is as wide as the GPU.

    A mean does not distinguish this from kernels that keep a part of the SMs busy all the time.

    >>> if_wide(Demand(name="a", sm_share=0.2), 0.5)
    1.2
    """
    return None if demand.sm_share is None or share <= 0 else 1 + demand.sm_share * (1 / share - 1)


def on_slice(
    demand: Demand, profile: MigProfile, *, gpu: GpuCapacity, calibration: Calibration
) -> float | None:
    """Return the slowdown on a slice, by fewer SMs or less bandwidth; None if unknown."""
    narrow = on_share(demand, float(profile.sms), gpu=gpu)
    share = demand.bandwidth(calibration)
    return None if narrow is None or share is None else max(narrow, share / float(profile.memory))


# Pairs this near the limit are evaluated one by one: sums of floats differ in their last digits.
SLACK = 1e-6


def ruled_out(
    slowdown: Floats,
    demands: Sequence[Demand],
    *,
    busy: Sequence[float],
    gpu: GpuCapacity,
    settings: InterferenceOptions,
) -> Flags:
    """Return for each pair of `demands` whether `advise` surely says `no`: symmetric matrix.

    `slowdown`: of each row beside each column while both are busy, conservative (see `advise`);
    NaN, unknown, rules nothing out. What is not ruled out may get a `no` nevertheless.

    >>> busy = [Demand(name=name, cycles={"fma": 1.0}, sm_share=1.0) for name in "ab"]
    >>> gpu, settings = GpuCapacity(name="A40"), InterferenceOptions()
    >>> ruled_out(np.full((2, 2), 2.0), busy, busy=[1.0, 0.05], gpu=gpu, settings=settings).tolist()
    [[True, True], [True, False]]
    """
    most = settings.max_slowdown - 1 + SLACK
    share = np.array(busy)
    slowed = share[None, :] * (slowdown - 1) > most
    meeting = share > most
    wide = np.array([np.nan if demand.sm_share is None else demand.sm_share for demand in demands])
    # Its width does not limit it.
    unbound = np.array([demand.footprint is not None for demand in demands])
    sliced = _sliced(wide, gpu) <= most
    found: Flags = slowed | slowed.T
    found &= meeting[:, None] | meeting[None, :]  # in turn
    found &= ~(_on_shares(demands, wide, settings) <= most)
    found &= ~(sliced[:, None] & sliced[None, :])
    found &= ~(unbound[:, None] | unbound[None, :])
    return found


def _on_shares(demands: Sequence[Demand], wide: Floats, settings: InterferenceOptions) -> Floats:
    """Least loss of the more slowed one on its share of SMs, if all kernels are wide; NaN: all."""
    assumed = [issuing(demand, settings.assumed_issue) for demand in demands]
    needs = np.array(
        [max(demand.cycles.values(), default=0.0) for demand in assumed]
    ) * np.nan_to_num(wide, nan=1.0)
    both = (needs[:, None] > 0) & (needs[None, :] > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(both, needs[None, :] / needs[:, None], 1.0)
    lost = wide[:, None] * ratio
    worst: Floats = np.maximum(lost, lost.T)
    return worst


def _sliced(wide: Floats, gpu: GpuCapacity) -> Floats:
    """Least loss of each on the largest slice that leaves one for another; infinite without any."""
    shares = [float(min(one.sms, one.memory)) for one in profiles_of(gpu.name, gpu.hbm_bytes)]
    lost: Floats = (
        np.nan_to_num(wide, nan=np.inf) * (1 / max(shares) - 1)
        if shares
        else np.full(len(wide), np.inf)
    )
    return lost


def by_kernels_ruled_out(
    slowdown: Floats,
    mixes: Sequence[Mix],
    *,
    by_memory: Flags,
    narrow: Floats,
    profiled: Flags,
    busy: Sequence[float],
    gpu: GpuCapacity,
    calibration: Calibration,
    settings: InterferenceOptions,
) -> Flags:
    """Return per pair of `mixes` whether `advise` certainly returns `no`: symmetric matrix.

    Only pairs with a `profiled` one are examined. `slowdown`: of each row beside each column over
    all its time, the decisive one; NaN, unknown, rules nothing out. `by_memory`: whether memory
    bandwidth or L2 slows the row there. `narrow`: least slowdown of each mix alone on 0, 1, 2 ..
    SMs, used where all its launches are known. What is not ruled out may get a `no` nevertheless.
    """
    most = settings.max_slowdown + SLACK
    slowed: Flags = slowdown > most
    meeting = 1 + np.array(busy) > most
    found: Flags = (
        (slowed | slowed.T)
        & (meeting[:, None] | meeting[None, :])
        & (profiled[:, None] | profiled[None, :])
    )
    requested = np.array([_bandwidth(mix.mean, calibration) for mix in mixes])
    total = requested[:, None] + requested[None, :]
    short = slowed & by_memory
    # Then slices are examined, and no shares.
    surely = short | short.T | (total >= settings.safe_dram + SLACK)
    unsure = np.array([_unsure(mix) for mix in mixes])
    perhaps = (
        by_memory
        | by_memory.T
        | ~(total < settings.safe_dram - SLACK)
        | unsure[:, None]
        | unsure[None, :]
    )
    slices = [_slices(mix, gpu, calibration, settings) for mix in mixes]
    means = [issuing(mix.mean, settings.assumed_issue) for mix in mixes]
    for i, j in zip(*np.nonzero(np.triu(found)), strict=True):
        fits = bool(perhaps[i, j]) and _together(slices[i], slices[j])
        if not fits and not surely[i, j]:
            shares = shares_for((means[i], means[j]))
            lost = [
                _on_share(mixes[at], narrow[at], share, gpu)
                for at, share in zip((i, j), shares, strict=True)
            ]
            fits = max(lost) <= most
        found[i, j] = found[j, i] = not fits
    return found


def _bandwidth(demand: Demand, calibration: Calibration) -> float:
    """Share of the bandwidth that can be achieved; NaN not known."""
    share = demand.bandwidth(calibration)
    return math.nan if share is None else min(1.0, share)


def _unsure(one: Mix) -> bool:
    """Whether memory may limit it outside the matrix: by L2, or by measured demand only."""
    return one.mean.l2_bytes is not None or any(
        "issue" not in demand.cycles for _, demand in one.members
    )


def _slices(
    one: Mix, gpu: GpuCapacity, calibration: Calibration, settings: InterferenceOptions
) -> tuple[MigProfile, ...]:
    """Slices that may fit it."""
    members = mix_issuing(one, settings.assumed_issue).members

    def fits(profile: MigProfile) -> bool:
        lost = over_members(
            members, partial(on_slice, profile=profile, gpu=gpu, calibration=calibration)
        )
        if lost is None:
            return False
        least = max(lost, _if_wide(one, float(min(profile.sms, profile.memory))))
        return least <= settings.max_slowdown + SLACK

    return tuple(filter(fits, profiles_of(gpu.name, gpu.hbm_bytes)))


@lru_cache(maxsize=4096)
def _together(one: tuple[MigProfile, ...], other: tuple[MigProfile, ...]) -> bool:
    return smallest_together((one, other)) is not None


def _on_share(one: Mix, narrow: Floats, share: float, gpu: GpuCapacity) -> float:
    """Its least slowdown on a share of the SMs."""
    if not launches_known(one.members) or gpu.sms is None:
        return _if_wide(one, share)
    return float(narrow[max(1, math.floor(share * gpu.sms))])


def _if_wide(one: Mix, share: float) -> float:
    """Its assumed least loss if the width of its kernels is unknown; else 0."""
    return 0.0 if launches_known(one.members) else if_wide(one.mean, share) or 0.0
