"""What a part of a GPU costs: fewer SMs, or a slice with less bandwidth, too."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tachograph.interference.demand import Calibration, Demand, Gpu
from tachograph.interference.jobs.mig import Profile


def shares_for(demands: Sequence[Demand]) -> tuple[float, ...]:
    """Return shares of the SMs in proportion to what each needs of an SM, where it is; alike where that is not known.

    >>> wide, narrow = (Demand(name="a", cycles={"issue": 0.6}, sm_share=share) for share in (0.6, 0.2))
    >>> [round(share, 2) for share in shares_for([wide, narrow])]
    [0.75, 0.25]
    """
    needs = [
        max(demand.cycles.values(), default=0.0) * (1.0 if demand.sm_share is None else demand.sm_share)
        for demand in demands
    ]
    total = math.fsum(needs)
    return tuple(need / total if min(needs) > 0 else 1 / len(needs) for need in needs)


def on_share(demand: Demand, share: float, *, gpu: Gpu) -> float | None:
    """Return how much longer a kernel takes on a share 0..1 of the SMs; None where what it occupies is not known.

    With a footprint: as many more waves of blocks, or, where an SM is asked for more than it gives, that. Without:
    what it keeps busy of the SMs over what it gets.

    >>> on_share(Demand(name="a", sm_share=0.6), 0.5, gpu=Gpu(name="g"))
    1.2
    """
    if share <= 0:
        return None
    width = 1.0 if demand.sm_share is None else demand.sm_share
    crowded = max((asked * width / share for asked in demand.cycles.values()), default=0.0)
    feet = demand.footprint
    if feet is not None and feet.blocks_per_sm and gpu.sms:
        some = max(1, math.floor(gpu.sms * share + 1e-9))
        waves = math.ceil(feet.blocks / (some * feet.blocks_per_sm)) / math.ceil(
            feet.blocks / (gpu.sms * feet.blocks_per_sm)
        )
        return max(1.0, waves, crowded)
    return None if demand.sm_share is None else max(1.0, width / share, crowded)


def if_wide(demand: Demand, share: float) -> float | None:
    """Return the same were every kernel as wide as the GPU, for the part of the time in which SMs are active.

    A mean does not tell it from kernels that keep a part of the SMs busy all the time.

    >>> if_wide(Demand(name="a", sm_share=0.2), 0.5)
    1.2
    """
    return None if demand.sm_share is None or share <= 0 else 1 + demand.sm_share * (1 / share - 1)


def on_slice(demand: Demand, profile: Profile, *, gpu: Gpu, calibration: Calibration) -> float | None:
    """Return the slowdown on a slice: that of fewer SMs, or of less bandwidth; None where either is not known."""
    narrow = on_share(demand, float(profile.sms), gpu=gpu)
    if narrow is None or demand.dram is None:
        return None
    share = demand.dram / (calibration.achievable_share if demand.dram_of == "peak" else 1.0)
    return max(narrow, share / float(profile.memory))
