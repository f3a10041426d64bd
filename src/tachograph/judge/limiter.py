"""What limited the speed of a job: a pipe, memory, NVLink or PCIe, or none of them.

Each is judged by its level while it was at work itself, if it was at work in half of the time.
What comes nearest to its practical peak is the limiter where it comes near enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import polars as pl

from tachograph.catalog.devices import DEVICES_BY_NAME
from tachograph.catalog.tables import (
    ARITHMETIC,
    JOB_SUMMARIES,
    LINK_TRAFFIC,
    MEMORY,
    PIPES,
    RESOURCES,
)
from tachograph.pipeline.timelines import ACTIVITY

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow


NEITHER = "neither"
LIMITER = "limiter"  # stands for a code where verdicts are compared
WORKED = 0.001  # highest mean of activity, pipes and memory: below, nothing was done
MOST = 0.5  # minimum share of the time with work: below, waiting limits the speed
# Bounds of a job's speed: near its practical peak, as a fraction of the device's.
NEAR_PEAK = 0.6  # of the practical peak, from which it limits. Ours
PRACTICAL_PIPE = 0.9  # of models without a measured peak in the catalogue. Ours
PRACTICAL_DRAM = 0.8  # likewise. DCGM User Guide: "a peak of ~0.8 is the maximum achievable"
PRACTICAL_LINK = 0.8  # bus bandwidth of nccl-tests over the link's
LINKS: Mapping[str, str] = {"nvlink": "NVLink", "pcie": "PCIe"}
_NEEDED = (
    "gpu_model",
    *(column for resource in RESOURCES for column in (resource.at_work, resource.share)),
)
# while one of these holds, the speed of the work is not what matters
WITHOUT_WORK = ("idle_job", "job_hang")


@cache
def shares_of_peak() -> Mapping[str, pl.Expr]:
    """Return how near each limiter came to its practical peak, per row; null: unknown.

    Above 1: the peak of this model is higher than the one that is assumed.
    """
    pipe, dram = (
        of_model(f"practical_{name}_active").fill_null(assumed)
        for name, assumed in (("pipe", PRACTICAL_PIPE), ("dram", PRACTICAL_DRAM))
    )
    limiters = {"compute": (ARITHMETIC, pipe), "memory": (MEMORY, dram)}
    for link, traffic in LINK_TRAFFIC.items():
        limiters[link] = traffic, of_model(f"{link}_bytes_per_s") * PRACTICAL_LINK
    return {
        name: pl.when(pl.col(resource.share) >= MOST).then(pl.col(resource.at_work) / peak)
        for name, (resource, peak) in limiters.items()
    }


def shares_of_job(summary: JobSummaryRow) -> Mapping[str, float | None]:
    """Return the same of one row, as numbers up to 1: what was measured moves the peak."""
    row = {name: [summary.get(name)] for name in _NEEDED}
    frame = pl.DataFrame(
        row, schema_overrides={name: JOB_SUMMARIES.schema[name] for name in _NEEDED}
    )
    shares = {name: share.clip(upper_bound=1.0) for name, share in shares_of_peak().items()}
    return frame.select(**shares).row(0, named=True)


def of_model(value: str) -> pl.Expr:
    """Return a value of the catalogue for the job's model; null if unknown."""
    values = {name: getattr(device, value) for name, device in DEVICES_BY_NAME.items()}
    return pl.col("gpu_model").replace_strict(values, default=None, return_dtype=pl.Float64())


def with_limiter(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return rows with `limiter`; null if an unmeasured pipe may have been the limiter."""
    # of each share twice, for its name and the largest: computed once
    rows = jobs.with_columns(**{f"_{name}": share for name, share in shares_of_peak().items()})
    shares = {name: pl.col(f"_{name}") for name in shares_of_peak()}
    measured = [pl.col(f"{counter}_mean").is_not_null() for counter in PIPES.values()]
    memory = pl.col("dram_active_mean").is_not_null()
    both = pl.any_horizontal(measured) & memory  # one alone: the other may have been nearer
    near = [
        pl.when((share >= NEAR_PEAK) & (both | (name in LINKS))).then(share)
        for name, share in shares.items()
    ]
    most = pl.max_horizontal(near)
    named = pl.coalesce(
        pl.when(share == most).then(pl.lit(name)) for name, share in zip(shares, near, strict=True)
    )
    means = [f"{counter}_mean" for counter in (*ACTIVITY, *PIPES.values(), "dram_active")]
    worked = pl.max_horizontal(means) >= WORKED
    known = pl.all_horizontal(measured) & memory & worked
    sure = pl.col("attribution") != "ambiguous"
    limiter = pl.when(sure).then(pl.coalesce(named, pl.when(known).then(pl.lit(NEITHER))))
    return jobs.with_columns(rows.select(limiter=limiter))


def limiters(jobs: pl.DataFrame) -> pl.DataFrame:
    """Return the known limiters like verdicts: (job_key, code LIMITER, verdict)."""
    return jobs.select("job_key", code=pl.lit(LIMITER), verdict="limiter").drop_nulls()


def without_uncertain(jobs: pl.DataFrame, refuted: pl.DataFrame) -> pl.DataFrame:
    """Return rows with `limiter` null where the time without samples may have had another one.

    `refuted`: from `completions.refuted`.
    """
    others = refuted.filter(code=LIMITER).get_column("job_key")
    uncertain = pl.col("job_key").is_in(others.implode())
    return jobs.with_columns(limiter=pl.when(~uncertain).then("limiter"))


def without_idle(jobs: pl.DataFrame, findings: pl.DataFrame) -> pl.DataFrame:
    """Return rows with `limiter` null for jobs judged idle or hung."""
    holds = findings.filter(pl.col("code").is_in(WITHOUT_WORK), pl.col("verdict") == "yes")
    idle = pl.col("job_key").is_in(holds.get_column("job_key").implode())
    return jobs.with_columns(limiter=pl.when(~idle).then("limiter"))
