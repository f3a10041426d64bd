"""Why a job is left out of a study: every filter is a reason in a column, none a silent drop.

Filters of IPDPS 2026, section 3: jobs outside GPU partitions, staff accounts, login nodes, run time under three
minutes, mean utilisation under one percent; each can be switched off in the configuration.
"""

from __future__ import annotations

import polars as pl

from tachograph.config import Filters


def excluded(frame: pl.DataFrame, filters: Filters) -> pl.Expr:
    """Return the reasons of each job, joined with a comma; null: it is in the study."""
    reasons: dict[str, pl.Expr] = {
        "ambiguous_attribution": pl.col("attribution") == "ambiguous",
        "still_running": pl.col("end").is_null(),
        "no_samples": pl.col("samples") == 0,
    }
    if filters.min_elapsed_s:
        reasons["short"] = pl.col("elapsed_s") < filters.min_elapsed_s
    if filters.min_gpu_util_mean:
        reasons["idle"] = pl.col("gpu_util_mean") < filters.min_gpu_util_mean
    if filters.gpu_partitions:
        reasons["other_partition"] = ~pl.col("partition").is_in(list(filters.gpu_partitions))
    if filters.staff_accounts:
        reasons["staff_account"] = pl.col("account").is_in(list(filters.staff_accounts))
    if filters.login_nodes:
        reasons["login_node"] = pl.col("node_list").is_in(list(filters.login_nodes))
    named = [pl.when(test).then(pl.lit(name)) for name, test in reasons.items()]
    joined = pl.concat_str(named, separator=",", ignore_nulls=True)
    return pl.when(joined != "").then(joined)
