"""The same as `ruled_out`, of pairs of which one was profiled: by each kernel alone on fewer SMs, and on slices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from tachograph.arrays import Flags, Floats
from tachograph.config import Interference
from tachograph.interference.demand import Calibration, Demand, Gpu
from tachograph.interference.jobs.mig import Profile, profiles_of, smallest_together
from tachograph.interference.jobs.mixes import Mix, issuing
from tachograph.interference.jobs.narrower import if_wide, on_slice, shares_for
from tachograph.interference.jobs.ruled_out import SLACK


def by_kernels_ruled_out(
    slowdown: Floats,
    mixes: Sequence[Mix],
    *,
    by_memory: Flags,
    narrow: Floats,
    profiled: Sequence[bool],
    busy: Sequence[float],
    gpu: Gpu,
    calibration: Calibration,
    settings: Interference,
) -> Flags:
    """Return, of each pair of `mixes`, whether `advise` says `no` to it for certain: (rows, columns), symmetric.

    Only pairs are looked at of which one was `profiled`. `slowdown`: of each row beside each column over all its time,
    as it decides; NaN, not known, rules nothing out. `by_memory`: whether memory bandwidth or L2 are what slows the row
    there. `narrow`: of each mix the least it is slowed alone on 0, 1, 2 .. SMs, used where all its launches are known.
    What is not ruled out may get a `no` nevertheless.
    """
    most = settings.max_slowdown + SLACK
    slowed: Flags = slowdown > most
    meeting = 1 + np.array(busy) > most
    kernels = np.array(profiled, dtype=bool)
    found: Flags = (slowed | slowed.T) & (meeting[:, None] | meeting[None, :]) & (kernels[:, None] | kernels[None, :])
    asked = np.array([_bandwidth(one.mean, calibration) for one in mixes])
    total = asked[:, None] + asked[None, :]
    short = slowed & by_memory
    surely = short | short.T | (total >= settings.safe_dram + SLACK)  # then slices are looked at, and no shares
    unsure = np.array([_unsure(one) for one in mixes])
    perhaps = by_memory | by_memory.T | ~(total < settings.safe_dram - SLACK) | unsure[:, None] | unsure[None, :]
    slices = [_slices(one, gpu, calibration, settings) for one in mixes]
    means = [issuing(one.mean, settings.assumed_issue) for one in mixes]
    for i, j in zip(*np.nonzero(np.triu(found)), strict=True):
        fits = bool(perhaps[i, j]) and _together(slices[i], slices[j])
        if not fits and not surely[i, j]:
            shares = shares_for((means[i], means[j]))
            lost = [_on_share(mixes[at], narrow[at], share, gpu) for at, share in zip((i, j), shares, strict=True)]
            by_margin = bool(kernels[i] and kernels[j])
            fits = max(_with_margin(lost, (busy[j], busy[i]), settings) if by_margin else lost) <= most
        found[i, j] = found[j, i] = not fits
    return found


def _bandwidth(demand: Demand, calibration: Calibration) -> float:
    """Share of the bandwidth that can be achieved; NaN not known."""
    if demand.dram is None:
        return math.nan
    return min(1.0, demand.dram / (calibration.achievable_share if demand.dram_of == "peak" else 1.0))


def _unsure(one: Mix) -> bool:
    """Whether it may be short of memory though the matrix does not say so: by L2, or read by what was measured only."""
    return one.mean.l2_bytes is not None or any("issue" not in demand.cycles for _, demand in one.members)


def _slices(one: Mix, gpu: Gpu, calibration: Calibration, settings: Interference) -> tuple[Profile, ...]:
    """The slices that may hold it."""
    members = [(share, issuing(demand, settings.assumed_issue)) for share, demand in one.members]

    def fits(profile: Profile) -> bool:
        lost = [(share, on_slice(demand, profile, gpu=gpu, calibration=calibration)) for share, demand in members]
        known = [share * slowdown for share, slowdown in lost if slowdown is not None]
        least = max(math.fsum(known), _if_wide(one, float(min(profile.sms, profile.memory))))
        return len(known) == len(lost) and least <= settings.max_slowdown + SLACK

    return tuple(filter(fits, profiles_of(gpu.name, gpu.hbm_bytes)))


@lru_cache(maxsize=4096)
def _together(one: tuple[Profile, ...], other: tuple[Profile, ...]) -> bool:
    return smallest_together((one, other)) is not None


def _on_share(one: Mix, narrow: Floats, share: float, gpu: Gpu) -> float:
    """What it is slowed at the least on a share of the SMs."""
    if not _laid_out(one) or gpu.sms is None:
        return _if_wide(one, share)
    return float(narrow[max(1, math.floor(share * gpu.sms))])


def _if_wide(one: Mix, share: float) -> float:
    """What it is counted to lose, at the least, where nobody knows how wide its kernels are; else nothing."""
    return 0.0 if _laid_out(one) else if_wide(one.mean, share) or 0.0


def _laid_out(one: Mix) -> bool:
    return all(demand.footprint is not None for _, demand in one.members)


def _with_margin(lost: Sequence[float], others: Sequence[float], settings: Interference) -> list[float]:
    """The same as it decides: two are not safe where one of them is slowed by its share alone."""
    more = max(settings.margin, 1.0) - 1 if max(lost) > 1 + SLACK else 0.0
    return [slowdown * (1 + min(1.0, share) * more) for slowdown, share in zip(lost, others, strict=True)]
