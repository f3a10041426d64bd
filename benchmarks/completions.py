"""Prints what judging a job costs, and jobs measured in part beside jobs measured whole.

The largest batch of jobs of a lake is judged in one process as it was recorded. Those that are over
are judged as if all samples were there, with a tenth missing here and there, and with a tenth of
the minutes missing in one piece. Times are the least of some rounds, those of the processor, with
one thread of Polars; the lake is analyzed in a copy, which is not timed.
"""

from __future__ import annotations

import os

os.environ["POLARS_MAX_THREADS"] = "1"  # read when Polars is imported

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from tachograph.catalog import config
from tachograph.judge.job_judge import JobJudge
from tachograph.lake.delta import Lake
from tachograph.pipeline.run import analyze
from tachograph.pipeline.summaries import JobTables

GOAL_RATIO = 8.0
GOAL_MS = 0.3  # a job, as recorded
KEPT = 0.9  # of the samples


class RecordingJudge(JobJudge):
    """A judge that keeps what it is given: the call with most jobs."""

    given: JobTables | None = None

    def __call__(self, tables: JobTables) -> JobTables:
        """Keep the tables, and judge."""
        kept = RecordingJudge.given
        if kept is None or tables.jobs.height > kept.jobs.height:
            RecordingJudge.given = tables
        return super().__call__(tables)


def with_samples(tables: JobTables, share: float) -> JobTables:
    """Return the jobs that are over, as if they had this share of their samples."""
    over = pl.col("state").is_in(["COMPLETED", "FAILED", "TIMEOUT"]) & (pl.col("samples") > 0)
    jobs = tables.jobs.filter(over).with_columns(coverage=pl.lit(share))
    expected = (pl.col("elapsed_s") / pl.col("interval_s") * share).floor().cast(pl.Int64)
    gpus = tables.gpus.drop("samples").join(
        jobs.select("job_key", samples=expected), on="job_key", maintain_order="left"
    )
    timelines = tables.timelines.join(jobs, on="job_key", how="semi", maintain_order="left")
    return replace(tables, jobs=jobs, gpus=gpus.select(tables.gpus.columns), timelines=timelines)


def with_hole(tables: JobTables) -> JobTables:
    """Return jobs without the fifth tenth of their minutes."""
    place = pl.int_range(pl.len()).over("job_key") * 10 // pl.len().over("job_key")
    return replace(tables, timelines=tables.timelines.filter(place != 4))


def main() -> int:
    """Print the times and ratios; 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", help="a folder with lake/ and tachograph.toml; else made")
    parser.add_argument("--as-of", default="2025-03-05")
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "tachograph-demo"
        if options.demo:
            shutil.copytree(options.demo, folder)
        else:
            command = [sys.executable, "-m", "tachograph", "demo"]
            subprocess.run(command, cwd=name, stdout=subprocess.DEVNULL, check=True)
        settings = config.load(str(folder / "tachograph.toml"))
        now = datetime.fromisoformat(options.as_of).replace(tzinfo=UTC)
        analyze(Lake.open(str(folder / "lake")), settings, judge=RecordingJudge, now=now, full=True)
    tables = RecordingJudge.given
    assert tables is not None
    tables = replace(tables, jobs=tables.jobs.head(options.jobs))
    partial = with_samples(tables, KEPT)
    cases = {
        "recorded": tables,
        "whole": with_samples(tables, 1.0),
        "samples_missing": partial,
        "minutes_missing": with_hole(partial),
    }
    judge = JobJudge(settings)
    judge(cases["whole"])  # compiles
    times = dict.fromkeys(cases, float("inf"))
    for case in options.rounds * tuple(cases):
        begin = time.process_time()
        judge(cases[case])
        times[case] = min(times[case], time.process_time() - begin)
    jobs = {case: tables.jobs.height for case, tables in cases.items()}
    ratios = {case: round(spent / times["whole"], 1) for case, spent in times.items()}
    milliseconds = {case: round(1000 * spent / jobs[case], 2) for case, spent in times.items()}
    print(json.dumps({"jobs": jobs, "ms_per_job": milliseconds, "ratios": ratios}, indent=1))
    return int(ratios["samples_missing"] > GOAL_RATIO or milliseconds["recorded"] > GOAL_MS)


if __name__ == "__main__":
    sys.exit(main())
