"""What limited the speed of a job: a pipe, memory, NVLink or PCIe, or none of them.

Arithmetic and memory are judged while the job's most active pipe worked (`main_pipe_at_work`,
`dram_at_work`), links by their means. What comes nearest to its practical peak is the limiter where
it comes near enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tachograph.catalog.config import BoundOptions
from tachograph.catalog.devices import DEVICES_BY_NAME
from tachograph.catalog.tables import JOB_SUMMARIES, PIPES

NEITHER = "neither"
MOST = 0.5  # minimum share of the time with work: below, waiting limits the speed
LINKS: Mapping[str, str] = {"nvlink": "NVLink", "pcie": "PCIe"}
_NEEDED = (
    *("work_fraction", "dram_active_mean", "dram_at_work", "main_pipe_at_work", "gpu_model"),
    *(f"{link}_{way}_bytes_per_s_mean" for link in LINKS for way in ("tx", "rx")),
)
# while one of these holds, the speed of the work is not what matters
WITHOUT_WORK = ("idle_job", "job_hang")


def shares_of_peak(options: BoundOptions) -> Mapping[str, pl.Expr]:
    """Return how near each limiter came to its practical peak, per row; null: unknown."""
    at_work = pl.max_horizontal(
        "work_fraction", pl.col("dram_active_mean") / pl.col("dram_at_work")
    )
    works = pl.when(at_work >= MOST)
    shares: dict[str, pl.Expr] = {
        "compute": works.then(pl.col("main_pipe_at_work") / options.practical_pipe),
        "memory": works.then(pl.col("dram_at_work") / options.practical_dram),
    }
    for link in LINKS:
        shares[link] = link_traffic(link) / link_peak(link) / options.practical_link
    return shares


def shares_of_job(summary: Mapping[str, Any], options: BoundOptions) -> Mapping[str, float | None]:
    """Return the same of one row, as numbers."""
    row = {name: [summary.get(name)] for name in _NEEDED}
    frame = pl.DataFrame(
        row, schema_overrides={name: JOB_SUMMARIES.schema[name] for name in _NEEDED}
    )
    return frame.select(**shares_of_peak(options)).row(0, named=True)


def link_traffic(link: str) -> pl.Expr:
    """Return the mean traffic of a link (nvlink, pcie) per GPU, B/s, of the busier direction."""
    return pl.max_horizontal(f"{link}_tx_bytes_per_s_mean", f"{link}_rx_bytes_per_s_mean")


def link_peak(link: str) -> pl.Expr:
    """Return the peak of a link in one direction, B/s, of the job's model; null if unknown."""
    peaks = {
        name: getattr(device, f"{link}_bytes_per_s") for name, device in DEVICES_BY_NAME.items()
    }
    return pl.col("gpu_model").replace_strict(peaks, default=None, return_dtype=pl.Float64())


def with_limiter(jobs: pl.DataFrame, options: BoundOptions) -> pl.DataFrame:
    """Return rows with `limiter`; null if an unmeasured pipe may have been the limiter."""
    shares = shares_of_peak(options)
    near = [pl.when(share >= options.near_peak).then(share) for share in shares.values()]
    most = pl.max_horizontal(near)
    named = pl.coalesce(
        pl.when(share == most).then(pl.lit(name)) for name, share in zip(shares, near, strict=True)
    )
    all_pipes = pl.all_horizontal(
        pl.col(f"{counter}_mean").is_not_null() for counter in PIPES.values()
    )
    known = all_pipes & pl.col("dram_active_mean").is_not_null() & (pl.col("samples") > 0)
    sure = pl.col("attribution") != "ambiguous"
    return jobs.with_columns(
        limiter=pl.when(sure).then(pl.coalesce(named, pl.when(known).then(pl.lit(NEITHER))))
    )


def without_idle(jobs: pl.DataFrame, findings: pl.DataFrame) -> pl.DataFrame:
    """Return rows with `limiter` null for jobs judged idle or hung."""
    holds = findings.filter(pl.col("code").is_in(WITHOUT_WORK), pl.col("verdict") == "yes")
    idle = pl.col("job_key").is_in(holds.get_column("job_key").implode())
    return jobs.with_columns(limiter=pl.when(~idle).then("limiter"))
