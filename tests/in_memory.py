"""The way from samples to summaries without a lake: fast enough for thousands of made-up jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

import polars as pl

from madelake import NOW, Rows, table_frame
from tachograph.catalog.config import AnalysisOptions, Configuration
from tachograph.catalog.tables import GPU_SAMPLES, JOB_NODES
from tachograph.pipeline.accumulators import INTENSITY_SCHEMA, Accumulators, merge_segments
from tachograph.pipeline.attribution import Attribution, attribute
from tachograph.pipeline.gpu_inventory import gpu_facts, inventory
from tachograph.pipeline.job_hosts import energy_of_nodes, host_sums
from tachograph.pipeline.job_runs import build_runs
from tachograph.pipeline.partition import reduce_partition
from tachograph.pipeline.reduction import overlapping_day
from tachograph.pipeline.summaries import summarize_gpus, summarize_jobs
from tachograph.pipeline.windows import BORDER_WINDOWS, IMBALANCE, fold_windows

UNIT = ("node", "gpu", "mig")
Unit = tuple[str, int, int | None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one pass gives: who owned what, the accumulators of each partition, one summary per
    job, its GPUs.
    """

    owned: Attribution
    reduced: list[Accumulators]
    jobs: dict[str, dict[str, Any]]
    gpus: dict[tuple[str, str, int, int | None], dict[str, Any]]


def with_seq(table: str, rows: Rows) -> pl.DataFrame:
    """Return rows as the lake gives them."""
    return table_frame(table, rows).with_columns(seq=pl.lit(1, dtype=pl.Int64))


def owners(
    jobs: Rows,
    allocations: Rows,
    units: Sequence[Unit],
    configuration: Configuration | None = None,
    *,
    now: datetime = NOW,
) -> Attribution:
    """Return who owns the GPUs `units` when."""
    configuration = configuration or Configuration()
    told = with_seq("allocations", allocations)
    runs = build_runs(with_seq("jobs", jobs), told, slurm=configuration.slurm, now=now)
    return attribute(runs, told, _units(units))


def _units(units: Sequence[Unit]) -> pl.DataFrame:
    schema = {name: GPU_SAMPLES.schema[name] for name in UNIT}
    return pl.DataFrame(list(units), schema=schema, orient="row").unique().sort(*UNIT)


def outcome(
    samples: Rows,
    jobs: Rows,
    allocations: Rows,
    *,
    devices: Rows = (),
    configuration: Configuration | None = None,
    now: datetime = NOW,
) -> Outcome:
    """Return what becomes of samples; devices are those given and those seen."""
    configuration = configuration or Configuration()
    analysis = configuration.analysis
    frame = table_frame("gpu_samples", samples).sort(*UNIT, "t")
    seen = frame.select(*UNIT).unique()
    told = pl.concat([table_frame("devices", devices), seen], how="diagonal").unique(
        subset=UNIT, keep="first"
    )
    known = inventory(told.with_columns(seq=pl.lit(1, dtype=pl.Int64)), configuration.nodes)
    owned = owners(jobs, allocations, list(known.select(*UNIT).iter_rows()), configuration, now=now)
    details, ridges = gpu_facts(known)
    starts: dict[int, datetime] = dict(owned.runs.select("run", "start").iter_rows())
    intervals = owned.intervals.sort(*UNIT, "start")
    held_s = (pl.col("end") - pl.col("start")).dt.total_microseconds().sum() / 1e6
    every = pl.concat([intervals, owned.handovers]).sort(*UNIT, "start")
    held = every.group_by("run", *UNIT, maintain_order=True).agg(held_s=held_s)
    days: list[date] = frame.get_column("t").dt.date().unique().sort().to_list()
    reduced = [
        reduce_partition(
            frame.filter(pl.col("t").dt.date() == day), overlapping_day(intervals, day), starts, ridges,
            analysis=analysis, day=day,
        )[0]
        for day in days
    ]  # fmt: skip
    imbalance = _imbalance(reduced, days, owned.runs.select("run", "start"), analysis)
    gpus = summarize_gpus(
        merge_segments([part.segments for part in reduced]),
        held,
        owned.runs,
        details,
        analysis=analysis,
    )
    empty = pl.DataFrame(schema=INTENSITY_SCHEMA)
    host_use = host_sums(JOB_NODES.empty().with_columns(run=pl.lit(None, pl.Int32)), owned.runs)
    power = {"run": pl.Int32, "power_j": pl.Float64, "power_s": pl.Float64}
    energy = energy_of_nodes(pl.DataFrame(schema=power), owned.runs)
    summaries = summarize_jobs(
        owned.runs, gpus, pl.concat([empty, *(part.intensities for part in reduced)]), imbalance,
        energy.join(host_use, on="run", how="left"),
        analysis=analysis, filters=configuration.filters, now=now,
    )  # fmt: skip
    return Outcome(
        owned,
        reduced,
        {row["job_id"]: row for row in summaries.sort("start").iter_rows(named=True)},
        {(row["job_id"], *(row[name] for name in UNIT)): row for row in gpus.iter_rows(named=True)},
    )


def _imbalance(
    reduced: Sequence[Accumulators],
    days: Sequence[date],
    starts: pl.DataFrame,
    analysis: AnalysisOptions,
) -> pl.DataFrame:
    border, found = pl.DataFrame(schema=BORDER_WINDOWS), [pl.DataFrame(schema=IMBALANCE)]
    for part, day in zip(reduced, days, strict=True):
        folded, border = fold_windows(
            [part.windows], border, starts, analysis=analysis, day=day, last=day == days[-1]
        )
        found.append(folded)
    return pl.concat(found)
