"""Prints verdicts on jobs composed of recordings of an H100, with planted hangs, per set of counters.

    python research/composed_hangs.py h100_day/samples --jobs 400 --seed 11

Each minute has the means of a few seconds of a recording in full swing. What hangs shows 100 %
utilisation at 10 to 25 % of the board's power (NCCL deadlocks as published: 70 W of 400 W), or at
up to 38 % of its own power at work. What does not hang has an hour or more of host copies, small
kernels, memory copies or FP64 in it, or never does anything else. Copies at the end that nothing
went before are counted apart, those of jobs that completed, and the same where the time limit came
first: by utilisation and power nothing tells these from a hang.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl

from tachograph.annexes.lab.accuracy import COUNTER_SETS
from tachograph.catalog.config import ClassOptions
from tachograph.catalog.tables import (
    JOB_GPUS,
    JOB_MINUTES,
    JOB_NODE_MINUTES,
    JOB_SUMMARIES,
    MINUTE_MEANS,
)
from tachograph.judge.job_classes import judge_classes
from tachograph.pipeline.timelines import timelines_of

MODEL, BOARD_W = "H100 SXM 80GB", 700.0
START = datetime(2026, 11, 27, tzinfo=UTC)
WORK = ("bf16", "fp64-vector", "device-copy")
PHASES = ("host-copy", "tiny-kernels", "fp64-vector", "device-copy")
HANG, PHASE, SAME, COPY_AT_END = "hangs", "phases", "the same throughout", "ends in a copy"
CUT_OFF = "cut off in a copy"
_SWING = 0.8  # of the highest power: a recording in full swing
Minutes = list[Mapping[str, float]]


class ComposedJobs:
    """Draws jobs, minute by minute, from `samples`: a folder with a recording per workload."""

    def __init__(self, samples: Path, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._rows: dict[str, list[dict[str, float]]] = {}
        for path in sorted(samples.glob("*.parquet")):
            frame = pl.read_parquet(path).filter(
                pl.col("power_w") >= _SWING * pl.col("power_w").max()
            )
            names = [name for name in MINUTE_MEANS if name in frame.columns]
            rows = frame.select(pl.col(names).cast(pl.Float64)).to_dicts()
            self._rows[path.stem] = rows[len(rows) // 4 : -len(rows) // 4]

    def minutes(self, workload: str, length: int) -> Minutes:
        """Return minutes of a workload, each the mean of six samples."""
        rows = self._rows[workload]
        found: Minutes = []
        for _ in range(length):
            drawn = [rows[place] for place in self.rng.integers(0, len(rows), 6)]
            found.append({name: float(np.mean([row[name] for row in drawn])) for name in rows[0]})
        return found

    def hung(self, work: Minutes, length: int) -> Minutes:
        """Return minutes of a collective operation that waits."""
        power_w = BOARD_W * self.rng.uniform(0.10, 0.25)
        if self.rng.random() < 0.25:
            power_w = 0.375 * float(np.median([minute["power_w"] for minute in work]))
        still = dict.fromkeys(work[0], 0.0)
        still |= {
            "gpu_util": 1.0,
            "gr_engine_active": 1.0,
            "sm_active": self.rng.uniform(0.005, 0.2),
        }
        watts = power_w + self.rng.normal(0, 1.5, length)
        return [still | {"power_w": float(value)} for value in watts]

    def job(self) -> tuple[str, Minutes]:
        """Return a job's kind and its minutes."""
        draw = self.rng
        work = self.minutes(str(draw.choice(WORK)), int(draw.integers(45, 240)))
        other = str(draw.choice(PHASES))
        kind = str(draw.choice((HANG, PHASE, SAME, COPY_AT_END), p=(0.3, 0.5, 0.15, 0.05)))
        if kind == HANG:
            return kind, work + self.hung(work, int(draw.integers(65, 240)))
        if kind == SAME:
            return kind, self.minutes(other, int(draw.integers(70, 300)))
        if kind == COPY_AT_END:
            return kind, work + self.minutes("host-copy", int(draw.integers(65, 180)))
        phase = self.minutes(other, int(draw.integers(3, 180)))
        again = self.minutes(str(draw.choice(PHASES[1:])), int(draw.integers(5, 90)))
        return kind, work + phase + work[: int(draw.integers(10, 90))] + again


def with_cut_off(jobs: Sequence[tuple[str, Minutes]]) -> list[tuple[str, Minutes]]:
    """Return the jobs, and those that end in a copy again, cut off by their time limit."""
    again = [(CUT_OFF, minutes) for kind, minutes in jobs if kind == COPY_AT_END]
    return [*jobs, *again]


def judged(jobs: Sequence[tuple[str, Minutes]], counters: Sequence[str] | None) -> pl.DataFrame:
    """Return the findings of job_hang, in the order of the jobs, by what a site records."""
    keys = [f"c:{place:05d}:1" for place in range(len(jobs))]
    summaries = [
        {
            "job_key": key, "job_id": key, "start": START, "samples": 1,
            "state": "TIMEOUT" if kind in (HANG, CUT_OFF) else "COMPLETED",
            "as_of": START + timedelta(minutes=len(minutes)), "elapsed_s": 60.0 * len(minutes),
            "gpus": 1, "nodes": 1, "gpu_model": MODEL, "attribution": "explicit",
        }
        for key, (kind, minutes) in zip(keys, jobs, strict=True)
    ]  # fmt: skip
    rows = [
        {"job_key": key, "minute": minute, "node": "n1", "gpu": 0}
        | {name: value for name, value in levels.items() if counters is None or name in counters}
        for key, (_, minutes) in zip(keys, jobs, strict=True)
        for minute, levels in enumerate(minutes)
    ]
    frame = pl.DataFrame(rows, schema=JOB_MINUTES.schema)
    gpus = frame.group_by("job_key", "node", "gpu", maintain_order=True).agg(
        pl.col(name).mean().alias(f"{name}_mean") for name in MINUTE_MEANS
    )
    found = judge_classes(
        pl.DataFrame(summaries, schema=JOB_SUMMARIES.schema),
        pl.DataFrame(gpus.to_dicts(), schema=JOB_GPUS.schema),
        timelines_of(frame, idle_util=0.01),
        JOB_NODE_MINUTES.empty(),
        ClassOptions(),
    )
    return found.filter(pl.col("code") == "job_hang").sort("job_key")


def main() -> None:
    """Print one line per set of counters and kind of job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", type=Path)
    parser.add_argument("--jobs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=11)
    arguments = parser.parse_args()
    composed = ComposedJobs(arguments.samples, arguments.seed)
    jobs = with_cut_off([composed.job() for _ in range(arguments.jobs)])
    print("counters           jobs                  count   yes (high)    no  unknown")
    for name, counters in COUNTER_SETS.items():
        found = judged(jobs, counters)
        counted: Counter[tuple[str, str]] = Counter()
        for (kind, _), verdict, confidence in zip(
            jobs, found["verdict"], found["confidence"], strict=True
        ):
            counted[kind, verdict] += 1
            counted[kind, confidence or ""] += 1
        for kind in (HANG, PHASE, SAME, COPY_AT_END, CUT_OFF):
            yes, no, unknown = (counted[kind, verdict] for verdict in ("yes", "no", "unknown"))
            print(
                f"{name:18} {kind:20} {yes + no + unknown:6} {yes:5} {counted[kind, 'high']:6}"
                f" {no:5} {unknown:8}"
            )


if __name__ == "__main__":
    main()
