"""Numbers of GPUs in allocations become the indices that their samples have."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.chunks import GpuNumbering
from tachograph.catalog.config import SlurmOptions
from tachograph.catalog.tables import SLURM_NUMBERING
from tachograph.lake.numbering import unsure_times

NUMBERINGS: tuple[GpuNumbering, ...] = ("nvml_index", "minor_number")
_RECORD = ("cluster", "job_id", "node", "provenance", "start")  # names GPUs of a job on a node


def with_own_indices(
    allocations: pl.DataFrame,
    devices: pl.DataFrame,
    *,
    slurm: SlurmOptions,
    jobs: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """Return allocations renumbered to the indices of `devices`.

    Slurm numbers device files, see `slurm.gpu_numbers`. If a node is known to number otherwise, and
    no GPU or several have a number, the job's GPUs on this node are null; without known numbering
    the number is the index. So are those of rows in a time in which their index identifies no GPU;
    `jobs`: their times are those of rows without.
    """
    recorded = allocations.filter(pl.col("numbering").is_not_null())
    by = {
        name: devices.select("node", "gpu", number=name).drop_nulls().unique()
        for name in NUMBERINGS
    }
    pairs = pl.concat([frame.with_columns(by=pl.lit(name)) for name, frame in by.items()])
    differing = pairs.filter(pl.col("number") != pl.col("gpu")).select("node", "by").unique()
    if recorded.is_empty() or differing.is_empty():
        return _without_unsure_numbers(allocations, devices, jobs)
    index = pl.when(pl.len() == 1).then(pl.col("gpu").first())
    indices = (
        pairs.join(differing, on=["node", "by"], how="semi")
        .group_by("node", "by", "number")
        .agg(own=index)
    )
    slurms = pl.col("numbering") == SLURM_NUMBERING
    rows = allocations.with_columns(
        by=pl.when(slurms).then(pl.lit(slurm.gpu_numbers)).otherwise("numbering"), number="gpu"
    )
    rows = rows.join(
        differing.with_columns(differs=pl.lit(value=True)), on=["node", "by"], how="left"
    )
    rows = rows.join(indices, on=["node", "by", "number"], how="left")
    moved = pl.col("differs").fill_null(value=False) & pl.col("number").is_not_null()
    lost = (moved & pl.col("own").is_null()).any().over(*_RECORD)
    translated = rows.with_columns(
        gpu=pl.when(moved & lost).then(None).when(moved).then("own").otherwise("gpu"),
        mig=pl.when(~(moved & lost)).then("mig"),
    )
    return _without_unsure_numbers(translated.select(allocations.columns), devices, jobs)


def _without_unsure_numbers(
    allocations: pl.DataFrame, devices: pl.DataFrame, jobs: pl.DataFrame | None
) -> pl.DataFrame:
    unsure = unsure_times(devices)
    if unsure.is_empty():
        return allocations
    numbered = allocations.with_row_index("row")
    timed = numbered
    if jobs is not None:
        ended = pl.when(pl.col("end").is_not_null().all()).then(pl.col("end").max())
        name = ("cluster", "job_id")
        runs = jobs.group_by(name).agg(first=pl.col("start").min(), last=ended)
        times = {"start": pl.coalesce("start", "first"), "end": pl.coalesce("end", "last")}
        timed = numbered.join(runs, on=name, how="left", nulls_equal=True).with_columns(**times)
    overlap = (pl.col("start") < pl.col("until")).fill_null(value=True) & (
        pl.col("end") > pl.col("since")
    ).fill_null(value=True)
    # A job that a renumbering ended had its number from before: the change came after its samples.
    over = (
        pl.col("changed")
        & (pl.col("start") <= pl.col("since"))
        & (pl.col("end") <= pl.col("until"))
    )
    inside = overlap & ~over.fill_null(value=False)
    rows = timed.join(unsure, on=["node", "gpu"]).filter(inside)["row"].unique()
    # What else the record names on this node would be only a part of the job's GPUs.
    lost = pl.col("row").is_in(rows.implode()).any().over(*_RECORD)
    names = [pl.when(~lost).then(name).alias(name) for name in ("gpu", "mig")]
    return numbered.with_columns(names).select(allocations.columns)
