"""The job took so much of its nodes' memory or CPUs that others could not use the GPUs it left."""

from __future__ import annotations

import math

import polars as pl

from tachograph.catalog.units import plural, text
from tachograph.judge.check import Check, CheckedJob, Found
from tachograph.judge.partitions import NODES


def decide(job: CheckedJob) -> Found | None:
    """Return Found if a GPU or more of its nodes had less than its share of them left.

    A GPU's share are the CPUs and the memory of a node over its GPUs. Others may need less, so what
    was stranded is an upper bound. On nodes given whole, GPUs beyond the job's are stranded.
    """
    nodes, gpus = job.number("nodes"), job.number("gpus")
    of_node, elapsed = job.number("node_gpus"), job.number("elapsed_s")
    if not nodes or not gpus or not of_node or elapsed is None:
        return None
    left = of_node - gpus / nodes
    parts = {"CPUs": _part(job, "cpus", "node_cpus")}
    parts["host memory"] = _part(job, "mem_requested_mib", "node_memory_mib")
    most = max(parts, key=lambda name: parts[name])
    whole = bool(job.summary.get("exclusive"))
    usable = 0.0 if whole else of_node * (1.0 - parts[most])
    stranded = nodes * math.floor(left - max(0.0, usable) + 1e-9)
    if stranded < 1:
        return None
    hours = stranded * elapsed / 3600
    held = (
        f"its nodes whole for {plural(gpus, 'GPU')}"
        if whole
        else (
            f"{text(parts[most], 'fraction')} of the {most} of "
            f"{'its node' if nodes == 1 else 'each of its nodes'} for {text(gpus / nodes)} of "
            f"{of_node:.0f} GPUs"
        )
    )
    return Found(
        f"It held {held}: others could not use up to {plural(stranded, 'GPU')} beside them"
        f"{job.so_far}, up to {text(hours, 'h')}.",
        job.evidence("gpus", "nodes", gpus_stranded=stranded, gpu_hours_stranded=hours),
    )


def _part(job: CheckedJob, held: str, of_node: str) -> float:
    """Return the part of a node that the job held; 0 where it is not known."""
    amount, most = job.number(held), job.number(of_node)
    return amount / (job.number("nodes") or 1.0) / most if amount and most else 0.0


CHECK = Check(
    "stranded_gpus",
    family="request",
    severity="hint",
    title="Others could not use GPUs that the job left",
    brief="GPUs of its nodes that others could not use: up to {gpus_stranded}",
    advice=(
        "Request for each GPU at most its share of a node: --mem-per-gpu, --cpus-per-gpu. For many "
        "GPUs request whole nodes: fewer nodes with all their GPUs."
    ),
    needs=(NODES,),
    of_samples=False,
    decide=decide,
    condition=pl.col("node_gpus").is_not_null(),
)
