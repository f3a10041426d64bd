"""Buffers of computed rows: tables appended as jobs complete, and summaries.

Summaries come last, all in one step, as they make the rows of the other tables count.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import polars as pl
from deltalake.transaction import AddAction

from tachograph.catalog.tables import JOB_SUMMARIES, PIPES, LakeTable
from tachograph.lake.conform import resolve
from tachograph.lake.current import files_of_keys
from tachograph.lake.data_files import DataFile
from tachograph.lake.delta import Lake
from tachograph.lake.problems import lake_errors

# Of job_summaries in a file: a row has about 2,500 bytes, as Parquet a tenth of it or less.
SUMMARY_ROWS = 50_000
DROP_ATTEMPTS = 10  # at summaries that others rewrite meanwhile
# Counters whose threshold depends on all jobs.
PIPE_MEANS = tuple(f"{counter}_mean" for counter in PIPES.values())
_KEPT = ("job_key", "attribution", "samples", *PIPE_MEANS)


class RowBuffer:
    """Rows of one table, appended at `limit` rows, each with the number of its analysis."""

    def __init__(self, lake: Lake, table: LakeTable, number: int, *, limit: int) -> None:
        self.lake, self.table, self.number, self.limit = lake, table, number, limit
        self.waiting: list[pl.DataFrame] = []
        self.appends = 0

    def add(self, frame: pl.DataFrame) -> None:
        """Add rows without `seq`."""
        self.waiting.append(frame)
        if sum(frame.height for frame in self.waiting) >= self.limit:
            self.write()

    def write(self) -> None:
        """Append the pending rows."""
        frame = pl.concat([self.table.empty().drop("seq"), *self.waiting])
        self.waiting = []
        if frame.height:
            self.appends += 1
            self.lake.append(
                self.table,
                frame,
                app_id=f"analysis:{self.number}",
                mark=self.appends,
                seq=self.number,
            )


class SummaryBuffer:
    """Rows of job_summaries, unique by key, as Parquet in memory if many.

    What a decision over all jobs needs of each is kept beside them: `kept`, columns of
    job_summaries.
    """

    def __init__(self, lake: Lake, number: int) -> None:
        self.lake, self.number = lake, number
        self._waiting: list[pl.DataFrame] = []
        self._packed: list[bytes] = []
        self._kept = [JOB_SUMMARIES.empty().select(_KEPT)]

    @property
    def kept(self) -> pl.DataFrame:
        """job_key, attribution, samples, and the means of pipes, of all rows so far."""
        return pl.concat(self._kept)

    def add(self, frame: pl.DataFrame) -> None:
        """Add rows without `seq`."""
        self._waiting.append(frame)
        self._kept.append(frame.select(_KEPT))
        if sum(frame.height for frame in self._waiting) >= SUMMARY_ROWS:
            packed = io.BytesIO()
            pl.concat(self._waiting).write_parquet(packed, compression="zstd", compression_level=1)
            self._packed.append(packed.getvalue())
            self._waiting = []

    def write(self, complete: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        """Commit all rows after `complete` processed them; empties the buffer.

        Errors: LakeError when they cannot be written; then nothing has changed.
        """
        staged: list[AddAction] = []
        stamp = pl.lit(self.number, dtype=pl.Int64).alias("seq")
        with ExitStack() as undo:
            undo.callback(self.lake.discard, JOB_SUMMARIES, staged)
            for frame in self._frames():
                rows = complete(frame).with_columns(stamp).select(*JOB_SUMMARIES.schema)
                staged.append(
                    self.lake.stage(JOB_SUMMARIES, resolve(rows, JOB_SUMMARIES)[0], day=None)
                )
            if staged:
                self.lake.commit(JOB_SUMMARIES, staged, app_id=f"analysis:{self.number}", mark=1)
            undo.pop_all()

    def _frames(self) -> Iterator[pl.DataFrame]:
        packed, self._packed = self._packed, []
        waiting, self._waiting = self._waiting, []
        while packed:
            yield pl.read_parquet(io.BytesIO(packed.pop(0)))
        if waiting:
            yield pl.concat(waiting)


def drop_summaries(lake: Lake, gone: pl.DataFrame, *, number: int) -> None:
    """Remove the keys `gone` from job_summaries in one commit.

    Only rows of analyses before `number` go: a later one may know of jobs that this one could not.

    GPUs, minutes and findings are valid only with a summary, so they disappear too. If other
    processes keep rewriting the table, it is unchanged until the next analysis. Errors: LakeError
    if writing fails.
    """
    keys = gone["job_key"]
    going = (pl.col("seq") < number) & pl.col("job_key").is_in(keys.implode())

    def has_some(file: DataFile) -> bool:
        return bool(
            lake.read_files(JOB_SUMMARIES, [file], ("job_key", "seq"))
            .select(going.any())
            .collect()
            .item()
        )

    def rows_to_keep(files: list[DataFile]) -> Iterator[tuple[None, pl.DataFrame]]:
        for file in files:
            rows = lake.read_files(JOB_SUMMARIES, [file]).filter(~going).collect()
            if rows.height:
                yield None, resolve(rows, JOB_SUMMARIES)[0]

    for _ in range(DROP_ATTEMPTS):
        with lake_errors(lake.uri(JOB_SUMMARIES)):
            files = [
                file
                for file in files_of_keys(lake.files(JOB_SUMMARIES), keys.to_list())
                if has_some(file)
            ]
        if not files or lake.replace(JOB_SUMMARIES, files, rows_to_keep(files)):
            return
