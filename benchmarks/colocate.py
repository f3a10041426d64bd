"""Prints how long `tachograph colocate` takes to judge made-up jobs of thousands of kinds: the report, its lines.

Reading the lake is not part of it. Jobs are steady and light, of a few models of GPUs, on one to four of them; runs of
a kind differ a little. `--jobs N --kinds N`.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from tachograph.cli.colocate import estimators
from tachograph.config import Interference, Thresholds
from tachograph.interference.demand import Calibration
from tachograph.report.colocate.report import build_colocate_report
from tachograph.report.colocate.text import colocate_lines
from tachograph.summarize.schema import JOB_SUMMARIES

GOAL_S = 10.0
JOBS, KINDS = 75_272, 5_537
_MODELS = ("A100 SXM 40GB", "A100 SXM 80GB", "H100 SXM 80GB", "A40")
_START = datetime(2026, 1, 1, tzinfo=UTC)
# of the time in which the engine is active: at most; pipes of the SMs that are active
_OF_BUSY = {"sm_active_mean": 0.9, "dram_active_mean": 0.4}
_OF_SMS = {
    "sm_occupancy_mean": 0.3,
    "fp64_active_mean": 0.1,
    "fp32_active_mean": 0.4,
    "fp16_active_mean": 0.1,
    "tensor_active_mean": 0.3,
}
_MEMORY_MIB = 45_000.0


def asked(chance: random.Random) -> dict[str, float]:
    """Return what a kind asks: means of counters, and memory."""
    busy = 0.05 + 0.95 * chance.random()
    means = {name: most * busy * chance.random() for name, most in _OF_BUSY.items()}
    means |= {name: most * means["sm_active_mean"] * chance.random() for name, most in _OF_SMS.items()}
    return {"gr_engine_active_mean": busy, **means, "hbm_used_mib_max": _MEMORY_MIB * chance.random()}


def jobs(chance: random.Random, count: int, kinds: int) -> Iterator[dict[str, Any]]:
    """Yield rows of job_summaries; every kind has at least one."""
    shapes: list[dict[str, Any]] = [
        {"user": f"user{number % 700:03}", "name": f"kind{number}", "gpu_model": chance.choice(_MODELS)}
        | {"gpus": chance.choice((1, 1, 2, 4))}
        | asked(chance)
        for number in range(kinds)
    ]
    for number in range(count):
        shape = shapes[number] if number < kinds else chance.choice(shapes)
        hours = chance.expovariate(0.5)
        start = _START + timedelta(minutes=number)
        yield {
            **shape,
            **{name: value * chance.uniform(0.95, 1.0) for name, value in shape.items() if isinstance(value, float)},
            "job_key": f"c:{number}:1",
            "job_id": str(number),
            "display_id": str(number),
            "samples": 360,
            "coverage": 1.0,
            "elapsed_s": 3600.0 * hours,
            "gpu_hours": shape["gpus"] * hours,
            "start": start,
            "end": start + timedelta(hours=hours),
            "as_of": start + timedelta(hours=hours),
            "state": "COMPLETED",
            "attribution": "exclusive",
            "dram_active_max": 0.8,
            "gpus_never_used": 0,
        }


def main() -> int:
    """Print the numbers; 1 when the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--kinds", type=int, default=KINDS)
    parser.add_argument("--all", action="store_true", help="also pairs that are not proposed")
    chosen = parser.parse_args()
    rows = jobs(random.Random(1), chosen.jobs, chosen.kinds)
    summaries = pl.DataFrame([{**dict.fromkeys(JOB_SUMMARIES.schema), **row} for row in rows], JOB_SUMMARIES.schema)
    verdicts = summaries.select("job_key", code=pl.lit("stable"), verdict=pl.lit("yes"))
    settings = Interference()
    begin, began = time.perf_counter(), time.process_time()
    report = build_colocate_report(
        summaries,
        verdicts,
        settings=settings,
        thresholds=Thresholds(),
        calibration=Calibration(),
        estimator_of=estimators(settings),
        every=chosen.all,
        top=20,
    )
    colocate_lines(report, top=20)
    wall, used = time.perf_counter() - begin, time.process_time() - began
    measured = {
        "benchmark": "colocate",
        "python": platform.python_version(),
        "jobs": report.jobs,
        "kinds": report.kinds,
        "proposals": len(report.proposals),
        "not_compared": report.cut,
        "wall_s": round(wall, 2),
        "processor_s": round(used, 2),
        "goal_s": GOAL_S,
    }
    print(json.dumps(measured))
    return 0 if used < GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
