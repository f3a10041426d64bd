"""Job classes of the jobs in view, as of their last minute: hung, idle GPUs, ... Told by the functions of `classes`.

Import it only when somebody asks: it brings the compiler and tables along.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

import numpy as np
import polars as pl

from tachograph import classes
from tachograph.classes import CODES
from tachograph.config import Configuration
from tachograph.devices import match
from tachograph.finding import Finding, read_findings
from tachograph.live.judged_minutes import COUNTERS, GpuMinute, JobMinutes, JobSeen, Total
from tachograph.live.snapshot import Device, Gpu
from tachograph.live.view import View
from tachograph.reduce.timelines import empty, of_minutes, together
from tachograph.summarize.schema import JOB_GPUS, JOB_NODE_MINUTES, JOB_SUMMARIES

EVERY_S = 60.0  # between two judgements
MOST_MINUTES = 1440  # of a job; what is older was not measured
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MINUTES = {
    **dict.fromkeys(("job_key", "node"), pl.String()),
    **dict.fromkeys(("gpu", "mig"), pl.Int16()),
    "minute": pl.Int32(),
    **dict.fromkeys(COUNTERS, pl.Float32()),
}


class JudgedJobs:
    """Gathers minutes from views, and judges jobs once a minute.

    A job is judged by its GPUs that are in view. What was before the first look was not measured; where nobody told
    when a job began, it began then.
    """

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self._gathered = JobMinutes()
        self._timelines = empty("job_key")  # of whole minutes, all jobs
        self._judged_at: float | None = None
        self._found: Mapping[str, tuple[Finding, ...]] = {}

    def step(self, view: View, wanted: Collection[str] | None = None) -> Mapping[str, tuple[Finding, ...]]:
        """Return the findings of job classes, {job: its findings, most urgent first}, after another view.

        They are those of the last judgement, a minute old at most. wanted: jobs that somebody looks at; None: all.
        """
        self._gathered.add(view)
        t, held = view.snapshot.t, {holder.job_id for holder in view.snapshot.holders.values() if holder.job_id}
        here = held.intersection(self._gathered.jobs)
        asked = here if wanted is None else here.intersection(wanted)
        if self._judged_at is None or asked - set(self._found) or not 0 <= t - self._judged_at < EVERY_S:
            self._judged_at = t
            self._found = self._judge(view, sorted(asked))
        return MappingProxyType(dict(self._found))

    def _judge(self, view: View, jobs: Sequence[str]) -> Mapping[str, tuple[Finding, ...]]:
        known, idle_util = self._gathered.jobs, self.configuration.thresholds.idle_util
        done = [(job, minute) for job, seen in known.items() for minute in seen.minutes]
        for seen in known.values():
            seen.minutes.clear()
        whole = of_minutes(_minutes(done), idle_util=idle_util, key="job_key")
        self._timelines = self._kept(pl.concat([self._timelines, whole.select(self._timelines.columns)]))
        if not jobs:
            return {}
        under_way = {job: self._gathered.under_way(job) for job in jobs}
        now = _minutes([(job, minute) for job, pairs in under_way.items() for minute, _ in pairs])
        parts = [
            self._timelines.filter(pl.col("job_key").is_in(list(jobs))),
            of_minutes(now, idle_util=idle_util, key="job_key").select(self._timelines.columns),
        ]
        gpus = [
            _gpu_row(job, gpu, current.get(gpu, total), view.snapshot.devices.get(gpu))
            for job in jobs
            for current in ({minute.gpu: total for minute, total in under_way[job]},)
            for gpu, total in sorted(known[job].totals.items(), key=lambda pair: (pair[0].node, pair[0].gpu))
        ]
        of_jobs = [
            _job_row(job, known[job], [row for row in gpus if row["job_key"] == job], view.snapshot.t) for job in jobs
        ]
        found = classes.judge(
            _frame(of_jobs, JOB_SUMMARIES.schema),
            _frame(gpus, JOB_GPUS.schema),
            together(parts, key="job_key"),
            _frame([], JOB_NODE_MINUTES.schema),
            self.configuration.classes,
        )
        return {
            key: read_findings(frame, CODES) for (key,), frame in found.partition_by("job_key", as_dict=True).items()
        }

    def _kept(self, timelines: pl.DataFrame) -> pl.DataFrame:
        """Minutes of jobs that are known, of each the newest."""
        newest = pl.col("minute").max().over("job_key")
        here = pl.col("job_key").is_in(list(self._gathered.jobs))
        return timelines.filter(here & (pl.col("minute") > newest - MOST_MINUTES)).rechunk()


def _minutes(rows: Sequence[tuple[str, GpuMinute]]) -> pl.DataFrame:
    """Rows as in job_minutes, those of COUNTERS."""
    means = np.array([one.means for _, one in rows], np.float32).reshape(len(rows), len(COUNTERS))
    frame = pl.DataFrame(
        {
            "job_key": [job for job, _ in rows],
            "node": [one.gpu.node for _, one in rows],
            "gpu": [one.gpu.gpu for _, one in rows],
            "mig": [one.gpu.mig for _, one in rows],
            "minute": [one.minute for _, one in rows],
            **{name: means[:, place] for place, name in enumerate(COUNTERS)},
        },
        schema=_MINUTES,
    )
    return frame.with_columns(pl.col(COUNTERS).fill_nan(None))


def _gpu_row(job: str, gpu: Gpu, total: Total, device: Device | None) -> dict[str, Any]:
    means = {
        f"{name}_mean": float(total.sums[place] / total.counts[place]) if total.counts[place] else None
        for place, name in enumerate(COUNTERS)
    }
    model = match(device.model, device.hbm_mib) if device else None
    named = model.name if model else device.model if device else None
    return {"job_key": job, "job_id": job, "node": gpu.node, "gpu": gpu.gpu, "mig": gpu.mig, "gpu_model": named,
            "samples": total.samples, **means}  # fmt: skip


def _job_row(job: str, seen: JobSeen, gpus: Sequence[Mapping[str, Any]], t: float) -> dict[str, Any]:
    start = _EPOCH + timedelta(microseconds=seen.start_us)
    as_of = max(start, _EPOCH + timedelta(microseconds=round(t * 1e6)))
    models = sorted({row["gpu_model"] for row in gpus if row["gpu_model"]})
    return {
        "job_key": job, "job_id": job, "state": "RUNNING", "start": start, "as_of": as_of,
        "elapsed_s": (as_of - start).total_seconds(), "attribution": "explicit", "gpus": len(gpus),
        "gpus_seen": sum(row["samples"] > 0 for row in gpus), "nodes": len({row["node"] for row in gpus}),
        "gpu_model": "+".join(models) or None,
    }  # fmt: skip


def _frame(rows: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> pl.DataFrame:
    """Rows in the schema of a table; what is not given is null."""
    return pl.DataFrame(
        {name: pl.Series(name, [row.get(name) for row in rows], dtype=dtype) for name, dtype in schema.items()}
    )
