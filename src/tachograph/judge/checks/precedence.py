"""What is told once: advice and job classes that say the same of a job."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import polars as pl

# {class: advice that is not told beside it}: the class says the same of a longer interval
SUPERSEDED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "job_hang": ("hung", "busy_waiting", "bursty", "low_utilisation"),
        "cold_start": ("late_start",),
        "stall": ("stalled", "bursty"),
    }
)
# {class: what tells the same better}: beside one of these the class is a fact, and is not told as something to mend
TOLD_BETTER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "idle_gpus": ("one_gpu_of_many", "gpus_never_used", "imbalanced_gpus", "idle_nodes"),
        "idle_nodes": ("one_gpu_of_many", "gpus_never_used"),
        "idle_nodes_host": ("one_gpu_of_many", "gpus_never_used", "imbalanced_gpus", "idle_nodes"),
        "job_hang_host": ("job_hang", "hung"),
        "cold_start_host": ("cold_start", "late_start"),
        "stall_host": ("stall", "stalled"),
    }
)


def superseded_by(classes: pl.DataFrame | None) -> Mapping[str, frozenset[str]]:
    """Return {job_key: codes of advice that classes which hold make not worth telling}."""
    if classes is None:
        return {}
    holds = classes.filter((pl.col("verdict") == "yes") & pl.col("code").is_in(list(SUPERSEDED)))
    found: dict[str, frozenset[str]] = {}
    for job_key, code in holds.select("job_key", "code").iter_rows():
        found[job_key] = found.get(job_key, frozenset()) | frozenset(SUPERSEDED[code])
    return found


def settled(classes: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """Return the findings of job classes, those that other findings tell better as facts.

    `found`: the advice of the same jobs. Verdicts stay as they are, only the severity becomes `fact`.
    """
    both = pl.concat([frame.select("job_key", "code", "verdict") for frame in (classes, found)])
    holds = both.filter(pl.col("verdict") == "yes").select("job_key", better="code")
    pairs = pl.DataFrame(
        [(code, better) for code, others in TOLD_BETTER.items() for better in others],
        schema={"code": pl.String, "better": pl.String},
        orient="row",
    )
    told = holds.join(pairs, on="better").select("job_key", "code").unique().with_columns(told=pl.lit(value=True))
    marked = classes.join(told, on=["job_key", "code"], how="left", maintain_order="left")
    beside = (pl.col("verdict") == "yes") & pl.col("told").fill_null(value=False)
    severity = pl.when(beside).then(pl.lit("fact")).otherwise("severity")
    return marked.with_columns(severity=severity).select(classes.columns)
