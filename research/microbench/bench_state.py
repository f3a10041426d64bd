"""What a bench has measured so far, as a file holds it: written after every experiment,
continued from there.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from microbench.bench_file import (
    BenchFile,
    BenchRow,
    PairTimes,
    PlanRecord,
    read_bench_file,
    write_bench_file,
)
from microbench.device import BenchDevice
from microbench.experiments import Experiment
from microbench.fits import Bench, ExpectedOutcome, ExperimentResult, ExperimentRun, calibrate
from microbench.measure import AloneRun, PairedRun
from microbench.workloads import BenchWorkload
from tachograph.catalog.errors import InputError

_PACKAGES = (
    "tachograph",
    "cuda-core",
    "cuda-bindings",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-nvrtc",
)
_OTHER = "name another file, or remove this one"


@dataclass(frozen=True, slots=True)
class BenchState:
    """The file of a bench on one GPU by one plan. `path` None: nothing is written."""

    path: Path | None
    device: BenchDevice
    plan: PlanRecord

    def content(self, found: Bench) -> BenchFile:
        """Return all that was measured, with the calibration that follows from it."""
        plain = calibrate(found, lanes=self.device.lanes)
        of_device = {"arch": self.device.arch, "sms": self.device.gpu.sms}
        fields = {name: getattr(plain, name) for name in plain.__struct_fields__}
        return BenchFile(**fields | of_device | {"versions": versions(), "plan": self.plan})

    def write(self, found: Bench) -> BenchFile:
        """Write the file, whole or not at all, and return what is in it.

        Errors: OSError, for the caller to add the context.
        """
        content = self.content(found)
        if self.path is not None:
            write_bench_file(self.path, content)
        return content


def versions() -> dict[str, str]:
    """Return {package: its version} of what measures; what is not installed is absent."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def begun_before(path: Path, device: BenchDevice, asked: PlanRecord) -> BenchFile | None:
    """Return the file of a bench that goes on; None: there is none yet.

    Errors: InputError for a file of another GPU, of another plan, or that is none.
    """
    if not path.exists():
        return None
    found = read_bench_file(path)
    gpu, other = device.gpu, (found.gpu, found.driver, found.arch, found.sms)
    for name, was, now in zip(
        ("GPU", "driver", "architecture", "number of SMs"), other, (gpu.name, device.driver, device.arch, gpu.sms),
        strict=True,
    ):  # fmt: skip
        if found.plan is not None and was != now:
            raise InputError(
                f"it is of another {name}: {was}, not {now}", where=str(path), do=_OTHER
            )
    if found.plan is None or not same_plan(found.plan, asked):
        raise InputError(
            "it is of another plan of experiments",
            where=str(path),
            do=f"give the same options, {_OTHER}",
        )
    return found


def same_plan(plan: PlanRecord, asked: PlanRecord) -> bool:
    """Return whether two plans measure the same; how many runs time allows may differ."""
    names = ("runs_asked", "duration_ms", "experiments", "mps")
    return all(getattr(plan, name) == getattr(asked, name) for name in names)


def results_of(content: BenchFile, wanted: Sequence[Experiment]) -> tuple[ExperimentResult, ...]:
    """Return what was measured before of these experiments; what failed, or was not reached, is
    to be done again.
    """
    by_name = {one.name: one for one in wanted}
    return tuple(
        _result(row, by_name[row.name]) for row in content.experiments if row.name in by_name
    )


def _result(row: BenchRow, experiment: Experiment) -> ExperimentResult:
    alone = tuple(
        AloneRun(one.rounds, one.seconds, one.cycles, tuple(one.each_s)) for one in row.launches
    )
    return ExperimentResult(
        experiment=_with_floats(experiment, row),
        mode=row.mode,
        alone=alone,
        expected=None if row.predicted is None else ExpectedOutcome(row.predicted),
        calibrated=None if row.calibrated is None else ExpectedOutcome(row.calibrated),
        runs=() if row.times is None else _runs(row.times),
    )


def _with_floats(experiment: Experiment, row: BenchRow) -> Experiment:
    """The experiment with arrays as large as they were: they may have been halved."""
    if len(row.launches) != len(experiment.workloads):
        return experiment
    sized: list[BenchWorkload] = [
        replace(one, floats=had.floats)
        for one, had in zip(experiment.workloads, row.launches, strict=True)
    ]
    return replace(experiment, first=sized[0], second=sized[1] if len(sized) > 1 else None)


def _runs(times: PairTimes) -> tuple[ExperimentRun, ...]:
    turns: Sequence[float | None] = times.in_turn_s or [None] * len(times.first_alone_s)
    return tuple(
        ExperimentRun((first, second), turn, PairedRun(one, other))
        for first, second, turn, one, other in zip(
            times.first_alone_s, times.second_alone_s, turns, times.first_together_s, times.second_together_s,
            strict=False,
        )
    )  # fmt: skip
