"""It is not known which GPUs the job held."""

from __future__ import annotations

from tachograph.catalog.columns import share_text
from tachograph.judge.check import Check, CheckedJob, Found


def decide(job: CheckedJob) -> Found | None:
    """Return that the GPUs of the job are unknown."""
    if job.summary.get("attribution") != "ambiguous":
        return None
    share = share_text(job.summary)
    if share:
        return Found(
            f"The job had a share ({share}) of GPUs that other jobs held at the same time, or may have held; "
            "samples of a GPU are of all that hold it, so no GPU numbers are given.",
            job.evidence("elapsed_s"),
        )
    return Found(
        "No record names the GPUs of the job on its nodes, or shows that it had the nodes to itself; "
        "the nodes' average is not the job's, so no GPU numbers are given.",
        job.evidence("gpus", "elapsed_s"),
    )


CHECK = Check(
    "ambiguous_attribution",
    family="data quality",
    severity="note",
    title="Which GPUs belonged to the job is not known",
    advice=(
        "Staff: let the Slurm prolog write a map of job to GPUs, or record `scontrol show job -d` while jobs run; "
        "both can be ingested. Where a partition or QOS gives whole nodes, name it in [slurm] exclusive."
    ),
    evidence=("gpus", "elapsed_s"),
    of_samples=False,
    decide=decide,
)
