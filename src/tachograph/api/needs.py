"""What jobs needed of their requests, and what a change of these frees, from the lake's tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import msgspec
import polars as pl

from tachograph.catalog.codes import CAUSE_OF_CLASS
from tachograph.catalog.config import Configuration
from tachograph.judge.bounds import LEAST_S, HostMemory, peaks_of_need
from tachograph.judge.checks.gpus_never_used import UNUSED, gpus_needed
from tachograph.judge.partitions import (
    NOT_RECORDED,
    REQUEST_COLUMNS,
    JobNeeds,
    SitePartitions,
    freed_share,
    rows_with_needs,
    uses_of,
)
from tachograph.judge.steps import NODE_MEMORY_COLUMNS, node_memory_mib
from tachograph.judge.waste import UNMEASURED
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import (
    jobs_and_intervals,
    read_consistently,
    read_steps,
    read_summaries,
    read_verdicts,
)
from tachograph.report.job_end import out_of_memory
from tachograph.sources.slurm.partitions import read_partitions

if TYPE_CHECKING:
    from tachograph.catalog.rows import JobSummaryRow, StepSummaryRow

_SIZE = ("user", "cluster", "name", "gpus")  # by which jobs are alike
ALIKE_COLUMNS = (
    *("job_key", "seq", "nodes", "state", "exit_code", "exit_signal"),
    *("start", "elapsed_s", "mem_requested_mib", *_SIZE),
)
_LAST_RUNS = 20  # of a job group, whose steps are read


def read_partition_facts(lake: Lake, configuration: Configuration) -> SitePartitions:
    """Return what is known of the site's partitions, and their use where GPUs are given singly.

    Errors: InputError for a file of partitions that cannot be read.
    """
    slurm = configuration.slurm
    recorded = read_partitions(slurm.partitions_file)
    use = {}
    if recorded or slurm.shared:
        use = uses_of(read_summaries(lake.of_all_jobs, REQUEST_COLUMNS))
    return SitePartitions(slurm, recorded, use, configuration.site.cluster)


def read_ledger(
    lake: Lake, configuration: Configuration, wanted: JobFilter, columns: Sequence[str]
) -> tuple[pl.DataFrame, pl.DataFrame, dict[str, float]]:
    """Return jobs, their intervals, and {job_key: share of unused GPUs that a change frees}."""

    def read() -> tuple[pl.DataFrame, pl.DataFrame, dict[str, float]]:
        jobs, intervals = jobs_and_intervals(
            lake, wanted, tuple(CAUSE_OF_CLASS), columns, holding=True
        )
        needs = read_needs(lake, jobs)
        site = read_partition_facts(lake, configuration) if needs else NOT_RECORDED
        return jobs, intervals, freed_shares(lake, site, jobs, needs)

    return read_consistently(lake, read)


def freed_shares(
    lake: Lake, site: SitePartitions, jobs: pl.DataFrame, needs: Mapping[str, JobNeeds]
) -> dict[str, float]:
    """Return {job_key: share of the never used GPUs that a change of the request frees}."""
    job_keys = jobs.get_column("job_key")
    keys = job_keys.filter(job_keys.is_in(list(needs))).to_list()
    if not keys:
        return {}
    hours = ("gpu_hours", "gpu_hours_never_used", UNMEASURED)
    columns = ("job_key", "state", *hours, *REQUEST_COLUMNS)
    rows = list(read_summaries(lake, columns, keys=keys).iter_rows(named=True))
    of_jobs = rows_with_needs(rows, [needs[row["job_key"]] for row in rows])
    return {row["job_key"]: freed_share(row, site) for row in of_jobs}


def read_needs(
    lake: Lake,
    jobs: pl.DataFrame,
    alike: pl.DataFrame | None = None,
    verdicts: pl.DataFrame | None = None,
    *,
    together: int = 5_000,
) -> dict[str, JobNeeds]:
    """Return the needs of the jobs of which GPUs did not work; with `alike`: of all.

    `alike`: ALIKE_COLUMNS of all jobs of their users, names and sizes; `verdicts`: the findings of
    `jobs`. What is not given is read. `together`: jobs whose steps are held at a time; those of all
    jobs would fill the memory.
    """
    # Who sees sums alone sees no evidence.
    where = pl.col("code").is_in(list(UNUSED)) & (pl.col("verdict") == "yes")
    where &= pl.col("evidence").is_not_null()
    columns = ("job_key", "code", "evidence")
    if verdicts is None:
        kept = lake.kept_answers(jobs["job_key"], only=tuple(UNUSED))
        concerned = jobs if kept is None else jobs.join(kept, on="job_key", how="semi")
        found = read_verdicts(lake, concerned, where, columns, holding=True)
    else:
        found = verdicts.filter(where).select(columns)
    unused: dict[str, dict[str, Any]] = {}
    for key, code, evidence in found.iter_rows():
        unused.setdefault(key, {})[code] = msgspec.json.decode(evidence)
    if alike is None:
        rows = read_summaries(lake, ALIKE_COLUMNS, keys=list(unused)) if unused else None
        if rows is None or rows.is_empty():
            return {}
        same_names = (
            pl.col(name).is_in(rows[name].unique().to_list(), nulls_equal=True)
            for name in ("user", "name")
        )
        alike = read_summaries(lake, ALIKE_COLUMNS, where=pl.all_horizontal(same_names))
        # Of many jobs nearly all have a user and a name that one of these has.
        alike = alike.join(rows, on=_SIZE, how="semi", nulls_equal=True)
        alike = pl.concat([rows, alike]).unique("job_key")
    else:
        rows = alike.filter(pl.col("job_key").is_in(jobs["job_key"].to_list()))
    grouped = _with_groups(alike.sort("start", "job_key"))
    run_times, like_runs = _run_times(grouped), _like_runs(grouped)
    of_jobs = grouped.join(rows, on="job_key", how="semi", maintain_order="left")
    needs: dict[str, JobNeeds] = {}
    for batch in of_jobs.iter_slices(together):
        needs |= _needs(lake, batch, grouped, run_times, like_runs, unused)
    return needs


# columns of jobs with the numbers of their groups
_GROUP = "run_group"  # of a user, name and size; a job without a name is like none
_LIKE = "like_runs"  # those of the group on as many nodes
_COMPLETED = pl.col("state").eq_missing("COMPLETED")
# that a run shows what it needed
_LONG_ENOUGH = _COMPLETED & (pl.col("elapsed_s").fill_null(0.0) >= LEAST_S)


def _with_groups(alike: pl.DataFrame) -> pl.DataFrame:
    """Return jobs with the numbers of their groups, and what they requested of a node."""
    unnamed = pl.when(pl.col("name").is_null()).then("job_key").alias("unnamed")
    first = pl.col("run").first()
    nodes = pl.when(pl.col("nodes") > 0).then("nodes")
    return alike.with_row_index("run").with_columns(
        first.over(*_SIZE, unnamed).alias(_GROUP),
        first.over(*_SIZE, unnamed, "nodes").alias(_LIKE),
        long_enough=_LONG_ENOUGH,
        requested_mib=(pl.col("mem_requested_mib") / nodes).fill_nan(None),
    )


@dataclass(frozen=True, slots=True)
class _RunTimes:
    """Run times (s) of a group: of the jobs that completed, with those stopped at their limit.

    All jobs of the group share the lists: a user may have thousands of like jobs.
    """

    completed_s: list[float]
    all_s: list[float]

    def of(self, state: str | None) -> list[float]:
        """Return the run times that say how long a job takes.

        For one that was stopped at its limit only those that completed do.
        """
        return self.completed_s if state == "TIMEOUT" else self.all_s


def _run_times(grouped: pl.DataFrame) -> dict[int, _RunTimes]:
    """Return the run times of each group, in order of start."""
    stopped = pl.col("state").eq_missing("TIMEOUT")
    by_group = grouped.group_by(_GROUP, maintain_order=True).agg(
        completed=pl.col("elapsed_s").filter(_COMPLETED).drop_nulls(),
        stopped=pl.col("elapsed_s").filter(stopped).drop_nulls(),
    )
    return {
        number: _RunTimes(completed_s, completed_s + stopped_s if stopped_s else completed_s)
        for number, completed_s, stopped_s in by_group.iter_rows()
    }


@dataclass(frozen=True, slots=True)
class _LikeRuns:
    """Runs of a group on as many nodes, in order of start: job_keys of the last ones.

    completed: that show what they needed. others: that ended early, or run. killed_mib: requests of
    a node of those that were killed for lack of memory.
    """

    completed: list[str]
    others: list[str]
    killed_mib: list[float]


def _like_runs(grouped: pl.DataFrame) -> dict[int, _LikeRuns]:
    """Return the like runs of each number."""
    killed = pl.col("state").eq_missing("OUT_OF_MEMORY")
    by_like = grouped.group_by(_LIKE, maintain_order=True).agg(
        pl.col("job_key").filter("long_enough").tail(_LAST_RUNS).alias("completed"),
        pl.col("job_key").filter(~pl.col("long_enough")).tail(_LAST_RUNS).alias("others"),
        pl.col("requested_mib").filter(killed).drop_nulls(),
    )
    return {number: _LikeRuns(*runs) for number, *runs in by_like.iter_rows()}


def _last(keys: Sequence[str], own: str | None) -> list[str]:
    """Return the last of the runs, and behind them `own`, where the job is one of them."""
    if own is None:
        return list(keys)
    return [*[key for key in keys if key != own][1 - _LAST_RUNS :], own]


def _needs(
    lake: Lake,
    rows: pl.DataFrame,
    grouped: pl.DataFrame,
    run_times: Mapping[int, _RunTimes],
    like_runs: Mapping[int, _LikeRuns],
    unused: Mapping[str, dict[str, Any]],
) -> dict[str, JobNeeds]:
    """Return the needs of some jobs, from the steps of their own and of their groups' last runs."""
    keys = set(rows.get_column("job_key"))
    for number in rows.get_column(_LIKE).unique().to_list():
        keys.update(like_runs[number].completed, like_runs[number].others)
    steps = read_steps(
        lake,
        grouped.filter(pl.col("job_key").is_in(list(keys))),
        (*NODE_MEMORY_COLUMNS, "state", "exit_signal"),
    )
    peaks_mib = node_memory_mib(steps)
    of_steps = _steps_of_failed(steps, rows)
    needs = {}
    for row in rows.iter_rows(named=True):
        key, requested_mib, runs = row["job_key"], row["requested_mib"], like_runs[row[_LIKE]]
        own_mib = peaks_mib.get(key)
        killed_mib = list(runs.killed_mib)
        summary = cast("JobSummaryRow", row)
        if requested_mib and out_of_memory(summary, own_mib, of_steps.get(key, ())):
            killed_mib.append(requested_mib)
        completed = _last(runs.completed, key if row["long_enough"] else None)
        others = _last(runs.others, None if row["long_enough"] else key)
        peaks = peaks_of_need(
            [peaks_mib[run] for run in completed if run in peaks_mib],
            [peaks_mib[run] for run in others if run in peaks_mib],
        )
        needs[key] = JobNeeds(
            gpus_needed(unused.get(key, {}), row["gpus"]),
            run_times[row[_GROUP]].of(row["state"]),
            HostMemory(own_mib, peaks, killed_mib),
        )
    return needs


def _steps_of_failed(steps: pl.DataFrame, jobs: pl.DataFrame) -> dict[str, list[StepSummaryRow]]:
    """Return {job_key: its steps} of jobs that failed: whether memory lacked, they alone show."""
    failed = jobs.filter(pl.col("state") == "FAILED")
    of_failed = steps.select("job_key", "state", "exit_signal").join(
        failed, on="job_key", how="semi"
    )
    of_steps: dict[str, list[StepSummaryRow]] = {}
    for step in cast("Iterator[StepSummaryRow]", of_failed.iter_rows(named=True)):
        of_steps.setdefault(step["job_key"], []).append(step)
    return of_steps
