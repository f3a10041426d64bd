"""Nodes that could not be used: down, drained, in maintenance, reserved, without free CPUs.

All of it lies where no job of the plan runs, so it changes no job. Polls of the controller, node
events and reservations are written as Slurm prints them, and the truth beside them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl

from tachograph.annexes.lab.simulate.accounting import (
    CPUS_PER_GPU,
    GIB_PER_GPU,
    constraint,
    host_share,
    partition_of,
)
from tachograph.annexes.lab.simulate.plan import SimulatedNode, SimulationPlan
from tachograph.annexes.lab.simulate.truth import raw_id
from tachograph.annexes.lab.simulate.workload import SimulatedRun
from tachograph.catalog.units import zone

NODES_FILE = "nodes.parquet"  # of the truth
NOT_POLLED = (30 * 3600, 31 * 3600)  # s after the plan's start: the collector was stopped
POLL_S = 600
_HOUR = 3600
_LIMITED_USERS = 4  # every so many of them waits for a limit of its QOS
# (state, nodes, hours at most); the first that fit
_PLANTED = (
    ("down", 1, 7),
    ("drained", 3, 9),
    ("maintenance", 5, 4),
    ("reserved", 2, 6),
)
_FLAGS = {"down": ["DOWN"], "drained": ["DRAIN"], "maintenance": ["MAINTENANCE", "RESERVED"]}


@dataclass(frozen=True, slots=True)
class NodeAway:
    """A time (s after the plan's start) in which a node was not what jobs need.

    state: down, drained, maintenance, reserved, or no_host: other work held all of its CPUs.
    """

    node: int
    state: str
    start_s: int
    end_s: int


def plan_away(plan: SimulationPlan, runs: Sequence[SimulatedRun]) -> list[NodeAway]:
    """Return what happened to nodes, at times of polls, where no job of the plan holds them."""
    nodes = plan.nodes()
    busy: dict[int, list[tuple[int, int]]] = {node.index: [] for node in nodes}
    away: list[NodeAway] = []
    for run in runs:
        if run.start_s is not None and run.end_s is not None:
            for node, _ in run.places:
                busy[node].append((run.start_s, run.end_s))
    gaps = {node: list(_gaps(plan, spans)) for node, spans in busy.items()}
    for run in runs:  # a node that failed is down until it is repaired
        for node, _ in run.places if run.state == "NODE_FAIL" else ():
            after = [gap for gap in gaps[node] if 0 <= gap[0] - (run.end_s or 0) <= POLL_S]
            away += [NodeAway(node, "down", begin, min(end, begin + _HOUR)) for begin, end in after]
    taken = {absence.node for absence in away}
    for state, count, hours in _PLANTED:
        longest = sorted(
            (begin - end, begin, node)
            for node, of_node in gaps.items()
            for begin, end in of_node
            if node not in taken and not nodes[node].shared
        )
        for length, begin, node in longest[:count]:
            if -length < _HOUR or node in taken:
                continue
            away.append(NodeAway(node, state, begin, begin + min(-length, hours * _HOUR)))
            taken.add(node)
    away += [
        NodeAway(node.index, "no_host", 28 * _HOUR, 34 * _HOUR)
        for node in nodes
        if node.shared and plan.groups[node.group].model == "H100 SXM 80GB"
    ]
    return [absence for absence in away if absence.end_s > absence.start_s]


def _gaps(plan: SimulationPlan, busy: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the times of at least an hour without a job, from a poll to a poll."""
    free = 0
    for begin, end in [*sorted(busy), (plan.seconds, plan.seconds)]:
        low, high = -(-free // POLL_S) * POLL_S, begin // POLL_S * POLL_S
        if high - low >= _HOUR:
            yield low, high
        free = max(free, end)


def away_frame(plan: SimulationPlan, away: Sequence[NodeAway]) -> pl.DataFrame:
    """Return the truth: one row per node and time, `state` as in `NodeAway`."""
    names = [node.name for node in plan.nodes()]
    rows = [
        (
            names[absence.node],
            absence.state,
            *(_time(plan, at) for at in (absence.start_s, absence.end_s)),
        )
        for absence in away
    ]
    time = pl.Datetime("us", "UTC")
    schema = {"node": pl.String(), "state": pl.String(), "start": time, "end": time}
    return pl.DataFrame(rows, schema=schema, orient="row")


def write_nodes(
    plan: SimulationPlan, folder: Path, runs: Sequence[SimulatedRun], away: Sequence[NodeAway]
) -> None:
    """Write polls of nodes and waiting jobs, node events and reservations."""
    folder.mkdir(exist_ok=True)
    with (folder / "polls.json").open("w", encoding="utf-8") as out:
        for at in range(0, plan.seconds + 1, POLL_S):
            if not NOT_POLLED[0] < at < NOT_POLLED[1]:
                for answer in _poll(plan, runs, away, at):
                    out.write(json.dumps(answer, separators=(",", ":")) + "\n")
    (folder / "events.txt").write_text(_events(plan, away), encoding="utf-8")
    reservations = _reservations(plan, away)
    if reservations:
        (folder / "reservations.txt").write_text(reservations, encoding="utf-8")


def _poll(
    plan: SimulationPlan, runs: Sequence[SimulatedRun], away: Sequence[NodeAway], at: int
) -> Iterator[dict[str, object]]:
    """Yield the answers of `scontrol show nodes --json` and of `squeue --json` at a time."""
    held: dict[int, int] = {}
    waiting: list[dict[str, object]] = []
    for run in runs:
        if run.start_s is not None and run.start_s <= at < (run.end_s or 0):
            for node, gpus in run.places:
                held[node] = held.get(node, 0) + len(gpus)
        elif run.request.gpus and run.submit_s <= at < _waits_until(plan, run):
            waiting.append(_waiting(plan, run))
    states = {
        absence.node: absence.state for absence in away if absence.start_s <= at < absence.end_s
    }
    update = {"set": True, "infinite": False, "number": plan.start_s + at}
    nodes = [
        _node(plan, node, held.get(node.index, 0), states.get(node.index)) for node in plan.nodes()
    ]
    yield {"nodes": nodes, "last_update": update}
    yield {"jobs": waiting, "last_update": update}


def _waits_until(plan: SimulationPlan, run: SimulatedRun) -> int:
    if run.start_s is not None:
        return run.start_s
    return plan.seconds + 1 if run.end_s is None else run.end_s


def _node(
    plan: SimulationPlan, node: SimulatedNode, held: int, state: str | None
) -> dict[str, object]:
    group = plan.groups[node.group]
    kind = group.driver.gres
    base = "MIXED" if held else "IDLE"
    cpus = CPUS_PER_GPU * group.gpus
    features = ["gpu", f"hbm{group.device.hbm_mib / 1024:.0f}g"]
    features += [] if kind == "a100" else [kind]
    in_use = {"cpu": cpus if state == "no_host" else CPUS_PER_GPU * held}
    return {
        "name": node.name,
        "cluster_name": plan.cluster,
        "state": _FLAGS["down"] if state == "down" else [base, *_FLAGS.get(state or "", [])],
        "partitions": ["shared" if node.shared else "gpu"],
        "active_features": features,
        "gres": f"gpu:{kind}:{group.gpus}",
        "cpus": cpus,
        "alloc_cpus": in_use["cpu"],
        "real_memory": GIB_PER_GPU * 1024 * group.gpus,
        "alloc_memory": GIB_PER_GPU * 1024 * held,
        "tres_used": f"cpu={in_use['cpu']},gres/gpu={held}" if held else "",
        "reason": "fan NodeName=nid999999 Gres=gpu:99" if state == "drained" else "",
    }


def _waiting(plan: SimulationPlan, run: SimulatedRun) -> dict[str, object]:
    request = run.request
    share = host_share(request)
    counts = f"cpu={share * CPUS_PER_GPU},mem={share * GIB_PER_GPU}G,gres/gpu={request.gpus}"
    limited = request.user % _LIMITED_USERS == 1
    return {
        "job_id": raw_id(request),
        "cluster": plan.cluster,
        "job_state": ["PENDING"],
        "state_reason": "QOSMaxGRESPerUser" if limited else "Resources",
        "partition": partition_of(request),
        "node_count": {"set": True, "infinite": False, "number": max(1, request.nodes)},
        "tres_req_str": counts,
        "features": constraint(plan, run),
    }


def _events(plan: SimulationPlan, away: Sequence[NodeAway]) -> str:
    names = [node.name for node in plan.nodes()]
    lines = ["Cluster|NodeName|TimeStart|TimeEnd|State"]
    for absence in away:
        if absence.state in ("down", "drained"):
            end = "Unknown" if absence.end_s >= plan.seconds else _local(plan, absence.end_s)
            word = "DOWN" if absence.state == "down" else "DRAIN"
            begin = _local(plan, absence.start_s)
            lines.append(f"{plan.cluster}|{names[absence.node]}|{begin}|{end}|{word}")
    return "\n".join(lines) + "\n"


def _reservations(plan: SimulationPlan, away: Sequence[NodeAway]) -> str:
    """Return a reservation per node and time; one has a name that imitates another."""
    names = [node.name for node in plan.nodes()]
    lines = []
    for number, absence in enumerate(away):
        if absence.state in ("maintenance", "reserved"):
            flags = "MAINT,SPEC_NODES" if absence.state == "maintenance" else "SPEC_NODES"
            begin, end = _local(plan, absence.start_s), _local(plan, absence.end_s)
            lines.append(
                f"ReservationName=r{number} Nodes=nid000001 StartTime={begin} EndTime={end} "
                f"Nodes={names[absence.node]} NodeCnt=1 Flags={flags} State=INACTIVE\n"
            )
    return "\n".join(lines)


def _time(plan: SimulationPlan, seconds: int) -> datetime:
    return datetime.fromtimestamp(plan.start_s, UTC) + timedelta(seconds=seconds)


def _local(plan: SimulationPlan, seconds: int) -> str:
    return f"{_time(plan, seconds).astimezone(zone(plan.time_zone)):%Y-%m-%dT%H:%M:%S}"
