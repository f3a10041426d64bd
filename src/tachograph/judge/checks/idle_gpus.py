"""idle_gpus: some GPUs of the job did at most half of what the busiest did. Ours, after idle_nodes."""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.judge.classes.idleness import IdleUnits, judge_idle
from tachograph.judge.classes.inputs import ClassInput, JobClass
from tachograph.judge.finding import Finding

_GPUS = IdleUnits(
    "GPU",
    "Ask for fewer GPUs, or start one process per GPU (srun with --gpus-per-task, torchrun --nproc-per-node); divide "
    "the work evenly.",
)


def _judge(job_class: JobClass, form: ClassInput) -> Iterator[tuple[int, Finding]]:
    return judge_idle(_GPUS, form.gpus, job_class, form)


IDLE_GPUS = JobClass(
    "idle_gpus",
    "hint",
    "Some GPUs did much less than others",
    _judge,
    gpu=("gpu_util", "sm_active", "dram_active", "power"),
    host=(),
)
