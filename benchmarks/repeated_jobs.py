"""Jobs of a simulated cluster that users submit again and again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tachograph.annexes.lab.simulate.behaviours import JOB_KINDS, JobKind
from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.annexes.lab.simulate.workload import (
    SimulatedRequest,
    choose_end,
    draw_request,
    numbered,
    user_activity,
)

_CHANGED = 0.01  # share of the runs of a job group that do something else under its name
_HANGING = 0.15  # share of job groups with some hanging runs
_HANGS = 0.2  # share of their runs


def repeated_requests(plan: SimulationPlan, job_groups: int) -> list[SimulatedRequest]:
    """Return jobs of so many groups, each submitted repeatedly, by the load of the plan.

    A group keeps size, limit, memory and behaviour.

    Run times spread around the group's; some runs fail on the way, some groups hang at times, few
    runs are changed.
    """
    rng = np.random.default_rng([plan.seed, 1])
    kinds = [
        kind for kind in JOB_KINDS if kind not in (JobKind.HUNG, JobKind.DEADLOCK, JobKind.CPU_ONLY)
    ]
    weights = np.array([JOB_KINDS[kind].weight for kind in kinds])
    users, groups = user_activity(), list[SimulatedRequest]()
    for number in range(job_groups):
        usual = kinds[int(rng.choice(len(kinds), p=weights / weights.sum()))]
        made = draw_request(
            plan, rng, number, usual, int(rng.choice(len(users), p=users)), planned=False
        )
        groups.append(
            replace(made, of_group=number, het=False, fails_once=False, cancelled_waiting=False)
        )
    spreads, slack = rng.uniform(0.01, 0.25, len(groups)), rng.uniform(1.2, 5.0, len(groups))
    hanging, counted = rng.random(len(groups)) < _HANGING, rng.random(len(groups)) < 0.3
    shares = 1.0 / np.arange(1, len(groups) + 1) ** 0.8
    drawn, spent, budget = list[SimulatedRequest](), 0.0, plan.load * plan.gpus * plan.seconds
    while spent < budget:
        number = int(rng.choice(len(groups), p=shares / shares.sum()))
        group, spread, serial = groups[number], float(spreads[number]), len(drawn)
        limit_s = 300 * -int(-group.run_s * float(np.exp(3 * spread)) * slack[number] // 300)
        changed, hangs = (
            bool(rng.random() < _CHANGED),
            bool(hanging[number] and rng.random() < _HANGS),
        )
        needs_s = max(
            JOB_KINDS[group.kind].min_s, group.run_s * float(np.exp(rng.normal(0.0, spread)))
        )
        kind: JobKind = JobKind.STEADY if changed and group.gpus else group.kind
        needs_s *= float(np.exp(rng.normal(0.0, 0.7))) if changed else 1.0
        state, exit_code = choose_end(rng, JobKind.STEADY)
        state, exit_code = ("COMPLETED", "0:0") if state == "TIMEOUT" else (state, exit_code)
        run_s = int(needs_s if state == "COMPLETED" else needs_s * rng.uniform(0.05, 1.0))
        if hangs and limit_s >= JOB_KINDS[JobKind.HUNG].min_s and group.gpus:
            kind, run_s, (state, exit_code) = JobKind.HUNG, limit_s, ("TIMEOUT", "0:0")
        elif run_s > limit_s:
            run_s, state, exit_code = limit_s, "TIMEOUT", "0:0"
        if run_s < JOB_KINDS[kind].min_s:  # it ended before the planted problem shows
            kind = JobKind.STEADY
        name = f"{group.name}_{number:02d}"
        drawn.append(
            replace(
                group,
                serial=serial,
                submit_s=int(rng.uniform(0, plan.seconds)),
                kind=kind,
                run_s=run_s,
                limit_min=limit_s // 60,
                state=state,
                exit_code=exit_code,
                name=f"{name}_{serial:05d}" if counted[number] else name,
            )
        )
        spent += max(group.gpus, 1) * run_s
    return numbered(drawn)
