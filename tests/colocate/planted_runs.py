"""Runs of the simulated cluster whose jobs share GPUs, as `shared_runs` takes them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.annexes.lab.simulate.shared_gpus import HABITS
from tachograph.annexes.lab.simulate.workload import SimulatedRun
from tachograph.annexes.share.shared_runs import HeldGpu, HeldRun, RunGroup

PLANTED = {pair: factor for habit in HABITS for pair, factor in habit.slowdowns.items()}


def held_runs(plan: SimulationPlan, runs: Iterable[SimulatedRun]) -> list[HeldRun]:
    """Return what accounting and maps tell of the simulated runs, and nothing of their work."""
    nodes = [node.name for node in plan.nodes()]
    found = []
    for run in runs:
        request, share = run.request, run.request.share
        group = RunGroup(
            f"user{request.user:03d}",
            request.name,
            plan.groups[request.group].model,
            run.gpus,
        )
        start, end = (
            plan.start + timedelta(seconds=at) for at in (run.start_s or 0, run.end_s or 0)
        )
        found.append(
            HeldRun(
                key=str(request.job_id),
                group=group,
                start=start,
                end=end,
                elapsed_s=(end - start).total_seconds(),
                completed=run.state == "COMPLETED",
                gpus=tuple(
                    HeldGpu(plan.cluster, nodes[node], gpu)
                    for node, gpus in run.places
                    for gpu in gpus
                ),
                alone=not run.has_company,
                mps=share.part / share.whole if share and share.resource == "mps" else None,
                cpus=32,
            )
        )
    return found
