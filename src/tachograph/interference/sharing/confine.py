"""What kernels ask when they are confined to a share of the SMs, as under MPS."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tachograph.arrays import Floats
from tachograph.interference.demand import Gpu
from tachograph.interference.sharing import placement
from tachograph.interference.sharing.vectors import Vectors

_LEAST = 1e-6  # share: no GPU has so many SMs


def confine(vectors: Vectors, share: float, gpu: Gpu) -> tuple[Vectors, Floats]:
    """Return demands as they are on a `share`, 0..1, of the SMs, and how many times longer each takes there alone.

    Of those SMs more is asked, of DRAM less in the same time.
    """
    share = max(share, _LEAST)
    if share >= 1.0:
        return vectors, np.ones(len(vectors.names))
    known = np.isfinite(vectors.cycles)
    busiest = np.where(known.any(axis=1), np.max(np.where(known, vectors.cycles, 0.0), axis=1, initial=0.0), np.nan)
    longer = placement.confined(vectors.launches, busiest, share, gpu)
    fuller = np.minimum(1.0, vectors.cycles / (share * longer[:, None]))
    return replace(vectors, cycles=fuller, dram=vectors.dram / longer), longer
