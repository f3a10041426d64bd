"""A GPU whose block scheduler is simulated block by block, without any contention.

Two streams repeat a launch each. A launch waits in line until all blocks of those before it are
dealt out; its blocks then go to the emptiest SM with room.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass


@dataclass(frozen=True)
class SimulatedLaunch:
    blocks: int
    threads: int  # of a block
    block_s: float  # time of a block; each differs by up to `spread` of it
    spread: float = 0.05


@dataclass(frozen=True)
class StreamTimes:
    """Mean time of a launch, and the share of the SMs' time with a block of it."""

    launch_s: float
    active: float


def repeated(
    launches: list[SimulatedLaunch], *, sms: int, threads_per_sm: int, seed: int, most: int = 60
) -> list[StreamTimes]:
    """Return the times of each stream, from its fifth launch to the end of the slower one's 20th.

    `most`: no stream needs more launches than that to be counted.
    """
    chance = random.Random(seed)
    left = [threads_per_sm] * sms
    on_sm = [[0] * sms for _ in launches]  # blocks of each stream on each SM
    since = [[0.0] * sms for _ in launches]
    active = [0.0 for _ in launches]
    waiting = [[place, launch.blocks] for place, launch in enumerate(launches)]  # in line
    at_work = [0 for _ in launches]
    ends: list[list[float]] = [[] for _ in launches]
    blocks: list[tuple[float, int, int]] = []
    now = 0.0
    while min(map(len, ends)) < 20 and max(map(len, ends)) < 40 * most:
        while waiting:
            place, undealt = waiting[0]
            launch = launches[place]
            while undealt:
                sm = max(range(sms), key=left.__getitem__)
                if left[sm] < launch.threads:
                    break
                left[sm] -= launch.threads
                if not on_sm[place][sm]:
                    since[place][sm] = now
                on_sm[place][sm] += 1
                at_work[place] += 1
                undealt -= 1
                time = launch.block_s * (1 + launch.spread * chance.uniform(-1, 1))
                heapq.heappush(blocks, (now + time, place, sm))
            waiting[0][1] = undealt
            if undealt:
                break
            waiting.pop(0)
        now, place, sm = heapq.heappop(blocks)
        left[sm] += launches[place].threads
        on_sm[place][sm] -= 1
        if not on_sm[place][sm]:
            active[place] += now - since[place][sm]
        at_work[place] -= 1
        if not at_work[place] and not any(one[0] == place for one in waiting):
            ends[place].append(now)
            waiting.append([place, launches[place].blocks])
    return [
        StreamTimes((each[-1] - each[4]) / (len(each) - 5), busy / (sms * now))
        for each, busy in zip(ends, active, strict=True)
    ]
