"""Capacity of random nodes, recounted minute by minute in plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest

from tachograph.catalog.tables import IN_USE, JOBS, NODE_STATES, STATE_HOLDS_S, WAITING_JOBS, WASTE
from tachograph.judge.capacity import HELD, build_capacity

Row = dict[str, Any]
ZONE = ZoneInfo("Asia/Kolkata")
START = datetime(2026, 3, 2, 17, 30, tzinfo=UTC)  # an hour before midnight there
MINUTES = 100
HOLDS = STATE_HOLDS_S // 60
HOURS = tuple(f"gpu_hours_{name}" for name in (*IN_USE, *WASTE, "unmeasured"))
CASES = ("waited", "several_nodes", "limited", "no_host", "fragmented")
LIMITED = ("QOSMaxGRESPerUser", "PartitionTimeLimit")
NOT_READY = ("Dependency", "JobHeldUser")
TIME = pl.Datetime("us", "UTC")


def _at(minute: int) -> datetime:
    return START + timedelta(minutes=minute)


def _polls(source: random.Random) -> list[Row]:
    """Polls of a node; some are as far apart as a state holds, some a minute further."""
    draw = source.choice
    rows, minute = [], draw([0, 3])
    while minute < 80:
        row: Row = {
            "begin": minute,
            "end": minute + draw([0, 0, 4]),
            "gpus": draw([4, 4, 4, 8, None]),
        }
        row |= {"state": draw(["up", "up", "up", "drained", "down"])}
        row |= {"gpus_held": draw([None, 0, 1, 2, 3, 4]), "gpu_type": draw([None, "a100"])}
        row |= {"cpus_free": draw([None, 0, 1, 8]), "memory_free_mib": draw([None, 1.0, 2048.0])}
        row |= {"partitions": draw(["gpu", "gpu,long"]), "features": draw([None, "gpu,hbm80g"])}
        rows.append(row)
        minute = row["end"] + draw([5, 10, HOLDS, HOLDS + 1])
    return rows


def _away(source: random.Random) -> list[Row]:
    rows = []
    for _ in range(source.randint(0, 2)):
        begin, state = source.randint(0, 90), source.choice(["down", "maintenance", "reserved"])
        end = source.choice([None, begin, begin + 20])
        rows.append({"begin": begin, "end": end, "state": state})
    return rows


def _holds(source: random.Random) -> list[Row]:
    draw = source.choice
    rows = []
    for number in range(source.randint(0, 3)):
        begin = source.randint(0, 70)
        as_of = begin + draw([0, 20, 30])
        hours = dict.fromkeys(HOURS, 0.0)
        if source.random() < 0.8:
            hours |= {"gpu_hours_in_use": 2.0, "gpu_hours_idle": 1.0, "gpu_hours_unmeasured": 1.0}
            hours["gpu_hours_in_use_unknown"] = 4.0
        row: Row = {"job_key": str(number), "cluster": draw([None, "a", "b"]), "begin": begin}
        row |= {"end": draw([None, as_of]), "as_of": as_of, "gpus": draw([0.5, 1.0, 2.0, 5.0])}
        row |= {"measured": draw([None, begin + 10, begin + 90]), "in_ledger": draw([True, False])}
        rows.append(row | {"hours": hours})
    return rows


def _needs(source: random.Random) -> Row:
    draw = source.choice
    return {
        "cluster": None, "partition": draw(["gpu", "gpu,cpu", "long", "cpu"]),
        "nodes": draw([None, 1, 2]), "gpus": draw([0, 1, 2, 4, 8, 10]),
        "cpus": draw([None, 0, 1, 2, 16]), "mem_requested_mib": draw([None, 1.0, 2.0, 4096.0]),
        "gpu_type": draw([None, "a100", "h100"]),
        "constraints": draw([None, None, "hbm80g", "gpu&hbm40g", "hbm40g|x", "gpu,hbm80g"]),
    }  # fmt: skip


def _waits(source: random.Random) -> tuple[list[Row], list[Row]]:
    """Jobs of the accounting, and what polls saw of waiting ones, by the same ids or others."""
    draw = source.choice
    accounted, polled = [], []
    for name in source.sample("1234", source.randint(0, 3)):
        begin = source.randint(0, 70)
        row = {"job_id": name, "array_job_id": draw([None, "9"]), "begin": begin}
        accounted.append(row | {"end": begin + draw([0, 10, 40])} | _needs(source))
    for name in source.sample("1239", source.randint(0, 3)):
        needs, minute = _needs(source) | {"gpus": 1}, source.randint(0, 40)
        for _ in range(source.randint(1, 3)):
            end = minute + draw([0, 10])
            reason = draw([None, "Resources", *LIMITED, *NOT_READY])
            polled.append({"job_id": name, "begin": minute, "end": end, "reason": reason} | needs)
            minute = end + draw([0, 5, HOLDS, HOLDS + 1])
    return accounted, polled


def _covering(polls: list[Row], minute: int) -> tuple[Row | None, bool]:
    """The poll that counts in a minute, and whether it covers it."""
    latest, covers = polls[0], False
    for poll, following in pairwise([*polls, None]):
        assert poll is not None
        end = max(poll["begin"], poll["end"])
        if following is not None and following["begin"] - end <= HOLDS:
            end = following["begin"]
        if poll["begin"] <= minute and end > poll["begin"]:
            latest, covers = poll, minute < end
    return latest, covers


def _reasons(polled: list[Row], name: str, minute: int) -> str | None:
    """Why polls saw a job wait in a minute, None where they did not."""
    before: Row | None = None
    for row in (row for row in polled if row["job_id"] == name):
        begin = row["begin"]
        if before is not None and begin - before["end"] <= HOLDS:
            begin = before["end"]
        if begin <= minute < row["end"]:
            return row["reason"] or ""
        before = row
    return None


def _waiting(
    accounted: list[Row], polled: list[Row], minute: int, first: int
) -> list[tuple[Row, str]]:
    """What jobs that waited in a minute need, and why they waited."""
    ids = {row["job_id"] for row in polled}
    started = [
        row for row in accounted if row["end"] > max(row["begin"], first) and row["gpus"] > 0
    ]
    found = []
    for row in started:
        if row["begin"] <= minute < row["end"]:
            name = row["job_id"] if row["job_id"] in ids else row["array_job_id"]
            reason = _reasons(polled, name, minute) or ""
            found.append((row, reason))
    for name in ids - {row["job_id"] for row in started}:
        polled_reason = _reasons(polled, name, minute)
        needs = next(row for row in polled if row["job_id"] == name)
        if polled_reason is not None:
            found.append((needs, polled_reason))
    return [(row, reason) for row, reason in found if reason not in NOT_READY]


def _case(needs: Row, reason: str, poll: Row, left: float, *, same: bool) -> str | None:
    """The best case of a waiting job on a node; None where it is for other nodes."""
    nodes = needs["nodes"] or 1
    written = needs["constraints"] or ""
    features = set() if "|" in written else set(written.replace(",", "&").split("&")) - {""}
    if not {*needs["partition"].split(",")} & {*poll["partitions"].split(",")}:
        return None
    if poll["features"] is not None and features - {*poll["features"].split(",")}:
        return None
    if needs["gpu_type"] and poll["gpu_type"] and needs["gpu_type"] != poll["gpu_type"]:
        return None
    if needs["gpus"] / nodes > left:
        return "fragmented"
    for name, free in (("cpus", "cpus_free"), ("mem_requested_mib", "memory_free_mib")):
        wanted = max(1.0, (needs[name] or 0) / nodes)
        if same and poll[free] is not None and wanted > poll[free]:
            return "no_host"
    if reason in LIMITED:
        return "limited"
    return "waited" if nodes == 1 else "several_nodes"


def _held_at(holds: list[Row], minute: int) -> float:
    known: list[float] = [row["gpus"] for row in holds if row["begin"] <= minute < row["end"]]
    return sum(known)


def _minute(
    case: Row, minute: int, holds: list[Row], waiting: list[tuple[Row, str]]
) -> tuple[Row, dict[str, float]]:
    """The poll that counts, and the GPUs of the node in each part."""
    poll, covered = _covering(case["polls"], minute)
    assert poll is not None
    found: dict[str, float] = defaultdict(float)
    if poll["gpus"] is None:
        return poll, found
    last = case["until"]
    states = {
        row["state"]
        for row in case["away"]
        if row["begin"] <= minute < (last if row["end"] is None else row["end"])
    }
    states |= {poll["state"]} if covered else set()
    counting = [
        row
        for row in holds
        if row["begin"] <= minute < row["end"]
        and ("down" not in states or row["measured"] > minute)
    ]
    total = sum(row["gpus"] for row in counting)
    scale = poll["gpus"] / max(total, poll["gpus"])
    others = 0.0
    if covered and "down" not in states and poll["gpus_held"] is not None:
        known = max(_held_at(holds, poll[name]) for name in ("begin", "end"))
        others = max(0.0, min(poll["gpus_held"] - known, poll["gpus"] - total * scale))
    found["installed"], found["unmeasured"] = poll["gpus"], others
    for row in counting:
        hours = row["hours"] if row["in_ledger"] and any(row["hours"].values()) else {}
        parts = dict.fromkeys(HELD[:3], 0.0)
        if hours:
            parts = {"in_use": 0.25, "in_use_unknown": 0.5, "lost": 0.125}
        for name, share in (*parts.items(), ("unmeasured", 1 - sum(parts.values()))):
            found[name] += row["gpus"] * scale * share
    left = poll["gpus"] - total * scale - others
    for name in ("down", "drained", "maintenance"):
        if name in states:
            found[name] += left
            return poll, found
    if not covered or poll["gpus_held"] is None:
        found["unknown"] += left
        return poll, found
    same = abs(poll["gpus_held"] - (poll["gpus"] - left)) < 1e-6
    cases = {_case(needs, reason, poll, left, same=same) for needs, reason in waiting}
    best = next((name for name in CASES if name in cases), None)
    found["free" if best is None else "reserved" if "reserved" in states else best] += left
    return poll, found


def _report(case: Row, since: int | None) -> Any:
    blank = dict.fromkeys(NODE_STATES.row_schema)
    states = [
        blank | row | {"provenance": "poll"} | {"start": _at(row["begin"]), "end": _at(row["end"])}
        for row in case["polls"]
    ]
    for row in case["away"]:
        end = None if row["end"] is None else _at(row["end"])
        times = {"start": _at(row["begin"]), "end": end}
        states.append(blank | row | times | {"provenance": "event"})
    place = {"node": "n1", "cluster": case["cluster"]}
    states = [{name: (row | place)[name] for name in blank} for row in states]
    jobs, held = [], []
    for row in case["holds"]:
        times = {"start": _at(row["begin"]), "as_of": _at(row["as_of"])}
        times["end"] = None if row["end"] is None else _at(row["end"])
        own = {name: row[name] for name in ("job_key", "cluster", "in_ledger")}
        jobs.append(own | times | row["hours"])
        measured = None if row["measured"] is None else _at(row["measured"])
        held.append((row["job_key"], "n1", row["gpus"], measured))
    names: Row = {"job_key": pl.String(), "cluster": pl.String(), "in_ledger": pl.Boolean()}
    of_jobs = names | dict.fromkeys(("start", "end", "as_of"), TIME)
    of_jobs |= dict.fromkeys(HOURS, pl.Float64())
    of_held: Row = {"job_key": pl.String(), "node": pl.String(), "node_gpus": pl.Float64()}
    accounted = [
        row | {"eligible": _at(row["begin"]), "start": _at(row["end"])} for row in case["accounted"]
    ]
    waiting = [row | {"start": _at(row["begin"]), "end": _at(row["end"])} for row in case["polled"]]
    return build_capacity(
        pl.DataFrame(states, schema=NODE_STATES.row_schema),
        pl.DataFrame([_only(row, WAITING_JOBS) for row in waiting], schema=WAITING_JOBS.row_schema),
        pl.DataFrame([_only(row, JOBS) for row in accounted], schema=JOBS.row_schema),
        pl.DataFrame(jobs, schema=of_jobs),
        pl.DataFrame(held, schema={**of_held, "last_t": TIME}, orient="row"),
        models=case["models"],
        since=None if since is None else _at(since),
        until=_at(case["until"]),
        zone_name="Asia/Kolkata",
    )


def _only(row: Row, table: Any) -> Row:
    return {name: row.get(name) for name in table.row_schema}


def test_each_minute_of_each_gpu_is_in_the_part_that_is_true_of_it() -> None:
    source = random.Random(5)
    for _ in range(200):
        accounted, polled = _waits(source)
        case: Row = {
            "polls": _polls(source), "away": _away(source), "holds": _holds(source),
            "accounted": accounted, "polled": polled, "until": source.choice([60, MINUTES]),
            "cluster": source.choice([None, "a"]),
            "models": source.choice([{}, {"n1": "A100 SXM 40GB"}]),
        }  # fmt: skip
        since = source.choice([None, 20])
        seen = [row[name] for row in case["polls"] + case["away"] for name in ("begin", "end")]
        seen = [case["until"] if minute is None else minute for minute in seen]
        first, last = max(since or 0, *[min(seen)]), min(case["until"], max(seen))
        holds = []
        for row in case["holds"]:
            end = row["as_of"] if row["end"] is None else row["end"]
            measured = row["begin"] if row["measured"] is None else row["measured"]
            if row["cluster"] in (None, case["cluster"]) or case["cluster"] is None:
                holds.append(row | {"end": end, "measured": min(end, measured)})
        wanted: dict[tuple[Any, ...], dict[str, float]] = {}
        for minute in range(first, last):
            waits = _waiting(accounted, polled, minute, since if since is not None else -1)
            poll, parts = _minute(case, minute, holds, waits)
            day = _at(minute).astimezone(ZONE).date()
            model = case["models"].get("n1") or poll["gpu_type"]
            if poll["gpus"] is not None:
                key = (day, case["cluster"], poll["partitions"], model)
                sums = wanted.setdefault(key, defaultdict(float))
                for name, held_gpus in parts.items():
                    sums[name] += held_gpus
        report = _report(case, since)
        if not wanted:
            assert report is None
            continue
        assert (report.first, report.last) == (_at(first), _at(last))
        assert report.nodes_left_out == any(poll["gpus"] is None for poll in case["polls"])
        found = {tuple(row[:4]): row[4:] for row in report.rows.iter_rows()}
        assert found.keys() == wanted.keys()
        for key, row in found.items():
            named = dict(zip(report.rows.columns[4:], row, strict=True))
            assert named == pytest.approx(
                {name: wanted[key][name] / 60 for name in named}, abs=1e-6
            )
