"""Prints what a whole analysis costs for lakes of several sizes: decode, reduce, minutes, findings,
summaries, writing.

For each size a simulated cluster is ingested and compacted once. Then a process of its own analyzes
everything twice: on threads (wall time, peak memory), and one partition after the other, where the
processor time of each phase can be told apart. Last, its last day is taken away, the rest analyzed,
and the day added: what one more day costs. `marginal` is the difference between the largest and the
smallest size, so what starts once does not count; the part that judges jobs (`findings`) is given
per further job, and the rest per further sample.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from reduce_speed import COLUMNS, ingest_all
from sized_plan import sized_plan
from tachograph.annexes.lab.simulate.cluster import simulate
from tachograph.catalog import config
from tachograph.catalog.tables import ANALYSES, COMPUTED, GPU_SAMPLES
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.compact import compact
from tachograph.lake.delta import Lake
from tachograph.lake.partitions import partitions, read_partition
from tachograph.pipeline import reduction as runner
from tachograph.pipeline import run
from tachograph.pipeline.accumulators import OpenRuns
from tachograph.pipeline.memory import keep_freed_memory
from tachograph.pipeline.minutes import MinuteWriter

SIZES = (10_000_000, 30_000_000)
GOAL_US = 0.25  # of processor time, a sample
GOAL_REST_US = 0.15  # of that without judging
GOAL_JUDGE_MS = 0.3  # of processor time, a job
GOAL_RATIO = 2.5  # decode and reduce over decode
MEDIAN_HOURS = 4.5  # of a job, as in Plan.month: 40 jobs a million samples
PHASES: tuple[tuple[str, Any, str], ...] = (
    ("decode", runner, "read_places"),
    ("reduce", runner, "reduce_partition"),
    ("minutes", runner, "write_minutes"),
    ("merge", OpenRuns, "take"),
    ("summarize", run, "summarize"),
    ("findings", JobJudge, "__call__"),
    ("write", MinuteWriter, "end_day"),
    ("write", MinuteWriter, "close"),
    ("write", Lake, "append"),
)


class Result:
    """What a task returned."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def result(self) -> Any:
        """Return it."""
        return self.value


class InTurn:
    """A pool that runs each task when it is submitted, so that nothing else takes processor time
    meanwhile.
    """

    width = 1
    has_processes = False

    def share(self, value: Any) -> Any:
        """Return the value."""
        return value

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Result:
        """Run the task."""
        return Result(function(*arguments))


class Meter:
    """Processor and wall time of phases, whose functions it replaces."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {name: [0.0, 0.0] for name, _, _ in PHASES}
        for name, owner, function in PHASES:
            setattr(owner, function, self._timed(name, getattr(owner, function)))

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            cpu, wall = time.process_time(), time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                self.spent[name][0] += time.process_time() - cpu
                self.spent[name][1] += time.perf_counter() - wall

        return timed


def fill(samples: int, folder: Path) -> None:
    """Make a lake of simulated samples in `folder`."""
    plan = replace(sized_plan(samples), median_hours=MEDIAN_HOURS)
    cluster = simulate(plan, folder / "cluster")
    shutil.copy(cluster.configuration, folder / "tachograph.toml")
    (folder / "end").write_text(cluster.plan.end.isoformat())
    lake = Lake.create(str(folder / "lake"))
    ingest_all(lake, cluster, config.load(str(cluster.configuration), {}))
    compact(lake, [GPU_SAMPLES])
    shutil.rmtree(folder / "cluster")


def measure(folder: Path, threads: int) -> dict[str, Any]:
    """Return what analyzing the lake in `folder` costs."""
    lake = Lake.open(str(folder / "lake"))
    configuration = config.load(str(folder / "tachograph.toml"), {})
    now = datetime.fromisoformat((folder / "end").read_text())

    def all_of_it(**how: Any) -> tuple[float, float, run.AnalysisReport]:
        for name in (*COMPUTED, ANALYSES.name):
            shutil.rmtree(folder / "lake" / name, ignore_errors=True)
        cpu, wall = time.process_time(), time.perf_counter()
        report = run.analyze(lake, configuration, judge=JobJudge, now=now, full=True, **how)
        return time.process_time() - cpu, time.perf_counter() - wall, report

    cpu, wall, report = all_of_it(threads=threads)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    meter = Meter()
    cpu_in_turn, wall_in_turn, _ = all_of_it(pool=InTurn())
    phases = {name: [round(value, 2) for value in spent] for name, spent in meter.spent.items()}
    phases["rest"] = [
        round(whole - sum(spent[place] for spent in meter.spent.values()), 2)
        for place, whole in enumerate((cpu_in_turn, wall_in_turn))
    ]
    decode = _decode(lake)
    reduced = sum(meter.spent[name][0] for name in ("decode", "reduce"))
    return {
        "samples": report.samples,
        "days": len(lake.days(GPU_SAMPLES)),
        "jobs": report.jobs,
        "cpu_s": round(cpu, 2),
        "wall_s": round(wall, 2),
        "cpu_in_turn_s": round(cpu_in_turn, 2),
        "cpu_us_per_sample": round(cpu_in_turn / report.samples * 1e6, 3),
        "phases_cpu_wall_s": phases,
        "decode_alone_cpu_s": round(decode, 2),
        "decode_and_reduce_over_decode": round(reduced / decode, 2),
        "all_over_decode": round(cpu_in_turn / decode, 2),
        "peak_memory_mib": round(peak),
        "one_more_day_over_all": round(
            _one_more_day(folder, lake, configuration, now) / cpu_in_turn, 3
        ),
    }


def _decode(lake: Lake) -> float:
    cpu = time.process_time()
    for part in partitions(lake, GPU_SAMPLES):
        read_partition(lake, GPU_SAMPLES, part, COLUMNS)
    return time.process_time() - cpu


def _one_more_day(
    folder: Path, lake: Lake, configuration: config.Configuration, now: datetime
) -> float:
    """Processor time of an analysis after a day was added to all the days before it."""
    last = lake.days(GPU_SAMPLES)[-1]
    rows = lake.scan(GPU_SAMPLES, [last]).drop("seq").collect()
    shutil.copytree(folder / "lake", folder / "grown", copy_function=os.link)
    grown = Lake.open(str(folder / "grown"))
    grown.replace(GPU_SAMPLES, grown.files(GPU_SAMPLES, [last]), [])
    run.analyze(grown, configuration, judge=JobJudge, now=now, full=True, pool=InTurn())
    grown.append(GPU_SAMPLES, rows, app_id="one more day")
    del rows
    cpu = time.process_time()
    run.analyze(grown, configuration, judge=JobJudge, now=now, pool=InTurn())
    spent = time.process_time() - cpu
    shutil.rmtree(folder / "grown")
    return spent


def main() -> int:
    """Print the numbers; 1 when a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument(
        "--keep",
        type=Path,
        help="folder in which the lakes are kept, and taken from if they are there",
    )
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.threads)))
        return 0
    keep_freed_memory()  # of the processes that measure, as of the command
    sizes = []
    with tempfile.TemporaryDirectory() as scratch:
        for samples in sorted(options.samples):
            folder = (options.keep or Path(scratch)) / str(samples)
            if not (folder / "end").exists():
                folder.mkdir(parents=True)
                fill(samples, folder)
            again = [
                sys.executable,
                __file__,
                "--measure",
                str(folder),
                "--threads",
                str(options.threads),
            ]
            done = subprocess.run(again, check=True, stdout=subprocess.PIPE, text=True)
            sizes.append(json.loads(done.stdout))
            if options.keep is None:
                shutil.rmtree(folder)
    least, most = sizes[0], sizes[-1]
    if len(sizes) == 1:
        least = {
            **most,
            "samples": 0,
            "jobs": 0,
            "cpu_in_turn_s": 0.0,
            "phases_cpu_wall_s": {"findings": (0.0, 0.0)},
        }
    more, jobs = most["samples"] - least["samples"], most["jobs"] - least["jobs"]
    spent = most["cpu_in_turn_s"] - least["cpu_in_turn_s"]
    judging = most["phases_cpu_wall_s"]["findings"][0] - least["phases_cpu_wall_s"]["findings"][0]
    marginal = spent / more * 1e6
    reached = marginal <= GOAL_US and most["decode_and_reduce_over_decode"] <= GOAL_RATIO
    measured = {
        "benchmark": "analyze_scale",
        "marginal_cpu_us_per_sample": round(marginal, 3),
        "goal_us": GOAL_US,
        "marginal_without_judging_us_per_sample": round((spent - judging) / more * 1e6, 3),
        "goal_without_judging_us": GOAL_REST_US,
        "marginal_judging_ms_per_job": round(judging / jobs * 1e3, 3),
        "goal_judging_ms": GOAL_JUDGE_MS,
        "goal_ratio": GOAL_RATIO,
        "threads": options.threads,
        "sizes": sizes,
        "reached": reached,
    }
    print(json.dumps(measured))
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
