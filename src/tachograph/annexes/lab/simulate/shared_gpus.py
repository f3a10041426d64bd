"""Recurring jobs alone and beside others on a GPU, which slow each other down by planted factors.

A slowed job does the same work in more time: its run is longer, and its part of what the GPU counts
is lower by the same factor.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path

import numpy as np
import polars as pl

from tachograph.annexes.lab.simulate.behaviours import (
    ActivityLevel,
    ActivityStep,
    CourseActivity,
    JobBehaviour,
    JobKind,
)
from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.annexes.lab.simulate.workload import (
    FIRST_JOB_ID,
    GpuShare,
    SimulatedRequest,
    SimulatedRun,
)

SHARING_FILE = "sharing.parquet"  # of the truth
_SPREAD = 0.04  # of the work of a job's runs: standard deviation of its logarithm
_FAILED = 0.06  # of the runs: they end on the way
_HANDOVER_S = 60
_PACE = {"A100 SXM 80GB": 1.5, "A100 SXM 40GB": 1.5}  # how much longer a job takes there
_HALF_BY_SHARDS, _HALF_BY_MPS = GpuShare("shard", 4, 8), GpuShare("mps", 50, 100)


@dataclass(frozen=True, slots=True)
class RecurringJob:
    """A job that its user submits again and again: minutes on an H100 of its own, and its work."""

    user: int
    name: str
    minutes: float
    work: ActivityLevel


@dataclass(frozen=True, slots=True)
class SharingHabit:
    """Jobs that take turns on a GPU, in each round all of them alone, then some at the same time.

    together: (job, minutes from the start of the first to its own). slowdowns: {(job, the job
    beside it): factor}, of others 1. rounds: so many have jobs together; None: all.
    """

    jobs: tuple[RecurringJob, ...]
    together: tuple[tuple[RecurringJob, float], ...] = ()
    slowdowns: Mapping[tuple[str, str], float] = field(default_factory=dict)
    share: GpuShare = _HALF_BY_SHARDS
    rounds: int | None = None

    def beside(self, job: RecurringJob) -> list[tuple[str | None, float | None]]:
        """Return (the job beside it, planted slowdown) of a job; one (None, None): it is alone."""
        pairs = self.slowdowns.items()
        partners = [(other, factor) for (name, other), factor in pairs if name == job.name]
        return [*partners] or [(None, None)]


def _work(hbm_gib: float, **levels: float) -> ActivityLevel:
    occupancy = levels["sm"] * 0.3
    return ActivityLevel(hbm_mib=1024 * hbm_gib, occupancy=occupancy, noise=0.06, **levels)


_DOCK = RecurringJob(70, "dock", 50, _work(9, util=0.9, sm=0.42, fp32=0.14, dram=0.06))
_EMBED = RecurringJob(71, "embed", 47, _work(14, util=0.85, sm=0.40, hmma=0.12, dram=0.16))
_LATTICE = RecurringJob(72, "lattice", 40, _work(20, util=0.97, sm=0.71, fp64=0.22, dram=0.48))
_STENCIL = RecurringJob(73, "stencil", 36, _work(16, util=0.95, sm=0.66, fp32=0.20, dram=0.52))
_FINETUNE = RecurringJob(74, "finetune", 45, _work(18, util=0.96, sm=0.62, hmma=0.35, dram=0.20))
_SCORE = RecurringJob(74, "score", 48, _work(12, util=0.90, sm=0.50, fp32=0.26, dram=0.10))
_ENSEMBLE = RecurringJob(75, "ensemble", 40, _work(8, util=0.92, sm=0.55, fp64=0.30, dram=0.12))
_SWEEP = RecurringJob(76, "sweep", 60, _work(10, util=0.85, sm=0.45, fp32=0.18, dram=0.10))
_PLOT = RecurringJob(77, "plot", 28, _work(4, util=0.60, sm=0.20, fp32=0.05, dram=0.04))
_PARSE = RecurringJob(78, "parse", 28, _work(4, util=0.60, sm=0.20, fp64=0.05, dram=0.05))
_SOLO = RecurringJob(79, "solo", 45, _work(24, util=0.97, sm=0.80, hmma=0.45, dram=0.30))
_RARE = RecurringJob(80, "rare", 40, _work(10, util=0.85, sm=0.40, fp32=0.12, dram=0.10))
HABITS = (
    SharingHabit(
        (_DOCK, _EMBED),
        ((_DOCK, 0), (_EMBED, 2)),
        {("dock", "embed"): 1.06, ("embed", "dock"): 1.12},
    ),
    SharingHabit(
        (_LATTICE, _STENCIL),
        ((_LATTICE, 1), (_STENCIL, 0)),
        {("lattice", "stencil"): 1.42, ("stencil", "lattice"): 1.60},
    ),
    SharingHabit(
        (_FINETUNE, _SCORE),
        ((_FINETUNE, 0), (_SCORE, 1)),
        {("finetune", "score"): 1.28, ("score", "finetune"): 1.20},
        share=_HALF_BY_MPS,
    ),
    SharingHabit(
        (_ENSEMBLE,), ((_ENSEMBLE, 0), (_ENSEMBLE, 2)), {("ensemble", "ensemble"): 1.25}
    ),
    # its partner changes in the middle of each run
    SharingHabit(
        (_SWEEP, _PLOT, _PARSE),
        ((_SWEEP, 0), (_PLOT, 1), (_PARSE, 36)),
        {
            ("sweep", "plot"): 1.15,
            ("sweep", "parse"): 1.15,
            ("plot", "sweep"): 1.20,
            ("parse", "sweep"): 1.20,
        },
    ),
    # one never shares, one too rarely
    SharingHabit(
        (_SOLO, _RARE), ((_RARE, 0), (_RARE, 1)), {("rare", "rare"): 1.3}, rounds=1
    ),
)  # fmt: skip


def sharing_runs(plan: SimulationPlan) -> list[SimulatedRun]:
    """Return the runs of HABITS in order of submission, a habit on each GPU."""
    lanes = [(node, gpu) for node in plan.nodes() for gpu in range(plan.groups[node.group].gpus)]
    runs: list[SimulatedRun] = []
    for lane, (node, gpu) in enumerate(lanes):
        rng = np.random.default_rng([plan.seed, 15, lane])
        habit = HABITS[lane % len(HABITS)]
        places = ((node.index, (gpu,)),)
        runs += _runs_of_lane(plan, habit, node.group, places, rng)
    runs.sort(key=lambda run: (run.submit_s, run.places))
    return [
        replace(run, request=replace(run.request, serial=serial, job_id=FIRST_JOB_ID + serial))
        for serial, run in enumerate(runs)
    ]


def _runs_of_lane(
    plan: SimulationPlan,
    habit: SharingHabit,
    group: int,
    places: tuple[tuple[int, tuple[int, ...]], ...],
    rng: np.random.Generator,
) -> Iterator[SimulatedRun]:
    """Yield the runs on a GPU that end within the plan."""
    pace = _PACE.get(plan.groups[group].model, 1.0)
    now_s = float(rng.uniform(300, 1800))
    round_number = 0
    while True:
        scenes: list[tuple[tuple[RecurringJob, float], ...]] = [((job, 0.0),) for job in habit.jobs]
        if habit.together and (habit.rounds is None or round_number < habit.rounds):
            scenes.append(habit.together)
        for scene in scenes:
            members = [_Member.of(job, pace, begin_min, rng) for job, begin_min in scene]
            _go_on(members, habit.slowdowns)
            last_s = now_s + max(member.end_s for member in members)
            if last_s >= plan.seconds:
                return
            # jobs alone have all of the GPU, or a part of which nobody has the rest
            shares = len(members) > 1 or (habit.share is _HALF_BY_SHARDS and round_number % 3 == 2)
            share = habit.share if shares else None
            for member in members:
                company = any(member.meets(other) for other in members if other is not member)
                yield _run(member, round(now_s), group, places, share, has_company=company)
            now_s = last_s + float(rng.uniform(60, 400))
        round_number += 1


@dataclass(slots=True)
class _Member:
    """A run among those of one GPU: seconds of work left, and (s, rate) of what it did so far."""

    job: RecurringJob
    begin_s: float
    left_s: float
    failed: bool
    stretches: list[tuple[float, float]] = field(default_factory=list)

    @classmethod
    def of(
        cls, job: RecurringJob, pace: float, begin_min: float, rng: np.random.Generator
    ) -> _Member:
        work_s = 60 * pace * job.minutes * float(np.exp(rng.normal(0.0, _SPREAD)))
        failed = bool(rng.random() < _FAILED)
        done = float(rng.uniform(0.2, 0.8)) if failed else 1.0
        return cls(job, 60 * pace * begin_min, done * work_s, failed)

    @property
    def end_s(self) -> float:
        return self.begin_s + math.fsum(length for length, _ in self.stretches)

    def meets(self, other: _Member) -> bool:
        """Whether both are there for longer than a hand-over."""
        together_s = min(self.end_s, other.end_s) - max(self.begin_s, other.begin_s)
        return together_s > _HANDOVER_S


def _go_on(members: Sequence[_Member], slowdowns: Mapping[tuple[str, str], float]) -> None:
    """Let the members work from start to end, each slowed by those that are there, too."""
    now_s = 0.0
    while any(member.left_s > 0 for member in members):
        waiting = [member.begin_s for member in members if member.begin_s > now_s]
        active = [member for member in members if member.left_s > 0 and member.begin_s <= now_s]
        rates = []
        for member in active:
            others = [other for other in active if other is not member]
            names = [(member.job.name, other.job.name) for other in others]
            slowdown = math.prod(slowdowns.get(pair, 1.0) for pair in names)
            rates.append(1 / slowdown)
        ends = [now_s + member.left_s / rate for member, rate in zip(active, rates, strict=True)]
        next_s = min([*waiting, *ends])
        for member, rate, end_s in zip(active, rates, ends, strict=True):
            member.stretches.append((next_s - now_s, rate))
            # exactly 0 at its end: a rest of rounding would be a stretch of its own
            member.left_s = 0.0 if end_s == next_s else member.left_s - rate * (next_s - now_s)
        now_s = next_s


def _run(
    member: _Member,
    now_s: int,
    group: int,
    places: tuple[tuple[int, tuple[int, ...]], ...],
    share: GpuShare | None,
    *,
    has_company: bool,
) -> SimulatedRun:
    start_s, end_s = round(now_s + member.begin_s), round(now_s + member.end_s)
    state, exit_code = ("FAILED", "1:0") if member.failed else ("COMPLETED", "0:0")
    job = member.job
    request = SimulatedRequest(
        serial=0,
        submit_s=max(0, start_s - 30),
        kind=JobKind.STEADY,
        group=group,
        gpus=1,
        nodes=0,
        run_s=end_s - start_s,
        limit_min=240,
        state=state,
        exit_code=exit_code,
        user=job.user,
        name=job.name,
        share=share,
    )
    begins = accumulate((length for length, _ in member.stretches), initial=0.0)
    steps = tuple(
        ActivityStep(round(begin_s), CourseActivity.WORK, rate)
        for begin_s, (_, rate) in zip(begins, member.stretches, strict=False)
    )
    behaviour = JobBehaviour(JobKind.STEADY, job.work, steps, shares=(1.0,))
    return SimulatedRun(
        request,
        start_s,
        end_s,
        places,
        state,
        exit_code,
        behaviour,
        mapped=True,
        has_company=has_company,
    )


def write_sharing(file: Path, plan: SimulationPlan, runs: Sequence[SimulatedRun]) -> None:
    """Write the truth: a row per job, job beside it and GPU model, with the planted slowdown.

    alone, beside: completed runs of the job on this model, without others on its GPU, and with. A
    job that never shares has a row without partner.
    """
    counts: Counter[tuple[str, str, bool]] = Counter()
    for run in runs:
        model = plan.groups[run.request.group].model
        counts[run.request.name, model, run.has_company] += run.state == "COMPLETED"
    models = sorted({group.model for group in plan.groups})
    rows = [
        {
            "user": f"user{job.user:03d}",
            "name": job.name,
            "partner": partner,
            "model": model,
            "resource": habit.share.resource if partner else None,
            "slowdown": slowdown,
            "alone": counts[job.name, model, False],
            "beside": counts[job.name, model, True],
        }
        for habit in HABITS
        for job in habit.jobs
        for partner, slowdown in habit.beside(job)
        for model in models
    ]
    pl.DataFrame(rows, infer_schema_length=None).write_parquet(file)
