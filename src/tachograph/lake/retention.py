"""Retention: remove rows once they are old enough and everything computed from them exists.

A day of samples is removed when an analysis has read it, the accounting of the day is there, and
every job that held a GPU of the node then is over and summarized. The commit that removes a day
also raises the table's mark EXPIRED: `removed_before` returns it, and an analysis leaves summaries
of jobs that began before as they are. So a summary is never computed anew from a part of its
samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

import polars as pl

from tachograph.catalog.tables import (
    ALLOCATIONS,
    ANALYSES,
    FINDINGS,
    GPU_SAMPLES,
    GPU_SCORES,
    JOB_GPUS,
    JOB_MINUTES,
    JOB_NODE_MINUTES,
    JOB_NODE_SAMPLES,
    JOB_NODES,
    JOB_SUMMARIES,
    JOBS,
    LABELS,
    NODE_SAMPLES,
    NODE_STATES,
    PROFILES,
    STEP_SUMMARIES,
    STEPS,
    TIME,
    WAITING_JOBS,
    LakeTable,
)
from tachograph.catalog.units import midnight
from tachograph.lake.conform import FIRST_DAY, resolve
from tachograph.lake.data_files import DataFile, row_count
from tachograph.lake.delta import Lake
from tachograph.lake.filters import FINAL_STATES
from tachograph.lake.problems import lake_errors
from tachograph.lake.query import UNFINISHED

EXPIRED = "expired"  # mark of a table: days since 1970, before which rows were removed
ATTEMPTS = 5  # at what another process rewrites at the same time
SAMPLES = (GPU_SAMPLES, NODE_SAMPLES, JOB_NODE_SAMPLES)
# {key of [retention]: tables that it is about}, in the order in which rows are removed; what is not
# named here is kept
EXPIRING: Mapping[str, tuple[LakeTable, ...]] = {
    "gpu_samples": (GPU_SAMPLES,),
    "node_samples": (NODE_SAMPLES, JOB_NODE_SAMPLES),
    "gpu_scores": (GPU_SCORES,),
    "job_minutes": (JOB_MINUTES,),
    "job_node_minutes": (JOB_NODE_MINUTES,),
    # An allocation without its job would be a job of its own.
    "jobs": (ALLOCATIONS, STEPS, JOBS, WAITING_JOBS, NODE_STATES),
    # Compaction drops what belonged to a summary.
    "job_summaries": (LABELS, PROFILES, JOB_SUMMARIES),
}

_WITH_SUMMARIES = (JOB_GPUS, JOB_NODES, STEP_SUMMARIES, FINDINGS)

Progress = Callable[[str, int, int], None]
_RESULTS = (LABELS, PROFILES, JOB_SUMMARIES)
_POLLED = (NODE_STATES, WAITING_JOBS)
_IDS = ("cluster", "job_id", "submit")


@dataclass(frozen=True, slots=True)
class KeptRows:
    """Expired rows that were kept: reason, number, days, an example."""

    why: str
    rows: int
    first: date | None = None
    last: date | None = None
    example: str | None = None


@dataclass(frozen=True, slots=True)
class Expiry:
    """Removed (or planned) rows, days and files of a table.

    bytes: of removed files, and the reduction of the others.
    """

    table: str
    before: date
    days: int
    rows: int
    files: int
    bytes: int
    first: date | None = None
    last: date | None = None
    kept_back: tuple[KeptRows, ...] = ()


def kept_days(table: LakeTable, keep: Mapping[str, int]) -> int | None:
    """Return retention days by {key of EXPIRING: days}; None: unlimited."""
    if table in _WITH_SUMMARIES:
        return keep.get(JOB_SUMMARIES.name)
    return next((keep.get(key) for key, tables in EXPIRING.items() if table in tables), None)


def removed_before(lake: Lake, *tables: LakeTable) -> datetime | None:
    """Return the time before which rows of one of the tables were removed, or None."""
    marks = [lake.mark(table, EXPIRED) for table in tables]
    last = max((mark for mark in marks if mark is not None), default=None)
    return None if last is None else midnight(FIRST_DAY + timedelta(days=last))


def sealed_summaries(lake: Lake) -> pl.DataFrame:
    """Return job_keys whose samples are partly removed, so they are never recomputed."""
    horizon = removed_before(lake, *SAMPLES)
    columns = ("job_key", "start", "end", "state", "samples")
    if horizon is None:
        return JOB_SUMMARIES.empty().select("job_key")
    sealed = _is_over() & (pl.col("samples") > 0) & (pl.col("start") < pl.lit(horizon, dtype=TIME))
    return lake.latest(JOB_SUMMARIES, columns).filter(sealed).select("job_key")


def expire(
    lake: Lake,
    keep: Mapping[str, int],
    *,
    now: datetime,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> list[Expiry]:
    """Remove rows older than `keep`, {key of EXPIRING: days}; return removed and kept rows.

    `dry_run`: nothing is removed, the result is what would be. Readers see a day before or after
    its removal; files stay until they are vacuumed. Killed at any moment and run again, the result
    is the same. Errors: LakeError.
    """
    made = [
        (key, tables, (now - timedelta(days=keep[key])).date())
        for key, tables in EXPIRING.items()
        if key in keep
    ]
    if not made:
        return []
    evidence, leftover = _Evidence.of(lake, now), _Leftover.so_far(lake)
    done: list[Expiry] = []
    for count, (key, tables, before) in enumerate(made):
        for table in tables:
            if lake.delta(table) is None:
                continue
            work = _TableExpiry(lake, table, before, evidence, leftover, dry_run)
            done.append(work.by_day(now) if table.by_day else work.whole())
        if progress:
            progress(f"expire {key}", count + 1, len(made))
    return done


@dataclass(slots=True)
class _Leftover:
    """What remains (after a dry run: would remain): {samples table: first day}, lost job ids."""

    first_day: dict[str, date]
    gone_ids: pl.Series

    @classmethod
    def so_far(cls, lake: Lake) -> _Leftover:
        first_day = {table.name: day for table in SAMPLES for day in lake.days(table)[:1]}
        return cls(first_day, pl.Series("job_id", [], pl.String))

    def needs_accounting(self) -> pl.Expr:
        """True for jobs that end at or after the first sample: attribution needs all of them."""
        first = min(self.first_day.values(), default=None)
        if first is None:
            return pl.lit(value=False)
        return (pl.coalesce("end", "start") >= pl.lit(midnight(first), dtype=TIME)).fill_null(
            value=False
        )


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Facts to know before rows are removed.

    versions: of the tables that the last complete analysis read; None: there was none. accounted:
    last day with accounting. holding: (node or null, first, last, name) of runs that have not
    ended, or are not analyzed.
    """

    versions: Mapping[str, int] | None
    accounted: date | None
    holding: pl.DataFrame

    @classmethod
    def of(cls, lake: Lake, now: datetime) -> _Evidence:
        analyses = lake.latest(ANALYSES)
        jobs = lake.latest(JOBS, (*_IDS, "display_id", "start", "end", "seq"))
        maps = lake.latest(ALLOCATIONS, ("job_id", "node", "start", "end", "seq"))
        times = [frame[name].max() for frame in (jobs, maps) for name in ("start", "end")]
        moments = [moment for moment in times if isinstance(moment, datetime)]
        accounted = max(moments).date() if moments else None
        if analyses.is_empty():
            return cls(None, accounted, pl.DataFrame(schema=_HOLDING))
        row = analyses.row(-1, named=True)
        versions: dict[str, int] = {}
        for table in (*SAMPLES, JOBS, ALLOCATIONS, STEPS):
            version = row[f"{table.name}_version"]
            versions[table.name] = -1 if version is None else version
        return cls(versions, accounted, _holding(lake, jobs, maps, versions, now))

    def read_up_to(self, table: LakeTable) -> int:
        """Version of a table that was analyzed."""
        return -1 if self.versions is None else self.versions.get(table.name, -1)

    def on(self, day: date) -> pl.DataFrame:
        """Rows of `holding` of a day."""
        return self.holding.filter((pl.col("first") <= day) & (pl.col("last") >= day))


_HOLDING = {"node": pl.String(), "first": pl.Date(), "last": pl.Date(), "name": pl.String()}


def _holding(
    lake: Lake, jobs: pl.DataFrame, maps: pl.DataFrame, versions: Mapping[str, int], now: datetime
) -> pl.DataFrame:
    """Return runs whose samples are still needed: running, or with unread accounting."""
    today = pl.lit(now, dtype=TIME)
    summaries = lake.latest(JOB_SUMMARIES, ("job_id", "display_id", "start", "end", "state"))
    fresh_maps = maps.filter(pl.col("seq") > versions[ALLOCATIONS.name])
    is_fresh = (pl.col("seq") > versions[JOBS.name]) | pl.col("job_id").is_in(
        fresh_maps["job_id"].implode()
    )
    named = [pl.col("job_id"), pl.coalesce("display_id", "job_id").alias("name")]
    span = [
        pl.col("start").dt.date().alias("first"),
        pl.coalesce("end", today).dt.date().alias("last"),
    ]
    runs = pl.concat(
        [
            summaries.filter(~_is_over()).select(*named, *span),
            jobs.filter(is_fresh & pl.col("start").is_not_null()).select(*named, *span),
            fresh_maps.select("job_id", pl.col("job_id").alias("name"), *span).drop_nulls("first"),
        ]
    )
    gpus = lake.latest(JOB_GPUS, ("job_id", "node")) if runs.height else JOB_GPUS.empty()
    held_nodes = pl.concat([maps.select("job_id", "node"), gpus.select("job_id", "node")]).unique()
    return runs.join(held_nodes, on="job_id", how="left").select(
        pl.col(name).cast(dtype) for name, dtype in _HOLDING.items()
    )


@dataclass(frozen=True, slots=True)
class _TableExpiry:
    """Removal of the rows of one table from before a day."""

    lake: Lake
    table: LakeTable
    before: date
    evidence: _Evidence
    leftover: _Leftover
    dry_run: bool

    # ------------------------------------------------------------------------------------------------ tables by day

    def by_day(self, now: datetime) -> Expiry:
        """Remove day by day, oldest first; the first day needed whole ends removal of samples."""
        counting = rows_that_count(self.lake, now).get(self.table.name)
        done, kept_rows = [], []
        stopped: KeptRows | None = None
        days = self.lake.days(self.table)
        for day in (day for day in days if day < self.before):
            if self.table in SAMPLES and stopped is None:
                stopped = self._needed_whole(day)
            files = self.lake.files(self.table, [day])
            if stopped is not None:
                kept_rows.append(KeptRows(stopped.why, row_count(files), day, day))
                continue
            done += self._one_day(day, files, counting, kept_rows)
        if self.table in SAMPLES:
            remaining_days = [
                *(part.first for part in kept_rows if part.first),
                *(day for day in days if day >= self.before),
            ]
            self.leftover.first_day.pop(self.table.name, None)
            self.leftover.first_day |= (
                {self.table.name: min(remaining_days)} if remaining_days else {}
            )
        return _sum(self.table, self.before, done, kept_rows)

    def _needed_whole(self, day: date) -> KeptRows | None:
        """Why no sample of a day may go."""
        files = self.lake.files(self.table, [day])
        if any(file.seq > self.evidence.read_up_to(self.table) for file in files):
            return KeptRows("not analyzed yet", row_count(files))
        if self.evidence.accounted is None or day >= self.evidence.accounted:
            return KeptRows("there is no accounting of that day yet", row_count(files))
        return None

    def _one_day(
        self,
        day: date,
        files: Sequence[DataFile],
        counting: Callable[[pl.LazyFrame], pl.LazyFrame] | None,
        kept: list[KeptRows],
    ) -> list[Expiry]:
        """Remove the unneeded rows of a day, or none if all are needed."""
        for _ in range(ATTEMPTS):
            with lake_errors(self.lake.uri(self.table)):
                needed_rows, why = self._needed(
                    day, self.lake.read_files(self.table, files), counting
                )
            going = row_count(files) - needed_rows.height
            needed = (
                [KeptRows(why[0], needed_rows.height, day, day, why[1])]
                if needed_rows.height
                else []
            )
            if going == 0:
                kept += needed
                return []
            size = sum(file.size for file in files)
            share = int(size * going / row_count(files))
            expiry = Expiry(self.table.name, self.before, 1, going, len(files), share, day, day)
            until = (day - FIRST_DAY).days + 1
            rows = [(day, needed_rows)] if needed_rows.height else []
            if self.dry_run or self.lake.replace(self.table, files, rows, reached=(EXPIRED, until)):
                kept += needed
                return [expiry]
            files = self.lake.files(self.table, [day])
            if not files:
                return []
        kept.append(KeptRows("another process is rewriting the day", row_count(files), day, day))
        return []

    def _needed(
        self, day: date, rows: pl.LazyFrame, counting: Callable[[pl.LazyFrame], pl.LazyFrame] | None
    ) -> tuple[pl.DataFrame, tuple[str, str | None]]:
        """Rows of a day that must stay, sorted, each key once; the reason, with an example."""
        if self.table in SAMPLES:
            holding = self.evidence.on(day)
            if holding.is_empty():
                return self.table.empty(), ("", None)
            nodes = holding["node"]
            some = (
                rows
                if nodes.has_nulls()
                else rows.filter(pl.col("node").is_in(nodes.unique().implode()))
            )
            why = ("jobs of the day have not ended, or are not analyzed", _example(holding["name"]))
            return resolve(some.collect(), self.table)[0], why
        current = rows if counting is None else counting(rows)
        summaries = self.lake.latest(JOB_SUMMARIES, ("job_key", "start", "end", "state"))
        over = summaries.filter(_is_over()).select("job_key").lazy()
        needed_rows = resolve(current.join(over, on="job_key", how="anti").collect(), self.table)[0]
        return needed_rows, ("their jobs have not ended", _example(needed_rows["job_id"]))

    # --------------------------------------------------------------------------------------------- tables read whole

    def whole(self) -> Expiry:
        """Remove rows of what ended before."""
        for _ in range(ATTEMPTS):
            files = self.lake.files(self.table)
            with lake_errors(self.lake.uri(self.table)):
                rows = self.lake.read_files(self.table, files).collect()
            going, kept_rows = self._going(rows)
            remaining = resolve(rows.filter(~going), self.table)[0]
            count = int(going.sum())
            if count == 0:
                return _sum(self.table, self.before, [], kept_rows)
            share = sum(file.size for file in files) * count / rows.height
            expiry = replace(
                _sum(self.table, self.before, [], kept_rows),
                rows=count,
                files=len(files),
                bytes=int(share),
            )
            replaced = [(None, remaining)] if remaining.height else []
            until = (self.before - FIRST_DAY).days
            if self.dry_run or self.lake.replace(
                self.table, files, replaced, reached=(EXPIRED, until)
            ):
                return expiry
        return _sum(
            self.table, self.before, [], [KeptRows("another process is rewriting the table", 0)]
        )

    def _going(self, rows: pl.DataFrame) -> tuple[pl.Series, list[KeptRows]]:
        """Rows to remove, and which old ones stay."""
        if self.table in _POLLED:  # nothing is computed from them that is kept
            ended = pl.col("end") < pl.lit(midnight(self.before), dtype=TIME)
            return rows.select(ended.fill_null(value=False)).to_series(), []
        return self._results(rows) if self.table in _RESULTS else self._jobs(rows)

    def _jobs(self, rows: pl.DataFrame) -> tuple[pl.Series, list[KeptRows]]:
        """Accounting rows to remove: job ids with all runs over, and summarized where required."""
        jobs = self.lake.latest(JOBS, (*_IDS, "display_id", "start", "end", "state", "seq"))
        before = pl.lit(midnight(self.before), dtype=TIME)
        is_old = (pl.coalesce("end", "start", "submit") < before).fill_null(value=False)
        open_ids = self.lake.latest(JOB_SUMMARIES, ("job_id", "start", "end", "state")).filter(
            ~_is_over()
        )
        is_done = (
            (_is_over() | pl.col("start").is_null())
            & (pl.col("seq") <= self.evidence.read_up_to(JOBS))
            & ~pl.col("job_id").is_in(open_ids["job_id"].implode())
        )
        goes = is_old & is_done & ~self.leftover.needs_accounting()
        judged = jobs.with_columns(goes=goes.fill_null(value=False), old=is_old)
        of_id = judged.group_by("job_id").agg(
            pl.col("goes").all(), pl.col("display_id").drop_nulls().first()
        )
        ids = of_id.filter("goes")
        names = pl.concat([ids["job_id"], ids["display_id"].drop_nulls()]).implode()
        was_read = pl.col("seq") <= self.evidence.read_up_to(self.table)
        is_going = pl.col("job_id").is_in(names) & was_read
        if self.table is ALLOCATIONS:  # of jobs that only samples or maps name
            job_names = pl.concat([jobs["job_id"], jobs["display_id"].drop_nulls()]).implode()
            ended = (pl.col("end") < before).fill_null(value=False)
            is_going |= (
                ~pl.col("job_id").is_in(job_names)
                & ended
                & was_read
                & ~self.leftover.needs_accounting()
            )
        if self.table is JOBS:
            self.leftover.gone_ids = ids["job_id"]
        back = (
            judged.filter(pl.col("old") & ~pl.col("job_id").is_in(names))
            if self.table is JOBS
            else judged.clear()
        )
        kept_rows = _kept_rows("not over, not analyzed, or their samples are still there", back)
        return rows.select(is_going).to_series(), kept_rows

    def _results(self, rows: pl.DataFrame) -> tuple[pl.Series, list[KeptRows]]:
        """Summaries to remove, or their parts: of finished jobs that the accounting no longer
        has.
        """
        columns = ("job_key", *_IDS, "start", "end", "state", "as_of")
        summaries = self.lake.latest(JOB_SUMMARIES, columns)
        old = summaries.filter(
            _is_over() & (pl.col("as_of") < pl.lit(midnight(self.before), dtype=TIME))
        )
        recorded = pl.concat(
            [
                self.lake.latest(table, ("job_id", "end")).select("job_id")
                for table in (JOBS, ALLOCATIONS)
            ]
        )
        recorded = recorded.filter(~pl.col("job_id").is_in(self.leftover.gone_ids.implode()))
        free = old.join(recorded, on="job_id", how="anti")
        back = old.join(free, on="job_key", how="anti")
        why = "their accounting is still kept, so they would be computed again"
        is_free = rows.select(pl.col("job_key").is_in(free["job_key"].implode())).to_series()
        return is_free, _kept_rows(why, back) if self.table is JOB_SUMMARIES else []


def _is_over() -> pl.Expr:
    """True for runs that ended."""
    return pl.col("end").is_not_null() | pl.col("state").is_in(FINAL_STATES).fill_null(value=False)


def _kept_rows(why: str, jobs: pl.DataFrame) -> list[KeptRows]:
    """The jobs that stay though they are old enough, and why."""
    if jobs.is_empty():
        return []
    starts = jobs["start"]
    first, last = _day(starts.min()), _day(starts.max())
    return [KeptRows(why, jobs.height, first, last, _example(jobs["job_id"]))]


def _day(moment: object) -> date | None:
    return moment.date() if isinstance(moment, datetime) else None


def _example(names: pl.Series) -> str | None:
    """Example job with its displayed id."""
    first = names.drop_nulls().unique().sort().head(1).to_list()
    return f"job {first[0]}" if first else None


def _sum(
    table: LakeTable, before: date, done: Sequence[Expiry], kept_rows: Iterable[KeptRows]
) -> Expiry:
    return Expiry(
        table.name,
        before,
        sum(expiry.days for expiry in done),
        sum(expiry.rows for expiry in done),
        sum(expiry.files for expiry in done),
        sum(expiry.bytes for expiry in done),
        *_days_of(done),
        tuple(_by_reason(kept_rows)),
    )


def _by_reason(kept_rows: Iterable[KeptRows]) -> Iterator[KeptRows]:
    """Kept rows, merged by reason."""
    reasons: dict[str, list[KeptRows]] = {}
    for part in kept_rows:
        reasons.setdefault(part.why, []).append(part)
    for why, parts in reasons.items():
        example = next((part.example for part in parts if part.example is not None), None)
        yield KeptRows(why, sum(part.rows for part in parts), *_days_of(parts), example)


def _days_of(parts: Iterable[Expiry | KeptRows]) -> tuple[date | None, date | None]:
    """First and last day."""
    days = [day for part in parts for day in (part.first, part.last) if day is not None]
    return min(days, default=None), max(days, default=None)


def rows_that_count(lake: Lake, now: datetime) -> dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]]:
    """Return {table: its current rows} for tables whose rows need a summary.

    Dropped are rows of an analysis older than that of the job's summary, and rows of a newer one,
    or of a job without summary, if it began more than a day before `now`; a younger one may still
    be at work.
    """
    summaries = (
        lake.latest(JOB_SUMMARIES, ("job_key", "seq")).lazy().select("job_key", current="seq")
    )
    begun_us = int((now - UNFINISHED).timestamp() * 1e6)  # seq is when an analysis began

    def current_rows(rows: pl.LazyFrame) -> pl.LazyFrame:
        joined = rows.join(summaries, on="job_key", how="left", maintain_order="left")
        superseded = (pl.col("seq") < pl.col("current")).fill_null(value=False)
        current = (pl.col("seq") == pl.col("current")).fill_null(value=False)
        unfinished = ~superseded & (pl.col("seq") > begun_us)
        return joined.filter(current | unfinished).drop("current")

    return {
        table.name: current_rows
        for table in (JOB_GPUS, JOB_NODES, STEP_SUMMARIES, JOB_MINUTES, JOB_NODE_MINUTES, FINDINGS)
    }
