"""What jobs needed of their requests, and what a change of these frees, from the lake's tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from tachograph.report.job_end import memory_of_node_mib, out_of_memory
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
    groups: dict[tuple[object, ...], _RunGroup] = {}
    ordered = alike.sort("start", "job_key").iter_rows(named=True)
    for row in cast("Iterator[JobSummaryRow]", ordered):
        groups.setdefault(_size(row), _RunGroup()).add(row)
    needs: dict[str, JobNeeds] = {}
    for some in rows.iter_slices(together):
        needs |= _needs(lake, some, alike, groups, unused)
    return needs


@dataclass(slots=True)
class _RunGroup:
    """Runs of a user, name and size: number of nodes of each, what they took, in order of start."""

    completed: dict[int | None, list[str]] = field(default_factory=dict)  # {nodes: job_keys}
    others: dict[int | None, list[str]] = field(default_factory=dict)  # that ended early, or runs
    killed_mib: dict[int | None, list[float]] = field(default_factory=dict)
    ended_s: list[float] = field(default_factory=list)
    stopped_s: list[float] = field(default_factory=list)  # at the time limit
    _over_s: list[float] = field(default_factory=list)  # both

    def add(self, row: JobSummaryRow) -> None:
        """Add a run, row of ALIKE_COLUMNS."""
        state, nodes, elapsed_s = row["state"], row["nodes"], row["elapsed_s"]
        requested_mib = memory_of_node_mib(row)
        if state == "OUT_OF_MEMORY" and requested_mib is not None:
            self.killed_mib.setdefault(nodes, []).append(requested_mib)
        if elapsed_s is not None and state in ("COMPLETED", "TIMEOUT"):
            (self.ended_s if state == "COMPLETED" else self.stopped_s).append(elapsed_s)
        if state == "COMPLETED" and (elapsed_s or 0.0) >= LEAST_S:
            self.completed.setdefault(nodes, []).append(row["job_key"])
        else:
            self.others.setdefault(nodes, []).append(row["job_key"])

    def last(self, row: JobSummaryRow) -> list[str]:
        """Return the last runs on as many nodes that completed, its own behind all others."""
        return _last(self.completed.get(row["nodes"], []), row["job_key"])

    def last_others(self, row: JobSummaryRow) -> list[str]:
        """Return the last other runs on as many nodes, its own behind all others."""
        return _last(self.others.get(row["nodes"], []), row["job_key"])

    def run_times(self, row: JobSummaryRow) -> Sequence[float]:
        """Run times in s of the jobs that ended by themselves or at their limit.

        For a job that was stopped at its limit only those that completed say how long it takes. All
        jobs of the group share one list: a user may have thousands of like jobs.
        """
        if row["state"] == "TIMEOUT":
            return self.ended_s
        if len(self._over_s) < len(self.ended_s) + len(self.stopped_s):
            self._over_s = self.ended_s + self.stopped_s
        return self._over_s


def _last(keys: Sequence[str], own: str) -> list[str]:
    """Return the last of the runs, and behind them `own` if it is one of them."""
    if own not in keys:
        return list(keys[-_LAST_RUNS:])
    return [*[key for key in keys if key != own][1 - _LAST_RUNS :], own]


def _needs(
    lake: Lake,
    rows: pl.DataFrame,
    alike: pl.DataFrame,
    groups: Mapping[tuple[object, ...], _RunGroup],
    unused: Mapping[str, dict[str, Any]],
) -> dict[str, JobNeeds]:
    """Return the needs of some jobs, from the steps of their own and of their groups' last runs."""
    of_jobs = cast("Iterator[JobSummaryRow]", rows.iter_rows(named=True))
    own = {row["job_key"]: row for row in of_jobs}
    last = {key: groups[_size(row)].last(row) for key, row in own.items()}
    others = {key: groups[_size(row)].last_others(row) for key, row in own.items()}
    keys = {*own}
    for runs in (*last.values(), *others.values()):
        keys.update(runs)
    steps = read_steps(
        lake,
        alike.filter(pl.col("job_key").is_in(list(keys))),
        (*NODE_MEMORY_COLUMNS, "state", "exit_signal"),
    )
    peaks_mib = node_memory_mib(steps)
    of_steps: dict[str, list[StepSummaryRow]] = {}
    for step in cast("Iterator[StepSummaryRow]", steps.iter_rows(named=True)):
        of_steps.setdefault(step["job_key"], []).append(step)
    needs = {}
    for key, row in own.items():
        group, own_mib = groups[_size(row)], peaks_mib.get(key)
        killed = list(group.killed_mib.get(row["nodes"], ()))
        requested_mib = memory_of_node_mib(row)
        if requested_mib and out_of_memory(row, own_mib, of_steps.get(key, ())):
            killed.append(requested_mib)
        peaks = peaks_of_need(
            [peaks_mib[run] for run in last[key] if run in peaks_mib],
            [peaks_mib[run] for run in others[key] if run in peaks_mib],
        )
        needs[key] = JobNeeds(
            gpus_needed(unused.get(key, {}), row["gpus"]),
            group.run_times(row),
            HostMemory(own_mib, peaks, killed),
        )
    return needs


def _size(row: JobSummaryRow) -> tuple[object, ...]:
    """What alike jobs have in common; a job without a name is like none."""
    return tuple(row.get(name) for name in _SIZE) if row["name"] is not None else (row["job_key"],)
