"""A population of jobs with the shapes that the published study found on its month (IPDPS 2026).

Shapes, not data: sizes (85 % of the jobs on one whole node, some on a hundred and more), pipes in use, utilisation
around 40 %, GPUs of a job that differ, work that comes and goes. The study's samples are not public.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from tachograph.simulate.kinds import FACTS, Behaviour, Kind

# (nodes, share of the jobs); 0: a part of a shared node
SIZES: tuple[tuple[int, float], ...] = (
    *((0, 0.03), (1, 0.845), (2, 0.05), (4, 0.03), (8, 0.02), (16, 0.012)),
    *((32, 0.007), (64, 0.003), (128, 0.002), (256, 0.001)),
)
LONGEST_S = 48 * 3600
WEIGHTS: Mapping[Kind, float] = MappingProxyType(
    {kind: facts.weight for kind, facts in FACTS.items()}
    | {Kind.STEADY: 0.52, Kind.MEMORY_BOUND: 0.10, Kind.ONE_GPU: 0.10, Kind.TENSOR: 0.03, Kind.COMPUTE_BOUND: 0.04}
)
# pipes of ordinary jobs: (share of the jobs, {pipe: least and most activity}, most that GPUs of a job differ)
_MIX: tuple[tuple[float, Mapping[str, tuple[float, float]], float], ...] = (
    (0.50, {"fp64": (0.02, 0.35)}, 1.0),
    (0.23, {"fp64": (0.02, 0.25), "dfma": (0.02, 0.2)}, 0.8),
    (0.08, {"fp32": (0.02, 0.4)}, 0.6),
    (0.08, {"hmma": (0.03, 0.4)}, 2.0),
    (0.05, {"fp32": (0.02, 0.2), "hmma": (0.03, 0.3)}, 1.3),
    (0.03, {"fp64": (0.02, 0.2), "fp32": (0.02, 0.2)}, 0.9),
    (0.003, {"fp16": (0.02, 0.3)}, 0.9),
    (0.027, {}, 0.9),
)


_PLAIN = frozenset({Kind.STEADY, Kind.DEBUG, Kind.SHORT})  # nothing is planted that pauses or differences would hide
_ALIKE = frozenset(
    {*_PLAIN, Kind.ONE_GPU, Kind.HALF_USED, Kind.IMBALANCED, Kind.LOW_MEMORY, Kind.STALLED, Kind.HUNG, Kind.IDLE}
)


def as_in_study(behaviour: Behaviour, rng: np.random.Generator) -> Behaviour:
    """Return an ordinary job with pipes, evenness and pauses of the study's; one of another kind of work as it is."""
    if behaviour.kind not in _ALIKE:
        return behaviour
    shares = np.array([share for share, _, _ in _MIX])
    _, pipes, most = _MIX[int(rng.choice(len(_MIX), p=shares / shares.sum()))]
    util = 0.2 + 0.8 * float(rng.beta(1.7, 0.9))
    drawn = {pipe: util * float(rng.uniform(low, high)) for pipe, (low, high) in pipes.items()}
    sm = min(util, max(sum(drawn.values()), util * float(rng.uniform(0.4, 0.9))))
    levels = {
        **dict.fromkeys(("fp64", "fp32", "fp16", "hmma", "imma", "dfma"), 0.0),
        **drawn,
        "util": util,
        "sm": sm,
        "occupancy": sm * float(rng.uniform(0.2, 0.7)),
        "dram": min(0.86, max(0.002, sum(drawn.values()) * float(np.exp(rng.normal(0.7, 0.7))))),
        "noise": float(rng.uniform(0.04, 0.5)),
    }
    pauses = {"period_s": float(rng.integers(30, 900)), "duty": float(rng.beta(2.0, 1.3))}
    uneven = most * float(rng.beta(1.2, 1.2))
    if behaviour.kind not in _PLAIN:
        pauses, uneven = {}, 0.0
    work = behaviour.work._replace(**levels, **pauses)
    return replace(behaviour, work=work, uneven=uneven)
