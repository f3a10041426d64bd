"""Prints how long `tachograph share colocate` takes to judge made-up jobs of thousands of kinds:
the report, its lines.

Reading the lake is not part of it. Jobs are steady and light, of a few models of GPUs, on one to
four of them; runs of a kind differ a little. `--jobs N --kinds N`. Then the same of kinds whose
kernels were profiled, 16 each, on one model: `--profiled N`; reading their reports is not part of
it, putting them together is.
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

from tachograph.annexes.share.colocation import (
    ColocateReport,
    ColocateRequest,
    build_colocate_report,
)
from tachograph.annexes.share.demand import Calibration
from tachograph.annexes.share.job_groups import LEAST_RUNS, MOST_KERNELS, GivenProfile
from tachograph.annexes.share.nsight.launches import Chip, Launch
from tachograph.annexes.share.sharing_text import colocate_lines
from tachograph.catalog.config import Configuration
from tachograph.catalog.tables import JOB_SUMMARIES

GOAL_S = 10.0
JOBS, KINDS = 75_272, 5_537
PROFILED, HEAVY = 50, (0.25, 0.5, 0.8)
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
_SMS = 108.0
# So that memory is not what decides.
_MODEST = {"hbm_used_mib_max": 10_000.0, "elapsed_s": 7200.0, "gpu_hours": 2.0}


def asked(chance: random.Random) -> dict[str, float]:
    """Return what a kind asks: means of counters, and memory."""
    busy = 0.05 + 0.95 * chance.random()
    means = {name: most * busy * chance.random() for name, most in _OF_BUSY.items()}
    means |= {
        name: most * means["sm_active_mean"] * chance.random() for name, most in _OF_SMS.items()
    }
    return {
        "gr_engine_active_mean": busy,
        **means,
        "hbm_used_mib_max": _MEMORY_MIB * chance.random(),
    }


def jobs(chance: random.Random, count: int, kinds: int) -> Iterator[dict[str, Any]]:
    """Yield rows of job_summaries; every kind has at least one."""
    shapes: list[dict[str, Any]] = [
        {
            "user": f"user{number % 700:03}",
            "name": f"kind{number}",
            "gpu_model": chance.choice(_MODELS),
        }
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
            **{
                name: value * chance.uniform(0.95, 1.0)
                for name, value in shape.items()
                if isinstance(value, float)
            },
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


def launches(chance: random.Random, heavy: float) -> list[Launch]:
    """Return a launch of each kernel of a kind; `heavy`: issue slots that one takes at the most,
    0..1.
    """
    chip = Chip("NVIDIA A100-SXM4-40GB", "8.0", {"multiprocessor_count": _SMS})
    found = []
    for number in range(MOST_KERNELS):
        seconds = chance.uniform(0.001, 0.03)
        told = {
            "gpu__time_duration.sum": 1e9 * seconds,
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": 50 * heavy * chance.random(),
            "sm__inst_issued.avg.per_cycle_active": 4 * heavy * chance.random(),
            "sm__inst_executed_pipe_fp64.avg.pct_of_peak_sustained_active": 60
            * heavy
            * chance.random(),
            "sm__cycles_active.avg": 0.5e9 * seconds,
            "sm__cycles_elapsed.max": 1e9 * seconds,
            "sm__warps_active.avg.per_cycle_active": 8.0,
            "launch__grid_size": float(chance.randint(20, 400)),
            "launch__block_size": 256.0,
            "launch__registers_per_thread": 32.0,
            "launch__shared_mem_per_block": 1024.0,
        }
        name = f"void kernel{number}(int)"
        found.append(
            Launch(
                name, told, chip, "", number, (int(told["launch__grid_size"]), 1, 1), (256, 1, 1)
            )
        )
    return found


def reported(
    summaries: Iterator[dict[str, Any]], *, least_runs: int = LEAST_RUNS, **options: Any
) -> tuple[ColocateReport, float, float]:
    """Return the report on made-up jobs, and the wall and processor time that it and its lines
    took.
    """
    rows = [{**dict.fromkeys(JOB_SUMMARIES.schema), **row} for row in summaries]
    frame = pl.DataFrame(rows, JOB_SUMMARIES.schema)
    verdicts = frame.select("job_key", code=pl.lit("stable"), verdict=pl.lit("yes"))
    begin, began = time.perf_counter(), time.process_time()
    report = build_colocate_report(
        frame,
        verdicts,
        ColocateRequest(least_runs=least_runs, top=20),
        configuration=Configuration(),
        calibration=Calibration(),
        **options,
    )
    colocate_lines(report, top=20)
    return report, time.perf_counter() - begin, time.process_time() - began


def by_kernels(count: int, heavy: float) -> tuple[ColocateReport, float, float]:
    """Return the same of so many kinds that ran once, each with a profile."""
    chance = random.Random(2)
    reports = {f"{kind}.ncu-rep": launches(chance, heavy) for kind in range(count)}
    rows = (
        {**row, "gpu_model": "A100 SXM 40GB", "gpus": 1} | _MODEST
        for row in jobs(chance, count, count)
    )
    given = [
        GivenProfile(f"user{kind % 700:03}/kind{kind}", f"{kind}.ncu-rep") for kind in range(count)
    ]
    return reported(rows, profiles=given, read=reports.__getitem__, least_runs=1)


def main() -> int:
    """Print the numbers; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--kinds", type=int, default=KINDS)
    parser.add_argument("--all", action="store_true", help="also pairs that are not proposed")
    parser.add_argument("--profiled", type=int, default=PROFILED)
    chosen = parser.parse_args()
    rows = jobs(random.Random(1), chosen.jobs, chosen.kinds)
    runs: list[tuple[str, float | None, ColocateReport, float, float]]
    runs = [("by means", None, *reported(rows, every=chosen.all))]
    runs += [("by kernels", heavy, *by_kernels(chosen.profiled, heavy)) for heavy in HEAVY]
    for what, heavy, report, wall, used in runs:
        measured = {
            "benchmark": "colocate",
            "python": platform.python_version(),
            "judged": what,
            "heavy": heavy,
            "jobs": report.jobs,
            "kinds": report.kinds,
            "profiled": len(report.profiled),
            "proposals": len(report.proposals),
            "trials": len(report.trials),
            "not_compared": report.cut,
            "wall_s": round(wall, 2),
            "processor_s": round(used, 2),
            "goal_s": GOAL_S,
        }
        print(json.dumps(measured))
    return 0 if all(used < GOAL_S for *_, used in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
