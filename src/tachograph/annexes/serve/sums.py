"""All jobs for viewers who may only see sums: names are removed first."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import date

import polars as pl

from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.tables import FINDINGS, JOB_SUMMARIES, LakeTable
from tachograph.judge.ledger import in_ledger
from tachograph.lake.data_files import DataFile
from tachograph.lake.delta import Lake

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
    }
    | {
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
        return _nameless(summaries.lazy(), JOB_SUMMARIES).collect().clear()
    kept = {name: _large_groups(counted, name, smallest) for name in _GROUPED}
    grouped = [
        pl.when(pl.col(name).is_in(kept[name]))
        .then(pl.col(name))
        .otherwise(pl.lit(OTHERS))
        .alias(name)
        for name in _GROUPED
    ]
    rows = _nameless(summaries.lazy(), JOB_SUMMARIES, *grouped)
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


def _nameless(rows: pl.LazyFrame, table: LakeTable, *grouped: pl.Expr) -> pl.LazyFrame:
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
    done = {one.meta.output_name() for one in grouped}
    return rows.with_columns(
        *(one for one in changes if one.meta.output_name() not in done), *grouped
    )


class SumsLake(Lake):
    """A lake of nameless jobs, with their summaries and findings only.

    read_summaries: returns the rows without names. It is called when they are read: of many jobs
    that is done by a worker, and the server itself needs none of them.
    """

    def __init__(self, lake: Lake, read_summaries: Callable[[], pl.DataFrame]) -> None:
        super().__init__(lake.location)
        self._lake = lake
        self._read_summaries = read_summaries

    def version(self, table: LakeTable) -> int:
        """Return the version of a table that is served."""
        return self._lake.version(table)

    def files(self, table: LakeTable, days: Iterable[date] | None = None) -> list[DataFile]:
        """Return the files of a table at that version, without keys: pseudonymized keys differ."""
        return [replace(file, keys=None) for file in self._lake.files(table, days)]

    def latest(
        self,
        table: LakeTable,
        columns: Sequence[str] | None = None,
        keys: Iterable[str] | None = None,
        where: pl.Expr | None = None,
    ) -> pl.DataFrame:
        """Return the rows of a table, one per key."""
        if table is not JOB_SUMMARIES:
            return super().latest(table, columns, keys, where)
        rows = self._read_summaries()
        rows = rows if keys is None else rows.filter(pl.col("job_key").is_in(list(keys)))
        rows = rows if where is None else rows.filter(where)
        return rows if columns is None else rows.select(columns)

    def read_files(
        self, table: LakeTable, files: Sequence[DataFile], columns: Sequence[str] | None = None
    ) -> pl.LazyFrame:
        """Return rows of findings, not read yet. Errors: NotFoundError for any other table."""
        if table is not FINDINGS:
            raise NotFoundError(
                f"rows of {table.name} are of single jobs", do="log in to see your own"
            )
        rows = _nameless(super().read_files(table, files), table)
        return rows if columns is None else rows.select(*columns)
