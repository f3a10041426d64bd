"""What kernels ask when they are confined to a share of the SMs, as under MPS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tachograph.arrays import Floats
from tachograph.interference.demand import Calibration, Demand, Gpu
from tachograph.interference.sharing import placement
from tachograph.interference.sharing.vectors import Vectors, vectors

_LEAST = 1e-6  # share: no GPU has so many SMs
_NARROWER = 1e-9  # than a share with an SM more


def confine(asked: Vectors, share: float, gpu: Gpu) -> tuple[Vectors, Floats]:
    """Return demands as they are on a `share`, 0..1, of the SMs, and how many times longer each takes there alone.

    Of those SMs more is asked, of DRAM less in the same time.
    """
    share = max(share, _LEAST)
    if share >= 1.0:
        return asked, np.ones(len(asked.names))
    longer = placement.confined(asked.launches, _busiest(asked), share, gpu)
    fuller = np.minimum(1.0, asked.cycles / (share * longer[:, None]))
    return replace(asked, cycles=fuller, dram=asked.dram / longer), longer


def least_on_sms(demands: Sequence[Demand], gpu: Gpu, calibration: Calibration) -> Floats:
    """Return how many times longer each takes alone on 0, 1, 2 .. SMs, by the widest share of so many: (rows, SMs).

    0 on none, which is no share; one column where nobody told how many SMs there are.
    """
    asked, count = vectors(demands, gpu, calibration), gpu.sms or 0
    longer, busiest = np.zeros((len(demands), count + 1)), _busiest(asked)
    for sms in range(1, count + 1):
        longer[:, sms] = placement.confined(asked.launches, busiest, (sms + 1) / count * (1 - _NARROWER), gpu)
    return longer


def _busiest(asked: Vectors) -> Floats:
    """Of the cycles of an SM the share that is asked for most; NaN: nothing was measured."""
    known = np.isfinite(asked.cycles)
    most: Floats = np.max(np.where(known, asked.cycles, 0.0), axis=1, initial=0.0)
    return np.where(known.any(axis=1), most, np.nan)
