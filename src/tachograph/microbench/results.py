"""What a run of the benchmarks gave: every time that was taken, what was expected before, what came out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from tachograph.interference.demand import Gpu
from tachograph.interference.outcome import Estimate
from tachograph.microbench.experiments import Compared, Experiment
from tachograph.microbench.measure import Alone, Together

Way = Literal["streams", "mps"]


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected before the two ran together. None: cannot be said; `unknown` says why."""

    value: float | None
    binding: str | None = None
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """One of the ten runs: times in s of each alone, of one after the other, of both at once."""

    alone: tuple[float, float]
    in_turn: float | None
    together: Together


@dataclass(frozen=True, slots=True)
class Value:
    """Of the medians of all runs; `low` and `high`: the lowest and highest of single runs."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One experiment in one way of sharing. `problem`: why it was not measured.

    `alone`: of each launch, as tuned. `expected`: with the published calibration; `calibrated`: with what the launches
    of this run told alone.
    """

    experiment: Experiment
    way: Way
    alone: tuple[Alone, ...] = ()
    expected: Expected | None = None
    calibrated: Expected | None = None
    runs: tuple[Run, ...] = ()
    problem: str | None = None

    @property
    def published(self) -> float | None:
        """What was measured on the H100 NVL."""
        return self.experiment.published_shares if self.way == "mps" else self.experiment.published

    @property
    def measured(self) -> Value | None:
        """What is compared, of all runs; None where there are none."""
        return value_of(self.runs, self.experiment.compared) if self.runs else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """All results on one GPU; `date` in UTC."""

    gpu: Gpu
    driver: str
    date: str
    results: tuple[Result, ...]
    stuck: bool = False  # a kernel did not end

    def alone(self, group: str) -> tuple[tuple[Experiment, Alone], ...]:
        """Experiments of a group, as long as the first of their launches took alone."""
        return tuple(
            (one.experiment, one.alone[0])
            for one in self.results
            if one.experiment.group == group and one.alone and one.way == "streams"
        )


def value_of(runs: Sequence[Run], compared: Compared) -> Value | None:
    """Return what is compared, of the medians of all times; None where it was not measured.

    >>> runs = [Run((1.0, 1.0), 2.0, Together(1.5, t)) for t in (1.25, 1.5, 2.0)]
    >>> value_of(runs, "gain"), value_of(runs, "second").median
    (Value(median=1.3333333333333333, low=1.0, high=1.3333333333333333), 1.5)
    """
    each = [_ratio(run.alone, run.in_turn, run.together, compared) for run in runs]
    turns = [run.in_turn for run in runs if run.in_turn is not None]
    middle = _ratio(
        (median(run.alone[0] for run in runs), median(run.alone[1] for run in runs)),
        median(turns) if turns else None,
        Together(median(run.together.first_s for run in runs), median(run.together.second_s for run in runs)),
        compared,
    )
    known = [value for value in each if value is not None]
    return None if middle is None or not known else Value(middle, min(known), max(known))


def _ratio(alone: tuple[float, float], in_turn: float | None, together: Together, compared: Compared) -> float | None:
    if compared == "gain":
        return None if in_turn is None else in_turn / together.seconds
    slowdowns = together.first_s / alone[0], together.second_s / alone[1]
    return {"first": slowdowns[0], "second": slowdowns[1], "both": sum(slowdowns) / 2}[compared]


def expected(estimate: Estimate, seconds: tuple[float, float], compared: Compared) -> Expected:
    """Return what an estimate says of launches that take so long alone and begin at once: of when they end.

    When the first has ended, the other goes on alone: so slowdowns from begin to end differ from those while both run.
    """
    one, other = estimate.members
    binding = other.binding if compared == "second" else one.binding or other.binding
    if estimate.gain is None or one.slowdown is None or other.slowdown is None:
        return Expected(None, None, estimate.unknown)
    ends = ended(seconds, (one.slowdown, other.slowdown), estimate.gain)
    return Expected(_ratio(seconds, sum(seconds), Together(*ends), compared), binding, estimate.unknown)


def ended(seconds: tuple[float, float], slowdowns: tuple[float, float], gain: float) -> tuple[float, float]:
    """Return when two launches end that begin at once: the sooner one at its slowdown, the later one as the gain says.

    >>> ended((1.0, 1.0), (1.0, 2.0), 1.0), ended((1.0, 3.0), (2.0, 2.0), 1.0)
    ((1.0, 2.0), (2.0, 4.0))
    """
    first, second = seconds[0] * slowdowns[0], seconds[1] * slowdowns[1]
    last = sum(seconds) / gain
    return (first, max(first, last)) if first <= second else (max(second, last), second)
