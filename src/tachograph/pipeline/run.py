"""One analysis: find new data, attribute, reduce by day, summarize complete jobs, write.

Rows of one analysis carry its number; the GPUs, minutes and findings of a job count only when their
number is that of its summary, so an analysis that was killed leaves nothing that a reader sees.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Protocol

import msgspec
import polars as pl

from tachograph.catalog.codes import REPORTED
from tachograph.catalog.config import AnalysisOptions, Configuration, StudyFilters
from tachograph.catalog.errors import LakeError
from tachograph.catalog.tables import (
    ANALYSES,
    DEVICES,
    FINDINGS,
    GPU_KEY,
    JOB_GPUS,
    JOB_NODES,
    JOB_SUMMARIES,
    JOBS,
    STEP_SUMMARIES,
    TIME,
)
from tachograph.catalog.units import midnight
from tachograph.lake.delta import Lake
from tachograph.lake.places import NodePlaces, RecordedClusters, in_accounting, sampled_pairs
from tachograph.lake.retention import SAMPLES, removed_before, sealed_summaries
from tachograph.pipeline.accumulators import Accumulators, OpenRuns
from tachograph.pipeline.attribution import Attribution, attribute
from tachograph.pipeline.gpu_inventory import gpu_facts, inventory
from tachograph.pipeline.gpu_numbers import with_own_indices
from tachograph.pipeline.hosts import HostMinutes
from tachograph.pipeline.job_hosts import (
    energy_of_nodes,
    host_sums,
    node_energy,
    read_job_nodes,
)
from tachograph.pipeline.job_runs import (
    build_runs,
    misplaced,
    under_raw_ids,
    with_clusters,
    with_pod_jobs,
    with_raw_ids,
)
from tachograph.pipeline.minutes import MinuteWriter
from tachograph.pipeline.near import read_accounting, read_node_shares, read_steps
from tachograph.pipeline.partition import Labeller
from tachograph.pipeline.reduction import (
    PendingResult,
    Reduction,
    TaskPool,
    ThreadPool,
    reduce_days,
)
from tachograph.pipeline.row_buffers import PIPE_MEANS, RowBuffer, SummaryBuffer, drop_summaries
from tachograph.pipeline.site_evidence import ZoneEvidence, zone_evidence
from tachograph.pipeline.state import (
    EVER,
    InputVersions,
    NewInput,
    news_since,
    next_number,
    seen_last,
    seen_now,
)
from tachograph.pipeline.statistics import seconds_between
from tachograph.pipeline.steps import OpenSteps, StepRows, build_steps
from tachograph.pipeline.summaries import JobTables, summarize, used_pipes

GPU_ROWS = 100_000  # of job_gpus that wait to be written: a row has about 800 bytes
FINDING_ROWS = 250_000  # of findings: a row has about 500 bytes, a job some thirty rows
# That are complete and wait to be judged together: judging has a cost of its own each time.
JOBS_AT_ONCE = 500
MINUTES_AT_ONCE = 500_000  # of theirs, on each node: one has about 200 bytes
# At most: a job has some fifty findings of 500 bytes, several times over while it is judged.
JOBS_TOGETHER = 5_000
Progress = Callable[[str, int, int], None]


class Judge(Protocol):
    """The interface that judges completely summarized jobs."""

    @property
    def digest(self) -> str:
        """A digest of every option that decides a verdict."""

    @property
    def labeller(self) -> Labeller:
        """Labels the minutes of GPUs during the reduction."""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why rules of the site were left out."""

    def __call__(self, tables: JobTables) -> JobTables:
        """Return the tables with judged columns and with findings."""


@dataclass(frozen=True, slots=True)
class AnalysisReport:
    """Result of one analysis. In full analyses: GPU-seconds recorded = attributed +
    unattributed.
    """

    jobs: int
    ambiguous: int
    samples: int
    attributed: int
    gpu_seconds: float
    gpu_seconds_attributed: float
    contested_s: float
    findings: int
    full: bool
    rule_problems: tuple[str, ...] = ()  # why rules of the site's folder were left out
    unaccounted: int = 0  # jobs that only samples or maps name
    unaccounted_samples: int = 0
    unplaced: int = 0  # jobs without a record of where they ran
    misplaced: int = 0  # jobs that samples or maps name only at other times
    zone: ZoneEvidence | None = None  # of the accounting, where there are such jobs
    # In the second in which a GPU went from one job to another: of neither.
    handover_samples: int = 0
    # {name in telemetry: name in the accounting} of clusters with two names
    same_clusters: Mapping[str, str] = field(default_factory=dict)
    # (cluster of jobs, clusters that telemetry of their nodes names instead, number of jobs)
    other_names: tuple[tuple[str | None, str, int], ...] = ()
    # {name in telemetry: names in the accounting of clusters that may be meant}
    possible_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def analyze(
    lake: Lake,
    configuration: Configuration,
    *,
    judge: Callable[[Configuration], Judge],
    now: datetime,
    pool: TaskPool | None = None,
    threads: int = 2,
    full: bool = False,
    progress: Progress | None = None,
) -> AnalysisReport:
    """Summarize every job that new data affect (`full`: all jobs), and write the computed tables.

    A second run without new data writes nothing. Running jobs are summarized up to `now`.
    Partitions are reduced on `pool`, by default on `threads` threads. `judge`: creates the judge of
    the jobs from the configuration, before anything is done. Errors: LakeError.
    """
    judging = judge(configuration)
    plan = _plan(lake, configuration, judging, now=now, full=full)
    if plan is None:
        return AnalysisReport(0, 0, 0, 0, 0.0, 0.0, 0.0, 0, full=False)
    if pool is not None:
        return _Analysis(lake, configuration, judging, plan, now, pool, progress).run()
    with ThreadPool(threads) as thread_pool:
        return _Analysis(lake, configuration, judging, plan, now, thread_pool, progress).run()


@dataclass(frozen=True, slots=True)
class _Plan:
    """Plan of an analysis, made before any reduction.

    `owned`: every run, and its GPUs over time. `runs`: those to analyze, one row each. `gone`: keys
    of summaries whose runs the accounting no longer has. `places`: what nodes are called in all
    these tables. `possible_names`: of `RecordedClusters`. `horizon`: time before which samples were
    removed. `full`: all is analyzed again.
    """

    owned: Attribution
    runs: pl.DataFrame
    steps: StepRows
    units: pl.DataFrame
    places: NodePlaces
    possible_names: Mapping[str, tuple[str, ...]]
    seen: InputVersions
    gone: pl.DataFrame
    misplaced: int
    horizon: datetime | None
    full: bool


def _plan(
    lake: Lake, configuration: Configuration, judge: Judge, *, now: datetime, full: bool
) -> _Plan | None:
    """Return the jobs and GPUs to analyze; None without new data.

    Releases the inputs from which the plan was made.
    """
    horizon = removed_before(lake, *SAMPLES)
    versions, last = seen_now(lake, configuration, judge.digest), None if full else seen_last(lake)
    news = news_since(lake, last, versions)
    if news.nothing:
        return None
    accounting = read_accounting(lake, news, last, now=now)
    devices, places, recorded = _placed_devices(lake, accounting.clusters)
    same_clusters = {} if recorded is None else recorded.same
    if last is not None and last.same_clusters != same_clusters:
        # Of jobs of any time other samples are theirs now.
        news = replace(news, everything=True)
        accounting = read_accounting(lake, news, last, now=now)
    accounting = replace(
        accounting,
        jobs=under_raw_ids(accounting.jobs),
        allocations=in_accounting(accounting.allocations, same_clusters),
        clusters=accounting.clusters.replace(same_clusters).unique(),
    )
    units = inventory(devices, configuration.nodes)
    named = with_pod_jobs(accounting.allocations, accounting.pods)
    of_pods = accounting.pods.filter(pl.col("step").is_in(list(news.job_ids)))["job_id"]
    news = replace(news, job_ids=news.job_ids.union(of_pods))
    stored = with_clusters(
        with_raw_ids(named, accounting.jobs), accounting.jobs, accounting.clusters
    )
    jobs = with_clusters(accounting.jobs, stored, accounting.clusters)
    allocations = with_own_indices(
        places.named(stored), devices, slurm=configuration.slurm, jobs=jobs
    )
    runs = build_runs(
        accounting.jobs,
        allocations,
        slurm=configuration.slurm,
        now=now,
        clusters=accounting.clusters,
        described=configuration.site.cluster,
    )
    owned = attribute(runs, allocations, units.select(*GPU_KEY), read_node_shares(lake))
    sealed = sealed_summaries(lake)  # of the others all samples are there, or there never were any
    touched = _touched(owned, stored, news, accounting.summaries).join(
        owned.runs.join(sealed, on="job_key", how="semi"), on="run", how="anti"
    )
    mine = replace(owned, runs=owned.runs.join(touched, on="run", how="semi"))
    steps = build_steps(read_steps(lake, mine.runs), allocations, mine)
    return _Plan(
        owned=owned,
        runs=mine.runs,
        steps=steps,
        units=units,
        places=places,
        possible_names={} if recorded is None else recorded.possible_names,
        seen=replace(versions, same_clusters=same_clusters),
        gone=accounting.summaries.join(owned.runs, on="job_key", how="anti").select("job_key"),
        misplaced=misplaced(runs, allocations),
        horizon=horizon,
        full=news.everything,
    )


def _placed_devices(
    lake: Lake, clusters: pl.Series
) -> tuple[pl.DataFrame, NodePlaces, RecordedClusters | None]:
    """Return the devices by the places of their nodes, all places, and who has these nodes.

    `clusters`: those of the accounting. Who has a node of a name, all rows of the lake decide;
    None where there are not several clusters.
    """
    devices, sampled = lake.latest(DEVICES), sampled_pairs(lake)
    if pl.concat([sampled["cluster"], clusters]).n_unique() < 2:
        places = NodePlaces()
        return places.devices(devices), places, None
    recorded = RecordedClusters.of(lake, sampled)
    same_clusters = recorded.same
    of_jobs = pl.concat([recorded.held, in_accounting(recorded.labelled, same_clusters)]).unique()
    places = NodePlaces.of(in_accounting(sampled, same_clusters), of_jobs)
    return places.devices(in_accounting(devices, same_clusters)), places, recorded


def _touched(
    owned: Attribution, allocations: pl.DataFrame, news: NewInput, before: pl.DataFrame
) -> pl.DataFrame:
    """Return runs to analyze: named by new accounting, new, or on nodes with new samples.

    Beside means on the node while the run is there, or was thought to be: `before` has one row per
    summary so far. What came may take GPUs from a run and leave it none on the node, so nodes count
    rather than intervals. A run beside may be attributed otherwise on all its nodes, so those
    beside it there are done too.
    """
    if news.everything:
        return owned.runs.select("run")
    newly_recorded = pl.col("job_id").is_in(list(news.job_ids))
    # A record may have only the displayed id of its run.
    also_displayed = newly_recorded | pl.col("display_id").is_in(list(news.job_ids))
    nodes_of_jobs = allocations.select("job_id", "node").unique()
    stays = owned.runs.select("run", "job_id", "start", "until").join(nodes_of_jobs, on="job_id")
    named = owned.runs.filter(also_displayed).select("run")
    fresh = owned.runs.join(before, on="job_key", how="anti").select("run")
    spans = stays.join(news.spans, on="node", how="inner")
    sampled = spans.filter(
        (pl.col("start") <= pl.col("last")) & (pl.col("until") >= pl.col("first"))
    )
    recounted = sampled.filter(pl.col("first") == pl.lit(EVER[0], dtype=TIME)).select("run")
    was = (
        before.filter(newly_recorded)
        .join(nodes_of_jobs, on="job_id")
        .select("node", "start", until="as_of")
    )
    changed = stays.join(pl.concat([named, fresh, recounted]), on="run", how="semi")
    neighbours = _neighbours(stays, pl.concat([changed.select("node", "start", "until"), was]))
    unsure = owned.runs.filter(
        pl.col("attribution").is_in(["whole_node", "ambiguous"])
        & ~pl.col("exclusive").fill_null(value=False)
    )
    open_runs = neighbours.join(unsure, on="run", how="semi")
    further = _neighbours(
        stays, stays.join(open_runs, on="run", how="semi").select("node", "start", "until")
    )
    return pl.concat([named, fresh, sampled.select("run"), neighbours, further]).unique()


def _neighbours(stays: pl.DataFrame, windows: pl.DataFrame) -> pl.DataFrame:
    """Runs on a node of `windows` (node, start, until) from its first start to its last end.

    One that begins in the second of this end counts, too: its first samples may be of the other.
    """
    window = windows.group_by("node").agg(first=pl.col("start").min(), last=pl.col("until").max())
    near = stays.join(window, on="node", how="inner")
    return (
        near.filter((pl.col("start") <= pl.col("last")) & (pl.col("until") >= pl.col("first")))
        .select("run")
        .unique()
    )


@dataclass(frozen=True, slots=True)
class JobFinish:
    """All that decides how complete jobs are summarized and judged, the same for every batch.

    facts: of GPUs, as `gpu_facts` returns them.
    """

    judge: Judge
    facts: pl.DataFrame
    analysis: AnalysisOptions
    filters: StudyFilters
    now: datetime


# complete, held, runs, node_minutes, host_use, as of `summarize`
BatchOfRuns = tuple[Accumulators, pl.DataFrame, pl.DataFrame, pl.DataFrame, pl.DataFrame]


def finish_jobs(
    finish: JobFinish,
    complete: Accumulators,
    held: pl.DataFrame,
    runs: pl.DataFrame,
    node_minutes: pl.DataFrame,
    host_use: pl.DataFrame,
) -> JobTables:
    """Return a batch of complete runs, summarized and judged, without their minutes.

    All arguments but the first: of the runs of the batch, as of `summarize`.
    """
    tables = summarize(
        complete,
        held,
        runs,
        finish.facts,
        node_minutes,
        host_use,
        analysis=finish.analysis,
        filters=finish.filters,
        now=finish.now,
    )
    judged = finish.judge(tables)
    # Only judging reads the minutes, which are larger than all that is stored of the jobs.
    return replace(
        judged, timelines=judged.timelines.clear(), node_minutes=judged.node_minutes.clear()
    )


def finish_jobs_there(finish: bytes, *batch: *BatchOfRuns) -> JobTables:
    """Return what `finish_jobs` returns; finish: a pickled JobFinish.

    Errors: WorkersError where this process has other checks.
    """
    return finish_jobs(pickle.loads(finish), *batch)


@dataclass(slots=True)
class _Tally:
    """Recorded amounts, and the part that belongs to jobs."""

    samples: int = 0
    attributed: int = 0
    handed_over: int = 0
    gpu_seconds: float = 0.0
    gpu_seconds_attributed: float = 0.0

    def add(self, part: Accumulators) -> None:
        self.samples += part.samples
        self.attributed += part.attributed
        self.handed_over += part.handed_over
        self.gpu_seconds += part.gpu_seconds
        self.gpu_seconds_attributed += part.gpu_seconds_attributed


class _Analysis:
    """State of one analysis while its days go by."""

    def __init__(
        self,
        lake: Lake,
        configuration: Configuration,
        judge: Judge,
        plan: _Plan,
        now: datetime,
        pool: TaskPool,
        progress: Progress | None,
    ) -> None:
        self.lake, self.configuration, self.now, self.progress = lake, configuration, now, progress
        self.judge, self.plan, self.pool = judge, plan, pool
        self.runs, owned, steps = plan.runs, plan.owned, plan.steps
        self.intervals, handovers = (
            frame.join(self.runs, on="run", how="semi").sort(*GPU_KEY, "start")
            for frame in (owned.intervals, owned.handovers)
        )
        contested_s = owned.contested.select(seconds_between("start", "end").sum())
        self.contested_s = float(contested_s.item() or 0)
        self.facts, ridges = gpu_facts(plan.units)
        self.finish = JobFinish(
            judge, self.facts, configuration.analysis, configuration.filters, now
        )
        # In bytes: a worker that cannot read them says so in the result of its task.
        self.shared_finish = pool.share(pickle.dumps(self.finish)) if pool.has_processes else None
        self.pending_batches: deque[PendingResult[JobTables]] = deque()  # on workers, in order
        self.number = next_number(lake)
        held = seconds_between("start", "end").sum()
        every = pl.concat([self.intervals, handovers]).sort(*GPU_KEY, "start")
        self.held = every.group_by("run", *GPU_KEY, maintain_order=True).agg(held_s=held)
        per_run = self.held.group_by("run").len("gpus")
        self.nodes_held = self.held.group_by("run").agg(nodes_held=pl.col("node").n_unique())
        keys = self.runs.select("run", "job_key", "job_id", "cluster", "start").join(
            per_run, on="run", how="left"
        )
        idle_util = configuration.thresholds.idle_util
        self.reduction = Reduction(
            lake,
            self.intervals,
            keys,
            ridges,
            configuration.analysis,
            self.number,
            idle_util,
            judge.labeller,
            steps.intervals,
            handovers,
            plan.places,
        )
        self.steps = OpenSteps(steps)
        self.minutes = MinuteWriter(lake, keys, self.number, idle_util=idle_util)
        max_gap_intervals = configuration.analysis.max_gap_intervals
        self.hosts = HostMinutes(
            lake, owned, keys, number=self.number, max_gap_intervals=max_gap_intervals,
            places=plan.places,
        )  # fmt: skip
        self.open_runs = OpenRuns(self.runs.select("run", "start"), configuration.analysis)
        self.waiting = self.runs
        self.summaries = SummaryBuffer(lake, self.number)
        self.gpus = RowBuffer(lake, JOB_GPUS, self.number, limit=GPU_ROWS)
        self.step_rows = RowBuffer(lake, STEP_SUMMARIES, self.number, limit=GPU_ROWS)
        self.node_rows = RowBuffer(lake, JOB_NODES, self.number, limit=GPU_ROWS)
        self.reported = 0
        self.findings = RowBuffer(lake, FINDINGS, self.number, limit=FINDING_ROWS)

    def run(self) -> AnalysisReport:
        try:
            tally = self._reduce()
            jobs = self._write()
        finally:
            self.minutes.discard()  # nothing, where all is committed
            self.hosts.discard()
        unaccounted = jobs.join(self.runs.filter(~pl.col("accounted")), on="job_key", how="semi")
        other_names = (
            self.runs.filter(pl.col("telemetry_cluster").is_not_null())
            .group_by("cluster", "telemetry_cluster")
            .len()
        )
        report = AnalysisReport(
            unaccounted=unaccounted.height,
            unaccounted_samples=int(unaccounted["samples"].sum()),
            unplaced=self.runs.filter("unplaced").height,
            misplaced=self.plan.misplaced,
            zone=zone_evidence(self.lake, self.configuration.site.time_zone)
            if self.plan.misplaced
            else None,
            jobs=jobs.height,
            ambiguous=jobs.filter(pl.col("attribution") == "ambiguous").height,
            samples=tally.samples,
            attributed=tally.attributed,
            gpu_seconds=tally.gpu_seconds,
            gpu_seconds_attributed=tally.gpu_seconds_attributed,
            contested_s=self.contested_s,
            handover_samples=tally.handed_over,
            findings=self.reported,
            full=self.plan.full,
            rule_problems=self.judge.problems,
            same_clusters=self.plan.seen.same_clusters,
            possible_names=self.plan.possible_names,
            other_names=tuple(other_names.sort("cluster", "telemetry_cluster").iter_rows()),
        )
        self._remember(report)
        return report

    def _reduce(self) -> _Tally:
        """Reduce day by day, and summarize jobs complete by the end of each day."""
        tally = _Tally()
        for day, part in reduce_days(
            self.reduction, pool=self.pool, everything=self.plan.full, progress=self._report
        ):
            if part is not None:
                tally.add(part)
                self.minutes.add(part)
                self.open_runs.add(part)
                self.steps.add(part.steps)
                continue
            self.open_runs.end_day(day, self.minutes.end_day(day))
            self.hosts.up_to(day)
            over = self._over_by(day)
            if over.height >= JOBS_AT_ONCE or self._minutes_per_run(over).sum() >= MINUTES_AT_ONCE:
                self._finish(over)
        self.open_runs.close(self.now.date(), self.minutes.close())
        self.hosts.close()
        self._finish(self.waiting)
        self._add_finished(waiting=0)
        return tally

    def _report(self, day: date, done: int, total: int) -> None:
        if self.progress:
            self.progress(f"analyze {day}", done, total)

    def _over_by(self, day: date) -> pl.DataFrame:
        """Return runs that ended by the end of a day and get no further data."""
        following = midnight(day + timedelta(days=1))
        over = self.waiting.filter(pl.col("until") <= pl.lit(following, dtype=TIME))
        unfinished = pl.concat([self.open_runs.unfinished(), self.minutes.unfinished()])
        return over.join(unfinished, on="run", how="anti")

    def _minutes_per_run(self, runs: pl.DataFrame) -> pl.Series:
        """Number of minutes of each run on each node."""
        return (
            runs.join(self.nodes_held, on="run", how="left", maintain_order="left")
            .select(seconds_between("start", "until") / 60 * pl.col("nodes_held").fill_null(0))
            .to_series()
        )

    def _finish(self, runs: pl.DataFrame) -> None:
        """Summarize and judge complete runs, in batches that fit in memory."""
        minutes = self._minutes_per_run(runs).cum_sum() // MINUTES_AT_ONCE
        groups = pl.int_range(runs.height, eager=True) // JOBS_TOGETHER
        # once for all: each batch would read nearly the same days
        nodes = read_job_nodes(self.lake, runs, self.plan.seen.same_clusters)
        for _, part in runs.with_columns(_places=groups, _minutes=minutes).group_by(
            "_places", "_minutes", maintain_order=True
        ):
            self._finish_together(part.drop("_places", "_minutes"), nodes)
        self.waiting = self.waiting.join(runs.select("run"), on="run", how="anti")

    def _finish_together(self, runs: pl.DataFrame, job_nodes: pl.DataFrame) -> None:
        mine = runs.select("run")
        nodes = job_nodes.join(mine, on="run", how="semi", maintain_order="left")
        measured = node_energy(
            self.lake,
            runs,
            self.hosts.stretches,
            self.plan.places,
            max_gap_intervals=self.configuration.analysis.max_gap_intervals,
        )
        host_use = energy_of_nodes(measured, runs).join(
            host_sums(nodes, runs), on="run", how="left"
        )
        self.node_rows.add(nodes.drop("run"))
        self.step_rows.add(
            self.steps.summarize(runs, self.facts, analysis=self.configuration.analysis)
        )
        batch = (
            self.open_runs.take(mine),
            self.held.join(mine, on="run", how="semi"),
            runs,
            self.hosts.take(mine),
            host_use,
        )
        if self.shared_finish is None:
            self._add(finish_jobs(self.finish, *batch))
            return
        # Judging takes longest of what is done once for each job, and most of it is Python code:
        # done here it would bound how many workers are of use.
        self.pending_batches.append(self.pool.submit(finish_jobs_there, self.shared_finish, *batch))
        self._add_finished(waiting=self.pool.width)

    def _add_finished(self, *, waiting: int) -> None:
        """Add the results of batches on workers, in order, until so many are left there."""
        while len(self.pending_batches) > waiting:
            self._add(self.pending_batches.popleft().result())

    def _add(self, judged: JobTables) -> None:
        self.summaries.add(judged.jobs)
        self.gpus.add(judged.gpus)
        self.findings.add(judged.findings)
        self.reported += judged.findings.filter(REPORTED).height

    def _write(self) -> pl.DataFrame:
        """Write remaining GPUs, steps and findings; then the summaries, which make them current.

        Returns job_key, attribution and samples of the jobs.
        Errors: LakeError where samples were removed while they were analyzed; then nothing counts.
        """
        if removed_before(self.lake, *SAMPLES) != self.plan.horizon:
            what = "samples were removed while they were analyzed"
            raise LakeError(what, where=self.lake.location, do="run it again")
        self.gpus.write()
        self.step_rows.write()
        self.node_rows.write()
        self.findings.write()
        new = self.summaries.kept
        columns = ("job_key", "as_of", *PIPE_MEANS)
        stored = self.lake.latest(JOB_SUMMARIES, columns).join(new, on="job_key", how="anti")
        gone = stored.join(self.plan.gone, on="job_key", how="semi")
        expired = removed_before(self.lake, JOBS)
        if expired is not None:  # their accounting was removed, their summaries stay
            gone = gone.filter(pl.col("as_of") >= pl.lit(expired, dtype=TIME))
        gone = gone.select("job_key")
        stored = stored.join(gone, on="job_key", how="anti")
        population = pl.concat([new.select(PIPE_MEANS), stored.select(PIPE_MEANS)])
        self.summaries.write(
            lambda rows: used_pipes(rows, population, analysis=self.configuration.analysis)
        )
        if gone.height:
            drop_summaries(self.lake, gone, number=self.number)
        return new

    def _remember(self, report: AnalysisReport) -> None:
        same_clusters = self.plan.seen.same_clusters
        row = {
            **{f"{table}_version": version for table, version in self.plan.seen.versions.items()},
            "method": self.plan.seen.method,
            "same_clusters": msgspec.json.encode(same_clusters).decode() if same_clusters else None,
            "as_of": self.now,
            "jobs": report.jobs,
            "samples": report.samples,
            "attributed": report.attributed,
        }
        rows = pl.DataFrame([row], schema=ANALYSES.row_schema)
        self.lake.append(ANALYSES, rows, app_id=f"analysis:{self.number}", mark=1, seq=self.number)
