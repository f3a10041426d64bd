"""Pairs for which no way of sharing is left, found all at once, so that only the others are judged one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tachograph.arrays import Flags, Floats
from tachograph.config import Interference
from tachograph.interference.demand import Demand, Gpu
from tachograph.interference.jobs.mig import profiles_of
from tachograph.interference.jobs.mixes import issuing

SLACK = 1e-6  # what is so near the limit is judged itself: sums of floats differ in their last digits


def ruled_out(
    slowdown: Floats, demands: Sequence[Demand], *, busy: Sequence[float], gpu: Gpu, settings: Interference
) -> Flags:
    """Return, of each pair of `demands`, whether `advise` says `no` to it for certain: (rows, columns), symmetric.

    `slowdown`: of each row beside each column while both are busy, read carefully (see `advise`); NaN, not known, rules
    nothing out. What is not ruled out may get a `no` nevertheless.

    >>> busy = [Demand(name=name, cycles={"fma": 1.0}, sm_share=1.0) for name in "ab"]
    >>> ruled_out(np.full((2, 2), 2.0), busy, busy=[1.0, 0.05], gpu=Gpu(name="A40"), settings=Interference()).tolist()
    [[True, True], [True, False]]
    """
    most = settings.max_slowdown - 1 + SLACK
    share = np.array(busy)
    slowed = share[None, :] * (slowdown - 1) > most
    meeting = share > most
    wide = np.array([np.nan if demand.sm_share is None else demand.sm_share for demand in demands])
    unbound = np.array([demand.footprint is not None for demand in demands])  # its width is no limit
    sliced = _sliced(wide, gpu) <= most
    found: Flags = slowed | slowed.T
    found &= meeting[:, None] | meeting[None, :]  # in turn
    found &= ~(_on_shares(demands, wide, settings) <= most)
    found &= ~(sliced[:, None] & sliced[None, :])
    found &= ~(unbound[:, None] | unbound[None, :])
    return found


def _on_shares(demands: Sequence[Demand], wide: Floats, settings: Interference) -> Floats:
    """What the one that is slowed more loses on its share of the SMs at the least, were all kernels wide; NaN: all."""
    assumed = [issuing(demand, settings.assumed_issue) for demand in demands]
    needs = np.array([max(demand.cycles.values(), default=0.0) for demand in assumed]) * np.nan_to_num(wide, nan=1.0)
    both = (needs[:, None] > 0) & (needs[None, :] > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = np.where(both, needs[None, :] / needs[:, None], 1.0)
    lost = wide[:, None] * rest
    worst: Floats = np.maximum(lost, lost.T)
    return worst


def _sliced(wide: Floats, gpu: Gpu) -> Floats:
    """What each loses at the least on the largest slice that leaves room for another; infinite without any."""
    shares = [float(min(one.sms, one.memory)) for one in profiles_of(gpu.name, gpu.hbm_bytes)]
    lost: Floats = np.nan_to_num(wide, nan=np.inf) * (1 / max(shares) - 1) if shares else np.full(len(wide), np.inf)
    return lost
