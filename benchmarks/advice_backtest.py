"""Replays advice before a job: of jobs by design, of many synthetic ones (timed), of simulated
clusters, of accounting.

By design what each job needed is exact, and no sample is made. A simulated cluster goes the whole
way: samples, analysis, `tachograph advise --backtest`. Accounting (`sacct`) has no GPU samples:
time limits alone are replayed. Times are of the processor, of the replay alone. Goal: at most 0.5 %
of the advised jobs would have failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from repeated_jobs import repeated_requests
from tachograph.annexes.lab.fill import fill
from tachograph.annexes.lab.simulate.behaviours import JobKind
from tachograph.annexes.lab.simulate.plan import NodeGroup, SimulationPlan
from tachograph.annexes.lab.simulate.workload import place_runs
from tachograph.api.advice import read_backtest
from tachograph.catalog import config
from tachograph.catalog.config import AdviceOptions
from tachograph.catalog.tables import JOBS
from tachograph.cli import main as command
from tachograph.judge.advice.advise import SiteFacts
from tachograph.judge.advice.backtest import BacktestSums, replay
from tachograph.judge.advice.past_jobs import PastJob
from tachograph.lake.delta import Lake
from tachograph.lake.filters import JobFilter
from tachograph.lake.query import read_latest

GOAL_BROKEN = 0.005
GIB = 1024.0
SITE = SiteFacts({40 * GIB: 39.5 * GIB, 80 * GIB: 79.0 * GIB})
PLAIN = PastJob(
    key="",
    label="",
    user="",
    name="",
    partition="gpu",
    gpus=None,
    nodes=1,
    state="COMPLETED",
    submit=0.0,
    end=0.0,
)
# of host memory no course is planned: what one job holds, all hold
HOSTED = replace(PLAIN, mem_mib=256 * GIB, mem_peak_mib=20 * GIB)


def designed(seed: int) -> list[PastJob]:
    """Return the jobs of 25 days of a simulated cluster by design, without a sample: what each
    needed is exact.
    """
    plan = replace(SimulationPlan.demo(seed=seed), days=25, load=0.9)
    jobs = []
    for number, made in enumerate(place_runs(plan, repeated_requests(plan, 200))):
        if (
            made.start_s is None
            or made.end_s is None
            or made.behaviour is None
            or made.end_s > plan.seconds
        ):
            continue
        driver, elapsed = plan.groups[made.request.group].driver, float(made.end_s - made.start_s)
        lines = [made.behaviour.phases(slot) for slot in range(made.gpus)]
        jobs.append(
            replace(
                HOSTED,
                key=f"k{number}",
                label=str(number),
                user=f"user{made.request.user}",
                name=made.request.name,
                gpus=made.gpus,
                nodes=max(1, made.request.nodes),
                state=made.state,
                submit=float(made.submit_s),
                end=float(made.end_s),
                elapsed_s=elapsed,
                timelimit_s=60.0 * made.request.limit_min,
                gpus_used=sum(any(phase.level.util for phase in line) for line in lines),
                hbm_peak_mib=made.behaviour.work.hbm_mib,
                hbm_mib=float(driver.total_mib),
                gpu_model=driver.name,
                gpu_hours=made.gpus * elapsed / 3600,
                problems=("job_hang",) if made.behaviour.kind is JobKind.HUNG else (),
            )
        )
    return jobs


def synthetic(count: int, users: int = 500) -> list[PastJob]:
    """Return jobs of many users with a few names each, one a minute."""
    rng, jobs = random.Random(1), []
    for number in range(count):
        elapsed = 3600 * rng.lognormvariate(0, 0.1)
        submit = number * 60.0
        jobs.append(
            replace(
                HOSTED,
                key=f"k{number}",
                label=str(number),
                user=f"u{number % users}",
                name=f"train_{number % 7}" if number % 3 else "md",
                gpus=4,
                gpus_used=4,
                hbm_mib=80 * GIB,
                hbm_peak_mib=20 * GIB,
                submit=submit,
                end=submit + elapsed,
                elapsed_s=elapsed,
                timelimit_s=86400.0,
            )
        )
    return jobs


def tachograph(*words: str) -> None:
    """Run a command; stdout is kept for the numbers."""
    with contextlib.redirect_stdout(sys.stderr):
        command([*words, "--quiet"])


def accounted(files: Sequence[str]) -> list[PastJob]:
    """Return the jobs of `sacct` files: what was requested and how long they ran, nothing of
    GPUs.
    """
    with tempfile.TemporaryDirectory(prefix="tachograph-advice-") as folder:
        location = str(Path(folder) / "lake")
        # Of a site, with hashes for names.
        tachograph("ingest", "sacct", *files, "--trusted", "--lake", location)
        rows = read_latest(Lake.open(location), JOBS)
    known = [pl.col(name).is_not_null() for name in ("user", "name", "end", "submit")]
    return [
        replace(
            PLAIN,
            key=f"{row['cluster']}:{row['job_id']}:{row['submit']}",
            label=row["display_id"] or row["job_id"],
            user=row["user"],
            name=row["name"],
            partition=row["partition"],
            gpus=row["gpus"],
            nodes=row["nodes"],
            state=row["state"],
            submit=row["submit"].timestamp(),
            end=row["end"].timestamp(),
            elapsed_s=row["elapsed_s"],
            timelimit_s=row["timelimit_s"],
        )
        for row in rows.filter(*known).iter_rows(named=True)
    ]


def cluster(seed: int, nodes: int | None, days: int, groups: int) -> BacktestSums:
    """Simulate a cluster whose users repeat their jobs, analyze it, and return the sums of the
    replay.
    """
    with tempfile.TemporaryDirectory(prefix="tachograph-advice-") as folder:
        location = str(Path(folder) / "lake")
        plan = replace(SimulationPlan.demo(seed=seed), days=days, interval_s=60)
        if nodes is not None:
            plan = replace(plan, groups=(NodeGroup(nodes, 4, "A100 SXM 40GB"),))
        requests = repeated_requests(plan, groups)
        fill(plan, location, Path(folder) / "cluster", requests=requests)
        tachograph("analyze", "--lake", location)
        return read_backtest(Lake.open(location), config.Configuration(), JobFilter()).total


def sums_json(total: BacktestSums) -> dict[str, Any]:
    """Return the numbers that are reported."""
    return {
        "jobs": total.jobs,
        "advised": total.advised,
        "failed": total.broken_jobs,
        "failed_share": total.broken_share,
        "failed_lines": dict(total.broken),
        "lines": dict(total.followed),
        "recoverable_gpu_hours": total.recoverable,
        "named_with_past_jobs_share": total.named_share,
        "named_of_all_share": total.named_all_share,
        "known_share": total.known_share,
        "worth_naming_named_share": total.worth_named_share,
        "worth_naming_known_share": total.worth_known_share,
        "warned": total.warned,
        "warned_right": total.warned_right,
    }


def together(sums: Iterable[BacktestSums]) -> BacktestSums:
    """Return sums over several replays."""
    total = BacktestSums()
    for one in sums:
        for name in BacktestSums.__dataclass_fields__:
            setattr(total, name, getattr(total, name) + getattr(one, name))
    return total


def main() -> int:
    """Replay, print, and return 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--designed", type=int, nargs="*", default=[1, 2], metavar="SEED", help="jobs by design"
    )
    parser.add_argument("--jobs", type=int, default=10_000, help="synthetic jobs that are timed")
    parser.add_argument(
        "--accounting", nargs="*", default=[], metavar="FILE", help="files of sacct"
    )
    parser.add_argument(
        "--clusters", type=int, nargs="*", default=[], metavar="SEED", help="simulated clusters"
    )
    parser.add_argument("--nodes", type=int, help="nodes of a cluster (default: 36 of four models)")
    parser.add_argument("--days", type=int, default=14)
    parser.add_argument("--groups", type=int, default=150, help="job groups of a cluster")
    arguments = parser.parse_args()
    options, found = AdviceOptions(), dict[str, Any]()
    by_design = [replay(designed(seed), SITE, options) for seed in arguments.designed]
    found["designed"] = sums_json(together(report.total for report in by_design))
    jobs = synthetic(arguments.jobs)
    begin = time.process_time()
    replay(jobs, SITE, options)
    found["synthetic_jobs"], found["synthetic_cpu_s"] = (
        len(jobs),
        round(time.process_time() - begin, 2),
    )
    if arguments.accounting:
        found["accounting"] = sums_json(
            replay(accounted(arguments.accounting), SITE, options).total
        )
    clusters = {
        seed: cluster(seed, arguments.nodes, arguments.days, arguments.groups)
        for seed in arguments.clusters
    }
    if clusters:
        found["clusters"] = {
            **{str(seed): sums_json(total) for seed, total in clusters.items()},
            "all": sums_json(together(clusters.values())),
        }
    print(json.dumps(found, indent=2))
    shares = [found["designed"]["failed_share"]]
    shares += [found["clusters"]["all"]["failed_share"]] if clusters else []
    return 1 if any(share is not None and share > GOAL_BROKEN for share in shares) else 0


if __name__ == "__main__":
    sys.exit(main())
