"""Gaps between the steps of random jobs, recounted in cells of half a minute."""

from __future__ import annotations

import random
from datetime import timedelta
from itertools import groupby
from typing import Any

import polars as pl
import pytest

from jobframes import START, minutes, summary
from tachograph.catalog.tables import STEP_SUMMARIES
from tachograph.judge.steps import job_steps

CELL_S = 30


def _at(cell: int) -> Any:
    return START + timedelta(seconds=CELL_S * cell)


@pytest.mark.parametrize("seed", range(3))
def test_gaps_and_idle_steps_are_those_of_half_minutes(seed: int) -> None:
    source = random.Random(seed)
    for _ in range(40):
        cells = source.randint(1, 40)
        spans, rows = [], []
        for name in ("batch", "0", "1", "2")[: source.randint(1, 4)]:
            begin = source.randint(0, cells)
            end = source.choice([None, begin + 1, begin + source.randint(1, 12)])
            mean, coverage = source.choice([None, 0.0, 0.1, 0.2]), source.choice([None, 0.4, 0.5])
            row = {"step": name, "start": _at(begin), "end": None if end is None else _at(end)}
            rows.append(row | {"gpu_util_mean": mean, "coverage": coverage})
            if name != "batch":
                spans.append((begin, cells if end is None else end))
        levels = [
            [source.choice([None, 0.0, 0.099, 0.1]) for _ in range(cells // 2 + 1)]
            for _ in range(2)
        ]
        job = summary(elapsed_s=float(CELL_S * cells))
        steps = pl.DataFrame(
            [dict.fromkeys(STEP_SUMMARIES.schema) | row for row in rows],
            schema=STEP_SUMMARIES.schema,
        )
        found = job_steps(job, steps, minutes(*levels), idle_util=0.1)
        idle = {step.row["step"]: step.idle for step in found.steps}
        assert idle == {
            row["step"]: None if row["gpu_util_mean"] is None or row["coverage"] != 0.5
            else row["gpu_util_mean"] < 0.1
            for row in rows
        }  # fmt: skip
        counts = [
            sum(level is not None for level in column) for column in zip(*levels, strict=True)
        ]
        wanted = []
        free = [all(not begin <= cell < end for begin, end in spans) for cell in range(cells)]
        for is_free, run in groupby(range(cells), key=free.__getitem__):
            places = list(run)
            if is_free and spans and len(places) > 1:
                first, behind = places[0], places[-1] + 1
                inside = [
                    minute
                    for minute in range(len(counts))
                    if first <= 2 * minute and 2 * minute + 2 <= behind
                    and counts[minute] == max(counts) > 0
                ]  # fmt: skip
                waited = [
                    minute
                    for minute in inside
                    if max(column[minute] or 0.0 for column in levels) < 0.1
                ]
                wanted.append((_at(first), _at(behind), 60.0 * len(inside), 60.0 * len(waited)))
        assert [(gap.begin, gap.end, gap.measured_s, gap.idle_s) for gap in found.gaps] == wanted
