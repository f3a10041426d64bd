"""The speed was set by memory traffic, not by arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tachograph.catalog.tables import PIPES
from tachograph.catalog.units import text
from tachograph.judge.activity import number
from tachograph.judge.check import Check, CheckedJob, Found

MUCH_TRAFFIC = 0.3  # mean DRAM activity from which traffic is worth a word


def main_pipe(summary: Mapping[str, Any]) -> str | None:
    """Return the pipe with the highest mean activity, or None where none is measured or all are at zero.

    >>> main_pipe({"fp64_active_mean": 0.01, "tensor_active_mean": 0.2, "fp32_active_mean": None})
    'tensor'
    """
    means = {pipe: number(summary, f"{counter}_mean") or 0.0 for pipe, counter in PIPES.items()}
    pipe = max(means, key=lambda name: means[name])
    return pipe if means[pipe] > 0 else None


def decide(job: CheckedJob) -> Found | None:
    """Return that most samples are memory-bound on the most used pipe, with much traffic."""
    pipe = main_pipe(job.summary)
    if pipe is None:
        return None
    end = "" if pipe == "fp64" else f"_{pipe}"
    share, traffic = job.number(f"memory_fraction{end}"), job.number("dram_active_mean")
    if share is None or traffic is None or job.summary.get(f"bound{end}") != "memory":
        return None
    if share < job.thresholds.memory_bound_fraction or traffic < MUCH_TRAFFIC:
        return None
    name = "tensor cores" if pipe == "tensor" else f"{pipe.upper()} units"
    return Found(
        f"{text(share, 'fraction')} of the samples with work are memory-bound, judged by the {name}; memory was "
        f"moving data {text(traffic, 'fraction')} of the time.",
        job.evidence(
            "dram_active_mean",
            memory_fraction=share,
            compute_fraction=job.number(f"compute_fraction{end}"),
        ),
    )


CHECK = Check(
    "memory_bound",
    family="kernels",
    severity="hint",
    title="Memory traffic set the speed",
    advice=(
        "Move fewer bytes for each operation: fuse kernels, reuse data in caches and shared memory, store in a "
        "smaller type where accuracy allows. Faster arithmetic alone will not help; faster memory will."
    ),
    evidence=("dram_active_mean", "memory_fraction", "compute_fraction"),
    needs=("dram_active",),
    decide=decide,
)
