"""Some GPUs of the job did nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.activity import (
    UNIT,
    GpuActivityRow,
    activity_counter,
    gpu_activity,
    gpu_labels,
)
from tachograph.judge.check import ANY_ACTIVITY, Check, CheckedJob, Found, threshold
from tachograph.judge.checks.idle_job import HELD_MIB, WAITING_ADVICE
from tachograph.pipeline.timelines import ACTIVITY


@dataclass(frozen=True, slots=True)
class IdleGpus:
    """GPUs of a job of which some, but not all, were idle.

    `measured`: all with known activity, busiest first. `idle`: by node and GPU. `waiting`: how many
    of the idle ones held memory, so that a program had loaded something.
    """

    measured: Sequence[GpuActivityRow]
    idle: Sequence[GpuActivityRow]
    waiting: int


UNUSED = ("idle_job", "one_gpu_of_many", "gpus_never_used")  # what `gpus_needed` takes
WHOLE_NODES_ADVICE = (
    "Its nodes are given whole: request as many nodes as the GPUs at work need, or a partition that "
    "gives GPUs singly. If the program can use all, start one process per GPU "
    "(torchrun --nproc-per-node, in Slurm srun --gpus-per-task)."
)


def request_advice(job: CheckedJob) -> str | None:
    """Return the advice where fewer GPUs of a node free nothing; None: the advice of the check."""
    return WHOLE_NODES_ADVICE if job.summary.get("exclusive") else None


# by any counter: `idle_gpus` takes that of the job
IDLE_GPU = pl.any_horizontal(pl.col(f"{name}_mean") < threshold("idle_util") for name in ACTIVITY)


def idle_gpus(job: CheckedJob) -> IdleGpus | None:
    """Return GPUs below `idle_util` on average while others worked; None if there are none."""
    counter = activity_counter(job.summary)
    if counter is None:
        return None
    means = [mean for mean in job.of_gpus.values(f"{counter}_mean") if mean is not None]
    if not 0 < sum(mean < job.thresholds.idle_util for mean in means) < len(means):
        return None
    measured = gpu_activity(job.summary, job.of_gpus.values)
    if measured is None:
        return None
    idle = [gpu for gpu in measured if gpu["activity_mean"] < job.thresholds.idle_util]
    idle.sort(key=lambda gpu: (gpu["node"], gpu["gpu"], -1 if gpu["mig"] is None else gpu["mig"]))
    memory = zip(*map(job.of_gpus.values, (*UNIT, "hbm_used_mib_max")), strict=True)
    holding = {tuple(unit) for *unit, used in memory if used is not None and used >= HELD_MIB}
    waiting = sum((gpu["node"], gpu["gpu"], gpu["mig"]) in holding for gpu in idle)
    return IdleGpus(measured, idle, waiting)


def gpus_needed(evidence: Mapping[str, Mapping[str, float]], gpus: int | None) -> int | None:
    """Return how many GPUs of a job worked or held a loaded program; None: not known of all.

    `evidence`: of its findings that hold, by code.

    >>> gpus_needed({"gpus_never_used": {"gpus_seen": 8, "gpus_unused": 6, "gpus_waiting": 1}}, 8)
    3
    >>> gpus_needed({"idle_job": {"hbm_used_mib_max": 0.0}}, None) is None
    True
    """
    idle = evidence.get("idle_job")
    if idle is not None and gpus is not None and idle.get("gpus_seen") == gpus:
        return 0 if idle.get("hbm_used_mib_max", HELD_MIB) < HELD_MIB else None
    some = evidence.get("one_gpu_of_many") or evidence.get("gpus_never_used")
    if some is None or gpus is None or some.get("gpus_seen") != gpus:
        return None
    return int(gpus - some["gpus_unused"] + some.get("gpus_waiting", 0))


def decide(job: CheckedJob) -> Found | None:
    """Return Found if some GPUs stayed below `idle_util` while others worked."""
    some = idle_gpus(job)
    if some is None:
        return None
    idle, measured = some.idle, some.measured
    busy = len(measured) - len(idle)
    they = "It" if len(idle) == 1 else "They"
    waits = some.waiting == len(idle)
    kept = f" {they} held {text(HELD_MIB, 'MiB')} of memory or more." if waits else ""
    return Found(
        f"{len(idle)} of {len(measured)} GPUs ({gpu_labels(idle, of=measured)}) stayed under "
        f"{text(job.thresholds.idle_util, 'fraction')} on average"
        f"{job.so_far} while {busy} {'GPU' if busy == 1 else 'GPUs'} worked.{kept}",
        job.evidence(
            "gpus",
            gpus_unused=len(idle),
            gpus_seen=len(measured),
            gpus_waiting=some.waiting,
        ),
        advice=WAITING_ADVICE if waits else request_advice(job),
    )


CHECK = Check(
    "gpus_never_used",
    family="idle GPUs",
    severity="problem",
    title="Some GPUs were not used",
    causes=("never_used", "idle"),
    brief="{gpus_unused} of {gpus_seen} GPUs not used; {gpu_hours_idle} unused",
    advice=(
        "Request as many GPUs as the program uses, or start one process per GPU "
        "(torchrun --nproc-per-node, in Slurm srun --gpus-per-task)."
    ),
    needs=(ANY_ACTIVITY,),
    decide=decide,
    gpu_condition=IDLE_GPU,
)
