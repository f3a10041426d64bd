"""Ground truth of a simulated cluster: sums per GPU, planted problems, job classes.

Sums are of the samples before defects; `defects` counts those that affect a job. Job classes follow
from the GPUs' design, before noise, samples and defects. Definitions: Matveev, Setyaev, Voevodin
(Num. Meth. Prog. 26(4), 2025). In a hang interval no GPU of the job works. The classes of idle
nodes and GPUs require that the busiest does at least twice the work of the idlest. If a design is
so near a threshold that sample noise decides, the truth is null.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import polars as pl

from tachograph.annexes.lab.simulate.behaviours import JOB_KINDS, ActivityLevel, ActivityPhase
from tachograph.annexes.lab.simulate.plan import SimulationPlan
from tachograph.annexes.lab.simulate.samples import (
    COLUMN,
    F64,
    SUMMED,
    Array,
    Occupancy,
    Segments,
)
from tachograph.annexes.lab.simulate.workload import SimulatedRequest, SimulatedRun
from tachograph.catalog.tables import TIME

_PERCENT = {"gpu_util": 0.01}
_COUNTED = {"allocation": pl.Int64(), "samples": pl.Int64()}
_HELD = {
    "allocation": pl.Int64(),
    "run": pl.Int64(),
    "job_id": pl.String(),
    "node": pl.String(),
    "gpu": pl.Int16(),
    "start": pl.Int64(),
    "end": pl.Int64(),
}


def segment_sums(segments: Segments, out: Mapping[str, Array]) -> pl.DataFrame:
    """Return a row per segment of a node and day in which a job held the GPU, in producer's units.

    Columns: allocation, samples, sums of SUMMED, <counter>_max, first and last energy (J), as far
    as they are measured.
    """
    first, count = segments.first, segments.count
    columns: dict[str, Array] = {"allocation": segments.allocation, "samples": count}
    for name in SUMMED:
        if name in out:
            columns[name] = np.add.reduceat(out[name], first, dtype=np.float64)
    for name in ("gpu_util", "hbm_used_mib"):
        if name in out:
            columns[f"{name}_max"] = np.maximum.reduceat(out[name], first).astype(np.float64)
    if "energy_j" in out:
        columns["energy_first"] = out["energy_j"][first].astype(np.float64) / 1e3
        columns["energy_last"] = out["energy_j"][first + count - 1].astype(np.float64) / 1e3
    return pl.DataFrame(columns).filter(pl.col("allocation") >= 0)


def gpus_frame(
    plan: SimulationPlan, held: Occupancy, sums: Sequence[pl.DataFrame], defects: pl.DataFrame
) -> pl.DataFrame:
    """Return one row per (run, node, gpu): means before defects; null without samples.

    `sums`: of `segment_sums`, in order of days. Columns: run, job_id, node, gpu, start, end,
    samples, <counter>_mean, gpu_util_max (fraction), hbm_used_mib_max, energy_counter_j (last minus
    first sample), defects.
    """
    names = [node.name for node in plan.nodes()]
    rows = [
        (
            *(number, row.run, str(raw_id(held.runs[row.run].request)), names[row.node], row.gpu),
            *(row.start_s, min(row.end_s, plan.seconds)),
        )
        for number, row in enumerate(held.allocations)
    ]
    counted = pl.concat([pl.DataFrame(schema=_COUNTED), *sums], how="diagonal")
    means = [name for name in SUMMED if name in counted.columns]
    of_rows = counted.group_by("allocation").agg(
        pl.col("samples").sum(),
        *(_mean(name).alias(f"{name}_mean") for name in means),
        pl.col("^gpu_util_max$").max() / 100,
        pl.col("^hbm_used_mib_max$").max(),
        pl.col("^energy_last$").last().alias("energy_counter_j") - pl.col("^energy_first$").first(),
    )
    frame = pl.DataFrame(rows, schema=_HELD, orient="row")
    frame = frame.join(of_rows, on="allocation", how="left", maintain_order="left")
    frame = frame.drop("allocation").with_columns(
        pl.col("samples").fill_null(0),
        *(_as_time(plan, pl.col(name)).cast(TIME).alias(name) for name in ("start", "end")),
    )
    return frame.with_columns(defects=_touching(frame, defects))


def _mean(name: str) -> pl.Expr:
    """Return the mean over the samples in which a counter was measured."""
    samples = pl.col("samples").filter(pl.col(name).is_not_null()).sum()
    return (pl.col(name).sum() * _PERCENT.get(name, 1.0) / samples).fill_nan(None)


def jobs_frame(
    plan: SimulationPlan, runs: Sequence[SimulatedRun], gpus: pl.DataFrame
) -> pl.DataFrame:
    """Return one row per run in order of submission; null start: never started.

    `problem` is the finding that was planted, null when nothing is wrong; `planted_start`,
    `planted_end` its interval. `attribution`: explicit, whole_node, ambiguous; null without GPUs.
    `end` null: still running or never started. `expected_gpu_util`: mean of the design;
    `<counter>_mean`: mean over GPUs of the mean over their samples.
    """
    names = [node.name for node in plan.nodes()]
    rows = [_row(plan, number, run, names) for number, run in enumerate(runs)]
    frame = pl.DataFrame(rows, infer_schema_length=None)
    seconds = ("submit", "start", "end", "planted_start", "planted_end")
    frame = frame.with_columns(_as_time(plan, pl.col(name)).alias(name) for name in seconds)
    means = [name for name in gpus.columns if name.endswith("_mean")]
    summed = gpus.group_by("run").agg(
        pl.col("samples").sum(),
        pl.col(means).mean(),
        pl.col("gpu_util_max", "hbm_used_mib_max").max(),
        pl.col("^energy_counter_j$").sum(),  # where it is recorded
        gpus_never_used=(pl.col("gpu_util_max") == 0).sum(),
        defects=pl.col("defects").sum(),
    )
    return frame.join(summed, on="run", how="left", maintain_order="left")


def raw_id(request: SimulatedRequest) -> int:
    """Return Slurm's raw id; in a heterogeneous job the first id is of the part without GPUs."""
    return request.job_id + int(request.het)


def display_id(request: SimulatedRequest) -> str:
    """Return the id as Slurm displays it."""
    if request.array:
        return f"{request.array[0]}_{request.array[1]}"
    return f"{request.job_id}+1" if request.het else str(request.job_id)


def state_of(plan: SimulationPlan, run: SimulatedRun) -> str:
    """Return the state as of the plan's end."""
    if run.start_s is not None and (run.end_s or 0) > plan.seconds:
        return "RUNNING"
    if run.start_s is None and run.end_s is not None and run.end_s > plan.seconds:
        return "PENDING"
    return run.state


def _row(
    plan: SimulationPlan, number: int, run: SimulatedRun, names: Sequence[str]
) -> dict[str, object]:
    request, start = run.request, run.start_s
    facts = JOB_KINDS[request.kind]
    state = state_of(plan, run)
    group = plan.groups[request.group] if run.gpus else None
    return {
        "run": number,
        "job_id": str(raw_id(request)),
        "display_id": display_id(request),
        "submit": run.submit_s,
        "start": start,
        "end": None if state in ("RUNNING", "PENDING") else run.end_s,
        "state": state,
        "user": user_name(request),
        "account": request.account,
        "kind": request.kind.value,
        "problem": facts.problem if run.gpus and start is not None else None,
        "planted_start": _planted(plan, run, 0),
        "planted_end": _planted(plan, run, 1),
        "attribution": _attribution(run),
        "nodes": [names[node] for node, _ in run.places],
        "gpus": run.gpus,
        "model": group.driver.name if group else None,
        "expected_gpu_util": _expected(plan, run),
    }


def user_name(request: SimulatedRequest) -> str:
    """Return the user's name."""
    return f"user{request.user:03d}"


def _planted(plan: SimulationPlan, run: SimulatedRun, which: int) -> int | None:
    """Return start or end of the planted interval within the recorded time."""
    if run.behaviour is None or run.start_s is None or JOB_KINDS[run.request.kind].problem is None:
        return None
    interval = run.behaviour.planted or (0, (run.end_s or 0) - run.start_s)
    return min(run.start_s + interval[which], plan.seconds)


def _attribution(run: SimulatedRun) -> str | None:
    if not run.gpus:
        return None
    if run.request.nodes:
        return "whole_node"
    return "explicit" if run.mapped and not run.has_company else "ambiguous"


def _expected(plan: SimulationPlan, run: SimulatedRun) -> float | None:
    """Mean utilisation by design over all GPUs and the recorded run time."""
    if run.behaviour is None or run.start_s is None or run.end_s is None or not run.gpus:
        return None
    lines = [run.behaviour.phases(slot) for slot in range(run.gpus)]
    return mean_util(lines, min(run.end_s, plan.seconds) - run.start_s)


def _touching(gpus: pl.DataFrame, defects: pl.DataFrame) -> pl.Series:
    """Defects that affect the samples of each allocation; globally absent counters do not count."""
    real = defects.filter(pl.col("kind") != "missing_counter")
    rows = gpus.select("node", "gpu", "start", "end").with_row_index("row")
    pairs = rows.join(
        real.select("node", "start", "end", "gpu", "value"), on="node", suffix="_defect"
    )
    skew = pl.duration(
        seconds=pl.col("value").abs().fill_nan(0).fill_null(0).clip(0, 120)
    ) + pl.duration(minutes=2)
    same_gpu = pl.col("gpu_defect").is_null() | (pl.col("gpu_defect") == pl.col("gpu"))
    meets = (pl.col("start") <= pl.col("end_defect") + skew) & (
        pl.col("end") >= pl.col("start_defect") - skew
    )
    counted = pairs.filter(same_gpu & meets).group_by("row").len()
    return (
        rows.join(counted, on="row", how="left", maintain_order="left")["len"]
        .fill_null(0)
        .cast(pl.Int64)
    )


def _as_time(plan: SimulationPlan, seconds: pl.Expr) -> pl.Expr:
    micro = (seconds.cast(pl.Int64) + plan.start_s) * 1_000_000
    return micro.cast(pl.Datetime("us")).dt.replace_time_zone("UTC")


HANG_S = 3600  # T: an interval as long as this, or longer
# Work before a hang. As published more than T: flat counters of a host are no sign that nothing is
# done. Idle GPUs are, so for them a few minutes suffice.
BEFORE_S, BEFORE_HOST_S = 600, HANG_S
# Windows that are not flat reach so far beyond the work: nearer to T than this is too near to call.
WINDOW_S = 1200
TWICE = 2.0  # the busiest over the idlest
# Stable: R within 0.1 for 95 % of the time, its mean at most 0.05.
WITHIN, SHARE, MEAN = 0.1, 0.95, 0.05
MARGIN = 0.3  # of 1 - SHARE and of MEAN: nearer to the bound than this is too near to call
RATIO_MARGIN = 0.03  # of TWICE, likewise
CLASSES = ("job_hang", "job_hang_host", "cold_start", "stall", "idle_nodes", "idle_gpus", "stable")
CLASSES_FILE = "classes.parquet"  # in the folder of the truth
_STEP_S = 10  # of the design, in which periods are seen
CLASS_TRUTH_SCHEMA = {
    "job_id": pl.String(),
    "display_id": pl.String(),
    "submit_s": pl.Int64(),
    "user": pl.String(),
    "scenario": pl.String(),
    "known": pl.Boolean(),
    **dict.fromkeys(CLASSES, pl.Boolean()),
    "rest_begin_s": pl.Int64(),
    "rest_end_s": pl.Int64(),
}


def classes_frame(plan: SimulationPlan, runs: Sequence[SimulatedRun]) -> pl.DataFrame:
    """Return one row per ended run with a course: its true classes; null: too near to call.

    `submit_s`: seconds since 1970. `known`: its GPUs are recorded. `rest_begin_s`, `rest_end_s`:
    the longest interval without work, in seconds after its start; null: none.
    """
    rows = filter(None, (_class_row(plan, run) for run in runs))
    return pl.DataFrame(list(rows), schema=CLASS_TRUTH_SCHEMA)


def _class_row(plan: SimulationPlan, run: SimulatedRun) -> dict[str, Any] | None:
    """The row of a run; None unless it ran to its end and follows a course."""
    request = run.request
    if request.course is None or run.behaviour is None or run.start_s is None:
        return None
    if state_of(plan, run) == "RUNNING":
        return None
    elapsed_s = (run.end_s or 0) - run.start_s
    lines = [run.behaviour.phases(slot) for slot in range(run.gpus)]
    rests = rest_intervals(lines, elapsed_s)
    per_node = [len(gpus) for _, gpus in run.places]
    work = np.array([mean_util([line], elapsed_s) for line in lines])
    nodes = np.array([part.mean() for part in np.split(work, np.cumsum(per_node)[:-1])])
    begin, end = max(rests, key=lambda rest: rest[1] - rest[0], default=(None, None))
    return {
        "job_id": str(raw_id(request)),
        "display_id": display_id(request),
        "submit_s": plan.start_s + run.submit_s,
        "user": user_name(request),
        "scenario": request.course.scenario,
        "known": request.nodes > 0 or run.mapped,
        **hanging(rests, elapsed_s),
        "idle_nodes": is_uneven(nodes),
        "idle_gpus": is_uneven(work),
        "stable": is_stable(lines, elapsed_s, plan.interval_s),
        "rest_begin_s": begin,
        "rest_end_s": end,
    }


def rests(level: ActivityLevel) -> bool:
    """Return whether a GPU at this level does no work, also when busy-waiting.

    >>> rests(ActivityLevel(util=1.0, sm=0.008)), rests(ActivityLevel(util=0.05, sm=0.02, dram=0.01))
    (True, False)
    """
    return level.dram < 1e-4 and not any(
        (level.fp64, level.fp32, level.fp16, level.hmma, level.imma, level.dfma)
    )


def rest_intervals(
    lines: Sequence[Sequence[ActivityPhase]], elapsed_s: int
) -> list[tuple[int, int]]:
    """Return [begin, end) in seconds after the start of intervals without any GPU at work.

    >>> rest_intervals([[ActivityPhase(0, ActivityLevel(dram=0.5)), ActivityPhase(60, ActivityLevel())]], 100)
    [(60, 100)]
    """
    phases = chain.from_iterable(lines)
    edges = sorted({phase.begin_s for phase in phases if phase.begin_s < elapsed_s})
    intervals: list[tuple[int, int]] = []
    for begin, end in zip(edges, [*edges[1:], elapsed_s], strict=True):
        if all(rests(_at(line, begin)) for line in lines):
            if intervals and intervals[-1][1] == begin:
                begin, _ = intervals.pop()  # one interval with the one before
            intervals.append((begin, end))
    return intervals


def _at(line: Sequence[ActivityPhase], second: int) -> ActivityLevel:
    return next(phase.level for phase in reversed(line) if phase.begin_s <= second)


def hanging(rests: Sequence[tuple[int, int]], elapsed_s: int) -> dict[str, bool | None]:
    """Return the true hang classes: idle intervals of T or more, by the work around them.

    >>> hanging([(1800, 9000)], 9000)
    {'job_hang': True, 'job_hang_host': False, 'cold_start': False, 'stall': False}
    """
    long = [(begin, end) for begin, end in rests if end - begin >= HANG_S]
    ends = [0, *(end for _, end in long)]
    before = [begin - end for (begin, _), end in zip(long, ends, strict=False)]
    last = [work for (_, end), work in zip(long, before, strict=True) if end == elapsed_s]
    return {
        "job_hang": any(work >= BEFORE_S for work in last),
        "job_hang_host": _after_enough(last),
        "cold_start": any(begin == 0 and end < elapsed_s for begin, end in long),
        "stall": any(begin > 0 and end < elapsed_s for begin, end in long),
    }


def _after_enough(last: Sequence[int]) -> bool | None:
    """Whether a late interval follows more than T of work; None if too near to call."""
    if any(work > BEFORE_HOST_S for work in last):
        return True
    return None if any(work > BEFORE_HOST_S - WINDOW_S for work in last) else False


def mean_util(lines: Sequence[Sequence[ActivityPhase]], elapsed_s: int) -> float:
    """Return the mean utilisation of some GPUs by design, over all of the run."""
    total = 0.0
    for line in lines:
        ends = [*(phase.begin_s for phase in line[1:]), elapsed_s]
        for phase, end in zip(line, ends, strict=True):
            seconds = max(0, min(end, elapsed_s) - phase.begin_s)
            total += phase.level.util * phase.level.mean_factor * seconds
    return total / max(1, elapsed_s) / len(lines)


def is_uneven(work: F64) -> bool | None:
    """Return whether the busiest GPU does at least twice the idlest's work; None: too near to call.

    >>> is_uneven(np.array([0.8, 0.3])), is_uneven(np.array([0.8, 0.5])), is_uneven(np.zeros(2))
    (True, False, False)
    >>> is_uneven(np.array([0.8, 0.401]))
    """
    if len(work) < 2 or work.max() == 0:
        return False
    bound = TWICE * work.min()
    return (
        None
        if bound > 0 and abs(work.max() / bound - 1) < RATIO_MARGIN
        else bool(work.max() >= bound)
    )


def is_stable(
    lines: Sequence[Sequence[ActivityPhase]], elapsed_s: int, interval_s: int
) -> bool | None:
    """Return whether the mean over GPUs stays near its own mean, minute by minute.

    None if it is too near to call.

    Evaluated on utilisation and on SM activity: busy-waiting shows in one only. Samples fall evenly
    between nothing and `noise` below their level: the share of minutes that it takes beyond the
    bound, and the mean distance, are expected values.
    """
    alike = Counter(map(tuple, lines))
    minutes = [_by_minute(line, elapsed_s) for line in alike]
    noise = np.array([levels["noise"] for levels in minutes])
    weights = np.array(list(alike.values()))[:, None]
    answers = list[bool | None]()
    for name in ("util", "sm"):
        level = np.array([levels[name] for levels in minutes])
        variance = (level * noise) ** 2 / 12
        mean, of_mean = (
            (level * weights).sum(0) / len(lines),
            (variance * weights).sum(0) / len(lines) ** 2,
        )
        answers.append(_keeps_to_its_mean(mean, of_mean, samples=60 / interval_s))
    if False in answers:
        return False
    return None if None in answers else True


def _keeps_to_its_mean(level: F64, variance: F64, *, samples: float) -> bool | None:
    """Return whether the mean stays near itself, by `level` and the variance per sample."""
    mean = level.mean() if level.size else 0.0
    if mean == 0:
        return True
    off, sigma = level / mean - 1, np.maximum(np.sqrt(variance / samples) / mean, 1e-9)
    beyond = 1 - _normal((WITHIN - off) / sigma) + _normal((-WITHIN - off) / sigma)
    density = np.exp(-((off / sigma) ** 2) / 2) * np.sqrt(2 / np.pi)
    distance = sigma * density + off * (1 - 2 * _normal(-off / sigma))
    worst = max(float(beyond.mean()) / (1 - SHARE), float(distance.mean()) / MEAN)
    return None if abs(worst - 1) < MARGIN else worst < 1


def _by_minute(line: Sequence[ActivityPhase], elapsed_s: int) -> dict[str, F64]:
    """Designed utilisation and SM activity by whole minute, and the samples' drop below full."""
    at = np.arange(0, elapsed_s // 60 * 60, _STEP_S)
    number = np.searchsorted([phase.begin_s for phase in line], at, "right") - 1
    table = np.array([[*phase.level, phase.level.period_s or 1.0] for phase in line])[number]
    works = at % table[:, -1] < table[:, COLUMN["duty"]] * table[:, -1]
    fall = 1 - table[:, COLUMN["noise"]] / 2
    columns = {name: table[:, COLUMN[name]] * fall * works for name in ("util", "sm")}
    columns["noise"] = table[:, COLUMN["noise"]] / fall
    return {name: values.reshape(-1, 60 // _STEP_S).mean(1) for name, values in columns.items()}


def _normal(values: F64) -> F64:
    """Normal distribution function."""
    return np.array([(1 + math.erf(value / math.sqrt(2))) / 2 for value in values])
