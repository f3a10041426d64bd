"""Runs experiments: first every launch alone, then what is expected of the pairs, then the pairs, run by run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Protocol

from tachograph.interference.demand import Calibration, Demand, Gpu
from tachograph.interference.outcome import Estimate, Sharing
from tachograph.microbench.calibrate import calibrate
from tachograph.microbench.demands import References, demand_of, references
from tachograph.microbench.device import Device, HangingError, LaunchError, MemoryFullError
from tachograph.microbench.experiments import Experiment, smaller
from tachograph.microbench.measure import Alone, Loaded, alone, in_turn, loaded, middle, time_limit, together, tune
from tachograph.microbench.results import Bench, Expected, Result, Run, expected

_STUCK = "not run: a kernel before it did not end"
_EQUAL = 0.02  # relative difference of two times that counts as none
_MODES = ("first", "second", "in turn", "together")


class Predictor(Protocol):
    """What the estimator says of two kernels that share a GPU in some way."""

    def __call__(
        self, demands: tuple[Demand, Demand], gpu: Gpu, sharing: Sharing, calibration: Calibration
    ) -> Estimate:
        """Return the estimate."""
        ...


class Processes(Protocol):
    """Runs the launches of an experiment in two processes that share the GPU under MPS, each with its share of SMs."""

    def measure(self, experiment: Experiment, plan: Plan) -> tuple[tuple[Alone, Alone], tuple[Run, ...]]:
        """Return how both were tuned, and the runs; one after the other is not among them.

        Errors: LaunchError.
        """
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How often everything is measured, and how long a launch takes alone."""

    runs: int = 10
    target_s: float = 0.05


@dataclass(slots=True)
class _Progress:
    """Where the work is; once a kernel hangs nothing more is tried."""

    told: Callable[[str, int, int], None]
    total: int
    done: int = 0
    stuck: bool = False

    def each(self, results: Iterable[Result], action: Callable[[Result], Result]) -> list[Result]:
        """The results after `action`; one that fails holds why."""
        return [self._one(one, action) for one in results]

    def _one(self, one: Result, action: Callable[[Result], Result]) -> Result:
        self.told(one.experiment.name, self.done, self.total)
        self.done += 1
        if one.problem is not None or self.stuck:
            return replace(one, problem=one.problem or _STUCK)
        try:
            return action(one)
        except LaunchError as problem:
            self.stuck = isinstance(problem, HangingError)
            return replace(one, problem=str(problem))


def bench(
    device: Device,
    chosen: Sequence[Experiment],
    *,
    plan: Plan,
    predictor: Predictor,
    processes: Processes | None = None,
    told: Callable[[str, int, int], None] = lambda doing, done, total: None,
) -> Bench:
    """Return the results of all chosen experiments; one that fails says why, the others go on.

    `told` is called with what is done, steps done, steps in all.
    """
    pairs = sum(one.second is not None for one in chosen)
    progress = _Progress(told, len(chosen) + pairs)
    results = progress.each(
        (Result(experiment=one, way="streams") for one in chosen), lambda one: _alone(device, one, plan)
    )
    begun = Bench(gpu=device.gpu, driver=device.driver, date=_now(), results=tuple(results))
    foresight = _Foresight.after(device, begun, predictor)
    if processes is not None:
        under = [replace(one, way="mps") for one in results if one.experiment.shares is not None]
        results += under
        progress.total += len(under)
    waiting = [foresight.of(one) for one in results]

    def pair(one: Result) -> Result:
        if one.experiment.second is None:
            return one
        if one.way == "mps" and processes is not None:
            tuned, runs = processes.measure(one.experiment, plan)
            return replace(one, alone=tuned, runs=_against_all(device, one.experiment, tuned, runs, plan))
        return _paired(device, one, plan)

    return replace(begun, results=tuple(progress.each(waiting, pair)), stuck=progress.stuck)


def _alone(device: Device, result: Result, plan: Plan) -> Result:
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


def _tuned(device: Device, ready: tuple[Loaded, ...], plan: Plan) -> tuple[Alone, ...]:
    """All of about the same time: the one of more rounds follows the other, whose rounds are coarser."""
    found = [tune(device, one, plan.target_s) for one in ready]
    if len(found) == 2 and abs(found[0].seconds / found[1].seconds - 1.0) > _EQUAL:
        finer = 0 if found[0].rounds > found[1].rounds else 1
        found[finer] = tune(device, ready[finer], found[1 - finer].seconds)
    return tuple(middle(device, one, had.rounds, runs=plan.runs) for one, had in zip(ready, found, strict=True))


def _paired(device: Device, result: Result, plan: Plan) -> Result:
    """Run alone, one after the other and together; the order turns from run to run, so that no mode is always warm."""
    rounds = tuple(one.rounds for one in result.alone)
    with loaded(device, result.experiment.workloads) as ready:
        first, second = zip(ready, rounds, strict=True)
        limit_s = time_limit(sum(one.seconds for one in result.alone))
        together(device, first, second, limit_s=limit_s)  # warms both streams
        runs = [_run(device, first, second, limit_s=limit_s, turn=number) for number in range(plan.runs)]
    return replace(result, runs=tuple(runs))


def _run(device: Device, first: tuple[Loaded, int], second: tuple[Loaded, int], *, limit_s: float, turn: int) -> Run:
    times: dict[str, float] = {}
    both = None
    turn %= len(_MODES)
    for mode in (*_MODES[turn:], *_MODES[:turn]):
        if mode == "together":
            both = together(device, first, second, limit_s=limit_s)
        elif mode == "in turn":
            times[mode] = in_turn(device, [first, second], limit_s=limit_s)
        else:
            times[mode] = alone(device, *(first if mode == "first" else second), limit_s=limit_s).seconds
    assert both is not None
    return Run((times["first"], times["second"]), times["in turn"], both)


def _against_all(
    device: Device, experiment: Experiment, tuned: tuple[Alone, Alone], runs: tuple[Run, ...], plan: Plan
) -> tuple[Run, ...]:
    """The runs with times alone on the whole GPU, for an experiment that is compared with these."""
    if not experiment.alone_free:
        return runs
    with loaded(device, experiment.workloads) as ready:
        free = [
            [alone(device, one, had.rounds, limit_s=time_limit(plan.target_s)).seconds for _ in runs]
            for one, had in zip(ready, tuned, strict=True)
        ]
    return tuple(replace(run, alone=times) for run, *times in zip(runs, *free, strict=True))


@dataclass(frozen=True, slots=True)
class _Foresight:
    """What is expected of pairs, from what their launches took alone."""

    device: Device
    predictor: Predictor
    against: References
    published: Calibration
    own: Calibration

    @classmethod
    def after(cls, device: Device, begun: Bench, predictor: Predictor) -> _Foresight:
        """What the launches that ran alone allow."""
        measured = [pair for one in begun.results for pair in zip(one.experiment.workloads, one.alone, strict=False)]
        own = calibrate(begun, lanes=device.lanes).values
        return cls(device, predictor, references(measured, device.gpu), Calibration(), own)

    def of(self, result: Result) -> Result:
        """The result with what is expected of it."""
        if result.problem is not None or len(result.alone) < 2:
            return result
        return replace(
            result, expected=self._expected(result, self.published), calibrated=self._expected(result, self.own)
        )

    def _expected(self, result: Result, calibration: Calibration) -> Expected:
        experiment = result.experiment
        first, second = (
            demand_of(
                workload,
                alone,
                gpu=self.device.gpu,
                lanes=self.device.lanes,
                code=self.device.code(workload.kernel),
                against=self.against,
                calibration=calibration,
            )
            for workload, alone in zip(experiment.workloads, result.alone, strict=True)
        )
        sharing = Sharing("mps", experiment.shares) if result.way == "mps" else Sharing()
        estimate = self.predictor((first, second), self.device.gpu, sharing, calibration)
        return expected(estimate, (result.alone[0].seconds, result.alone[1].seconds), experiment.compared)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
