"""idle_nodes: some nodes of the job did at most half of what the busiest did.

Source: Matveev, Setyaev, Voevodin (2025): characteristics, thresholds and the factor of two, for hosts.
"""

from __future__ import annotations

from collections.abc import Iterator

from tachograph.judge.check import Check
from tachograph.judge.classes.idleness import IdleUnits, judge_idle
from tachograph.judge.classes.inputs import ClassInput, JobClass
from tachograph.judge.finding import Finding

_NODES = IdleUnits("node")


def _judge(job_class: JobClass, form: ClassInput) -> Iterator[tuple[int, Finding]]:
    return judge_idle(_NODES, form.nodes, job_class, form)


IDLE_NODES = JobClass(
    "idle_nodes",
    "hint",
    "Some nodes did much less than others",
    _judge,
    gpu=("gpu_util", "sm_active", "dram_active", "power"),
    host=("cpu_user", "l1_misses_per_s", "llc_misses_per_s", "gpu_util"),
)

CHECK = Check(
    "idle_nodes",
    family="imbalance",
    severity=IDLE_NODES.severity,
    title=IDLE_NODES.title,
    advice=(
        "Request fewer nodes, or start processes on all of them (srun with --ntasks-per-node); divide the work evenly."
    ),
    evidence=("units", "units_affected", "gpus", "nodes", "busiest_gpu_mean", "idlest_gpu_mean"),
    job_class=IDLE_NODES,
)
