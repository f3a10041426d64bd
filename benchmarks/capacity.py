"""Where installed GPU-hours went, of clusters of several sizes: processor time of the sums alone.

    python benchmarks/capacity.py [NODESxDAYS ...]

Each node changes 20 times a day; each time a job begins that waited for up to six hours before.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import polars as pl

from tachograph.catalog.tables import JOBS, NODE_STATES, WAITING_JOBS
from tachograph.judge.capacity import build_capacity
from tachograph.judge.ledger import LEDGER_COLUMNS

START = datetime(2026, 3, 2, tzinfo=UTC)
CHANGES_A_DAY = 20
GPUS = 4
SIZES = ("50x10", "100x10", "100x30")
Row = dict[str, Any]
_TIME = pl.Datetime("us", "UTC")
HELD = {"job_key": pl.String(), "node": pl.String(), "node_gpus": pl.Float64(), "last_t": _TIME}
_KNOWN = {"job_key": pl.String(), "cluster": pl.String(), "start": _TIME, "end": _TIME}
_HOURS = dict.fromkeys(
    (name for name in LEDGER_COLUMNS if name.startswith("gpu_hours_")), pl.Float64()
)
SUMMARIES = {**_KNOWN, "as_of": _TIME, "in_ledger": pl.Boolean(), **_HOURS}


def polls(nodes: int, days: int, chance: random.Random) -> Iterator[Row]:
    """Yield what polls saw of each node, one row per change."""
    for node in range(nodes):
        seconds = [chance.randrange(days * 86_400) for _ in range(CHANGES_A_DAY * days)]
        bounds = [0, *sorted(seconds), days * 86_400]
        for begin, end in pairwise(bounds):
            yield dict.fromkeys(NODE_STATES.row_schema) | {
                "node": f"n{node}",
                "start": START + timedelta(seconds=begin),
                "end": START + timedelta(seconds=end),
                "provenance": "poll",
                "state": "up",
                "gpus": GPUS,
                "gpus_held": chance.randrange(GPUS + 1),
                "cpus_free": chance.randrange(64),
                "memory_free_mib": float(chance.randrange(500_000)),
                "partitions": "gpu",
                "gpu_type": "a100",
            }


def frames(nodes: int, days: int) -> tuple[pl.DataFrame, ...]:
    """Return states, waiting jobs, accounted jobs, summaries and what they held."""
    chance = random.Random(f"{nodes}x{days}")
    states = list(polls(nodes, days, chance))
    accounted, summaries, held = [], [], []
    for number, state in enumerate(one for one in states if one["gpus_held"]):
        key, start, end = str(number), state["start"], state["end"]
        waited = timedelta(seconds=chance.randrange(21_600))
        wanted: Row = {"job_id": key, "partition": "gpu", "nodes": 1, "gpus": state["gpus_held"]}
        wanted |= {"eligible": start - waited, "start": start, "cpus": chance.randrange(1, 64)}
        wanted |= {"mem_requested_mib": 1024.0 * chance.randrange(1, 400)}
        accounted.append(dict.fromkeys(JOBS.row_schema) | wanted)
        of_job = {"job_key": key, "cluster": None, "start": start, "end": end, "as_of": end}
        hours = dict.fromkeys(_HOURS, 0.0) | {"gpu_hours_in_use": 1.0}
        summaries.append(of_job | {"in_ledger": True} | hours)
        held.append((key, state["node"], float(state["gpus_held"]), end))
    return (
        pl.DataFrame(states, schema=NODE_STATES.row_schema),
        pl.DataFrame(schema=WAITING_JOBS.row_schema),
        pl.DataFrame(accounted, schema=JOBS.row_schema),
        pl.DataFrame(summaries, schema=SUMMARIES),
        pl.DataFrame(held, schema=HELD, orient="row"),
    )


def measured(size: str) -> Row:
    """Return what one size takes."""
    nodes, days = map(int, size.split("x"))
    tables = frames(nodes, days)
    begin = time.process_time()
    report = build_capacity(*tables, models={}, until=START + timedelta(days=days))
    seconds = time.process_time() - begin
    assert report is not None
    assert abs(report.hours("installed") - nodes * GPUS * days * 24) < 1e-3
    rows, jobs = tables[0].height, tables[3].height
    each = {"seconds": round(seconds, 2), "us_per_row": round(1e6 * seconds / rows)}
    return {"nodes": nodes, "days": days, "rows_of_nodes": rows, "jobs": jobs, **each}


def main() -> int:
    """Print what each size takes; 1 where a row of the largest takes twice one of the smallest."""
    found = [measured(size) for size in sys.argv[1:] or SIZES]
    print(json.dumps(found, indent=1))
    return int(found[-1]["us_per_row"] > 2 * found[0]["us_per_row"])


if __name__ == "__main__":
    sys.exit(main())
