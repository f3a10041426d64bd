"""Made-up jobs for the ledger, and the ledger once more: one GPU and one minute at a time, in
plain Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import polars as pl

from jobframes import START, frame, summary
from tachograph.catalog.tables import IN_USE, JOB_GPUS, JOB_MINUTES, JOB_SUMMARIES, WASTE
from tachograph.judge import waste
from tachograph.judge.finding import Finding, findings_frame
from tachograph.pipeline.timelines import timelines_of

IDLE_UTIL = 0.01
UNEVEN = ("imbalanced_gpus", "load_imbalance_waste")
PIPES = ("fp64_active", "fp32_active", "fp16_active", "tensor_active", "dram_active")
# columns of findings with an interval that the ledger reads
INTERVALS = {
    **dict.fromkeys(("job_key", "code", "verdict", "confidence", "covered_by"), pl.String()),
    **dict.fromkeys(("begin", "end"), pl.Datetime("us", "UTC")),
}
Interval = tuple[float, float]  # minutes since the job's start


@dataclass(frozen=True)
class Case:
    """A job: for each GPU and minute its activity (None: not measured), power, further counters.

    uneven: the code of the check of imbalance that holds.
    """

    activity: Sequence[Sequence[float | None]]
    power: Sequence[Sequence[float | None]]
    elapsed_s: float
    hung: Interval | None = None
    cold: Interval | None = None
    stall: Interval | None = None
    never: frozenset[int] = frozenset()
    number: int = 1
    uneven: str | None = None
    counters: Mapping[str, Sequence[Sequence[float | None]]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"c:{self.number}:1"


def found(case: Case) -> list[Finding]:
    """What classes say of the job; also what the ledger must not look at."""
    told = [
        Finding(
            "job_hang",
            "problem",
            "t",
            "s",
            confidence="low",
            begin=START,
            end=START + timedelta(hours=9),
        )
    ]
    for code, interval in (
        ("job_hang", case.hung),
        ("stall", case.stall),
        ("cold_start", case.cold),
    ):
        begin, end = (START + timedelta(minutes=minute) for minute in interval or (0, 900))
        verdict: Any = "no" if interval is None else "yes"
        told.append(Finding(code, "problem", "t", "s", verdict=verdict, begin=begin, end=end))
    for code in UNEVEN:
        verdict = "yes" if case.uneven == code else "no"
        told.append(Finding(code, "hint", "t", "s", verdict=verdict, covered_by="idle_job"))
    return told


def judged(
    *cases: Case, idle_minutes: float = 30, also: Sequence[Finding] = (), **job: Any
) -> list[dict[str, Any]]:
    """The rows of job_summaries of some jobs, judged together, with findings of all of them."""
    jobs, gpus, minutes = [], [], []
    for case in cases:
        who = {"job_key": case.key, "job_id": str(case.number)}
        given = {"gpus": len(case.activity), "elapsed_s": case.elapsed_s, "energy_j": 1e12} | job
        jobs.append(summary(**who, **given))
        for gpu, levels in enumerate(case.activity):
            unit = who | {"node": "n1", "gpu": gpu}
            known = [level for level in levels if level is not None]
            most = max(known, default=None)
            if most is not None and gpu not in case.never:
                most = 1.0  # of samples, not of minutes
            gpus.append(unit | {"gpu_util_max": most})
            minutes += [
                unit
                | {"minute": minute, "t": START, "samples": 6, "gpu_util": level, "power_w": watts}
                | {name: values[gpu][minute] for name, values in case.counters.items()}
                for minute, (level, watts) in enumerate(zip(levels, case.power[gpu], strict=True))
                if level is not None
            ]
    summaries = frame(JOB_SUMMARIES, jobs)
    return list(
        waste.judge_waste(
            summaries,
            frame(JOB_GPUS, gpus),
            timelines_of(frame(JOB_MINUTES, minutes), idle_util=IDLE_UTIL),
            findings_frame(
                (row, [*found(case), *also]) for row, case in zip(jobs, cases, strict=True)
            ),
            uneven=UNEVEN,
            idle_util=IDLE_UTIL,
            idle_minutes=idle_minutes,
        ).iter_rows(named=True)
    )


def inside(minute: int, interval: Interval | None, elapsed_s: float) -> float:
    """Seconds of a minute that lie in an interval."""
    if interval is None:
        return 0.0
    begin, end = (
        max(60.0 * minute, 60 * interval[0]),
        min(60.0 * minute + 60, 60 * interval[1], elapsed_s),
    )
    return max(0.0, end - begin)


def works(case: Case, minute: int) -> bool:
    """Whether a counter shows work in a minute: arithmetic, memory traffic, or many SMs."""
    rows = []
    for gpu, levels in enumerate(case.activity):
        if levels[minute] is not None:
            rows.append({name: values[gpu][minute] for name, values in case.counters.items()})
    for row in rows:
        known = [value for name in PIPES if (value := row.get(name)) is not None]
        complete = row.get("tensor_active") is not None and row.get("dram_active") is not None
        if complete and max(known) >= 0.02:
            return True
        if (row.get("sm_active") or 0.0) >= 0.4:
            return True
    for name in ("tensor_active", "dram_active"):
        known = [value for row in rows if (value := row.get(name)) is not None]
        if known and sum(known) / len(known) >= 0.02:
            return True
    return False


def by_hand(case: Case, idle_minutes: float = 30) -> Mapping[str, float]:
    """GPU-seconds and J by cause, in use, and measured: each GPU and minute by itself."""
    total = dict.fromkeys((*WASTE, *IN_USE, "idle_long", "measured"), 0.0)
    total |= {f"energy_{cause}": 0.0 for cause in WASTE if cause != "imbalance"}
    quiet_for = 0
    for minute in range(len(case.activity[0])):
        seconds = max(0.0, min(60.0, case.elapsed_s - 60 * minute))
        hung = inside(minute, case.hung, case.elapsed_s) + inside(
            minute, case.stall, case.elapsed_s
        )
        cold = min(inside(minute, case.cold, case.elapsed_s), seconds - hung)
        rest = seconds - hung - cold
        here = {gpu: levels[minute] for gpu, levels in enumerate(case.activity)}
        known = {gpu: level for gpu, level in here.items() if level is not None}
        used = {gpu: level for gpu, level in known.items() if gpu not in case.never}
        most = max(used.values(), default=0.0)
        quiet = bool(used) and most < IDLE_UTIL
        for gpu, level in known.items():
            watts = case.power[gpu][minute] or 0.0
            total["measured"] += seconds
            if gpu in case.never:
                total["never_used"] += seconds
                total["energy_never_used"] += watts * seconds
                continue
            total["hung"] += hung
            total["cold_start"] += cold
            total["energy_hung"] += watts * hung
            total["energy_cold_start"] += watts * cold
            if level < IDLE_UTIL:
                total["idle"] += rest
                total["energy_idle"] += watts * rest
                total["idle_long"] += rest if quiet and quiet_for >= idle_minutes else 0.0
            else:
                lag = rest * (1 - level / most) if case.uneven else 0.0
                total["imbalance"] += lag
                total["in_use" if works(case, minute) else "in_use_unknown"] += rest - lag
        quiet_for = quiet_for + 1 if quiet else 0
    return total


def columns(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of job_summaries as a frame."""
    return frame(JOB_SUMMARIES, [dict(row) for row in rows])
