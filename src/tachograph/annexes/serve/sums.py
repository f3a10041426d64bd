"""All jobs for viewers who may only see sums: names are removed first."""

from __future__ import annotations

import secrets

import polars as pl

from tachograph.catalog.tables import JOB_SUMMARIES, LakeTable
from tachograph.judge.ledger import in_ledger

OTHERS = "others"  # users, and groups of few of them
# Of a request for sums: jobs cannot be chosen, so none singled out.
PARAMETERS = frozenset({"by", "top", "format"})
_GROUPED = ("cluster", "partition", "gpu_model")
# texts that describe use and not a person; every other text is removed, also one of a column that
# is added later
_TEXTS = frozenset(
    {
        "state",
        "attribution",
        "bound",
        "bound_fp32",
        "bound_fp16",
        "bound_tensor",
        "main_pipe",
        "limiter",
        "pipes",
        "energy_source",
        "workload",
        "health",
        "excluded",
        "code",
        "kind",
        "verdict",
        "severity",
    }
)
_SALT = secrets.token_urlsafe(32)  # of this process: keys of rows cannot be recomputed


def without_names(summaries: pl.DataFrame, smallest: int) -> pl.DataFrame:
    """Return rows of job_summaries without users, accounts, names, ids; empty for few users.

    Clusters, partitions and models whose ledger jobs have fewer than `smallest` users form one
    group. Times are rounded to days.
    """
    counted = summaries.filter(in_ledger())
    if counted.get_column("user").drop_nulls().n_unique() < smallest:
        return nameless(summaries.lazy(), JOB_SUMMARIES).collect().clear()
    grouped: list[pl.Expr] = []
    for name in _GROUPED:
        is_large = pl.col(name).is_in(_large_groups(counted, name, smallest))
        grouped.append(pl.when(is_large).then(name).otherwise(pl.lit(OTHERS)).alias(name))
    rows = nameless(summaries.lazy(), JOB_SUMMARIES, *grouped)
    return rows.with_columns(
        pl.lit(OTHERS).alias("user"), pl.lit(OTHERS).alias("account")
    ).collect()


def _large_groups(jobs: pl.DataFrame, column: str, smallest: int) -> list[str]:
    """Return groups shown by name: with enough users, minus the smallest if the rest is too
    small.
    """
    users = pl.col("user").drop_nulls()
    groups = (
        jobs.group_by(column)
        .agg(users.unique(), number=users.n_unique())
        .sort("number", column, descending=True)
    )
    shown = groups.filter(pl.col(column).is_not_null() & (pl.col("number") >= smallest))
    rest = groups.join(shown, on=column, how="anti", nulls_equal=True)
    while (
        shown.height and rest.height > 0 and rest.get_column("user").explode().n_unique() < smallest
    ):
        rest = pl.concat([rest, shown.tail(1)])
        shown = shown.head(shown.height - 1)
    return shown.get_column(column).to_list()


def nameless(rows: pl.LazyFrame, table: LakeTable, *grouped: pl.Expr) -> pl.LazyFrame:
    """Return rows with numbered job keys, times as days, and no other text."""
    changes: list[pl.Expr] = []
    for name in rows.collect_schema().names():
        dtype = table.schema[name]
        if name == "job_key":
            changes.append((pl.lit(_SALT) + pl.col(name)).hash().cast(pl.String).alias(name))
        elif isinstance(dtype, pl.Datetime) and table is JOB_SUMMARIES:
            changes.append(pl.col(name).dt.truncate("1d"))
        elif (dtype == pl.String or dtype == pl.List(pl.String)) and name not in _TEXTS:
            changes.append(pl.lit(None, dtype=dtype).alias(name))
    names = {group.meta.output_name() for group in grouped}
    others = [change for change in changes if change.meta.output_name() not in names]
    return rows.with_columns(*others, *grouped)
