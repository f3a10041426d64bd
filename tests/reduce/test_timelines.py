"""A job's minutes with its GPUs put together: as plain loops have it, from slots and from stored
minutes alike.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import polars as pl
import pytest
from plain_reference import mean, most

from tachograph.catalog.tables import JOB_MINUTES, MINUTE_MEANS
from tachograph.pipeline.timelines import (
    AVERAGED,
    NEEDED,
    WORK,
    merge_timelines,
    timeline_of_minutes,
    timeline_of_slots,
)

IDLE = 0.01
ACTIVITY = ("gpu_util", "gr_engine_active", "sm_active")
BOTH = {
    "pcie": ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s"),
    "nvlink": ("nvlink_tx_bytes_per_s", "nvlink_rx_bytes_per_s"),
}
Row = dict[str, Any]


def made(seed: int) -> list[Row]:
    """Return minutes of two runs with three GPUs each; a third of the values is missing, a third
    of the GPUs rests.
    """
    draw = random.Random(seed)
    rows: list[Row] = []
    for run in (0, 1):
        for gpu in range(3):
            for minute in range(draw.randrange(3), 9):
                level = draw.choice((0.0, draw.random(), draw.random()))
                row: Row = {"run": run, "gpu": gpu, "minute": minute}
                row["whole"] = draw.random() < (0.8 if seed == 0 or gpu < 2 else 0.0)
                for name in MINUTE_MEANS:
                    value = float(
                        np.float32(level * draw.random() * (300 if name == "power_w" else 1))
                    )
                    row[name] = None if draw.random() < 0.3 else value
                if draw.random() < 0.1:
                    row[draw.choice(ACTIVITY)] = float(np.float32(IDLE))
                row["nvlink_rx_bytes_per_s"] = None
                rows.append(row)
    return rows


def of_both(row: Row, names: tuple[str, str]) -> float | None:
    there = [row[name] for name in names if row[name] is not None]
    return sum(there) if there else None


def value_of(row: Row, name: str) -> float | None:
    return of_both(row, BOTH[name]) if name in BOTH else row[name]


def plain(rows: list[Row]) -> dict[str, float | None]:
    """Return what one minute of one run comes to."""
    complete = [row for row in rows if None not in (row[name] for name in NEEDED)]
    found = {name: most(row[name] for row in rows) for name in (*ACTIVITY, "mem_copy_util")}
    found["highest_power_w"] = most(row["power_w"] for row in rows)
    found["busy"] = most(row["gpu_util"] for row in complete)
    found["work"] = most(row[name] for row in complete for name in WORK)
    found["power_w"] = mean([row["power_w"] for row in complete])
    for name in AVERAGED:
        found[f"mean_{name}"] = mean([value_of(row, name) for row in rows])
    activity = [
        next((row[name] for name in ACTIVITY if row[name] is not None), None) for row in rows
    ]
    idle = [
        row
        for row, level in zip(rows, activity, strict=True)
        if level is not None and level < np.float32(IDLE)
    ]
    found["measured_gpus"] = sum(level is not None for level in activity)
    found["idle_gpus"] = len(idle)
    found["idle_power_w"] = math.fsum(row["power_w"] or 0.0 for row in idle)
    found["active_sum"] = math.fsum(
        level for level in activity if level is not None and level >= np.float32(IDLE)
    )
    return found


def from_slots(rows: list[Row]) -> pl.DataFrame:
    """Return the timeline made of arrays of slots, in two partitions as the reduction has them."""
    parts = []
    for gpus in ((0, 1), (2,)):
        mine = [row for row in rows if row["gpu"] in gpus]
        segments = sorted({(row["run"], row["gpu"]) for row in mine})
        ordered = [row for key in segments for row in mine if (row["run"], row["gpu"]) == key]
        begin = [sum((row["run"], row["gpu"]) < key for row in mine) for key in segments] + [
            len(mine)
        ]
        values = {
            name: np.array(
                [math.nan if row[name] is None else row[name] for row in ordered], np.float32
            )
            for name in MINUTE_MEANS
            if any(row[name] is not None for row in ordered)
        }
        parts.append(
            timeline_of_slots(
                np.array([run for run, _ in segments], np.int32),
                np.array(begin, np.int64),
                np.array([row["minute"] for row in ordered], np.int32),
                np.array([row["whole"] for row in ordered]),
                values,
                idle_util=IDLE,
            )
        )
    return merge_timelines(parts)


def from_table(rows: list[Row]) -> pl.DataFrame:
    schema = {
        "run": pl.Int32(),
        "gpu": pl.Int16(),
        "minute": pl.Int32(),
        **{n: JOB_MINUTES.schema[n] for n in MINUTE_MEANS},
    }
    frame = pl.DataFrame([row for row in rows if row["whole"]], schema=schema)
    return merge_timelines([timeline_of_minutes(frame, idle_util=IDLE)])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("make", [from_slots, from_table])
def test_sums_over_gpus_are_those_of_plain_loops(seed: int, make: Any) -> None:
    rows = made(seed)
    frame = make(rows)
    rows = [row for row in rows if row["whole"]]
    keys = sorted({(row["run"], row["minute"]) for row in rows})
    assert frame.select("run", "minute").rows() == keys
    for told in frame.iter_rows(named=True):
        mine = [row for row in rows if (row["run"], row["minute"]) == (told["run"], told["minute"])]
        for name, expected in plain(mine).items():
            if expected is None:
                assert told[name] is None, name
            else:
                assert told[name] == pytest.approx(expected, rel=1e-6, abs=1e-9), name
