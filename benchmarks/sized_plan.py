"""Simulated clusters of a given number of samples, and the month of the published study.

Its shapes are those of IPDPS 2026: mostly one node, a tail to many, few pipes; its samples are not
public.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tachograph.annexes.lab.simulate.behaviours import JOB_KINDS, Draw, JobBehaviour, JobKind
from tachograph.annexes.lab.simulate.plan import LEAN_COUNTERS, JobShapes, NodeGroup, SimulationPlan


def sized_plan(samples: int, *, seed: int = 1) -> SimulationPlan:
    """Return a plan for `samples` or more samples of four-GPU nodes, 10 s apart, main counters."""
    gpu_days = max(1.0, samples / 8640)
    days = min(31, max(1, round((gpu_days / 8) ** (1 / 3))))
    nodes = -int(-gpu_days // (4 * days))
    large = nodes // 7
    groups = [NodeGroup(nodes - large, 4, "A100 SXM 40GB")]
    if large:
        groups.append(NodeGroup(large, 4, "A100 SXM 80GB"))
    return SimulationPlan(
        seed=seed, days=days, groups=tuple(groups), counters=LEAN_COUNTERS, median_hours=2.0
    )


# (nodes, share of the jobs); 0: a part of a shared node
STUDY_SIZES: tuple[tuple[int, float], ...] = (
    *((0, 0.03), (1, 0.845), (2, 0.05), (4, 0.03), (8, 0.02), (16, 0.012)),
    *((32, 0.007), (64, 0.003), (128, 0.002), (256, 0.001)),
)
STUDY_LONGEST_S = 48 * 3600
STUDY_WEIGHTS: Mapping[JobKind, float] = {
    **{kind: facts.weight for kind, facts in JOB_KINDS.items()},
    JobKind.STEADY: 0.52,
    JobKind.MEMORY_BOUND: 0.10,
    JobKind.ONE_GPU: 0.10,
    JobKind.TENSOR: 0.03,
    JobKind.COMPUTE_BOUND: 0.04,
}
# pipes of ordinary jobs: (share of the jobs, {pipe: least and most activity}, most that GPUs of a
# job differ)
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


_PLAIN = frozenset(
    {JobKind.STEADY, JobKind.DEBUG, JobKind.SHORT}
)  # nothing planted that pauses or differences would mask
_ALIKE = frozenset(
    {
        *_PLAIN,
        JobKind.ONE_GPU,
        JobKind.HALF_USED,
        JobKind.IMBALANCED,
        JobKind.LOW_MEMORY,
        JobKind.STALLED,
        JobKind.HUNG,
        JobKind.IDLE,
    }
)


def as_in_study(behaviour: JobBehaviour, rng: Draw) -> JobBehaviour:
    """Return an ordinary job with the study's pipes, evenness and pauses; others unchanged."""
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
        return replace(behaviour, work=behaviour.work._replace(**levels))
    behaviour = replace(behaviour, work=behaviour.work._replace(**levels, **pauses))
    return behaviour.with_shares(lambda part: max(0.02, 1.0 - uneven * part))


STUDY = JobShapes(
    STUDY_WEIGHTS, STUDY_SIZES, STUDY_LONGEST_S, shared_waits=True, change=as_in_study
)


def month_plan(*, seed: int = 1) -> SimulationPlan:
    """Return 31 days of 1,792 nodes, 7,168 A100, 1.92e9 samples, with the study's job shapes."""
    return SimulationPlan(
        seed=seed,
        days=31,
        groups=(NodeGroup(1536, 4, "A100 SXM 40GB"), NodeGroup(256, 4, "A100 SXM 80GB")),
        shared=0.04,
        counters=LEAN_COUNTERS,
        median_hours=4.3,
        rows_per_file=2_800_000,
        as_printed=True,
        shapes=STUDY,
    )
