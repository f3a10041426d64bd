"""Installed GPU-hours: parts add up to the second, and are those of the simulated truth."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from madelake import fill, summarized
from svg_reader import read_plots
from tachograph.annexes.lab.simulate.nodes import (
    NOT_POLLED,
    POLL_S,
    NodeAway,
    plan_away,
    write_nodes,
)
from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.annexes.lab.simulate.truth import raw_id
from tachograph.annexes.lab.simulate.workload import SimulatedRun, place_runs, sample_requests
from tachograph.api.capacity import read_capacity, require_capacity
from tachograph.catalog import config
from tachograph.catalog.errors import NotFoundError
from tachograph.catalog.spreadsheets import table_csv
from tachograph.catalog.tables import (
    IN_USE,
    JOBS,
    NODE_STATES,
    WAITING_JOBS,
    WASTE,
)
from tachograph.catalog.units import zone
from tachograph.judge.capacity import (
    CAPACITY_LABELS,
    CAPACITY_PARTS,
    HELD,
    CapacityReport,
    build_capacity,
)
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.report.capacity import (
    capacity_headline,
    capacity_json,
    capacity_lines,
    capacity_values,
    day_charts,
    group_charts,
)
from tachograph.report.lines import to_text
from tachograph.report.svg import svg
from tachograph.sources.slurm.exports import frame_of
from tachograph.sources.slurm.nodes import NodeReading, read_nodes
from tachograph.sources.slurm.records import SlurmCluster

NODE = "n1"
START = datetime(2026, 3, 2, tzinfo=UTC)
HOURS = tuple(f"gpu_hours_{name}" for name in (*IN_USE, *WASTE, "unmeasured"))


def _at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def _poll(minutes: float, state: str = "up", **more: Any) -> dict[str, Any]:
    row = dict.fromkeys(NODE_STATES.row_schema)
    row |= {"node": NODE, "start": _at(minutes), "end": _at(minutes), "provenance": "poll"}
    row |= {"state": state, "gpus": 4, "gpus_held": 0, "partitions": "gpu", "gpu_type": "a100"}
    return row | more


def _job(key: str, begin: float, end: float, **more: Any) -> dict[str, Any]:
    hours: dict[str, Any] = dict.fromkeys(HOURS, 0.0)
    row = {"job_key": key, "cluster": None, "start": _at(begin), "end": _at(end), "as_of": _at(end)}
    return row | {"in_ledger": True} | hours | {"gpu_hours_in_use": 1.0} | more


def _waiting(begin: float, end: float, **more: Any) -> dict[str, Any]:
    row = dict.fromkeys(JOBS.row_schema) | {"job_id": "9", "partition": "gpu", "nodes": 1}
    row |= {"eligible": _at(begin), "start": _at(end), "gpus": 1, "cpus": 8}
    return row | {"mem_requested_mib": 1024.0} | more


def _report(
    states: list[dict[str, Any]],
    *,
    jobs: list[dict[str, Any]] | None = None,
    held: list[tuple[str, float, datetime | None]] | None = None,
    accounted: list[dict[str, Any]] | None = None,
    waiting: list[dict[str, Any]] | None = None,
    **more: Any,
) -> CapacityReport | None:
    time = pl.Datetime("us", "UTC")
    hours = dict.fromkeys(HOURS, pl.Float64())
    names = {"job_key": pl.String(), "cluster": pl.String()}
    times = {"start": time, "end": time, "as_of": time}
    of_jobs = {**names, **times, "in_ledger": pl.Boolean(), **hours}
    of_held = {
        "job_key": pl.String(),
        "node": pl.String(),
        "node_gpus": pl.Float64(),
        "last_t": time,
    }
    rows = [(key, NODE, gpus, last) for key, gpus, last in held or []]
    return build_capacity(
        pl.DataFrame(states, schema=NODE_STATES.row_schema),
        pl.DataFrame(waiting or [], schema=WAITING_JOBS.row_schema),
        pl.DataFrame(accounted or [], schema=JOBS.row_schema),
        pl.DataFrame(jobs or [], schema=of_jobs),
        pl.DataFrame(rows, schema=of_held, orient="row"),
        models=more.pop("models", {}),
        until=more.pop("until", _at(60)),
        **more,
    )


def _seconds(report: CapacityReport | None) -> dict[str, int]:
    """GPU-seconds of the parts that have any; that they add up is checked, too."""
    assert report is not None
    for row in report.rows.iter_rows(named=True):
        assert abs(row["installed"] - sum(row[part] for part in CAPACITY_PARTS)) < 0.5 / 3600
        assert all(row[part] >= 0 for part in CAPACITY_PARTS)
    hours = {part: report.hours(part) for part in ("installed", *CAPACITY_PARTS)}
    return {part: round(3600 * value) for part, value in hours.items() if value}


ALL = 4 * 3600


def test_mig_slices_are_not_counted_as_gpus() -> None:
    node = {"name": NODE, "state": ["IDLE"], "tres_used": "", "partitions": ["gpu"]}
    states = []
    for minutes, gres in ((0, "gpu:4"), (10, "gpu:a100:3,gpu:a100_1g.5gb:7"), (20, "gpu:1g.5gb:7")):
        document = json.dumps({"nodes": [{**node, "gres": gres}]}).encode()
        for at in (_at(minutes), _at(minutes + 9)):
            states += read_nodes(document, where="", cluster=SlurmCluster(None), at=at).states
    report = _report(states)
    assert _seconds(report) == {"installed": 4 * 600, "free": 4 * 600}
    assert report is not None
    assert "Without 1 node with MIG slices, of an unknown number" in capacity_headline(report)
    assert capacity_json(report)["nodes_left_out"] == 1
    assert _report(states[2:]) is None


def test_shares_that_add_up_to_the_polled_gpus_are_these() -> None:
    polls = [_poll(minutes, cpus_free=0, gpus_held=1) for minutes in range(0, 61, 10)]
    names = [str(number) for number in range(10)]  # 10 times 0.1 is not 1.0
    report = _report(
        polls,
        jobs=[_job(name, 0, 60) for name in names],
        held=[(name, 0.1, _at(60)) for name in names],
        accounted=[_waiting(0, 60)],
    )
    assert _seconds(report) == {"installed": ALL, "in_use": ALL // 4, "no_host": 3 * ALL // 4}


# --------------------------------------------------------------------------------------- the simulated cluster


@dataclass(frozen=True)
class Simulated:
    """The demo's nodes: what happened, and what is made of the files about it."""

    plan: SimulationPlan
    runs: list[SimulatedRun]
    away: list[NodeAway]
    reading: NodeReading
    report: CapacityReport


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    plan = SimulationPlan.demo()
    runs = place_runs(plan, sample_requests(plan))
    away = plan_away(plan, runs)
    folder = tmp_path_factory.mktemp("cluster") / "nodes"
    write_nodes(plan, folder, runs, away)
    whole = NodeReading()
    for file in sorted(folder.iterdir()):
        reading = _read(file, plan)
        whole.states += reading.states
        whole.waiting += reading.waiting
    jobs, held, accounted = _frames(plan, runs)
    report = build_capacity(
        frame_of(whole.states, NODE_STATES),
        frame_of(whole.waiting, WAITING_JOBS),
        accounted,
        jobs,
        held,
        models={node.name: plan.groups[node.group].model for node in plan.nodes()},
        until=plan.end,
        zone_name=plan.time_zone,
    )
    assert report is not None
    return Simulated(plan, runs, away, whole, report)


def _read(file: Path, plan: SimulationPlan) -> NodeReading:
    cluster = SlurmCluster(plan.cluster, plan.time_zone)
    reading = read_nodes(file.read_bytes(), where=file.name, cluster=cluster, at=None)
    assert not reading.rejected
    return reading


def _frames(
    plan: SimulationPlan, runs: list[SimulatedRun]
) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Jobs, what they held, and their accounting, as the lake has them; all of it in use."""
    names = [node.name for node in plan.nodes()]
    jobs, held, accounted = [], [], []
    for number, run in enumerate(runs):
        if run.start_s is None or run.end_s is None or not run.gpus:
            continue
        begin, end = (plan.start + timedelta(seconds=at) for at in (run.start_s, run.end_s))
        end = min(end, plan.end)
        row = {"job_key": str(number), "cluster": plan.cluster, "start": begin, "end": end}
        hours = dict.fromkeys(HOURS, 0.0) | {"gpu_hours_in_use": 1.0}
        jobs.append(row | {"as_of": end, "in_ledger": True} | hours)
        held += [(str(number), names[node], float(len(gpus)), end) for node, gpus in run.places]
        group = plan.groups[run.request.group]
        count = max(1, run.request.nodes)
        features = ["gpu", f"hbm{group.device.hbm_mib / 1024:.0f}g"]
        if group.driver.gres == "a40":
            features = ["gpu", "a40"]
        accounted.append(
            dict.fromkeys(JOBS.row_schema)
            | {
                "cluster": plan.cluster,
                "job_id": str(raw_id(run.request)),
                "partition": "gpu" if run.request.nodes else "shared",
                "eligible": plan.start + timedelta(seconds=run.submit_s),
                "start": begin,
                "nodes": count,
                "gpus": run.gpus,
                "gpu_type": group.driver.gres,
                "cpus": 32 * run.gpus,
                "mem_requested_mib": 61440.0 * run.gpus,
                "constraints": "&".join(features),
            }
        )
    schema = ["job_key", "node", "node_gpus", "last_t"]
    return (
        pl.DataFrame(jobs),
        pl.DataFrame(held, schema=schema, orient="row"),
        pl.DataFrame(accounted, schema=JOBS.row_schema),
    )


CASES = ("fragmented", "no_host", "limited", "several_nodes", "waited")  # the best is last


def _truth(simulated: Simulated) -> dict[tuple[str, str], dict[str, int]]:
    """GPU-seconds by (partition, model) and part: each second of each node is looked at."""
    plan = simulated.plan
    waiting = list(_waits(simulated))
    truth: dict[tuple[str, str], dict[str, int]] = {}
    for node in plan.nodes():
        group = plan.groups[node.group]
        held = np.zeros(plan.seconds, int)
        for run in simulated.runs:
            for place, gpus in run.places:
                if place == node.index and run.start_s is not None and run.end_s is not None:
                    held[run.start_s : run.end_s] += len(gpus)
        state = np.full(plan.seconds, "up", "U12")
        state[NOT_POLLED[0] : NOT_POLLED[1]] = "unknown"
        for away in simulated.away:
            if away.node == node.index:
                known = state[away.start_s : away.end_s] == "up"
                known |= away.state not in ("no_host", "reserved")
                state[away.start_s : away.end_s][known] = away.state
        free = group.gpus - held
        polled = held[np.arange(plan.seconds) // POLL_S * POLL_S]
        best = np.full(plan.seconds, -1)
        for run, begin, end, limited, typed in waiting:
            if (run.request.nodes == 0) != node.shared or not _suits(plan, run, node.group, typed):
                continue
            nodes = max(1, run.request.nodes)
            need = run.request.gpus // nodes
            low, high = begin, min(end, plan.seconds)
            fits = "limited" if limited else "waited" if nodes == 1 else "several_nodes"
            case = np.full(high - low, CASES.index(fits))
            # what polls say of CPUs holds while the jobs of the node are those of the poll
            has_cpus = (state[low:high] != "no_host") | (polled[low:high] != held[low:high])
            case[~has_cpus] = CASES.index("no_host")
            case[free[low:high] < need] = CASES.index("fragmented")
            best[low:high] = np.maximum(best[low:high], case)
        key = ("shared" if node.shared else "gpu", group.model)
        sums = truth.setdefault(key, dict.fromkeys(("installed", "held", *CAPACITY_PARTS), 0))
        sums["installed"] += group.gpus * plan.seconds
        sums["held"] += int(held.sum())
        for name in ("down", "drained", "maintenance", "unknown"):
            sums[name] += int(free[state == name].sum())
        usable = (state == "up") | (state == "no_host")
        for place, name in enumerate(CASES):
            sums[name] += int(free[usable & (best == place)].sum())
        sums["free"] += int(free[usable & (best < 0)].sum())
        reserved = state == "reserved"
        sums["reserved"] += int(free[reserved & (best >= 0)].sum())
        sums["free"] += int(free[reserved & (best < 0)].sum())
    return truth


def _waits(simulated: Simulated) -> Iterator[tuple[SimulatedRun, int, int, bool, bool]]:
    """Yield (run, begin, end, whether a limit held it, whether it is known by its accounting)."""
    plan = simulated.plan
    for run in simulated.runs:
        if not run.request.gpus:
            continue
        start_s = run.start_s
        until = start_s if start_s is not None else (run.end_s or plan.seconds + 1)
        polls = [
            at
            for at in range(
                -(-run.submit_s // POLL_S) * POLL_S, min(until, plan.seconds + 1), POLL_S
            )
            if not NOT_POLLED[0] < at < NOT_POLLED[1]
        ]
        pairs = [pair for pair in itertools.pairwise(polls) if pair[1] - pair[0] == POLL_S]
        limited = run.request.user % 4 == 1
        if start_s is None:
            for begin, end in pairs:
                yield run, begin, end, limited, False
            continue
        times = sorted({run.submit_s, start_s, *polls})
        for begin, end in itertools.pairwise(times):
            yield run, begin, end, limited and (begin, end) in pairs, True


def _suits(plan: SimulationPlan, run: SimulatedRun, group: int, typed: bool) -> bool:
    """By its features, and once it had GPUs by their type."""
    wanted, had = plan.groups[run.request.group], plan.groups[group]
    if typed or wanted.driver.gres == "a40":
        return wanted.model == had.model
    same_tier = wanted.device.hbm_mib == had.device.hbm_mib
    return same_tier and (wanted.driver.gres == "a100" or wanted.model == had.model)


def test_the_report_is_the_truth_to_the_second(simulated: Simulated) -> None:
    truth = _truth(simulated)
    rows = {
        (row["partition"], row["gpu_model"]): row
        for row in simulated.report.by("partition", "gpu_model").iter_rows(named=True)
    }
    assert rows.keys() == truth.keys()
    for key, parts in truth.items():
        row = rows[key] | {"held": sum(rows[key][name] for name in HELD)}
        found = {name: row[name] * 3600 for name in parts if name not in HELD}
        assert found == pytest.approx({name: parts[name] for name in found}, abs=1.0), key
    shown = {name for parts in truth.values() for name, seconds in parts.items() if seconds}
    assert shown >= {*CAPACITY_PARTS} - {*HELD}  # the demo has an example of each


def test_parts_of_each_day_partition_and_model_add_up_to_what_is_installed(
    simulated: Simulated,
) -> None:
    for row in simulated.report.rows.iter_rows(named=True):
        total_s = round(3600 * sum(row[part] for part in CAPACITY_PARTS))
        assert total_s == round(3600 * row["installed"])
    hours = simulated.plan.gpus * 24 * simulated.plan.days
    assert simulated.report.hours("installed") == pytest.approx(hours)
    days = simulated.report.by("day")["day"].to_list()
    assert [str(day) for day in days] == ["2025-03-03", "2025-03-04", "2025-03-05"]  # in Berlin


def test_the_report_of_one_day_is_that_day_of_the_whole_report(demo: Path) -> None:
    lake = Lake.open(str(demo / "lake"))
    configuration = config.load(str(demo / "tachograph.toml"), {})
    whole = read_capacity(lake, configuration, JobFilter())
    assert whole is not None
    site = zone(configuration.site.time_zone)
    days = whole.rows["day"].unique().sort()
    assert len(days) == 3
    for day in days:
        since = datetime(day.year, day.month, day.day, tzinfo=site)
        of_day = JobFilter(since=since, until=since + timedelta(days=1))
        found = read_capacity(lake, configuration, of_day)
        assert found is not None
        assert_frame_equal(found.rows, whole.rows.filter(day=day), abs_tol=1e-9)
        assert capacity_headline(found).startswith(f"{day} to {day}: of ")


def test_reasons_and_names_of_reservations_make_no_node(simulated: Simulated) -> None:
    names = {node.name for node in simulated.plan.nodes()}
    assert {row["node"] for row in simulated.reading.states} == names
    reserved = {
        row["node"] for row in simulated.reading.states if row["provenance"] == "reservation"
    }
    assert "nid000001" not in reserved  # all names of reservations claim to be of it


def test_all_formats_show_the_same_hours(simulated: Simulated) -> None:
    report = simulated.report
    text = to_text(capacity_lines(report, width=100, by_group=True))
    values = capacity_json(report)
    rows = csv.DictReader(io.StringIO(table_csv(report.rows)))
    sums = dict.fromkeys(CAPACITY_PARTS, 0.0)
    for row in rows:
        for part in CAPACITY_PARTS:
            sums[part] += float(row[part])
    parts = {row["part"]: row for row in capacity_values(report)["parts"]}
    for part, label in CAPACITY_LABELS.items():
        hours = report.hours(part)
        assert values[part] == pytest.approx(hours)
        assert sums[part] == pytest.approx(hours)
        if hours:
            (line,) = (line for line in text.splitlines() if line.startswith(f"{label}  "))
            printed = line.removeprefix(label).split()[0].replace(",", "")
            assert float(printed) == pytest.approx(hours, abs=0.06)
            assert parts[part]["hours"] == pytest.approx(hours)


def test_both_drawings_show_the_hours_of_each_day_and_partition(simulated: Simulated) -> None:
    report = simulated.report
    days = report.by("day").to_dicts()
    for plot in read_plots(str(svg(day_charts(report), label="days"))):
        (chart,) = plot.charts
        value = chart.y()
        for part, label in CAPACITY_LABELS.items():
            wanted = [day[part] for day in days if day[part]]
            bars = chart.bars.get(label, [])
            assert [value(high) - value(low) for *_, low, high in bars] == pytest.approx(
                wanted, abs=15
            )
    groups = report.by("cluster", "partition", "gpu_model").to_dicts()
    for plot in read_plots(str(svg(group_charts(report), label="groups"))):
        (chart,) = plot.charts
        names = [name for _, name in chart.y_labels]
        share = plot.x()
        read: dict[tuple[str, int], float] = {}
        for label, _, left, right, middle in chart.boxes:
            pixels = [abs(at - middle) for at, _ in chart.y_labels]
            read[label, pixels.index(min(pixels))] = share(right) - share(left)
        assert len(names) == len(groups)
        for place, group in enumerate(groups):
            assert names[place].startswith(group["partition"])
            for part, label in CAPACITY_LABELS.items():
                drawn = read.get((label, place), 0.0)
                assert drawn == pytest.approx(group[part] / group["installed"], abs=0.006)


def test_why_there_is_no_capacity_and_what_to_do(tmp_path: Path) -> None:
    def problem(wanted: JobFilter) -> str:
        with pytest.raises(NotFoundError) as raised:
            require_capacity(lake, config.Configuration(), wanted)
        return str(raised.value)

    lake = Lake.create(str(tmp_path / "lake"))
    assert "not of some; choose by --since" in problem(JobFilter(users=("ann",)))
    assert "no states of nodes are recorded" in problem(JobFilter())
    assert "add [[sources]] slurm-nodes" in problem(JobFilter())
    fill(lake, {"node_states": [_poll(0), _poll(30)]})
    assert problem(JobFilter()).endswith("nothing is analyzed yet; run `tachograph analyze`")
    summarized(lake, now=_at(60))
    assert require_capacity(lake, config.Configuration(), JobFilter()).hours("installed") > 0
    later = JobFilter(since=_at(60 * 24 * 90))
    assert problem(later).endswith("in this time; choose another --since or --until")
