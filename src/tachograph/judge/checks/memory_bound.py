"""Memory traffic set the speed: it is the limiter."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.tables import PIPES
from tachograph.catalog.units import text
from tachograph.judge.check import Check, CheckedJob, Found


def decide(job: CheckedJob) -> Found:
    """Return how near it came."""
    traffic = job.measured("dram_at_work")
    return Found(
        f"At work, memory was moving data {text(traffic, 'fraction')} of the time: "
        "nothing else came as near to its peak.",
        job.evidence("dram_at_work", "main_pipe_at_work", "dram_active_mean"),
    )


CHECK = Check(
    "memory_bound",
    family="kernels",
    severity="fact",
    title="Memory traffic set the speed",
    advice=(
        "Move fewer bytes for each operation: fuse kernels, reuse data in caches and shared "
        "memory, store in a "
        "smaller type where accuracy allows. Faster arithmetic alone does not help; faster "
        "memory may."
    ),
    needs=("dram_active", "|".join(PIPES.values())),
    decide=decide,
    condition=(pl.col("limiter") == "memory") & pl.col("dram_at_work").is_not_null(),
)
