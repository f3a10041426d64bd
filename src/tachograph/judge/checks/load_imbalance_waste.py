"""load_imbalance_waste: GPUs wait for the busiest one of their job.

Decided by the published rule of this name (`judge/rules/catalogue/load_imbalance.json`), and by the
class idle_gpus: some GPUs did at most half of what the busiest did. The class is ours, after
idle_nodes.
"""

from __future__ import annotations

from tachograph.judge.check import Check
from tachograph.judge.classes.idleness import idle_class

CHECK = Check(
    "load_imbalance_waste",
    family="imbalance",
    severity="hint",
    title="The GPUs did unequal work",
    causes=("imbalance",),
    brief="Uneven work: GPUs between {idlest_gpu_mean} and {busiest_gpu_mean}",
    advice="Request fewer GPUs, or start one process per GPU "
    "(torchrun --nproc-per-node, in Slurm srun --gpus-per-task); divide the work evenly.",
    job_class=idle_class("GPU", "idle_gpus", "The GPUs did unequal work"),
    deciders=("idle_gpus",),
)
