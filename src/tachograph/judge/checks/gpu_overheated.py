"""A GPU, or its memory, reached the temperature at which clocks are lowered."""

from __future__ import annotations

import polars as pl

from tachograph.catalog.units import text
from tachograph.judge.activity import UNIT, gpu_label, number
from tachograph.judge.check import Check, CheckedJob, Found
from tachograph.judge.health import limits_of

SHOWN = 4  # places
COLUMNS = [*UNIT, "gpu_model", "gpu_temp_c_max", "mem_temp_c_max"]


def _limit(name: str) -> pl.Expr:
    """One of HealthLimits of the model of each row."""

    def values(models: pl.Series) -> pl.Series:
        limits = [getattr(limits_of(model), name) for model in models]
        return pl.Series(models.name, limits, pl.Float64)

    return pl.col("gpu_model").map_batches(values, return_dtype=pl.Float64)


def decide(job: CheckedJob) -> Found:
    """Return which GPUs were hot."""
    seen, several = [], len(set(job.of_gpus.values("node"))) > 1
    for values in zip(*map(job.of_gpus.values, COLUMNS), strict=True):
        row = dict(zip(COLUMNS, values, strict=True))
        limits = limits_of(row["gpu_model"])
        for part, value, limit in (
            ("", number(row, "gpu_temp_c_max"), limits.warning_c),
            (" memory", number(row, "mem_temp_c_max"), limits.memory_warning_c),
        ):
            if value is not None and value >= limit:
                seen.append(
                    f"{gpu_label(row, with_node=several)}{part} at {text(value, 'C')}, limit "
                    f"{text(limit, 'C')}"
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
    gpu_condition=(
        (pl.col("gpu_temp_c_max") >= _limit("warning_c"))
        | (pl.col("mem_temp_c_max") >= _limit("memory_warning_c"))
    ),
)
