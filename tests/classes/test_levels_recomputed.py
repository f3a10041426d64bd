"""Level of work, usual lows and idle units of random jobs, recomputed minute by minute."""

from __future__ import annotations

import random
from itertools import groupby
from statistics import median
from typing import Any

import numpy as np
import pytest

from tachograph.judge.classes.characteristics import AWAKE, GPU, SM_BUSY, WORK
from tachograph.judge.classes.idleness import IdleCase, idle_answers, idle_votes
from tachograph.judge.classes.kernel import MISSING, NO, UNDECIDED, YES
from tachograph.judge.classes.series import Units, extremes
from tachograph.judge.classes.work_level import MinuteColumns, low_is_usual, work_levels

F = np.float32
NAN = F(np.nan)
BUSY = {name: GPU[name].busy or np.inf for name in ("pcie", "nvlink")}
# Idle at 100 W and at work at 500 W: 260 W are 0.4 of the way, 340 W 0.6, 400 W 0.75.
DRAWN: dict[str, list[float]] = {
    "util": [np.nan, 0.0, AWAKE, 0.5, 0.97, 1.0],
    "work": [np.nan, np.nan, np.nan, 0.0, WORK / 2, WORK],
    "sm": [np.nan, np.nan, 0.0, SM_BUSY / 2, SM_BUSY],
    "memory": [np.nan, 0.0, 0.014, 0.015, 0.15, 0.2],
    "power_w": [np.nan, 90.0, 100.0, 180.0, 260.0, 340.0, 400.0, 500.0],
    "pcie": [np.nan, 0.0, 0.0, BUSY["pcie"] / 2, BUSY["pcie"]],
    "nvlink": [np.nan, 0.0, 0.0, BUSY["nvlink"] / 2, BUSY["nvlink"]],
}
Minute = dict[str, Any]


def _job(source: random.Random) -> list[Minute]:
    """Minutes of a job: some at work, some idle, and any others."""
    usual_util, usual_memory = source.choice([0.6, 0.97, 1.0]), source.choice([0.1, 0.15, 0.2, 1.5])
    kinds = {name: source.random() < 0.6 for name in DRAWN}
    at_work = {"util": usual_util, "memory": usual_memory, "power_w": 500.0}
    idle = {"util": 0.0, "memory": 0.0, "power_w": source.choice([100.0, 400.0])}
    minutes = [at_work] * source.choice([0, 9, 10, 25]) + [idle] * source.choice([0, 2, 3])
    blank = dict.fromkeys(DRAWN, np.nan)
    minutes = [blank | minute for minute in minutes]
    for _ in range(source.randint(1, 30)):
        drawn = {name: source.choice(values) for name, values in DRAWN.items()}
        minutes.append({name: value if kinds[name] else np.nan for name, value in drawn.items()})
    source.shuffle(minutes)
    return [{name: F(value) for name, value in minute.items()} for minute in minutes]


def _usual(values: list[Any], floor: float) -> float | None:
    """The median of what is three quarters of the way to what ten minutes reach."""
    known = sorted((float(value) for value in values if value == value), reverse=True)
    if len(known) < 10:
        return None
    if known[9] <= floor:
        return known[9]
    return median(value for value in known if value >= floor + 0.75 * (known[9] - floor))


def _levels(job: list[Minute], board_w: float | None) -> list[Any]:
    awake = [minute for minute in job if not minute["util"] < AWAKE]
    idle_w = [
        float(minute["power_w"])
        for minute in job
        if minute["util"] < AWAKE and minute["power_w"] == minute["power_w"]
    ]
    highest = max([minute["power_w"] for minute in job if minute["power_w"] > 0], default=None)
    whole = board_w or highest
    floor = median(idle_w) if len(idle_w) > 2 else None if whole is None else 0.15 * float(whole)
    at_work = None if floor is None else _usual([minute["power_w"] for minute in awake], floor)
    shares = [NAN] * len(job)
    if floor is not None and at_work is not None and at_work >= 1.25 * floor:
        shares = [(minute["power_w"] - F(floor)) / F(at_work - floor) for minute in job]
    utils = [
        minute["util"]
        for minute, share in zip(job, shares, strict=True)
        if share >= 0.75 and minute["util"] == minute["util"]
    ]
    usual_util = F(min(1.0, float(np.median(utils)))) if utils else F(1)
    usual_memory = _usual([minute["memory"] for minute in awake], 0.0)
    found = []
    for minute, share in zip(job, shares, strict=True):
        level = minute["work"] * F(0.6 / WORK)
        if minute["work"] >= WORK or minute["sm"] >= SM_BUSY:
            level = F(1)
        if minute["util"] >= 0.97 and 0.4 <= share < 0.75:
            compared = share * usual_util
            share = F(0.4) if share >= 0.6 and compared < 0.4 else compared
        level = max([one for one in (level, max(share, F(0))) if one == one], default=NAN)
        if 0.4 <= level < 0.6:
            level = NAN
        if not level >= 0.6:
            if minute["util"] < AWAKE:
                level = F(0)
            elif minute["util"] >= AWAKE and minute["memory"] >= 0.015:
                known = usual_memory is not None and usual_memory >= 0.15
                moves = known and minute["memory"] / F(usual_memory) >= 0.1
                level = F(1) if moves else NAN
        if any(minute[name] >= busy for name, busy in BUSY.items()):
            level = F(1)
        found.append(level)
    return found


def test_levels_of_work_are_those_computed_minute_by_minute() -> None:
    source = random.Random(3)
    for _ in range(150):
        jobs = [_job(source) for _ in range(2)]
        boards = [source.choice([None, 400.0, 700.0]) for _ in jobs]
        columns = {
            name: np.array([minute[name] for job in jobs for minute in job], F) for name in DRAWN
        }
        offset = np.cumsum([0, *map(len, jobs)])
        board_w = np.array([np.nan if board is None else board for board in boards], F)
        found = work_levels(MinuteColumns(**columns), offset, board_w)
        wanted = [
            level for job, board in zip(jobs, boards, strict=True) for level in _levels(job, board)
        ]
        np.testing.assert_allclose(found, np.array(wanted, F), rtol=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_lows_are_usual_where_they_come_back_or_little_work_is_beside(seed: int) -> None:
    source = random.Random(seed)
    answers = set()
    for _ in range(100):
        runs = [
            (level, util, inside, length)
            for level, util, inside in [
                (1.0, 0.9, False), (0.6, 1.0, False), (0.0, 1.0, True), (np.nan, 0.97, False),
                (0.39, 0.97, False), (0.4, 1.0, False), (0.0, 0.9, False), (0.2, 1.0, False),
            ]
            for length in [source.choice([0, 1, 2, 10, 19, 20, 30])]
        ]  # fmt: skip
        source.shuffle(runs)
        minutes = [run[:3] for run in runs for _ in range(run[3])]
        others = [(level, util) for level, util, inside in minutes if not inside]
        is_low = [util >= 0.97 and level < 0.4 and not inside for level, util, inside in minutes]
        pinned = sum(util >= 0.97 for _, util in others)
        pause = max((sum(1 for _ in run) for low, run in groupby(is_low) if low), default=0)
        hung = sum(inside for *_, inside in minutes)
        wanted = sum(level >= 0.6 for level, _ in others) < 20
        wanted = wanted or sum(is_low) > 0.1 * pinned or 2 * pause >= hung
        level, util, inside = (np.array(column) for column in zip(*minutes, strict=True))
        found = low_is_usual(level.astype(F), util.astype(F), inside.astype(np.bool_))
        assert found == wanted, minutes
        answers.add(found)
    assert answers == {False, True}


def test_idle_units_are_those_of_half_of_the_characteristics() -> None:
    """The busiest is above a limit and did twice as much as the least, in half of the votes."""
    source = random.Random(4)
    for _ in range(300):
        counts = [source.randint(0, 5) for _ in range(2)]
        table = {
            name: [
                [source.choice([np.nan, 0.0, 0.25, 0.5, 0.51, 1.0]) for _ in range(count)]
                for count in counts
            ]
            for name in "abc"[: source.randint(1, 3)]
        }
        labels = [("n1", gpu, None) for count in counts for gpu in range(count)]
        values = {
            name: np.array([value for job in jobs for value in job], F)
            for name, jobs in table.items()
        }
        units = Units(np.cumsum([0, *counts]), labels, values)
        found = {name: extremes(units, name) for name in table}
        votes = {name: idle_votes(found[name], busy=0.5) for name in table}
        answers = idle_answers(list(votes.values()))
        for job, count in enumerate(counts):
            wanted = {}
            for name, jobs in table.items():
                known = [value for value in jobs[job] if value == value]
                wanted[name] = MISSING
                if len(known) > 1:
                    is_idle = max(known) > 0.5 and max(known) >= 2 * min(known)
                    wanted[name] = YES if is_idle else NO
            assert {name: votes[name][job] for name in table} == wanted
            voters = [vote for vote in wanted.values() if vote != MISSING]
            voted_yes = [name for name, vote in wanted.items() if vote == YES]
            answer = YES if voted_yes and 2 * len(voted_yes) >= len(voters) else NO
            if 2 * len(voters) < len(table):
                answer = UNDECIDED
            assert answers[job] == answer
            if answer != YES:
                continue
            form: Any = None
            case = IdleCase(form, job, units, found, list(table), voted_yes)
            low = []
            for gpu in range(count):
                halves = [
                    2 * table[name][job][gpu] <= found[name].busiest[job] for name in voted_yes
                ]
                if 2 * sum(halves) >= len(halves):
                    low.append(f"GPU {gpu}")
            assert case.affected() == low
