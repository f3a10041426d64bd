"""A simulated cluster of a given number of samples."""

from __future__ import annotations

from tachograph.annexes.lab.simulate.plan import LEAN_COUNTERS, NodeGroup, SimulationPlan


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
