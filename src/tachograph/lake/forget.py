"""Forget a user: replace the name, or remove the user's rows, in all tables and files of a lake.

Every column of text of every table is searched, but for those of VOCABULARY, so a new table or
column is covered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import polars as pl

from tachograph.catalog.errors import LakeError
from tachograph.catalog.pseudonyms import REMOVED, NameReplacer, holds_word
from tachograph.catalog.tables import (
    ALL_TABLES,
    ALLOCATIONS,
    JOB_SUMMARIES,
    JOBS,
    STEPS,
    LakeTable,
)
from tachograph.lake.data_files import DataFile
from tachograph.lake.delta import Lake
from tachograph.lake.log_files import files_below
from tachograph.lake.problems import lake_errors
from tachograph.lake.store import is_remote

FORGOTTEN = "forgotten"  # mark of job_summaries: how often rows were changed without another `seq`
ATTEMPTS = 5  # at what another process rewrites at the same time

# Columns whose words are not of users: words of Slurm and of this program, names of machines, and
# numbers of jobs. A name that is also one of them stays there, and is reported.
_VOCABULARY = """
    cluster same_clusters telemetry_cluster
    job_key job_id display_id array_job_id het_job_id step partition qos
    node node_list uuid pci history model gpu_model gpu_type hbm_request constraints
    state attribution ambiguous_because cut provenance numbering energy_source pipes
    bound bound_fp32 bound_fp16 bound_tensor main_pipe limiter workload health excluded
    code kind verdict confidence severity title needs covered_by method
    source target reason column
    digest content node_energy_source share_by recorded_by recorded_gpus partitions features
"""  # digest, content: of profiles, names of metrics and GPUs; those of kernels have own columns
VOCABULARY = frozenset(_VOCABULARY.split())


@dataclass(slots=True)
class ForgottenTable:
    """Changes of a table, made or planned.

    removed: rows of the user's jobs that are taken out. changed: other rows with the name; columns:
    {column: rows}. inside: texts that have the name within a longer word, which stay. left: {column
    of VOCABULARY: rows}, which stay.
    """

    table: str
    removed: int = 0
    changed: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    inside: int = 0
    left: dict[str, int] = field(default_factory=dict)


def covered_columns(table: LakeTable) -> list[str]:
    """Return the columns in which names are searched: all text columns except VOCABULARY."""
    return [
        name for name, dtype in table.schema.items() if _is_text(dtype) and name not in VOCABULARY
    ]


def forget(
    lake: Lake, name: str, stands: str | None, *, dry_run: bool = False
) -> list[ForgottenTable]:
    """Replace a user name by `stands`, or with None remove the user's jobs; return what changed.

    Where rows are removed, the name in other rows (a comment, a path) becomes REMOVED. Each table
    changes in one commit, accounting last; killed at any moment and run again, the result is the
    same. Replaced files hold the name until they are vacuumed. Errors: LakeError.
    """
    jobs = _JobsOf.of(lake, name) if stands is None else None
    replacer = NameReplacer({name: REMOVED if stands is None else stands})
    last = (ALLOCATIONS, STEPS, JOB_SUMMARIES, JOBS)
    tables = [*(table for table in ALL_TABLES if table not in last), *last]
    done = (_forget_in(lake, table, name, replacer, jobs, dry_run=dry_run) for table in tables)
    return [
        outcome
        for outcome in done
        if outcome.removed or outcome.changed or outcome.inside or outcome.left
    ]


@dataclass(frozen=True, slots=True)
class _JobsOf:
    """A user's jobs: their keys, and ids that no other user's job has."""

    name: str
    keys: pl.Series
    ids: pl.Series

    @classmethod
    def of(cls, lake: Lake, name: str) -> _JobsOf:
        columns = ("cluster", "job_id", "submit", "start", "end", "user")
        jobs = lake.latest(JOBS, columns)
        begun = pl.coalesce("submit", "start").dt.epoch("s")
        key = pl.concat_str(
            pl.col("cluster").fill_null(""), pl.col("job_id"), begun, separator=":"
        ).alias("job_key")
        summaries = lake.latest(JOB_SUMMARIES, ("job_key", "job_id", "user"))
        both = pl.concat([jobs.select(key, "job_id", "user"), summaries])
        mine = pl.col("user") == name
        theirs = both.filter(mine)
        others = both.filter(~mine.fill_null(value=False))["job_id"].unique()
        ids = theirs["job_id"].unique()
        return cls(
            name,
            theirs["job_key"].drop_nulls().unique(),
            ids.filter(~ids.is_in(others.implode())),
        )

    def rows_of(self, table: LakeTable) -> pl.Expr:
        """True for rows of these jobs."""
        if "job_key" in table.schema:
            return pl.col("job_key").is_in(self.keys.implode())
        if "user" in table.schema:
            return pl.col("user") == self.name
        return (
            pl.col("job_id").is_in(self.ids.implode())
            if "job_id" in table.schema
            else pl.lit(value=False)
        )


_JOB_COLUMNS = ("job_key", "user", "job_id")


def _forget_in(
    lake: Lake,
    table: LakeTable,
    name: str,
    replacer: NameReplacer,
    jobs: _JobsOf | None,
    *,
    dry_run: bool,
) -> ForgottenTable:
    """Change one table in one commit."""
    covered = covered_columns(table)
    texts = [column for column, dtype in table.schema.items() if _is_text(dtype)]
    ids = [] if jobs is None else [name for name in _JOB_COLUMNS if name in table.schema]
    # a table by day has no names of users, only identifiers; it is not read for those
    read = list(dict.fromkeys((*(covered if table.by_day else texts), *ids)))
    for _ in range(ATTEMPTS):
        done = ForgottenTable(table.name)
        affected = []
        for file in lake.files(table) if read else []:
            with lake_errors(lake.uri(table)):
                rows = lake.read_files(table, [file], read).collect()
            if _count(done, rows, name, covered, None if jobs is None else jobs.rows_of(table)):
                affected.append(file)
        if dry_run or not affected:
            return done
        count = (lambda: (FORGOTTEN, 1)) if table is JOB_SUMMARIES else None
        if lake.replace(
            table, affected, _changed(lake, table, affected, replacer, jobs), count=count
        ):
            return done
    raise LakeError(
        "other processes keep rewriting the table",
        where=lake.uri(table),
        do="stop them, then run it again",
    )


def _count(
    done: ForgottenTable,
    rows: pl.DataFrame,
    name: str,
    covered: Sequence[str],
    of_jobs: pl.Expr | None,
) -> bool:
    """Count the changes in a file's rows; return whether there are any."""
    gone = 0
    if of_jobs is not None:
        gone = int(rows.select(of_jobs.fill_null(value=False).sum()).item() or 0)
        done.removed += gone
        rows = rows.filter(~of_jobs.fill_null(value=False))
    texts = [column for column in rows.columns if _is_text(rows.schema[column])]
    if not texts or rows.is_empty():
        return gone > 0
    words = rows.select(holds_word(_as_text(column, rows), name).alias(column) for column in texts)
    within = rows.select(_as_text(column, rows).str.to_lowercase().str.contains(name.lower(), literal=True)
                         .fill_null(value=False).alias(column) for column in covered)  # fmt: skip
    changed = int(words.select(pl.any_horizontal(pl.lit(value=False), *covered).sum()).item())
    done.changed += changed
    for column, count in words.sum().row(0, named=True).items():
        if count:
            target = done.columns if column in covered else done.left
            target[column] = target.get(column, 0) + int(count)
    done.inside += sum(int((within[column] & ~words[column]).sum()) for column in covered)
    return gone > 0 or changed > 0


def _as_text(column: str, rows: pl.DataFrame) -> pl.Expr:
    return (
        pl.col(column).list.join("\n")
        if isinstance(rows.schema[column], pl.List)
        else pl.col(column)
    )


def _changed(
    lake: Lake,
    table: LakeTable,
    files: Sequence[DataFile],
    replacer: NameReplacer,
    jobs: _JobsOf | None,
) -> Iterator[tuple[date | None, pl.DataFrame]]:
    """Return each file's rows in order, without the jobs, with names replaced."""
    for file in files:
        with lake_errors(lake.uri(table)):
            rows = lake.read_files(table, [file]).collect()
        if jobs is not None:
            rows = rows.filter(~jobs.rows_of(table).fill_null(value=False))
        if rows.height:
            yield (
                file.day,
                rows.with_columns(
                    replacer.column(rows[column]) for column in covered_columns(table)
                ),
            )


def _is_text(dtype: pl.DataType) -> bool:
    return dtype == pl.String or (isinstance(dtype, pl.List) and dtype.inner == pl.String())


# ----------------------------------------------------------------------------------------------------- replaced files


def delete_replaced(lake: Lake) -> int:
    """Delete all replaced files now; return the number. Readers that run meanwhile fail.

    Files that no log names stay: another process may be about to commit them. Errors: LakeError.
    """
    return sum(lake.vacuum(table, 0, unnamed=False) for table in ALL_TABLES)


def files_with(lake: Lake, name: str) -> list[Path]:
    """Return files of a lake, current or not, that contain a name as a word; sorted.

    Parquet files are searched in every column of text, all others in their bytes. An object store
    is not searched.
    """
    if is_remote(lake.location):
        return []
    folders = [Path(lake.uri(table)) for table in ALL_TABLES]
    return sorted(
        path for folder in folders for path in files_below(folder) if file_has(path, name)
    )


def file_has(path: Path, name: str) -> bool:
    """Return whether a file contains a name as a word; False if it vanished."""
    try:
        if path.suffix == ".parquet" and "_delta_log" not in path.parts:
            with suppress(pl.exceptions.ComputeError):  # of a writer that was killed
                return _parquet_has(path, name)
        content = path.read_bytes().decode("utf-8", errors="replace")
        return NameReplacer({name: "\0"}).text(content) != content
    except OSError:
        return False


def _parquet_has(path: Path, name: str) -> bool:
    schema = pl.read_parquet_schema(path)
    texts = [
        column for column, dtype in schema.items() if _is_text(dtype) and column not in VOCABULARY
    ]
    if not texts:
        return False
    rows = pl.read_parquet(path, columns=texts, hive_partitioning=False)
    return bool(
        rows.select(
            pl.any_horizontal(
                holds_word(_as_text(text_column, rows), name) for text_column in texts
            ).any()
        ).item()
    )
