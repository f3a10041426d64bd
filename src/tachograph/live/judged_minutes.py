"""Minutes of jobs, gathered from views: what the lake would hold of them, in memory and for a day at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

import numpy as np

from tachograph.arrays import Floats, Longs, Singles
from tachograph.live.snapshot import Gpu, Holder
from tachograph.live.view import View

# counters of which job classes need minutes
COUNTERS = (
    *("gpu_util", "gr_engine_active", "sm_active", "fp64_active", "fp32_active", "fp16_active", "tensor_active"),
    *("dram_active", "power_w", "pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"),
    *("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"),
)
MINUTE_US = 60_000_000
FORGET_S = 300.0  # so long what is known of a job is kept that holds nothing


@dataclass(frozen=True, slots=True)
class GpuMinute:
    """One minute of a GPU, counted from its job's start: means of COUNTERS, NaN missing."""

    gpu: Gpu
    minute: int
    means: Singles


@dataclass(slots=True)
class Total:
    """Of a GPU since its job began, as far as was seen: sum and number of values of each of COUNTERS, samples."""

    sums: Floats = field(default_factory=lambda: np.zeros(len(COUNTERS)))
    counts: Longs = field(default_factory=lambda: np.zeros(len(COUNTERS), np.int64))
    samples: int = 0

    def added(self, sums: Floats, counts: Longs, samples: int) -> Total:
        """With one minute more."""
        return Total(self.sums + sums, self.counts + counts, self.samples + samples)


@dataclass(slots=True)
class JobSeen:
    """A job in view. start_us: since 1970; told: by who holds it, else the first look. minutes: not yet taken."""

    start_us: int
    told: bool
    seen_at: float
    totals: dict[Gpu, Total] = field(default_factory=dict)
    minutes: list[GpuMinute] = field(default_factory=list)


@dataclass(slots=True)
class _Rows:
    """One place per GPU: when it was measured last, its job's start, and the minute that it is in, -1 none."""

    t: Floats
    start_us: Longs
    minute: Longs
    samples: Longs
    sums: Floats
    counts: Longs

    @classmethod
    def new(cls, size: int) -> _Rows:
        """GPUs that no job holds."""
        start_us, minute = (np.full(size, -1, np.int64) for _ in range(2))
        shape = (len(COUNTERS), size)
        return cls(
            np.full(size, np.nan), start_us, minute, np.zeros(size, np.int64), np.zeros(shape),
            np.zeros(shape, np.int64),
        )  # fmt: skip


class JobMinutes:
    """Sums of the minute that each GPU is in, and what came of those before."""

    def __init__(self) -> None:
        self.jobs: dict[str, JobSeen] = {}
        self._gpus: tuple[Gpu, ...] = ()
        self._job: list[str | None] = []
        self._rows = _Rows.new(0)
        self._holders: Mapping[Gpu, Holder] | None = None

    def add(self, view: View) -> None:
        """Take what a view tells of jobs; a value that is read again, or older than the last, does not count."""
        snapshot = view.snapshot
        if snapshot.gpus != self._gpus:
            self._rearrange(snapshot.gpus)
        if snapshot.holders is not self._holders:
            self._holders = snapshot.holders
            self._hold(snapshot.holders, snapshot.t)
        rows = self._rows
        fresh = view.told & (rows.start_us >= 0) & ~(snapshot.measured <= rows.t)
        rows.t = np.where(fresh, snapshot.measured, rows.t)
        us = np.rint(np.where(fresh, snapshot.measured, 0.0) * 1e6).astype(np.int64)
        fresh &= us >= rows.start_us
        minute = (us - rows.start_us) // MINUTE_US
        for row in np.flatnonzero(fresh & (minute != rows.minute) & (rows.samples > 0)).tolist():
            self._end_minute(row)
        rows.minute = np.where(fresh, minute, rows.minute)
        rows.samples += fresh
        for place, name in enumerate(COUNTERS):
            column = snapshot.values.get(name)
            if column is not None:
                known = fresh & ~np.isnan(column)
                # in single precision, as the lake keeps them
                rows.sums[place] += np.where(known, column, 0.0).astype(np.float32)
                rows.counts[place] += known
        self._forget(snapshot.t)

    def under_way(self, job: str) -> list[tuple[GpuMinute, Total]]:
        """Return the minute that each GPU of a job is in, and its total with it."""
        places = [row for row, held in enumerate(self._job) if held == job and self._rows.samples[row]]
        return [(self._means(row), self._total(row)) for row in places]

    def _hold(self, holders: Mapping[Gpu, Holder], t: float) -> None:
        """Jobs that hold GPUs now; one of which another start is told begins anew."""
        held = [holders.get(gpu) for gpu in self._gpus]
        since: dict[str, float | None] = {}
        for one in held:
            if one is not None and one.job_id is not None:
                known = since.get(one.job_id)
                earlier = known is not None and (one.since is None or known <= one.since)
                since[one.job_id] = known if earlier else one.since
        jobs = {job: self._seen(job, began, t) for job, began in since.items()}
        for row, (gpu, one) in enumerate(zip(self._gpus, held, strict=True)):
            job_id = one.job_id if one else None
            start_us = -1
            if job_id is not None:
                jobs[job_id].totals.setdefault(gpu, Total())
                start_us = jobs[job_id].start_us
            if job_id != self._job[row] or start_us != self._rows.start_us[row]:
                self._end_minute(row)
                self._job[row] = job_id
                self._rows.start_us[row] = start_us

    def _seen(self, job: str, since: float | None, t: float) -> JobSeen:
        start_us = round((t if since is None else since) * 1e6)
        seen = self.jobs.get(job)
        moved = seen is not None and since is not None and (not seen.told or abs(start_us - seen.start_us) > 1e6)
        if seen is None or moved:
            seen = self.jobs[job] = JobSeen(start_us, since is not None, t)
        return seen

    def _forget(self, t: float) -> None:
        """Drop jobs that have held nothing for a while."""
        for job in {job for job in self._job if job is not None}:
            self.jobs[job].seen_at = t
        for job in [job for job, seen in self.jobs.items() if abs(t - seen.seen_at) > FORGET_S]:
            del self.jobs[job]

    def _end_minute(self, row: int) -> None:
        """Keep the minute that a GPU was in; none of a job that began anew meanwhile."""
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

    def _total(self, row: int) -> Total:
        before = self.jobs[self._job[row] or ""].totals.get(self._gpus[row], Total())
        return before.added(self._rows.sums[:, row], self._rows.counts[:, row], int(self._rows.samples[row]))

    def _rearrange(self, gpus: tuple[Gpu, ...]) -> None:
        """Take other GPUs: those that stay keep the minute they are in."""
        places = {gpu: place for place, gpu in enumerate(self._gpus)}
        old = np.array([places.get(gpu, -1) for gpu in gpus], np.int64)
        for row in set(range(len(self._gpus))).difference(old.tolist()):
            self._end_minute(row)
        rows = _Rows.new(len(gpus))
        for one in fields(rows):
            getattr(rows, one.name)[..., old >= 0] = getattr(self._rows, one.name)[..., old[old >= 0]]
        self._job = [self._job[place] if place >= 0 else None for place in old.tolist()]
        self._rows, self._gpus, self._holders = rows, gpus, None
