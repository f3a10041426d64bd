"""Where blocks go: whether a launch leaves room beside it, whether two meet in an SM, what fewer SMs cost.

The block scheduler deals blocks out breadth-first, one to each SM before a second to any, as long as one fits.
"""

from __future__ import annotations

import numpy as np

from tachograph.arrays import Flags, Floats
from tachograph.interference.demand import Gpu
from tachograph.interference.sharing.vectors import Launches


def occupied(launches: Launches, gpu: Gpu) -> Floats:
    """Return what launches occupy of the SM that they load least: (rows; blocks, threads, registers, shared bytes)."""
    sms = np.nan if gpu.sms is None else float(gpu.sms)
    count = np.fmin(np.floor(launches.blocks / sms), launches.fit)
    return np.stack([count, count * launches.threads, count * launches.registers, count * launches.shared], axis=-1)


def of_a_block(launches: Launches) -> Floats:
    """Return what one block occupies: (rows; blocks, threads, registers, shared bytes)."""
    ones = np.where(np.isnan(launches.threads), np.nan, 1.0)
    return np.stack([ones, launches.threads, launches.registers, launches.shared], axis=-1)


def room(gpu: Gpu) -> Floats:
    """Return what an SM has: blocks, threads, registers, shared bytes; NaN: not told."""
    has = (gpu.blocks_per_sm, gpu.threads_per_sm, gpu.registers_per_sm, gpu.shared_bytes_per_sm)
    return np.array([np.nan if value is None else float(value) for value in has])


def told(launches: Launches, gpu: Gpu) -> Flags:
    """Return of which launches everything is known that decides whether their blocks find room beside others."""
    needs = np.concatenate([occupied(launches, gpu), of_a_block(launches)], axis=-1)
    known: Flags = np.isfinite(needs).all(axis=-1) & np.isfinite(room(gpu)).all()
    return known


def apart(blocks: float, shares: float, gpu: Gpu) -> bool:
    """Return whether launches of so many blocks on such shares of the SMs, all together, meet in no SM.

    So it is where each has SMs of its own, or there is an SM for each block. NaN: not known.
    """
    return shares <= 1.0 or (gpu.sms is not None and blocks <= gpu.sms)


def confined(launches: Launches, busiest: Floats, share: float, gpu: Gpu) -> Floats:
    """Return how many times longer launches take on a `share` of the SMs: waves of blocks, each as long as it must be.

    `busiest`: of the cycles of an SM, the share that is asked for most, 0..1; NaN counts as all. A wave takes longer
    than one block once its blocks ask for more than there is. Where the launch is not known: by cycles alone.

    >>> few = Launches(*(np.array([x]) for x in (132.0, 128.0, np.nan, np.nan, 16.0)))
    >>> confined(few, np.array([0.8625]), 0.0625, Gpu(name="", sms=132)).round(2).tolist()
    [14.8]
    """
    if share >= 1.0:
        return np.ones(len(busiest))
    asked = np.where(np.isnan(busiest), 1.0, busiest)
    by_cycles = np.maximum(1.0, asked / share)
    if gpu.sms is None:
        return by_cycles
    all_of_them, few = float(gpu.sms), max(1.0, np.floor(share * gpu.sms))
    spread = np.ceil(np.minimum(launches.blocks, all_of_them * launches.fit) / all_of_them)
    one = asked / np.maximum(spread, 1.0)  # asked by each block
    longer = _waves(launches, one, few) / _waves(launches, one, all_of_them)
    return np.where(np.isnan(longer), by_cycles, np.maximum(longer, 1.0))


def _waves(launches: Launches, asked: Floats, sms: float) -> Floats:
    """Time of all waves, in times of a block."""
    full = np.floor(launches.blocks / (sms * launches.fit))
    rest = np.ceil((launches.blocks - full * sms * launches.fit) / sms)
    last = np.where(rest > 0, np.maximum(1.0, asked * rest), 0.0)
    return full * np.maximum(1.0, asked * launches.fit) + last
