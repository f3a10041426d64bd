"""Jobs that a few users submit again and again for a month, each with a pattern in its history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from tachograph.annexes.lab.simulate.behaviours import CourseStretch, JobCourse, JobKind
from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.annexes.lab.simulate.workload import SimulatedRequest

HABITS_FILE = "habits.parquet"
RUNS_PER_DAY = 3
_FIRST_JOB_ID = 900_001  # below those of other simulated clusters
_FIRST_START_H, _HOURS_BETWEEN = 6.0, 5.0  # UTC; runs of a job never overlap, nor cross midnight


@dataclass(frozen=True, slots=True)
class RepeatedJob:
    """A job that a user submits RUNS_PER_DAY times on each recorded day.

    nodes 0: GPUs of a shared node. minutes: what it needs, whatever its limit. share: of the full
    work of its GPUs. host_gpus: as of `SimulatedRequest`.
    """

    user: int
    name: str
    gpus: int
    minutes: float
    limit_min: int
    nodes: int = 0
    later_h: float = 0.0
    kind: JobKind = JobKind.STEADY
    share: float = 1.0
    host_gpus: int | None = None


@dataclass(frozen=True, slots=True)
class JobHabit:
    """A pattern in the runs of a job: `after` from run `changed_run` (from 0) on; None: never."""

    pattern: str
    before: RepeatedJob
    after: RepeatedJob | None = None
    changed_run: int | None = None

    def job(self, run: int) -> RepeatedJob:
        """Return the job as it is submitted in a run."""
        if self.after is None or self.changed_run is None or run < self.changed_run:
            return self.before
        return self.after


_ENSEMBLE = RepeatedJob(60, "ensemble", 8, 90, 180, kind=JobKind.ONE_GPU, host_gpus=1)
_LONG = RepeatedJob(61, "md_long", 8, 200, 120, nodes=1)
_WEEKLY = RepeatedJob(62, "cfd_week", 8, 60, 180, nodes=1)
_INDEX = RepeatedJob(63, "index", 1, 80, 120, host_gpus=5)
_EMBED = RepeatedJob(64, "embed", 4, 70, 120, kind=JobKind.HALF_USED, host_gpus=2)
_NIGHTLY = RepeatedJob(65, "nightly", 8, 60, 75, nodes=1, later_h=3.5)
HABITS = (
    JobHabit("one_gpu_of_eight", _ENSEMBLE),
    JobHabit("limit_raised", _LONG, replace(_LONG, limit_min=300), 9),
    JobHabit("slower", _WEEKLY, replace(_WEEKLY, minutes=100, share=0.6), 12),
    JobHabit("gpus_stranded", _INDEX),
    JobHabit("request_halved", _EMBED, replace(_EMBED, gpus=2, kind=JobKind.STEADY), 9),
    JobHabit("no_problem", _NIGHTLY),
)


def habit_requests(plan: SimulationPlan) -> list[SimulatedRequest]:
    """Return all runs of HABITS in order of submission, numbered."""
    requests = sorted(_runs(plan), key=lambda request: (request.submit_s, request.user))
    return [
        replace(request, serial=serial, job_id=_FIRST_JOB_ID + serial)
        for serial, request in enumerate(requests)
    ]


def _runs(plan: SimulationPlan) -> Iterator[SimulatedRequest]:
    for number, habit in enumerate(HABITS):
        rng = np.random.default_rng([plan.seed, 14, number])
        for run in range(RUNS_PER_DAY * len(plan.recorded_days)):
            job, day = habit.job(run), plan.recorded_days[run // RUNS_PER_DAY]
            start_h = 24 * day + _FIRST_START_H + _HOURS_BETWEEN * (run % RUNS_PER_DAY)
            needs_s, limit_s = int(60 * job.minutes * rng.uniform(0.97, 1.03)), 60 * job.limit_min
            course = JobCourse(
                habit.pattern, job.kind, (CourseStretch(job.minutes, share=job.share),), job.nodes
            )
            yield SimulatedRequest(
                serial=0,
                submit_s=int(3600 * (start_h + job.later_h) + rng.uniform(0, 900)),
                kind=job.kind,
                group=0,
                gpus=job.gpus,
                nodes=job.nodes,
                run_s=min(needs_s, limit_s),
                limit_min=job.limit_min,
                state="TIMEOUT" if needs_s > limit_s else "COMPLETED",
                exit_code="0:0",
                user=job.user,
                name=job.name,
                host_gpus=job.host_gpus,
                # Other kinds behave by themselves.
                course=course if job.kind is JobKind.STEADY else None,
                of_group=number,
            )


def write_habits(file: Path, requests: Sequence[SimulatedRequest]) -> None:
    """Write the truth: a row per habit, with the first run after its change."""
    rows = []
    for habit in HABITS:
        runs = [request for request in requests if request.user == habit.before.user]
        changed = None if habit.changed_run is None else str(runs[habit.changed_run].job_id)
        rows.append(
            {
                "user": f"user{habit.before.user:03d}",
                "name": habit.before.name,
                "pattern": habit.pattern,
                "runs": len(runs),
                "changed_in": changed,
            }
        )
    pl.DataFrame(rows).write_parquet(file)
