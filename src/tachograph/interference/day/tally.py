"""What a day came to under one policy: work, waiting, slowdowns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tachograph.interference.day.jobs import Day
from tachograph.interference.day.simulation import Played


@dataclass(frozen=True, slots=True)
class Tally:
    """What a day came to under one policy. Slowdowns: time a job ran over its time alone.

    makespan_h: from the begin to the last end. held_gpu_hours: of GPUs while a job was on them. per_gpu_hour:
    GPU-hours of work, as alone, done in one of them; 1 is exclusive use. saved_gpu_hours: work less what was held.
    shared: share of the jobs that ever shared. turnaround_h: mean time from arrival to end. slower_10: share of jobs
    slower by > 10 %.
    """

    jobs_finished: int
    makespan_h: float
    held_gpu_hours: float
    per_gpu_hour: float
    saved_gpu_hours: float
    wait_h_mean: float
    turnaround_h: float
    shared: float
    slowdown_mean: float
    slowdown_median: float
    slowdown_p99: float
    slowdown_max: float
    slower_10: float
    slower_50: float


def tally(day: Day, played: Played) -> Tally:
    """Return what a day came to."""
    slowdown = played.ran_s / day.alone_s
    held = sum((stay.end_s - stay.begin_s) * len(stay.gpus) for stay in played.stays) / 3600
    work = float(day.alone_s @ day.gpus) / 3600
    shared = {job for stay in played.stays if len(stay.jobs) > 1 for job in stay.jobs}
    return Tally(
        jobs_finished=int((played.ran_s > 0).sum()),
        makespan_h=float(played.ends_s.max()) / 3600,
        held_gpu_hours=held,
        per_gpu_hour=work / held,
        saved_gpu_hours=work - held,
        wait_h_mean=float((played.starts_s - day.arrives_s).mean()) / 3600,
        turnaround_h=float((played.ends_s - day.arrives_s).mean()) / 3600,
        shared=len(shared) / day.alone_s.size,
        slowdown_mean=float(slowdown.mean()),
        slowdown_median=float(np.median(slowdown)),
        slowdown_p99=float(np.quantile(slowdown, 0.99)),
        slowdown_max=float(slowdown.max()),
        slower_10=float((slowdown > 1.1).mean()),
        slower_50=float((slowdown > 1.5).mean()),
    )
