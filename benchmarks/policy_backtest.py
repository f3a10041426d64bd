"""Policies on simulated clusters with truth: whom they would have ended, who worked again, hours
recovered.

A cluster goes the whole way: samples, analysis, replay. Jobs that are planted as hung never come
back; stalled ones do, after up to hours. Every hit of a planted hang is right, every hit of another
job is counted by its plant.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl

from tachograph.annexes.act.policy_backtest import PolicyBacktest, backtest_policy
from tachograph.catalog.policies import PolicyCheck, PolicyOptions
from tachograph.cli import main as command
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter

NEVER_BACK = ("hung", "busy_waiting")


def made_lake(folder: Path, seed: int, nodes: int, days: int) -> tuple[Lake, dict[str, str | None]]:
    """Simulate and analyze a cluster; return its lake and {job id: planted problem}."""
    location, made = str(folder / "lake"), folder / "cluster"
    size = ("--days", str(days), "--interval", "60", "--nodes", str(nodes), "--seed", str(seed))
    with contextlib.redirect_stdout(sys.stderr):
        command(["lab", "simulate", str(made), *size, "--lake", location, "--quiet"])
        command(["analyze", "--lake", location, "--quiet"])
    truth = pl.read_parquet(made / "truth" / "jobs.parquet")
    return Lake.open(location), dict(truth.select("job_id", "problem").iter_rows())


def row(found: PolicyBacktest, planted: dict[str, str | None], cpu_s: float) -> dict[str, Any]:
    """What is reported of a policy."""
    hung = {job for job, problem in planted.items() if problem in NEVER_BACK}
    hits = {one.job["job_id"] for one in found.hits}
    return {
        "check": found.policy.check,
        "minutes": found.policy.minutes,
        "warnings": found.policy.warned,
        "jobs": found.jobs,
        "hits": len(found.hits),
        "worked_again": len(found.worked_again),
        "warned_and_left": found.counts.get("warned", 0),
        "planted_hangs": len(hung),
        "planted_hangs_hit": len(hung & hits),
        "hits_by_plant": dict(Counter(str(planted.get(job)) for job in sorted(hits)).most_common()),
        "gpu_hours": round(found.gpu_hours),
        "gpu_hours_recovered": round(found.recovered, 1),
        "not_measured": found.counts.get("not_measured", 0),
        "cpu_ms_a_job": round(1e3 * cpu_s / max(1, found.jobs), 2),
    }


def main() -> int:
    """Replay and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--nodes", type=int, default=12)
    parser.add_argument("--days", type=int, default=14)
    arguments = parser.parse_args()
    checks: tuple[PolicyCheck, ...] = ("hung", "held_idle")
    with tempfile.TemporaryDirectory(prefix="tachograph-policy-") as folder:
        lake, planted = made_lake(Path(folder), arguments.seed, arguments.nodes, arguments.days)
        for check in checks:
            for minutes, warnings in ((10, 0), (30, 0), (30, 1), (60, 0), (60, 1)):
                policy = PolicyOptions("p", check, "cancel", minutes=minutes, warnings=warnings)
                begin = time.process_time()
                found = backtest_policy(lake, policy, JobFilter())
                print(json.dumps(row(found, planted, time.process_time() - begin)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
