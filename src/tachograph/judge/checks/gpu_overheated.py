"""A GPU, or its memory, reached the temperature at which clocks are lowered."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.activity import gpu_label, number
from tachograph.judge.check import Check, CheckedJob, Found
from tachograph.judge.health import limits_of

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobGpuRow


SHOWN = 4  # places


def _limit(name: str) -> pl.Expr:
    """One of HealthLimits of the model of each row."""

    def values(models: pl.Series) -> pl.Series:
        limits = [getattr(limits_of(model), name) for model in models]
        return pl.Series(models.name, limits, pl.Float64)

    return pl.col("gpu_model").map_batches(values, return_dtype=pl.Float64)


# {what is hot: its column of job_gpus, and its limit}
PARTS = {"": ("gpu_temp_c_max", "warning_c"), " memory": ("mem_temp_c_max", "memory_warning_c")}


def _is_hot(part: str) -> pl.Expr:
    column, limit = PARTS[part]
    return pl.col(column) >= _limit(limit)


def decide(job: CheckedJob) -> Found:
    """Return which GPUs were hot."""
    seen, several = [], len(set(job.of_gpus.values("node"))) > 1
    hot = pl.DataFrame({part: job.gpu_flags(_is_hot(part)) for part in PARTS})
    rows = cast("list[JobGpuRow]", job.gpus.to_dicts())
    for row, flags in zip(rows, hot.to_dicts(), strict=True):
        limits = limits_of(row["gpu_model"])
        for part, is_hot in flags.items():
            if is_hot:
                column, limit = PARTS[part]
                value = text(number(row, column), "C")
                at_most = text(getattr(limits, limit), "C")
                seen.append(
                    f"{gpu_label(row, with_node=several)}{part} at {value}, limit {at_most}"
                )
    more = f", and {len(seen) - SHOWN} more" if len(seen) > SHOWN else ""
    highest = {name: job.gpus[f"{name}_max"].max() for name in ("gpu_temp_c", "mem_temp_c")}
    known = {
        f"{name}_max": float(value)
        for name, value in highest.items()
        if isinstance(value, int | float)
    }
    return Found(f"{', '.join(seen[:SHOWN])}{more}.", job.evidence(**known))


CHECK = Check(
    "gpu_overheated",
    family="clocks",
    severity="hint",
    title="A GPU was at the temperature at which clocks are lowered",
    advice="Report it to the support staff of your site: cooling of the node may need attention.",
    needs=("gpu_temp_c",),
    decide=decide,
    gpu_condition=pl.any_horizontal(_is_hot(part) for part in PARTS),
)
