"""Runs of the experiments, one after the other, and the conditions of the GPU they ran under."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from tachograph.sharing.demand import Calibration, Demand, Estimate, GpuCapacity, Sharing
from tachograph.sharing.microbench.calibrate import (
    Bench,
    ExpectedOutcome,
    ExperimentResult,
    ExperimentRun,
    References,
    calibrate,
    demand_of,
    expected,
    references,
)
from tachograph.sharing.microbench.device import BenchDevice, HangingError, LaunchError, MemoryFullError
from tachograph.sharing.microbench.experiments import Experiment, smaller
from tachograph.sharing.microbench.measure import (
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

# why clocks are lower than they could be; idle and settings of the user are left out
_HELD_BACK: Mapping[int, str] = MappingProxyType(
    {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake"}
)
_MPS_SERVER = "nvidia-cuda-mps-server"


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the GPU is now. None: unknown. `others`: processes on it that are not this one. `mig`: it is divided."""

    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    others: tuple[int, ...] = ()
    held_back: tuple[str, ...] = ()
    driver: str | None = None
    mig: bool = False

    def warnings(self) -> tuple[str, ...]:
        """Conditions that may have affected the measurement, in sentences.

        >>> Conditions(others=(17,), held_back=("power cap",)).warnings()[1]
        'the clock of the SMs was held back: power cap'
        """
        sentences = []
        if self.others:
            numbers = ", ".join(map(str, self.others))
            sentences.append(f"other processes are on this GPU ({numbers}): times may be theirs as well")
        if self.held_back:
            sentences.append(f"the clock of the SMs was held back: {', '.join(self.held_back)}")
        if self.mig:
            sentences.append("MIG divides this GPU: what is measured is true of this instance, beside quiet ones, only")
        return tuple(sentences)


def conditions(pci_bus_id: str, library: Any = None) -> Conditions:
    """Return the conditions of the GPU at this address now; values that NVML does not report are None.

    `library`: the module pynvml, or one like it.
    """
    import pynvml

    nvml: Any = library or pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return Conditions()
    try:
        handle = nvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
    except nvml.NVMLError:
        nvml.nvmlShutdown()
        return Conditions()

    def reported(query: Callable[[], Any], otherwise: Any = None) -> Any:
        """The result; `otherwise` where a GPU or a MIG instance does not report it, so that other values remain."""
        try:
            return query()
        except nvml.NVMLError:
            return otherwise

    reasons = reported(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle), 0)
    found = Conditions(
        sm_clock_mhz=reported(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        max_sm_clock_mhz=reported(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        others=_others(
            [one.pid for one in reported(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), [])],
            lambda number: str(reported(lambda: nvml.nvmlSystemGetProcessName(number), "")),
        ),
        held_back=tuple(words for bit, words in _HELD_BACK.items() if reasons & bit),
        driver=reported(lambda: str(nvml.nvmlSystemGetDriverVersion())),
        mig=reported(lambda: nvml.nvmlDeviceGetMigMode(handle), (0, 0))[0] == 1,
    )
    nvml.nvmlShutdown()
    return found


def _others(found: Sequence[int], name: Callable[[int], str]) -> tuple[int, ...]:
    """Processes that are neither this one nor the server of MPS, through which this one may run.

    Within a container NVML reports process ids of the host, unknown inside: a single one is taken as this process.
    """
    if len(found) == 1 and os.getpid() not in found and not Path(f"/proc/{found[0]}").exists():
        return ()
    return tuple(sorted(one for one in found if one != os.getpid() and _MPS_SERVER not in name(one)))


_STUCK = "not run: a kernel before it did not end"
_EQUAL = 0.02  # relative difference of two times that counts as none
_MODES = ("first", "second", "in turn", "together")


class Predictor(Protocol):
    """The estimator for two kernels that share a GPU in some sharing mode."""

    def __call__(
        self, demands: tuple[Demand, Demand], gpu: GpuCapacity, sharing: Sharing, calibration: Calibration
    ) -> Estimate:
        """Return the estimate."""
        ...


class MpsProcesses(Protocol):
    """Runs the launches of an experiment in two processes that share the GPU under MPS, each with its share of SMs."""

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


@dataclass(slots=True)
class _Progress:
    """Progress of the run; once a kernel hangs nothing more is started."""

    report: Callable[[str, int, int], None]
    total: int
    done: int = 0
    stuck: bool = False

    def each(
        self, results: Iterable[ExperimentResult], action: Callable[[ExperimentResult], ExperimentResult]
    ) -> list[ExperimentResult]:
        """The results after `action`; one that fails holds the reason."""
        return [self._one(one, action) for one in results]

    def _one(self, one: ExperimentResult, action: Callable[[ExperimentResult], ExperimentResult]) -> ExperimentResult:
        self.report(one.experiment.name, self.done, self.total)
        self.done += 1
        if one.problem is not None or self.stuck:
            return replace(one, problem=one.problem or _STUCK)
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
) -> Bench:
    """Return the results of all chosen experiments; one that fails holds the reason, the others continue.

    `progress` is called with the current step, steps done, steps in all.
    """
    pairs = sum(one.second is not None for one in chosen)
    steps = _Progress(progress, len(chosen) + pairs)
    results = steps.each(
        (ExperimentResult(experiment=one, mode="streams") for one in chosen), lambda one: _alone(device, one, plan)
    )
    begun = Bench(gpu=device.gpu, driver=device.driver, date=_now(), results=tuple(results))
    foresight = _Foresight.after(device, begun, predictor)
    if processes is not None:
        under = [replace(one, mode="mps") for one in results if one.experiment.shares is not None]
        results += under
        steps.total += len(under)
    waiting = [foresight.of(one) for one in results]

    def pair(one: ExperimentResult) -> ExperimentResult:
        if one.experiment.second is None:
            return one
        if one.mode == "mps" and processes is not None:
            tuned, runs = processes.measure(one.experiment, plan)
            return replace(one, alone=tuned, runs=_against_all(device, one.experiment, tuned, runs, plan))
        return _paired(device, one, plan)

    return replace(begun, results=tuple(steps.each(waiting, pair)), stuck=steps.stuck)


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


def _tuned(device: BenchDevice, ready: tuple[LoadedWorkload, ...], plan: BenchPlan) -> tuple[AloneRun, ...]:
    """All of about the same time: the one of more rounds follows the other, whose rounds are coarser."""
    found = [tune(device, one, plan.target_s) for one in ready]
    if len(found) == 2 and abs(found[0].seconds / found[1].seconds - 1.0) > _EQUAL:
        finer = 0 if found[0].rounds > found[1].rounds else 1
        found[finer] = tune(device, ready[finer], found[1 - finer].seconds)
    return tuple(middle(device, one, had.rounds, runs=plan.runs) for one, had in zip(ready, found, strict=True))


def _paired(device: BenchDevice, result: ExperimentResult, plan: BenchPlan) -> ExperimentResult:
    """Run alone, one after the other and together; the order rotates between runs, so that no mode is always warm."""
    rounds = tuple(one.rounds for one in result.alone)
    with loaded(device, result.experiment.workloads) as ready:
        first, second = zip(ready, rounds, strict=True)
        limit_s = time_limit(sum(one.seconds for one in result.alone))
        together(device, first, second, limit_s=limit_s)  # warms both streams
        runs = [_run(device, first, second, limit_s=limit_s, turn=number) for number in range(plan.runs)]
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
            times[mode] = alone(device, *(first if mode == "first" else second), limit_s=limit_s).seconds
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
            [alone(device, one, had.rounds, limit_s=time_limit(plan.target_s)).seconds for _ in runs]
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
        measured = [pair for one in begun.results for pair in zip(one.experiment.workloads, one.alone, strict=False)]
        own = calibrate(begun, lanes=device.lanes).values
        return cls(device, predictor, references(measured, device.gpu), Calibration(), own)

    def of(self, result: ExperimentResult) -> ExperimentResult:
        """The result with its expected values."""
        if result.problem is not None or len(result.alone) < 2:
            return result
        return replace(
            result, expected=self._expected(result, self.published), calibrated=self._expected(result, self.own)
        )

    def _expected(self, result: ExperimentResult, calibration: Calibration) -> ExpectedOutcome:
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
        sharing = Sharing("mps", experiment.shares) if result.mode == "mps" else Sharing()
        estimate = self.predictor((first, second), self.device.gpu, sharing, calibration)
        return expected(estimate, (result.alone[0].seconds, result.alone[1].seconds), experiment.compared)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
