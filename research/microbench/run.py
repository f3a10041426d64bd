"""Runs of the experiments, one after the other, within a time, and continued where they were
interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf
from typing import Protocol

from microbench.demand import References, demand_of, references
from microbench.device import BenchDevice, HangingError, LaunchError, MemoryFullError
from microbench.experiments import Experiment, smaller
from microbench.fits import (
    Bench,
    ExpectedOutcome,
    ExperimentResult,
    ExperimentRun,
    calibrate,
    expected,
)
from microbench.measure import (
    AloneRun,
    LoadedWorkload,
    alone,
    in_turn,
    loaded,
    middle,
    time_limit,
    together,
    tune,
)
from tachograph.annexes.share.demand import Calibration, Demand, Estimate, GpuCapacity, Sharing

_STUCK = "not run: a kernel before it did not end"
TIME_UP = "not run: the time was up; the same command goes on with it"
_EQUAL = 0.02  # relative difference of two times that counts as none
_MODES = ("first", "second", "in turn", "together")
FEWEST_RUNS = 3  # of which a median means something
_TUNING = 5  # launches of about the target time until the rounds are found
# Times of a launch in a run of a pair: each alone, both in turn, and together up to two of them.
_OF_A_PAIR = 6
_SETUP_S = 0.25  # of an experiment: arrays are allocated and filled
_RESERVE = 0.9  # of the time: what is planned


class Predictor(Protocol):
    """The estimator for two kernels that share a GPU in some sharing mode."""

    def __call__(
        self,
        demands: tuple[Demand, Demand],
        gpu: GpuCapacity,
        sharing: Sharing,
        calibration: Calibration,
    ) -> Estimate:
        """Return the estimate."""
        ...


class MpsProcesses(Protocol):
    """Runs the launches of an experiment in two processes that share the GPU under MPS, each
    with its share of SMs.
    """

    def measure(
        self, experiment: Experiment, plan: BenchPlan
    ) -> tuple[tuple[AloneRun, AloneRun], tuple[ExperimentRun, ...]]:
        """Return how both were tuned, and the runs; one after the other is not among them.

        Errors: LaunchError.
        """
        ...


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """How often everything is measured, and how long a launch takes alone."""

    runs: int = 10
    target_s: float = 0.05

    def alone_s(self, experiment: Experiment) -> float:
        """Return how long it takes to measure the launches of an experiment alone."""
        return _SETUP_S + len(experiment.workloads) * (_TUNING + self.runs) * self.target_s

    def pair_s(self, experiment: Experiment) -> float:
        """Return how long it takes to measure an experiment together; 0 where it is of one
        launch.
        """
        return (
            0.0
            if experiment.second is None
            else _SETUP_S + (2 + _OF_A_PAIR * self.runs) * self.target_s
        )

    def seconds(self, wanted: Sequence[Experiment], *, mps: bool = False) -> float:
        """Return how long all of it takes.

        >>> from tachograph.annexes.share.demand import H100_NVL
        >>> from microbench.experiments import experiments
        >>> BenchPlan().seconds(experiments(H100_NVL)) < 8 * 60
        True
        """
        shared = [one for one in wanted if mps and one.shares is not None]
        return sum(self.alone_s(one) + self.pair_s(one) for one in wanted) + sum(
            self.pair_s(one) for one in shared
        )

    def within(
        self, seconds: float, wanted: Sequence[Experiment], *, mps: bool = False
    ) -> BenchPlan:
        """Return the plan with as many runs as fit into the time, `FEWEST_RUNS` or all that were
        asked for at least.

        >>> from tachograph.annexes.share.demand import H100_NVL
        >>> from microbench.experiments import experiments
        >>> BenchPlan(runs=50).within(480.0, experiments(H100_NVL)).runs
        12
        """
        for runs in range(self.runs, FEWEST_RUNS, -1):
            fewer = replace(self, runs=runs)
            if fewer.seconds(wanted, mps=mps) <= _RESERVE * seconds:
                return fewer
        return replace(self, runs=min(self.runs, FEWEST_RUNS))


@dataclass(frozen=True, slots=True)
class Deadline:
    """When measuring ends, by a clock in s."""

    at_s: float = inf
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """Return the end of so many seconds from now."""
        return cls(clock() + seconds, clock)

    def leaves(self, seconds: float) -> bool:
        """Return whether there is as much time."""
        return self.clock() + seconds <= self.at_s


@dataclass(slots=True)
class _Progress:
    """Progress of the run; once a kernel hangs nothing more is started. `results`: all, as they
    are now.
    """

    report: Callable[[str, int, int], None]
    deadline: Deadline
    save: Callable[[Bench], None]
    begun: Bench
    results: list[ExperimentResult]
    total: int
    done: int = 0
    stuck: bool = field(default=False)

    @property
    def bench(self) -> Bench:
        """All results so far."""
        return replace(self.begun, results=tuple(self.results), stuck=self.stuck)

    def each(
        self,
        seconds: Callable[[ExperimentResult], float],
        action: Callable[[ExperimentResult], ExperimentResult],
    ) -> None:
        """Act on every result, `seconds` long each, and save all after it; 0: it is done, or has
        nothing to be done.
        """
        for place, one in enumerate(self.results):
            needed = seconds(one)
            if needed <= 0:
                continue
            self.report(one.experiment.name, self.done, self.total)
            self.done += 1
            self.results[place] = self._one(one, needed, action)
            self.save(self.bench)

    def _one(
        self,
        one: ExperimentResult,
        needed: float,
        action: Callable[[ExperimentResult], ExperimentResult],
    ) -> ExperimentResult:
        if one.problem is not None or self.stuck:
            return replace(one, problem=one.problem or _STUCK)
        if not self.deadline.leaves(needed):
            return replace(one, problem=TIME_UP)
        try:
            return action(one)
        except LaunchError as problem:
            self.stuck = isinstance(problem, HangingError)
            return replace(one, problem=str(problem))


def bench(
    device: BenchDevice,
    chosen: Sequence[Experiment],
    *,
    plan: BenchPlan,
    predictor: Predictor,
    processes: MpsProcesses | None = None,
    progress: Callable[[str, int, int], None] = lambda doing, done, total: None,
    before: Sequence[ExperimentResult] = (),
    date: str | None = None,
    deadline: Deadline | None = None,
    save: Callable[[Bench], None] = lambda found: None,
) -> Bench:
    """Return the results of all chosen experiments; one that fails holds the reason, the others
    continue.

    All launches run alone first: only then pairs are predicted, and only then they run. `progress`
    is called with the current step, steps done, steps in all. `before`: results that are not
    measured again. `save`: called after each.
    """
    results = _all_results(chosen, before, mps=processes is not None)
    begun = Bench(gpu=device.gpu, driver=device.driver, date=date or _now(), results=tuple(results))

    def alone_s(one: ExperimentResult) -> float:
        return 0.0 if one.mode == "mps" or one.alone else plan.alone_s(one.experiment)

    def pair_s(one: ExperimentResult) -> float:
        return 0.0 if one.runs else plan.pair_s(one.experiment)

    steps = _Progress(progress, deadline or Deadline(), save, begun, results, 0)
    steps.total = sum((alone_s(one) > 0) + (pair_s(one) > 0) for one in results)
    steps.each(alone_s, lambda one: _alone(device, one, plan))
    _share(steps.results)
    # Predictions wait for all launches alone.
    if any(one.problem == TIME_UP for one in steps.results):
        return steps.bench
    foresight = _Foresight.after(device, steps.bench, predictor)
    steps.results[:] = [foresight.of(one) for one in steps.results]
    save(steps.bench)

    def pair(one: ExperimentResult) -> ExperimentResult:
        if one.mode == "mps" and processes is not None:
            tuned, runs = processes.measure(one.experiment, plan)
            return replace(
                one, alone=tuned, runs=_against_all(device, one.experiment, tuned, runs, plan)
            )
        return _paired(device, one, plan)

    steps.each(pair_s, pair)
    return steps.bench


def _all_results(
    chosen: Sequence[Experiment], before: Sequence[ExperimentResult], *, mps: bool
) -> list[ExperimentResult]:
    """Results to be filled, with what was measured before; those under MPS follow all in
    streams.
    """
    had = {(one.experiment.name, one.mode): one for one in before}
    results = [
        had.get((one.name, "streams")) or ExperimentResult(experiment=one, mode="streams") for one in chosen
    ]  # fmt: skip
    shared = [one for one in chosen if mps and one.shares is not None]
    return results + [
        had.get((one.name, "mps")) or ExperimentResult(experiment=one, mode="mps") for one in shared
    ]


def _share(results: list[ExperimentResult]) -> None:
    """Give those under MPS that have not run what was measured alone in streams, which their
    predictions rest on.
    """
    streams = {one.experiment.name: one for one in results if one.mode == "streams"}
    for place, one in enumerate(results):
        if one.mode == "mps" and not one.runs:
            had = streams[one.experiment.name]
            results[place] = replace(
                one, experiment=had.experiment, alone=had.alone, problem=had.problem
            )


def _alone(device: BenchDevice, result: ExperimentResult, plan: BenchPlan) -> ExperimentResult:
    """Tune every launch of an experiment, with smaller arrays where they do not fit."""
    experiment = result.experiment
    while True:
        try:
            with loaded(device, experiment.workloads) as ready:
                return replace(result, experiment=experiment, alone=_tuned(device, ready, plan))
        except MemoryFullError:
            less = smaller(experiment)
            if less is None:
                raise
            experiment = less


def _tuned(
    device: BenchDevice, ready: tuple[LoadedWorkload, ...], plan: BenchPlan
) -> tuple[AloneRun, ...]:
    """All of about the same time: the one of more rounds follows the other, whose rounds are
    coarser.
    """
    found = [tune(device, one, plan.target_s) for one in ready]
    if len(found) == 2 and abs(found[0].seconds / found[1].seconds - 1.0) > _EQUAL:
        finer = 0 if found[0].rounds > found[1].rounds else 1
        found[finer] = tune(device, ready[finer], found[1 - finer].seconds)
    return tuple(
        middle(device, one, had.rounds, runs=plan.runs)
        for one, had in zip(ready, found, strict=True)
    )


def _paired(device: BenchDevice, result: ExperimentResult, plan: BenchPlan) -> ExperimentResult:
    """Run alone, one after the other and together; the order rotates between runs, so that no
    mode is always warm.
    """
    rounds = tuple(one.rounds for one in result.alone)
    with loaded(device, result.experiment.workloads) as ready:
        first, second = zip(ready, rounds, strict=True)
        limit_s = time_limit(sum(one.seconds for one in result.alone))
        together(device, first, second, limit_s=limit_s)  # warms both streams
        runs = [
            _run(device, first, second, limit_s=limit_s, turn=number) for number in range(plan.runs)
        ]
    return replace(result, runs=tuple(runs))


def _run(
    device: BenchDevice,
    first: tuple[LoadedWorkload, int],
    second: tuple[LoadedWorkload, int],
    *,
    limit_s: float,
    turn: int,
) -> ExperimentRun:
    times: dict[str, float] = {}
    both = None
    turn %= len(_MODES)
    for mode in (*_MODES[turn:], *_MODES[:turn]):
        if mode == "together":
            both = together(device, first, second, limit_s=limit_s)
        elif mode == "in turn":
            times[mode] = in_turn(device, [first, second], limit_s=limit_s)
        else:
            times[mode] = alone(
                device, *(first if mode == "first" else second), limit_s=limit_s
            ).seconds
    assert both is not None
    return ExperimentRun((times["first"], times["second"]), times["in turn"], both)


def _against_all(
    device: BenchDevice,
    experiment: Experiment,
    tuned: tuple[AloneRun, AloneRun],
    runs: tuple[ExperimentRun, ...],
    plan: BenchPlan,
) -> tuple[ExperimentRun, ...]:
    """The runs with times alone on the whole GPU, for an experiment that is compared with these."""
    if not experiment.alone_free:
        return runs
    with loaded(device, experiment.workloads) as ready:
        free = [
            [
                alone(device, one, had.rounds, limit_s=time_limit(plan.target_s)).seconds
                for _ in runs
            ]
            for one, had in zip(ready, tuned, strict=True)
        ]
    return tuple(replace(run, alone=times) for run, *times in zip(runs, *free, strict=True))


@dataclass(frozen=True, slots=True)
class _Foresight:
    """Expected results of pairs, from the times of their launches alone."""

    device: BenchDevice
    predictor: Predictor
    against: References
    published: Calibration
    own: Calibration

    @classmethod
    def after(cls, device: BenchDevice, begun: Bench, predictor: Predictor) -> _Foresight:
        """Expectations from the launches that ran alone."""
        own = calibrate(begun, lanes=device.lanes).values
        return cls(
            device, predictor, references(begun.measured_alone, device.gpu), Calibration(), own
        )

    def of(self, result: ExperimentResult) -> ExperimentResult:
        """The result with its expected values; those of a pair that has run stay as they were."""
        if result.problem is not None or len(result.alone) < 2 or result.runs:
            return result
        return replace(
            result,
            expected=self._expected(result, self.published),
            calibrated=self._expected(result, self.own),
        )

    def _expected(self, result: ExperimentResult, calibration: Calibration) -> ExpectedOutcome:
        experiment = result.experiment
        first, second = (
            demand_of(
                workload,
                alone,
                gpu=self.device.gpu,
                lanes=self.device.lanes,
                against=self.against,
                calibration=calibration,
            )
            for workload, alone in zip(experiment.workloads, result.alone, strict=True)
        )
        sharing = Sharing("mps", experiment.shares) if result.mode == "mps" else Sharing()
        estimate = self.predictor((first, second), self.device.gpu, sharing, calibration)
        return expected(
            estimate, (result.alone[0].seconds, result.alone[1].seconds), experiment.compared
        )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
