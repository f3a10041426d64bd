"""idle_nodes: some nodes of the job did at most half of what the busiest did.

Source: Matveev, Setyaev, Voevodin (2025): characteristics, thresholds and the factor of two, for
hosts.
"""

from __future__ import annotations

from tachograph.judge.check import class_check
from tachograph.judge.classes.idleness import idle_class

CHECK = class_check(
    idle_class(
        "node",
        "idle_nodes",
        "Some nodes did much less than others",
        host=("cpu_user", "l1_misses_per_s", "llc_misses_per_s", "gpu_util"),
    ),
    family="imbalance",
    advice=(
        "Request fewer nodes, or start processes on all of them (in Slurm srun --ntasks-per-node); "
        "divide the work evenly."
    ),
)
