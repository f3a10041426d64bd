"""States, stops and pauses of random GPUs, recomputed minute by minute in plain Python."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import polars as pl
import pytest

from jobframes import minutes
from tachograph.judge.gpu_series import (
    IDLE,
    POLLING,
    UNCLEAR,
    UNMEASURED,
    WORKING,
    GpuSeries,
    longest_pause,
)

F = np.float32
PIPES = ("fp64_active", "fp32_active", "fp16_active", "tensor_active", "dram_active")
WORK = [None, None, 0.0, 0.0019, 0.002, 0.0099, 0.01, 0.0249, 0.025, 0.25, 0.25, 0.25]
LEVELS: dict[str, list[float | None]] = {
    **dict.fromkeys(PIPES, WORK),
    "mem_copy_util": [None, 0.0, 0.25],
    "gpu_util": [None, 0.0, 0.149, 0.15, 0.499, 0.5, 1.0],
    "gr_engine_active": [None, 0.0, 0.15, 0.5],
    "sm_active": [None, 0.0, 0.0029, 0.003],
    "power_w": [None, 100.0, 200.0],
}
Minute = dict[str, float | None]


def _work(minute: Minute) -> float | None:
    known = [value for name in PIPES if (value := minute[name]) is not None]
    return max(known) if known else minute["mem_copy_util"]


def _states(row: list[Minute]) -> list[int]:
    used = [work for minute in row if (work := _work(minute)) is not None and work >= 0.01]
    least = max(0.002, 0.1 * median(used)) if used else np.inf
    found = []
    for minute in row:
        work, sm, util = _work(minute), minute["sm_active"], minute["gpu_util"]
        util = minute["gr_engine_active"] if util is None else util
        state = UNCLEAR
        if util is None:
            if sm is not None:
                state = POLLING if sm >= 0.003 else IDLE
        elif util >= 0.5:
            state = POLLING
        elif util < 0.15:
            state = IDLE
        if work is None:
            state = UNMEASURED
        elif F(work) >= F(least):
            state = WORKING
        found.append(state)
    measured = [at for at, state in enumerate(found) if state != UNMEASURED]
    alone = []
    for place, at in enumerate(measured):
        near = measured[max(0, place - 2) : place] + measured[place + 1 : place + 3]
        if found[at] == WORKING and WORKING not in [found[other] for other in near]:
            alone.append(at)
    for at in alone:
        found[at] = UNCLEAR
    return found


@pytest.mark.parametrize("seed", range(3))
def test_states_and_stops_are_those_computed_minute_by_minute(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(20):
        length = source.randint(1, 24)
        kept = {name: source.random() < 0.5 for name in LEVELS}
        dark = source.random() / 2
        rows: list[list[Minute]] = []
        for _ in range(source.randint(1, 3)):
            row: list[Minute] = []
            for _ in range(length):
                has = {name: kept[name] and source.random() > dark for name in LEVELS}
                drawn = {name: source.choice(LEVELS[name]) for name in LEVELS}
                row.append({name: drawn[name] if has[name] else None for name in LEVELS})
            rows.append(row)
        found = GpuSeries.of([("n1", gpu, None) for gpu in range(len(rows))], _frame(rows))
        wanted = [_states(row) for row in rows]
        if all(_work(minute) is None for row in rows for minute in row):
            assert found is None
            continue
        assert found is not None
        assert found.state.tolist() == wanted
        distances = []
        for place, states in enumerate(wanted):
            at_work = [at for at, state in enumerate(states) if state == WORKING]
            measured = [at for at, state in enumerate(states) if state != UNMEASURED]
            stop = at_work[-1] + 1 if at_work else 0
            quiet = min((at for at in measured if at >= stop), default=length)
            assert (found.stop[place], found.quiet[place]) == (stop, quiet)
            pause = max((later - at - 1 for at, later in pairwise(at_work)), default=0)
            assert longest_pause(found.state[place]) == pause
            distances += [later - at for at, later in pairwise(measured)]
            power = [watts for at in at_work if (watts := rows[place][at]["power_w"]) is not None]
            assert found.power_at_work(place) == (median(power) if power else None)
        gap = round(median(distances)) if distances else 1
        assert found.gap() == gap
        assert found.worked.tolist() == [
            place for place, states in enumerate(wanted) if states.count(WORKING) >= 5
        ]
        begin = source.randint(0, length - 1)
        end = source.randint(begin + 1, length)
        shares: dict[int, Any] = found.shares(np.arange(len(rows)), begin, end)
        for place, states in enumerate(wanted):
            seen = [state for state in states[begin:end] if state != UNMEASURED]
            kinds = {
                kind: seen.count(kind) / max(1, len(seen)) for kind in (WORKING, POLLING, IDLE)
            }
            share = min(1.0, len(seen) / max(1.0, (end - begin) / gap))
            assert shares[place] == (pytest.approx(share), pytest.approx(kinds))


def _frame(rows: list[list[Minute]]) -> pl.DataFrame:
    """Rows of job_minutes; a minute without anything has one, too."""
    made = minutes(*[[0.0] * len(row) for row in rows])
    columns = {name: [minute[name] for row in rows for minute in row] for name in LEVELS}
    return made.with_columns(
        pl.Series(name, values, pl.Float32) for name, values in columns.items()
    )
