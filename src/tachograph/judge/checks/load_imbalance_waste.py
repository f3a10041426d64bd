"""load_imbalance_waste: GPUs wait for the busiest one of their job.

Decided by the published rule of this name (`judge/rules/catalogue/load_imbalance.json`), and by the class idle_gpus:
some GPUs did at most half of what the busiest did. The class is ours, after idle_nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.judge.check import Check
from tachograph.judge.classes.idleness import IdleUnits, judge_idle
from tachograph.judge.classes.inputs import ClassInput, JobClass
from tachograph.judge.finding import Finding

_GPUS = IdleUnits("GPU")


def _judge(job_class: JobClass, form: ClassInput) -> Iterator[tuple[int, Finding]]:
    return judge_idle(_GPUS, form.gpus, job_class, form)


IDLE_GPUS = JobClass(
    "idle_gpus",
    "hint",
    "Load Imbalance",
    _judge,
    gpu=("gpu_util", "sm_active", "dram_active", "power"),
    host=(),
)

CHECK = Check(
    "load_imbalance_waste",
    family="imbalance",
    severity="hint",
    title="Load Imbalance",
    advice="Request fewer GPUs, or start one process per GPU (srun with --gpus-per-task, torchrun --nproc-per-node); "
    "divide the work evenly.",
    evidence=("units", "units_affected", "gpus", "nodes", "busiest_gpu_mean", "idlest_gpu_mean"),
    job_class=IDLE_GPUS,
    deciders=("idle_gpus",),
)
