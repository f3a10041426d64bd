"""Level of work of a job's minutes: by counters of work where measured, else by its own power.

Utilisation is no evidence of work: a hung collective operation (NCCL) shows 100 %, and so does a
copy to the host. Power is, compared with that of the same job at work. Ours; tried on recordings
of an H100 and on simulated jobs (`tachograph lab accuracy --counters utilisation_power`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tachograph.catalog.arrays import Flags, Longs, Singles
from tachograph.judge.classes.characteristics import AWAKE, GPU, SM_BUSY, WORK

# Levels: 0 idle, 1 as usual at work. A GPU waits below the first and works from the second on;
# between them lie lighter phases of work as well as waits of power-hungry kinds: not known.
WAITING, WORKING = 0.4, 0.6
PINNED = 0.97  # utilisation from which on it may be a GPU that waits by polling; loads come and go
LEAST_WORK = 10  # minutes at a power that make it the power at work: less is a peak
LONG_WORK = 20  # minutes at work beside a wait at full utilisation, else the work may be the peak
NEAR_HIGHEST = 0.75  # of the highest: from there on a minute counts for the power at work
IDLE_SHARE = 0.15  # of the board's power: an idle GPU, where none of the job's minutes was idle
LEAST_RISE = 1.25  # power at work over idle power; nearer to it power does not show work
TRAFFIC = 0.015  # memory utilisation: a copy to the host of an H100 shows 0.02, polling nothing
USUAL_TRAFFIC = 0.1  # share of the job's usual memory utilisation from which on it works
USUAL = 0.1  # of the other minutes at full utilisation: if more show little power, that is usual
_IDLE_MINUTES = 3  # from which on the job's own idle power counts


@dataclass(frozen=True, slots=True)
class MinuteColumns:
    """Minutes of jobs, one job behind the other; NaN where not measured.

    Of the busiest GPU: `util`, `work` (arithmetic or memory traffic), `sm` activity, `memory`
    utilisation, and the highest `power_w`. `pcie`, `nvlink`: bytes per second, means over GPUs.
    """

    util: Singles
    work: Singles
    sm: Singles
    memory: Singles
    power_w: Singles
    pcie: Singles
    nvlink: Singles


def work_levels(minutes: MinuteColumns, offset: Longs, board_w: Singles) -> Singles:
    """Return the level of work of each minute: below WAITING none, from WORKING on work.

    NaN: not measured, or neither. `offset`: first minute of each job, and behind the last their
    number. `board_w`: board power of each job's GPUs, NaN unknown.

    >>> watts = np.repeat(np.array([640, 240, 400], np.float32), [72, 168, 1])
    >>> busy, unknown = np.ones(241, np.float32), np.full(241, np.nan, np.float32)
    >>> columns = MinuteColumns(busy, unknown, unknown, unknown, watts, unknown, unknown)
    >>> levels = work_levels(columns, np.array([0, 241]), np.array([700], np.float32))
    >>> [round(float(levels[minute]), 2) for minute in (0, 100, 240)]
    [1.0, 0.25, nan]
    """
    counted = np.minimum(minutes.work * np.float32(WORKING / WORK), np.float32(1))
    counted[(minutes.work >= WORK) | (minutes.sm >= SM_BUSY)] = 1.0
    power, traffic = _shares_of_own(minutes, offset, board_w)
    level: Singles = np.fmax(counted, power)
    level[(level >= WAITING) & (level < WORKING)] = np.nan
    # An idle GPU has nothing to do, whatever its power.
    level[(minutes.util < AWAKE) & ~(level >= WORKING)] = 0.0
    moves = (minutes.util >= AWAKE) & (minutes.memory >= TRAFFIC) & ~(level >= WORKING)
    level[moves] = np.nan
    level[moves & (traffic >= USUAL_TRAFFIC)] = 1.0
    for values, name in ((minutes.pcie, "pcie"), (minutes.nvlink, "nvlink")):
        level[values >= (GPU[name].busy or np.inf)] = 1.0
    return level


def _shares_of_own(
    minutes: MinuteColumns, offset: Longs, board_w: Singles
) -> tuple[Singles, Singles]:
    """Return power between idle (0) and at work (1), and memory utilisation over that at work."""
    power, traffic = np.full((2, len(minutes.util)), np.nan, np.float32)
    awake = ~(minutes.util < AWAKE)
    for job, (first, last) in enumerate(pairwise(offset.tolist())):
        if first == last:
            continue
        watts, memory = minutes.power_w[first:last], minutes.memory[first:last]
        used = awake[first:last]
        idle = watts[~used & ~np.isnan(watts)]
        if idle.size >= _IDLE_MINUTES:
            floor = median(idle)
        else:
            floor = IDLE_SHARE * _known_or(float(board_w[job]), _highest(watts))
        at_work = usual_at_work(watts[used], floor)
        if at_work >= LEAST_RISE * floor:
            share = (watts - np.float32(floor)) / np.float32(at_work - floor)
            power[first:last] = _by_utilisation(share, minutes.util[first:last])
        usual = usual_at_work(memory[used], 0.0)
        # of nearly nothing a tenth is noise
        if usual >= TRAFFIC / USUAL_TRAFFIC:
            traffic[first:last] = memory / np.float32(usual)
    return np.maximum(power, np.float32(0)), traffic


def _by_utilisation(share: Singles, util: Singles) -> Singles:
    """Return shares of power; those at full utilisation by the utilisation at work.

    Where it was 80 % at work, work at 100 % takes a quarter more power: less than that is unclear
    unless it is NEAR_HIGHEST.
    """
    at_work = util[(share >= NEAR_HIGHEST) & ~np.isnan(util)]
    if not at_work.size:
        return share
    usual = np.float32(min(1.0, median(at_work)))
    compared = share * usual
    compared[(share >= WORKING) & (compared < WAITING)] = WAITING
    lower = (util >= PINNED) & (share >= WAITING) & (share < NEAR_HIGHEST)
    return np.where(lower, compared, share)


def median(values: Singles) -> float:
    """Return the median of known numbers: for few of them np.median takes ten times as long.

    >>> median(np.array([3, 1, 2, 9], np.float32)), median(np.array([3, 1, 2], np.float32))
    (2.5, 2.0)
    """
    half = values.size // 2
    if values.size % 2:
        return float(np.partition(values, half)[half])
    below, above = np.partition(values, (half - 1, half))[half - 1 : half + 1]
    return float((below + above) / 2)


def usual_at_work(values: Singles, floor: float) -> float:
    """Return the median of a job's minutes at work; NaN where fewer than LEAST_WORK were measured.

    They lie NEAR_HIGHEST or above, between `floor` and the value that LEAST_WORK minutes reach.

    >>> usual_at_work(np.array([90.0] * 300 + [640.0] * 30 + [700.0] * 5, np.float32), 70.0)
    640.0
    """
    known = values[~np.isnan(values)]
    if known.size < LEAST_WORK:
        return np.nan
    high = float(np.partition(known, -LEAST_WORK)[-LEAST_WORK])
    if high <= floor:
        return high
    return median(known[known >= floor + NEAR_HIGHEST * (high - floor)])


def low_is_usual(level: Singles, util: Singles, inside: Flags) -> bool:
    """Return whether a job shows full utilisation with little power outside an interval, too.

    Copies, evaluation and decoding come back; a collective operation hangs once. A pause half as
    long as the interval also shows that the job comes back from it. True also where there is little
    work beside it.
    """
    pinned = (util >= PINNED) & ~inside
    if np.count_nonzero((level >= WORKING) & ~inside) < LONG_WORK:
        return True
    low = pinned & (level < WAITING)
    longest = here = 0
    for is_low in low.tolist():
        here = here + 1 if is_low else 0
        longest = max(longest, here)
    often = np.count_nonzero(low) > USUAL * np.count_nonzero(pinned)
    return bool(often or 2 * longest >= np.count_nonzero(inside))


def _highest(values: Singles) -> float:
    return float(np.fmax.reduce(values)) if values.size else np.nan


def _known_or(value: float, otherwise: float) -> float:
    return otherwise if np.isnan(value) else value
