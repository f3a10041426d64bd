"""Jobs completed by hand: means, maxima and minutes of the time without samples."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from jobframes import START, frame, gpus, minutes, summary
from tachograph.catalog.counters import COUNTERS, COUNTERS_BY_NAME, CounterKind
from tachograph.catalog.tables import (
    JOB_GPUS,
    JOB_NODE_MINUTES,
    JOB_SUMMARIES,
    OTHER_IMBALANCES,
    RESOURCES,
)
from tachograph.judge.completions import (
    Completed,
    Questions,
    completed,
    refuted,
    unmeasured,
    until_last_sample,
)
from tachograph.judge.fills import FILLS, Fill, State
from tachograph.pipeline.summaries import JobTables
from tachograph.pipeline.timelines import ACTIVITY, AVERAGED, WORK, timelines_of

IDLE = 0.01
# two hours on two GPUs, of which one has no sample in the last hour
ROW = summary(
    gpus=2, samples=359, coverage=0.75, interval_s=30.0, gpus_seen=2, gpu_util_mean=0.7,
    gpu_util_max=0.9, power_w_max=300.0, gpu_temp_c_max=60.0, zero_util_fraction=0.0,
)  # fmt: skip
GPUS = gpus(
    {
        "samples": 240,
        "gpu_util_mean": 0.8,
        "gpu_util_max": 0.9,
        "zero_util_fraction": 0.0,
        "gpu_temp_c_max": 60.0,
    },
    {
        "samples": 119,
        "gpu_util_mean": 0.6,
        "gpu_util_max": 0.7,
        "zero_util_fraction": 0.0,
        "gpu_temp_c_max": 60.0,
    },
)


Row = dict[str, Any]
PIECE_S, LINKS = 900.0, 1e13
IN_MINUTES = {
    *(*ACTIVITY, *WORK, "power_w", "mem_copy_util"),
    *(f"{link}_{way}_bytes_per_s" for link in ("pcie", "nvlink") for way in ("tx", "rx")),
}
FRACTIONS = [counter.name for counter in COUNTERS if counter.kind is CounterKind.FRACTION]


def test_completions_of_random_jobs_are_those_computed_row_by_row() -> None:
    """Nulls, GPUs with intervals of their own, suspended jobs, first samples about the edge."""
    source = random.Random(2)
    jobs, of_gpus, of_minutes = [], [], []
    gaps: list[Row] = []
    for key in "abc":
        made = _made(key, source)
        jobs.append(made[0])
        of_gpus += made[1]
        of_minutes += made[2]
        share = source.uniform(0.1, 0.9)
        gaps.append({"job_key": key, "share": share, "interval_s": made[3], "lacking": None})
    timelines = pl.DataFrame(of_minutes, schema=timelines_of(minutes(), idle_util=0.5).schema)
    tables = JobTables(
        frame(JOB_SUMMARIES, jobs),
        frame(JOB_GPUS, of_gpus),
        timelines,
        JOB_NODE_MINUTES.empty().drop("seq"),
    )
    whole = completed(tables, pl.DataFrame(gaps), idle_util=0.5).tables
    for job, gap in zip(tables.jobs.to_dicts(), gaps, strict=True):
        rows = tables.gpus.filter(job_key=job["job_key"]).to_dicts()
        every = {row["minute"]: row for row in of_minutes if row["job_key"] == job["job_key"]}
        for number, fill in enumerate(FILLS):
            key = f"{job['job_key']}\n{number}"
            wanted = _gpus(job, rows, fill, gap)
            for row, found in zip(wanted, whole.gpus.filter(job_key=key).to_dicts(), strict=True):
                _same(found, {name: value for name, value in row.items() if name[0] != "_"})
            _same(whole.jobs.filter(job_key=key).row(0, named=True), _summary(job, wanted, fill))
            every_minute = _minutes(job, wanted, every, fill, gap["interval_s"])
            wanted_minutes = pl.DataFrame(every_minute, schema=timelines.schema)
            found_minutes = whole.timelines.filter(job_key=key).with_columns(job_key=None)
            assert_frame_equal(found_minutes, wanted_minutes, check_dtypes=False, rel_tol=1e-5)


def test_what_was_not_measured_is_that_counted_from_the_rows() -> None:
    """And what hosts did then: nothing, twice their most in every other minute, or as before."""
    source = random.Random(8)
    draw = source.choice
    for _ in range(40):
        ran, held, interval_s = draw([9, 10]), draw([1, 2]), draw([None, 60.0, 61.0])
        end = START + timedelta(minutes=ran, seconds=-draw([0, 20]))
        elapsed_s = draw([1, 0.8]) * (end - START).total_seconds()
        row: Row = {"gpus": held, "elapsed_s": elapsed_s, "as_of": end, "interval_s": interval_s}
        row |= {"gpus_seen": draw([1, held, None]), "coverage": draw([0.5, 0.75, 1.0, None])}
        job = summary(**row, samples=50, start=START)
        counts = {minute: draw([0, 1, held]) for minute in range(ran) if source.random() < 0.6}
        rows = [{"minute": minute, "measured_gpus": gpus} for minute, gpus in counts.items()]
        timelines = pl.DataFrame(rows, schema=timelines_of(minutes(), idle_util=0.5).schema)
        timelines = timelines.with_columns(job_key=pl.lit(job["job_key"]))
        gaps = unmeasured(frame(JOB_SUMMARIES, [job]), timelines, frame(JOB_GPUS, [])).row(
            0, named=True
        )
        busy = [minute for minute, gpus in counts.items() if gpus]
        total, shares = sum(counts.values()), [0.0]
        by_minutes = 1 - total / (held * ran)
        by_samples = 1 - (job["coverage"] or 0.0) - (interval_s or 0.0) / elapsed_s
        shares.append(by_minutes if job["coverage"] is None else by_samples)
        if job["gpus_seen"] is not None:
            shares.append(1 - job["gpus_seen"] / held)
        if elapsed_s < 60 * (ran - 1) and interval_s is not None and interval_s <= 60:
            shares.append(by_minutes)
        pauses = [later - minute - 1 for minute, later in pairwise(busy)]
        wanted: Row = {"share": max(shares) if busy else 0.0, "elapsed_s": elapsed_s}
        wanted |= {
            "begin": min(busy, default=None),
            "within": max(pauses, default=0) if busy else None,
        }
        wanted |= {"end": ran - 1 - max(busy) if busy else None}
        wanted["interval_s"] = interval_s or (60 * total / 50 if busy else None)
        _same(gaps, wanted)
    hosts = {("n1", 1): 0.2, ("n1", 3): 0.4, ("n2", 0): 0.3}
    host_rows: list[Row] = [
        {"job_key": "a", "node": n, "minute": m, "cpu_user": v} for (n, m), v in hosts.items()
    ]
    of_hosts = pl.DataFrame(host_rows, schema=JOB_NODE_MINUTES.row_schema).drop("seq", strict=False)
    end = START + timedelta(minutes=5, seconds=30)
    jobs = frame(JOB_SUMMARIES, [summary(job_key="a", gpus=1, start=START, as_of=end)])
    held_gpu = frame(JOB_GPUS, [{"job_key": "a", "node": "n1", "gpu": 0}])
    timelines = timelines_of(minutes([0.5]), idle_util=0.1).with_columns(job_key=pl.lit("a"))
    gap = pl.DataFrame({"job_key": ["a"], "share": [0.5], "interval_s": [60.0], "lacking": [None]})
    tables = JobTables(jobs, held_gpu, timelines, of_hosts)
    whole = completed(tables, gap, idle_util=0.5).tables.node_minutes
    before = [0.2, 0.2, 0.2, 0.4, 0.4]
    for number, first, second in (
        (0, [0.0, 0.2, 0.0, 0.4, 0.0], [0.3, 0.0, 0.0, 0.0, 0.0]),
        (1, [0.0, 0.2, 0.0, 0.4, 0.0], [0.3, 0.6, 0.0, 0.6, 0.0]),
        (2, before, [0.3] * 5),
    ):
        found = whole.filter(job_key=f"a\n{number}").sort("node", "minute").to_dicts()
        assert [(row["node"], row["minute"]) for row in found] == [
            (node, minute) for node in ("n1", "n2") for minute in range(5)
        ]
        assert [row["cpu_user"] for row in found] == pytest.approx([*first, *second])


def _same(found: Row, wanted: Row) -> None:
    numbers = {name: value for name, value in wanted.items() if value is not None}
    assert {*numbers} == {name for name in wanted if found[name] is not None}
    assert {name: found[name] for name in numbers} == pytest.approx(numbers, rel=1e-5, abs=1e-7)


def _made(key: str, source: random.Random) -> tuple[Row, list[Row], list[Row], float]:
    interval_s, ran = source.choice([30.0, 60.0, 600.0]), source.choice([50, 61])
    held = {"a": 1, "b": 4}.get(key, 3)
    has = {counter.name: source.random() < 0.8 for counter in COUNTERS} | {"power_w": key != "c"}
    end = START + timedelta(minutes=ran, seconds=-source.choice([0, 30, 31]))
    ran_s = (end - START).total_seconds()
    job: Row = {"job_key": key, "gpus": held, "elapsed_s": ran_s * source.choice([1, 0.75])}
    job |= {f"{name}_max": source.random() for name, known in has.items() if known}
    job |= {f"{name}_mean": 0.1 for name, known in has.items() if known}
    job |= {"hbm_peak_fraction": 0.1, "zero_util_fraction": 0.1, "xid_events": 0}
    job |= {"gpus_never_used": 0, "as_of": end, "start": START, "interval_s": 7.0}
    job |= {"gpu_model": source.choice([None, "A100 SXM 40GB"]), "spatial_zero_fraction": 0.3}
    for name in ("spatial_imbalance", *(f"spatial_imbalance_{of}" for of in OTHER_IMBALANCES)):
        job[name] = source.choice([None, 0.4])
    for resource in RESOURCES:
        job |= {resource.at_work: source.choice([None, 0.7]), resource.share: 0.2}
    rows = []
    for gpu in range(held):
        row: Row = {"job_key": key, "node": "n1", "gpu": gpu, "hbm_mib": 40.0}
        row |= {"samples": source.choice([None, 1, int(ran_s / interval_s / 2)])}
        row |= {"interval_s": source.choice([None, 2 * interval_s])}
        edge_s = source.choice([0.0, 1.5 * interval_s, 1.5 * interval_s + 1])
        row |= {"first_t": START + timedelta(seconds=edge_s)}
        row |= {"last_t": source.choice([None, end, end - timedelta(seconds=edge_s)])}
        row |= {"zero_util_fraction": source.choice([None, 0.25])}
        row |= {"remapped_rows_uncorrectable_last": source.choice([None, 3])}
        row |= {"xid_events": source.choice([None, 2])}
        for name, known in has.items():
            if known and source.random() < 0.8:
                mean = source.choice([0.0, 0.2, 0.5, 0.9])
                row |= {f"{name}_mean": mean, f"{name}_max": min(1.0, 2 * mean)}
        rows.append(row)
    timeline = []
    for minute in range(ran):
        if source.random() < 0.7 and not 10 < minute < 40:
            row = {"job_key": key, "minute": minute, "measured_gpus": source.randint(0, held)}
            row |= {"idle_gpus": row["measured_gpus"] // 2, "active_sum": 0.5, "idle_power_w": 9.0}
            row |= {"highest_power_w": 70.0, "work": source.choice([None, 0.3])}
            names = ("power_w", *FRACTIONS[:4], *(f"mean_{name}" for name in AVERAGED))
            row |= {name: source.random() for name in names if name != "sm_occupancy"}
            timeline.append(row | ({} if key == "c" else {"busy": 0.1, "mem_copy_util": 0.2}))
    return dict(summary(**job)), rows, timeline, interval_s


def _board(job: Row) -> float:
    return max(400.0 if job["gpu_model"] else 0.0, job["power_w_max"] or 0.0)


def _level(name: str, state: State, board: float) -> float:
    if name == "power_w":
        return board * state.power
    counter = COUNTERS_BY_NAME[name]
    return counter.high * state.links if counter.kind is CounterKind.RATE else state.fraction(name)


def _highest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _gpus(job: Row, rows: list[Row], fill: Fill, gap: Row) -> list[Row]:
    """The rows of GPUs over the whole time, with `_share` and `_part` of each."""
    shares = []
    for row in rows:
        expected = job["elapsed_s"] / (row["interval_s"] or gap["interval_s"])
        samples = row["samples"]
        share = gap["share"] if samples is None else 1 - (samples + 1) / expected
        shares.append(min(1.0, max(0.0, share)))
    # the job as a whole may have less
    fewer = min(1.0, (1 - gap["share"]) / max(1e-9, 1 - sum(shares) / len(shares)))
    shares = [1 - (1 - share) * fewer for share in shares]
    activity = [
        next((row[f"{name}_mean"] for name in ACTIVITY if row[f"{name}_mean"] is not None), 0.0)
        for row in rows
    ]
    order = sorted(range(len(rows)), key=lambda place: (activity[place], place))
    of_some = {
        counter.name
        for counter in COUNTERS
        if job[f"{counter.name}_max"] is not None
        and any(row[f"{counter.name}_max"] is not None for row in rows)
    }
    found = []
    for place, (row, share) in enumerate(zip(rows, shares, strict=True)):
        pieces = {"begin": 1, "end": 1, "both": 2}.get(fill.when, 0) * PIECE_S
        part = pieces / max(1e-9, share * job["elapsed_s"])
        of_all = pieces / job["elapsed_s"]
        parts = [
            min(1.0, {"always": 1.0, "bursts": 1 / 3}.get(fill.when, of_time))
            for of_time in (part, of_all)
        ]
        chosen = {"all": place, "busiest": order[-1], "least busy": order[0]}[fill.who] == place
        part, part_of_all = (of_time * chosen for of_time in parts)
        interval_s = row["interval_s"] or gap["interval_s"]
        first, last = row["first_t"], row["last_t"]
        edges = last is None or (job["as_of"] - last).total_seconds() > 1.5 * interval_s
        edges |= (first - job["start"]).total_seconds() > 1.5 * interval_s
        lacks = {
            counter.name
            for counter in COUNTERS
            if row[f"{counter.name}_max"] is None and counter.name in of_some
        }
        new: Row = {"_share": share, "_part": part, "_part_of_all": part_of_all, "_lacks": lacks}
        new["_own"] = {of: row[f"{of}_mean"] for of in ("gpu_util", *OTHER_IMBALANCES)}
        new["_sampled"] = bool(row["samples"])
        of_time = (share, part)
        for counter in COUNTERS:
            name = counter.name
            share, part = (1.0, part_of_all) if name in lacks else of_time
            errors = fill.errors and (edges or name in lacks)
            mean, most = row[f"{name}_mean"], row[f"{name}_max"]
            value, peak = mean, counter.high if fill.errors else most
            if name == "power_w" or counter.kind in (CounterKind.FRACTION, CounterKind.RATE):
                there, rest = (_level(name, of, _board(job)) for of in (fill.state, fill.rest))
                value = part * there + (1 - part) * rest
                peak = max([there] * (part > 0) + [rest] * (part < 1))
            elif counter.unit == "bitmask":
                value, peak = float(fill.errors), (2.0**32 - 1) * fill.errors
            elif counter.kind is CounterKind.CUMULATIVE or counter.unit in ("code", "flag"):
                peak = (most or 0.0) + errors
            if fill.steady:
                value = _mean(of[f"{name}_mean"] for of in rows) if mean is None else mean
                peak = _mean(of[f"{name}_max"] for of in rows) if most is None else most
            if mean is not None and value is not None:
                value = mean * (1 - share) + value * share
            if fill.alike and counter.kind is CounterKind.FRACTION:
                of_counter = [
                    1.0 if of[f"{name}_max"] is None and name in of_some else of_gpu
                    for of, of_gpu in zip(rows, shares, strict=True)
                ]
                least = min(of_counter)
                known = (mean or 0.0) * (1 - share)
                pairs = zip(rows, of_counter, strict=True)
                typical = _mean(of[f"{name}_mean"] for of, share in pairs if share == least)
                value = None if typical is None else min(known + share, max(known, typical))
            if job[f"{name}_max"] is None:
                value = peak = most = None
            new |= {f"{name}_mean": value, f"{name}_max": _highest([most, peak if share else None])}
        share, part = (1.0, part_of_all) if "gpu_util" in lacks else of_time
        zero = [float(state.fraction("gpu_util") == 0) for state in (fill.state, fill.rest)]
        own = row["zero_util_fraction"] or 0.0
        zeros = own if fill.steady else part * zero[0] + (1 - part) * zero[1]
        util, used = new["gpu_util_max"], new["hbm_used_mib_max"]
        mean = new["gpu_util_mean"]
        rows_last, xids = row["remapped_rows_uncorrectable_last"] or 0, row["xid_events"] or 0
        new |= {
            "zero_util_fraction": own * (1 - share) + zeros * share,
            "temporal_imbalance": 1 - mean / util if util and mean is not None else None,
            "hbm_peak_fraction": None if used is None else min(1.0, used / row["hbm_mib"]),
            "remapped_rows_uncorrectable_last": rows_last
            + (fill.errors and (edges or "remapped_rows_uncorrectable" in lacks)),
            "xid_events": xids + (fill.errors and (edges or "xid" in lacks)),
        }
        for name, counter_name in (
            ("zero_util_fraction", "gpu_util"), ("xid_events", "xid"),
            ("remapped_rows_uncorrectable_last", "remapped_rows_uncorrectable"),
        ):  # fmt: skip
            if job[f"{counter_name}_max"] is None:
                new[name] = None
        found.append(new)
    return found


def _summary(job: Row, rows: list[Row], fill: Fill) -> Row:
    new: Row = {"coverage": 1.0, "gpus_seen": len(rows)}
    for counter in COUNTERS:
        mean, most = f"{counter.name}_mean", f"{counter.name}_max"
        new |= {mean: _mean(row[mean] for row in rows), most: _highest(row[most] for row in rows)}
    for name in ("temporal_imbalance", "hbm_peak_fraction"):
        new[name] = _highest(row[name] for row in rows)
    new["zero_util_fraction"] = _mean(row["zero_util_fraction"] for row in rows)
    new["xid_events"] = sum(row["xid_events"] or 0 for row in rows)
    new["gpus_never_used"] = sum(row["gpu_util_max"] == 0 for row in rows)
    if job["gpu_util_max"] is None:
        new["temporal_imbalance"] = None
    if fill.steady:
        return new
    for of in ("gpu_util", *OTHER_IMBALANCES):
        name = "spatial_imbalance" if of == "gpu_util" else f"spatial_imbalance_{of}"
        others = [row for row in rows if of not in row["_lacks"]]
        added_levels = [row[f"{of}_mean"] or 0.0 for row in rows if of in row["_lacks"]]
        known, zero = job[name] or 0.0, job["spatial_zero_fraction"]
        if added_levels:
            top = _highest(row["_own"][of] for row in rows) or 0.0
            highest = max(top, *added_levels)
            even = len(others) * (1 - known) * top + sum(added_levels)
            known = 1 - even / (len(rows) * highest) if highest else 0.0
            zero = 0.0 if max(added_levels) > 0 else zero
        share = _mean(row["_share"] for row in others) or 0.0
        counted = (1 - share) * (1 - zero)
        added = share * bool(fill.state.fraction(of) or fill.rest.fraction(of))
        lag = 0.0 if fill.who == "all" else 1 - 1 / len(rows)
        total = counted + added
        value = (known * counted + lag * added) / total if total else None
        is_measured = job[f"{of}_max"] is not None and len(rows) > 1
        new[name] = value if is_measured else None
    for resource in RESOURCES:
        pairs = [
            (1.0, row["_part_of_all"])
            if row["_lacks"].intersection(resource.counters)
            else (row["_share"], row["_part"])
            for row in rows
        ]
        share, part = (_mean(values) or 0.0 for values in zip(*pairs, strict=True))
        level, work = job[resource.at_work] or 0.0, job[resource.share] * (1 - share)
        then = max(_level(name, fill.state, 0.0) for name in resource.counters)
        total = level * work + then * part * share
        square = level**2 * work + then**2 * part * share
        known = total > 0 and any(job[f"{name}_max"] is not None for name in resource.counters)
        new[resource.at_work] = square / total if known else None
        new[resource.share] = total**2 / square if known else None
    return new


def _minutes(
    job: Row, of_gpus: list[Row], every: dict[int, Row], fill: Fill, interval_s: float
) -> list[Row]:
    """The minutes of a job, of which `every` has those with samples."""
    held = len(of_gpus)
    incomplete = sum(row["_sampled"] and bool(row["_lacks"] & IN_MINUTES) for row in of_gpus)
    ran_s, board = (job["as_of"] - job["start"]).total_seconds(), _board(job)
    measured = {minute: row["measured_gpus"] for minute, row in every.items()}
    stands_for = 0 if interval_s < 40 else 1
    missing: dict[int, int] = {}
    for minute in range(math.ceil(ran_s / 60)):
        far = min(abs(minute - other) for other, gpus in measured.items() if gpus)
        near = range(minute - stands_for, minute + stands_for + 1)
        most = max(measured.get(other, 0) for other in near)
        is_long = min(60.0, ran_s - 60 * minute) >= min(60.0, interval_s)
        missing[minute] = held if far > stands_for and is_long else 0
        if measured.get(minute):
            missing[minute] = max(held - most, incomplete)
    lacking = [minute for minute, gpus in missing.items() if gpus]
    pieces = {"begin": lacking[:15], "end": lacking[-15:], "both": lacking[:15] + lacking[-15:]}
    pieces |= {"always": lacking, "bursts": [minute for minute in lacking if minute % 6 < 2]}
    names = timelines_of(minutes(), idle_util=0.5).columns
    has = {name for row in every.values() for name, value in row.items() if value is not None}
    found = []
    for minute, lack in missing.items():
        row: Row = dict.fromkeys(names) | every.get(minute, {}) | {"minute": minute}
        for name in ("measured_gpus", "idle_gpus", "active_sum", "idle_power_w"):
            row[name] = row[name] or 0
        own = row["measured_gpus"]
        doing = (lack if fill.who == "all" else min(1, lack)) * (minute in pieces[fill.when])
        states = [fill.state] * doing + [fill.rest] * (lack - doing)
        new: Row = {}
        for name in ("busy", "work", "highest_power_w", *ACTIVITY):
            of = {"busy": ["gpu_util"], "work": WORK, "highest_power_w": ["power_w"]}
            levels = [
                _level(each, state, board) for each in of.get(name, [name]) for state in states
            ]
            unknown = name == "highest_power_w" and not board
            new[name] = _highest([row[name], *([] if unknown else levels)])
        for name in ("power_w", *(f"mean_{name}" for name in AVERAGED)):
            of_name = name.removeprefix("mean_")
            if of_name in ("pcie", "nvlink"):
                levels = [LINKS * state.links for state in states]
            else:
                levels = [_level(of_name, state, board) for state in states]
            every_gpu = min(own + lack, max(held, own))
            known = (row[name] or 0.0) * (every_gpu - lack)
            new[name] = (known + sum(levels)) / max(1, every_gpu)
            if of_name == "power_w" and not board:
                new[name] = None
        if fill.steady:
            for name in new:
                level = _mean(
                    every[at].get(name) for at, gpus in measured.items() if gpus > missing[at] == 0
                )
                new[name] = row[name] if level is None else level
        idle = sum(state.fraction("gpu_util") < 0.5 for state in states)
        levels = [state.fraction("gpu_util") for state in states]
        new |= {
            "measured_gpus": min(own + lack, max(held, own)),
            "idle_gpus": row["idle_gpus"] + idle,
            "active_sum": row["active_sum"] + sum(level for level in levels if level >= 0.5),
            "idle_power_w": row["idle_power_w"] + idle * board * 0.1,
        }
        if lack:
            row |= {name: value for name, value in new.items() if name in has}
        if own + lack:
            found.append(row | {"job_key": None})
    return found


def test_jobs_measured_whole_are_not_completed() -> None:
    tables = _tables(ROW | {"coverage": 1.0}, [0.8] * 120)
    again = completed(
        tables, unmeasured(tables.jobs, tables.timelines, tables.gpus), idle_util=IDLE
    )
    assert not again.tables.jobs.height
    assert not again.of.height


def _tables(row: Mapping[str, Any], *levels: list[float | None]) -> JobTables:
    jobs = frame(JOB_SUMMARIES, [dict(row)])
    timelines = timelines_of(minutes(*levels), idle_util=IDLE)
    return JobTables(jobs, GPUS, timelines, JOB_NODE_MINUTES.empty().drop("seq"))


def _of_levels(asked: list[set[str]]) -> Callable[[Completed, Questions], pl.DataFrame]:
    """Judge "busy" (above a half), "long" (an hour or more) and "hot"; note what is in question."""

    def judge(whole: Completed, questions: Questions) -> pl.DataFrame:
        tables = whole.tables
        asked.append(set(questions))
        holds = {
            "busy": pl.col("gpu_util_mean") > 0.5,
            "long": pl.col("elapsed_s") >= 3600,
            "hot": pl.col("gpu_temp_c_max") > 90,
        }
        found = [
            tables.jobs.select(
                "job_key",
                code=pl.lit(code),
                verdict=pl.when(condition).then(pl.lit("yes")).otherwise(pl.lit("no")),
            )
            for code, condition in holds.items()
        ]
        return pl.concat(found)

    return judge


@pytest.mark.parametrize("most_rows", [1, 120, 500, 10**6])
def test_a_verdict_is_in_question_until_a_completion_refutes_it(most_rows: int) -> None:
    """However many completions are made at a time: the same is refuted."""
    tables = _tables(ROW, [0.8] * 120, [0.6] * 60 + [None] * 60)
    asked: list[set[str]] = []
    judge = _of_levels(asked)
    own = judge(Completed(tables, tables.jobs, {}), {})
    found = refuted(
        tables,
        unmeasured(tables.jobs, tables.timelines, tables.gpus),
        own,
        judge,
        idle_util=IDLE,
        most_rows=most_rows,
    )
    assert set(found["code"]) == {"hot"}, "a quarter without work leaves it busy"
    assert {"busy", "long"} <= asked[-1], "no completion refutes these: all are tried"
    if most_rows <= 120:
        assert len(asked) == 1 + len(FILLS)
        assert "hot" not in asked[-1]


def test_nothing_is_completed_where_nothing_is_in_question() -> None:
    tables = _tables(ROW, [0.8] * 120, [0.6] * 60 + [None] * 60)
    asked: list[set[str]] = []
    judge = _of_levels(asked)
    own = judge(Completed(tables, tables.jobs, {}), {}).filter(code="hot")
    gaps = unmeasured(tables.jobs, tables.timelines, tables.gpus)
    assert refuted(tables, gaps, own, judge, idle_util=IDLE, most_rows=1).height == 1
    assert len(asked) < 1 + len(FILLS)
    assert not refuted(tables, gaps, own.clear(), judge, idle_util=IDLE).height


DAY = 1440


@pytest.mark.parametrize("begins", [True, False])
def test_a_long_time_without_samples_is_cut_alike_at_both_ends(begins: bool) -> None:
    """Ten days before the first sample, or behind the last: a day of them is completed."""
    hour, days = [0.8] * 60, [None] * (10 * DAY)
    levels = [*days, *hour] if begins else [*hour, *days]
    row = ROW | {"gpus": 1, "elapsed_s": 60.0 * len(levels), "coverage": 60 / len(levels)}
    row |= {"as_of": row["start"] + timedelta(minutes=len(levels))}
    tables = _tables(row, levels)
    rows: list[int] = []

    def judge(whole: Completed, _: Questions) -> pl.DataFrame:
        of = whole.tables
        rows.extend(of.timelines.group_by("job_key").len()["len"])
        ran = of.jobs["as_of"] - of.jobs["start"]
        assert set(ran.dt.total_minutes()) == {DAY + 60}
        return of.jobs.select("job_key", code=pl.lit("any"), verdict=pl.lit("no"))

    own = tables.jobs.select("job_key", code=pl.lit("any"), verdict=pl.lit("no"))
    gaps = unmeasured(tables.jobs, tables.timelines, tables.gpus)
    refuted(tables, gaps, own, judge, idle_util=IDLE)
    assert set(rows) == {DAY + 60}
    assert len(rows) == len(FILLS)


@pytest.mark.parametrize(
    ("interval_s", "lag_min", "is_late"),
    [(30, 3, False), (30, 15, False), (30, 16, True), (600, 30, False), (600, 31, True)],
)
def test_a_running_job_ends_at_a_recent_last_sample(
    interval_s: int, lag_min: int, *, is_late: bool
) -> None:
    """Of 15 minutes or three intervals: behind it the time counts as not measured."""
    ran = 120 + lag_min
    last = ROW["start"] + timedelta(minutes=120)
    row = ROW | {"state": "RUNNING", "interval_s": float(interval_s), "elapsed_s": 60.0 * ran}
    row |= {"as_of": ROW["start"] + timedelta(minutes=ran), "coverage": 120 / ran}
    tables = _tables(row, [0.8] * 120, [0.6] * 120)
    tables = replace(tables, gpus=GPUS.with_columns(last_t=pl.lit(last).cast(GPUS["last_t"].dtype)))
    ended = until_last_sample(tables)
    share = unmeasured(ended.jobs, tables.timelines, ended.gpus)["share"].item()
    assert (share > 0) == is_late
    assert (ended.jobs["as_of"].item() == last) != is_late
    over = until_last_sample(
        replace(tables, jobs=tables.jobs.with_columns(state=pl.lit("COMPLETED")))
    )
    assert over.jobs["elapsed_s"].item() == 60 * ran, "the end of a job that is over is known"


def test_a_row_without_samples_is_no_further_gpu() -> None:
    """A slice, and a row of its GPU: the job held one."""
    slice_: dict[str, object] = {"samples": 216, "mig": 7, "gpu": 0}
    slice_ |= {"gpu_util_mean": 0.8, "gpu_util_max": 0.9}
    tables = _tables(ROW | {"gpus": 1, "gpus_seen": 1, "coverage": 0.9}, [0.8] * 108 + [None] * 12)
    gaps = unmeasured(tables.jobs, tables.timelines, tables.gpus)
    cases: list[tuple[dict[str, object], int]] = [({"gpu": 0}, 1), ({"gpu": 0, "samples": 9}, 2)]
    for other, held in cases:
        whole = completed(replace(tables, gpus=gpus(slice_, other)), gaps, idle_util=IDLE)
        assert set(whole.tables.timelines["measured_gpus"]) == {held}
        assert set(whole.tables.gpus.group_by("job_key").len()["len"]) == {held}


def test_completions_that_are_alike_are_judged_once() -> None:
    """Four minutes of samples are missing here and there: where GPUs were busy is all the same."""
    rows = gpus({"samples": 232, "gpu_util_mean": 0.8, "gpu_util_max": 0.9})
    tables = _tables(ROW | {"gpus": 1, "gpus_seen": 1, "coverage": 0.966}, [0.8] * 120)
    tables = replace(tables, gpus=rows)
    whole = completed(
        tables, unmeasured(tables.jobs, tables.timelines, tables.gpus), idle_util=IDLE
    )
    assert whole.tables.timelines.equals(
        tables.timelines.with_columns(job_key=pl.lit(f"{ROW['job_key']}\n0"))
    )
    numbers = {int(key.split("\n")[1]) for key in whole.of["job_key"]}
    assert numbers == set(whole.tables.jobs["job_key"].str.split("\n").list[1].cast(pl.Int64))
    with_pieces = [number for number, fill in enumerate(FILLS) if fill.when in ("begin", "end")]
    assert len(numbers.intersection(with_pieces)) <= 1
    assert len(numbers) < len(FILLS) - 3
