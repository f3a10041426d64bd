"""Two processes that share a GPU under MPS, each with a share of its SMs. The daemon is the
user's: none is started.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from microbench.device import LaunchError
from microbench.experiments import Experiment
from microbench.fits import ExperimentRun
from microbench.measure import AloneRun, PairedRun, time_limit
from microbench.run import BenchPlan
from tachograph.catalog.errors import UsageError

SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_DEFAULT = "/tmp/nvidia-mps"  # where the daemon listens by default
_START_S = 120.0  # a process starts CUDA and compiles
_RESEARCH = Path(__file__).resolve().parents[1]  # where a process finds the package of its worker
_LEAD_S = 0.05  # from the order to the common start
_LEAVING_S = 30.0  # to free memory and leave the daemon
_TUNING = 40.0  # launches that tuning takes at most


def require_daemon(environment: Mapping[str, str] | None = None) -> None:
    """Return if the daemon of MPS listens.

    Errors: UsageError with the command that starts it.
    """
    environment = os.environ if environment is None else environment
    folder = Path(environment.get(_PIPES, _DEFAULT))
    if not (folder / "control").exists():
        raise UsageError(
            f"no daemon of MPS listens in {folder}",
            do=(
                f"start it with `nvidia-cuda-mps-control -d`, where its owner allows; ${_PIPES} "
                "names another folder"
            ),
        )


@dataclass(frozen=True, slots=True)
class MpsPairs:
    """Starts two processes for each experiment: the share of a process cannot change while it runs.

    `start` returns the command of one process.
    """

    start: Sequence[str]

    @classmethod
    def of(cls, device: int) -> MpsPairs:
        """Those for GPU `device` of this machine."""
        return cls((sys.executable, "-m", "microbench.worker", str(device)))

    def measure(
        self, experiment: Experiment, plan: BenchPlan
    ) -> tuple[tuple[AloneRun, AloneRun], tuple[ExperimentRun, ...]]:
        """Return how both were tuned, and the runs; one after the other is not among them.

        Errors: LaunchError.
        """
        if experiment.second is None or experiment.shares is None:
            raise LaunchError(f"{experiment.name} has no two launches with shares")
        with ExitStack() as stack:
            first, second = (
                stack.enter_context(_Process(self.start, share, workload))
                for share, workload in zip(experiment.shares, experiment.workloads, strict=True)
            )
            tuned = first.tune(plan.target_s), second.tune(plan.target_s)
            limit_s = time_limit(tuned[0].seconds + tuned[1].seconds)
            runs = tuple(_run((first, second), tuned, limit_s) for _ in range(plan.runs))
        return tuned, runs


class _Process:
    """One of the two, as a context; it always ends with the block, by a kill if necessary."""

    def __init__(self, command: Sequence[str], share: float, workload: object) -> None:
        self._command = command
        self._share = share
        self._workload = workload

    def __enter__(self) -> Self:
        environment = {**os.environ, SHARE: f"{self._share * 100:g}"}
        self._process: subprocess.Popen[str] = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=_RESEARCH,
        )
        with ExitStack() as begun:
            begun.callback(self._end)
            self._request({"do": "load", "workload": msgspec.to_builtins(self._workload)}, _START_S)
            begun.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if problem is None:
            self._dismiss()
        self._end()

    def _dismiss(self) -> None:
        """Let the process leave by itself: one that is killed may leave the server of MPS
        unusable for the next.
        """
        _pipe(self._process.stdin).close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVING_S)

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):  # unwritten data has no reader any more
                _pipe(pipe).close()

    def tune(self, target_s: float) -> AloneRun:
        """A launch that takes about so long on this share of the GPU."""
        found = self._request(
            {"do": "tune", "target_s": target_s}, _START_S + time_limit(_TUNING * target_s)
        )
        return AloneRun(found["rounds"], found["seconds"], found["cycles"])

    def order(self, rounds: int, limit_s: float, at_s: float | None = None) -> None:
        """Order a launch, at a time of the monotonic clock."""
        self._write({"do": "run", "rounds": rounds, "limit_s": limit_s, "at_s": at_s})

    def seconds(self, limit_s: float) -> float:
        """How long the launch took that was ordered."""
        return float(self._read(limit_s)["seconds"])

    def _request(self, order: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        self._write(order)
        return self._read(limit_s)

    def _write(self, order: Mapping[str, Any]) -> None:
        try:
            _pipe(self._process.stdin).write(msgspec.json.encode(order).decode() + "\n")
            _pipe(self._process.stdin).flush()
        except BrokenPipeError:
            raise LaunchError("a process under MPS ended before its work was done") from None

    def _read(self, limit_s: float) -> dict[str, Any]:
        answers = _pipe(self._process.stdout)
        with selectors.DefaultSelector() as selector:
            selector.register(answers, selectors.EVENT_READ)
            if not selector.select(limit_s):
                self._process.kill()  # its kernel ends with it, so that others can go on
                raise LaunchError(
                    f"a process under MPS did not answer within {limit_s:.0f} s, and was ended"
                )
        line = answers.readline()
        if not line:
            raise LaunchError("a process under MPS ended before its work was done")
        answer: dict[str, Any] = msgspec.json.decode(line)
        if "problem" in answer:
            raise LaunchError(f"under MPS: {answer['problem']}")
        return answer


def _run(
    pair: tuple[_Process, _Process], tuned: tuple[AloneRun, AloneRun], limit_s: float
) -> ExperimentRun:
    alone = []
    for one, had in zip(pair, tuned, strict=True):
        one.order(had.rounds, limit_s)
        alone.append(one.seconds(limit_s + _LEAD_S))
    at_s = time.monotonic() + _LEAD_S
    for one, had in zip(pair, tuned, strict=True):
        one.order(had.rounds, limit_s, at_s)
    both = PairedRun(pair[0].seconds(limit_s + _LEAD_S), pair[1].seconds(limit_s + _LEAD_S))
    return ExperimentRun((alone[0], alone[1]), None, both)


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
