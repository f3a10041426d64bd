"""Summaries as the published notebooks define them, where these differ from the paper they belong to.

Source: the eleven notebooks beside Cankur, Austin, Kulkarni, Bhatele (IPDPS 2026),
github.com/hpcgroup/ldms-analysis-scripts-ipdps26, read at commit d29661b. A summary holds enough to change

- spatial imbalance (6, 7): windows in which nothing ran count as 0; the job's GPUs are those with samples;
- temporal imbalance (8, 9): a GPU that never left zero counts as 0;
- pipes (2, 7, 9): the fixed threshold 0.005 alone;
- GPUs, GPU-hours (1, 5): GPUs with samples, times end minus start;
- energy (5, 11): last counter minus first, with no scaling to the run time; power: that over GPUs and time;
- memory (3): the peak is cut off at the capacity.

It does not hold enough for these, which stay as they are: windows begin at the job's first sample, in steps of 10 s
(6, 7); rows without utilisation count as zeros in temporal imbalance (8, 9); a label holds from its sample to the
next one that is not idle, and job types are weighted by that time (5, 7, 9, 10); intensities are those of A100 (4);
resets of the energy counter are not corrected (5, 11); GPU-hours of figure 5 leave GPUs out that never computed.
"""

from __future__ import annotations

import msgspec
import polars as pl

from tachograph.config import Analysis
from tachograph.summarize.jobs import used_pipes
from tachograph.summarize.schema import WINDOWED

PIPE_THRESHOLD = 0.005  # notebooks 2, 7, 9


def as_in_notebooks(jobs: pl.DataFrame, analysis: Analysis) -> pl.DataFrame:
    """Return job_summaries, row by row and column by column, with what the notebooks define otherwise.

    `analysis`: what the summaries were made with. A job without samples, which the notebooks never see, has null in
    all that is changed.
    """
    seen = pl.when(pl.col("gpus_seen") > 0).then(pl.col("gpus_seen"))
    elapsed_s = (pl.col("end") - pl.col("start")).dt.total_microseconds() / 1e6
    energy_j = pl.when(pl.col("energy_j").is_not_null()).then(pl.col("energy_j_mean") * seen)
    fixed = msgspec.structs.replace(analysis, pipe_percentile=False, pipe_threshold=PIPE_THRESHOLD)
    changed = used_pipes(jobs, jobs, analysis=fixed).with_columns(
        gpus=seen,
        gpu_hours=seen * elapsed_s / 3600,
        spatial_imbalance=_spatial(analysis, seen),
        hbm_peak_fraction=pl.col("hbm_peak_fraction").clip(0, 1),
        energy_j=energy_j,
        energy_gpus=pl.when(energy_j.is_not_null()).then(seen),
        energy_source=pl.when(energy_j.is_not_null()).then(pl.lit("counter")),
        power_w_mean=pl.when(elapsed_s > 0).then(energy_j / (seen * elapsed_s)),
        **_temporal(analysis),
    )
    return changed.select(pl.col(name).cast(dtype) for name, dtype in jobs.schema.items())


def _spatial(analysis: Analysis, seen: pl.Expr) -> pl.Expr:
    """Mean over all windows of 1 - sum / (GPUs with samples x max), 0 where nothing ran; null without any activity.

    Every window's sum / max is known but for the number of GPUs, so their mean is, too. GPUs held are those that
    accounting tells, or more where more were recorded.
    """
    held = pl.max_horizontal("gpus", "gpus_seen")
    active = 1 - pl.col("spatial_zero_fraction")
    stored = pl.col("spatial_imbalance")
    of_active = stored / active if analysis.count_zero_windows else stored
    over_seen = (1 - (1 - of_active) * held / seen).clip(0, 1)
    return pl.when((active > 0) & (seen > 1)).then(over_seen * active)


def _temporal(analysis: Analysis) -> dict[str, pl.Expr]:
    """The largest of the GPUs' imbalances is missing only where all of them were idle, or it was not asked for."""
    asked = [name for name in WINDOWED if name in ("gpu_util", *analysis.imbalance_counters)]
    columns = {"temporal_imbalance" if name == "gpu_util" else f"temporal_imbalance_{name}": name for name in asked}
    return {
        column: pl.when(pl.col(f"{name}_mean").is_not_null()).then(pl.col(column).fill_null(0.0))
        for column, name in columns.items()
        if name != "power_w"
    }
