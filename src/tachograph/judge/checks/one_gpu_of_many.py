"""Exactly one GPU of several worked."""

from __future__ import annotations

from tachograph.catalog.units import text
from tachograph.judge.activity import gpu_labels
from tachograph.judge.check import ANY_ACTIVITY, Check, CheckedJob, Found
from tachograph.judge.checks.gpus_never_used import IDLE_GPU, idle_gpus, request_advice


def decide(job: CheckedJob) -> Found | None:
    """Return Found if one GPU worked and all others stayed below `idle_util`."""
    some = idle_gpus(job)
    if some is None or len(some.idle) != len(some.measured) - 1:
        return None
    idle, measured = some.idle, some.measured
    busy = measured[:1]
    mean = float(busy[0]["activity_mean"])
    return Found(
        f"{gpu_labels(busy, of=measured)} was at {text(mean, 'fraction')} on average, "
        f"the other {len(idle)} stayed "
        f"under {text(job.thresholds.idle_util, 'fraction')}{job.so_far}.",
        job.evidence(
            "gpus",
            busiest_gpu_mean=mean,
            gpus_unused=len(idle),
            gpus_seen=len(measured),
            gpus_waiting=some.waiting,
        ),
        advice=request_advice(job),
    )


CHECK = Check(
    "one_gpu_of_many",
    family="idle GPUs",
    severity="problem",
    title="Only one of several GPUs was used",
    causes=("never_used", "idle"),
    brief="1 of {gpus_seen} GPUs used; {gpu_hours_idle} unused",
    advice=(
        "Request one GPU. If the program can use several, start one process per GPU "
        "(torchrun --nproc-per-node, in Slurm srun --gpus-per-task)."
    ),
    needs=(ANY_ACTIVITY,),
    decide=decide,
    gpu_condition=IDLE_GPU,
)
