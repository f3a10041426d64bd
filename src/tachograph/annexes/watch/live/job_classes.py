"""Job classes of visible jobs up to their last minute, judged like stored minutes.

Import it on demand: it imports the compiler and tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl

from tachograph.annexes.watch.live.snapshot import (
    GpuAllocation,
    GpuDevice,
    GpuId,
    old_places,
    rearranged,
)
from tachograph.annexes.watch.live.view import FleetView
from tachograph.catalog.arrays import Floats, Longs, Singles
from tachograph.catalog.codes import known_codes
from tachograph.catalog.config import Configuration
from tachograph.catalog.devices import match_device
from tachograph.catalog.tables import JOB_GPUS, JOB_NODE_MINUTES, JOB_SUMMARIES
from tachograph.catalog.units import EPOCH
from tachograph.judge import job_classes
from tachograph.judge.checks import CHECKS
from tachograph.judge.completions import (
    Completed,
    Questions,
    refuted,
    unmeasured,
    until_last_sample,
)
from tachograph.judge.families import settled, verdicts
from tachograph.judge.finding import Finding, read_findings
from tachograph.pipeline.summaries import JobTables
from tachograph.pipeline.timelines import empty_timeline, merge_timelines, timeline_of_minutes

# counters whose minutes job classes need
JOB_CLASS_COUNTERS = (
    "gpu_util",
    "gr_engine_active",
    "sm_active",
    "fp64_active",
    "fp32_active",
    "fp16_active",
    "tensor_active",
    "dram_active",
    "power_w",
    "pcie_tx_bytes_per_s",
    "pcie_rx_bytes_per_s",
    "nvlink_tx_bytes_per_s",
    "nvlink_rx_bytes_per_s",
    "mem_copy_util",
)
MINUTE_US = 60_000_000  # minutes count from the start of a job, as in the lake
FORGET_S = 300.0  # the state of a job without allocations is kept for so long


@dataclass(frozen=True, slots=True)
class GpuMinute:
    """One minute of a GPU since its job's start: means of COUNTERS, NaN missing."""

    gpu: GpuId
    minute: int
    means: Singles


@dataclass(slots=True)
class CounterTotals:
    """Totals of a GPU since its job began: sum and count of each of COUNTERS, samples."""

    sums: Floats = field(default_factory=lambda: np.zeros(len(JOB_CLASS_COUNTERS)))
    counts: Longs = field(default_factory=lambda: np.zeros(len(JOB_CLASS_COUNTERS), np.int64))
    samples: int = 0

    def added(self, sums: Floats, counts: Longs, samples: int) -> CounterTotals:
        """With one minute more."""
        return CounterTotals(self.sums + sums, self.counts + counts, self.samples + samples)


@dataclass(slots=True)
class ObservedJob:
    """A visible job. start_us: since 1970; start_reported: by its allocation, else first poll.

    minutes: not yet taken.
    """

    start_us: int
    start_reported: bool
    seen_at: float
    totals: dict[GpuId, CounterTotals] = field(default_factory=dict)
    minutes: list[GpuMinute] = field(default_factory=list)


@dataclass(slots=True)
class _MinuteSums:
    """Per GPU: last measurement, start of its job, current minute (-1: none)."""

    t: Floats
    start_us: Longs
    minute: Longs
    samples: Longs
    sums: Floats
    counts: Longs

    @classmethod
    def none(cls) -> _MinuteSums:
        """Sums of no GPU."""
        start_us, minute, samples = np.empty((3, 0), np.int64)
        shape = (len(JOB_CLASS_COUNTERS), 0)
        return cls(
            np.empty(0), start_us, minute, samples, np.empty(shape), np.empty(shape, np.int64)
        )


class JobMinutes:
    """Sums of the current minute of each GPU, and the completed minutes."""

    def __init__(self) -> None:
        self.jobs: dict[str, ObservedJob] = {}
        self._gpus: tuple[GpuId, ...] = ()
        self._job: list[str | None] = []
        self._rows = _MinuteSums.none()
        self._allocations: Mapping[GpuId, GpuAllocation] | None = None

    def add(self, view: FleetView) -> None:
        """Add the values of a view; ignore repeated and older values."""
        snapshot = view.snapshot
        if snapshot.gpus != self._gpus:
            self._rearrange(snapshot.gpus)
        if snapshot.allocations is not self._allocations:
            self._allocations = snapshot.allocations
            self._hold(snapshot.allocations, snapshot.t)
        rows = self._rows
        fresh = view.current & (rows.start_us >= 0) & ~(snapshot.measured <= rows.t)
        rows.t = np.where(fresh, snapshot.measured, rows.t)
        us = np.rint(np.where(fresh, snapshot.measured, 0.0) * 1e6).astype(np.int64)
        fresh &= us >= rows.start_us
        minute = (us - rows.start_us) // MINUTE_US
        for row in np.flatnonzero(fresh & (minute != rows.minute) & (rows.samples > 0)).tolist():
            self._end_minute(row)
        rows.minute = np.where(fresh, minute, rows.minute)
        rows.samples += fresh
        for index, name in enumerate(JOB_CLASS_COUNTERS):
            column = snapshot.values.get(name)
            if column is not None:
                has_value = fresh & ~np.isnan(column)
                # in single precision, as in the lake
                rows.sums[index] += np.where(has_value, column, 0.0).astype(np.float32)
                rows.counts[index] += has_value
        self._forget(snapshot.t)

    def under_way(self, job: str) -> list[tuple[GpuMinute, CounterTotals]]:
        """Return the minute that each GPU of a job is in, and its total with it."""
        rows = [
            row for row, held in enumerate(self._job) if held == job and self._rows.samples[row]
        ]
        return [(self._means(row), self._total(row)) for row in rows]

    def _hold(self, allocations: Mapping[GpuId, GpuAllocation], t: float) -> None:
        """Jobs with allocations now; a job with another start begins again."""
        held = {gpu: allocations[gpu] for gpu in self._gpus if gpu in allocations}
        since: dict[str, float | None] = {}
        for gpu, allocation in held.items():
            if job := allocation.name_on(gpu):
                earliest = since.get(job)
                earlier = earliest is not None and (
                    allocation.since is None or earliest <= allocation.since
                )
                since[job] = earliest if earlier else allocation.since
        jobs = {job: self._observe(job, began, t) for job, began in since.items()}
        for row, gpu in enumerate(self._gpus):
            job_id = held[gpu].name_on(gpu) or None if gpu in held else None
            start_us = -1
            if job_id is not None:
                jobs[job_id].totals.setdefault(gpu, CounterTotals())
                start_us = jobs[job_id].start_us
            if job_id != self._job[row] or start_us != self._rows.start_us[row]:
                self._end_minute(row)
                self._job[row] = job_id
                self._rows.start_us[row] = start_us

    def _observe(self, job: str, since: float | None, t: float) -> ObservedJob:
        start_us = round((t if since is None else since) * 1e6)
        observed = self.jobs.get(job)
        moved = (
            observed is not None
            and since is not None
            and (not observed.start_reported or abs(start_us - observed.start_us) > 1e6)
        )
        if observed is None or moved:
            observed = self.jobs[job] = ObservedJob(start_us, since is not None, t)
        return observed

    def _forget(self, t: float) -> None:
        """Drop jobs that have not held a GPU for a while."""
        for job in {job for job in self._job if job is not None}:
            self.jobs[job].seen_at = t
        for job in [
            job for job, observed in self.jobs.items() if abs(t - observed.seen_at) > FORGET_S
        ]:
            del self.jobs[job]

    def _end_minute(self, row: int) -> None:
        """Keep the minute of a GPU, unless its job restarted meanwhile."""
        rows, job = self._rows, self.jobs.get(self._job[row] or "")
        if job is not None and rows.samples[row] and job.start_us == rows.start_us[row]:
            job.totals[self._gpus[row]] = self._total(row)
            job.minutes.append(self._means(row))
        rows.sums[:, row] = 0.0
        rows.counts[:, row] = rows.samples[row] = 0
        rows.minute[row] = -1

    def _means(self, row: int) -> GpuMinute:
        with np.errstate(invalid="ignore"):
            means = (self._rows.sums[:, row] / self._rows.counts[:, row]).astype(np.float32)
        return GpuMinute(self._gpus[row], int(self._rows.minute[row]), means)

    def _total(self, row: int) -> CounterTotals:
        before = self.jobs[self._job[row] or ""].totals.get(self._gpus[row], CounterTotals())
        return before.added(
            self._rows.sums[:, row], self._rows.counts[:, row], int(self._rows.samples[row])
        )

    def _rearrange(self, gpus: tuple[GpuId, ...]) -> None:
        """Change the GPUs: those that stay keep their current minute."""
        old = old_places(self._gpus, gpus)
        for row in set(range(len(self._gpus))).difference(old.tolist()):
            self._end_minute(row)
        self._job = [self._job[old_row] if old_row >= 0 else None for old_row in old.tolist()]
        self._rows = rearranged(
            self._rows, old, start_us=-1, minute=-1, samples=0, sums=0, counts=0
        )
        self._gpus, self._allocations = gpus, None


EVERY_S = 60.0  # between two evaluations
# What completions of a job refute is kept for so long, or until a verdict changes.
COMPLETIONS_S = 600.0
# Of the GPU time of a job: more of it without samples may change what completions refute. Less of
# it refutes less, which can wait.
GAP_SHARE = 0.01
MOST_MINUTES = 1440  # of a job; older minutes count as not measured
_MINUTES = {
    **dict.fromkeys(("job_key", "node"), pl.String()),
    **dict.fromkeys(("gpu", "mig"), pl.Int16()),
    "minute": pl.Int32(),
    **dict.fromkeys(JOB_CLASS_COUNTERS, pl.Float32()),
}


@dataclass(frozen=True, slots=True)
class KeptCompletions:
    """What completions of a run of a job refuted at a time, of which verdicts: codes.

    start_us: of the run, since 1970; share: of its GPU time without samples then.
    """

    t: float
    start_us: int
    share: float
    verdicts: frozenset[tuple[str, str]]
    refuted: tuple[str, ...]

    def holds(
        self, t: float, start_us: int, share: float, results: Collection[tuple[str, str]]
    ) -> bool:
        """Whether it needs no evaluation again."""
        same_run = self.start_us == start_us and self.verdicts == results
        return same_run and share < self.share + GAP_SHARE and 0 <= t - self.t < COMPLETIONS_S


class LiveJobClasses:
    """Gathers minutes from views, and evaluates jobs once a minute.

    A job is evaluated by its GPUs in view. The time before the first poll was not measured; where
    no source reports when a job began, it began then.
    """

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._gathered = JobMinutes()
        self._timelines = empty_timeline("job_key")  # of whole minutes, all jobs
        self._starts: dict[str, int] = {}  # of the runs that they are of, see ObservedJob
        self._judged_at: float | None = None
        self._found: Mapping[str, tuple[Finding, ...]] = {}
        self._completions: dict[str, KeptCompletions] = {}

    def step(
        self, view: FleetView, jobs: Collection[str] | None = None
    ) -> Mapping[str, tuple[Finding, ...]]:
        """Return {job: findings of job classes, most urgent first} after another view.

        They are those of the last evaluation, a minute old at most. jobs: those on screen; None:
        all.
        """
        self._gathered.add(view)
        t = view.snapshot.t
        held = {allocation.name_on(gpu) for gpu, allocation in view.snapshot.allocations.items()}
        here = held.intersection(self._gathered.jobs)
        requested = here if jobs is None else here.intersection(jobs)
        if (
            self._judged_at is None
            or requested - set(self._found)
            or not 0 <= t - self._judged_at < EVERY_S
        ):
            self._judged_at = t
            self._found = self._judge(view, sorted(requested))
        return MappingProxyType(dict(self._found))

    def _judge(self, view: FleetView, jobs: Sequence[str]) -> Mapping[str, tuple[Finding, ...]]:
        gathered = self._gathered.jobs
        ended: list[tuple[str, GpuMinute]] = []
        for job, gathered_job in gathered.items():
            ended += [(job, minute) for minute in gathered_job.minutes]
            gathered_job.minutes.clear()
        # minutes of an earlier run of a job that was requeued are none of this one
        starts = {job: gathered_job.start_us for job, gathered_job in gathered.items()}
        same_run = [job for job, start_us in starts.items() if self._starts.get(job) == start_us]
        before = self._timelines.filter(pl.col("job_key").is_in(same_run))
        self._starts = starts
        self._timelines = self._newest_minutes(pl.concat([before, self._timeline(ended)]))
        if not jobs:
            return {}
        current: list[tuple[str, GpuMinute]] = []
        gpu_rows: list[dict[str, Any]] = []
        job_rows: list[dict[str, Any]] = []
        for job in jobs:
            under_way = self._gathered.under_way(job)
            current += [(job, minute) for minute, _ in under_way]
            totals = gathered[job].totals | {minute.gpu: total for minute, total in under_way}
            rows = [
                _gpu_row(job, gpu, totals[gpu], view.snapshot.devices.get(gpu))
                for gpu in sorted(gathered[job].totals, key=GpuId.order)
            ]
            gpu_rows += rows
            job_rows.append(_job_row(job, gathered[job], rows, view.snapshot.t))
        parts = [
            self._timelines.filter(pl.col("job_key").is_in(list(jobs))),
            self._timeline(current),
        ]
        timelines = merge_timelines(parts, key="job_key")
        summaries = _frame(job_rows, JOB_SUMMARIES.schema)
        tables = JobTables(
            summaries,
            _frame(gpu_rows, JOB_GPUS.schema),
            timelines,
            _frame([], JOB_NODE_MINUTES.schema),
        )
        sampled = until_last_sample(tables)
        gaps = unmeasured(sampled.jobs, timelines, sampled.gpus)
        options = self.configuration.classes
        decided = job_classes.judge_classes(
            summaries, tables.gpus, timelines, tables.node_minutes, options
        )
        uncertain = self._refuted(sampled, gaps, verdicts(decided, CHECKS), view.snapshot.t)
        findings = settled(decided, uncertain, CHECKS, gaps)
        return {
            key: read_findings(frame, known_codes())
            for (key,), frame in findings.partition_by("job_key", as_dict=True).items()
        }

    def _judged_again(self, whole: Completed, questions: Questions) -> pl.DataFrame:
        options = self.configuration.classes
        return verdicts(job_classes.class_verdicts(whole, options, questions), CHECKS)

    def _refuted(
        self, tables: JobTables, gaps: pl.DataFrame, decided: pl.DataFrame, t: float
    ) -> pl.DataFrame:
        """Return (job_key, code) of verdicts that the time without samples may have changed."""
        by_job: dict[str, set[tuple[str, str]]] = {key: set() for key in gaps.get_column("job_key")}
        for job_key, code, verdict in decided.iter_rows():
            by_job[job_key].add((code, verdict))
        completions = self._completions
        starts = {key: self._gathered.jobs[key].start_us for key in by_job}
        shares = dict(gaps.select("job_key", "share").iter_rows())
        due = [
            key
            for key, results in by_job.items()
            if key not in completions
            or not completions[key].holds(t, starts[key], shares[key], results)
        ]
        fresh = refuted(
            tables,
            gaps.filter(pl.col("job_key").is_in(due)),
            decided,
            self._judged_again,
            idle_util=self.configuration.thresholds.idle_util,
        )
        codes: dict[str, list[str]] = {key: [] for key in due}
        for job_key, code in fresh.iter_rows():
            codes[job_key].append(code)
        for key in due:
            completions[key] = KeptCompletions(
                t, starts[key], shares[key], frozenset(by_job[key]), tuple(codes[key])
            )
        self._completions = {
            key: completions[key] for key in completions if key in self._gathered.jobs
        }
        rows = [(key, code) for key in by_job for code in completions[key].refuted]
        return pl.DataFrame(rows, schema=fresh.schema, orient="row")

    def _timeline(self, minutes: Sequence[tuple[str, GpuMinute]]) -> pl.DataFrame:
        idle_util = self.configuration.thresholds.idle_util
        timeline = timeline_of_minutes(_minutes(minutes), idle_util=idle_util, key="job_key")
        return timeline.select(self._timelines.columns)

    def _newest_minutes(self, timelines: pl.DataFrame) -> pl.DataFrame:
        """Minutes of jobs that are known, of each the newest."""
        newest = pl.col("minute").max().over("job_key")
        here = pl.col("job_key").is_in(list(self._gathered.jobs))
        return timelines.filter(here & (pl.col("minute") > newest - MOST_MINUTES)).rechunk()


def _minutes(rows: Sequence[tuple[str, GpuMinute]]) -> pl.DataFrame:
    """Return rows as in job_minutes, with COUNTERS."""
    means = np.array([minute.means for _, minute in rows], np.float32).reshape(
        len(rows), len(JOB_CLASS_COUNTERS)
    )
    frame = pl.DataFrame(
        {
            "job_key": [job for job, _ in rows],
            "node": [minute.gpu.node for _, minute in rows],
            "gpu": [minute.gpu.gpu for _, minute in rows],
            "mig": [minute.gpu.mig for _, minute in rows],
            "minute": [minute.minute for _, minute in rows],
            **{name: means[:, index] for index, name in enumerate(JOB_CLASS_COUNTERS)},
        },
        schema=_MINUTES,
    )
    return frame.with_columns(pl.col(JOB_CLASS_COUNTERS).fill_nan(None))


def _gpu_row(
    job: str, gpu: GpuId, total: CounterTotals, device: GpuDevice | None
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "job_key": job,
        "job_id": job,
        "node": gpu.node,
        "gpu": gpu.gpu,
        "mig": gpu.mig,
        "gpu_model": None if device is None else _model_name(device),
        "samples": total.samples,
    }
    for name, total_value, count in zip(JOB_CLASS_COUNTERS, total.sums, total.counts, strict=True):
        row[f"{name}_mean"] = float(total_value / count) if count else None
        row[f"{name}_max"] = row[f"{name}_mean"]  # whether it was measured at all
    return row


def _model_name(device: GpuDevice) -> str | None:
    """Name of the known device, else what the driver calls it."""
    model = match_device(device.model, device.hbm_mib)
    return device.model if model is None else model.name


def _job_row(
    job: str, observed: ObservedJob, gpus: Sequence[Mapping[str, Any]], t: float
) -> dict[str, Any]:
    start = EPOCH + timedelta(microseconds=observed.start_us)
    as_of = max(start, EPOCH + timedelta(microseconds=round(t * 1e6)))
    models = sorted({row["gpu_model"] for row in gpus if row["gpu_model"]})
    return {
        "job_key": job,
        "job_id": job,
        "state": "RUNNING",
        "start": start,
        "as_of": as_of,
        "elapsed_s": (as_of - start).total_seconds(),
        "attribution": "explicit",
        "gpus": len(gpus),
        "gpus_seen": sum(row["samples"] > 0 for row in gpus),
        "nodes": len({row["node"] for row in gpus}),
        "gpu_model": "+".join(models) or None,
        "samples": sum(row["samples"] for row in gpus),
        **{
            f"{name}_max": _largest(row[f"{name}_max"] for row in gpus)
            for name in JOB_CLASS_COUNTERS
        },
    }


def _frame(rows: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> pl.DataFrame:
    """Rows in the schema of a table; missing columns are null."""
    return pl.DataFrame(
        {
            name: pl.Series(name, [row.get(name) for row in rows], dtype=dtype)
            for name, dtype in schema.items()
        }
    )


def _largest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
