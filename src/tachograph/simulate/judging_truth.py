"""Which job classes are true of simulated jobs, from what their GPUs do by design: before noise, samples, defects.

Definitions: Matveev, Setyaev, Voevodin (Num. Meth. Prog. 26(4), 2025). An interval of hanging is one in which no GPU of
the job works. The classes of idle nodes and GPUs ask for the busiest to do at least twice what the idlest does.
Where the design lies so near a bound that the noise of single samples decides, nothing is true and nothing false: null.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from tachograph.simulate.kinds import Level, Phase
from tachograph.simulate.placement import Run
from tachograph.simulate.plan import Plan
from tachograph.simulate.samples import F64
from tachograph.simulate.truth import display_id, raw_id, state_of, user_name

HANG_S = 3600  # T: an interval as long as this, or longer
# Work before a hang. As published more than T: flat counters of a host are no sign that nothing is done. GPUs at rest
# are, so for them a few minutes suffice.
BEFORE_S, BEFORE_HOST_S = 600, HANG_S
WINDOW_S = 1200  # windows that are not flat reach so far beyond the work: nearer to T than this is too near to call
TWICE = 2.0  # the busiest over the idlest
WITHIN, SHARE, MEAN = 0.1, 0.95, 0.05  # stable: R within 0.1 for 95 % of the time, its mean at most 0.05
MARGIN = 0.3  # of 1 - SHARE and of MEAN: nearer to the bound than this is too near to call
RATIO_MARGIN = 0.03  # of TWICE, likewise
CLASSES = ("job_hang", "job_hang_host", "cold_start", "stall", "idle_nodes", "idle_gpus", "stable")
CLASSES_FILE = "classes.parquet"  # in the folder of the truth
_STEP_S = 10  # of the design, in which periods are seen
_OVER = frozenset({"RUNNING", "PENDING"})
SCHEMA = {
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


def classes_frame(plan: Plan, runs: Sequence[Run]) -> pl.DataFrame:
    """Return one row per run that follows a course and is over: which classes are true of it; null: too near to call.

    `submit_s`: seconds since 1970. `known`: somebody recorded which GPUs it held. `rest_begin_s`, `rest_end_s`: the
    longest interval without work, in seconds after its start; null: none.
    """
    return pl.DataFrame([_row(plan, run) for run in runs if _is_over(plan, run)], schema=SCHEMA, orient="row")


def _is_over(plan: Plan, run: Run) -> bool:
    return run.request.course is not None and run.start_s is not None and state_of(plan, run) not in _OVER


def _row(plan: Plan, run: Run) -> tuple[Any, ...]:
    request, elapsed_s = run.request, (run.end_s or 0) - (run.start_s or 0)
    assert run.behaviour is not None  # it has a course and ran
    lines = [run.behaviour.phases(slot, run.gpus) for slot in range(run.gpus)]
    rests = rest_intervals(lines, elapsed_s)
    per_node = [len(gpus) for _, gpus in run.places]
    work = np.array([mean_util(line, elapsed_s) for line in lines])
    nodes = np.array([part.mean() for part in np.split(work, np.cumsum(per_node)[:-1])])
    answers = {
        **hanging(rests, elapsed_s),
        "idle_nodes": is_uneven(nodes),
        "idle_gpus": is_uneven(work),
        "stable": is_stable(lines, elapsed_s, plan.interval_s),
    }
    begin, end = max(rests, key=lambda rest: rest[1] - rest[0], default=(None, None))
    scenario = request.course.scenario if request.course else None
    return (
        *(str(raw_id(request)), display_id(request), plan.start_s + run.submit_s, user_name(request), scenario),
        run.request.nodes > 0 or run.mapped,
        *(answers[name] for name in CLASSES),
        *(begin, end),
    )


def rests(level: Level) -> bool:
    """Return whether a GPU at this level does nothing, however busy it looks.

    >>> rests(Level(util=1.0, sm=0.008)), rests(Level(util=0.05, sm=0.02, dram=0.01))
    (True, False)
    """
    return level.dram < 1e-4 and not any((level.fp64, level.fp32, level.fp16, level.hmma, level.imma, level.dfma))


def rest_intervals(lines: Sequence[Sequence[Phase]], elapsed_s: int) -> list[tuple[int, int]]:
    """Return (begin, end) in seconds after the start of each interval in which no GPU works, in order.

    >>> rest_intervals([[Phase(0, Level(dram=0.5)), Phase(60, Level())]], 100)
    [(60, 100)]
    """
    edges = sorted({phase.begin_s for line in set(map(tuple, lines)) for phase in line if phase.begin_s < elapsed_s})
    found: list[tuple[int, int]] = []
    for begin, end in zip(edges, [*edges[1:], elapsed_s], strict=True):
        if all(rests(_at(line, begin)) for line in lines):
            joined = bool(found) and found[-1][1] == begin
            found[-1:] = [(found[-1][0], end)] if joined else [*found[-1:], (begin, end)]
    return found


def _at(line: Sequence[Phase], second: int) -> Level:
    return next(phase.level for phase in reversed(line) if phase.begin_s <= second)


def hanging(rests: Sequence[tuple[int, int]], elapsed_s: int) -> dict[str, bool | None]:
    """Return which of the hung classes are true: where intervals of at least T lie, and what is before and after.

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
    """Whether one of the last intervals comes after work of more than T; None where it is too near to call."""
    if any(work > BEFORE_HOST_S for work in last):
        return True
    return None if any(work > BEFORE_HOST_S - WINDOW_S for work in last) else False


def mean_util(line: Sequence[Phase], elapsed_s: int) -> float:
    """Return the utilisation of a GPU by design, over all of the run."""
    ends = [*(phase.begin_s for phase in line[1:]), elapsed_s]
    spans = [max(0, min(end, elapsed_s) - phase.begin_s) for phase, end in zip(line, ends, strict=True)]
    total = sum(p.level.util * p.level.mean_factor * span for p, span in zip(line, spans, strict=True))
    return total / max(1, elapsed_s)


def is_uneven(work: F64) -> bool | None:
    """Return whether the busiest does at least twice what the idlest does; None where it is too near to call.

    >>> is_uneven(np.array([0.8, 0.3])), is_uneven(np.array([0.8, 0.5])), is_uneven(np.zeros(2))
    (True, False, False)
    >>> is_uneven(np.array([0.8, 0.401]))
    """
    if len(work) < 2 or work.max() == 0:
        return False
    bound = TWICE * work.min()
    return None if bound > 0 and abs(work.max() / bound - 1) < RATIO_MARGIN else bool(work.max() >= bound)


def is_stable(lines: Sequence[Sequence[Phase]], elapsed_s: int, interval_s: int) -> bool | None:
    """Return whether the mean of the GPUs keeps to its own mean, minute by minute; one that does nothing does.

    None where it is too near to call.

    Asked of utilisation and of SM activity: one that waits may look busy. What samples fall below their level is even
    between nothing and `noise`: the share of minutes that it takes beyond the bound, and the mean distance, are
    expected values.
    """
    alike = Counter(map(tuple, lines))
    each = [_by_minute(line, elapsed_s) for line in alike]
    weights = np.array(list(alike.values()))[:, None]
    answers = list[bool | None]()
    for name in ("util", "sm"):
        level = np.array([levels[name] for levels in each])
        variance = (level * np.array([levels["noise"] for levels in each])) ** 2 / 12
        mean, of_mean = (level * weights).sum(0) / len(lines), (variance * weights).sum(0) / len(lines) ** 2
        answers.append(_keeps_to_its_mean(mean, of_mean, samples=60 / interval_s))
    return False if False in answers else None if None in answers else True


def _keeps_to_its_mean(level: F64, variance: F64, *, samples: float) -> bool | None:
    """`level` by minute and the variance of one sample of it, of so many samples in a minute."""
    mean = level.mean() if level.size else 0.0
    if mean == 0:
        return True
    off, sigma = level / mean - 1, np.maximum(np.sqrt(variance / samples) / mean, 1e-9)
    beyond = 1 - _normal((WITHIN - off) / sigma) + _normal((-WITHIN - off) / sigma)
    density = np.exp(-((off / sigma) ** 2) / 2) * np.sqrt(2 / np.pi)
    distance = sigma * density + off * (1 - 2 * _normal(-off / sigma))
    worst = max(float(beyond.mean()) / (1 - SHARE), float(distance.mean()) / MEAN)
    return None if abs(worst - 1) < MARGIN else worst < 1


def _by_minute(line: Sequence[Phase], elapsed_s: int) -> dict[str, F64]:
    """Utilisation and SM activity in whole minutes by design, and how far below full activity samples fall."""
    at = np.arange(0, elapsed_s // 60 * 60, _STEP_S)
    number = np.searchsorted([phase.begin_s for phase in line], at, "right") - 1
    table = np.array([[*phase.level, phase.level.period_s or 1.0] for phase in line])[number]
    place = {name: index for index, name in enumerate(Level._fields)}
    works = at % table[:, -1] < table[:, place["duty"]] * table[:, -1]
    fall = 1 - table[:, place["noise"]] / 2
    found = {name: table[:, place[name]] * fall * works for name in ("util", "sm")}
    found["noise"] = table[:, place["noise"]] / fall
    return {name: values.reshape(-1, 60 // _STEP_S).mean(1) for name, values in found.items()}


def _normal(values: F64) -> F64:
    """Distribution function of the normal distribution (Abramowitz and Stegun 26.2.17, good to 1e-7)."""
    t = 1 / (1 + 0.2316419 * np.abs(values))
    powers = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-(values**2) / 2) / np.sqrt(2 * np.pi) * powers
    return np.asarray(np.where(values >= 0, 1 - tail, tail))
