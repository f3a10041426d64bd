"""Which GPUs the job held is unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import polars as pl

from tachograph.catalog.columns import share_text
from tachograph.judge.check import Check, CheckedJob, Found

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


_MAP = (
    "Staff: let the prolog write a map of job to GPUs, or in Slurm record `squeue --json` while "
    "jobs run; both can be ingested."
)
_EXCLUSIVE = f"{_MAP} Where a partition or QOS gives whole nodes, name it in [slurm] exclusive."
_NUMBERS = "If Slurm numbers GPUs as device files do, set slurm.gpu_numbers."
SAME_NAME = (
    "Staff: give telemetry the accounting's name of the cluster, by `cluster` in [[sources]] or "
    "`--cluster`, and `ingest` it again. A label that names a cluster counts first: see "
    "`labels.cluster`."
)
# {reason of job_summaries: (in a sentence, what to do)}
AMBIGUOUS_REASONS: Mapping[str, tuple[str, str]] = {
    "contradicted": (
        (
            "Another job is named on its GPUs most of the time, by a record at least as good "
            "as its own."
        ),
        f"Staff: compare the maps and job labels of that time. {_NUMBERS}",
    ),
    "other_clusters": (
        (
            "A job of another cluster ran at the same time on a node of the same name, and "
            "samples do not name the cluster of their node."
        ),
        "Staff: keep one lake per cluster where clusters have nodes of the same name.",
    ),
    "other_names": ("Telemetry of its nodes names another cluster than its accounting.", SAME_NAME),
    "other_slices": (
        (
            "A record gives it a whole GPU, and records of the MIG slices of that GPU name "
            "other jobs."
        ),
        (
            "Staff: record the slice of each job, by the label GPU_I_ID of its samples or the "
            "column mig of a map."
        ),
    ),
    "too_many_samples": (
        "Samples name it on more GPUs than it was allocated.",
        (
            "Staff: check the job label or column of the samples: it may name the job of the "
            "node, not of the GPU."
        ),
    ),
    "shared_gpus": ("It had shares of GPUs that other jobs held too, or may have held.", _MAP),
    "unknown_numbers": (
        (
            "A record names its nodes and not which of their GPUs: its numbers fit none, "
            "samples name several jobs, or sources number the GPUs of a node differently."
        ),
        (
            f"{_NUMBERS} Telemetry with UUIDs or minor numbers of all GPUs of the node shows "
            "which number a GPU has."
        ),
    ),
    "other_jobs": (
        "Other jobs were on its nodes at the same time, and no record names its GPUs.",
        _EXCLUSIVE,
    ),
    "part_of_nodes": (
        "No record names its GPUs, and it is not known that it had all GPUs of its nodes.",
        _EXCLUSIVE,
    ),
    "unplaced": (
        (
            "Where it ran is not known: no node list, sample or map names its nodes in the "
            "time of its run."
        ),
        (
            "Staff: export accounting with NodeList. If maps or samples name it at other "
            "times, check site.time_zone."
        ),
    ),
}


def names_sentence(row: JobSummaryRow) -> str | None:
    """Return which clusters telemetry of the job's nodes names, if none is its own; else None."""
    telemetry = row.get("telemetry_cluster")
    if telemetry is None:
        return None
    own = row.get("cluster") or "none"
    return f"Telemetry of its nodes names the cluster {telemetry}, its accounting {own}."


def decide(job: CheckedJob) -> Found:
    """Return why they are unknown."""
    share = share_text(job.summary)
    if share:
        return Found(
            f"The job had a share ({share}) of GPUs that other jobs held at the same time, or "
            "may have held; "
            "samples of a GPU are of all that hold it, so no GPU numbers are given.",
            job.evidence("elapsed_s"),
        )
    reason = str(job.summary.get("ambiguous_because"))
    because = AMBIGUOUS_REASONS.get(reason)
    if because:
        other_name = names_sentence(job.summary)
        sentence, advice = (other_name, SAME_NAME) if other_name else because
        # Without nodes there are no samples that could be its own.
        why = "" if reason == "unplaced" else ": samples of its nodes may be of other jobs"
        return Found(
            f"{sentence} No GPU numbers are given{why}.",
            job.evidence("gpus", "elapsed_s"),
            advice=advice,
        )
    return Found(
        "No record names the GPUs of the job on its nodes, or shows that it had the nodes to "
        "itself; "
        "the nodes' average is not the job's, so no GPU numbers are given.",
        job.evidence("gpus", "elapsed_s"),
    )


CHECK = Check(
    "ambiguous_attribution",
    family="data quality",
    severity="hint",
    title="Which GPUs belonged to the job is not known",
    advice=_EXCLUSIVE,
    of_samples=False,
    decide=decide,
    condition=pl.col("attribution") == "ambiguous",
)
