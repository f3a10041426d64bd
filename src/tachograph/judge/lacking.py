"""Counters that some GPUs of a job lack while others have them: what is not known of the job.

A GPU with samples, but without a counter, has no value of it. For this counter it was not measured
in any of its time; without samples it lacks all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import polars as pl

from tachograph.catalog.counters import COUNTERS
from tachograph.catalog.tables import OTHER_IMBALANCES, RESOURCES
from tachograph.pipeline.timelines import ACTIVITY, WORK

_NAMES = tuple(counter.name for counter in COUNTERS)
# what minutes of a job, its GPUs put together, are made of
_OF_MINUTES = (
    *(*ACTIVITY, *WORK, "power_w", "mem_copy_util"),
    *(f"{link}_{way}_bytes_per_s" for link in ("pcie", "nvlink") for way in ("tx", "rx")),
)
IMBALANCES: Mapping[str, str] = {
    "gpu_util": "spatial_imbalance",
    **{name: f"spatial_imbalance_{name}" for name in OTHER_IMBALANCES},
}


def counters_of_some(gpus: pl.DataFrame) -> pl.DataFrame:
    """Return (job_key, lacking): counters that some sampled GPUs of a job have, and others lack.

    `lacking`: names, joined with a comma. Jobs without such counters have no row.
    """
    sampled = gpus.filter(pl.col("samples") > 0)
    counts = {name: pl.col(f"{name}_max").count() for name in _NAMES}
    some = sampled.group_by("job_key", maintain_order=True).agg(
        pl.when((count > 0) & (count < pl.len())).then(pl.lit(name)).alias(name)
        for name, count in counts.items()
    )
    names = pl.concat_str(_NAMES, separator=",", ignore_nulls=True)
    return some.select("job_key", lacking=names).filter(pl.col("lacking") != "")


def lacks(counter: str) -> pl.Expr:
    """Return whether a GPU lacks a counter that others of its job have; column `_lacks_<counter>`.

    Of rows of job_gpus with `_has_<counter>`: whether its job has it.
    """
    maximum = pl.col(f"{counter}_max")
    of_others = maximum.is_not_null().any().over("job_key")
    return (pl.col(f"_has_{counter}") & of_others & maximum.is_null()).alias(f"_lacks_{counter}")


def share_of(*counters: str) -> pl.Expr:
    """Return the part of its time in which any of these counters of a GPU was not measured."""
    return pl.when(_lacks_any(counters)).then(1.0).otherwise("_share")


def part_of(*counters: str) -> pl.Expr:
    """Return the part of that time in which the GPU is in the state of a fill."""
    return pl.when(_lacks_any(counters)).then("_part_of_all").otherwise("_part")


def _lacks_any(counters: Iterable[str]) -> pl.Expr:
    return pl.any_horizontal(f"_lacks_{name}" for name in counters)


def lacking_in_minutes() -> pl.Expr:
    """Return how many sampled GPUs of a job lack counters that minutes are made of."""
    sampled = pl.col("samples").fill_null(0) > 0
    return (sampled & _lacks_any(_OF_MINUTES)).sum().cast(pl.Int32)


def sums_for_imbalance() -> Mapping[str, pl.Expr]:
    """Return sums over the GPUs of a job, which are completed, that `imbalances` reads.

    Of each counter: the mean of the busiest measured GPU, the number of GPUs that lack it, their
    completed means together and the largest, and what was not measured of the others.
    """
    expressions: dict[str, pl.Expr] = {}
    for name in IMBALANCES:
        lacking, mean = pl.col(f"_lacks_{name}"), pl.col(f"{name}_mean")
        expressions[f"_top_{name}"] = pl.col(f"_own_{name}").max()
        expressions[f"_without_{name}"] = lacking.sum()
        expressions[f"_added_{name}"] = mean.filter(lacking).sum()
        expressions[f"_level_{name}"] = mean.filter(lacking).max()
        expressions[f"_share_{name}"] = pl.col("_share").filter(~lacking).mean()
    return expressions


def imbalances(roles: tuple[str, str]) -> Mapping[str, pl.Expr]:
    """Return the imbalance over all GPUs: a mean over windows with activity.

    Measured GPUs do as much as `even` GPUs at the level of the busiest. Those that lack the counter
    are added at their completed level. `roles`: of a fill's states, in the names of columns.
    """
    expressions: dict[str, pl.Expr] = {}
    for name, column in IMBALANCES.items():
        rows = pl.col("_rows")
        others = rows - pl.col(f"_without_{name}")
        top, level = (pl.col(f"_{what}_{name}").fill_null(0.0) for what in ("top", "level"))
        even = others * (1 - pl.col(column).fill_null(0.0))
        highest = pl.max_horizontal(top, level)
        spread = 1 - (even * top + pl.col(f"_added_{name}")) / (rows * highest)
        lacking = pl.col(f"_without_{name}") > 0
        imbalance = pl.when(lacking).then(spread.fill_nan(0.0)).otherwise(pl.col(column))
        zero = pl.when(lacking & (level > 0)).then(0.0).otherwise("spatial_zero_fraction")
        share = pl.col(f"_share_{name}").fill_null(0.0)
        counted = (1 - share) * (1 - zero.fill_null(0.0))
        active = pl.max_horizontal(f"{role}_{name}" for role in roles)
        added = share * (active > 0).cast(pl.Float64)
        lag = pl.when(pl.col("_who") == "all").then(0.0).otherwise(1 - 1 / rows)
        value = (imbalance.fill_null(0.0) * counted + lag * added) / (counted + added)
        measured = pl.col(f"{name}_max").is_not_null() & (rows > 1)
        expressions[column] = pl.when(measured).then(value).fill_nan(None)
    return expressions


def sums_at_work(is_flat: pl.Expr) -> Mapping[str, pl.Expr]:
    """What was not measured of the counters of a resource, over the GPUs, and the part in state."""
    expressions: dict[str, pl.Expr] = {}
    for resource in RESOURCES:
        lacking = pl.any_horizontal(f"_lacks_{name}" for name in resource.counters).any()
        part, share = part_of(*resource.counters), share_of(*resource.counters)
        flat = part.first()  # a mean of the same numbers may differ from them in the last digit
        expressions[f"_part_{resource.share}"] = (
            pl.when(is_flat.first() & ~lacking).then(flat).otherwise(part.mean())
        )
        expressions[f"_share_{resource.share}"] = share.mean()
    return expressions


def at_work() -> Mapping[str, pl.Expr]:
    """The level of pipes, memory and links at work, weighted by themselves; their share of time."""
    expressions: dict[str, pl.Expr] = {}
    for resource in RESOURCES:
        share = pl.col(f"_share_{resource.share}")
        measured, added = 1 - share, pl.col(f"_part_{resource.share}") * share
        level = pl.col(resource.at_work).fill_null(0.0)
        work = pl.col(resource.share).fill_null(0.0) * measured
        then = pl.max_horizontal(f"_state_{name}" for name in resource.counters)
        total, square = level * work + then * added, level**2 * work + then**2 * added
        is_known = pl.any_horizontal(
            pl.col(f"{name}_max").is_not_null() for name in resource.counters
        )
        expressions[resource.at_work] = pl.when(is_known & (total > 0)).then(square / total)
        expressions[resource.share] = pl.when(is_known & (total > 0)).then(total**2 / square)
    return expressions
